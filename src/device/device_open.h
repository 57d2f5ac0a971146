/* device_open: the device that a name stands for. */
#pragma once

#include "device/device.h"
#include "tensor/type.h"

struct device_request {
    /* "cpu"; "cuda", the first card, or "cuda:N"; "auto": the first card that has memory for the weights, else cpu.
     * NULL: cpu. */
    const char *name;
    uint64_t weights_bytes;        /* for auto */
    struct device_options options; /* of the processor */
};

/* why (may be NULL): of auto, why no card was taken; STATUS_OK: one was.
 * STATUS_USAGE: there is no device of that name.  STATUS_UNSUPPORTED: what is missing. */
enum status device_open(struct device **device, const struct device_request *request, struct error *why,
                        struct error *error) STATUS_CHECKED;

/* What `elements` weights of a type take of a card: the bytes of the file, more where it has them as halves, and from
 * 1 MiB on whole areas of 2. */
uint64_t device_card_bytes(enum tensor_type type, uint64_t elements);
