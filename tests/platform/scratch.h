/* scratch: a folder for one test, gone after it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct scratch {
    char path[64];
};

/* On the disk the build lies on, or in memory (where a system has /dev/shm), where a flush costs nothing. */
enum scratch_place { SCRATCH_DISK, SCRATCH_MEMORY };
void scratch_create(struct scratch *scratch, enum scratch_place place);
void scratch_destroy(struct scratch *scratch); /* with everything in it */
/* "path/name"; the text is good until the fourth call after it. */
const char *scratch_name(const struct scratch *scratch, const char *name);
size_t scratch_count(const struct scratch *scratch);        /* files in it */
uint64_t scratch_disk_bytes(const struct scratch *scratch); /* blocks they take, in bytes */
/* The files of another one, into an empty one. */
void scratch_copy(const struct scratch *scratch, const struct scratch *from);
/* For one scratch folder after another: removes the files, keeps the folder. */
void scratch_empty(struct scratch *scratch);
