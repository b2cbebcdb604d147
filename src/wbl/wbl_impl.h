/*-------------------------------------------------------------------------
 *
 * wbl_impl.h
 *	  What the files of wbl/ share among themselves: commit slots and decisions.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef WBL_IMPL_H
#define WBL_IMPL_H

#include "postgres.h"

#include "pool/nvm_region.h"
#include "portability/instr_time.h"
#include "wbl/nvm_wbl.h"

/* locks of the tranche */
#define NVM_WBL_LOCK			0
#define NVM_WBL_HORIZON_LOCK	1
#define NVM_WBL_STORAGE_LOCK	2
#define NVM_WBL_NUM_LOCKS		3

/* NvmSlotState.owner of a slot that belongs to a prepared transaction */
#define NVM_OWNER_PREPARED		PG_UINT32_MAX

/* settings (wbl_settings.c) */
extern bool nvm_collect_gaps;
extern int	nvm_collector_delay;
extern int	nvm_redo_limit;
extern int	nvm_horizon_naptime;

/* what row/ registered */
extern const NvmTableOps *nvm_table_ops;

/* ---- wbl_slot.c ---- */

extern NvmSlot *nvm_slot(uint32 slot);

/* store in both copies and flush; the caller drains */
extern void nvm_slot_store_word(uint32 slot, uint64 word);
extern void nvm_slot_store_xid(uint32 slot, uint64 fxid);
extern void nvm_slot_store_locks(uint32 slot, uint32 unit);

/* from -> to in both copies, unless somebody has done it; flushes */
extern bool nvm_slot_exchange_word(uint32 slot, uint64 from, uint64 to);

/*
 * Does the slot, and what its transactions write, outlive the postmaster?  If not,
 * nobody fences for it: what a process has stored there is there for the others,
 * and for the start that follows the death of a process.
 */
static inline bool
nvm_slot_is_fenced(uint32 slot)
{
	return nvm_region_of_slot(slot) == NVM_REGION_POOL;
}

static inline uint64
nvm_slot_load_word(uint32 slot)
{
	return nvm_load(&nvm_slot(slot)->copy[0].word);
}

/* durable = max(durable, counter); after the drain that makes it true */
extern void nvm_slot_advance_durable(uint32 slot, uint64 counter);

/* gap entries; wbl_lock held exclusively, or nobody else is there */
extern bool nvm_slot_add_gap(uint32 slot, uint64 counter, bool torn);
extern void nvm_slot_drop_gap(uint32 slot, uint64 counter);
extern void nvm_slot_forget_gap(uint32 slot, uint64 counter);
extern void nvm_slot_mend_gap(uint32 slot, uint64 counter);

/* this process has a slot in the region, and gives it back */
extern void nvm_slot_release(NvmRegionId region);

/* the slot, and what its transaction did, is no longer this process's */
extern void nvm_slot_hand_over(NvmRegionId region);

/* ---- wbl_recovery.c, wbl_resolve.c ---- */

/* does the transaction of a slot with this word depend on pg_xact? */
static inline bool
nvm_word_asks_pg_xact(uint64 word)
{
	return NVM_WORD_STATE(word) == NVM_SLOT_PREPARED ||
		NVM_WORD_STATE(word) == NVM_SLOT_TWOPHASE;
}

static inline uint64
nvm_elapsed_usec(instr_time start)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, start);
	return INSTR_TIME_GET_MICROSEC(now);
}

extern void nvm_recovery_analyse(void);

/* ---- wbl_xid.c ---- */

extern void nvm_xid_keep_promise(void);

/* ---- wbl_twophase.c ---- */

extern bool nvm_twophase_is_prepared(uint32 slot);
extern void nvm_twophase_restore(uint32 slot);
extern bool nvm_twophase_keep_dir(NvmDirEntry *entry);

/* ---- wbl_locklist.c ---- */

extern const char *nvm_lock_list_problem(uint32 slot, uint64 counter, uint32 unit);
extern uint32 nvm_lock_list_restore(uint32 slot, uint32 unit, TransactionId xid);
extern void nvm_lock_list_free(uint32 slot, uint32 unit);
extern void nvm_lock_list_free_orphans(void);

/* ---- wbl_horizon.c ---- */

extern uint64 nvm_horizon_oldest(void);
extern TransactionId nvm_slots_oldest_xmin(void);
extern bool nvm_horizon_wants_xid(void);

/* ---- workers ---- */

extern void nvm_redo_limit_check(void);
extern PGDLLEXPORT void nvm_keeper_main(Datum main_arg);
extern PGDLLEXPORT void nvm_collector_main(Datum main_arg);
extern void nvm_worker_consume_xid(void);

/* wbl_walwriter.c */
extern void nvm_walwriter_init(void);
extern void nvm_walwriter_round(void);

#endif							/* WBL_IMPL_H */
