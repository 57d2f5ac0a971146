/* memory: how much memory the system has available. */
#ifndef LOAM_PLATFORM_MEMORY_H
#define LOAM_PLATFORM_MEMORY_H

#include <stdint.h>

/* Bytes that new allocations can get without swapping, by the kernel's estimate; UINT64_MAX: unknown. */
uint64_t memory_available_bytes(void);

#endif
