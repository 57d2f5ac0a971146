#include "kernels/matvec/matvec.h"

#include <string.h>

#include "kernels/matvec/matvec_internal.h"

void matvec_kernels_init(struct matvec_kernels *kernels, cpu_mask mask) {
    memset(kernels, 0, sizeof *kernels);
    matvec_init_ref(kernels);
    (void)mask;
}
