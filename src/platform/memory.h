/* memory: how much memory the system has available; large areas of it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { MEMORY_AREA_BYTES_MIN = 1 << 20 }; /* of an area in huge pages; smaller ones are in pages of 4 KiB */

/* Bytes that new allocations can get without swapping, by the kernel's estimate and the limits of the process's control
 * groups (a container's memory); UINT64_MAX: unknown. */
uint64_t memory_available_bytes(void);
uint64_t memory_total_bytes(void); /* that the system has, or the control groups allow; 0: unknown */
/* Both, UINT64_MAX where unknown, of the system whose /proc and /sys lie below root ("": this one). */
struct memory_sizes {
    uint64_t total, available;
};
struct memory_sizes memory_sizes_of(const char *root);
uint64_t memory_cache_bytes(const char *root); /* of the processor's largest cache, the same way; 0: unknown */

/* From now on what is freed goes back to the system, of all threads.  By default the C library raises what it keeps
 * with each large block that is freed, up to 64 MiB a heap. */
void memory_keep_little(void);

/* An area of zeros, mapped without a promise of swap, so that it costs what is used of it.  From MEMORY_AREA_BYTES_MIN
 * on it is aligned to huge pages and asks for them: who streams it would miss the TLB every 4 KiB, and a read from disk
 * into it would be cut into as many pieces.  NULL with errno: no memory. */
void *memory_area_create(size_t size_bytes);
/* area: NULL, or what was created with the same size. */
void memory_area_destroy(void *area, size_t size_bytes);
