/*-------------------------------------------------------------------------
 *
 * pool_settings.c
 *	  Settings of the pool: where it is, and how large it may become.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pool/nvm_sound.h"
#include "pool/pool_impl.h"
#include "utils/guc.h"
#include "verify/nvm_verify.h"

char	   *nvm_pool_directory = NULL;
int			nvm_pool_max_size = 65536;

/*
 * Define nvm.pool_*.  Called in _PG_init.
 */
bool		nvm_ignore_damage = false;

void
nvm_pool_define_settings(void)
{
	DefineCustomStringVariable("nvm.pool_directory",
							   "Directory of the persistent-memory pool.",
							   "A relative path is taken from the data directory.",
							   &nvm_pool_directory,
							   NVM_POOL_DIRECTORY,
							   PGC_POSTMASTER,
							   GUC_SUPERUSER_ONLY,
							   NULL, NULL, NULL);
	DefineCustomIntVariable("nvm.pool_max_size",
							"Size up to which the pool may grow.",
							"That much address space is reserved at server start; "
							"memory or disk space is taken as the pool grows.",
							&nvm_pool_max_size,
							65536,
							(int) (NVM_CHUNK_SIZE / (1024 * 1024)),
							16 * 1024 * 1024,
							PGC_POSTMASTER,
							GUC_UNIT_MB,
							NULL, NULL, NULL);
	DefineCustomBoolVariable("nvm.ignore_damage",
							 "Whether damaged tables and indexes are read as far as they can be.",
							 "To save what is left of them. Answers may be wrong, and the server may crash.",
							 &nvm_ignore_damage,
							 false,
							 PGC_SUSET,
							 0,
							 NULL, NULL, NULL);
}

/*
 * nvm.pool_max_size in bytes, rounded down to whole chunks.
 */
uint64
nvm_pool_max_bytes(void)
{
	return (uint64) nvm_pool_max_size * 1024 * 1024 / NVM_CHUNK_SIZE * NVM_CHUNK_SIZE;
}
