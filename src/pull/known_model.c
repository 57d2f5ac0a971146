#include "pull/known_model.h"

#include <strings.h>

/* KV of a token: layers x 2 x KV heads x dimension x 2 bytes. */
const struct known_model known_models[] = {
    {.name = "llama3.2-1b",
     .repository = "bartowski/Llama-3.2-1B-Instruct-GGUF",
     .file = "Llama-3.2-1B-Instruct-Q4_K_M.gguf",
     .size_bytes = 810000000,
     .context = 131072,
     .kv_bytes = 16 * 2 * 8 * 64 * 2,
     .license = "llama3.2"},
    {.name = "qwen3-4b",
     .repository = "unsloth/Qwen3-4B-Instruct-2507-GGUF",
     .file = "Qwen3-4B-Instruct-2507-Q4_K_M.gguf",
     .size_bytes = 2500000000,
     .context = 262144,
     .kv_bytes = 36 * 2 * 8 * 128 * 2,
     .license = "apache-2.0"},
    {.name = "qwen2.5-7b-1m",
     .repository = "bartowski/Qwen2.5-7B-Instruct-1M-GGUF",
     .file = "Qwen2.5-7B-Instruct-1M-Q4_K_M.gguf",
     .size_bytes = 4680000000,
     .context = 1010000,
     .kv_bytes = 28 * 2 * 4 * 128 * 2,
     .license = "apache-2.0"},
};
const size_t known_model_count = sizeof known_models / sizeof *known_models;

const struct known_model *known_model_find(const char *name) {
    for (size_t i = 0; i < known_model_count; i++)
        if (strcasecmp(known_models[i].name, name) == 0) return &known_models[i];
    return NULL;
}
