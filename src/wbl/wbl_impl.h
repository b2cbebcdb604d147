/*-------------------------------------------------------------------------
 *
 * wbl_impl.h
 *	  What the files of wbl/ and xact/ share: commit slots and decisions.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef WBL_IMPL_H
#define WBL_IMPL_H

#include "postgres.h"

#include "wbl/nvm_wbl.h"

/* locks of the tranche */
#define NVM_WBL_LOCK			0
#define NVM_WBL_HORIZON_LOCK	1
#define NVM_WBL_STORAGE_LOCK	2
#define NVM_WBL_NUM_LOCKS		3

/* fields of a slot copy, as they enter their checks */
typedef enum NvmSlotField
{
	NVM_FIELD_WORD,
	NVM_FIELD_XID,
	NVM_FIELD_STATEMENT,
	NVM_FIELD_GAP				/* + index */
} NvmSlotField;

/* settings (wbl_settings.c) */
extern bool nvm_collect_gaps;
extern int	nvm_collector_delay;
extern int	nvm_redo_limit;
extern int	nvm_horizon_naptime;

/* what table/ registered */
extern const NvmTableOps *nvm_table_ops;

/* ---- wbl_slot.c ---- */

extern NvmSlot *nvm_slot(uint32 slot);
extern uint64 nvm_slot_word(uint32 slot, uint32 state, uint64 counter);
extern bool nvm_slot_word_valid(uint32 slot, uint64 word);
extern uint64 nvm_slot_field(uint32 slot, NvmSlotField field, uint64 value);
extern bool nvm_slot_field_valid(uint32 slot, NvmSlotField field, uint64 value);
extern const char *nvm_slot_copy_problem(uint32 slot, const NvmSlotCopy *copy);

/* store in both copies and flush; the caller drains */
extern void nvm_slot_store_word(uint32 slot, uint64 word);
extern void nvm_slot_store_xid(uint32 slot, uint64 fxid);

/* from -> to in both copies, unless somebody has done it; flushes */
extern bool nvm_slot_exchange_word(uint32 slot, uint64 from, uint64 to);

static inline uint64
nvm_slot_load_word(uint32 slot)
{
	return __atomic_load_n(&nvm_slot(slot)->copy[0].word, __ATOMIC_ACQUIRE);
}

/* durable = max(durable, counter); after the drain that makes it true */
extern void nvm_slot_advance_durable(uint32 slot, uint64 counter);

/* gap entries; wbl_lock held exclusively, or nobody else is there */
extern bool nvm_slot_add_gap(uint32 slot, uint64 counter);
extern void nvm_slot_drop_gap(uint32 slot, uint64 counter);

/* the stamp of a new transaction of this process */
extern NvmStamp nvm_slot_next_stamp(void);

/* ---- wbl_commit.c ---- */

extern void nvm_commit_flush_data(void);
extern void nvm_commit_prepare(NvmStamp stamp, uint64 fxid);
extern void nvm_commit_decide(NvmStamp stamp);
extern void nvm_commit_decide_mixed(NvmStamp stamp);
extern void nvm_commit_finish_abort(NvmStamp stamp);
extern void nvm_commit_abandon(NvmStamp stamp);

/* ---- wbl_recovery.c ---- */

extern void nvm_recovery_analyse(void);

/* ---- wbl_xid.c ---- */

extern TransactionId nvm_xid_promise(FullTransactionId fxid);
extern void nvm_xid_keep_promise(void);

/* ---- wbl_horizon.c ---- */

extern uint64 nvm_horizon_oldest(void);
extern bool nvm_horizon_wants_xid(void);

/* ---- workers ---- */

extern void nvm_redo_limit_check(void);
extern PGDLLEXPORT void nvm_keeper_main(Datum main_arg);
extern PGDLLEXPORT void nvm_collector_main(Datum main_arg);
extern void nvm_worker_start(void);
extern bool nvm_worker_sleep(long ms);
extern void nvm_worker_consume_xid(void);

/* wbl_walwriter.c */
extern void nvm_walwriter_init(void);
extern void nvm_walwriter_round(void);

#endif							/* WBL_IMPL_H */
