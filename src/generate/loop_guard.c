#include "generate/loop_guard.h"

/* The tokens that a cycle of this length has to fill. */
static size_t tokens_of(size_t period) {
    const size_t rounds = LOOP_ROUNDS * period;
    return rounds > LOOP_TOKENS ? rounds : LOOP_TOKENS;
}

bool loop_guard_finds(const token_id *tokens, size_t count) {
    for (size_t period = 1; period <= LOOP_PERIOD_MAX; period++) {
        const size_t wanted = tokens_of(period);
        if (count < wanted) break;
        size_t same = period;
        while (same < wanted && tokens[count - same + period - 1] == tokens[count - same - 1]) same++;
        if (same == wanted) return true;
    }
    return false;
}
