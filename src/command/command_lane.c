/*-------------------------------------------------------------------------
 *
 * command_lane.c
 *	  Lanes: heavyweight locks that order calls (README.md has the table of them).
 *
 * Each is taken for the current subtransaction, and goes with it if it is rolled back,
 * as PostgreSQL's own locks do; what is held is noted here with its level.  A transaction
 * that has become one of values and still has locks of a call exchanges them for those of
 * a value writer before it waits for another one: two of them would wait for each other
 * in lane 0, where each holds what the other cannot pass.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/stratnum.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "command/command_impl.h"
#include "command/nvm_command.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/resowner.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

/* of the advisory locks: pg_advisory_lock's are 1 and 2 */
#define LANE_LOCK_CLASS		NVM_LANE_LOCK_CLASS

/* the value writer's 33rd lane is all of them */
#define MAX_VALUE_LANES		32

/* how often a call lets go of what it has before it waits */
#define MAX_ROUNDS			8

#define LANE_SHARED			0	/* lane 0 */
#define LANE_ROOT			NVM_LANES	/* stands for 1 .. NVM_LANES - 1 */

typedef struct HeldLane
{
	uint32		lane;
	LOCKMODE	mode;
	int			level;			/* of the subtransaction that holds it */
	ResourceOwner owner;
} HeldLane;

#define MAX_HELD	(2 * NVM_CALL_MAX_LANES + 2 * MAX_VALUE_LANES + 16)

static HeldLane held[MAX_HELD];
static int	nheld = 0;

/* the views whose relation locks are lane 0 and the root */
static Oid	shared_relid = InvalidOid;
static Oid	root_relid = InvalidOid;
static bool relids_are_known = false;

/* ---- which lane ---- */

/*
 * The lane of a value; 0 is never returned.  Integers of different sizes that are
 * equal have one lane, as have text and varchar.
 */
uint32
nvm_lane_of(Oid type, Oid collation, Datum value)
{
	TypeCacheEntry *entry = lookup_type_cache(type, TYPECACHE_HASH_PROC_FINFO);
	uint32		hash;

	if (!OidIsValid(entry->hash_proc))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("values of type %u cannot be hashed", type)));
	hash = DatumGetUInt32(FunctionCall1Coll(&entry->hash_proc_finfo, collation, value));
	return 1 + hash % (NVM_LANES - 1);
}

/*
 * See nvm_command.h.
 */
bool
nvm_equality_keeps_lane(Oid operator, Oid collation, Oid type, Oid own_collation)
{
	TypeCacheEntry *entry = lookup_type_cache(type, TYPECACHE_HASH_OPFAMILY);

	if (collation != own_collation &&
		!(OidIsValid(collation) && get_collation_isdeterministic(collation) &&
		  OidIsValid(own_collation) && get_collation_isdeterministic(own_collation)))
		return false;
	return OidIsValid(operator) && OidIsValid(entry->hash_opf) &&
		get_op_opfamily_strategy(operator, entry->hash_opf) == HTEqualStrategyNumber;
}

/*
 * Add one to a call's lanes.  They are kept in order, the few that they are.
 */
void
nvm_lanes_add(NvmCallLanes *lanes, uint32 lane)
{
	int			i;

	if (lanes->all)
		return;
	for (i = lanes->n; i > 0 && lanes->lane[i - 1] > lane; i--)
		;
	if (i > 0 && lanes->lane[i - 1] == lane)
		return;
	if (lanes->n == NVM_CALL_MAX_LANES)
	{
		lanes->all = true;
		lanes->n = 0;
		return;
	}
	memmove(&lanes->lane[i + 1], &lanes->lane[i], sizeof(uint32) * (lanes->n - i));
	lanes->lane[i] = lane;
	lanes->n++;
}

/* ---- locks ---- */

static void
relids_changed(Datum arg, int cacheid, uint32 hashvalue)
{
	relids_are_known = false;
}

/*
 * Are the views there?  Without the extension they are not.
 */
bool
nvm_lanes_exist(void)
{
	Oid			schema;

	if (likely(relids_are_known))
		return true;
	/* what is found may go before this returns: then it is looked for again */
	relids_are_known = true;
	PG_TRY();
	{
		schema = get_namespace_oid("nvm", true);
		shared_relid = OidIsValid(schema) ? get_relname_relid("lanes", schema) : InvalidOid;
		root_relid = OidIsValid(schema) ? get_relname_relid("commands", schema) : InvalidOid;
	}
	PG_CATCH();
	{
		relids_are_known = false;
		PG_RE_THROW();
	}
	PG_END_TRY();
	if (!OidIsValid(shared_relid) || !OidIsValid(root_relid))
		relids_are_known = false;
	return OidIsValid(shared_relid) && OidIsValid(root_relid);
}

/*
 * The view whose lock is the root, if there are lanes.
 */
Oid
nvm_lanes_root(void)
{
	return nvm_lanes_exist() ? root_relid : InvalidOid;
}

static void
require_lanes(void)
{
	if (!nvm_lanes_exist())
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("views nvm.lanes and nvm.commands do not exist"),
				 errhint("Tables of access method nvm_cmdlog need extension pg_nvm as this library has it.")));
}

static void
set_tag(LOCKTAG *tag, uint32 lane)
{
	if (lane == LANE_SHARED)
		SET_LOCKTAG_RELATION(*tag, MyDatabaseId, shared_relid);
	else if (lane == LANE_ROOT)
		SET_LOCKTAG_RELATION(*tag, MyDatabaseId, root_relid);
	else
		SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, 0, lane, LANE_LOCK_CLASS);
}

static HeldLane *
find_held(uint32 lane, LOCKMODE mode)
{
	for (int i = 0; i < nheld; i++)
	{
		if (held[i].lane == lane && held[i].mode == mode)
			return &held[i];
	}
	return NULL;
}

/*
 * Take a lock, for a subtransaction, unless it is held.  False: it is not available;
 * only if wait is false.
 *
 * The owner is the subtransaction, not the portal: so it is known who has it when it
 * is released early.
 */
static bool
take_for(uint32 lane, LOCKMODE mode, ResourceOwner owner, int level, bool wait)
{
	LOCKTAG		tag;
	ResourceOwner outer = CurrentResourceOwner;
	LockAcquireResult result;

	if (find_held(lane, mode) != NULL)
		return true;
	if (nheld == MAX_HELD)
		elog(ERROR, "too many lanes are held");
	set_tag(&tag, lane);
	CurrentResourceOwner = owner;
	PG_TRY();
	{
		result = LockAcquire(&tag, mode, false, !wait);
	}
	PG_FINALLY();
	{
		CurrentResourceOwner = outer;
	}
	PG_END_TRY();
	if (result == LOCKACQUIRE_NOT_AVAIL)
		return false;
	held[nheld].lane = lane;
	held[nheld].mode = mode;
	held[nheld].level = level;
	held[nheld].owner = owner;
	nheld++;
	return true;
}

static void
take(uint32 lane, LOCKMODE mode)
{
	(void) take_for(lane, mode, CurTransactionResourceOwner, GetCurrentTransactionNestLevel(), true);
}

static void
forget_held(HeldLane *h)
{
	*h = held[--nheld];
}

static void
release(uint32 lane, LOCKMODE mode)
{
	HeldLane   *h = find_held(lane, mode);
	ResourceOwner outer = CurrentResourceOwner;
	LOCKTAG		tag;

	if (h == NULL)
		return;
	set_tag(&tag, lane);
	CurrentResourceOwner = h->owner;
	(void) LockRelease(&tag, mode, false);
	CurrentResourceOwner = outer;
	forget_held(h);
}

/* ---- calls ---- */

/* a lock that a call needs */
typedef struct WantedLane
{
	uint32		lane;
	LOCKMODE	mode;
}			WantedLane;

#define MAX_WANTED	(NVM_CALL_MAX_LANES + 2)

/*
 * Those of a call, in their order: lane 0, the root, lanes ascending.
 */
static int
list_wanted(const NvmCallLanes *lanes, WantedLane * wanted)
{
	bool		all = lanes->all;
	int			calls = 0;
	int			n = 0;

	for (int i = 0; i < nheld; i++)
	{
		if (held[i].mode == ExclusiveLock && held[i].lane != LANE_ROOT)
			calls++;
	}
	/* several calls of one transaction have a bound, too */
	if (calls + lanes->n > NVM_CALL_MAX_LANES)
		all = true;

	wanted[n++] = (WantedLane)
	{
		LANE_SHARED, RowExclusiveLock
	};
	wanted[n++] = (WantedLane)
	{
		LANE_ROOT, all ? ExclusiveLock : RowExclusiveLock
	};
	for (int i = 0; !all && i < lanes->n; i++)
		wanted[n++] = (WantedLane)
	{
		lanes->lane[i], ExclusiveLock
	};
	return n;
}

/*
 * Take those that are to be had.  Returns the place of the first that is not, or n.
 */
static int
take_available(const WantedLane * wanted, int n)
{
	int			i;

	for (i = 0; i < n; i++)
	{
		if (!take_for(wanted[i].lane, wanted[i].mode, CurTransactionResourceOwner,
					  GetCurrentTransactionNestLevel(), false))
			break;
	}
	return i;
}

/*
 * Let go of what was taken since there were so many.
 */
static void
release_since(int first)
{
	while (nheld > first)
		release(held[nheld - 1].lane, held[nheld - 1].mode);
}

/*
 * All that a call needs, at its start.
 *
 * It waits with nothing in its hands: a value writer that has what it waits for, and
 * wants what it has, would wait for it.  Who gets one and not the next begins anew, a
 * few times.  Then it waits for one after the other, in their order.
 */
void
nvm_lanes_take(const NvmCallLanes *lanes)
{
	WantedLane	wanted[MAX_WANTED];
	int			n;
	int			first = nheld;

	require_lanes();
	n = list_wanted(lanes, wanted);
	for (int round = 0; round < MAX_ROUNDS; round++)
	{
		int			missing = take_available(wanted, n);

		if (likely(missing == n))
			return;
		release_since(first);
		take(wanted[missing].lane, wanted[missing].mode);
	}
	release_since(first);
	for (int i = 0; i < n; i++)
		take(wanted[i].lane, wanted[i].mode);
}

/*
 * Is the lane held exclusively by the call that runs?
 */
bool
nvm_lane_is_held(uint32 lane)
{
	if (nheld == 0 || lane == LANE_SHARED || !nvm_command_in_call())
		return false;
	return find_held(lane, ExclusiveLock) != NULL || find_held(LANE_ROOT, ExclusiveLock) != NULL;
}

/*
 * Those that the transaction's calls hold: it is none of values.
 */
void
nvm_lanes_of_calls(NvmCallLanes *lanes)
{
	lanes->all = find_held(LANE_ROOT, ExclusiveLock) != NULL;
	lanes->n = 0;
	for (int i = 0; i < nheld && !lanes->all; i++)
	{
		if (held[i].mode == ExclusiveLock && held[i].lane != LANE_ROOT)
			nvm_lanes_add(lanes, held[i].lane);
	}
}

/*
 * Those in which a transaction of values may have written: as a caller, before it became one,
 * or as a value writer.  Without any it has written tables that it has made itself, or what it
 * has written was rolled back.
 */
void
nvm_lanes_of_values(NvmCallLanes *lanes, bool *shared)
{
	*shared = find_held(LANE_SHARED, ShareLock) != NULL;
	lanes->all = find_held(LANE_ROOT, ExclusiveLock) != NULL || find_held(LANE_ROOT, ShareLock) != NULL;
	lanes->n = 0;
	for (int i = 0; i < nheld && !lanes->all; i++)
	{
		if (held[i].lane != LANE_SHARED && held[i].lane != LANE_ROOT)
			nvm_lanes_add(lanes, held[i].lane);
	}
	lanes->all |= lanes->n == 0 && !*shared;
}

bool
nvm_lanes_are_held(const NvmCallLanes *lanes)
{
	if (lanes->all)
		return find_held(LANE_ROOT, ExclusiveLock) != NULL;
	for (int i = 0; i < lanes->n; i++)
	{
		if (!nvm_lane_is_held(lanes->lane[i]))
			return false;
	}
	return true;
}

/* ---- value writers ---- */

/*
 * Exchange a lock for a weaker one, which lives as long.  Nobody is waited for: who
 * waits for this lane stands behind us.
 */
static void
exchange(uint32 lane, LOCKMODE mode, LOCKMODE weaker)
{
	HeldLane   *h = find_held(lane, mode);

	if (h == NULL)
		return;
	(void) take_for(lane, weaker, h->owner, h->level, true);
	release(lane, mode);
}

/*
 * The transaction is one of values.  If it has made calls before, it exchanges their
 * locks for those of a value writer: what it has written in these lanes needs no more,
 * and what it has read does not matter any more.
 */
static void
become_value_writer(void)
{
	for (int i = nheld - 1; i >= 0; i--)
	{
		if (held[i].mode == ExclusiveLock && held[i].lane != LANE_ROOT)
			exchange(held[i].lane, ExclusiveLock, RowExclusiveLock);
	}
	/* rows of any lane may be written: as from the 33rd on */
	exchange(LANE_ROOT, ExclusiveLock, ShareLock);
	exchange(LANE_ROOT, RowExclusiveLock, RowShareLock);
	release(LANE_SHARED, RowExclusiveLock);
}

/*
 * See command_impl.h.
 */
void
nvm_lanes_give_way(void)
{
	if (nheld > 0 && nvm_verdict_by_values())
		become_value_writer();
}

static int
num_value_lanes(void)
{
	int			n = 0;

	for (int i = 0; i < nheld; i++)
	{
		if (held[i].mode == RowExclusiveLock && held[i].lane > LANE_SHARED && held[i].lane < LANE_ROOT)
			n++;
	}
	return n;
}

/*
 * Before a row is written outside of the call's lanes, or outside of any call.
 */
void
nvm_lane_write_values(uint32 lane)
{
	Assert(lane > 0 && lane < NVM_LANES);
	nvm_command_disqualify(nvm_command_in_call() ? NVM_REASON_OTHER_LANE : NVM_REASON_OUTSIDE,
						   InvalidOid, InvalidOid);
	if (find_held(lane, RowExclusiveLock) != NULL || find_held(LANE_ROOT, ShareLock) != NULL)
		return;
	require_lanes();
	become_value_writer();
	if (find_held(lane, RowExclusiveLock) != NULL || find_held(LANE_ROOT, ShareLock) != NULL)
		return;
	if (num_value_lanes() >= MAX_VALUE_LANES)
	{
		take(LANE_ROOT, ShareLock);
		return;
	}
	take(LANE_ROOT, RowShareLock);
	take(lane, RowExclusiveLock);
}

/*
 * Before a row of a shared table is written.
 */
void
nvm_lane_write_shared(void)
{
	nvm_command_disqualify(nvm_command_in_call() ? NVM_REASON_SHARED_WRITTEN : NVM_REASON_OUTSIDE,
						   InvalidOid, InvalidOid);
	if (find_held(LANE_SHARED, ShareLock) != NULL)
		return;
	require_lanes();
	become_value_writer();
	take(LANE_SHARED, ShareLock);
}

/* ---- ends ---- */

/*
 * The locks go, or go over to a prepared transaction.
 */
void
nvm_lanes_forget(void)
{
	nheld = 0;
}

/*
 * Those of a subtransaction go over to the one around it, or are gone.
 */
void
nvm_lanes_subxact_end(bool committed)
{
	int			level = GetCurrentTransactionNestLevel();

	for (int i = nheld - 1; i >= 0; i--)
	{
		if (held[i].level < level)
			continue;
		if (committed)
		{
			held[i].level = level - 1;
			held[i].owner = ResourceOwnerGetParent(held[i].owner);
		}
		else
			forget_held(&held[i]);
	}
}

void
nvm_lanes_register(void)
{
	CacheRegisterSyscacheCallback(NAMESPACEOID, relids_changed, (Datum) 0);
	CacheRegisterSyscacheCallback(PROCOID, relids_changed, (Datum) 0);
}
