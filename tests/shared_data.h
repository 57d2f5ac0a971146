/* shared_data: files that several projects on a machine share, which are no part of this one. */
#ifndef LOAM_TESTS_SHARED_DATA_H
#define LOAM_TESTS_SHARED_DATA_H

/* The path of name in $LOAM_SHARED/data, or in ../shared/data beside the source: written to path[512]; NULL where
 * there is none, which is a reason to skip. */
const char *shared_path(const char *name, char path[512]);

#endif
