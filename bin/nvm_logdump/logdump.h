/*-------------------------------------------------------------------------
 *
 * logdump.h
 *	  What the files of nvm_logdump share.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LOGDUMP_H
#define LOGDUMP_H

#include "postgres_fe.h"

#include "common/logging.h"
#include "lib/stringinfo.h"
#include "verify/nvm_verify_calls.h"
#include "verify/nvm_verify_log.h"

/* exit status */
#define LOGDUMP_SOUND		0
#define LOGDUMP_FAILED		1	/* wrong usage, or something cannot be read */
#define LOGDUMP_DAMAGED		2

typedef struct LogFile
{
	char		path[MAXPGPATH];
	NvmLogName	name;
	bool		has_name;		/* it is one of the log */
	bool		asked_for;		/* by itself, not in a directory */
	bool		told;			/* a side file that was printed with its
								 * record */
	uint64		size;
	const char *base;			/* mapping, NULL if there is none */
	NvmLogFileHeader header;
	const char *problem;		/* of the header */
} LogFile;

/* options */
extern bool show_rows;
extern uint64 from_position;

/* ---- logdump_file.c ---- */

extern LogFile *log_files;
extern int	nlog_files;

/* a file, or all files of the log in a directory */
extern void log_files_add(const char *path);

/* all are there: put those of directories in their order */
extern void log_files_sort(void);

/*
 * Where a file of the log is: beside another one, or in another directory that was named.
 * False: nowhere; then the path is that beside.  path has MAXPGPATH bytes.
 */
extern bool log_find(char *path, const char *beside, const char *name);

/* the same in the directory of this number, from 0 on; false: there is no such directory */
extern bool log_path_in(char *path, int directory, const char *name);

/* without its directory */
extern const char *log_name_in(const char *path);

/* false, and said, if it cannot be read */
extern bool log_file_open(LogFile *file, const char *path);
extern bool log_file_map(LogFile *file);
extern void log_file_unmap(LogFile *file);

/*
 * The file that goes on behind this one, or the first of the next generation;
 * NULL if it is not among log_files.
 */
extern const LogFile *log_file_after(const LogFile *file);

/* ---- logdump_report.c ---- */

/* messages on standard error, about a file; each counts for the exit status */
extern void damaged(const LogFile *file, const char *fmt,...) pg_attribute_printf(2, 3);
extern void failed(const char *fmt,...) pg_attribute_printf(1, 2);
extern int	log_exit_status(void);

/* ---- logdump_checkpoint.c ---- */

extern bool is_checkpoint(const char *path);
extern void checkpoint_add(const char *path);
extern void checkpoints_print(void);

/* a data file, which lies beside this file, or in another directory that was named */
extern void data_file_print(const char *beside, const char *name, const NvmLogSide *side,
							const uint8 *uuid);

/* from this position on; 0: there is no checkpoint that says so */
extern uint64 log_needed_from(const LogFile *file);

/* ---- logdump_kept.c ---- */

/* a list of what a clean stop has kept of UNLOGGED tables */
extern bool is_kept_list(const char *path);
extern void kept_list_add(const char *path);
extern void kept_lists_print(void);

/* ---- logdump_calls.c ---- */

/* names of functions, types, roles and databases; false, and said, if it cannot be read */
extern bool log_names_read(const char *path);
extern const char *type_name(uint32 type);

/* of a sound record: from before its first storage */
extern void log_calls_print(const NvmLogWalk *from, bool alone);

/* ---- logdump_value.c ---- */

extern void put_value(StringInfo to, const NvmLogValue *value);
extern void put_literal(StringInfo to, const char *text);
extern void put_timestamp(StringInfo to, int64 usec, const char *zone);

/* ---- logdump_print.c ---- */

extern void log_storages_print(const LogFile *file, const NvmLogWalk *from);
extern bool log_file_is_side(const LogFile *file);
extern void log_file_print(LogFile *file);

#endif							/* LOGDUMP_H */
