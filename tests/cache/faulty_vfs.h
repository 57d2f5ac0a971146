/* faulty_vfs: an SQLite file system that asks a fault_plan before every call, so that the catalog's I/O fails in
 * the same count as that of the page files. */
#pragma once

#include "platform/fault_plan.h"

#define FAULTY_VFS "loam-faulty"

/* Registers it once; from then on it asks this plan (NULL: nothing fails). */
void faulty_vfs_use(struct fault_plan *plan);
