-- What the caller has not set: see tpcc.sql, and voter.sql for those of both.

\if :{?method}
\else
    \set method nvm_cmdlog
\endif
\if :{?unlogged}
\else
    \set unlogged off
\endif
\if :unlogged
    \set persistence UNLOGGED
\else
    \set persistence ''
\endif
\if :{?commands}
\else
    SELECT :'method' = 'nvm_cmdlog' AS commands
    \gset
\endif
\if :{?foreign_keys}
\else
    \set foreign_keys on
\endif
\if :{?warehouses}
\else
    \set warehouses 1
\endif
\if :{?items}
\else
    \set items 100000
\endif
\if :{?customers}
\else
    \set customers 3000
\endif
