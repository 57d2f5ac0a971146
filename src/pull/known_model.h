/* known_model: models with a short name, chosen for long contexts. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct known_model {
    const char *name;
    const char *repository, *file; /* at the registry */
    uint64_t size_bytes;           /* rounded */
    uint64_t context;              /* tokens that it was made for */
    uint64_t kv_bytes;             /* of a token, as f16 */
    const char *license;
};

extern const struct known_model known_models[];
extern const size_t known_model_count;

const struct known_model *known_model_find(const char *name); /* NULL: none */
