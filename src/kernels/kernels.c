#include "kernels/kernels.h"

void kernels_init(struct kernels *kernels, cpu_mask mask) {
    abstract_kernels_init(&kernels->abstract, mask);
    activation_kernels_init(&kernels->activation, mask);
    attention_kernels_init(&kernels->attention, mask);
    codec_kernels_init(&kernels->codec, mask);
    convert_kernels_init(&kernels->convert, mask);
    group_kernels_init(&kernels->group, mask);
    hash_kernels_init(&kernels->hash, mask);
    level_kernels_init(&kernels->level, mask);
    mass_kernels_init(&kernels->mass, mask);
    matmul_kernels_init(&kernels->matmul, mask);
    matvec_kernels_init(&kernels->matvec, mask);
    norm_kernels_init(&kernels->norm, mask);
    project_kernels_init(&kernels->project, mask);
    recurrence_kernels_init(&kernels->recurrence, mask);
    rope_kernels_init(&kernels->rope, mask);
    score_kernels_init(&kernels->score, mask);
    top_k_kernels_init(&kernels->top_k, mask);
}
