/*-------------------------------------------------------------------------
 *
 * replay_order.c
 *	  Which records have to be done before one may be played.
 *
 * Those that had one of its lanes, the last of each: what came before that one it has waited
 * for itself.  A record that has written shared tables, or whose lanes are all or not
 * known, is played alone.  README.md, "Players".
 *
 * Each player sees all records in their order and comes to the same.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "replay/replay_impl.h"
#include "verify/nvm_verify_calls.h"

struct NvmReplayOrder
{
	uint64		alone;			/* the last record that was played alone, or 0 */
	uint64		lane[NVM_LOG_LANES];	/* the last one with this lane */
};

NvmReplayOrder *
nvm_replay_order_begin(void)
{
	return palloc_extended(sizeof(NvmReplayOrder), MCXT_ALLOC_ZERO | MCXT_ALLOC_HUGE);
}

/*
 * See replay_impl.h.
 */
void
nvm_replay_order_next(NvmReplayOrder *order, uint64 number, const NvmLogLanes *lanes,
					  NvmReplayWaits *waits)
{
	bool		alone = lanes == NULL || lanes->all || (lanes->by_values && lanes->shared);

	if (waits != NULL)
	{
		waits->alone = alone;
		waits->n = 0;
		if (order->alone != 0)
			waits->record[waits->n++] = order->alone;
	}
	if (alone)
	{
		order->alone = number;
		return;
	}
	for (int i = 0; i < lanes->n; i++)
	{
		uint64	   *last = &order->lane[lanes->lane[i]];

		/* who came before the one that was alone is done when that is */
		if (waits != NULL && *last > order->alone)
			waits->record[waits->n++] = *last;
		*last = number;
	}
}
