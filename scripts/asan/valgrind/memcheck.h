/*-------------------------------------------------------------------------
 *
 * memcheck.h
 *	  Valgrind's client requests, answered by AddressSanitizer.
 *
 * PostgreSQL tells valgrind which memory of a memory context is in use, and
 * which pages of shared buffers are pinned, by the macros of
 * <valgrind/memcheck.h> (src/include/utils/memdebug.h).  A server that is built
 * with -DUSE_VALGRIND and the directory above this one in its include path
 * tells AddressSanitizer instead: a use after pfree, an access beyond what
 * palloc was asked for, and one to a page without a pin are reports then, which
 * they are not of a sanitized server as such, since it knows malloc alone.
 *
 * The sanitizer knows what may be accessed, not what is initialized: defined
 * and undefined are the same to it, and checks of definedness are nothing.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_ASAN_MEMCHECK_H
#define NVM_ASAN_MEMCHECK_H

#include <sanitizer/asan_interface.h>

#ifndef __SANITIZE_ADDRESS__
#error "without -fsanitize=address nothing looks at what this header marks"
#endif

#define VALGRIND_MAKE_MEM_NOACCESS(addr, size) \
	__asan_poison_memory_region((const void *) (addr), (size))
#define VALGRIND_MAKE_MEM_UNDEFINED(addr, size) \
	__asan_unpoison_memory_region((const void *) (addr), (size))
#define VALGRIND_MAKE_MEM_DEFINED(addr, size) \
	__asan_unpoison_memory_region((const void *) (addr), (size))

/*
 * An allocator marks its chunk headers and what is free by the requests above,
 * also with wipe_mem(); what it gives away, by these alone.
 */
#define VALGRIND_MEMPOOL_ALLOC(pool, addr, size) \
	VALGRIND_MAKE_MEM_UNDEFINED(addr, size)
#define VALGRIND_MEMPOOL_CHANGE(pool, oldaddr, newaddr, size) \
	VALGRIND_MAKE_MEM_UNDEFINED(newaddr, size)
#define VALGRIND_MEMPOOL_FREE(pool, addr)				do {} while (0)
#define VALGRIND_MEMPOOL_TRIM(pool, addr, size)			do {} while (0)
#define VALGRIND_CREATE_MEMPOOL(pool, redzone, zeroed)	do {} while (0)
#define VALGRIND_DESTROY_MEMPOOL(pool)					do {} while (0)

#define VALGRIND_CHECK_MEM_IS_DEFINED(addr, size)		do {} while (0)
#define VALGRIND_GET_VBITS(addr, vbits, size)			0
#define VALGRIND_COUNT_ERRORS							0
#define VALGRIND_PRINTF(...)							0
#define RUNNING_ON_VALGRIND								0

#endif							/* NVM_ASAN_MEMCHECK_H */
