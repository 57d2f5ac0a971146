/* sampler: finds candidates by partial selection; a vocabulary of 128 K is never sorted whole.  Among equal logits the
 * lower id wins, so the result does not depend on the order of the search. */
#include "generate/sampler.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"

enum { REPEAT_MAX = 1 << 20, PENALTY_MAX = 100, BINS = 512, BINS_PER_UNIT = 16, BLOCK = 64, LANES = 4 };

/* 16 bytes: every target has such registers; gcc 12 splits wider comparisons without AVX. */
typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t lane_flags __attribute__((vector_size(LANES * sizeof(float))));

struct candidate {
    float logit;
    int32_t id;
};

struct sampler {
    struct sampler_options options;
    struct random random;
    size_t vocabulary_size;
    float *logits; /* [block_count][BLOCK], with penalties; -infinity past the vocabulary */
    float *maxima; /* [block_count]: most blocks hold no candidate and are skipped by this */
    size_t block_count;
    struct candidate *candidates;  /* [vocabulary_size] */
    struct token_bias *biases;     /* [options.bias_count], the tokenizer's behind those that were given */
    int32_t *recent;               /* [options.repeat_last], a ring */
    const struct logit_mask *mask; /* borrowed; NULL: none */
    size_t recent_count, recent_next;
    uint32_t *occurrences; /* [vocabulary_size]: of each token in recent */
    uint64_t *penalised;   /* [vocabulary_size]: the number of the pick that last penalised a token */
    uint64_t pick_number;
};

static enum status check_biases(const struct sampler_options *options, size_t vocabulary_size, struct error *error) {
    for (size_t i = 0; i < options->bias_count; i++) {
        struct token_bias bias = options->biases[i];
        if (bias.id < 0 || (size_t)bias.id >= vocabulary_size)
            return error_set(error, STATUS_USAGE, "logit bias of token %d: expected a token from 0 to %zu", bias.id,
                             vocabulary_size - 1);
        if (!(bias.bias <= FLT_MAX)) /* NaN too */
            return error_set(error, STATUS_USAGE, "logit bias of token %d: %g, expected a number or -infinity", bias.id,
                             (double)bias.bias);
    }
    return STATUS_OK;
}

static enum status options_check(const struct sampler_options *options, struct error *error) {
    if (!(options->temperature >= 0 && options->temperature <= FLT_MAX))
        return error_set(error, STATUS_USAGE, "temperature %g: expected 0 or more", (double)options->temperature);
    if (!(options->top_p >= 0 && options->top_p <= 1))
        return error_set(error, STATUS_USAGE, "top-p %g: expected 0 to 1", (double)options->top_p);
    if (!(options->min_p >= 0 && options->min_p <= 1))
        return error_set(error, STATUS_USAGE, "min-p %g: expected 0 to 1", (double)options->min_p);
    if (!(options->repeat_penalty > 0 && options->repeat_penalty <= FLT_MAX))
        return error_set(error, STATUS_USAGE, "repeat penalty %g: expected above 0", (double)options->repeat_penalty);
    if (!(fabsf(options->presence_penalty) <= PENALTY_MAX))
        return error_set(error, STATUS_USAGE, "presence penalty %g: expected -%d to %d",
                         (double)options->presence_penalty, PENALTY_MAX, PENALTY_MAX);
    if (!(fabsf(options->frequency_penalty) <= PENALTY_MAX))
        return error_set(error, STATUS_USAGE, "frequency penalty %g: expected -%d to %d",
                         (double)options->frequency_penalty, PENALTY_MAX, PENALTY_MAX);
    if (options->repeat_last > REPEAT_MAX)
        return error_set(error, STATUS_USAGE, "repeat-last %u: expected at most %d", options->repeat_last, REPEAT_MAX);
    return STATUS_OK;
}

enum status sampler_create(struct sampler **sampler, const struct sampler_options *options,
                           const struct tokenizer *tokenizer, size_t vocabulary_size, struct error *error) {
    size_t suppressed_count = 0;
    const token_id *suppressed = tokenizer != NULL ? tokenizer_suppressed(tokenizer, &suppressed_count) : NULL;
    *sampler = NULL;
    ASSERT(vocabulary_size > 0 && vocabulary_size <= INT32_MAX);
    TRY(options_check(options, error));
    TRY(check_biases(options, vocabulary_size, error));
    struct sampler *made = calloc(1, sizeof *made);
    if (made == NULL) return error_set(error, STATUS_MEMORY, "no memory for the sampler");
    made->options = *options;
    made->vocabulary_size = vocabulary_size;
    random_init(&made->random, options->seed);
    made->block_count = (vocabulary_size + BLOCK - 1) / BLOCK;
    made->logits = aligned_alloc(BLOCK, made->block_count * BLOCK * sizeof *made->logits);
    made->maxima = calloc(made->block_count, sizeof *made->maxima);
    made->candidates = calloc(vocabulary_size, sizeof *made->candidates);
    made->penalised = calloc(vocabulary_size, sizeof *made->penalised);
    made->occurrences = calloc(vocabulary_size, sizeof *made->occurrences);
    made->recent = calloc(max_size(options->repeat_last, 1), sizeof *made->recent);
    made->biases = calloc(max_size(options->bias_count + suppressed_count, 1), sizeof *made->biases);
    if (made->logits == NULL || made->maxima == NULL || made->candidates == NULL || made->penalised == NULL ||
        made->occurrences == NULL || made->recent == NULL || made->biases == NULL) {
        sampler_destroy(made);
        return error_set(error, STATUS_MEMORY, "no memory for the sampler");
    }
    for (size_t i = vocabulary_size; i < made->block_count * BLOCK; i++) made->logits[i] = -INFINITY;
    if (options->bias_count > 0) memcpy(made->biases, options->biases, options->bias_count * sizeof *made->biases);
    for (size_t i = 0; i < suppressed_count; i++)
        made->biases[made->options.bias_count++] = (struct token_bias){suppressed[i], -INFINITY};
    made->options.biases = made->biases;
    *sampler = made;
    return STATUS_OK;
}

void sampler_destroy(struct sampler *sampler) {
    if (sampler == NULL) return;
    free(sampler->logits);
    free(sampler->maxima);
    free(sampler->candidates);
    free(sampler->penalised);
    free(sampler->occurrences);
    free(sampler->recent);
    free(sampler->biases);
    free(sampler);
}

void sampler_set_temperature(struct sampler *sampler, float temperature) { sampler->options.temperature = temperature; }

void sampler_set_mask(struct sampler *sampler, const struct logit_mask *mask) { sampler->mask = mask; }

bool sampler_is_complete(const struct sampler *sampler) {
    const struct logit_mask *mask = sampler->mask;
    return mask != NULL && mask->is_complete != NULL && mask->is_complete(mask->context);
}

void sampler_accept(struct sampler *sampler, int32_t token) {
    size_t capacity = sampler->options.repeat_last;
    if (capacity == 0 || token < 0 || (size_t)token >= sampler->vocabulary_size) return;
    if (sampler->recent_count == capacity)
        sampler->occurrences[sampler->recent[sampler->recent_next]]--;
    else
        sampler->recent_count++;
    sampler->occurrences[token]++;
    sampler->recent[sampler->recent_next] = token;
    sampler->recent_next = (sampler->recent_next + 1) % capacity;
}

/* The block's maximum; *broken becomes true if it has a NaN or +infinity. */
static float block_maximum(const float *block, bool *broken) {
    lanes largest = {0}, values;
    lane_flags bad = {0};
    largest -= INFINITY;
    for (size_t i = 0; i < BLOCK; i += LANES) {
        memcpy(&values, block + i, sizeof values);
        bad |= ~(values <= FLT_MAX); /* comparisons give -1 where true */
        lane_flags more = values > largest;
        largest = (lanes)(((lane_flags)values & more) | ((lane_flags)largest & ~more));
    }
    float maximum = -INFINITY;
    for (size_t i = 0; i < LANES; i++) {
        if (largest[i] > maximum) maximum = largest[i];
        if (bad[i] != 0) *broken = true;
    }
    return maximum;
}

/* Copies the logits and finds the maximum of each block; false when one is NaN or +infinity. */
static bool take_logits(struct sampler *sampler, const float *logits) {
    bool broken = false;
    memcpy(sampler->logits, logits, sampler->vocabulary_size * sizeof *logits);
    for (size_t i = 0; i < sampler->block_count; i++)
        sampler->maxima[i] = block_maximum(sampler->logits + i * BLOCK, &broken);
    return !broken;
}

static enum status apply_mask(struct sampler *sampler, struct error *error) {
    bool ignored = false;
    if (sampler->mask == NULL) return STATUS_OK;
    TRY(sampler->mask->apply(sampler->mask->context, sampler->logits, sampler->vocabulary_size, error));
    for (size_t i = 0; i < sampler->block_count; i++)
        sampler->maxima[i] = block_maximum(sampler->logits + i * BLOCK, &ignored);
    return STATUS_OK;
}

/* The logit of one token becomes another one, which must not be NaN.  Stays below +infinity. */
static void change_logit(struct sampler *sampler, size_t id, float logit) {
    size_t block = id / BLOCK;
    bool ignored = false;
    sampler->logits[id] = fminf(logit, FLT_MAX);
    sampler->maxima[block] = block_maximum(sampler->logits + block * BLOCK, &ignored);
}

static void add_biases(struct sampler *sampler) {
    for (size_t i = 0; i < sampler->options.bias_count; i++) {
        struct token_bias bias = sampler->biases[i];
        change_logit(sampler, (size_t)bias.id, sampler->logits[bias.id] + bias.bias);
    }
}

static bool has_penalties(const struct sampler_options *options) {
    return options->repeat_penalty != 1 || options->presence_penalty != 0 || options->frequency_penalty != 0;
}

static void penalise(struct sampler *sampler) {
    const struct sampler_options *options = &sampler->options;
    if (!has_penalties(options)) return;
    sampler->pick_number++;
    for (size_t i = 0; i < sampler->recent_count; i++) {
        size_t id = (size_t)sampler->recent[i];
        if (sampler->penalised[id] == sampler->pick_number) continue;
        sampler->penalised[id] = sampler->pick_number;
        float logit = sampler->logits[id];
        logit = fminf(logit > 0 ? logit / options->repeat_penalty : logit * options->repeat_penalty, FLT_MAX);
        logit -= (float)sampler->occurrences[id] * options->frequency_penalty + options->presence_penalty;
        change_logit(sampler, id, logit);
    }
}

/* The likeliest token, of equal ones the lowest id; -1: every token is excluded. */
static int32_t likeliest(const struct sampler *sampler, float *maximum) {
    size_t best = 0;
    for (size_t i = 1; i < sampler->block_count; i++)
        if (sampler->maxima[i] > sampler->maxima[best]) best = i;
    *maximum = sampler->maxima[best];
    if (*maximum == -INFINITY) return -1;
    size_t id = best * BLOCK;
    while (sampler->logits[id] != *maximum) id++;
    return (int32_t)id;
}

/* a comes after b in the order of likelihood. */
static bool is_worse(struct candidate a, struct candidate b) {
    return a.logit < b.logit || (a.logit == b.logit && a.id > b.id);
}

/* heap[0] is the worst of count candidates; restores that below `hole`. */
static void heap_sink(struct candidate *heap, size_t count, size_t hole) {
    struct candidate moving = heap[hole];
    for (size_t child; (child = 2 * hole + 1) < count; hole = child) {
        if (child + 1 < count && is_worse(heap[child + 1], heap[child])) child++;
        if (!is_worse(heap[child], moving)) break;
        heap[hole] = heap[child];
    }
    heap[hole] = moving;
}

/* A heap of candidates in order, best first: the worst goes to the end, again and again. */
static void heap_sort(struct candidate *heap, size_t count) {
    for (size_t end = count; end-- > 1;) {
        struct candidate worst = heap[0];
        heap[0] = heap[end];
        heap[end] = worst;
        heap_sink(heap, end, 0);
    }
}

/* The best `count` tokens, best first, into sampler->candidates. */
static void select_best(const struct sampler *sampler, size_t count) {
    struct candidate *best = sampler->candidates;
    const float *logits = sampler->logits;
    for (size_t i = 0; i < count; i++) best[i] = (struct candidate){logits[i], (int32_t)i};
    for (size_t i = count / 2; i-- > 0;) heap_sink(best, count, i);
    for (size_t i = count; i < sampler->vocabulary_size; i++) {
        if (i % BLOCK == 0 && !(sampler->maxima[i / BLOCK] > best[0].logit)) {
            i += BLOCK - 1;
            continue;
        }
        if (!(logits[i] > best[0].logit)) continue; /* an equal one has the higher id */
        best[0] = (struct candidate){logits[i], (int32_t)i};
        heap_sink(best, count, 0);
    }
    heap_sort(best, count);
}

/* How many of the sorted candidates reach the share top_p of total; count + 1 when they do not. */
static size_t top_p_count(const struct candidate *sorted, size_t count, double total, double top_p) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        sum += exp((double)sorted[i].logit - (double)sorted[0].logit);
        if (sum >= top_p * total) return i + 1;
    }
    return count + 1;
}

static double exp_sum(const float *logits, size_t count, double maximum) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += exp((double)logits[i] - maximum);
    return sum;
}

/* Tokens by how far their logit is below the largest, in steps of 1 / BINS_PER_UNIT; the last bin has the rest. */
static size_t bin_of(float logit, float maximum) {
    float steps = (maximum - logit) * BINS_PER_UNIT;
    return steps < BINS - 1 ? (size_t)steps : BINS - 1;
}

/* Top-p of the whole vocabulary: the bins that belong to it completely, in order of id, then as many tokens as needed
 * of the bin that crosses top_p.  Only that bin is sorted. */
static size_t select_nucleus(struct sampler *sampler, float maximum) {
    const size_t size = sampler->vocabulary_size;
    struct candidate *candidates = sampler->candidates;
    double sums[BINS] = {0}, total = 0, sum = 0;
    for (size_t i = 0; i < size; i++)
        sums[bin_of(sampler->logits[i], maximum)] += exp((double)sampler->logits[i] - (double)maximum);
    for (size_t bin = 0; bin < BINS; bin++) total += sums[bin];
    size_t crossing = 0, sure = 0, count = 0;
    const double share = sampler->options.top_p * total;
    while (crossing < BINS - 1 && sum + sums[crossing] < share) sum += sums[crossing++];
    for (size_t i = 0; i < size; i++)
        if (bin_of(sampler->logits[i], maximum) < crossing)
            candidates[sure++] = (struct candidate){sampler->logits[i], (int32_t)i};
    struct candidate *crossers = candidates + sure;
    for (size_t i = 0; i < size; i++)
        if (bin_of(sampler->logits[i], maximum) == crossing)
            crossers[count++] = (struct candidate){sampler->logits[i], (int32_t)i};
    for (size_t i = count / 2; i-- > 0;) heap_sink(crossers, count, i);
    heap_sort(crossers, count);
    for (size_t i = 0; i < count; i++) {
        sum += exp((double)crossers[i].logit - (double)maximum);
        if (sum >= share) return sure + i + 1;
    }
    return sure + count; /* rounding: the sum in another order stayed below */
}

/* Top-k, then top-p. Fills sampler->candidates and returns how many. */
static size_t select_candidates(struct sampler *sampler, float maximum) {
    const struct sampler_options *options = &sampler->options;
    size_t size = sampler->vocabulary_size, count;
    struct candidate *candidates = sampler->candidates;
    if (options->top_k > 0 && options->top_k < size) {
        count = options->top_k;
        select_best(sampler, count);
        if (options->top_p >= 1) return count;
        double total = 0;
        for (size_t i = 0; i < count; i++) total += exp((double)candidates[i].logit - (double)maximum);
        return min_size(top_p_count(candidates, count, total, options->top_p), count);
    }
    if (options->top_p >= 1) { /* everyone, in order of id */
        for (size_t i = 0; i < size; i++) candidates[i] = (struct candidate){sampler->logits[i], (int32_t)i};
        return size;
    }
    return select_nucleus(sampler, maximum);
}

static int32_t draw(struct sampler *sampler, float maximum, size_t count) {
    const struct candidate *candidates = sampler->candidates;
    double temperature = sampler->options.temperature, sum = 0;
    /* p >= min_p * p_max, as logits */
    double smallest = sampler->options.min_p > 0 ? (double)maximum + log((double)sampler->options.min_p) : -INFINITY;
    for (size_t i = 0; i < count; i++)
        if ((double)candidates[i].logit >= smallest)
            sum += exp(((double)candidates[i].logit - (double)maximum) / temperature);
    double target = random_double(&sampler->random) * sum, reached = 0;
    int32_t chosen = -1;
    for (size_t i = 0; i < count; i++) {
        if (!((double)candidates[i].logit >= smallest) || candidates[i].logit == -INFINITY) continue;
        chosen = candidates[i].id; /* the last possible one, should rounding leave target unreached */
        reached += exp(((double)candidates[i].logit - (double)maximum) / temperature);
        if (reached > target) break;
    }
    ASSERT(chosen >= 0);
    return chosen;
}

enum status sampler_pick(struct sampler *sampler, const float *logits, int32_t *token, struct error *error) {
    float maximum;
    if (!take_logits(sampler, logits)) {
        size_t i = 0;
        while (logits[i] <= FLT_MAX) i++;
        return error_set(error, STATUS_FAILED,
                         "the model's output is not a number (token %zu: %g): its file or the computation is broken", i,
                         (double)logits[i]);
    }
    TRY(apply_mask(sampler, error));
    add_biases(sampler);
    penalise(sampler);
    int32_t best = likeliest(sampler, &maximum);
    if (best < 0)
        return error_set(error, STATUS_FAILED,
                         sampler->mask != NULL || sampler->options.bias_count > 0
                             ? "the required form, the logit biases and the model's output rule out every token"
                             : "the model's output rules out every token: its file is broken");
    *token = sampler->options.temperature == 0 ? best : draw(sampler, maximum, select_candidates(sampler, maximum));
    return sampler->mask != NULL ? sampler->mask->accept(sampler->mask->context, *token, error) : STATUS_OK;
}

float sampler_top_of(const float *logits, size_t vocabulary_size, int32_t token, struct token_probability *top,
                     size_t count) {
    size_t found = 0;
    float maximum = -INFINITY;
    for (size_t i = 0; i < vocabulary_size; i++) {
        if (logits[i] > maximum) maximum = logits[i];
        if (isnan(logits[i]) || count == 0) continue;
        if (found == count && !(logits[i] > top[found - 1].log_probability)) continue;
        size_t at = found < count ? found++ : count - 1;
        for (; at > 0 && logits[i] > top[at - 1].log_probability; at--) top[at] = top[at - 1];
        top[at] = (struct token_probability){(int32_t)i, logits[i]};
    }
    double log_sum = log(exp_sum(logits, vocabulary_size, maximum)) + (double)maximum;
    for (size_t i = 0; i < found; i++) top[i].log_probability = (float)((double)top[i].log_probability - log_sum);
    for (size_t i = found; i < count; i++) top[i] = (struct token_probability){-1, -INFINITY};
    if (token < 0 || (size_t)token >= vocabulary_size) return -INFINITY;
    return (float)((double)logits[token] - log_sum);
}

void sampler_top(const float *logits, size_t vocabulary_size, struct token_probability *top, size_t count) {
    (void)sampler_top_of(logits, vocabulary_size, -1, top, count);
}
