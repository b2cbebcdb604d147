/*-------------------------------------------------------------------------
 *
 * ddl_partition.c
 *	  Indexes of partitions.
 *
 * The index of a partitioned table is btree's unless another method is named.
 * Before 18 PostgreSQL insists on btree if the index is unique, and partitions
 * may have any table access method.  An index of a partition belongs to it
 * only if its method is the same.  An index of ours may differ in nothing but
 * that.  Then it is made btree's before PostgreSQL looks:
 *
 *	ALTER INDEX ... ATTACH PARTITION
 *		before the statement.
 *	ALTER TABLE ... ATTACH PARTITION
 *		when the table has been entered as a child of the other one, and
 *		PostgreSQL is going to look for the indexes that it needs.  Before 18
 *		all its other unique indexes of ours are made btree's, too: ON
 *		CONFLICT wants that of each unique index of a partition
 *		(speculative.c).
 *	CREATE INDEX, ADD PRIMARY KEY | UNIQUE of a partitioned table
 *		when its index has been made, and PostgreSQL is going to look for those
 *		of the partitions.  Not along with other changes of the table: it may be
 *		about to be rewritten then.  A second index is made.
 *
 * If nothing comes of it (the command fails), that is undone with everything
 * else.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "btree/nvm_btree.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/partition.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_constraint.h"
#include "commands/defrem.h"
#include "compat/nvm_compat_am.h"
#include "compat/nvm_compat_index.h"
#include "ddl/nvm_ddl.h"
#include "partitioning/partdesc.h"
#include "row/nvm_relation.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

/*
 * Would PostgreSQL let `index` of `table` belong to `parent` of `ptable`, if
 * their access methods were the same?
 */
static bool
index_matches(Relation ptable, Relation parent, Relation table, Relation index)
{
	IndexInfo  *theirs = BuildIndexInfo(parent);
	IndexInfo  *ours = BuildIndexInfo(index);
	AttrMap    *map;
	bool		matches;

	if (index->rd_rel->relispartition)
		return false;
	if (OidIsValid(get_relation_idx_constraint_oid(RelationGetRelid(ptable),
												   RelationGetRelid(parent))) &&
		!OidIsValid(get_relation_idx_constraint_oid(RelationGetRelid(table),
													RelationGetRelid(index))))
		return false;

	map = NvmAttrMapByName(RelationGetDescr(table), RelationGetDescr(ptable));
	ours->ii_Am = theirs->ii_Am;
	matches = CompareIndexInfo(ours, theirs,
							   index->rd_indcollation, parent->rd_indcollation,
							   index->rd_opfamily, parent->rd_opfamily, map);
	free_attrmap(map);
	return matches;
}

/*
 * Is it ours, and can it be made btree's?  If CREATE INDEX CONCURRENTLY has
 * left the index behind half done, only if there is nothing to build.
 */
static bool
is_convertible(Relation index)
{
	return index->rd_rel->relkind == RELKIND_INDEX &&
		index->rd_rel->relam != BTREE_AM_OID && nvm_relation_is_btree(index) &&
		(index->rd_index->indisvalid || !index->rd_index->indisready);
}

/*
 * See to it that `table`, a partition of `ptable`, has an index of btree for
 * partitioned index `parent`, if it has one that differs in the access method
 * at most.  `taken` are the indexes that belong to other indexes of ptable.
 * Returns these, with the one found here.
 */
static List *
convert_match(Relation ptable, Oid parentid, Relation table, List *taken)
{
	Relation	parent = index_open(parentid, AccessShareLock);
	List	   *indexes = NIL;
	Oid			match = InvalidOid;
	bool		convert = false;
	ListCell   *lc;

	if (parent->rd_rel->relkind == RELKIND_PARTITIONED_INDEX &&
		parent->rd_rel->relam == BTREE_AM_OID)
		indexes = RelationGetIndexList(table);
	foreach(lc, indexes)
	{
		Oid			indexid = lfirst_oid(lc);
		Relation	index;
		bool		btree;

		if (list_member_oid(taken, indexid))
			continue;
		index = index_open(indexid, AccessShareLock);
		btree = index->rd_rel->relam == BTREE_AM_OID;
		/* the first one, but rather one that needs no work */
		if ((btree ? !OidIsValid(match) || convert :
			 !OidIsValid(match) && is_convertible(index)) &&
			index_matches(ptable, parent, table, index))
		{
			match = indexid;
			convert = !btree;
		}
		index_close(index, AccessShareLock);
	}
	index_close(parent, AccessShareLock);
	list_free(indexes);

	if (convert)
		nvm_ddl_convert_index(match);
	return OidIsValid(match) ? lappend_oid(taken, match) : taken;
}

/*
 * Before ALTER INDEX ... ATTACH PARTITION.  Whether the user may do that is
 * not decided yet; if not, the command raises an ERROR.
 */
void
nvm_ddl_attach_index(AlterTableStmt *stmt)
{
	AlterTableCmd *cmd = stmt->cmds != NIL ? linitial_node(AlterTableCmd, stmt->cmds) : NULL;
	Oid			parentid;
	Oid			indexid;
	Oid			ptableid;
	Oid			tableid;
	Relation	ptable;
	Relation	table;
	Relation	parent;
	Relation	index;
	bool		convert = false;

	if (cmd == NULL || cmd->subtype != AT_AttachPartition || stmt->objtype != OBJECT_INDEX)
		return;
	parentid = RangeVarGetRelid(stmt->relation, NoLock, true);
	indexid = RangeVarGetRelid(castNode(PartitionCmd, cmd->def)->name, NoLock, true);
	if (!OidIsValid(parentid) || !OidIsValid(indexid) ||
		get_rel_relkind(parentid) != RELKIND_PARTITIONED_INDEX ||
		!nvm_index_is_ours(indexid) ||
		!NvmOwnsRelation(parentid) || !NvmOwnsRelation(indexid))
		return;
	ptableid = IndexGetRelation(parentid, true);
	tableid = IndexGetRelation(indexid, true);
	if (!OidIsValid(ptableid) || !OidIsValid(tableid))
		return;

	/* as the statement does: tables before indexes, the parent's first */
	ptable = try_relation_open(ptableid, AccessShareLock);
	table = ptable ? try_relation_open(tableid, ShareLock) : NULL;
	parent = table ? try_relation_open(parentid, ShareUpdateExclusiveLock) : NULL;
	index = parent ? try_relation_open(indexid, AccessExclusiveLock) : NULL;
	if (index != NULL)
	{
		convert = parent->rd_rel->relam == BTREE_AM_OID && is_convertible(index) &&
			table->rd_rel->relispartition &&
			get_partition_parent(tableid, true) == ptableid &&
			!OidIsValid(index_get_partition(table, parentid)) &&
			index_matches(ptable, parent, table, index);
		relation_close(index, NoLock);
	}
	if (parent != NULL)
		relation_close(parent, NoLock);
	if (table != NULL)
		relation_close(table, NoLock);
	if (ptable != NULL)
		relation_close(ptable, NoLock);
	if (convert)
		nvm_ddl_convert_index(indexid);
}

/*
 * Table relid has been entered as a partition of parentid, and is locked
 * exclusively.
 */
void
nvm_ddl_attached_table(Oid parentid, Oid relid)
{
	Relation	ptable;
	Relation	table;
	List	   *taken = NIL;
	List	   *indexes;
	ListCell   *lc;

	if (get_rel_relkind(relid) != RELKIND_RELATION ||
		get_rel_relkind(parentid) != RELKIND_PARTITIONED_TABLE)
		return;
	CommandCounterIncrement();
	table = table_open(relid, NoLock);
	ptable = table_open(parentid, NoLock);
	if (nvm_relation_is_nvm(table))
	{
		indexes = RelationGetIndexList(ptable);
		foreach(lc, indexes)
			taken = convert_match(ptable, lfirst_oid(lc), table, taken);
		list_free(indexes);

		indexes = NVM_SPECULATIVE_WANTS_BTREE ? RelationGetIndexList(table) : NIL;
		foreach(lc, indexes)
		{
			Relation	index = index_open(lfirst_oid(lc), AccessShareLock);
			bool		convert = index->rd_index->indisunique && is_convertible(index);

			index_close(index, AccessShareLock);
			if (convert)
				nvm_ddl_convert_index(lfirst_oid(lc));
		}
		list_free(indexes);
	}
	table_close(ptable, NoLock);
	table_close(table, NoLock);
}

/*
 * Index indexid of a partitioned table was made (OAT_POST_CREATE).  PostgreSQL
 * then looks for indexes of the partitions, unless the index is made ONLY for
 * that table; then it begins as an invalid one.  For a partition that is
 * partitioned itself this comes again.
 */
void
nvm_ddl_created_partitioned_index(Oid indexid)
{
	Relation	parent;
	Relation	ptable;
	PartitionDesc partitions;
	List	   *children = NIL;
	ListCell   *lc;
	bool		wanted;

	CommandCounterIncrement();
	parent = index_open(indexid, NoLock);
	wanted = parent->rd_index->indisvalid && parent->rd_rel->relam == BTREE_AM_OID;
	ptable = table_open(parent->rd_index->indrelid, NoLock);
	index_close(parent, NoLock);
	if (wanted)
	{
		/* a copy: it may be replaced meanwhile */
		partitions = RelationGetPartitionDesc(ptable, true);
		for (int i = 0; i < partitions->nparts; i++)
			children = lappend_oid(children, partitions->oids[i]);
	}
	foreach(lc, children)
	{
		Relation	table;

		if (get_rel_relkind(lfirst_oid(lc)) != RELKIND_RELATION)
			continue;
		table = table_open(lfirst_oid(lc), ShareLock);
		if (nvm_relation_is_nvm(table))
			list_free(convert_match(ptable, indexid, table, NIL));
		table_close(table, NoLock);
	}
	list_free(children);
	table_close(ptable, NoLock);
}
