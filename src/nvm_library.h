/*-------------------------------------------------------------------------
 *
 * nvm_library.h
 *	  What the files that load the library share.
 *
 * Copyright (c) 2026, pg_nvm contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NVM_LIBRARY_H
#define NVM_LIBRARY_H

/* unknown_settings.c */
extern void nvm_warn_of_unknown_settings(void);

/* hooks.c; in _PG_init */
extern void nvm_install_hooks(void);

#endif							/* NVM_LIBRARY_H */
