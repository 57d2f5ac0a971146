#include "attention/split.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/assert.h"

/* Seconds that the link needs for a token. */
static double input_seconds(const struct split_question *question) {
    return question->schedule == SPLIT_ROW ? 0 : question->input_bytes / question->bytes_per_second;
}

static double kv_seconds(const struct split_question *question) {
    return question->kv_bytes / question->bytes_per_second;
}

/* Until all of l tokens are computed, and what memory had no room for meanwhile is read. */
static double computed_seconds(const struct split_question *question, uint64_t l) {
    const double x = input_seconds(question), c = question->seconds_per_token, tokens = (double)l;
    if (question->schedule != SPLIT_OVERLAPPED) return (x + c) * tokens;
    const uint64_t others = question->token_count - l;
    const double first = (double)(l < question->first_tokens ? l : question->first_tokens),
                 held = (double)(others < question->held_tokens ? others : question->held_tokens),
                 bound_by_computing = x * first + c * tokens + question->seconds_per_read * held +
                                      kv_seconds(question) * ((double)others - held),
                 bound_by_link = x * tokens + c * first;
    return bound_by_computing > bound_by_link ? bound_by_computing : bound_by_link;
}

/* Until the link has moved everything. */
static double read_seconds(const struct split_question *question, uint64_t l) {
    return input_seconds(question) * (double)l + kv_seconds(question) * (double)(question->token_count - l);
}

double split_seconds(const struct split_question *question, uint64_t l) {
    const double computed = computed_seconds(question, l), read = read_seconds(question, l);
    return computed > read ? computed : read;
}

/* Every l is tried: some 10 ns each, while a tile takes some 100 us to compute or to read. */
struct split split_choose(const struct split_question *question) {
    ASSERT(question->tile_tokens > 0 && question->bytes_per_second > 0 && question->seconds_per_token >= 0);
    ASSERT(question->tokens_max <= question->token_count && question->seconds_per_read >= 0);
    struct split split = {.seconds = split_seconds(question, 0)};
    split.seconds_without = split.seconds;
    for (uint64_t l = question->tile_tokens; l <= question->tokens_max; l += question->tile_tokens) {
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
    else if (ratio >= 1 && question->schedule != SPLIT_ROW)
        snprintf(buffer, buffer_bytes,
                 "nothing is computed again: the layers' inputs would move %.1f times the bytes of KV",
                 ratio);
    else
        snprintf(buffer, buffer_bytes,
                 "nothing is computed again: a token takes %.1f us, reading its KV %.1f us",
                 question->seconds_per_token * 1e6, kv_seconds(question) * 1e6);
    return buffer;
}
