/*-------------------------------------------------------------------------
 *
 * stat_wbl.c
 *	  nvm.transactions_info() and nvm.stat_wbl_info(): transactions that write
 *	  nvm data, now and in sum.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "func/nvm_stat_row.h"
#include "funcapi.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "utils/xid8.h"
#include "wbl/nvm_wbl.h"
#include "xact/nvm_storage.h"

PG_FUNCTION_INFO_V1(nvm_transactions_info);
PG_FUNCTION_INFO_V1(nvm_stat_wbl_info);

/*
 * The state of the transaction open in a slot, or NULL if there is none.  A
 * slot is not locked; values that are read between two equal looks at its
 * counter belong together.
 */
static const char *
transaction_state(uint32 slot, uint64 *counter, uint32 *owner, uint64 *xid)
{
	NvmSlotState *state = &nvm_slots[slot];

	for (;;)
	{
		const char *result = "running";
		uint64		word;

		*counter = pg_atomic_read_u64(&state->running);
		pg_read_barrier();
		*owner = pg_atomic_read_u32(&state->owner);
		*xid = pg_atomic_read_u64(&state->xid);
		word = __atomic_load_n(&nvm_region_slot(slot)->copy[0].word,
							   __ATOMIC_ACQUIRE);
		if (*owner == 0 || *counter <= pg_atomic_read_u64(&state->durable))
			result = NULL;
		else if (NVM_WORD_COUNTER(word) == *counter)
			result = NVM_WORD_STATE(word) == NVM_SLOT_TWOPHASE ? "prepared" : "ending";
		pg_read_barrier();
		if (pg_atomic_read_u64(&state->running) == *counter)
			return result;
	}
}

/*
 * nvm.transactions_info(): a row for each transaction that has written nvm
 * data, or was prepared with locks on its rows, and is not decided.
 */
Datum
nvm_transactions_info(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	nvm_table_require();

	NvmForEachUsedSlot(slot)
	{
		uint64		counter;
		uint32		owner;
		uint64		xid;
		const char *state = transaction_state(slot, &counter, &owner, &xid);
		NvmStatRow	row = {0};

		if (state == NULL)
			continue;
		nvm_stat_datum(&row, Int32GetDatum((int32) slot));
		nvm_stat_count(&row, counter);
		nvm_stat_datum_if(&row, owner != PG_UINT32_MAX, Int32GetDatum((int32) owner));
		nvm_stat_datum(&row, FullTransactionIdGetDatum(FullTransactionIdFromU64(xid)));
		nvm_stat_text(&row, state);
		nvm_stat_put(rsinfo, &row);
	}
	return (Datum) 0;
}

/*
 * nvm.stat_wbl_info()
 */
Datum
nvm_stat_wbl_info(PG_FUNCTION_ARGS)
{
	uint64		flushes = 0;
	uint64		drains = 0;
	uint64		bytes = 0;
	uint64		syncs;
	uint64		sync_waits;
	uint64		syncs_joined;
	NvmStatRow	row = {0};

	nvm_table_require();
	NvmForEachUsedSlot(slot)
	{
		volatile NvmSlotState *state = &nvm_slots[slot];

		flushes += state->flushes;
		drains += state->drains;
		bytes += state->bytes;
	}
	nvm_stat_count(&row, pg_atomic_read_u64(&NvmWbl->commits));
	nvm_stat_count(&row, pg_atomic_read_u64(&NvmWbl->mixed_commits));
	nvm_stat_count(&row, pg_atomic_read_u64(&NvmWbl->aborts));
	nvm_stat_count(&row, pg_atomic_read_u64(&NvmWbl->prepared));
	nvm_stat_count(&row, pg_atomic_read_u64(&NvmWbl->helped));
	nvm_stat_count(&row, flushes);
	nvm_stat_count(&row, drains);
	nvm_stat_count(&row, bytes);
	nvm_pmem_sync_counts(&syncs, &sync_waits, &syncs_joined);
	nvm_stat_count(&row, syncs);
	nvm_stat_count(&row, sync_waits);
	nvm_stat_count(&row, syncs_joined);
	PG_RETURN_DATUM(nvm_stat_result(fcinfo, &row));
}
