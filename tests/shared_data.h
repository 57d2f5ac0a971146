/* shared_data: files outside of this project that several projects on a machine share. */
#ifndef LOAM_TESTS_SHARED_DATA_H
#define LOAM_TESTS_SHARED_DATA_H

/* The path of name in $LOAM_SHARED/data, or in ../shared/data next to the source folder, written to path[512].  NULL:
 * there is none, and the test skips. */
const char *shared_path(const char *name, char path[512]);

#endif
