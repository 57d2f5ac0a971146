/* Any bytes as a safetensors file: refused with a reason, or every tensor is inside. */
#include <string.h>

#include "base/assert.h"
#include "lab/import/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t sink;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct safetensors safetensors;
    struct error error = {0};
    if (safetensors_open_memory(&safetensors, data, size, "fuzz", &error) != STATUS_OK) {
        ASSERT(error.message[0] != '\0' && strchr(error.message, '\n') == NULL);
        return 0;
    }
    for (uint64_t i = 0; i < safetensors.tensor_count; i++) {
        const struct safetensors_tensor *tensor = &safetensors.tensors[i];
        ASSERT(safetensors_find(&safetensors, tensor->name) == tensor);
        ASSERT(tensor->data >= data && tensor->data + tensor->size_bytes <= data + size);
        for (uint64_t j = 0; j < tensor->size_bytes; j++) sink += tensor->data[j];
    }
    safetensors_close(&safetensors);
    return 0;
}
