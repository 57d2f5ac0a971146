/* Keys as they are stored, as floats. */
#include "device/cpu/cpu_scorer_internal.h"

void cpu_load_keys(const struct cpu_device *device, const struct build_unit *unit,
                   const struct build_scratch *scratch) {
    for (size_t token = unit->token_begin; token < unit->token_end; token++) {
        float *key = scratch->keys + (token - unit->token_begin) * unit->kv->k_dimension;
        if (unit->kv->k_type == KV_F16)
            device->kernels.convert.dequantize[TENSOR_F16](kv_k_row(unit->kv, unit->chunk, token), key,
                                                           unit->kv->k_dimension);
        else
            device->kernels.attention.load(unit->kv, unit->chunk, token, key, scratch->value);
    }
}
