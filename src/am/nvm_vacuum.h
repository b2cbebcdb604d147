/*-------------------------------------------------------------------------
 *
 * nvm_vacuum.h
 *	  What the files of VACUUM share: its state.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_VACUUM_H
#define NVM_VACUUM_H

#include "compat/nvm_compat_vacuum.h"
#include "executor/instrument.h"
#include "nodes/pg_list.h"
#include "pool/nvm_pool.h"
#include "utils/pg_rusage.h"
#include "utils/timestamp.h"

struct GlobalVisState;
typedef struct NvmDeadBits NvmDeadBits;

/* figures at the start of an instrumented VACUUM */
typedef struct NvmVacuumStart
{
	PGRUsage	rusage;
	TimestampTz time;
	WalUsage	wal;
	BufferUsage buffers;
} NvmVacuumStart;

typedef struct NvmVacuum
{
	Relation	rel;
	NvmRelState *state;
	uint32		dir;
	uint32		nblocks;		/* at the start: what is scanned */
	BufferAccessStrategy bstrategy;
	Relation   *indrels;
	int			nindexes;
	IndexBulkDeleteResult **indstats;
	char	  **indnames;

	/* what the user asked for */
	bool		verbose;
	bool		aggressive;
	bool		index_vacuuming;
	bool		index_cleanup;
	bool		may_bypass;		/* few dead roots may stay for the next time,
								 * if they have no large values */
	int			nworkers;		/* for indexes; 0: as many as useful, -1: none */

	/* horizons */
	struct GlobalVisState *vistest;
	TransactionId oldest_xmin;
	MultiXactId oldest_mxact;
	TransactionId old_frozenxid;
	MultiXactId old_minmulti;
	TransactionId new_frozenxid;	/* oldest xid that the table still needs */
	MultiXactId new_minmulti;

	/* roots that wait for the indexes, in order */
	ItemPointerData *dead;
	int64		ndead;
	int64		dead_size;		/* allocated */
	int64		dead_max;		/* as many as maintenance_work_mem allows */
	uint32		ndead_blocks;	/* that they are in */

	/* the same during a pass over the indexes, or NULL: vacuum_dead.c */
	NvmDeadBits *dead_bits;
	uint32	   *dead_slot;		/* by block: 0, or place in dead_bits[] + 1 */

	/* versions that we have retired and whose large values are to be freed */
	ItemPointerData *values;
	int			nvalues;
	int			values_size;	/* allocated */

	/* SUSPECT blocks met and not yet cleaned: bit a block */
	uint8	   *suspect;
	int64		nsuspect;

	/* later versions found dead, whose root may lead to them or not */
	List	   *stray;			/* of ItemPointer */

	/* for the error context */
	const char *relnamespace;
	const char *relname;
	const char *indname;		/* or NULL */
	BlockNumber blkno;			/* or InvalidBlockNumber */

	/* results */
	uint32		scanned;
	uint32		all_visible;
	uint32		dead_blocks;	/* with dead roots */
	int64		dead_roots;		/* found in all */
	int64		removed;		/* versions unlinked */
	int64		live;
	int64		recently_dead;
	int64		missed_dead;
	int64		values_left;	/* retired versions that keep large values */
	int			index_scans;
	bool		bypassed;
	uint32		suspect_cleaned;
} NvmVacuum;

/* the dead roots in shared memory: what a worker has to know to ask them */
typedef struct NvmSharedDead
{
	uint32		nblocks;
	uint32		ndead_blocks;
	int64		ndead;
	bool		mapped;			/* bitmaps, not a list */
} NvmSharedDead;

/* vacuum.c */
extern void nvm_vacuum_dead(NvmVacuum *vac);
extern IndexBulkDeleteResult *nvm_vacuum_index(NvmVacuum *vac, Relation index,
											   IndexBulkDeleteResult *stats);

/* vacuum_dead.c */
extern void nvm_vacuum_remember_dead(NvmVacuum *vac, uint32 blkno, uint16 offset);
extern void nvm_vacuum_forget_dead(NvmVacuum *vac);
extern void nvm_vacuum_map_dead(NvmVacuum *vac);
extern void nvm_vacuum_unmap_dead(NvmVacuum *vac);
extern Size nvm_vacuum_share_size(NvmVacuum *vac);
extern void nvm_vacuum_share_dead(NvmVacuum *vac, NvmSharedDead *shared, void *memory);
extern void nvm_vacuum_attach_dead(NvmVacuum *vac, NvmSharedDead *shared, void *memory);
extern void nvm_vacuum_detach_dead(NvmVacuum *vac);
extern bool nvm_vacuum_tid_reaped(ItemPointer tid, void *arg);

/* vacuum_values.c */
extern void nvm_vacuum_note_values(void *arg, uint32 blk, uint32 off);
extern void nvm_vacuum_free_values(NvmVacuum *vac, bool all);

/* vacuum_scan.c */
extern void nvm_vacuum_scan(NvmVacuum *vac);
extern void nvm_vacuum_unreachable(NvmVacuum *vac);

/* vacuum_parallel.c */
extern bool nvm_vacuum_indexes_parallel(NvmVacuum *vac);

/* vacuum_clean.c */
extern void nvm_vacuum_find_clean(NvmVacuum *vac);

/* vacuum_report.c */
extern void nvm_vacuum_started(NvmVacuumStart *start);
extern void nvm_vacuum_report(NvmVacuum *vac, VacuumParams *params,
							  NvmVacuumStart *start, bool frozenxid_updated,
							  bool minmulti_updated);
extern void nvm_vacuum_error_context(void *arg);

#endif							/* NVM_VACUUM_H */
