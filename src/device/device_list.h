/* device_list: what this machine has to compute with, and why something of it cannot be used. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { DEVICE_LIST_MAX = 32 };

struct device_summary {
    char name[16];                            /* "cpu", "cuda:0" */
    char model[128];                          /* the processor's or the card's own name */
    uint64_t memory_bytes, memory_free_bytes; /* 0: unknown */
    char abilities[200];                      /* for people: "compute 9.0, 132 multiprocessors" */
    struct error reason;                      /* why it cannot be used; STATUS_OK: it can */
};

struct device_list {
    struct device_summary devices[DEVICE_LIST_MAX];
    size_t count;
    struct error no_cuda; /* why there is no card to list; STATUS_OK: there is one */
};

/* Opens each card for a moment, which takes a fraction of a second. */
void device_list_read(struct device_list *list);
