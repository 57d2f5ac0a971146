/* version: what this binary is. */
#ifndef LOAM_CLI_VERSION_H
#define LOAM_CLI_VERSION_H

extern const char *const version_number; /* "0.1.0" */
extern const char *const version_commit; /* short hash, or "unknown" */

#endif
