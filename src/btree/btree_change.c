/*-------------------------------------------------------------------------
 *
 * btree_change.c
 *	  Change several places of an index, all or nothing.
 *
 * A change of structure is written down in a redo lane of the pool before it
 * is made (pool/README.md, "Redo lanes").  Pages that do not outlive a restart
 * are simply changed.  The caller has locked the pages.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "btree/nvm_btree.h"
#include "pool/nvm_pool.h"
#include "pool/nvm_redo.h"

StaticAssertDecl(NVM_INDEX_CHANGES <= NVM_REDO_MAX_PIECES, "a lane takes every change");

/*
 * Before any page lock: takes a lane if what changes, the highest of it on this
 * level, is to be durable.
 */
void
nvm_index_change_begin(NvmIndexChange *change, NvmIndexCache *cache, uint32 level)
{
	change->n = 0;
	change->redo = NvmIndexFlushes(cache, level) ? nvm_redo_begin(nvm_rel_region(cache->state)) :
		NULL;
	change->keeps = NvmIndexKeeps(cache, level);
	change->state = cache->state;
}

/*
 * A change that begins while the index is relaxed may not be made when the
 * index no longer is.  A process that makes the index durable again first says
 * so, and then waits for the lock of each page (btree_relax.c).  So if the
 * index is still relaxed once all pages are locked, that process comes later
 * and finds what is stored.
 */
bool
nvm_index_change_stands(const NvmIndexChange *change)
{
	return change->redo != NULL || !change->keeps ||
		nvm_index_is_relaxed(change->state);
}

/*
 * "len bytes from data to place".  Only notes the pointers.
 */
void
nvm_index_change_add(NvmIndexChange *change, void *place, const void *data, Size len)
{
	Assert(change->n < NVM_INDEX_CHANGES);
	change->piece[change->n].place = place;
	change->piece[change->n].data = data;
	change->piece[change->n].len = len;
	change->n++;
}

/*
 * The contents of a page, as nvm_index_form made them, without the lock word
 * and what lies between words and entries.  The identity of the page stays.
 */
void
nvm_index_change_page(NvmIndexChange *change, NvmIndexPage *page, char *image)
{
	NvmIndexPage *header = (NvmIndexPage *) image;
	Size		from = offsetof(NvmIndexPage, safexid);
	Size		lower = NVM_INDEX_HEADER_SIZE + header->nbase * sizeof(uint16);

	header->epoch = page->epoch + 1;
	nvm_index_change_add(change, (char *) page + from, image + from, lower - from);
	if (header->base_upper < NVM_INDEX_PAGE_SIZE)
		nvm_index_change_add(change, (char *) page + header->base_upper,
							 image + header->base_upper,
							 NVM_INDEX_PAGE_SIZE - header->base_upper);
}

/*
 * Make the change, under the locks of its pages.  Durable on return if it is
 * to be.  Cannot fail.
 */
void
nvm_index_change_apply(NvmIndexChange *change)
{
	if (change->redo != NULL)
	{
		for (int i = 0; i < change->n; i++)
			nvm_redo_add(change->redo, change->piece[i].place,
						 change->piece[i].data, change->piece[i].len);
		nvm_redo_apply(change->redo);
	}
	else
	{
		for (int i = 0; i < change->n; i++)
			memcpy(change->piece[i].place, change->piece[i].data, change->piece[i].len);
	}
}

void
nvm_index_change_end(NvmIndexChange *change)
{
	if (change->redo != NULL)
		nvm_redo_end(change->redo);
}
