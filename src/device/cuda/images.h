/* images: the kernels of kernels/ as PTX, which the build puts into the program (cmake/cuda.cmake). */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct cuda_image {
    const char *name; /* "matmul", "matmul_sm90a" */
    /* 80: runs on that and all later cards.  90: on that alone (its matrix instructions are sm_90a's, which no later
     * card has). */
    uint32_t capability;
    const char *ptx; /* ends with a zero */
};

extern const struct cuda_image cuda_images[];
extern const size_t cuda_image_count;
extern const char *const cuda_images_missing; /* why there are none; NULL: there are */
