/*-------------------------------------------------------------------------
 *
 * pool_memory.c
 *	  Settings of the volatile region: how much memory it may take, and where.
 *
 * The default is a part of what the machine has, and of what the control group of
 * the server may use.  So an INSERT too many is an ERROR, and the kernel kills
 * nobody.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "pool/pool_impl.h"
#include "utils/guc.h"

#define MEGABYTE		(UINT64CONST(1024) * 1024)
#define NO_LIMIT		PG_UINT64_MAX

/* one chunk: less than that is no memory at all */
#define SMALLEST_MB		((int) (NVM_CHUNK_SIZE / MEGABYTE))

int			nvm_memory_limit = -1;
char	   *nvm_memory_directory = NULL;
int			nvm_huge_pages = HUGE_PAGES_TRY;

/* what nvm.huge_pages_status says; set when the region is opened */
static int	huge_pages_shown = 0;

static const struct config_enum_entry huge_pages_options[] = {
	{"off", HUGE_PAGES_OFF, false},
	{"on", HUGE_PAGES_ON, false},
	{"try", HUGE_PAGES_TRY, false},
	{"true", HUGE_PAGES_ON, true},
	{"false", HUGE_PAGES_OFF, true},
	{"yes", HUGE_PAGES_ON, true},
	{"no", HUGE_PAGES_OFF, true},
	{"1", HUGE_PAGES_ON, true},
	{"0", HUGE_PAGES_OFF, true},
	{NULL, 0, false}
};

static const struct config_enum_entry huge_pages_states[] = {
	{"off", 0, false},
	{"on", 1, false},
	{"transparent", 2, false},
	{NULL, 0, false}
};

static uint64
machine_memory(void)
{
	long		pages = sysconf(_SC_PHYS_PAGES);
	long		size = sysconf(_SC_PAGESIZE);

	return pages > 0 && size > 0 ? (uint64) pages * (uint64) size : NO_LIMIT;
}

/*
 * The number in a file; NO_LIMIT if there is no such file, or it says "max".
 */
uint64
nvm_number_in(const char *path)
{
	FILE	   *file = fopen(path, "r");
	unsigned long long value;
	uint64		result = NO_LIMIT;

	if (file == NULL)
		return NO_LIMIT;
	if (fscanf(file, "%llu", &value) == 1)
		result = (uint64) value;
	fclose(file);
	return result;
}

/*
 * The lowest limit of a control group and those above it.  In a container the path may
 * be that of the host, and lead nowhere; then the root is the container's own.
 */
static uint64
group_limit(const char *root, const char *group, const char *name)
{
	char		dir[MAXPGPATH];
	char		path[MAXPGPATH * 2];
	uint64		limit = NO_LIMIT;

	strlcpy(dir, group, sizeof(dir));
	for (;;)
	{
		char	   *slash = strrchr(dir, '/');

		snprintf(path, sizeof(path), "%s%s/%s", root, dir, name);
		limit = Min(limit, nvm_number_in(path));
		if (slash == NULL)
			return limit;
		*slash = '\0';
	}
}

/*
 * What the control groups of this process allow, by /proc/self/cgroup: lines
 * "0::/group" of version 2, "4:memory:/group" of version 1.
 */
static uint64
groups_limit(void)
{
	FILE	   *file = fopen("/proc/self/cgroup", "r");
	char		line[MAXPGPATH];
	uint64		limit = NO_LIMIT;

	if (file == NULL)
		return NO_LIMIT;
	while (fgets(line, sizeof(line), file) != NULL)
	{
		char	   *controllers = strchr(line, ':');
		char	   *group = controllers != NULL ? strchr(controllers + 1, ':') : NULL;

		if (group == NULL)
			continue;
		*group++ = '\0';
		controllers++;
		group[strcspn(group, "\n")] = '\0';
		if (controllers[0] == '\0')
			limit = Min(limit, group_limit("/sys/fs/cgroup", group, "memory.max"));
		else if (strcmp(controllers, "memory") == 0)
			limit = Min(limit, group_limit("/sys/fs/cgroup/memory", group,
										   "memory.limit_in_bytes"));
	}
	fclose(file);
	return limit;
}

static uint64
reserve_mb(uint64 limit_mb)
{
	return nvm_region_reserve_bytes(limit_mb * MEGABYTE) / MEGABYTE;
}

/*
 * The highest limit that fits with its reserve, or the smallest limit.
 */
static uint64
limit_with_reserve(uint64 mb)
{
	uint64		limit = mb - mb / 9;

	while (limit > (uint64) SMALLEST_MB && limit + reserve_mb(limit) > mb)
		limit -= Min(limit, (uint64) SMALLEST_MB);
	return Max(limit, (uint64) SMALLEST_MB);
}

/*
 * The default: a quarter of the machine's memory; with the reserve, at most half of what
 * the control group allows.  The same as long as the postmaster lives.
 */
static int
default_limit(void)
{
	static int	limit = 0;
	uint64		mb;

	if (limit == 0)
	{
		mb = Min(machine_memory() / 4 / MEGABYTE,
				 limit_with_reserve(Min(groups_limit(), machine_memory()) / 2 / MEGABYTE));
		limit = (int) Min(Max(mb, (uint64) SMALLEST_MB), NVM_REGION_BYTES / MEGABYTE);
	}
	return limit;
}

/*
 * Check hook: -1 becomes what it stands for, wherever it comes from.
 */
static bool
check_memory_limit(int *newval, void **extra, GucSource source)
{
	if (*newval == -1)
		*newval = default_limit();
	return true;
}

/*
 * Define the setting.  A limit that somebody has set is taken as it is; one that cannot
 * be kept is worth a line in the log.
 */
void
nvm_memory_define_settings(void)
{
	uint64		available = Min(machine_memory(), groups_limit());

	DefineCustomIntVariable("nvm.memory_limit",
							"Memory up to which tables of access method nvm_vlog may grow.",
							"A rebuild may take an eighth more, or 128MB. -1 is a quarter of the machine's memory, with that at most half of what the control group allows; 0 means no such tables.",
							&nvm_memory_limit,
							-1, -1, (int) (NVM_REGION_BYTES / MEGABYTE),
							PGC_POSTMASTER,
							GUC_UNIT_MB,
							check_memory_limit, NULL, NULL);
	DefineCustomStringVariable("nvm.memory_directory",
							   "Directory in memory (tmpfs, hugetlbfs) where tables of access method nvm_vlog outlive a restart of PostgreSQL.",
							   "Empty: they lie in memory of the server, and each start rebuilds them from the log.",
							   &nvm_memory_directory,
							   "",
							   PGC_POSTMASTER,
							   GUC_SUPERUSER_ONLY,
							   NULL, NULL, NULL);
	DefineCustomEnumVariable("nvm.huge_pages",
							 "Whether tables of access method nvm_vlog lie in huge pages.",
							 "In nvm.memory_directory that is decided by its mount.",
							 &nvm_huge_pages,
							 HUGE_PAGES_TRY,
							 huge_pages_options,
							 PGC_POSTMASTER,
							 0,
							 NULL, NULL, NULL);
	DefineCustomEnumVariable("nvm.huge_pages_status",
							 "Whether tables of access method nvm_vlog have huge pages.",
							 "transparent: where the kernel finds some.",
							 &huge_pages_shown,
							 0,
							 huge_pages_states,
							 PGC_INTERNAL,
							 GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_FILE,
							 NULL, NULL, NULL);
	if (nvm_memory_limit > 0 &&
		((uint64) nvm_memory_limit + reserve_mb((uint64) nvm_memory_limit)) * MEGABYTE > available)
		ereport(WARNING,
				(errmsg("nvm.memory_limit is %d MB, and a rebuild may take %llu MB more, but the server may use %llu MB in all",
						nvm_memory_limit, (unsigned long long) reserve_mb((uint64) nvm_memory_limit),
						(unsigned long long) (available / MEGABYTE)),
				 errdetail("The kernel may end the server before the limit is reached.")));
	if (nvm_memory_limit > 0)
		nvm_region_request(Max(nvm_memory_limit, SMALLEST_MB));
}
