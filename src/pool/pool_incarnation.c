/*-------------------------------------------------------------------------
 *
 * pool_incarnation.c
 *	  The bond between pool and data directory.
 *
 * Pool and data directory are halves of one database.  If one is replaced by
 * an older or a foreign copy, it makes nonsense of the other.  So at each open
 * both note the number of the incarnation and a nonce.  An open has three
 * steps; the first two are each durable before the next:
 *
 *	1. incarnation file: incarnation n, announces n + 1 with its nonce
 *	2. pool header: incarnation n + 1, its nonce, not clean
 *	3. incarnation file: incarnation n + 1; a clean close makes it durable
 *
 * A crash after 1 leaves both sides at n.  A crash after 2 leaves the pool at
 * the incarnation that the file announces.  So does a power failure that loses
 * 3; therefore nobody waits for 3.  Every other difference means that one side
 * was replaced.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "common/file_perm.h"
#include "miscadmin.h"
#include "pmem/nvm_pmem.h"
#include "pool/pool_impl.h"
#include "port/pg_crc32c.h"
#include "storage/fd.h"
#include "verify/nvm_verify.h"

#define RESTORE_PAIR_HINT \
	"Restore the pool and the data directory together from a backup taken while the server was stopped, " \
	"or put back the one that was replaced."

static uint32
record_crc(const NvmIncarnationRecord *rec)
{
	return nvm_record_crc(rec, sizeof(*rec), &rec->crc);
}

/*
 * Read pg_control, without ever throwing.  Returns false after refusing the
 * pool.
 */
bool
nvm_control_read(ControlFileData *control)
{
	pg_crc32c	crc;
	ssize_t		n = -1;
	int			fd = open(XLOG_CONTROL_FILE, O_RDONLY | O_CLOEXEC);

	if (fd >= 0)
	{
		n = read(fd, control, sizeof(*control));
		close(fd);
	}
	if (n != sizeof(*control))
		return nvm_refuse(ERRCODE_IO_ERROR, "Restart the server.",
						  "could not read \"%s\" to check the NVM pool against it: %m",
						  XLOG_CONTROL_FILE);
	INIT_CRC32C(crc);
	COMP_CRC32C(crc, control, offsetof(ControlFileData, crc));
	FIN_CRC32C(crc);
	if (!EQ_CRC32C(crc, control->crc))
		return nvm_refuse(ERRCODE_DATA_CORRUPTED, "Restart the server.",
						  "checksum of \"%s\" is wrong, cannot check the NVM pool against it",
						  XLOG_CONTROL_FILE);
	return true;
}

/*
 * Make pg_control durable as nvm_control_read has read it.  The process that
 * wrote it may have been killed before it did so.  Returns false after
 * refusing the pool.
 */
static bool
control_sync(void)
{
	int			fd = open(XLOG_CONTROL_FILE, O_RDWR | O_CLOEXEC);
	bool		ok = fd >= 0 && pg_fsync(fd) == 0;

	if (fd >= 0)
	{
		int			save_errno = errno;

		close(fd);
		errno = save_errno;
	}
	if (!ok)
		return nvm_refuse(ERRCODE_IO_ERROR,
						  "Check the device that holds the data directory.",
						  "could not fsync \"%s\" before the NVM pool refers to it: %m",
						  XLOG_CONTROL_FILE);
	return true;
}

/*
 * The valid record of the higher sequence, if there is one.
 */
static bool
record_load(int fd, NvmIncarnationRecord *rec)
{
	bool		valid = false;

	for (int i = 0; i < 2; i++)
	{
		NvmIncarnationRecord copy;

		if (pread(fd, &copy, sizeof(copy), i * NVM_INCARNATION_SIZE) != sizeof(copy) ||
			copy.magic != NVM_INCARNATION_MAGIC || copy.crc != record_crc(&copy))
			continue;
		if (!valid || copy.sequence > rec->sequence)
			*rec = copy;
		valid = true;
	}
	return valid;
}

/*
 * Read the incarnation file.  Returns false after refusing the pool, when it
 * is there but no record in it is valid.
 */
bool
nvm_incarnation_read(NvmIncarnationRecord *rec, bool *exists)
{
	bool		valid;
	int			fd = open(NVM_INCARNATION_FILE, O_RDONLY | O_CLOEXEC);

	memset(rec, 0, sizeof(*rec));
	*exists = fd >= 0;
	if (fd < 0 && errno == ENOENT)
		return true;
	if (fd < 0)
		return nvm_refuse(ERRCODE_IO_ERROR,
						  "Check the permissions of the data directory.",
						  "could not open file \"%s\": %m", NVM_INCARNATION_FILE);
	valid = record_load(fd, rec);
	close(fd);
	if (!valid)
		return nvm_refuse(ERRCODE_DATA_CORRUPTED, RESTORE_PAIR_HINT,
						  "file \"%s\" is damaged, cannot tell whether the NVM pool belongs to this data directory",
						  NVM_INCARNATION_FILE);
	return true;
}

/*
 * Make durable what any process has written to the file.  The kernel reports
 * an error once: a process that gets it notes it for nvm_incarnation_sync.
 */
static bool
file_sync(int fd)
{
	if (pg_fdatasync(fd) == 0)
		return true;
	NvmPool->incarnation_lost = true;
	return false;
}

/*
 * Put rec in the place of the older record.  False, with errno set, if that
 * fails.
 */
static bool
record_store(int fd, NvmIncarnationRecord *rec)
{
	rec->magic = NVM_INCARNATION_MAGIC;
	rec->sequence++;
	rec->crc = record_crc(rec);
	errno = ENOSPC;
	return pwrite(fd, rec, sizeof(*rec),
				  (off_t) (rec->sequence & 1) * NVM_INCARNATION_SIZE) == sizeof(*rec);
}

/*
 * Write rec in the place of the older record, durably if so asked.  Returns
 * false after refusing the pool.
 */
static bool
incarnation_write(NvmIncarnationRecord *rec, bool durable)
{
	int			fd = open(NVM_INCARNATION_FILE, O_RDWR | O_CLOEXEC);
	bool		ok = fd >= 0 && record_store(fd, rec) &&
	(!durable || file_sync(fd));

	if (fd >= 0)
	{
		int			save_errno = errno;

		close(fd);
		errno = save_errno;
	}
	if (!ok)
		return nvm_refuse(errno == ENOSPC ? ERRCODE_DISK_FULL : ERRCODE_IO_ERROR,
						  "Check the device that holds the data directory.",
						  "could not write file \"%s\": %m", NVM_INCARNATION_FILE);
	return true;
}

/*
 * Make the file for a pool that was never opened.
 */
static bool
incarnation_create(NvmIncarnationRecord *rec, const NvmPoolHeader *h)
{
	const char *temp = NVM_INCARNATION_FILE ".new";
	char		image[2 * NVM_INCARNATION_SIZE] = {0};
	int			fd;
	bool		ok;

	memset(rec, 0, sizeof(*rec));
	rec->magic = NVM_INCARNATION_MAGIC;
	rec->sequence = 2;
	rec->system_identifier = h->system_identifier;
	memcpy(rec->uuid, h->uuid, sizeof(rec->uuid));
	rec->crc = record_crc(rec);
	memcpy(image, rec, sizeof(*rec));

	fd = open(temp, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, pg_file_create_mode);
	errno = fd < 0 ? errno : ENOSPC;
	ok = fd >= 0 && write(fd, image, sizeof(image)) == sizeof(image);
	if (fd >= 0)
		close(fd);
	if (!ok || durable_rename(temp, NVM_INCARNATION_FILE, LOG) != 0)
		return nvm_refuse(errno == ENOSPC ? ERRCODE_DISK_FULL : ERRCODE_IO_ERROR,
						  "Check the device that holds the data directory.",
						  "could not create file \"%s\": %m", NVM_INCARNATION_FILE);
	return true;
}

/*
 * Durably note that no pool goes with the data directory any more.  The file
 * that shows it now (standby.signal, backup_label) may be gone at the next
 * start.  By then the data directory may have moved on so far that it looks
 * like the pool's again.  A failure to write is only logged: the pool is
 * refused in any case.
 */
void
nvm_incarnation_sever(NvmIncarnationRecord *rec, uint32 why)
{
	if (rec->magic != NVM_INCARNATION_MAGIC)
		return;
	rec->severed = why;
	(void) incarnation_write(rec, true);
}

/*
 * Set, or clear, a flag of NvmIncarnationRecord.bypassed, durably.  A failure is logged.
 */
static bool
note_bypassed(uint8 flag, bool on)
{
	NvmIncarnationRecord rec;
	int			fd = open(NVM_INCARNATION_FILE, O_RDWR | O_CLOEXEC);
	bool		ok;

	if (fd < 0)
		return false;
	ok = record_load(fd, &rec);
	if (ok && rec.severed == NVM_SEVERED_NOT &&
		((rec.bypassed & flag) != 0) != on)
	{
		NVM_FAILPOINT("bypass-note");
		rec.bypassed ^= flag;

		/*
		 * make the last record durable first: only then is the one to be
		 * overwritten the older one
		 */
		ok = file_sync(fd) && record_store(fd, &rec) && file_sync(fd);
		if (!ok)
			ereport(LOG,
					(errcode_for_file_access(),
					 errmsg("could not write file \"%s\": %m", NVM_INCARNATION_FILE)));
		NVM_FAILPOINT("bypass-noted");
	}
	close(fd);
	return ok;
}

/*
 * Durably note, or take back, that the server runs without its pool.  While
 * the note is there, transactions in doubt in the pool cannot be decided.
 * Where no pool is known, or none is accepted any more, there is nothing to
 * note.  A failure is logged.  At a start that is all: pg_control still tells,
 * as long as the server stops cleanly.
 */
bool
nvm_incarnation_note_bypass(bool on)
{
	return note_bypassed(NVM_BYPASSED_POOL, on);
}

/*
 * See nvm_pool.h.
 */
bool
nvm_incarnation_log_is_decided(void)
{
	return !NvmPool->log_was_bypassed || note_bypassed(NVM_BYPASSED_LOG, false);
}

/*
 * Durably note that the witness is there, durably, in the incarnation that
 * runs.  Only a recovery without us can empty it before the next open.  A
 * failure is only logged.
 */
bool
nvm_incarnation_note_armed(void)
{
	NvmIncarnationRecord rec;
	bool		ok = false;
	int			fd = open(NVM_INCARNATION_FILE, O_RDWR | O_CLOEXEC);

	if (fd < 0)
		return false;
	if (record_load(fd, &rec) && rec.severed == NVM_SEVERED_NOT &&
		rec.incarnation == NvmPool->incarnation)
	{
		NVM_FAILPOINT("witness-note");
		rec.armed = 1;
		ok = file_sync(fd) && record_store(fd, &rec) && file_sync(fd);
		if (!ok)
			ereport(LOG,
					(errcode_for_file_access(),
					 errmsg("could not write file \"%s\": %m", NVM_INCARNATION_FILE)));
		NVM_FAILPOINT("witness-noted");
	}
	close(fd);
	return ok;
}

static uint32
place_crc(const NvmPlaceRecord *place)
{
	return nvm_record_crc(place, sizeof(*place), &place->crc);
}

/*
 * The directory in which the pool was when it was last opened, or "" if that is not
 * known.  `directory` has room for NVM_PLACE_LENGTH bytes.
 */
void
nvm_incarnation_last_place(char *directory)
{
	NvmPlaceRecord place;
	int			fd = open(NVM_INCARNATION_FILE, O_RDONLY | O_CLOEXEC);

	directory[0] = '\0';
	if (fd < 0)
		return;
	if (pread(fd, &place, sizeof(place), NVM_PLACE_OFFSET) == sizeof(place) &&
		place.magic == NVM_PLACE_MAGIC && place.crc == place_crc(&place) &&
		place.directory[NVM_PLACE_LENGTH - 1] == '\0')
		strcpy(directory, place.directory);
	close(fd);
}

/*
 * Note, durably, where the pool is that has just been opened, if the file does
 * not say so.  A note that a crash tears does not count.  A failure is only
 * logged.
 */
void
nvm_incarnation_note_place(const char *directory)
{
	NvmPlaceRecord place;
	char		last[NVM_PLACE_LENGTH];
	int			fd;

	nvm_incarnation_last_place(last);
	if (strcmp(last, directory) == 0 || strlen(directory) >= sizeof(place.directory))
		return;
	memset(&place, 0, sizeof(place));
	place.magic = NVM_PLACE_MAGIC;
	strlcpy(place.directory, directory, sizeof(place.directory));
	place.crc = place_crc(&place);

	NVM_FAILPOINT("place-note");
	fd = open(NVM_INCARNATION_FILE, O_RDWR | O_CLOEXEC);
	errno = fd < 0 ? errno : ENOSPC;
	if (fd < 0 || pwrite(fd, &place, sizeof(place), NVM_PLACE_OFFSET) != sizeof(place) ||
		!file_sync(fd))
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", NVM_INCARNATION_FILE)));
	if (fd >= 0)
		close(fd);
	NVM_FAILPOINT("place-noted");
}

/*
 * Has nobody severed the bond?  Returns false after refusing the pool.
 */
bool
nvm_incarnation_bound(NvmIncarnationRecord *rec)
{
	const char *what = rec->severed == NVM_SEVERED_STANDBY ? "that of a standby" :
	rec->severed == NVM_SEVERED_BACKUP ? "restored from a base backup" :
	"an older copy";

	if (rec->severed == NVM_SEVERED_NOT)
		return true;
	return nvm_refuse(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, NVM_SEVERED_HINT,
					  "the data directory was %s when the server was started earlier, and no NVM pool goes with it since",
					  what);
}

/*
 * Is this the data directory that the pool was opened with, and not a copy?
 */
bool
nvm_incarnation_same_data(const NvmPoolHeader *h)
{
	uint64		device;
	uint64		inode;
	uint64		birth;
	uint64		size;
	int			fd;

	if (h->data_inode == 0)
		return true;
	fd = open(NVM_INCARNATION_FILE, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	nvm_file_identity(fd, &device, &inode, &birth, &size);
	close(fd);
	return h->data_inode == inode &&
		(h->data_birth == 0 || birth == 0 || h->data_birth == birth);
}

/*
 * Do the two sides belong together?  Returns false after refusing the pool.
 */
bool
nvm_incarnation_matches(const NvmIncarnationRecord *rec, bool exists,
						const NvmPoolHeader *h)
{
	if (!exists)
	{
		/* just created, or a start was interrupted before its first open */
		if (h->incarnation == 0)
			return true;
		return nvm_refuse(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, RESTORE_PAIR_HINT,
						  "NVM pool \"%s\" was used by another copy of this data directory: file \"%s\" is missing",
						  nvm_pool_path, NVM_INCARNATION_FILE);
	}
	if (memcmp(rec->uuid, h->uuid, sizeof(rec->uuid)) != 0)
		return nvm_refuse(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, RESTORE_PAIR_HINT,
						  "NVM pool \"%s\" is not the pool that this data directory was last used with",
						  nvm_pool_path);
	if (rec->incarnation == h->incarnation && rec->nonce == h->nonce)
		return true;
	if (rec->next_incarnation != 0 && !h->clean &&
		rec->next_incarnation == h->incarnation && rec->next_nonce == h->nonce)
		return true;
	if (h->incarnation < rec->incarnation)
		return nvm_refuse(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, RESTORE_PAIR_HINT,
						  "NVM pool \"%s\" is older than the data directory (incarnation %u, the data directory has seen %u)",
						  nvm_pool_path, h->incarnation, rec->incarnation);
	if (h->incarnation > rec->incarnation)
		return nvm_refuse(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, RESTORE_PAIR_HINT,
						  "data directory is older than NVM pool \"%s\" (incarnation %u, the pool has %u)",
						  nvm_pool_path, rec->incarnation, h->incarnation);
	return nvm_refuse(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, RESTORE_PAIR_HINT,
					  "NVM pool \"%s\" and the data directory have different histories since incarnation %u",
					  nvm_pool_path, h->incarnation);
}

/*
 * Note the marks that tell the data directory from a copy of it.
 */
static void
note_data_identity(NvmPoolHeader *h)
{
	int			fd = open(NVM_INCARNATION_FILE, O_RDONLY | O_CLOEXEC);
	uint64		device;
	uint64		size;

	h->data_inode = h->data_birth = 0;
	if (fd < 0)
		return;
	nvm_file_identity(fd, &device, &h->data_inode, &h->data_birth, &size);
	close(fd);
}

/*
 * Begin the next incarnation on both sides.  The pool is mapped and valid, *h
 * is its header.  Returns false after refusing the pool.
 */
bool
nvm_incarnation_raise(NvmPoolHeader *h, const NvmIncarnationRecord *old,
					  const ControlFileData *control)
{
	NvmIncarnationRecord rec = *old;
	uint32		next = nvm_incarnation_after(h->incarnation);
	uint64		nonce;
	uint64		size;

	if (h->incarnation >= PG_UINT32_MAX - 1)
		return nvm_refuse(ERRCODE_PROGRAM_LIMIT_EXCEEDED,
						  "Dump the nvm tables with an older copy and load them into a new pool.",
						  "NVM pool \"%s\" was opened too often", nvm_pool_path);
	if (!pg_strong_random(&nonce, sizeof(nonce)))
		return nvm_refuse(ERRCODE_INTERNAL_ERROR, "Restart the server.",
						  "could not generate a random number for NVM pool \"%s\"",
						  nvm_pool_path);
	if (!control_sync())
		return false;
	if (rec.magic == 0 && !incarnation_create(&rec, h))
		return false;

	rec.incarnation = h->incarnation;
	rec.nonce = h->nonce;
	rec.armed = 0;				/* our own recovery empties it */
	rec.next_incarnation = next;
	rec.next_nonce = nonce;
	if (!incarnation_write(&rec, true))
		return false;
	nvm_contents_announce(h->nonce, nonce);

	if (!h->clean)
		nvm_header_note_crashed(h, h->incarnation);
	h->incarnation = next;
	h->nonce = nonce;
	h->clean = 0;
	h->wal_position = control->checkPoint;
	h->pg_major = PG_MAJORVERSION_NUM;
	h->features_incompat |= NVM_FEATURES_INCOMPAT;
	nvm_file_identity(nvm_pool_fd, &h->device, &h->inode, &h->birth, &size);
	note_data_identity(h);
	nvm_header_write(h);

	rec.incarnation = h->incarnation;
	rec.nonce = nonce;
	rec.next_incarnation = 0;
	rec.next_nonce = 0;
	return incarnation_write(&rec, false);
}

/*
 * Make the last record durable, before a clean close relies on it.  Returns
 * false if that fails, or if the sync of any process has failed since the
 * open.  The pool then counts as not cleanly closed.
 */
bool
nvm_incarnation_sync(void)
{
	int			fd = open(NVM_INCARNATION_FILE, O_RDWR | O_CLOEXEC);
	bool		ok = fd >= 0 && file_sync(fd);

	if (ok && NvmPool->incarnation_lost)
	{
		ok = false;
		errno = EIO;
	}
	if (!ok)
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not fsync file \"%s\": %m", NVM_INCARNATION_FILE)));
	if (fd >= 0)
		close(fd);
	return ok;
}
