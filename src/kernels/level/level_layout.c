/* Where codes, factors and the mean lie in a chunk's block, and the numbers that follow from the layout. */
#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "kernels/level/level_internal.h"
#include "tensor/half.h"

static const float HALF_MAX = 65504;

bool level_fits(size_t dimension, size_t planes) {
    return planes >= 1 && planes <= LEVEL_PLANES_MAX && dimension % 8 == 0 && dimension <= LEVEL_DIMENSION_MAX &&
           dimension * planes % 32 == 0;
}

void level_layout_init(struct level_layout *layout, size_t dimension, size_t planes, bool has_spread) {
    ASSERT(level_fits(dimension, planes));
    layout->dimension = dimension;
    layout->planes = planes;
    layout->factors_offset = dimension * planes / 8 * KV_CHUNK_TOKENS;
    layout->center_offset = layout->factors_offset + KV_CHUNK_TOKENS * sizeof(uint16_t);
    layout->bytes = layout->center_offset + dimension * sizeof(uint16_t);
    layout->spread_offset = has_spread ? layout->bytes : 0;
    if (has_spread) layout->bytes = align_up(layout->spread_offset + dimension, 64);
}

static uint16_t *center_of(const struct level_layout *layout, void *block) {
    return (uint16_t *)(void *)((char *)block + layout->center_offset);
}

void level_set_center(const struct level_layout *layout, void *block, const float *keys) {
    float sums[LEVEL_DIMENSION_MAX] = {0};
    bool fits = true;
    for (size_t t = 0; t < KV_CHUNK_TOKENS; t++)
        for (size_t j = 0; j < layout->dimension; j++) sums[j] += keys[t * layout->dimension + j];
    for (size_t j = 0; j < layout->dimension; j++)
        fits = fits && fabsf(sums[j]) <= HALF_MAX * KV_CHUNK_TOKENS; /* a NaN is not */
    for (size_t j = 0; j < layout->dimension; j++)
        center_of(layout, block)[j] = fits ? float_to_half(sums[j] / KV_CHUNK_TOKENS) : 0;
}

static uint8_t spread_byte(float deviation) {
    const unsigned half = float_to_half(deviation), nearest = (half + 0x40) >> 7;
    if (deviation != deviation) return 0xff;
    return (uint8_t)(nearest < LEVEL_SPREAD_MAX ? nearest : LEVEL_SPREAD_MAX);
}

void level_set_spread(const struct level_layout *layout, void *block, const float *keys) {
    uint8_t *spread = (uint8_t *)block + layout->spread_offset;
    ASSERT(layout->spread_offset != 0);
    for (size_t j = 0; j < layout->dimension; j++) {
        float sum = 0, squares = 0;
        for (size_t t = 0; t < KV_CHUNK_TOKENS; t++) sum += keys[t * layout->dimension + j];
        const float mean = sum / KV_CHUNK_TOKENS;
        for (size_t t = 0; t < KV_CHUNK_TOKENS; t++) {
            const float off = keys[t * layout->dimension + j] - mean;
            squares += off * off;
        }
        spread[j] = spread_byte(sqrtf(squares / KV_CHUNK_TOKENS));
    }
}

float level_step(size_t planes) {
    static const float steps[LEVEL_PLANES_MAX] = {1.5958f, 0.9957f, 0.5860f, 0.3352f,
                                                  0.1881f, 0.1041f, 0.0569f, 0.0308f};
    return steps[planes - 1];
}

/* The numbers of x's levels, and the factor. */
static float round_levels(const float *x, size_t dimension, size_t planes, uint8_t *numbers) {
    double squares = 0, product = 0, own = 0;
    for (size_t j = 0; j < dimension; j++) squares += (double)x[j] * (double)x[j];
    memset(numbers, 0, dimension);
    if (!(squares > 0 && squares < (double)INFINITY)) return (float)squares; /* 0, NaN or too large */
    const float inverse = 1 / (level_step(planes) * (float)sqrt(squares / (double)dimension));
    const int count = 1 << planes;
    for (size_t j = 0; j < dimension; j++) {
        float place = x[j] * inverse + (float)(count / 2);
        int number = !(place > 0) ? 0 : place >= (float)count ? count - 1 : (int)place;
        double level = 2 * number - (count - 1);
        product += level * (double)x[j];
        own += level * level;
        numbers[j] = (uint8_t)number;
    }
    return (float)(product / own);
}

/* Where the bits of coordinate j of a part of so many bits lie: the byte of the token's first, and a shift. */
static size_t field_of(size_t width, size_t token, size_t j, unsigned *shift) {
    const size_t fields = 8 / width, step = j / 4;
    *shift = (unsigned)(step % fields * width);
    return step / fields * LEVEL_WORD_BYTES + token * 4 + j % 4;
}

void level_store(const struct level_layout *layout, void *block, size_t token, const float *key) {
    const size_t dimension = layout->dimension;
    const uint16_t *center = center_of(layout, block);
    float x[LEVEL_DIMENSION_MAX];
    uint8_t numbers[LEVEL_DIMENSION_MAX], *codes = block;
    ASSERT(token < KV_CHUNK_TOKENS);
    for (size_t j = 0; j < dimension; j++) x[j] = key[j] - half_to_float(center[j]);
    const float factor = round_levels(x, dimension, layout->planes, numbers);
    ((uint16_t *)(void *)(codes + layout->factors_offset))[token] =
        float_to_half(factor > HALF_MAX ? HALF_MAX : factor);
    for (size_t left = layout->planes; left > 0;) {
        const size_t width = level_part_width(left), words = level_part_words(layout, width);
        left -= width;
        for (size_t w = 0; w < words; w++) memset(codes + w * LEVEL_WORD_BYTES + token * 4, 0, 4);
        for (size_t j = 0; j < dimension; j++) {
            unsigned shift;
            uint8_t *byte = codes + field_of(width, token, j, &shift);
            const unsigned part = (unsigned)numbers[j] >> left & ((1u << width) - 1);
            *byte |= (uint8_t)(part << shift);
        }
        codes += words * LEVEL_WORD_BYTES;
    }
}

void level_load(const struct level_layout *layout, const void *block, size_t token, int *levels, float *factor) {
    const uint8_t *codes = block;
    ASSERT(token < KV_CHUNK_TOKENS);
    *factor = half_to_float(((const uint16_t *)(const void *)(codes + layout->factors_offset))[token]);
    memset(levels, 0, layout->dimension * sizeof *levels);
    for (size_t left = layout->planes; left > 0;) {
        const size_t width = level_part_width(left);
        left -= width;
        for (size_t j = 0; j < layout->dimension; j++) {
            unsigned shift;
            const uint8_t *byte = codes + field_of(width, token, j, &shift);
            levels[j] |= (int)((*byte >> shift & ((1u << width) - 1)) << left);
        }
        codes += level_part_words(layout, width) * LEVEL_WORD_BYTES;
    }
    for (size_t j = 0; j < layout->dimension; j++) levels[j] = 2 * levels[j] - ((1 << layout->planes) - 1);
}

size_t level_query_bytes(const struct level_layout *layout) {
    return align_up(sizeof(struct level_query) + layout->dimension * (sizeof(float) + 1), 64);
}

void level_prepare(const struct level_layout *layout, const float *q, void *query) {
    struct level_query *head = query;
    float *floats = (float *)(void *)(head + 1), greatest = 0;
    int8_t *integers = (int8_t *)(floats + layout->dimension);
    int sum = 0;
    for (size_t j = 0; j < layout->dimension; j++)
        if (!(fabsf(q[j]) <= greatest) && greatest == greatest) greatest = fabsf(q[j]); /* NaN stays */
    const float inverse = greatest > 0 && greatest < INFINITY ? 127 / greatest : 0;
    for (size_t j = 0; j < layout->dimension; j++) {
        int integer = inverse > 0 ? (int)lrintf(q[j] * inverse) : 0;
        floats[j] = q[j];
        integers[j] = (int8_t)integer;
        sum += integer;
    }
    head->step = greatest / 127;
    head->offset = head->step * (float)(((1 << layout->planes) - 1) * sum);
}
