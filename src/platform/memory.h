/* memory: what the system has to give. */
#ifndef LOAM_PLATFORM_MEMORY_H
#define LOAM_PLATFORM_MEMORY_H

#include <stdint.h>

/* What new allocations can get without swapping, as the kernel estimates it; UINT64_MAX: it does not say. */
uint64_t memory_available_bytes(void);

#endif
