/* The walk over chunks of hash scores; the including source defines hash_prepare and chunk_score first. */
enum { HASH_PREFETCH_CHUNKS = 4 /* prefetched */ };

FLOATS_INLINE void hash_prefetch(const struct hash_score_args *args, uint64_t chunk) {
    const char *block = args->blocks[chunk];
    for (size_t i = 0; i < args->layout->bytes; i += 64) floats_prefetch(block + i);
}

FLOATS_INLINE void hash_score_shaped(const size_t code_bytes, const struct hash_score_args *args) {
    if (args->token_begin >= args->token_end) return;
    const uint64_t last = (args->token_end - 1) / KV_CHUNK_TOKENS;
    uint64_t chunk = args->token_begin / KV_CHUNK_TOKENS;
    hash_prepare(args, args->scratch);
    for (uint64_t next = chunk; next <= last && next < chunk + HASH_PREFETCH_CHUNKS; next++) hash_prefetch(args, next);
    for (; chunk <= last; chunk++) {
        uint64_t first = chunk * KV_CHUNK_TOKENS, end = first + KV_CHUNK_TOKENS;
        if (args->then != NULL) floats_prefetch(args->then[chunk]);
        const char *ahead = args->blocks[chunk + HASH_PREFETCH_CHUNKS <= last ? chunk + HASH_PREFETCH_CHUNKS : last];
        if (first >= args->token_begin && end <= args->token_end) {
            chunk_score(code_bytes, args, args->blocks[chunk], ahead, args->scores + (first - args->token_begin));
            continue;
        }
        float scores[KV_CHUNK_TOKENS];
        uint64_t from = first > args->token_begin ? first : args->token_begin;
        uint64_t to = end < args->token_end ? end : args->token_end;
        chunk_score(code_bytes, args, args->blocks[chunk], ahead, scores);
        memcpy(args->scores + (from - args->token_begin), scores + (from - first), (to - from) * sizeof(float));
    }
}

static void hash_score(const struct hash_score_args *args) {
    if (args->layout->code_bytes == 16)
        hash_score_shaped(16, args);
    else if (args->layout->code_bytes == 32)
        hash_score_shaped(32, args);
    else
        hash_score_shaped(args->layout->code_bytes, args);
}
