/*-------------------------------------------------------------------------
 *
 * media_slot.h
 *	  On-media layout of stamps and commit slots: the gap record.
 *
 * The paper's gap record says which timestamps may not be believed after a
 * crash, as one range (cp, cd) for the whole system.  Here each backend that
 * writes owns a commit slot, runs one transaction at a time in it, and numbers
 * them with a counter that never goes back.  A stamp is (slot, counter).  So
 * "everything up to cp is decided, nothing above cd has been handed out" holds
 * slot by slot, with cp = the slot's word and cd = cp + 1.  A crash leaves at
 * most one undecided stamp in each slot.  No range has to be promised in
 * advance.  A commit is one 8-byte store that no other backend contends for.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef MEDIA_SLOT_H
#define MEDIA_SLOT_H

#include <stdint.h>

/*
 * Stamps: slot in the high 16 bits, counter in the low 48. 0 is no stamp.
 * Slot numbers from NVM_STAMP_SPECIAL up are no slots.  The low 48 bits then
 * hold the next full transaction id at the moment of the change: a reader
 * below it may still be standing on the version.
 */
#define NVM_STAMP_NONE			UINT64_C(0)
#define NVM_STAMP_COUNTER_BITS	48
#define NVM_STAMP_COUNTER_MASK	((UINT64_C(1) << NVM_STAMP_COUNTER_BITS) - 1)
#define NVM_STAMP_MAKE(slot, counter) \
	(((uint64_t) (slot) << NVM_STAMP_COUNTER_BITS) | (uint64_t) (counter))
#define NVM_STAMP_SLOT(s)		((uint32_t) ((s) >> NVM_STAMP_COUNTER_BITS))
#define NVM_STAMP_COUNTER(s)	((s) & NVM_STAMP_COUNTER_MASK)

#define NVM_STAMP_SPECIAL		0xFFF0
/* begin stamps of what is no longer a version (see media_block.h) */
#define NVM_STAMP_DEAD			0xFFFF
#define NVM_STAMP_RETIRED		0xFFFE
#define NVM_STAMP_STUB			0xFFFD
#define NVM_STAMP_IS_SPECIAL(s)	(NVM_STAMP_SLOT(s) >= NVM_STAMP_SPECIAL)

/*
 * Commit word, self-checking:
 *
 *	bits  0..11		check: CRC over the rest, slot number, field and uuid
 *	bits 12..15		state
 *	bits 16..63		counter
 *
 * Every counter up to and including this one is decided, except that
 * PREPARED leaves the decision on this very counter to pg_xact:
 *
 *	UNUSED		never used; the whole word is zero
 *	IDLE		decided, and no transaction can be running: the owner left
 *	DECIDED		decided; counter + 1 may be running
 *	PREPARED	the transaction `xid`, of a mixed class or under PREPARE
 *				TRANSACTION, was about to ask pg_xact; nothing above the
 *				counter has been handed out
 *	TWOPHASE	the same, and the WAL record of PREPARE TRANSACTION is durable:
 *				until `xid` is finished it is in progress, across restarts
 */
#define NVM_SLOT_UNUSED			0
#define NVM_SLOT_IDLE			1
#define NVM_SLOT_DECIDED		2
#define NVM_SLOT_PREPARED		3
#define NVM_SLOT_TWOPHASE		4

#define NVM_WORD_CHECK(w)		((uint32_t) ((w) & 0xFFF))
#define NVM_WORD_STATE(w)		((uint32_t) (((w) >> 12) & 0xF))
#define NVM_WORD_COUNTER(w)		((w) >> 16)

/* Other fields of the slot: 48 bits of value above 16 bits of check */
#define NVM_FIELD_CHECK(f)		((uint32_t) ((f) & 0xFFFF))
#define NVM_FIELD_VALUE(f)		((f) >> 16)

#define NVM_SLOT_GAPS			4

/*
 * One copy of a slot is one cache line.  The slot has two copies, written
 * together and flushed together: if one line is damaged the other serves.
 * gap[] lists counters of this slot that crashes left undecided, as long as
 * the gap collector has not removed their traces everywhere.  A slot whose
 * list is full is not given to a backend.
 */
typedef struct NvmSlotCopy
{
	uint64_t	xid;			/* field: full xid of a PREPARED or TWOPHASE
								 * transaction, or stale */
	uint64_t	gap[NVM_SLOT_GAPS]; /* fields: loser counters, or 0 */
	uint64_t	statement;		/* field: reserved for statements persisted */
	uint64_t	locks;			/* field: first unit of the list of row locks
								 * of a transaction under PREPARE TRANSACTION,
								 * or 0 */
	uint64_t	word;			/* stored last of what changes together */
} NvmSlotCopy;

/*
 * The row locks of a transaction under PREPARE TRANSACTION: extents of kind
 * NVM_EXT_LOCKS, each with this header and `count` items, chained from the
 * slot's `locks`.  They are durable before the slot's word says PREPARED.
 * They mean nothing if the word does not name the header's stamp.
 */
typedef struct NvmLockList
{
	uint64_t	stamp;
	uint32_t	next;			/* first unit of the next extent, or 0 */
	uint32_t	count;
	uint32_t	crc;			/* CRC-32C over header and items, crc taken as
								 * 0, uuid and unit */
	uint32_t	reserved[3];	/* zero, checked */
} NvmLockList;

typedef struct NvmLockItem
{
	uint32_t	dir;			/* storage */
	uint32_t	block;			/* the row's root */
	uint16_t	offset;
	uint16_t	mode;			/* LockTupleMode */
	uint32_t	reserved;		/* zero, checked */
} NvmLockItem;

#define NVM_LOCK_LIST_HEADER	32
#define NVM_LOCK_ITEM_SIZE		16

typedef struct NvmSlot
{
	NvmSlotCopy copy[2];
} NvmSlot;

#endif							/* MEDIA_SLOT_H */
