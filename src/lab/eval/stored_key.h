/* stored_key: a key as it is stored, for measurements that compute attention plainly. */
#pragma once

#include "kernels/attention/kv_layout.h"

/* Token `token` of a chunk in host memory, as floats: [k_dimension]. */
void stored_key_read(const struct kv_layout *layout, const void *chunk, size_t token, float *key);
