/*-------------------------------------------------------------------------
 *
 * log_checkpoint.c
 *	  What a checkpoint asks of the log: where it begins, and to give up files.
 *
 * vlog/ writes checkpoints (vlog/README.md, "Checkpoints").
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>
#include <unistd.h>

#include "log/log_impl.h"
#include "pmem/nvm_pmem.h"

static const NvmCheckpointWatch *watch = NULL;
static void (*ask_checkpointer) (bool wait) = NULL;

void
nvm_log_register_checkpoint_watch(const NvmCheckpointWatch *checkpoint_watch)
{
	watch = checkpoint_watch;
}

void
nvm_log_tell_checkpoint_begins(void)
{
	if (watch != NULL)
		watch->begins();
}

void
nvm_log_tell_checkpoint_usable(void)
{
	if (watch != NULL)
		watch->usable();
}

void
nvm_log_tell_alone(const uint32 *databases, int n)
{
	if (watch != NULL)
		watch->log_is_known(databases, n);
}

void
nvm_log_register_checkpointer(void (*ask) (bool wait))
{
	ask_checkpointer = ask;
}

void
nvm_log_ask_checkpoint(bool wait)
{
	ask_checkpointer(wait);
}

/*
 * Of all transactions whose ASK record has no OUTCOME, the first one's place counts.
 * Both locks are held: so what is looked at is of one moment.
 */
static void
look(NvmLogBegin *begin)
{
	begin->generation = nvm_log_memory->generation;
	begin->file = nvm_log_memory->file;
	begin->decided = begin->begin = nvm_log_inserted();
	for (uint32 i = 0; i < NVM_MAX_SLOTS; i++)
	{
		if (nvm_log_memory->asked[i] != 0)
			begin->begin = Min(begin->begin, nvm_log_memory->asked_at[i]);
	}
}

/*
 * See nvm_log.h.
 */
void
nvm_log_checkpoint_begin(NvmLogBegin *begin)
{
	LWLockAcquire(NvmLog->write_lock, LW_EXCLUSIVE);
	LWLockAcquire(NvmLog->insert_lock, LW_EXCLUSIVE);
	look(begin);
	LWLockRelease(NvmLog->insert_lock);
	LWLockRelease(NvmLog->write_lock);
}

uint64
nvm_log_volume(void)
{
	return nvm_log_inserted() + pg_atomic_read_u64(&NvmLog->side_bytes);
}

void
nvm_log_fill_side_header(NvmLogFileHeader *header)
{
	nvm_log_fill_header(header, 0);
}

/*
 * See nvm_log.h.  No transaction was under way at the start.  Numbers that are drawn since
 * then are higher, in this generation; what was prepared has its record before it.
 */
bool
nvm_log_side_is_old(uint32 generation, uint64 number)
{
	return generation < nvm_log_memory->generation ||
		(generation == nvm_log_memory->generation && number <= NvmLog->start_number);
}

NvmLogPosition
nvm_log_start_position(void)
{
	return NvmLog->start_inserted;
}

/*
 * Has it all of its size?  If a crash has left it cut, and not removed, it is no spare file.
 */
static bool
is_complete(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && st.st_size == (off_t) NVM_LOG_FILE_SIZE;
}

/*
 * Cut the file before its name goes: processes that wrote it may have it open for long.
 */
static bool
cut_and_remove(const char *path)
{
	if (truncate(path, 0) != 0)
		return false;
	NVM_FAILPOINT("ckpt-cut-log");
	return unlink(path) == 0;
}

/*
 * See nvm_log.h.  The keeper may make a spare file meanwhile: then one replaces the
 * other.  A name that a crash brings back is that of a file before all that are
 * needed, whatever it has by then.
 */
void
nvm_log_recycle(int directory, const char *path)
{
	pg_atomic_uint32 *ready = &NvmLog->directory[directory].spare_is_ready;
	char		spare[MAXPGPATH];

	nvm_log_spare_path(spare, directory);
	if (pg_atomic_read_u32(ready) == 0 && !nvm_log_is_out(directory) && is_complete(path) &&
		rename(path, spare) == 0)
		pg_atomic_write_u32(ready, 1);
	else if (!cut_and_remove(path))
	{
		if (errno == ENOENT)
			return;
		ereport(nvm_log_ndirectories() == 1 ? ERROR : LOG,
				(errcode_for_file_access(),
				 errmsg("could not remove file \"%s\": %m", path)));
	}
}
