/* version: what this binary is. */
#pragma once

extern const char *const version_number; /* "0.1.0" */
extern const char *const version_commit; /* short hash, or "unknown" */
