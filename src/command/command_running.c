/*-------------------------------------------------------------------------
 *
 * command_running.c
 *	  The queries that run in a call, one within another.
 *
 * A query is looked at before it is planned (command_order.c).  What was found goes into
 * the plan as a mark: an item of the list of what the plan depends on, of a cache that
 * there is not.  So it goes where the plan goes, when that is copied or freed.  The mark
 * also says that the plan was judged, and found clean, since functions and domains last
 * changed; when a table changes, plans that have it are made anew.
 *
 * While a query evaluates expressions over rows whose order is not known, what these do
 * may depend on it: write rows, read what the query itself writes, draw from a sequence.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_class.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_trigger.h"
#include "command/command_impl.h"
#include "command/nvm_command.h"
#include "executor/execdesc.h"
#include "nodes/execnodes.h"
#include "nodes/nodes.h"
#include "parser/parsetree.h"
#include "tcop/dest.h"
#include "tcop/pquery.h"
#include "utils/inval.h"
#include "utils/portal.h"
#include "utils/rel.h"
#include "utils/reltrigger.h"
#include "utils/syscache.h"

/* queries that were begun in this call and have not ended; more are not known */
#define MAX_QUERIES		64

static QueryDesc *queries[MAX_QUERIES];
static int	nqueries = 0;

/* those that run, the innermost last */
typedef struct Frame
{
	QueryDesc  *query;
	bool		finishing;		/* its AFTER triggers run */
	bool		unordered;		/* it, or one around it, evaluates expressions
								 * over rows in an order that is not known */
} Frame;

static Frame frames[MAX_QUERIES];
static int	nframes = 0;

/* the one that starts, and is judged */
static QueryDesc *starting = NULL;

/* changes when a function or a type does, as a domain; never 0 */
static uint32 generation = 1;

/* ---- marks ---- */

/* of a mark; the flags of command_order.c are below it */
#define MARK_CACHE	(-1000)

static PlanInvalItem *
find_mark(PlannedStmt *plan)
{
	PlanInvalItem *first = plan->invalItems != NIL ? linitial(plan->invalItems) : NULL;

	return first != NULL && IsA(first, PlanInvalItem) && first->cacheId <= MARK_CACHE ? first : NULL;
}

/*
 * A query was parsed that may be cached, or CALL.  Other utility commands say nothing, and
 * not all of them come in a transaction that could look anything up.
 */
void
nvm_command_query_analyzed(Query *query, const char *text)
{
	if (query->commandType == CMD_UTILITY && !IsA(query->utilityStmt, CallStmt))
		return;
	if (unlikely(nvm_command_any() || nvm_command_replaying))
		nvm_settings_note_query(text);
}

/*
 * A query is going to be planned, which changes it.
 */
int
nvm_command_query_parsed(Query *query, const char *text)
{
	if (likely(!nvm_command_any() && !nvm_command_replaying))
		return NVM_ORDER_NOT_JUDGED;
	nvm_settings_note_query(text);
	return nvm_command_replaying ? NVM_ORDER_NOT_JUDGED :
		nvm_judge_order(query) | nvm_judge_literals((Node *) query, text);
}

void
nvm_command_mark_plan(PlannedStmt *stmt, int order)
{
	PlanInvalItem *mark;

	if (likely(!nvm_command_any()) || nvm_command_replaying)
		return;
	mark = makeNode(PlanInvalItem);
	mark->cacheId = MARK_CACHE - order;
	mark->hashValue = 0;
	stmt->invalItems = lcons(mark, stmt->invalItems);
}

/*
 * Of a plan that was made before there were registrations nothing is known.
 */
int
nvm_plan_order(PlannedStmt *plan)
{
	PlanInvalItem *mark = find_mark(plan);

	return mark == NULL ? NVM_ORDER_NOT_JUDGED : MARK_CACHE - mark->cacheId;
}

bool
nvm_plan_is_clean(PlannedStmt *plan)
{
	PlanInvalItem *mark = find_mark(plan);

	return mark != NULL && mark->hashValue == generation;
}

void
nvm_plan_set_clean(PlannedStmt *plan)
{
	PlanInvalItem *mark = find_mark(plan);

	if (mark != NULL)
		mark->hashValue = generation;
}

static void
definitions_changed(Datum arg, int cacheid, uint32 hashvalue)
{
	if (++generation == 0)
		generation = 1;
}

/* ---- order ---- */

/*
 * With the first table of the query.
 */
static void
disqualify(PlannedStmt *plan)
{
	ListCell   *lc;

	foreach(lc, plan->rtable)
	{
		RangeTblEntry *rte = lfirst_node(RangeTblEntry, lc);

		if (rte->rtekind == RTE_RELATION)
		{
			nvm_command_disqualify(NVM_REASON_ORDER, RelationRelationId, rte->relid);
			return;
		}
	}
	nvm_command_disqualify(NVM_REASON_ORDER, InvalidOid, InvalidOid);
}

void
nvm_judge_order_of_plan(PlannedStmt *plan)
{
	int			order = nvm_plan_order(plan);
	Oid			input;

	if (nvm_mark_has_clock(order, &input))
		nvm_command_disqualify(NVM_REASON_FUNCTION, ProcedureRelationId, input);
	if (order & NVM_ORDER_SYSTEM_COLUMN)
		nvm_command_disqualify(NVM_REASON_SYSTEM_COLUMN, InvalidOid, InvalidOid);
	if (order & NVM_ORDER_DEPENDS)
		disqualify(plan);
}

/*
 * Does anybody see the order of the rows?  Not if they are counted alone, or PL/pgSQL
 * drops them, nor if they are the set that a function returns: a query that reads from it is judged as reading rows
 * in no order.  A cursor's rows lie in such a store, too.
 */
static bool
rows_are_read(QueryDesc *query)
{
	switch (query->dest->mydest)
	{
		case DestNone:
			return false;
		case DestTuplestore:
			return ActivePortal != NULL && list_member_ptr(ActivePortal->stmts, query->plannedstmt);
		case DestSPI:
			return !nvm_place_ignores_rows();
		default:
			return true;
	}
}

void
nvm_judge_order_of_results(void)
{
	if (!nvm_verdict_by_values() && nvm_command_in_call() && nframes > 0 &&
		frames[nframes - 1].unordered)
		disqualify(frames[nframes - 1].query->plannedstmt);
}

/*
 * Not to be asked after an error was caught: what ran then is not there any more.
 */
const char *
nvm_running_statement(void)
{
	if (starting != NULL)
		return starting->sourceText;
	return nframes > 0 ? frames[nframes - 1].query->sourceText : NULL;
}

/* ---- queries within queries ---- */

static bool
writes(PlannedStmt *plan)
{
	return plan->commandType != CMD_SELECT || plan->hasModifyingCTE;
}

/*
 * May this trigger be fired by the statement?  MERGE fires any.
 */
static bool
is_fired(const Trigger *trigger, CmdType command)
{
	switch (command)
	{
		case CMD_INSERT:
			return TRIGGER_FOR_INSERT(trigger->tgtype) || TRIGGER_FOR_UPDATE(trigger->tgtype);
		case CMD_UPDATE:
			return true;		/* a row may move to another partition */
		case CMD_DELETE:
			return TRIGGER_FOR_DELETE(trigger->tgtype);
		default:
			return true;
	}
}

static bool
has_others_triggers(ResultRelInfo *result, CmdType command)
{
	TriggerDesc *triggers = result->ri_TrigDesc;
	TupleConstr *constr = RelationGetDescr(result->ri_RelationDesc)->constr;

	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
	{
		if (is_fired(&triggers->triggers[i], command) &&
			!nvm_is_foreign_key_trigger(triggers->triggers[i].tgfoid))
			return true;
	}
	for (int i = 0; constr != NULL && i < constr->num_check; i++)
	{
		if (nvm_expression_calls(stringToNode(constr->check[i].ccbin)))
			return true;
	}
	return false;
}

/*
 * Are the queries that run within this one those of foreign keys' triggers?  These commute.
 */
static bool
calls_foreign_keys_alone(QueryDesc *query)
{
	CmdType		command = query->operation;
	ListCell   *lc;

	if (nvm_plan_order(query->plannedstmt) & NVM_ORDER_CALLS)
		return false;
	/* parts of it may write in other ways */
	if (query->plannedstmt->hasModifyingCTE)
		command = CMD_UNKNOWN;
	foreach(lc, query->estate->es_opened_result_relations)
	{
		if (has_others_triggers(lfirst(lc), command))
			return false;
	}
	foreach(lc, query->estate->es_tuple_routing_result_relations)
	{
		if (has_others_triggers(lfirst(lc), command))
			return false;
	}
	/* of cascades: their AFTER triggers are fired by this query, too */
	foreach(lc, query->estate->es_trig_target_relations)
	{
		if (has_others_triggers(lfirst(lc), CMD_UNKNOWN))
			return false;
	}
	return true;
}

/*
 * Does the inner query read a table that the outer one writes?  Of one that is partitioned
 * it is not known which parts.
 */
static bool
reads_what_is_written(PlannedStmt *inner, PlannedStmt *outer)
{
	ListCell   *lc;
	ListCell   *lc2;

	foreach(lc, outer->rtable)
	{
		RangeTblEntry *written = lfirst_node(RangeTblEntry, lc);

		if (written->rtekind != RTE_RELATION ||
			!list_member_int(outer->resultRelations, foreach_current_index(lc) + 1))
			continue;
		foreach(lc2, inner->rtable)
		{
			RangeTblEntry *read = lfirst_node(RangeTblEntry, lc2);

			if (read->rtekind == RTE_RELATION &&
				(read->relid == written->relid || written->relkind == RELKIND_PARTITIONED_TABLE))
				return true;
		}
	}
	return false;
}

static void
judge_within(QueryDesc *query)
{
	Frame	   *outer = nframes > 0 ? &frames[nframes - 1] : NULL;

	if (outer == NULL || !outer->unordered)
		return;
	if (writes(query->plannedstmt) &&
		!(writes(outer->query->plannedstmt) && calls_foreign_keys_alone(outer->query)))
		disqualify(query->plannedstmt);
	for (int i = 0; i < nframes; i++)
	{
		if (frames[i].unordered && !frames[i].finishing && writes(frames[i].query->plannedstmt) &&
			reads_what_is_written(query->plannedstmt, frames[i].query->plannedstmt))
			disqualify(query->plannedstmt);
	}
}

static void
enter(QueryDesc *query, bool finishing)
{
	bool		unordered = (nvm_plan_order(query->plannedstmt) & NVM_ORDER_UNKNOWN_INSIDE) != 0;

	if (nframes == MAX_QUERIES)
	{
		disqualify(query->plannedstmt);
		return;
	}
	frames[nframes].query = query;
	frames[nframes].finishing = finishing;
	frames[nframes].unordered = unordered || (nframes > 0 && frames[nframes - 1].unordered);
	nframes++;
}

/* ---- the executor's hooks ---- */

void
nvm_command_query_starts(QueryDesc *query)
{
	if (unlikely(nvm_replay_in_call))
		nvm_replay_check_plan(query->plannedstmt);
	if (likely(!nvm_command_in_call()) || nvm_verdict_by_values())
		return;
	if (nqueries < MAX_QUERIES)
		queries[nqueries++] = query;
	starting = query;
	nvm_judge_plan(query->plannedstmt);
}

void
nvm_command_query_started(QueryDesc *query)
{
	if (unlikely(starting != NULL))
		starting = NULL;
}

/*
 * A query that was not begun in this call has an older snapshot.
 */
static bool
is_of_call(QueryDesc *query)
{
	for (int i = nqueries - 1; i >= 0; i--)
	{
		if (queries[i] == query)
			return true;
	}
	return false;
}

int
nvm_command_query_runs(QueryDesc *query)
{
	int			outer = nframes;

	if (likely(!nvm_command_in_call()) || nvm_verdict_by_values())
		return outer;
	if (!is_of_call(query))
		nvm_command_disqualify(NVM_REASON_OLD_CURSOR, InvalidOid, InvalidOid);
	else
	{
		starting = query;
		if ((nvm_plan_order(query->plannedstmt) & NVM_ORDER_UNKNOWN_ROWS) && rows_are_read(query))
			disqualify(query->plannedstmt);
		judge_within(query);
		enter(query, false);
		starting = NULL;
	}
	return outer;
}

int
nvm_command_query_finishes(QueryDesc *query)
{
	int			outer = nframes;

	if (unlikely(nvm_command_in_call()) && !nvm_verdict_by_values() && is_of_call(query))
		enter(query, true);
	return outer;
}

void
nvm_command_query_ran(QueryDesc *query, int outer)
{
	if (unlikely(nvm_replay_in_call))
		nvm_replay_check_routed_rows(query);
	if (likely(!nvm_command_in_call()))
		return;
	nframes = Min(nframes, outer);
	if (!nvm_verdict_by_values())
		nvm_judge_routed_rows(query);
}

void
nvm_command_query_ends(QueryDesc *query)
{
	for (int i = nqueries - 1; i >= 0; i--)
	{
		if (queries[i] == query)
		{
			queries[i] = queries[--nqueries];
			return;
		}
	}
}

void
nvm_queries_forget(void)
{
	nqueries = 0;
	nframes = 0;
	starting = NULL;
}

void
nvm_running_register(void)
{
	CacheRegisterSyscacheCallback(PROCOID, definitions_changed, (Datum) 0);
	CacheRegisterSyscacheCallback(TYPEOID, definitions_changed, (Datum) 0);
}
