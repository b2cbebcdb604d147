/*-------------------------------------------------------------------------
 *
 * nvm_am.h
 *	  Callbacks of the table access method, for the routine in tableam.c.
 *
 * Signatures that differ between major versions are bridged in compat/.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_AM_H
#define NVM_AM_H

#include "table/nvm_table.h"

#endif							/* NVM_AM_H */
