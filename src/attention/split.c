#include "attention/split.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/assert.h"

/* Seconds that the link needs for a token. */
static double input_seconds(const struct split_question *question) {
    return question->schedule == SPLIT_COLUMN ? question->input_bytes / question->bytes_per_second : 0;
}

static double kv_seconds(const struct split_question *question) {
    return question->kv_bytes / question->bytes_per_second;
}

double split_seconds(const struct split_question *question, uint64_t l) {
    const double computed = question->seconds_per_token * (double)l,
                 read = kv_seconds(question) * (double)(question->token_count - l);
    return input_seconds(question) * (double)l + (computed > read ? computed : read);
}

struct split split_choose(const struct split_question *question) {
    ASSERT(question->tile_tokens > 0 && question->bytes_per_second > 0 && question->seconds_per_token >= 0);
    ASSERT(question->tokens_max <= question->token_count);
    const uint64_t tile = question->tile_tokens, most = question->tokens_max / tile * tile;
    const double k = kv_seconds(question), slope = question->seconds_per_token + k;
    struct split split = {.seconds = split_seconds(question, 0)};
    split.seconds_without = split.seconds;
    if (input_seconds(question) >= k || slope <= 0) return split;
    const double crossing = k * (double)question->token_count / slope;
    const uint64_t below = crossing >= (double)most ? most : (uint64_t)crossing / tile * tile;
    for (uint64_t l = below; l <= most && l <= below + tile; l += tile) {
        const double seconds = split_seconds(question, l);
        if (seconds < split.seconds) split = (struct split){l, seconds, split.seconds_without};
    }
    return split;
}

const char *split_text(const struct split_question *question, const struct split *split, char *buffer,
                       size_t buffer_bytes) {
    const double ratio = question->input_bytes / question->kv_bytes;
    if (split->tokens > 0)
        snprintf(buffer, buffer_bytes,
                 "%" PRIu64 " of %" PRIu64
                 " tokens are computed again: their inputs are %.2f times the bytes of "
                 "their KV, the link moves %.0f MB/s, a token takes %.1f us",
                 split->tokens, question->token_count, ratio, question->bytes_per_second / 1e6,
                 question->seconds_per_token * 1e6);
    else if (question->tokens_max < question->tile_tokens)
        snprintf(buffer, buffer_bytes, "nothing is computed again: no inputs are kept of what is read");
    else if (ratio >= 1 && question->schedule == SPLIT_COLUMN)
        snprintf(buffer, buffer_bytes,
                 "nothing is computed again: the layers' inputs would move %.1f times the bytes of KV",
                 ratio);
    else
        snprintf(buffer, buffer_bytes,
                 "nothing is computed again: a token takes %.1f us, reading its KV %.1f us",
                 question->seconds_per_token * 1e6, kv_seconds(question) * 1e6);
    return buffer;
}
