#include "kernels/attention/store_floats.h"

void attention_store_avx2_install(struct attention_kernels *kernels) { kernels->store = store_floats; }
