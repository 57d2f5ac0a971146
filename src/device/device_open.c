#include "device/device_open.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/size.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/weight_layout.h"

enum { CARDS_MAX = 1000 }; /* a larger number is a typo */

static enum status cuda_open(struct device **device, const struct device_request *request, uint32_t index,
                             struct error *error) {
    const struct cuda_device_options options = {.index = index, .thread_count = request->options.thread_count};
    return device_cuda_create(device, &options, error);
}

/* Whether the weights fit the card; if not, it is closed again. */
static bool cuda_holds(struct device *device, uint32_t index, uint64_t weights_bytes, struct error *why) {
    char available[32], needed[32], beside[32];
    const uint64_t free_bytes = device_memory_free(device);
    const bool works = device_state(device, why) == STATUS_OK;
    if (works && free_bytes >= weights_bytes + DEVICE_BESIDE_WEIGHTS_BYTES) return true;
    if (works)
        error_set(why, STATUS_MEMORY,
                  "cuda:%u is not used: %s of its memory are free, the weights need %s, all else at least %s", index,
                  bytes_text(free_bytes, available, sizeof available), bytes_text(weights_bytes, needed, sizeof needed),
                  bytes_text(DEVICE_BESIDE_WEIGHTS_BYTES, beside, sizeof beside));
    device_destroy(device);
    return false;
}

/* 0: *why says why there is none. */
static uint32_t cuda_count(struct error *why) {
    struct cuda_driver driver;
    uint32_t count = 0;
    if (cuda_driver_open(&driver, NULL, why) != STATUS_OK) return 0;
    if (cuda_device_count(&driver, &count, why) != STATUS_OK) count = 0;
    cuda_driver_close(&driver);
    return count;
}

static enum status auto_open(struct device **device, const struct device_request *request, struct error *why,
                             struct error *error) {
    const uint32_t count = cuda_count(why);
    for (uint32_t index = 0; index < count; index++)
        if (cuda_open(device, request, index, why) == STATUS_OK &&
            cuda_holds(*device, index, request->weights_bytes, why)) {
            if (why != NULL) *why = (struct error){.status = STATUS_OK}; /* of a card before it */
            return STATUS_OK;
        }
    return device_cpu_create(device, &request->options, error);
}

/* "cuda" or "cuda:N"; llama.cpp has "CUDA0". */
static bool cuda_index(const char *name, uint32_t *index) {
    char *end = NULL;
    *index = 0;
    if (strncasecmp(name, "cuda", 4) != 0) return false;
    if (name[4] == '\0') return true;
    name += name[4] == ':' ? 5 : 4;
    if (*name < '0' || *name > '9') return false;
    const unsigned long number = strtoul(name, &end, 10);
    *index = (uint32_t)number;
    return *end == '\0' && number < CARDS_MAX;
}

enum status device_open(struct device **device, const struct device_request *request, struct error *why,
                        struct error *error) {
    uint32_t index;
    const char *name = request->name;
    if (why != NULL) *why = (struct error){.status = STATUS_OK};
    if (name == NULL || strcmp(name, "cpu") == 0 || strcmp(name, "none") == 0)
        return device_cpu_create(device, &request->options, error);
    if (strcmp(name, "auto") == 0) return auto_open(device, request, why, error);
    if (cuda_index(name, &index)) return cuda_open(device, request, index, error);
    return error_set(error, STATUS_USAGE, "device %.60s: expected auto, cpu, cuda or cuda:N", name);
}

uint64_t device_card_bytes(enum tensor_type type, uint64_t elements) {
    const struct tensor_type_info *info = tensor_type_info(weight_plane_type(type));
    const uint64_t bytes = elements / info->block_elements * info->block_bytes, area = 2 << 20;
    return bytes < area / 2 ? bytes : (bytes + area - 1) / area * area; /* drivers give memory in such areas */
}
