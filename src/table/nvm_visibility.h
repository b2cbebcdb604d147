/*-------------------------------------------------------------------------
 *
 * nvm_visibility.h
 *	  What visibility needs to know of versions.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_VISIBILITY_H
#define NVM_VISIBILITY_H

#include "access/htup_details.h"

/* infomask bits that are part of the stored tuple; the others are run-time */
#define NVM_INFOMASK_FIXED	(HEAP_HASNULL | HEAP_HASVARWIDTH | HEAP_HASEXTERNAL)

#endif							/* NVM_VISIBILITY_H */
