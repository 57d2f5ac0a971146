#include "platform/memory.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/checked.h"

enum { HUGE_PAGE_BYTES = 2 << 20, PAGE_BYTES = 4096 };

/* folder/name to read; NULL: there is none. */
static FILE *open_in(const char *folder, const char *name) {
    char path[PATH_MAX];
    const int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    return length > 0 && (size_t)length < sizeof path ? fopen(path, "re") : NULL;
}

/* The number behind a word at the beginning of a line ("": of the first line); false: the file has none. */
static bool read_number(const char *folder, const char *name, const char *word, uint64_t *number) {
    FILE *file = open_in(folder, name);
    if (file == NULL) return false;
    const size_t length = strlen(word);
    char line[256];
    bool is_there = false;
    while (!is_there && fgets(line, sizeof line, file) != NULL)
        is_there = strncmp(line, word, length) == 0 && sscanf(line + length, "%" SCNu64, number) == 1;
    fclose(file);
    return is_there;
}

/* Files of a control group: one version of Linux's has these, the other those. */
struct group_files {
    const char *folder, *limits[2], *used, *cached[2]; /* limits: NULL for one that is not there */
};
static const struct group_files group_version_1 = {"/sys/fs/cgroup/memory",
                                                   {"memory.limit_in_bytes", NULL},
                                                   "memory.usage_in_bytes",
                                                   {"total_active_file ", "total_inactive_file "}},
                                group_version_2 = {"/sys/fs/cgroup",
                                                   {"memory.max", "memory.high"},
                                                   "memory.current",
                                                   {"active_file ", "inactive_file "}};

/* What the group in a folder may have, and has left.  The kernel gives back cached pages of files before it ends a
 * process, so that they count as left, as they do in MemAvailable. */
static void bound_by_group(const char *folder, const struct group_files *files, struct memory_sizes *sizes) {
    uint64_t used, cached = 0, number;
    if (!read_number(folder, files->used, "", &used)) return;
    for (size_t i = 0; i < 2; i++)
        if (read_number(folder, "memory.stat", files->cached[i], &number)) cached += number;
    used -= cached < used ? cached : used; /* the two are not of the same moment */
    for (size_t i = 0; i < 2 && files->limits[i] != NULL; i++) {
        if (!read_number(folder, files->limits[i], "", &number)) continue; /* "max" */
        const uint64_t left = number > used ? number - used : 0;
        if (number < sizes->total) sizes->total = number;
        if (left < sizes->available) sizes->available = left;
    }
}

/* A container has a limit that /proc/meminfo does not know, and so may any group above it. */
static void bound_by_groups(const char *root, struct memory_sizes *sizes) {
    char line[PATH_MAX], path[PATH_MAX];
    FILE *file = open_in(root, "proc/self/cgroup");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        const char *names = strchr(line, ':'), *group = names != NULL ? strchr(names + 1, ':') : NULL;
        if (group == NULL) continue;
        const bool is_2 = group == names + 1;
        if (!is_2 && strncmp(names, ":memory:", 8) != 0) continue;
        const struct group_files *files = is_2 ? &group_version_2 : &group_version_1;
        const size_t top = strlen(root) + strlen(files->folder);
        const int length = snprintf(path, sizeof path, "%s%s%s", root, files->folder, group + 1);
        if (length < 0 || (size_t)length >= sizeof path) continue;
        for (char *end = path + length; end != NULL && (size_t)(end - path) >= top; end = strrchr(path, '/')) {
            *end = '\0';
            bound_by_group(path, files, sizes);
        }
    }
    if (file != NULL) fclose(file);
}

struct memory_sizes memory_sizes_of(const char *root) {
    struct memory_sizes sizes = {UINT64_MAX, UINT64_MAX};
    uint64_t kib;
    if (read_number(root, "proc/meminfo", "MemTotal:", &kib)) sizes.total = kib * 1024;
    if (read_number(root, "proc/meminfo", "MemAvailable:", &kib)) sizes.available = kib * 1024;
    bound_by_groups(root, &sizes);
    return sizes;
}

uint64_t memory_available_bytes(void) { return memory_sizes_of("").available; }

uint64_t memory_total_bytes(void) {
    const uint64_t total = memory_sizes_of("").total;
    return total != UINT64_MAX ? total : 0;
}

uint64_t memory_cache_bytes(const char *root) {
    uint64_t largest = 0, kib;
    char name[64];
    for (int i = 0; i < 8; i++) {
        snprintf(name, sizeof name, "sys/devices/system/cpu/cpu0/cache/index%d/size", i);
        if (read_number(root, name, "", &kib) && kib * 1024 > largest) largest = kib * 1024; /* "32768K" */
    }
    return largest;
}

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
    uint8_t *base = mmap(NULL, with_slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return NULL;
    const size_t before = (size_t)(-(uintptr_t)base & (alignment - 1));
    if (before > 0) (void)munmap(base, before);
    if (alignment > before) (void)munmap(base + before + area_bytes, alignment - before);
    /* Huge pages are optional: without them the kernel is slower, never wrong. */
    if (alignment == HUGE_PAGE_BYTES) (void)madvise(base + before, area_bytes, MADV_HUGEPAGE);
    return base + before;
}

void memory_area_destroy(void *area, size_t size_bytes) {
    if (area != NULL) (void)munmap(area, align_up(size_bytes > 0 ? size_bytes : 1, area_alignment(size_bytes)));
}

void memory_keep_little(void) {
#ifdef __GLIBC__
    enum { KEPT_BYTES = 1 << 20 };
    (void)mallopt(M_MMAP_THRESHOLD, KEPT_BYTES);
    (void)mallopt(M_TRIM_THRESHOLD, KEPT_BYTES);
#endif
}
