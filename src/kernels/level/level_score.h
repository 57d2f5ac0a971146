/* The walk over chunks; the including source defines chunk_score first, of 1 to 4 heads. */
enum { LEVEL_TILE = 4 /* heads scored together */, LEVEL_PREFETCH_CHUNKS = 4 };

FLOATS_INLINE void level_prefetch(const struct level_score_args *args, uint64_t chunk) {
    const char *block = args->blocks[chunk];
    for (size_t i = 0; i < args->layout->bytes; i += 64) floats_prefetch(block + i);
}

/* q . c of a chunk. */
FLOATS_INLINE float level_common(const struct level_layout *layout, const void *block, const float *query) {
    const uint16_t *center = (const uint16_t *)(const void *)((const char *)block + layout->center_offset);
    floats sum = floats_set(0);
    size_t j = 0;
    for (; j + FLOATS <= layout->dimension; j += FLOATS)
        sum = floats_fma(floats_load(query + j), floats_load_half(center + j), sum);
    float common = floats_sum(sum);
    if (j == layout->dimension) return common;
    float part[2][FLOATS] = {{0}}; /* 8 of 16 */
    uint16_t halves[FLOATS] = {0};
    memcpy(part[0], query + j, (layout->dimension - j) * sizeof(float));
    memcpy(halves, center + j, (layout->dimension - j) * sizeof(uint16_t));
    floats_store(part[1], floats_multiply(floats_load(part[0]), floats_load_half(halves)));
    for (size_t i = 0; i < FLOATS; i++) common += part[1][i];
    return common;
}

struct level_tile {
    const struct level_query *query[LEVEL_TILE];
    const int8_t *integers[LEVEL_TILE];
    float common[LEVEL_TILE];
};

static void chunk_score_tile(const struct level_layout *layout, size_t heads, const void *block,
                             const struct level_tile *tile, float *scores, size_t stride) {
    switch (heads) {
    case 1: chunk_score(layout, 1, block, tile->query, tile->integers, tile->common, scores, stride); break;
    case 2: chunk_score(layout, 2, block, tile->query, tile->integers, tile->common, scores, stride); break;
    case 3: chunk_score(layout, 3, block, tile->query, tile->integers, tile->common, scores, stride); break;
    case LEVEL_TILE:
        chunk_score(layout, LEVEL_TILE, block, tile->query, tile->integers, tile->common, scores, stride);
        break;
    }
}

/* All heads of one chunk, its 64 tokens. */
static void chunk_score_heads(const struct level_score_args *args, const void *block, float *scores, size_t stride) {
    const size_t query_bytes = level_query_bytes(args->layout);
    for (size_t first = 0; first < args->heads; first += LEVEL_TILE) {
        const size_t heads = args->heads - first < LEVEL_TILE ? args->heads - first : LEVEL_TILE;
        struct level_tile tile;
        for (size_t head = 0; head < heads; head++) {
            const char *query = (const char *)args->queries + (first + head) * query_bytes;
            tile.query[head] = (const struct level_query *)(const void *)query;
            tile.integers[head] = level_query_integers(args->layout, query);
            tile.common[head] = level_common(args->layout, block, level_query_floats(query));
        }
        chunk_score_tile(args->layout, heads, block, &tile, scores + first * stride, stride);
    }
}

static void level_score(const struct level_score_args *args) {
    if (args->token_begin >= args->token_end) return;
    const uint64_t last = (args->token_end - 1) / KV_CHUNK_TOKENS;
    uint64_t chunk = args->token_begin / KV_CHUNK_TOKENS;
    for (uint64_t next = chunk; next <= last && next < chunk + LEVEL_PREFETCH_CHUNKS; next++)
        level_prefetch(args, next);
    for (; chunk <= last; chunk++) {
        const uint64_t first = chunk * KV_CHUNK_TOKENS, end = first + KV_CHUNK_TOKENS;
        if (args->then != NULL) floats_prefetch(args->then[chunk]);
        if (chunk + LEVEL_PREFETCH_CHUNKS <= last) level_prefetch(args, chunk + LEVEL_PREFETCH_CHUNKS);
        if (first >= args->token_begin && end <= args->token_end) {
            chunk_score_heads(args, args->blocks[chunk], args->scores + (first - args->token_begin), args->stride);
            continue;
        }
        float scores[LEVEL_HEADS_MAX * KV_CHUNK_TOKENS];
        const uint64_t from = first > args->token_begin ? first : args->token_begin;
        const uint64_t to = end < args->token_end ? end : args->token_end;
        chunk_score_heads(args, args->blocks[chunk], scores, KV_CHUNK_TOKENS);
        for (size_t head = 0; head < args->heads; head++)
            memcpy(args->scores + head * args->stride + (from - args->token_begin),
                   scores + head * KV_CHUNK_TOKENS + (from - first), (to - from) * sizeof(float));
    }
}

FLOATS_INSTALL(level, level) { kernels->score = level_score; }
