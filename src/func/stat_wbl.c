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

#include "access/htup_details.h"
#include "fmgr.h"
#include "funcapi.h"
#include "pmem/nvm_pmem.h"
#include "pool/nvm_pool.h"
#include "utils/builtins.h"
#include "utils/xid8.h"
#include "wbl/nvm_wbl.h"
#include "xact/nvm_storage.h"

PG_FUNCTION_INFO_V1(nvm_transactions_info);
PG_FUNCTION_INFO_V1(nvm_stat_wbl_info);

#define TRANSACTIONS_COLUMNS	5
#define STAT_WBL_COLUMNS		11

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
		Datum		values[TRANSACTIONS_COLUMNS];
		bool		nulls[TRANSACTIONS_COLUMNS] = {0};

		if (state == NULL)
			continue;
		values[0] = Int32GetDatum((int32) slot);
		values[1] = Int64GetDatum((int64) counter);
		values[2] = Int32GetDatum((int32) owner);
		nulls[2] = owner == PG_UINT32_MAX;
		values[3] = FullTransactionIdGetDatum(FullTransactionIdFromU64(xid));
		values[4] = CStringGetTextDatum(state);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/*
 * nvm.stat_wbl_info()
 */
Datum
nvm_stat_wbl_info(PG_FUNCTION_ARGS)
{
	TupleDesc	desc;
	Datum		values[STAT_WBL_COLUMNS];
	bool		nulls[STAT_WBL_COLUMNS] = {0};
	uint64		flushes = 0;
	uint64		drains = 0;
	uint64		bytes = 0;
	uint64		syncs;
	uint64		sync_waits;
	uint64		syncs_joined;

	nvm_table_require();
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");

	NvmForEachUsedSlot(slot)
	{
		volatile NvmSlotState *state = &nvm_slots[slot];

		flushes += state->flushes;
		drains += state->drains;
		bytes += state->bytes;
	}
	values[0] = Int64GetDatum((int64) pg_atomic_read_u64(&NvmWbl->commits));
	values[1] = Int64GetDatum((int64) pg_atomic_read_u64(&NvmWbl->mixed_commits));
	values[2] = Int64GetDatum((int64) pg_atomic_read_u64(&NvmWbl->aborts));
	values[3] = Int64GetDatum((int64) pg_atomic_read_u64(&NvmWbl->prepared));
	values[4] = Int64GetDatum((int64) pg_atomic_read_u64(&NvmWbl->helped));
	values[5] = Int64GetDatum((int64) flushes);
	values[6] = Int64GetDatum((int64) drains);
	values[7] = Int64GetDatum((int64) bytes);
	nvm_pmem_sync_counts(&syncs, &sync_waits, &syncs_joined);
	values[8] = Int64GetDatum((int64) syncs);
	values[9] = Int64GetDatum((int64) sync_waits);
	values[10] = Int64GetDatum((int64) syncs_joined);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}
