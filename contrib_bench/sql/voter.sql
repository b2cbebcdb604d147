-- Voter, as H-Store has it: votes by telephone for contestants of a show, of each number at most
-- so many.
--
--     psql -f voter.sql
--     pgbench -n -c 4 -T 10 -M prepared -D phones=10000000 -D max_votes=2 -f voter/vote.pgbench
--     psql -c 'SELECT * FROM voter_violations(2)'      -- must be empty
--
-- Variables, all optional:
--   method, unlogged, commands, foreign_keys    as in tpcc.sql
--   contestants   default 6
--
-- phones: numbers of each area.  Where that is small many clients vote by one number at once;
-- without lanes more votes may be taken than it has then.

\set ON_ERROR_STOP on
SET client_min_messages = warning;

\ir tpcc/variables.sql
\if :{?contestants}
\else
    \set contestants 6
\endif

CREATE :persistence TABLE contestants (
    contestant_number int NOT NULL, contestant_name varchar(50) NOT NULL
) USING :method;
CREATE :persistence TABLE area_code_state (
    area_code smallint NOT NULL, state varchar(2) NOT NULL
) USING :method;
CREATE :persistence TABLE votes (
    phone_number bigint NOT NULL, state varchar(2) NOT NULL, contestant_number int NOT NULL
) USING :method;

INSERT INTO contestants SELECT i, (ARRAY['Edwina Burnam', 'Tabatha Gehling', 'Kelly Clauss',
    'Jessie Alloway', 'Alana Bregman', 'Jessie Eichman', 'Allie Rogalski', 'Nita Coster',
    'Kurt Walser', 'Ericka Dieter', 'Loraine Nygren', 'Tania Mattioli'])[1 + (i - 1) % 12]
    FROM generate_series(1, :contestants) i;

INSERT INTO area_code_state SELECT unnest(codes::smallint[]), state FROM (VALUES
    ('AK', '{907}'), ('AL', '{205,256,334,251}'), ('AR', '{870,501,479}'),
    ('AZ', '{480,602,623,928,520}'),
    ('CA', '{341,764,628,831,925,909,562,661,510,650,949,760,415,951,209,669,408,559,626,442,'
           '530,916,627,714,707,310,323,213,424,747,818,858,935,619,805}'),
    ('CO', '{369,720,303,970,719}'), ('CT', '{860,203,959,475}'), ('DC', '{202}'),
    ('DE', '{302}'),
    ('FL', '{689,407,239,850,727,321,754,954,927,352,863,386,904,561,772,786,305,941,813}'),
    ('GA', '{478,770,470,404,762,706,678,912,229}'), ('HI', '{808}'),
    ('IA', '{515,319,563,641,712}'), ('ID', '{208}'),
    ('IL', '{217,872,312,773,464,708,224,847,779,815,618,309,331,630}'),
    ('IN', '{317,765,574,260,219,812}'), ('KS', '{913,785,316,620}'), ('KY', '{606,859,502,270}'),
    ('LA', '{504,985,225,318,337}'), ('MA', '{774,508,339,781,857,617,978,351,413}'),
    ('MD', '{443,410,301,240}'), ('ME', '{207}'),
    ('MI', '{517,810,278,679,313,586,947,248,734,269,989,906,616,231}'),
    ('MN', '{612,320,651,763,952,218,507}'), ('MO', '{636,660,975,816,573,314,557,417}'),
    ('MS', '{769,601,662,228}'), ('MT', '{406}'), ('NC', '{336,252,984,919,980,910,828,704}'),
    ('ND', '{701}'), ('NE', '{402,308}'), ('NH', '{603}'),
    ('NJ', '{908,848,732,551,201,862,973,609,856}'), ('NM', '{575,957,505}'), ('NV', '{775,702}'),
    ('NY', '{315,518,646,347,212,718,516,917,845,631,716,585,607,914}'),
    ('OH', '{216,330,234,567,419,440,380,740,614,283,513,937}'), ('OK', '{918,580,405}'),
    ('OR', '{503,541,971}'), ('PA', '{814,717,570,878,835,484,610,267,215,724,412}'),
    ('RI', '{401}'), ('SC', '{843,864,803}'), ('SD', '{605}'), ('TN', '{423,865,931,615,901,731}'),
    ('TX', '{254,325,713,940,817,430,903,806,737,512,361,210,979,936,409,972,469,214,682,832,'
           '281,830,956,432,915}'),
    ('UT', '{435,801,385}'), ('VA', '{434,804,757,703,571,276,236,540}'), ('VT', '{802}'),
    ('WA', '{509,360,564,206,425,253}'), ('WI', '{715,920,262,414,608}'), ('WV', '{304}'),
    ('WY', '{307}')) c (state, codes);

ALTER TABLE contestants ADD PRIMARY KEY (contestant_number);
ALTER TABLE area_code_state ADD PRIMARY KEY (area_code);
CREATE INDEX votes_by_phone ON votes (phone_number);
\if :foreign_keys
ALTER TABLE votes ADD FOREIGN KEY (contestant_number) REFERENCES contestants;
\endif

-- 0: the vote counts; 1: there is no such contestant; 2: the number has voted often enough.
CREATE FUNCTION vote(phone bigint, contestant int, max_votes int) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    votes_so_far bigint; home text;
BEGIN
    PERFORM FROM contestants WHERE contestant_number = contestant;
    IF NOT FOUND THEN
        RETURN 1;
    END IF;
    SELECT count(*) INTO votes_so_far FROM votes WHERE phone_number = phone;
    IF votes_so_far >= max_votes THEN
        RETURN 2;
    END IF;
    SELECT state INTO home FROM area_code_state WHERE area_code = (phone / 10000000)::smallint;
    INSERT INTO votes VALUES (phone, coalesce(home, 'XX'), contestant);
    RETURN 0;
END $$;

CREATE FUNCTION voter_violations(max_votes int) RETURNS TABLE (what text, phone bigint)
LANGUAGE sql AS $$
    SELECT 'a number has as many votes as it may have at most', phone_number FROM votes
        GROUP BY phone_number HAVING count(*) > max_votes
    UNION ALL
    SELECT 'a vote is for a contestant', phone_number FROM votes v
        WHERE NOT EXISTS (SELECT FROM contestants c
            WHERE c.contestant_number = v.contestant_number)
    UNION ALL
    SELECT 'a vote''s state is that of its area code', phone_number FROM votes v
        LEFT JOIN area_code_state a ON a.area_code = phone_number / 10000000
        WHERE v.state <> coalesce(a.state, 'XX')
$$;

\if :commands
SELECT nvm.partition_table('votes', 'phone_number');
SELECT nvm.register_command('vote(bigint,int,int)', lanes => '{phone}');
\endif
VACUUM ANALYZE;
