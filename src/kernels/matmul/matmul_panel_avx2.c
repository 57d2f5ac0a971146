/* Weights of every quantised type, from the file's blocks to panels (matmul_panel_internal.h).
 *
 * All types hold the codes of neighbouring columns in neighbouring bytes, so the work is always
 * the same: take 16 bytes of each of 8 rows, transpose them as 4-byte groups (12 instructions for
 * 128 bytes), and split bytes into codes while they lie in registers.  About 0.3 instructions
 * per weight; at 32 inputs a weight costs 12 instructions in the multiplication.
 */
#include <immintrin.h>
#include <string.h>

#include "base/assert.h"
#include "kernels/convert/codes.h"
#include "kernels/convert/grid.h"
#include "kernels/floats.h"
#include "kernels/matmul/matmul.h"
#include "kernels/matmul/matmul_panel_internal.h"
#include "tensor/block.h"
#include "tensor/half.h"

/* 16 bytes of each row: out[j] holds bytes 4j..4j+3 of rows 0..7. */
static inline void rows_transpose(const uint8_t *const row[8], size_t offset, __m256i out[4]) {
    __m256i pair[4];
    for (size_t r = 0; r < 4; r++) {
        __m128i low = _mm_loadu_si128((const __m128i *)(const void *)(row[r] + offset));
        __m128i high = _mm_loadu_si128((const __m128i *)(const void *)(row[r + 4] + offset));
        pair[r] = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    }
    __m256i a = _mm256_unpacklo_epi32(pair[0], pair[1]), b = _mm256_unpackhi_epi32(pair[0], pair[1]);
    __m256i c = _mm256_unpacklo_epi32(pair[2], pair[3]), d = _mm256_unpackhi_epi32(pair[2], pair[3]);
    out[0] = _mm256_unpacklo_epi64(a, c);
    out[1] = _mm256_unpackhi_epi64(a, c);
    out[2] = _mm256_unpacklo_epi64(b, d);
    out[3] = _mm256_unpackhi_epi64(b, d);
}

/* A half-precision number of each row. */
static inline __m256 halves_get(const uint8_t *const row[8], size_t offset) {
    uint16_t halves[8];
    for (size_t r = 0; r < 8; r++) memcpy(&halves[r], row[r] + offset, 2);
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)halves));
}

/* A 32-bit word of each row. */
static inline __m256i words_get(const uint8_t *const row[8], size_t offset) {
    uint32_t words[8];
    for (size_t r = 0; r < 8; r++) memcpy(&words[r], row[r] + offset, 4);
    return _mm256_loadu_si256((const __m256i *)(const void *)words);
}

static inline __m256i low_nibbles(__m256i bytes) { return _mm256_and_si256(bytes, _mm256_set1_epi8(15)); }
static inline __m256i high_nibbles(__m256i bytes) { return low_nibbles(_mm256_srli_epi16(bytes, 4)); }

/* Bits `shift` and up of each byte, `mask` of them, moved to bit `target`. */
static inline __m256i bits_get(__m256i bytes, int shift, int mask, int target) {
    __m256i field = _mm256_and_si256(_mm256_srli_epi16(bytes, shift), _mm256_set1_epi8((char)mask));
    return _mm256_slli_epi16(field, target);
}

static inline void codes_store(struct code_panel *panel, size_t half, size_t step, __m256i codes) {
    _mm256_store_si256((__m256i *)(void *)panel->codes[step][half * 8], codes);
}

/* --- blocks of 32 ------------------------------------------------------------------------ */

static void q4_0_unpack(const uint8_t *const row[8], size_t block_count, size_t half, struct code_panel *panel) {
    for (size_t b = 0; b < block_count; b++, panel++) {
        size_t base = b * sizeof(struct block_q4_0);
        __m256i bytes[4];
        rows_transpose(row, base + offsetof(struct block_q4_0, qs), bytes);
        for (size_t j = 0; j < 4; j++) {
            codes_store(panel, half, j, low_nibbles(bytes[j]));
            codes_store(panel, half, j + 4, high_nibbles(bytes[j]));
        }
        floats_store(panel->scale + half * 8, halves_get(row, base));
    }
}

/* d·q + m = d·(q - offset) + (m + offset·d) */
static inline void scales_store_m(struct code_panel *panel, size_t half, __m256 d, __m256 m, float offset) {
    floats_store(panel->scale + half * 8, d);
    floats_store(panel->minimum[0] + half * 8, _mm256_fmadd_ps(d, _mm256_set1_ps(offset), m));
}

static void q4_1_unpack(const uint8_t *const row[8], size_t block_count, size_t half, struct code_panel *panel) {
    for (size_t b = 0; b < block_count; b++, panel++) {
        size_t base = b * sizeof(struct block_q4_1);
        __m256i bytes[4];
        rows_transpose(row, base + offsetof(struct block_q4_1, qs), bytes);
        for (size_t j = 0; j < 4; j++) {
            codes_store(panel, half, j, low_nibbles(bytes[j]));
            codes_store(panel, half, j + 4, high_nibbles(bytes[j]));
        }
        scales_store_m(panel, half, halves_get(row, base), halves_get(row, base + 2), 0);
    }
}

/* Bits 4·step .. 4·step + 3 of each row's word, one per byte, as 0 or 16. */
static inline __m256i fifth_bits(__m256i words, int step) {
    __m256i index = _mm256_add_epi32(_mm256_set1_epi32((step / 2) * 0x01010101),
                                     _mm256_broadcastsi128_si256(_mm_set_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0)));
    __m256i bit = _mm256_set1_epi32(step % 2 == 0 ? 0x08040201 : (int)0x80402010u);
    __m256i byte = _mm256_and_si256(_mm256_shuffle_epi8(words, index), bit);
    return _mm256_and_si256(_mm256_cmpeq_epi8(byte, bit), _mm256_set1_epi8(16));
}

static inline void five_bit_codes(const uint8_t *const row[8], size_t high, size_t low, size_t half,
                                  struct code_panel *panel) {
    __m256i bytes[4], words = words_get(row, high);
    rows_transpose(row, low, bytes);
    for (int j = 0; j < 4; j++) {
        codes_store(panel, half, (size_t)j, _mm256_or_si256(low_nibbles(bytes[j]), fifth_bits(words, j)));
        codes_store(panel, half, (size_t)j + 4, _mm256_or_si256(high_nibbles(bytes[j]), fifth_bits(words, j + 4)));
    }
}

static void q5_0_unpack(const uint8_t *const row[8], size_t block_count, size_t half, struct code_panel *panel) {
    for (size_t b = 0; b < block_count; b++, panel++) {
        size_t base = b * sizeof(struct block_q5_0);
        five_bit_codes(row, base + offsetof(struct block_q5_0, qh), base + offsetof(struct block_q5_0, qs), half,
                       panel);
        floats_store(panel->scale + half * 8, halves_get(row, base));
    }
}

static void q5_1_unpack(const uint8_t *const row[8], size_t block_count, size_t half, struct code_panel *panel) {
    for (size_t b = 0; b < block_count; b++, panel++) {
        size_t base = b * sizeof(struct block_q5_1);
        five_bit_codes(row, base + offsetof(struct block_q5_1, qh), base + offsetof(struct block_q5_1, qs), half,
                       panel);
        scales_store_m(panel, half, halves_get(row, base), halves_get(row, base + 2), 16);
    }
}

/* --- blocks of 256, groups of 32 --------------------------------------------------------- */

static inline __m256 bytes_to_floats(uint32_t low, uint32_t high) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_set_epi32(0, 0, (int)high, (int)low)));
}

/* The 6-bit scales and minima of Q4_K and Q5_K for 8 panels: d·sc·q - dmin·m = s·(q - o) + (s·o - dmin·m). */
static inline void six_bit_scales_store(const uint8_t *const row[8], size_t base, size_t half, float offset,
                                        struct code_panel *panel) {
    __m256 scale[8], minimum[8];
    for (size_t r = 0; r < 8; r++) {
        uint16_t d[2];
        uint32_t packed[3];
        memcpy(d, row[r] + base, sizeof d);
        memcpy(packed, row[r] + base + offsetof(struct block_q4_k, scales), sizeof packed);
        uint32_t high_scales = (packed[2] & 0x0f0f0f0fu) | (packed[0] >> 6 & 0x03030303u) << 4;
        uint32_t high_minima = (packed[2] >> 4 & 0x0f0f0f0fu) | (packed[1] >> 6 & 0x03030303u) << 4;
        __m256 s = bytes_to_floats(packed[0] & 0x3f3f3f3fu, high_scales);
        __m256 m = bytes_to_floats(packed[1] & 0x3f3f3f3fu, high_minima);
        scale[r] = _mm256_mul_ps(s, _mm256_set1_ps(half_to_float(d[0])));
        minimum[r] =
            _mm256_fnmadd_ps(m, _mm256_set1_ps(half_to_float(d[1])), _mm256_mul_ps(scale[r], _mm256_set1_ps(offset)));
    }
    floats8_transpose(scale);
    floats8_transpose(minimum);
    for (size_t g = 0; g < 8; g++) {
        floats_store(panel[g].scale + half * 8, scale[g]);
        floats_store(panel[g].minimum[0] + half * 8, minimum[g]);
    }
}

static void q4_k_unpack(const uint8_t *const row[8], size_t block_count, size_t half, struct code_panel *panel) {
    for (size_t b = 0; b < block_count; b += 8, panel += 8) {
        size_t base = b / 8 * sizeof(struct block_q4_k);
        for (size_t g = 0; g < 8; g += 2)
            for (size_t part = 0; part < 2; part++) {
                __m256i bytes[4];
                rows_transpose(row, base + offsetof(struct block_q4_k, qs) + g * 16 + part * 16, bytes);
                for (size_t j = 0; j < 4; j++) {
                    codes_store(panel + g, half, part * 4 + j, low_nibbles(bytes[j]));
                    codes_store(panel + g + 1, half, part * 4 + j, high_nibbles(bytes[j]));
                }
            }
        six_bit_scales_store(row, base, half, 0, panel);
    }
}

static inline void q5_k_group_pair(const uint8_t *const row[8], size_t base, size_t half, int g, size_t part,
                                   const __m256i high[4], struct code_panel *panel) {
    __m256i low[4];
    rows_transpose(row, base + offsetof(struct block_q5_k, qs) + (size_t)g * 16 + part * 16, low);
    for (size_t j = 0; j < 4; j++) {
        codes_store(panel + g, half, part * 4 + j, _mm256_or_si256(low_nibbles(low[j]), bits_get(high[j], g, 1, 4)));
        codes_store(panel + g + 1, half, part * 4 + j,
                    _mm256_or_si256(high_nibbles(low[j]), bits_get(high[j], g + 1, 1, 4)));
    }
}

static void q5_k_unpack(const uint8_t *const row[8], size_t block_count, size_t half, struct code_panel *panel) {
    for (size_t b = 0; b < block_count; b += 8, panel += 8) {
        size_t base = b / 8 * sizeof(struct block_q5_k);
        for (size_t part = 0; part < 2; part++) {
            __m256i high[4];
            rows_transpose(row, base + offsetof(struct block_q5_k, qh) + part * 16, high);
            for (int g = 0; g < 8; g += 2) q5_k_group_pair(row, base, half, g, part, high, panel);
        }
        six_bit_scales_store(row, base, half, 16, panel);
    }
}

/* --- blocks of 256, groups of 16 --------------------------------------------------------- */

/* Byte `index` of each row's word as two equal int16, sign-extended. */
static inline __m256i byte_pairs(__m256i words, int index) {
    __m256i at = _mm256_add_epi16(_mm256_set1_epi16((short)(index << 8 | 0x80)),
                                  _mm256_broadcastsi128_si256(_mm_set_epi32(0x0c000c00, 0x08000800, 0x04000400, 0)));
    return _mm256_srai_epi16(_mm256_shuffle_epi8(words, at), 8);
}

/* 16 scales of each row (scale[j]: groups 4j..4j+3) and the common factor d, into 8 panels. */
static inline void group_scales_store(const __m256i scale[4], __m256 d, size_t half, struct code_panel *panel) {
    for (int g = 0; g < 16; g++) {
        __m256i pairs = byte_pairs(scale[g / 4], g % 4);
        _mm256_store_si256((__m256i *)(void *)panel[g / 2].group_scale[g % 2][half * 8], pairs);
    }
    for (size_t b = 0; b < 8; b++) floats_store(panel[b].scale + half * 8, d);
}

static void q6_k_unpack(const uint8_t *const row[8], size_t block_count, size_t half, struct code_panel *panel) {
    for (size_t b = 0; b < block_count; b += 8, panel += 8) {
        size_t base = b / 8 * sizeof(struct block_q6_k);
        for (size_t n = 0; n < 2; n++)
            for (size_t part = 0; part < 2; part++) {
                __m256i high[4], first[4], second[4];
                size_t low = base + offsetof(struct block_q6_k, ql) + n * 64 + part * 16;
                rows_transpose(row, base + offsetof(struct block_q6_k, qh) + n * 32 + part * 16, high);
                rows_transpose(row, low, first);
                rows_transpose(row, low + 32, second);
                struct code_panel *p = panel + n * 4;
                for (size_t j = 0; j < 4; j++) {
                    size_t step = part * 4 + j;
                    codes_store(p, half, step, _mm256_or_si256(low_nibbles(first[j]), bits_get(high[j], 0, 3, 4)));
                    codes_store(p + 1, half, step, _mm256_or_si256(low_nibbles(second[j]), bits_get(high[j], 2, 3, 4)));
                    codes_store(p + 2, half, step, _mm256_or_si256(high_nibbles(first[j]), bits_get(high[j], 4, 3, 4)));
                    codes_store(p + 3, half, step,
                                _mm256_or_si256(high_nibbles(second[j]), bits_get(high[j], 6, 3, 4)));
                }
            }
        __m256i scale[4];
        rows_transpose(row, base + offsetof(struct block_q6_k, scales), scale);
        group_scales_store(scale, halves_get(row, base + offsetof(struct block_q6_k, d)), half, panel);
    }
}

static void q3_k_unpack(const uint8_t *const row[8], size_t block_count, size_t half, struct code_panel *panel) {
    for (size_t b = 0; b < block_count; b += 8, panel += 8) {
        size_t base = b / 8 * sizeof(struct block_q3_k);
        for (size_t part = 0; part < 2; part++) {
            __m256i high[4], low[4];
            rows_transpose(row, base + offsetof(struct block_q3_k, hmask) + part * 16, high);
            for (int n = 0; n < 2; n++) {
                rows_transpose(row, base + offsetof(struct block_q3_k, qs) + (size_t)n * 32 + part * 16, low);
                for (int k = 0; k < 4; k++)
                    for (size_t j = 0; j < 4; j++)
                        codes_store(panel + n * 4 + k, half, part * 4 + j,
                                    _mm256_or_si256(bits_get(low[j], 2 * k, 3, 0), bits_get(high[j], n * 4 + k, 1, 2)));
            }
        }
        uint8_t scales[8][16];
        const uint8_t *scale_row[8];
        for (size_t r = 0; r < 8; r++) {
            const uint8_t *packed = row[r] + base + offsetof(struct block_q3_k, scales);
            for (size_t g = 0; g < 16; g++) scales[r][g] = (uint8_t)q3_k_scale_get(packed, g);
            scale_row[r] = scales[r];
        }
        __m256i scale[4];
        rows_transpose(scale_row, 0, scale);
        group_scales_store(scale, halves_get(row, base + offsetof(struct block_q3_k, d)), half, panel);
    }
}

static void q2_k_unpack(const uint8_t *const row[8], size_t block_count, size_t half, struct code_panel *panel) {
    for (size_t b = 0; b < block_count; b += 8, panel += 8) {
        size_t base = b / 8 * sizeof(struct block_q2_k);
        for (int g = 0; g < 8; g += 4)
            for (size_t part = 0; part < 2; part++) {
                __m256i bytes[4];
                rows_transpose(row, base + offsetof(struct block_q2_k, qs) + (size_t)g * 8 + part * 16, bytes);
                for (int k = 0; k < 4; k++)
                    for (size_t j = 0; j < 4; j++)
                        codes_store(panel + g + k, half, part * 4 + j, bits_get(bytes[j], 2 * k, 3, 0));
            }
        __m256i packed[4], scale[4];
        rows_transpose(row, base + offsetof(struct block_q2_k, scales), packed);
        for (size_t j = 0; j < 4; j++) scale[j] = low_nibbles(packed[j]);
        __m256 d = halves_get(row, base + offsetof(struct block_q2_k, d));
        __m256 dmin = halves_get(row, base + offsetof(struct block_q2_k, dmin));
        group_scales_store(scale, d, half, panel);
        for (int g = 0; g < 16; g++) { /* -dmin·m */
            __m256i bytes = _mm256_srli_epi32(packed[g / 4], 8 * (g % 4));
            __m256i m = _mm256_and_si256(_mm256_srli_epi32(bytes, 4), _mm256_set1_epi32(15));
            floats_store(panel[g / 2].minimum[g % 2] + half * 8,
                         _mm256_fnmadd_ps(dmin, _mm256_cvtepi32_ps(m), _mm256_setzero_ps()));
        }
    }
}

/* --- signed bytes ------------------------------------------------------------------------ */

/* The 32 columns of one block: out[s] holds columns 4s..4s+3 of each row as int8; the scales. */
static inline __m256 q8_0_get(const uint8_t *const row[8], size_t block, __m256i out[PANEL_STEPS]) {
    size_t base = block * sizeof(struct block_q8_0);
    rows_transpose(row, base + offsetof(struct block_q8_0, qs), out);
    rows_transpose(row, base + offsetof(struct block_q8_0, qs) + 16, out + 4);
    return halves_get(row, base);
}

static inline void iq4_levels_get(const __m256i bytes[4], __m256i out[PANEL_STEPS]) {
    __m256i levels = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)iq4_levels));
    for (size_t j = 0; j < 4; j++) {
        out[j] = _mm256_shuffle_epi8(levels, low_nibbles(bytes[j]));
        out[j + 4] = _mm256_shuffle_epi8(levels, high_nibbles(bytes[j]));
    }
}

static inline __m256 iq4_nl_get(const uint8_t *const row[8], size_t block, __m256i out[PANEL_STEPS]) {
    size_t base = block * sizeof(struct block_iq4_nl);
    __m256i bytes[4];
    rows_transpose(row, base + offsetof(struct block_iq4_nl, qs), bytes);
    iq4_levels_get(bytes, out);
    return halves_get(row, base);
}

static inline __m256 iq4_xs_get(const uint8_t *const row[8], size_t block, __m256i out[PANEL_STEPS]) {
    size_t base = block / 8 * sizeof(struct block_iq4_xs), group = block % 8;
    __m256i bytes[4];
    rows_transpose(row, base + offsetof(struct block_iq4_xs, qs) + group * 16, bytes);
    iq4_levels_get(bytes, out);
    float scale[8];
    for (size_t r = 0; r < 8; r++) {
        const struct block_iq4_xs *source = (const void *)(row[r] + base);
        scale[r] = half_to_float(source->d) * (float)iq4_xs_scale_get(source, group);
    }
    return _mm256_loadu_ps(scale);
}

/* Bytes `first` and `first + 1` of each 32-bit word as int16. */
static inline __m256i bytes_widen(__m256i bytes, int first) {
    int at = (first << 8 | 0x80) | (int)((unsigned)(first + 1) << 24 | 0x800000u);
    __m256i index = _mm256_add_epi32(_mm256_set1_epi32(at),
                                     _mm256_broadcastsi128_si256(_mm_set_epi32(0x0c000c00, 0x08000800, 0x04000400, 0)));
    return _mm256_srai_epi16(_mm256_shuffle_epi8(bytes, index), 8);
}

static inline void wide_store(struct wide_panel *panel, size_t half, const __m256i bytes[PANEL_STEPS], __m256 scale) {
    for (size_t s = 0; s < PANEL_STEPS; s++) {
        _mm256_store_si256((__m256i *)(void *)panel->values[2 * s][half * 8], bytes_widen(bytes[s], 0));
        _mm256_store_si256((__m256i *)(void *)panel->values[2 * s + 1][half * 8], bytes_widen(bytes[s], 2));
    }
    floats_store(panel->scale + half * 8, scale);
}

static inline void raised_store(struct code_panel *panel, size_t half, const __m256i bytes[PANEL_STEPS], __m256 scale) {
    for (size_t s = 0; s < PANEL_STEPS; s++)
        codes_store(panel, half, s, _mm256_xor_si256(bytes[s], _mm256_set1_epi8((char)0x80)));
    floats_store(panel->scale + half * 8, scale);
}

/* For each of the types above: NAME_widen into wide panels, NAME_raise into code panels with offset 128. */
#define SIGNED_BYTES(name)                                                                                             \
    static void name##_widen(const uint8_t *const row[8], size_t block_count, size_t half, struct wide_panel *panel) { \
        for (size_t b = 0; b < block_count; b++) {                                                                     \
            __m256i bytes[PANEL_STEPS];                                                                                \
            __m256 scale = name##_get(row, b, bytes);                                                                  \
            wide_store(panel + b, half, bytes, scale);                                                                 \
        }                                                                                                              \
    }                                                                                                                  \
    static void name##_raise(const uint8_t *const row[8], size_t block_count, size_t half, struct code_panel *panel) { \
        for (size_t b = 0; b < block_count; b++) {                                                                     \
            __m256i bytes[PANEL_STEPS];                                                                                \
            __m256 scale = name##_get(row, b, bytes);                                                                  \
            raised_store(panel + b, half, bytes, scale);                                                               \
        }                                                                                                              \
    }
SIGNED_BYTES(q8_0)
SIGNED_BYTES(iq4_nl)
SIGNED_BYTES(iq4_xs)
#undef SIGNED_BYTES

/* --- four-bit floats --------------------------------------------------------------------- */

/* Levels of fp4_levels and 16. */
static inline __m256i fp4_codes(__m256i nibbles) {
    const __m128i levels = _mm_loadu_si128((const __m128i *)(const void *)fp4_levels);
    const __m256i raised = _mm256_broadcastsi128_si256(_mm_add_epi8(levels, _mm_set1_epi8(16)));
    return _mm256_shuffle_epi8(raised, nibbles);
}

static void mxfp4_unpack(const uint8_t *const row[8], size_t block_count, size_t half, struct code_panel *panel) {
    for (size_t b = 0; b < block_count; b++, panel++) {
        const size_t base = b * sizeof(struct block_mxfp4);
        __m256i bytes[4];
        rows_transpose(row, base + offsetof(struct block_mxfp4, qs), bytes);
        for (size_t j = 0; j < 4; j++) {
            codes_store(panel, half, j, fp4_codes(low_nibbles(bytes[j])));
            codes_store(panel, half, j + 4, fp4_codes(high_nibbles(bytes[j])));
        }
        for (size_t r = 0; r < 8; r++) panel->scale[half * 8 + r] = mxfp4_scale_get(row[r][base]);
    }
}

static void nvfp4_unpack(const uint8_t *const row[8], size_t block_count, size_t half, struct code_panel *panel) {
    for (size_t b = 0; b < block_count; b++, panel++) {
        const size_t base = b / 2 * sizeof(struct block_nvfp4), group = b % 2 * 2;
        __m256i bytes[4];
        rows_transpose(row, base + offsetof(struct block_nvfp4, qs) + group * 8, bytes);
        for (size_t j = 0; j < 4; j++) {
            const size_t step = j / 2 * 4 + j % 2;
            codes_store(panel, half, step, fp4_codes(low_nibbles(bytes[j])));
            codes_store(panel, half, step + 2, fp4_codes(high_nibbles(bytes[j])));
        }
        for (size_t g = 0; g < 2; g++)
            for (size_t r = 0; r < 8; r++)
                panel->group_factor[g][half * 8 + r] = nvfp4_scale_get(row[r][base + group + g]);
        floats_store(panel->scale + half * 8, _mm256_set1_ps(1));
    }
}

/* --- points of grids --------------------------------------------------------------------- */

/* Block b of the 8 rows' blocks: out[s] holds columns 4s..4s+3 of each row as int8. */
static inline void grid_codes(const struct grid_block blocks[8], size_t b, __m256i out[PANEL_STEPS]) {
    const uint8_t *rows[8];
    for (size_t r = 0; r < 8; r++) rows[r] = (const uint8_t *)blocks[r].codes + 32 * b;
    rows_transpose(rows, 0, out);
    rows_transpose(rows, 16, out + 4);
}

/* The scales of group g of the 8 rows, each twice. */
static inline __m256i grid_scales(const struct grid_block blocks[8], size_t g) {
    int32_t pair[8];
    for (size_t r = 0; r < 8; r++) pair[r] = blocks[r].scales[g] | blocks[r].scales[g] << 16;
    return _mm256_loadu_si256((const __m256i *)(const void *)pair);
}

static inline __m256 grid_d(const struct grid_block blocks[8]) {
    float d[8];
    for (size_t r = 0; r < 8; r++) d[r] = blocks[r].d;
    return _mm256_loadu_ps(d);
}

/* Into code panels, with an offset. */
static inline void grid_raise(const uint8_t *const row[8], size_t block_count, size_t half, struct code_panel *panel,
                              grid_unpack *unpack, size_t block_bytes, char offset) {
    for (size_t b = 0; b < block_count; b += 8, panel += 8) {
        struct grid_block blocks[8];
        for (size_t r = 0; r < 8; r++) unpack(row[r] + b / 8 * block_bytes, &blocks[r]);
        const __m256 d = grid_d(blocks);
        for (size_t k = 0; k < 8; k++) {
            __m256i codes[PANEL_STEPS];
            grid_codes(blocks, k, codes);
            for (size_t s = 0; s < PANEL_STEPS; s++)
                codes_store(panel + k, half, s, _mm256_add_epi8(codes[s], _mm256_set1_epi8(offset)));
            for (size_t g = 0; g < 2; g++)
                _mm256_store_si256((__m256i *)(void *)panel[k].group_scale[g][half * 8],
                                   grid_scales(blocks, 2 * k + g));
            floats_store(panel[k].scale + half * 8, d);
        }
    }
}

/* Into wide panels: codes times scales, below 2^11. */
static inline void grid_widen(const uint8_t *const row[8], size_t block_count, size_t half, struct wide_panel *panel,
                              grid_unpack *unpack, size_t block_bytes) {
    for (size_t b = 0; b < block_count; b += 8, panel += 8) {
        struct grid_block blocks[8];
        for (size_t r = 0; r < 8; r++) unpack(row[r] + b / 8 * block_bytes, &blocks[r]);
        const __m256 d = grid_d(blocks);
        for (size_t k = 0; k < 8; k++) {
            __m256i codes[PANEL_STEPS];
            grid_codes(blocks, k, codes);
            for (size_t s = 0; s < 2 * PANEL_STEPS; s++) {
                const __m256i scale = grid_scales(blocks, 2 * k + s / PANEL_STEPS);
                const __m256i pair = s % 2 == 0 ? bytes_widen(codes[s / 2], 0) : bytes_widen(codes[s / 2], 2);
                _mm256_store_si256((__m256i *)(void *)panel[k].values[s][half * 8], _mm256_mullo_epi16(pair, scale));
            }
            floats_store(panel[k].scale + half * 8, d);
        }
    }
}

#define GRID_RAISE(name, offset)                                                                                       \
    static void name##_raise(const uint8_t *const row[8], size_t block_count, size_t half, struct code_panel *panel) { \
        grid_raise(row, block_count, half, panel, name##_unpack_avx2, sizeof(struct block_##name), offset);            \
    }
#define GRID_WIDEN(name)                                                                                               \
    static void name##_widen(const uint8_t *const row[8], size_t block_count, size_t half, struct wide_panel *panel) { \
        grid_widen(row, block_count, half, panel, name##_unpack_avx2, sizeof(struct block_##name));                    \
    }
GRID_RAISE(iq1_s, 16)
GRID_RAISE(iq1_m, 16)
GRID_RAISE(iq3_s, 16)
GRID_RAISE(iq2_xxs, 64)
GRID_RAISE(iq2_xs, 64)
GRID_RAISE(iq2_s, 64)
GRID_RAISE(iq3_xxs, 64)
GRID_WIDEN(iq2_xxs)
GRID_WIDEN(iq2_xs)
GRID_WIDEN(iq2_s)
GRID_WIDEN(iq3_xxs)
#undef GRID_RAISE
#undef GRID_WIDEN

/* --- by type ----------------------------------------------------------------------------- */

struct code_layout code_layout_find(enum tensor_type type) {
    static const struct code_layout layouts[MATMUL_TYPES] = {
        [TENSOR_Q4_0] = {false, false, false, 3, q4_0_unpack},
        [TENSOR_Q4_1] = {false, true, false, NO_OFFSET, q4_1_unpack},
        [TENSOR_Q5_0] = {false, false, false, 4, q5_0_unpack},
        [TENSOR_Q5_1] = {false, true, false, 4, q5_1_unpack},
        [TENSOR_Q2_K] = {true, true, false, NO_OFFSET, q2_k_unpack},
        [TENSOR_Q3_K] = {true, false, false, 2, q3_k_unpack},
        [TENSOR_Q4_K] = {false, true, false, NO_OFFSET, q4_k_unpack},
        [TENSOR_Q5_K] = {false, true, false, 4, q5_k_unpack},
        [TENSOR_Q6_K] = {true, false, false, 5, q6_k_unpack},
        [TENSOR_MXFP4] = {false, false, false, 4, mxfp4_unpack},
        [TENSOR_NVFP4] = {true, false, true, 4, nvfp4_unpack},
        [TENSOR_IQ1_S] = {true, false, false, 4, iq1_s_raise},
        [TENSOR_IQ1_M] = {true, false, false, 4, iq1_m_raise},
        [TENSOR_IQ3_S] = {true, false, false, 4, iq3_s_raise},
    };
    ASSERT((size_t)type < MATMUL_TYPES);
    return layouts[type];
}

struct code_layout code_layout_find_bytes(enum tensor_type type) {
    static const struct code_layout layouts[MATMUL_TYPES] = {
        [TENSOR_Q8_0] = {false, false, false, 7, q8_0_raise},
        [TENSOR_IQ4_NL] = {false, false, false, 7, iq4_nl_raise},
        [TENSOR_IQ4_XS] = {false, false, false, 7, iq4_xs_raise},
        [TENSOR_IQ2_XXS] = {true, false, false, 6, iq2_xxs_raise},
        [TENSOR_IQ2_XS] = {true, false, false, 6, iq2_xs_raise},
        [TENSOR_IQ2_S] = {true, false, false, 6, iq2_s_raise},
        [TENSOR_IQ3_XXS] = {true, false, false, 6, iq3_xxs_raise},
    };
    ASSERT((size_t)type < MATMUL_TYPES);
    return layouts[type];
}

wide_unpack *wide_unpack_find(enum tensor_type type) {
    static wide_unpack *const unpack[MATMUL_TYPES] = {
        [TENSOR_Q8_0] = q8_0_widen,       [TENSOR_IQ4_NL] = iq4_nl_widen, [TENSOR_IQ4_XS] = iq4_xs_widen,
        [TENSOR_IQ2_XXS] = iq2_xxs_widen, [TENSOR_IQ2_XS] = iq2_xs_widen, [TENSOR_IQ2_S] = iq2_s_widen,
        [TENSOR_IQ3_XXS] = iq3_xxs_widen,
    };
    ASSERT((size_t)type < MATMUL_TYPES);
    return unpack[type];
}
