/* Device memory has no permissions but while a task runs, and a task runs only within a call of the driver: host code
 * that touches it ends with a signal. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "device/cuda/fake/fake_internal.h"

enum { PAGE = 4096, POISON = 0xff, POISON_BYTES_MAX = 64 << 20 };

struct allocation {
    enum fake_memory_kind kind;
    uint8_t *address;
    size_t size_bytes;
    struct allocation *next;
};

static struct allocation *allocations;
static uint64_t used_bytes;
static unsigned open_count;

static size_t whole(size_t size_bytes) { return (size_bytes + PAGE - 1) / PAGE * PAGE; }

static struct allocation *find(const void *address) {
    const uint8_t *byte = address;
    for (struct allocation *a = allocations; a != NULL; a = a->next)
        if (byte >= a->address && byte < a->address + a->size_bytes) return a;
    return NULL;
}

/* With a page behind it that nobody may touch. */
static void *area_create(enum fake_memory_kind kind, size_t size_bytes) {
    const size_t bytes = whole(size_bytes);
    void *area = mmap(NULL, bytes + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (area == MAP_FAILED) return NULL;
    if (mprotect(area, bytes, PROT_READ | PROT_WRITE) != 0) abort();
    memset(area, POISON, bytes < POISON_BYTES_MAX ? bytes : POISON_BYTES_MAX);
    if (kind == FAKE_DEVICE && open_count == 0 && mprotect(area, bytes, PROT_NONE) != 0) abort();
    return area;
}

enum cu_result fake_memory_create(enum fake_memory_kind kind, void *address, size_t size_bytes,
                                  void **result) {
    if (size_bytes == 0) return CU_INVALID_VALUE;
    if (kind == FAKE_DEVICE && size_bytes > fake_memory_free_bytes()) return CU_OUT_OF_MEMORY;
    if (kind == FAKE_REGISTERED) {
        if ((uintptr_t)address % PAGE != 0) return CU_INVALID_VALUE;
        if (find(address) != NULL || find((uint8_t *)address + size_bytes - 1) != NULL)
            return (enum cu_result)712; /* already registered */
    }
    struct allocation *made = malloc(sizeof *made);
    void *area = kind == FAKE_REGISTERED ? address : area_create(kind, size_bytes);
    if (made == NULL || area == NULL) {
        free(made);
        return CU_OUT_OF_MEMORY;
    }
    *made = (struct allocation){kind, area, size_bytes, allocations};
    allocations = made;
    if (kind == FAKE_DEVICE) used_bytes += whole(size_bytes);
    if (result != NULL) *result = area;
    return CU_SUCCESS;
}

enum cu_result fake_memory_destroy(enum fake_memory_kind kind, void *address) {
    for (struct allocation **place = &allocations; *place != NULL; place = &(*place)->next) {
        struct allocation *a = *place;
        if (a->address != address || a->kind != kind) continue;
        *place = a->next;
        if (kind == FAKE_DEVICE) used_bytes -= whole(a->size_bytes);
        /* The address stays taken and out of reach, so that a late user of it is found out. */
        if (kind != FAKE_REGISTERED &&
            mmap(address, whole(a->size_bytes), PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
            abort();
        free(a);
        return CU_SUCCESS;
    }
    return kind == FAKE_REGISTERED ? (enum cu_result)713 : CU_INVALID_VALUE;
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

static void protect(int protection) {
    for (struct allocation *a = allocations; a != NULL; a = a->next)
        if (a->kind == FAKE_DEVICE && mprotect(a->address, whole(a->size_bytes), protection) != 0) abort();
}

void fake_memory_open(void) {
    if (open_count++ == 0) protect(PROT_READ | PROT_WRITE);
}

void fake_memory_close(void) {
    if (--open_count == 0) protect(PROT_NONE);
}

uint64_t fake_memory_forget(void) {
    uint64_t count = 0;
    for (; allocations != NULL; count++) {
        const enum fake_memory_kind kind = allocations->kind;
        (void)fake_memory_destroy(kind, allocations->address);
    }
    return count;
}
