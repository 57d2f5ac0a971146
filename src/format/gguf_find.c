/* Finds entries and tensors by name, in the orders that the parser sorted. */
#include <stdlib.h>
#include <string.h>

#include "format/gguf_internal.h"

static int compare_key(const void *wanted, const void *entry) {
    return gguf_string_compare(*(const struct gguf_string *)wanted, (*(struct gguf_entry *const *)entry)->key);
}

static int compare_name(const void *wanted, const void *tensor) {
    return gguf_string_compare(*(const struct gguf_string *)wanted, (*(struct gguf_tensor *const *)tensor)->name);
}

const struct gguf_entry *gguf_find(const struct gguf *gguf, const char *key) {
    const struct gguf_string wanted = {key, strlen(key)};
    if (gguf->index == NULL) return NULL;
    struct gguf_entry *const *found =
        bsearch(&wanted, gguf->index->entries, gguf->entry_count, sizeof *gguf->index->entries, compare_key);
    return found != NULL ? *found : NULL;
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *gguf, const char *name) {
    const struct gguf_string wanted = {name, strlen(name)};
    if (gguf->index == NULL) return NULL;
    struct gguf_tensor *const *found =
        bsearch(&wanted, gguf->index->tensors, gguf->tensor_count, sizeof *gguf->index->tensors, compare_name);
    return found != NULL ? *found : NULL;
}
