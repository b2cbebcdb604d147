/*-------------------------------------------------------------------------
 *
 * pool_refuse.c
 *	  Refusing the pool, and telling those who would use it.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_authid.h"
#include "miscadmin.h"
#include "pool/pool_impl.h"
#include "utils/acl.h"

/*
 * Refuse the pool.  For the postmaster, or for a process that keeps all others
 * from using the pool.  The reason is stored before the refusal.
 */
void
nvm_pool_refuse(int sqlerrcode, const char *msg, const char *hint)
{
	NvmPool->refusal_errcode = sqlerrcode;
	strlcpy(NvmPool->refusal, msg, sizeof(NvmPool->refusal));
	strlcpy(NvmPool->refusal_hint, hint, sizeof(NvmPool->refusal_hint));
	pg_write_barrier();
	NvmPool->status = NVM_POOL_REFUSED;

	/*
	 * a session that finds out says so by itself, as far as its user may see
	 * the reason
	 */
	ereport(IsUnderPostmaster ? LOG_SERVER_ONLY : WARNING,
			(errcode(sqlerrcode),
			 errmsg("nvm tables are not available: %s", NvmPool->refusal),
			 errhint("%s", NvmPool->refusal_hint)));
}

/*
 * The same with a message to be formatted, in which %m means errno as it was
 * at the call.  Returns false.
 */
bool
nvm_refuse(int sqlerrcode, const char *hint, const char *fmt,...)
{
	char		msg[sizeof(NvmPool->refusal)];
	va_list		args;

	va_start(args, fmt);
	vsnprintf(msg, sizeof(msg), fmt, args);
	va_end(args);
	nvm_pool_refuse(sqlerrcode, msg, hint);
	return false;
}

/*
 * May the user see why the pool is refused?  The reason names files of the
 * server, so only users who may read the view nvm.pool see it.  Where no
 * catalog can be read, nobody sees it: then the server log alone has the
 * reason.
 */
static bool
may_see_refusal(void)
{
	Oid			user;
	int			context;

	GetUserIdAndSecContext(&user, &context);
	return OidIsValid(user) && CritSectionCount == 0 && IsTransactionState() &&
		has_privs_of_role(user, ROLE_PG_MONITOR);
}

/*
 * ERROR: the pool is not open.  Users who may see it get the reason, and what
 * to do.
 */
void
nvm_pool_require_slow(void)
{
	if (NvmPool == NULL || NvmPool->status == NVM_POOL_CLOSED)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("nvm tables are not available"),
				 errdetail("The library pg_nvm was not loaded when the server started."),
				 errhint("Add pg_nvm to shared_preload_libraries and restart the server.")));
	if (NvmPool->was_standby && !RecoveryInProgress())
		ereport(ERROR,
				(errcode(NvmPool->refusal_errcode),
				 errmsg("nvm tables are not available"),
				 errdetail("This server was a standby and has been promoted. The rows of nvm tables are not replicated by physical replication."),
				 errhint("%s", NVM_SEVERED_HINT)));
	if (!may_see_refusal())
		ereport(ERROR,
				(errcode(NvmPool->refusal_errcode),
				 errmsg("nvm tables are not available"),
				 errdetail_log("At server start: %s.", NvmPool->refusal),
				 errhint("Ask an administrator: the server log says why, and so does the view nvm.pool to members of pg_monitor.")));
	ereport(ERROR,
			(errcode(NvmPool->refusal_errcode),
			 errmsg("nvm tables are not available"),
			 errdetail("At server start: %s.", NvmPool->refusal),
			 errhint("%s", NvmPool->refusal_hint)));
}
