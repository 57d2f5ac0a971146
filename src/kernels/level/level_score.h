/* The walk over chunks; the including source defines chunk_score first, of 1 to 4 heads. */
enum { LEVEL_TILE = 4 /* heads scored together */, LEVEL_PREFETCH_CHUNKS = 4 };

FLOATS_INLINE void level_prefetch(const struct level_score_args *args, uint64_t chunk) {
    const char *block = args->blocks[chunk];
    for (size_t i = 0; i < args->layout->bytes; i += 64) floats_prefetch(block + i);
}

/* x . y, dimension a multiple of 8. */
FLOATS_INLINE float level_product(const float *x, const uint16_t *y, size_t dimension) {
    floats sum = floats_set(0);
    size_t j = 0;
    for (; j + FLOATS <= dimension; j += FLOATS) sum = floats_fma(floats_load(x + j), floats_load_half(y + j), sum);
    float product = floats_sum(sum);
    if (j == dimension) return product;
    float part[2][FLOATS] = {{0}}; /* 8 of 16 */
    uint16_t halves[FLOATS] = {0};
    memcpy(part[0], x + j, (dimension - j) * sizeof(float));
    memcpy(halves, y + j, (dimension - j) * sizeof(uint16_t));
    floats_store(part[1], floats_multiply(floats_load(part[0]), floats_load_half(halves)));
    for (size_t i = 0; i < FLOATS; i++) product += part[1][i];
    return product;
}

/* q . c of a chunk. */
FLOATS_INLINE float level_common(const struct level_layout *layout, const void *block, const float *query) {
    const uint16_t *center = (const uint16_t *)(const void *)((const char *)block + layout->center_offset);
    return level_product(query, center, layout->dimension);
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

/* Of one head; chunks are few enough to stay in L2 from head to head. */
static void level_chunks_score(const struct level_chunks_args *args, size_t head, size_t first, size_t end) {
    const struct level_layout *layout = args->layout;
    const float *query = level_query_floats((const char *)args->queries + head * level_query_bytes(layout));
    float sizes[LEVEL_DIMENSION_MAX];
    for (size_t j = 0; j < layout->dimension; j++) sizes[j] = fabsf(args->q[head * args->q_stride + j]);
    for (size_t chunk = first; chunk < end; chunk++) {
        const char *block = args->blocks[chunk],
                   *ahead = args->blocks[chunk + LEVEL_PREFETCH_CHUNKS < end ? chunk + LEVEL_PREFETCH_CHUNKS : chunk];
        const uint8_t *spread = (const uint8_t *)block + layout->spread_offset;
        uint16_t halves[LEVEL_DIMENSION_MAX];
        for (size_t i = layout->center_offset; head == 0 && i < layout->bytes; i += 64) floats_prefetch(ahead + i);
        for (size_t j = 0; j < layout->dimension; j++) halves[j] = level_spread_half(spread[j]);
        args->scores[head * args->stride + chunk] =
            level_common(layout, block, query) + level_product(sizes, halves, layout->dimension);
    }
}

static void level_chunks(const struct level_chunks_args *args) {
    enum { CHUNKS = 256 };
    for (size_t first = 0; first < args->count; first += CHUNKS)
        for (size_t head = 0; head < args->heads; head++)
            level_chunks_score(args, head, first, first + CHUNKS < args->count ? first + CHUNKS : args->count);
}

FLOATS_INSTALL(level, level) {
    kernels->score = level_score;
    kernels->chunks = level_chunks;
}
