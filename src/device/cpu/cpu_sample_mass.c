/* sample_mass on the cpu, and the samples that it reads (device/key_sample.h).
 *
 * Of the C chunks that a row sees every r-th is looked at, from position mod r on, and of each the S keys that were
 * drawn from its 64.  A key is then looked at with probability S / (64 r), whatever it is, so that with the greatest
 * score m and the sum s of exp(score - m) of the rows that were attended to
 *
 *   L = w sum over sampled keys that are not listed of exp(score - m)        w = 64 r / S
 *
 * is on average what the rest comes to, exactly.  The share L / (s + L) is concave in L: it errs downwards where few
 * keys hold what was left out, most of which no sample meets.  `upper` is the sum of each sampled key's share w x /
 * (s + x + L without the key), which is right on average where one key holds the rest, and errs upwards where several
 * do. The standard error is that of L, as if its n keys were drawn one by one of all (which is more than that of keys
 * drawn chunk by chunk), times the share's slope s / (s + L)^2.
 *
 * A unit of work is one KV head of a row. */
#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "device/cpu/cpu_scorer_internal.h"
#include "device/key_sample.h"
#include "tensor/half.h"

/* ---- build ---- */

/* A chunk's tokens are drawn with its first. */
void cpu_key_sample_build(const struct cpu_device *device, const struct key_index_build_operation *operation,
                          const struct build_unit *unit, const struct build_scratch *scratch) {
    const struct key_index_layout *layout = operation->layout;
    const size_t dimension = unit->kv->k_dimension;
    uint8_t *tokens = key_sample_tokens(layout, dimension, unit->block);
    if (unit->token_begin == 0)
        key_sample_draw(tokens, layout->sample_count, operation->layer_index, unit->kv_head, unit->chunk_index);
    for (size_t i = 0; i < layout->sample_count; i++) {
        if (tokens[i] < unit->token_begin || tokens[i] >= unit->token_end) continue;
        struct build_unit one = *unit;
        one.token_begin = tokens[i];
        one.token_end = one.token_begin + 1;
        cpu_load_keys(device, &one, scratch);
        uint16_t *key = key_sample_keys(layout, unit->block) + i * dimension;
        for (size_t d = 0; d < dimension; d++) key[d] = float_to_half(scratch->keys[d]);
    }
}

/* ---- estimate ---- */

/* A layer's scores of one sequence cost less than waking a thread. */
enum { SCORES_ALONE = 2048 };

enum { LANES = 8 }; /* keys at a time; what is not a multiple is filled up with keys that are not left out */
typedef float floats __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t masks __attribute__((vector_size(LANES * sizeof(int32_t))));
typedef double doubles __attribute__((vector_size(LANES * sizeof(double))));

struct sampler {
    const struct heads_run *run;
    const struct sample_mass_operation *operation;
    size_t dimension;
    void **blocks; /* [chunk_count]: of the chunks that are looked at */
    float *scores, *weights;
    int32_t *left; /* [key_count]: all ones where a key is seen and not listed, else 0 */
    void *score_scratch;
    size_t chunk_count, key_count;
    double keys_per_key; /* w */
};

static struct sampler sampler_in(const struct heads_run *run, struct layout *scratch) {
    struct sampler sampler = {.run = run, .operation = run->operation, .dimension = run->kv->k_dimension};
    const size_t key_max = align_up(sampler.operation->key_max, LANES);
    sampler.blocks = layout_take(scratch, key_max, sizeof *sampler.blocks);
    sampler.scores = layout_take(scratch, key_max, sizeof *sampler.scores);
    sampler.weights = layout_take(scratch, key_max, sizeof *sampler.weights);
    sampler.left = layout_take(scratch, key_max, sizeof *sampler.left);
    sampler.score_scratch = layout_take(scratch, 1, run->device->kernels.score.scratch_bytes(sampler.dimension));
    return sampler;
}

/* Which keys are looked at; whether any of them was left out. */
static bool take_keys(struct sampler *sampler, const struct head_unit *unit) {
    const struct key_index_layout *layout = sampler->operation->layout;
    const uint64_t position = unit->item->position, chunks = position / KV_CHUNK_TOKENS + 1;
    const size_t samples = layout->sample_count, chunk_max = sampler->operation->key_max / samples;
    const uint64_t stride = (chunks + chunk_max - 1) / chunk_max;
    size_t next = 0;
    bool any = false;
    const uint32_t *listed = cpu_rows(unit->list);
    sampler->chunk_count = sampler->key_count = 0;
    sampler->keys_per_key = (double)(KV_CHUNK_TOKENS * stride) / (double)samples;
    /* Samples are in no cache: they are asked for together, or each would be waited for. */
    for (uint64_t chunk = position % stride; chunk < chunks; chunk += stride) {
        void *block = cpu_chunk(unit->item->view.pools, unit->places[chunk]);
        const char *sample = (const char *)key_sample_keys(layout, block);
        for (size_t byte = 0; byte < key_sample_bytes(samples, sampler->dimension); byte += 64)
            __builtin_prefetch(sample + byte);
        sampler->blocks[sampler->chunk_count++] = block;
    }
    size_t taken = 0;
    for (uint64_t chunk = position % stride; chunk < chunks; chunk += stride) {
        const uint8_t *tokens = key_sample_tokens(layout, sampler->dimension, sampler->blocks[taken++]);
        for (size_t i = 0; i < samples; i++) {
            const uint64_t row = chunk * KV_CHUNK_TOKENS + tokens[i];
            while (next < unit->list.count && listed[next] < row) next++;
            const bool left = row <= position && (next == unit->list.count || listed[next] != row);
            sampler->left[sampler->key_count++] = left ? -1 : 0;
            any = any || left;
        }
    }
    for (size_t i = sampler->key_count; i % LANES != 0; i++) sampler->left[i] = 0;
    return any;
}

/* Scales, and takes out what was not left out; returns the greatest score, at least `top`. */
static float mask_scores(const struct sampler *sampler, float top) {
    const floats nothing = {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY};
    masks greatest, none;
    memcpy(&none, &nothing, sizeof none);
    greatest = none;
    for (size_t i = 0; i < sampler->key_count; i += LANES) {
        floats score, best;
        masks left, bits;
        memcpy(&score, sampler->scores + i, sizeof score);
        memcpy(&left, sampler->left + i, sizeof left);
        score *= sampler->run->rows->scale;
        memcpy(&bits, &score, sizeof bits);
        bits = (bits & left) | (none & ~left);
        memcpy(sampler->scores + i, &bits, sizeof bits);
        memcpy(&score, &bits, sizeof score);
        memcpy(&best, &greatest, sizeof best);
        const masks more = score > best;
        greatest = (bits & more) | (greatest & ~more);
    }
    floats best;
    memcpy(&best, &greatest, sizeof best);
    for (size_t lane = 0; lane < LANES; lane++) top = best[lane] > top ? best[lane] : top;
    return top;
}

/* Scores of the keys that were left out, as the softmax sees them; returns the greatest, at least `top`. */
static float score_keys(const struct sampler *sampler, const float *q, float top) {
    const struct sample_mass_operation *operation = sampler->operation;
    const struct attend_rows_operation *rows = sampler->run->rows;
    float *scores = sampler->scores;
    sampler->run->device->kernels.score.rows(&(struct score_args){.blocks = (const void *const *)sampler->blocks,
                                                                  .block_offset = operation->layout->sample_offset,
                                                                  .block_rows = operation->layout->sample_count,
                                                                  .columns = sampler->dimension,
                                                                  .row_begin = 0,
                                                                  .row_end = sampler->key_count,
                                                                  .q = q,
                                                                  .q_stride = sampler->dimension,
                                                                  .heads = 1,
                                                                  .aggregate = SCORE_MAX,
                                                                  .scores = scores,
                                                                  .scratch = sampler->score_scratch});
    for (size_t i = 0; i < sampler->key_count && rows->softcap > 0; i++) /* scores are scaled below */
        scores[i] = attention_score(scores[i], rows->scale, rows->softcap) / rows->scale;
    return mask_scores(sampler, top);
}

struct sample_sums {
    double sum, squares, upper;
};

/* Of w times the weights of the keys that were left out, beside the listed rows' sum s. */
static struct sample_sums add_weights(const struct sampler *sampler, double s) {
    const double w = sampler->keys_per_key;
    doubles sum = {0}, squares = {0}, upper = {0};
    struct sample_sums sums = {0};
    for (size_t i = 0; i < sampler->key_count; i += LANES) {
        floats weight;
        memcpy(&weight, sampler->weights + i, sizeof weight);
        const doubles own = __builtin_convertvector(weight, doubles);
        sum += own;
        squares += own * own;
    }
    for (size_t lane = 0; lane < LANES; lane++) sums.sum += sum[lane], sums.squares += squares[lane];
    const double all = s + w * sums.sum;
    for (size_t i = 0; i < sampler->key_count; i += LANES) {
        floats weight;
        memcpy(&weight, sampler->weights + i, sizeof weight);
        const doubles own = __builtin_convertvector(weight, doubles);
        upper += w * own / (all - (w - 1) * own);
    }
    for (size_t lane = 0; lane < LANES; lane++) sums.upper += upper[lane];
    return sums;
}

static struct mass_estimate estimate(const struct sampler *sampler, const float *q, struct softmax_sum listed) {
    const struct mass_estimate unknown = {.left_out = 1, .upper = 1};
    const float one = 1, top = score_keys(sampler, q, listed.largest);
    const double w = sampler->keys_per_key, n = (double)sampler->key_count;
    const size_t padded = align_up(sampler->key_count, LANES);
    memset(sampler->weights, 0, padded * sizeof *sampler->weights);
    sampler->run->device->kernels.mass.add(&(struct mass_add_args){.scores = sampler->scores,
                                                                   .scores_stride = padded,
                                                                   .group = 1,
                                                                   .m = &top,
                                                                   .s = &one,
                                                                   .row_count = padded,
                                                                   .mass = sampler->weights});
    const double s = (double)listed.sum * exp((double)listed.largest - (double)top);
    const struct sample_sums sums = add_weights(sampler, s);
    const double sum = sums.sum, all = s + w * sum;
    const double spread = n > 1 ? fmax(sums.squares - sum * sum / n, 0) / (n - 1) : sums.squares;
    const struct mass_estimate found = {
        .left_out = w * sum / all, .upper = sums.upper, .error = s / (all * all) * w * sqrt(n * spread * (1 - 1 / w))};
    return found.left_out >= 0 && found.upper >= 0 && found.error >= 0 ? found : unknown;
}

static void estimate_unit(const struct heads_run *run, const struct head_unit *unit, struct layout *scratch) {
    const struct sample_mass_operation *operation = run->operation;
    struct sampler sampler = sampler_in(run, scratch);
    const bool any = take_keys(&sampler, unit);
    for (size_t head = 0; head < run->group; head++)
        operation->estimates[unit->head_first + head] =
            any ? estimate(&sampler, unit->q + head * sampler.dimension, unit->sums[head]) : (struct mass_estimate){0};
}

void cpu_sample_mass(struct stream *stream, const struct sample_mass_operation *operation) {
    const struct attend_rows_operation *rows = operation->rows;
    struct layout scratch = {0};
    if (rows->item_count == 0) return;
    const struct heads_run run = cpu_heads_of(stream, operation, rows);
    ASSERT(operation->layout->sample_count > 0 && operation->layout->sample_count <= operation->key_max &&
           operation->key_max <= MASS_SAMPLE_MAX);
    (void)sampler_in(&run, &scratch);
    cpu_run_heads(&run, scratch.used, rows->item_count * rows->head_count * operation->key_max <= SCORES_ALONE,
                  estimate_unit);
}
