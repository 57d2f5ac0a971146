#include "kernels/kernels.h"

void kernels_init(struct kernels *kernels, cpu_mask mask) {
    activation_kernels_init(&kernels->activation, mask);
    attention_kernels_init(&kernels->attention, mask);
    convert_kernels_init(&kernels->convert, mask);
    matmul_kernels_init(&kernels->matmul, mask);
    matvec_kernels_init(&kernels->matvec, mask);
    norm_kernels_init(&kernels->norm, mask);
    rope_kernels_init(&kernels->rope, mask);
}
