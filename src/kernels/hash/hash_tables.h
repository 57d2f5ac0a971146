/* The tables of the queries' codes; included by hash_avx2.c, hash_avx512.c and hash_neon.c.
 *
 * H(t), the Hamming distances of a key's code to the codes of a group, is a sum over the nibbles of the key's
 * code: for each nibble position a table of 16 has what each value adds for all heads together.  Two
 * shuffles of bytes then give 32 (64) keys' sums of one byte position, whatever the group.  Sums of bytes
 * overflow after 255 / (8 heads) positions and are widened to 16 bits before; groups of more than 31 heads take
 * several sets of tables.
 */
#pragma once

#include <string.h>

#include "base/checked.h"
#include "kernels/floats.h"
#include "kernels/hash/hash_internal.h"

enum {
    HASH_SET_HEADS = 31,
    HASH_POSITION_BYTES = 32 /* a byte position's tables: low nibble, high nibble, 16 each */
};

FLOATS_INLINE size_t hash_sets(size_t group) { return (group + HASH_SET_HEADS - 1) / HASH_SET_HEADS; }

static size_t hash_tables_bytes(const struct hash_layout *layout, size_t group) {
    return hash_sets(group) * layout->code_bytes * HASH_POSITION_BYTES + 64; /* and the line */
}

/* The lines lie behind the tables. */
FLOATS_INLINE struct hash_line *hash_line_of(const struct hash_score_args *args) {
    uint8_t *scratch = args->scratch;
    return (struct hash_line *)(void *)(scratch + hash_tables_bytes(args->layout, args->group) - 64);
}

/* Heads of set `set` when `group` is dealt out evenly. */
FLOATS_INLINE size_t hash_set_heads(size_t group, size_t set) {
    size_t sets = hash_sets(group);
    return group * (set + 1) / sets - group * set / sets;
}

typedef uint8_t bytes16 __attribute__((vector_size(16)));

/* table[index], indices below 16 */
FLOATS_INLINE bytes16 bytes16_lookup(bytes16 table, bytes16 index) {
#if defined(__aarch64__)
    return (bytes16)vqtbl1q_u8((uint8x16_t)table, (uint8x16_t)index);
#else
    return (bytes16)_mm_shuffle_epi8((__m128i)table, (__m128i)index);
#endif
}

/* tables: [set][code_bytes][2][16] */
static void hash_prepare(const struct hash_score_args *args, uint8_t *tables) {
    *hash_line_of(args) =
        (struct hash_line){(float)(args->group * args->layout->bits), -2, 1.0f / (float)args->layout->bits};
    const bytes16 value = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const bytes16 ones = {0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4};
    const uint8_t *codes = args->codes;
    for (size_t set = 0; set < hash_sets(args->group); set++) {
        size_t heads = hash_set_heads(args->group, set);
        for (size_t byte = 0; byte < args->layout->code_bytes; byte++, tables += HASH_POSITION_BYTES) {
            bytes16 sums[2] = {{0}, {0}};
            for (size_t head = 0; head < heads; head++) {
                uint8_t code = codes[head * args->layout->code_bytes + byte];
                sums[0] += bytes16_lookup(ones, value ^ (uint8_t)(code & 15));
                sums[1] += bytes16_lookup(ones, value ^ (uint8_t)(code >> 4));
            }
            memcpy(tables, sums, sizeof sums);
        }
        codes += heads * args->layout->code_bytes;
    }
}
