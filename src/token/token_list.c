/* A list of tokens that grows. */
#include <stdlib.h>

#include "token/tokenizer.h"

void token_list_deinit(struct token_list *list) {
    free(list->ids);
    *list = (struct token_list){0};
}

enum status token_list_append(struct token_list *list, token_id id, struct error *error) {
    if (list->count == list->capacity) {
        size_t capacity = list->capacity < 64 ? 64 : list->capacity + list->capacity / 2;
        token_id *ids = capacity > SIZE_MAX / sizeof *ids ? NULL : realloc(list->ids, capacity * sizeof *ids);
        if (!ids) return error_set(error, STATUS_MEMORY, "no memory for %zu tokens", capacity);
        list->ids = ids;
        list->capacity = capacity;
    }
    list->ids[list->count++] = id;
    return STATUS_OK;
}
