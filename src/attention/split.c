#include "attention/split.h"

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

bool split_stays(const struct split_growth *sequences, size_t count) {
    uint64_t had = 0, wanted = 0;
    for (size_t i = 0; i < count; i++) {
        if (sequences[i].had == 0 && sequences[i].wanted > 0) return false;
        had += sequences[i].had;
        wanted += sequences[i].wanted;
    }
    return had <= wanted && (wanted - had) * SPLIT_GROWTH_SHARE <= had;
}
