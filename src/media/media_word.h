/*-------------------------------------------------------------------------
 *
 * media_word.h
 *	  Words that are read without a lock while somebody stores them.
 *
 * A reader that finds a stored word also finds what its writer stored before.
 * Words that need another order, or none, use the compiler's built-ins where
 * they are read, with the reason.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef MEDIA_WORD_H
#define MEDIA_WORD_H

#include <stdint.h>

static inline uint64_t
nvm_load(const uint64_t *p)
{
	return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

static inline void
nvm_store(uint64_t *p, uint64_t value)
{
	__atomic_store_n(p, value, __ATOMIC_RELEASE);
}

static inline void
nvm_store32(uint32_t *p, uint32_t value)
{
	__atomic_store_n(p, value, __ATOMIC_RELEASE);
}

#endif							/* MEDIA_WORD_H */
