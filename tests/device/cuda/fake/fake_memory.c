/* Device memory has no permissions but while tasks run, and tasks run only within a call of the driver: host code that
 * touches it ends with a signal.  All of it lies in one area, so that one system call opens it.  It begins as bytes of
 * POISON, floats that are no numbers, and so does what is between two allocations: a kernel that writes there is found
 * out when the area is closed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "device/cuda/fake/fake_internal.h"

enum { PAGE = 4096, HUGE_PAGE = 2 << 20, POISON = 0xff, POISON_BYTES_MAX = 64 << 20, GUARD_BYTES = 64 };

struct allocation {
    enum fake_memory_kind kind;
    uint8_t *address;
    size_t size_bytes;
    struct allocation *next;
};

static struct allocation *allocations;
static uint8_t *area, *area_next,
    *area_used; /* of the device: begin, where the search goes on, end of what was used */
static size_t area_bytes;
static uint64_t used_bytes;
static struct {
    uint64_t now, most, launched; /* bytes, as they were asked for; launched: the most before the last graph */
} held[2];                      /* the device's; the host's that are pinned */
static unsigned open_count;

static size_t whole(size_t size_bytes) { return (size_bytes + PAGE - 1) / PAGE * PAGE; }

/* What an allocation takes of a card's memory: from 1 MiB on whole areas of 2. */
static uint64_t taken(size_t size_bytes) {
    const uint64_t unit = size_bytes >= HUGE_PAGE / 2 ? HUGE_PAGE : PAGE;
    return (size_bytes + unit - 1) / unit * unit;
}

static struct allocation *find(const void *address) {
    const uint8_t *byte = address;
    for (struct allocation *a = allocations; a != NULL; a = a->next)
        if (byte >= a->address && byte < a->address + a->size_bytes) return a;
    return NULL;
}

/* ---- the device's area ---- */

/* By whole huge pages: thousands of small ones would be changed whenever the area opens. */
static size_t area_open_bytes(void) {
    return ((size_t)(area_used - area) + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
}

static void area_protect(int protection) {
    if (area_used > area && mprotect(area, area_open_bytes(), protection) != 0) abort();
}

/* What opens with the last allocation is no number either. */
static void area_grow(uint8_t *used) {
    const size_t before = area_used == area ? 0 : area_open_bytes();
    area_used = used;
    const size_t opens = area_open_bytes(), rest = (size_t)(area + opens - area_used);
    if (opens == before) return;
    fake_memory_open();
    memset(area_used, POISON, rest);
    fake_memory_close();
}

static bool area_create(void) {
    if (area != NULL) return true;
    area_bytes = whole(fake_settings.memory_bytes) * 2; /* an address is not given again at once */
    area_bytes = (area_bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    uint8_t *made = mmap(NULL, area_bytes + HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED) return false;
    const size_t before = HUGE_PAGE - (uintptr_t)made % HUGE_PAGE;
    if (munmap(made, before) != 0) abort();
    made += before;
    if (before < HUGE_PAGE && munmap(made + area_bytes, HUGE_PAGE - before) != 0) abort();
    (void)madvise(made, area_bytes, MADV_HUGEPAGE); /* without it all is slower, no more */
    area = area_next = area_used = made;
    return true;
}

/* The allocation that [begin, begin + bytes) would overlap. */
static const struct allocation *area_obstacle(const uint8_t *begin, size_t bytes) {
    for (const struct allocation *a = allocations; a != NULL; a = a->next)
        if (a->kind == FAKE_DEVICE && begin < a->address + whole(a->size_bytes) + PAGE &&
            a->address < begin + bytes)
            return a;
    return NULL;
}

static uint8_t *area_take(size_t size_bytes) { /* NULL: there is no gap of that size */
    const size_t bytes = whole(size_bytes) + PAGE;
    uint8_t *begin = area_next;
    for (int turn = 0; turn < 2; turn++, begin = area) {
        const struct allocation *obstacle = NULL;
        while (bytes <= (size_t)(area + area_bytes - begin) &&
               (obstacle = area_obstacle(begin, bytes)) != NULL)
            begin = obstacle->address + whole(obstacle->size_bytes) + PAGE;
        if (obstacle == NULL && bytes <= (size_t)(area + area_bytes - begin)) {
            area_next = begin + bytes;
            if (area_next > area_used) area_grow(area_next);
            return begin;
        }
    }
    return NULL;
}

static void poison(uint8_t *begin, size_t size_bytes) {
    fake_memory_open();
    memset(begin, POISON, size_bytes < POISON_BYTES_MAX ? size_bytes : POISON_BYTES_MAX);
    memset(begin + size_bytes, POISON, GUARD_BYTES);
    fake_memory_close();
}

static void guards_check(void) {
    for (const struct allocation *a = allocations; a != NULL; a = a->next)
        for (size_t i = 0; a->kind == FAKE_DEVICE && i < GUARD_BYTES; i++)
            if (a->address[a->size_bytes + i] != POISON) {
                fake_complain("a kernel wrote behind an allocation of %zu bytes", a->size_bytes);
                abort();
            }
}

void fake_memory_open(void) {
    if (open_count++ == 0) area_protect(PROT_READ | PROT_WRITE);
}

void fake_memory_close(void) {
    if (open_count == 1) guards_check();
    if (--open_count == 0) area_protect(PROT_NONE);
}

/* ---- what is held ---- */

static void held_add(enum fake_memory_kind kind, size_t size_bytes) {
    const bool is_pinned = kind != FAKE_DEVICE;
    held[is_pinned].now += size_bytes;
    if (held[is_pinned].now > held[is_pinned].most) held[is_pinned].most = held[is_pinned].now;
}

void fake_memory_note_launch(void) {
    for (size_t i = 0; i < 2; i++) held[i].launched = held[i].most;
}

/* At most, at any instant: two numbers; then the same up to the last graph, behind which a program reads what it has
 * counted. */
static void held_write(void) {
    const unsigned long long device = held[0].most, pinned = held[1].most;
    if (fake_settings.held[0] == '\0' || device + pinned == 0) return;
    FILE *file = fopen(fake_settings.held, "w");
    if (file == NULL ||
        fprintf(file, "%llu %llu %llu %llu\n", device, pinned, (unsigned long long)held[0].launched,
                (unsigned long long)held[1].launched) < 0 ||
        fclose(file) != 0) {
        fake_complain("%s cannot be written", fake_settings.held);
        abort();
    }
    memset(held, 0, sizeof held);
}

/* ---- allocations ---- */

static uint8_t *pinned_create(size_t size_bytes) {
    uint8_t *made = mmap(NULL, whole(size_bytes), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED) return NULL;
    memset(made, POISON, size_bytes < POISON_BYTES_MAX ? size_bytes : POISON_BYTES_MAX);
    return made;
}

enum cu_result fake_memory_create(enum fake_memory_kind kind, void *address, size_t size_bytes,
                                  void **result) {
    if (size_bytes == 0) return CU_INVALID_VALUE;
    if (kind == FAKE_DEVICE && (taken(size_bytes) > fake_memory_free_bytes() || !area_create()))
        return CU_OUT_OF_MEMORY;
    if (kind == FAKE_REGISTERED) {
        if ((uintptr_t)address % PAGE != 0) return CU_INVALID_VALUE;
        for (const struct allocation *a = allocations; a != NULL; a = a->next) /* by pages */
            if (a->address < (uint8_t *)address + whole(size_bytes) &&
                (uint8_t *)address < a->address + whole(a->size_bytes))
                return (enum cu_result)712; /* already registered */
    }
    struct allocation *made = malloc(sizeof *made);
    uint8_t *begin = kind == FAKE_DEVICE       ? area_take(size_bytes)
                     : kind == FAKE_REGISTERED ? address
                                               : pinned_create(size_bytes);
    if (made == NULL || begin == NULL) {
        free(made);
        return CU_OUT_OF_MEMORY;
    }
    if (kind == FAKE_DEVICE) {
        poison(begin, size_bytes);
        used_bytes += taken(size_bytes);
    }
    *made = (struct allocation){kind, begin, size_bytes, allocations};
    allocations = made;
    held_add(kind, size_bytes);
    if (result != NULL) *result = begin;
    return CU_SUCCESS;
}

enum cu_result fake_memory_destroy(enum fake_memory_kind kind, void *address) {
    struct allocation **place = &allocations;
    while (*place != NULL && ((*place)->address != address || (*place)->kind != kind))
        place = &(*place)->next;
    struct allocation *found = *place;
    if (found == NULL) return kind == FAKE_REGISTERED ? (enum cu_result)713 : CU_INVALID_VALUE;
    *place = found->next;
    held[kind != FAKE_DEVICE].now -= found->size_bytes;
    if (kind == FAKE_DEVICE) {
        used_bytes -= taken(found->size_bytes);
        poison(found->address, found->size_bytes);
    }
    if (kind == FAKE_HOST && munmap(address, whole(found->size_bytes)) != 0) abort();
    free(found);
    return CU_SUCCESS;
}

bool fake_memory_reaches(uint64_t address, size_t size_bytes, const char *who) {
    const struct allocation *a = find((const void *)(uintptr_t)address);
    if (a != NULL && size_bytes <= (size_t)(a->address + a->size_bytes - (uint8_t *)(uintptr_t)address))
        return true;
    fake_complain("%s: %zu bytes at 0x%llx are %s", who, size_bytes, (unsigned long long)address,
                  a == NULL ? "neither the device's nor pinned" : "more than the allocation has");
    return false;
}

bool fake_memory_is_host(const void *address) {
    const struct allocation *a = find(address);
    return a != NULL && a->kind != FAKE_DEVICE;
}

uint64_t fake_memory_free_bytes(void) {
    return fake_settings.memory_bytes > used_bytes ? fake_settings.memory_bytes - used_bytes : 0;
}

uint64_t fake_memory_forget(void) {
    uint64_t count = 0;
    for (; allocations != NULL; count++) (void)fake_memory_destroy(allocations->kind, allocations->address);
    if (area != NULL && munmap(area, area_bytes) != 0) abort();
    area = area_next = area_used = NULL;
    held_write();
    return count;
}
