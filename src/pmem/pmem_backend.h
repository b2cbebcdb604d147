/*-------------------------------------------------------------------------
 *
 * pmem_backend.h
 *	  What the parts of src/pmem tell each other; nobody else includes this.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PMEM_BACKEND_H
#define PMEM_BACKEND_H

#include "pmem/nvm_pmem.h"

struct NvmSimControl;

/* pmem_libpmem.c: user-space flush, the only caller of libpmem */
extern void nvm_libpmem_flush(const void *addr, Size len);
extern void nvm_libpmem_drain(void);
extern bool nvm_libpmem_flushes(void);
extern bool nvm_libpmem_file_is_pmem(const char *dir);

/* pmem_defer.c: what a flush notes until the next fence; pmem and simulate only */
#define NVM_PMEM_LINE	64
extern int	nvm_noted_lines;
extern void nvm_defer_flush(const void *addr, Size len);
extern void nvm_defer_write_back(void);
extern void nvm_defer_forget(void);

/* pmem_msync.c: one fdatasync for the drains of many */
extern void nvm_msync_attach(const char *path, char *base, uint64 max_size, int fd);
extern bool nvm_msync_believe(const char *path, int fd, bool mine, bool *reread);
extern void nvm_msync_flush(const void *addr, Size len);
extern void nvm_msync_drain(void);
extern void nvm_msync_fsync(int fd);

/* pmem_simulate.c: working image, durable image, captures */
extern bool nvm_simulate_attach(const NvmMapFile *file, char *base, bool settle,
								const char **errdetail);
extern void nvm_simulate_detach(void);
extern bool nvm_simulate_grown(uint64 new_size);
extern void nvm_simulate_flush(const void *addr, Size len, const void *caller);
extern void nvm_simulate_write_back(const void *addr, Size len);
extern void nvm_simulate_drain(const char *name);
extern void nvm_simulate_discard(const char *path);

/* pmem_sim_counts.c: which flushes and fences had anything to do */
extern void nvm_sim_counts_attach(struct NvmSimControl *control);
extern void nvm_sim_count_flush(const void *caller, uint64 lines, uint64 clean,
								uint64 repeated);
extern void nvm_sim_count_drain(const char *name);

/* pmem_probe.c: what kind of memory is this? */
extern bool nvm_probe_is_tmpfs(int fd);
extern bool nvm_probe_map_sync(int fd);
extern NvmPersistMethod nvm_probe_method(const char *path, int fd);

/* pmem_failpoint.c: settings nvm.failpoint and nvm.failpoint_seed */
extern void nvm_failpoint_define_settings(void);

/* pmem_coverage.c: counts of lines, in a build that measures what tests reach */
#ifdef NVM_COVERAGE
extern void nvm_coverage_write(void);
extern void nvm_coverage_register(void);
#else
#define nvm_coverage_write()	((void) 0)
#define nvm_coverage_register()	((void) 0)
#endif

#endif							/* PMEM_BACKEND_H */
