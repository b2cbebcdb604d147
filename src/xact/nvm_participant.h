/*-------------------------------------------------------------------------
 *
 * nvm_participant.h
 *	  Participants of a transaction: the places that it may have written.
 *
 * A participant is a place whose part of a transaction becomes durable by a rule
 * of its own.  There are three: the pool, by the slot's word, the WAL, by pg_xact,
 * and the log, by a place in it.  xact_callback.c asks them in turn at each event of a transaction's
 * life; xact/README.md, "Participants", has the rules.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_PARTICIPANT_H
#define NVM_PARTICIPANT_H

#include "postgres.h"

/*
 * The decider of the transaction; the other participants act on it at
 * PRE_COMMIT.
 */
typedef enum NvmXactClass
{
	NVM_XACT_OPEN,				/* PRE_COMMIT has not come by, or found no
								 * stamp */
	NVM_XACT_NVM_ONLY,			/* the slot's word */
	NVM_XACT_MIXED,				/* pg_xact, which the slot's word asks */
	NVM_XACT_TWOPHASE			/* PRE_PREPARE has come by: nothing is written
								 * any more, and there is no stamp for it */
} NvmXactClass;

/*
 * A callback is NULL where the participant has nothing to do.  Callbacks run with
 * no LWLock of ours held.
 */
typedef struct NvmParticipant
{
	const char *name;

	/*
	 * PRE_COMMIT, first round; may ERROR.  Does everything that must be done
	 * before the class is known.  Returns whether the transaction has written
	 * something here that pg_xact alone can decide.
	 */
	bool		(*begin_commit) (void);

	/*
	 * PRE_COMMIT, second round, when the class is known; may ERROR, and so
	 * may later steps.  Makes the data durable, and the question to the
	 * decider. Class OPEN: the transaction has no stamp.
	 */
	void		(*pre_commit) (NvmXactClass class);

	/*
	 * COMMIT: the transaction is visible to others, its commit record
	 * written. Must not fail.
	 */
	void		(*decide) (NvmXactClass class);

	/* ABORT, before or after a PRE_COMMIT or PRE_PREPARE; must not fail */
	void		(*abort) (void);

	/*
	 * PRE_PREPARE, may ERROR: as pre_commit, and lists the locks.  PREPARE,
	 * must not fail: the record is durable, the transaction nobody's.
	 */
	void		(*pre_prepare) (void);
	void		(*prepare) (void);

	/* a subtransaction of this nesting level has ended */
	void		(*sub_commit) (int level);
	void		(*sub_abort) (int level);

	/* the next transaction starts from here */
	void		(*reset) (void);
} NvmParticipant;

extern const NvmParticipant nvm_participant_wal;	/* participant_wal.c */
extern const NvmParticipant nvm_participant_log;	/* participant_log.c */
extern const NvmParticipant nvm_participant_slot;	/* participant_slot.c */

/* the class of the current transaction (xact_callback.c) */
extern NvmXactClass nvm_xact_class;

/* ---- participant_wal.c ---- */

/*
 * WAL of the current transaction that nothing depends on: it does not make the
 * transaction mixed.
 */
extern void nvm_wal_harmless(int64 records);

#endif							/* NVM_PARTICIPANT_H */
