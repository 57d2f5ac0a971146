#include "platform/memory.h"

#include <errno.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/checked.h"

enum { HUGE_PAGE_BYTES = 2 << 20, PAGE_BYTES = 4096 };

/* A line of /proc/meminfo; unknown: it is not there. */
static uint64_t read_line(const char *name, uint64_t unknown) {
    FILE *file = fopen("/proc/meminfo", "re");
    if (file == NULL) return unknown;
    const size_t length = strlen(name);
    char line[128];
    unsigned long long kib;
    uint64_t bytes = unknown;
    while (fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, name, length) == 0 && sscanf(line + length, " %llu kB", &kib) == 1)
            bytes = kib * 1024;
    fclose(file);
    return bytes;
}

uint64_t memory_available_bytes(void) { return read_line("MemAvailable:", UINT64_MAX); }

uint64_t memory_total_bytes(void) { return read_line("MemTotal:", 0); }

static size_t area_alignment(size_t size_bytes) {
    return size_bytes >= MEMORY_AREA_BYTES_MIN ? (size_t)HUGE_PAGE_BYTES : (size_t)PAGE_BYTES;
}

void *memory_area_create(size_t size_bytes) {
    const size_t alignment = area_alignment(size_bytes);
    uint64_t area_bytes, with_slack;
    errno = ENOMEM;
    if (!checked_align(size_bytes > 0 ? size_bytes : 1, alignment, &area_bytes) ||
        !checked_add(area_bytes, alignment, &with_slack))
        return NULL;
    uint8_t *base =
        mmap(NULL, with_slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return NULL;
    const size_t before = (size_t)(-(uintptr_t)base & (alignment - 1));
    if (before > 0) (void)munmap(base, before);
    if (alignment > before) (void)munmap(base + before + area_bytes, alignment - before);
    /* Huge pages are optional: without them the kernel is slower, never wrong. */
    if (alignment == HUGE_PAGE_BYTES) (void)madvise(base + before, area_bytes, MADV_HUGEPAGE);
    return base + before;
}

void memory_area_destroy(void *area, size_t size_bytes) {
    if (area != NULL)
        (void)munmap(area, align_up(size_bytes > 0 ? size_bytes : 1, area_alignment(size_bytes)));
}

void memory_keep_little(void) {
#ifdef __GLIBC__
    enum { KEPT_BYTES = 1 << 20 };
    (void)mallopt(M_MMAP_THRESHOLD, KEPT_BYTES);
    (void)mallopt(M_TRIM_THRESHOLD, KEPT_BYTES);
#endif
}
