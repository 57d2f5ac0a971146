#include "server/document_id.h"

#include <string.h>

uint64_t document_id_of_path(const struct exchange *exchange, const char *suffix) {
    static const char folder[] = "/v1/loam/documents/";
    const char *path = exchange_path(exchange);
    const size_t before = sizeof folder - 1, after = strlen(suffix), length = strlen(path);
    uint64_t id = 0;
    if (length <= before + after || memcmp(path, folder, before) != 0 || strcmp(path + length - after, suffix) != 0)
        return 0;
    const char *digits = path + before;
    const size_t count = length - before - after;
    if (count > 18 || digits[0] == '0') return 0;
    for (size_t i = 0; i < count; i++) {
        if (digits[i] < '0' || digits[i] > '9') return 0;
        id = id * 10 + (uint64_t)(digits[i] - '0');
    }
    return id;
}

void document_id_reply_none(struct exchange *exchange) { exchange_refuse(exchange, 404, "there is no such document"); }
