/* loam-lab perplexity: how well a model predicts a text, and how far its distributions are from another's.
 *
 * As llama-perplexity does it: the text, behind a BOS where the vocabulary asks for one, is cut into windows
 * of -c tokens, each read from an empty context (with BOS, if any, in the place of its first token), and the
 * second half of each window is scored, so that every scored token has at least half a window before it. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/plan.h"
#include "cli/prompt.h"
#include "cli/session.h"
#include "lab/cli/lab.h"
#include "lab/cli/logits_base.h"
#include "lab/eval/divergence.h"
#include "platform/clock.h"

struct perplexity {
    const struct options *options;
    struct plan plan;
    struct session session;
    struct sequence *sequence;
    struct token_list text;
    size_t window_size, window_count, first_scored, vocabulary_size;
    token_id *window; /* [window_size], owned */
    bool saves, compares;
    struct logits_base_writer writer;
    struct logits_base base;
    uint64_t place;            /* scored places so far */
    float *own, *theirs;       /* [vocabulary_size] log-probabilities, owned */
    struct divergence figures; /* without a base only the loss */
    float *divergences;        /* [places] owned, for the median and the maximum */
    double began;
};

/* ---- scoring ---- */

static enum status compare(struct perplexity *p, token_id next, struct error *error) {
    float floor;
    TRY(logits_base_read(&p->base, p->place, p->theirs, &floor, error));
    p->divergences[p->place] =
        (float)divergence_add(&p->figures, p->theirs, p->own, p->vocabulary_size, floor, (uint32_t)next);
    return STATUS_OK;
}

/* An engine_each_logits over the second half of a window: index 0 is place first_scored. */
static enum status score(void *context, uint64_t index, const float *logits, struct error *error) {
    struct perplexity *p = context;
    token_id next = p->window[p->first_scored + index + 1];
    log_softmax(logits, (uint32_t)p->vocabulary_size, p->own);
    if (!isfinite(p->own[next]))
        return error_set(error, STATUS_FAILED, "the model gives no probability at place %llu",
                         (unsigned long long)p->place);
    if (p->saves) TRY(logits_base_write(&p->writer, logits, error));
    if (p->compares)
        TRY(compare(p, next, error));
    else
        tally_add(&p->figures.loss, -(double)p->own[next]);
    p->place++;
    return STATUS_OK;
}

static bool stop_asked(void *context, uint64_t done, uint64_t total) {
    (void)context;
    (void)done;
    (void)total;
    return interrupt_requested();
}

static enum status score_window(struct perplexity *p, size_t index, struct error *error) {
    memcpy(p->window, p->text.ids + index * p->window_size, p->window_size * sizeof *p->window);
    if (tokenizer_adds_bos(p->session.tokenizer)) p->window[0] = tokenizer_bos(p->session.tokenizer);
    sequence_truncate(p->sequence, 0);
    /* The first half needs no logits, and the last token predicts nothing inside the window. */
    struct prefill_request before = {.tokens = p->window, .token_count = p->first_scored, .progress = stop_asked};
    struct prefill_request scored = {.tokens = p->window + p->first_scored,
                                     .token_count = p->window_size - 1 - p->first_scored,
                                     .progress = stop_asked,
                                     .each = score,
                                     .each_context = p,
                                     .selects = true};
    const float *logits;
    if (before.token_count > 0) TRY(engine_prefill(p->session.engine, p->sequence, &before, &logits, error));
    TRY(engine_prefill(p->session.engine, p->sequence, &scored, &logits, error));
    return interrupt_requested() ? error_set(error, STATUS_INTERRUPTED, "interrupted") : STATUS_OK;
}

/* ---- printing ---- */

static enum status print_window(const struct perplexity *p, size_t index, struct error *error) {
    if (!p->compares) {
        output_text("[%zu]%.4f,", index + 1, exp(tally_mean(&p->figures.loss)));
        return output_flush(error);
    }
    if (index == 0) output_text("chunk             PPL    ln(PPL(Q)/PPL(base))          KL Divergence    Same top p\n");
    output_text("%5zu  %14.4f  %22.5f  %21.5f  %10.3f %%\n", index + 1, exp(tally_mean(&p->figures.loss)),
                tally_mean(&p->figures.loss) - tally_mean(&p->figures.base_loss), tally_mean(&p->figures.kld),
                100 * (double)p->figures.same_top / (double)p->place);
    return output_flush(error);
}

static int compare_floats(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void print_comparison(struct perplexity *p) {
    qsort(p->divergences, p->place, sizeof *p->divergences, compare_floats);
    double same = (double)p->figures.same_top / (double)p->place, count = (double)p->place;
    double rms = sqrt(p->figures.delta_p.square / count);
    output_text("\n====== Perplexity statistics ======\n");
    output_text("Mean PPL(Q)                   : %10.6f \xc2\xb1 %10.6f\n", exp(tally_mean(&p->figures.loss)),
                exp(tally_mean(&p->figures.loss)) * tally_error(&p->figures.loss));
    output_text("Mean PPL(base)                : %10.6f \xc2\xb1 %10.6f\n", exp(tally_mean(&p->figures.base_loss)),
                exp(tally_mean(&p->figures.base_loss)) * tally_error(&p->figures.base_loss));
    output_text("Mean ln(PPL(Q)/PPL(base))     : %10.6f\n",
                tally_mean(&p->figures.loss) - tally_mean(&p->figures.base_loss));
    output_text("\n====== KL divergence statistics ======\n");
    output_text("Mean    KLD: %10.6f \xc2\xb1 %10.6f\n", tally_mean(&p->figures.kld), tally_error(&p->figures.kld));
    output_text("Maximum KLD: %10.6f\n", (double)p->divergences[p->place - 1]);
    output_text("99.0%%   KLD: %10.6f\n", (double)p->divergences[(size_t)(0.99 * (count - 1))]);
    output_text("Median  KLD: %10.6f\n", (double)p->divergences[(p->place - 1) / 2]);
    output_text("\n====== Token probability statistics ======\n");
    output_text("Mean    \xce\x94p: %6.3f \xc2\xb1 %5.3f %%\n", 100 * tally_mean(&p->figures.delta_p),
                100 * tally_error(&p->figures.delta_p));
    output_text("RMS \xce\x94p    : %6.3f %%\n", 100 * rms);
    output_text("Same top p: %6.3f \xc2\xb1 %5.3f %%\n", 100 * same,
                count > 1 ? 100 * sqrt(same * (1 - same) / (count - 1)) : 0);
}

static enum status print_estimate(struct perplexity *p, size_t window_count, struct error *error) {
    double estimate = exp(tally_mean(&p->figures.loss));
    if (!p->compares) output_text("\n");
    output_text("Final estimate: PPL over %zu chunks for n_ctx=%zu = %.4f +/- %.5f\n", window_count, p->window_size,
                estimate, estimate * tally_error(&p->figures.loss));
    if (p->compares) print_comparison(p);
    return output_flush(error);
}

static void print_pace(const struct perplexity *p, size_t done) {
    if (option_flag(p->options, OPTION_QUIET) || done != 1) return;
    double seconds = clock_seconds() - p->began, left = seconds * (double)(p->window_count - 1);
    fprintf(stderr, "loam-lab: %zu windows of %zu tokens, %.2f s each, %u:%02u left\n", p->window_count, p->window_size,
            seconds, (unsigned)left / 60, (unsigned)left % 60);
}

/* ---- opening ---- */

/* Identifies the vocabulary by every token's bytes. */
static uint64_t vocabulary_fingerprint(const struct tokenizer *tokenizer) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t id = 0; id < tokenizer_vocabulary_size(tokenizer); id++) {
        char piece[256];
        size_t length = min_size(tokenizer_piece(tokenizer, (token_id)id, true, piece, sizeof piece), sizeof piece);
        for (size_t i = 0; i < length; i++) hash = (hash ^ (unsigned char)piece[i]) * UINT64_C(0x100000001b3);
        hash = (hash ^ length) * UINT64_C(0x100000001b3);
    }
    return hash;
}

static enum status read_base(struct perplexity *p, const char *path, struct error *error) {
    TRY(logits_base_open(&p->base, path, error));
    const struct logits_base_head *head = &p->base.head;
    if (head->vocabulary_size != p->vocabulary_size ||
        !logits_base_matches(&p->base, vocabulary_fingerprint(p->session.tokenizer)))
        return error_set(error, STATUS_DOCUMENT, "%s: made with another vocabulary, of %u tokens (here %zu)", path,
                         head->vocabulary_size, p->vocabulary_size);
    if (option_given(p->options, OPTION_CONTEXT) && head->window_size != p->window_size)
        return error_set(error, STATUS_DOCUMENT, "%s: made with -c %u, not %zu", path, head->window_size,
                         p->window_size);
    p->window_size = head->window_size;
    p->first_scored = logits_base_first_scored(head->window_size);
    p->window_count = head->window_count;
    for (uint64_t i = 0; i < (uint64_t)head->window_count * head->window_size; i++)
        TRY(token_list_append(&p->text, p->base.tokens[i], error));
    p->divergences = calloc((size_t)p->window_count * p->window_size, sizeof *p->divergences);
    return p->divergences != NULL ? STATUS_OK : error_set(error, STATUS_MEMORY, "out of memory");
}

static enum status read_text(struct perplexity *p, struct error *error) {
    TRY(prompt_tokens(p->options, NULL, p->session.tokenizer, &p->text, error));
    p->first_scored = logits_base_first_scored((uint32_t)p->window_size);
    p->window_count = p->text.count / p->window_size;
    if (p->window_count == 0)
        return error_set(error, STATUS_USAGE, "perplexity: the text has %zu tokens, a window %zu: give -c or more text",
                         p->text.count, p->window_size);
    return STATUS_OK;
}

static enum status open_perplexity(struct perplexity *p, struct error *error) {
    const struct options *options = p->options;
    const char *base_path = option_text(options, OPTION_KL_BASE);
    p->compares = option_flag(options, OPTION_KL_COMPARE);
    p->saves = base_path != NULL && !p->compares;
    if (p->compares && base_path == NULL)
        return error_set(error, STATUS_USAGE, "--kl-divergence needs --kl-divergence-base FILE");
    if (!p->compares && option_text(options, OPTION_FILE) == NULL)
        return error_set(error, STATUS_USAGE, "perplexity: which text?  -f FILE");
    TRY(plan_read(&p->plan, options, error));
    TRY(session_open(&p->session, options, option_count(options, OPTION_THREADS), error));
    TRY(session_open_tokenizer(&p->session, options, error));
    p->vocabulary_size = p->session.model->config.vocabulary_size;
    p->window_size = option_count(options, OPTION_CONTEXT);
    if (p->window_size > INT32_MAX)
        return error_set(error, STATUS_USAGE, "-c: found %zu, expected at most %d", p->window_size, INT32_MAX);
    TRY(p->compares ? read_base(p, base_path, error) : read_text(p, error));
    int64_t chunks = option_integer(options, OPTION_CHUNKS);
    if (chunks >= 0 && (uint64_t)chunks < p->window_count) p->window_count = (size_t)chunks;
    if (p->window_count == 0) return error_set(error, STATUS_USAGE, "--chunks: found 0, expected 1 or more");
    p->plan.context_size = p->window_size;
    p->plan.batch_size = plan_read_batch_size(options);
    TRY(session_create_engine(&p->session, &p->plan, NULL, error));
    TRY(sequence_create(&p->sequence, p->session.engine, error));
    p->window = calloc(p->window_size, sizeof *p->window);
    p->own = calloc(p->vocabulary_size, sizeof *p->own);
    p->theirs = calloc(p->vocabulary_size, sizeof *p->theirs);
    if (p->window == NULL || p->own == NULL || p->theirs == NULL)
        return error_set(error, STATUS_MEMORY, "out of memory");
    if (!p->saves) return STATUS_OK;
    struct logits_base_head head = {.vocabulary_size = (uint32_t)p->vocabulary_size,
                                    .window_size = (uint32_t)p->window_size,
                                    .window_count = (uint32_t)p->window_count};
    return logits_base_create(&p->writer, base_path, &head, vocabulary_fingerprint(p->session.tokenizer), p->text.ids,
                              error);
}

static enum status score_all(struct perplexity *p, struct error *error) {
    p->began = clock_seconds();
    size_t done = 0;
    enum status status = STATUS_OK;
    while (status == STATUS_OK && done < p->window_count) {
        status = score_window(p, done, error);
        if (status != STATUS_OK) break;
        done++;
        print_pace(p, done);
        status = print_window(p, done - 1, error);
    }
    if (status == STATUS_OK) status = print_estimate(p, done, error);
    if (status == STATUS_OK && p->saves) status = logits_base_commit(&p->writer, error);
    return status;
}

enum status perplexity_output(const struct options *options, const char **name, char **path, struct error *error) {
    const char *base = option_text(options, OPTION_KL_BASE);
    *name = "--kl-divergence-base";
    *path = NULL;
    if (base == NULL || option_flag(options, OPTION_KL_COMPARE)) return STATUS_OK;
    *path = strdup(base);
    return *path != NULL ? STATUS_OK : error_set(error, STATUS_MEMORY, "out of memory");
}

enum status perplexity_command(const struct options *options, struct error *error) {
    interrupt_install();
    struct perplexity *p = calloc(1, sizeof *p);
    if (p == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    p->options = options;
    enum status status = open_perplexity(p, error);
    if (status == STATUS_OK) status = score_all(p, error);
    if (status == STATUS_INTERRUPTED) error->message[0] = '\0'; /* the user knows */
    logits_base_abort(&p->writer);
    logits_base_close(&p->base);
    sequence_destroy(p->sequence);
    session_close(&p->session);
    token_list_deinit(&p->text);
    free(p->window);
    free(p->own);
    free(p->theirs);
    free(p->divergences);
    free(p);
    return status;
}
