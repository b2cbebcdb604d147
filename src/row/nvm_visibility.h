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

#endif							/* NVM_VISIBILITY_H */
