/* kernels: every operation's table, filled for what this processor may use. */
#ifndef LOAM_KERNELS_KERNELS_H
#define LOAM_KERNELS_KERNELS_H

#include "kernels/activation/activation.h"
#include "kernels/attention/attention.h"
#include "kernels/convert/convert.h"
#include "kernels/matmul/matmul.h"
#include "kernels/matvec/matvec.h"
#include "kernels/norm/norm.h"
#include "kernels/rope/rope.h"

struct kernels {
    struct activation_kernels activation;
    struct attention_kernels attention;
    struct convert_kernels convert;
    struct matmul_kernels matmul;
    struct matvec_kernels matvec;
    struct norm_kernels norm;
    struct rope_kernels rope;
};

void kernels_init(struct kernels *kernels, cpu_mask mask);

#endif
