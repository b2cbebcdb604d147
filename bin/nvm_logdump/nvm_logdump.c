/*-------------------------------------------------------------------------
 *
 * nvm_logdump.c
 *	  Print what files of the log have.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "logdump.h"

#include <getopt.h>

bool		show_rows = false;
uint64		from_position = 0;

static const char *progname;

static void
usage(void)
{
	printf("%s prints the log of pg_nvm's rows in memory.\n\n", progname);
	printf("Usage:\n");
	printf("  %s [OPTION]... FILE|DIRECTORY...\n", progname);
	printf("\nOptions:\n");
	printf("  -f, --from=POSITION    print only records that end behind this position\n");
	printf("  -n, --names=FILE       names of functions, types, roles and databases: lines of\n"
		   "                         kind, OID, name\n");
	printf("  -r, --rows             print each row\n");
	printf("  -V, --version          output version information, then exit\n");
	printf("  -?, --help             show this help, then exit\n");
	printf("\nOf a directory all files of the log are printed, by pool, generation and number.  If the\n"
		   "log has several directories, name all of them.  The files are only read.  What is damaged goes\n"
		   "to standard error: which file, where, and what.  What a crash may leave behind the end is not\n"
		   "damaged.\n");
	printf("\nExit status: 0 if nothing is wrong, 1 if something could not be read, 2 if something is\n"
		   "damaged.\n");
}

static int
try_help(void)
{
	pg_log_error_hint("Try \"%s --help\" for more information.", progname);
	return LOGDUMP_FAILED;
}

static bool
parse_position(const char *text)
{
	char	   *end;

	errno = 0;
	from_position = strtou64(text, &end, 10);
	if (errno == 0 && *text >='0' && *text <='9' && *end == '\0')
		return true;
	pg_log_error("invalid position: \"%s\"", text);
	return false;
}

int
main(int argc, char **argv)
{
	static const struct option long_options[] = {
		{"from", required_argument, NULL, 'f'},
		{"names", required_argument, NULL, 'n'},
		{"rows", no_argument, NULL, 'r'},
		{"version", no_argument, NULL, 'V'},
		{"help", no_argument, NULL, '?'},
		{NULL, 0, NULL, 0}
	};
	int			c;

	pg_logging_init(argv[0]);
	set_pglocale_pgservice(argv[0], PG_TEXTDOMAIN("nvm_logdump"));
	progname = get_progname(argv[0]);
	if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-?") == 0))
	{
		usage();
		return LOGDUMP_SOUND;
	}
	while ((c = getopt_long(argc, argv, "f:n:rV", long_options, NULL)) != -1)
	{
		switch (c)
		{
			case 'f':
				if (!parse_position(optarg))
					return try_help();
				break;
			case 'n':
				if (!log_names_read(optarg))
					return LOGDUMP_FAILED;
				break;
			case 'r':
				show_rows = true;
				break;
			case 'V':
				printf("nvm_logdump (pg_nvm) %s, for PostgreSQL %s\n", NVM_VERSION, PG_MAJORVERSION);
				return LOGDUMP_SOUND;
			default:
				return try_help();
		}
	}
	if (optind >= argc)
	{
		pg_log_error("no file or directory was named");
		return try_help();
	}
	for (int i = optind; i < argc; i++)
		log_files_add(argv[i]);
	log_files_sort();
	checkpoints_print();
	kept_lists_print();
	/* a record of a later generation may name a side file */
	for (int i = 0; i < nlog_files; i++)
	{
		if (!log_file_is_side(&log_files[i]))
			log_file_print(&log_files[i]);
	}
	for (int i = 0; i < nlog_files; i++)
	{
		if (log_file_is_side(&log_files[i]))
			log_file_print(&log_files[i]);
	}
	if (ferror(stdout) || fflush(stdout) != 0)
		pg_fatal("could not write to standard output: %m");
	return log_exit_status();
}
