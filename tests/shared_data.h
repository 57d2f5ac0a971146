/* shared_data: files outside of this project that several projects on a machine share. */
#pragma once

/* The path of name in $LOAM_SHARED/data, or in ../shared/data next to the source folder, written to path[512].  NULL:
 * there is none, and the test skips. */
const char *shared_path(const char *name, char path[512]);
