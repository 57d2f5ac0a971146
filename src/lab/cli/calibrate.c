/* loam-lab calibrate. */
#include "lab/calibrate/calibrate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/prompt.h"
#include "cli/session.h"
#include "lab/cli/lab.h"
#include "model/calibration.h"
#include "platform/clock.h"

struct calibrate {
    const struct options *options;
    struct session session;
    struct token_list text;
    int32_t *windows; /* owned, [window_count * window_size] */
    struct calibrate_options how;
    struct calibration_result result;
    struct progress progress;
};

/* ---- before ---- */

static enum status read_texts(struct calibrate *c, struct error *error) {
    for (size_t i = 1; i < c->options->positional_count; i++) {
        char *text;
        size_t length;
        TRY(prompt_read_text(c->options, c->options->positionals[i], &text, &length, error));
        enum status status =
            tokenizer_encode(c->session.tokenizer, text, length, (struct tokenize_options){0}, &c->text, error);
        free(text);
        TRY(status);
    }
    return STATUS_OK;
}

/* A step that visits each of `count` places once, by about the golden ratio: any stretch of such a walk is spread
 * over all places. */
static size_t golden_step(size_t count) {
    for (size_t step = (size_t)(0.618 * (double)count + 0.5);; step++) {
        size_t a = count, b = step;
        while (b != 0) {
            size_t rest = a % b;
            a = b, b = rest;
        }
        if (a == 1) return step;
    }
}

/* Windows at equal distances over all texts, ordered so that learning, choosing and holding out (in this order) each
 * get windows of all texts. */
static enum status cut_windows(struct calibrate *c, struct error *error) {
    size_t size = c->how.window_size, count = c->how.window_count;
    c->windows = calloc(count * size, sizeof *c->windows);
    if (c->windows == NULL) return error_set(error, STATUS_MEMORY, "no memory for %zu tokens", count * size);
    size_t distance = count > 1 ? (c->text.count - size) / (count - 1) : 0;
    for (size_t i = 0, step = golden_step(count), place = 0; i < count; i++, place = (place + step) % count)
        memcpy(c->windows + i * size, c->text.ids + place * distance, size * sizeof *c->windows);
    return STATUS_OK;
}

static enum status choose(struct calibrate *c, struct error *error) {
    const struct options *options = c->options;
    const struct option_value *bits = option_list(options, OPTION_HASH_BITS);
    c->how = calibrate_options_default();
    c->how.window_size = option_count(options, OPTION_CONTEXT);
    c->how.window_count = option_count(options, OPTION_WINDOWS);
    c->how.training.epochs = option_count(options, OPTION_EPOCHS);
    c->how.seed = (uint64_t)option_integer(options, OPTION_SEED);
    c->how.mask = c->session.mask;
    if (bits->list_count > CALIBRATE_BITS_MAX)
        return error_set(error, STATUS_USAGE, "--bits: at most %d lengths", CALIBRATE_BITS_MAX);
    c->how.bits_count = bits->list_count == 1 && bits->list[0] == 0 ? 0 : bits->list_count;
    for (size_t i = 0; i < c->how.bits_count; i++) {
        c->how.bits[i] = (size_t)bits->list[i];
        for (size_t j = 0; j < i; j++)
            if (c->how.bits[j] == c->how.bits[i])
                return error_set(error, STATUS_USAGE, "--bits: %zu is given twice", c->how.bits[i]);
        if (c->how.bits[i] % 32 != 0 || c->how.bits[i] == 0)
            return error_set(error, STATUS_USAGE, "--bits: found %zu, expected multiples of 32, or 0 alone",
                             c->how.bits[i]);
    }
    if (tokenizer_adds_bos(c->session.tokenizer)) c->how.bos = tokenizer_bos(c->session.tokenizer);
    return calibrate_options_fit(&c->how, c->session.model, c->text.count, error);
}

/* Rejects a file of scores of the wrong shape before the work. */
static enum status check_heads(const struct calibrate *c, struct error *error) {
    const struct model_config *config = &c->session.model->config;
    const char *path = option_text(c->options, OPTION_IMPORT_HEADS);
    if (path == NULL) return STATUS_OK;
    struct calibration_result shape = {
        .layer_count = config->layer_count, .head_count = config->head_count, .kv_head_count = config->kv_head_count};
    shape.importance = calloc(config->layer_count * config->head_count, sizeof *shape.importance);
    enum status status = shape.importance == NULL ? error_set(error, STATUS_MEMORY, "out of memory")
                                                  : calibrate_import_heads(&shape, path, error);
    calibration_result_deinit(&shape);
    return status;
}

/* ---- after ---- */

static double mean_of(const float *values, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += (double)values[i];
    return sum / (double)count;
}

/* Means over heads that are not idle: idle heads find everything with any codes. */
static void print_mean(const char *label, const double sums[3], size_t count) {
    if (count == 0)
        output_text("%5s     idle\n", label);
    else
        output_text("%5s   %6.3f     %6.3f   %6.3f\n", label, sums[0] / (double)count, sums[1] / (double)count,
                    sums[2] / (double)count);
}

static void print_recalls(const struct calibration_result *r, size_t which) {
    double all[3] = {0};
    size_t all_count = 0;
    output_text("\nRecall of the true top %.0f%% by hash codes of %zu bits, held-out windows\n", 100 * r->options.keep,
                r->options.bits[which]);
    output_text("layer   random  published  learned\n");
    for (size_t layer = 0; layer < r->layer_count; layer++) {
        if (calibration_kv_heads(r, layer) == 0) continue;
        double sums[3] = {0};
        size_t count = 0;
        char label[24];
        for (size_t head = 0; head < calibration_kv_heads(r, layer); head++) {
            const struct hash_learned *l = &r->learned[which][calibration_lane(r, layer, head)];
            if (calibration_kv_head_is_idle(r, layer, head)) continue;
            sums[0] += l->random, sums[1] += l->published, sums[2] += l->learned, count++;
        }
        for (size_t i = 0; i < 3; i++) all[i] += sums[i];
        all_count += count;
        snprintf(label, sizeof label, "%zu", layer);
        print_mean(label, sums, count);
    }
    print_mean("mean", all, all_count);
}

static void print_idle(const struct calibration_result *r) {
    size_t count = 0;
    for (size_t i = 0; i < r->layer_count * r->head_count; i++)
        if (r->idle[i] && calibration_kv_heads(r, i / r->head_count) > 0)
            output_text("%s %zu.%zu",
                        count++ == 0 ? "\nIdle heads, whose queries are zero, in no mean of recall, "
                                       "similarity and skew:"
                                     : ",",
                        i / r->head_count, i % r->head_count);
    if (count > 0) output_text("\n");
}

/* Over the query heads (or KV heads) of a layer that are not idle; 0: all are. */
static double mean_similarity(const struct calibration_result *r, const float *similarity, size_t layer) {
    double sum = 0;
    size_t count = 0;
    for (size_t i = layer * r->head_count; i < (layer + 1) * r->head_count; i++)
        if (!r->idle[i]) sum += (double)similarity[i], count++;
    return count > 0 ? sum / (double)count : 0;
}

static double mean_skew(const struct calibration_result *r, size_t layer) {
    double sum = 0;
    size_t count = 0;
    for (size_t i = 0; i < calibration_kv_heads(r, layer); i++)
        if (!calibration_kv_head_is_idle(r, layer, i))
            sum += (double)r->skew_kept[calibration_lane(r, layer, i)], count++;
    return count > 0 ? sum / (double)count : 0;
}

static void print_layers(const struct calibration_result *r) {
    output_text("\nHead importance: %s; similarity: mean cosine of adjacent queries, of the text and of what "
                "the model\n"
                "writes behind it; error of a layer's attention output with K or V rounded; skew: share of\n"
                "(sigma_q sigma_k)^2 in the first fifth of the columns\n",
                r->importance_source);
    output_text("layer  importance  similarity  written      K8      V8      K4      V4    skew\n");
    for (size_t layer = 0; layer < r->layer_count; layer++) {
        if (calibration_kv_heads(r, layer) == 0) continue;
        const float *s = r->sensitivity + layer * STUDY_ROUNDINGS;
        output_text("%5zu  %10.3f  %10.3f  %7.3f  %6.4f  %6.4f  %6.4f  %6.4f  %6.3f\n", layer,
                    mean_of(r->importance + layer * r->head_count, r->head_count),
                    mean_similarity(r, r->similarity, layer), mean_similarity(r, r->similarity_decoded, layer),
                    (double)s[STUDY_K8], (double)s[STUDY_V8], (double)s[STUDY_K4], (double)s[STUDY_V4],
                    mean_skew(r, layer));
    }
    output_text("\nImportance of each head\n");
    for (size_t layer = 0; layer < r->layer_count; layer++) {
        if (calibration_kv_heads(r, layer) == 0) continue;
        output_text("%5zu ", layer);
        for (size_t head = 0; head < r->head_count; head++)
            output_text(" %5.3f", (double)r->importance[layer * r->head_count + head]);
        output_text("\n");
    }
}

/* ---- the whole ---- */

static bool show(void *context, const char *stage, double done) {
    struct progress *progress = context;
    progress->label = stage;
    progress_update(progress, (uint64_t)(done * 10000), 10000);
    return interrupt_requested();
}

static enum status calibrate(struct calibrate *c, struct error *error) {
    const struct options *options = c->options;
    char *path = NULL, size_text[32];
    double began = clock_seconds();
    TRY(session_open_path(&c->session, options->positionals[0], options, option_count(options, OPTION_THREADS), error));
    TRY(session_open_tokenizer(&c->session, options, error));
    TRY(check_heads(c, error));
    TRY(read_texts(c, error));
    TRY(choose(c, error));
    TRY(cut_windows(c, error));
    bool quiet = option_flag(options, OPTION_QUIET);
    if (!quiet)
        fprintf(stderr, "loam-lab: %zu windows of %zu tokens, %zu of them held out\n", c->how.window_count,
                c->how.window_size, c->how.held_out);
    progress_begin(&c->progress, "reading", quiet);
    c->progress.unit = PROGRESS_WORK;
    c->how.progress = show, c->how.progress_context = &c->progress;
    enum status status = calibrate_run(&c->result, c->session.model, c->windows, &c->how, error);
    progress_end(&c->progress);
    TRY(status);
    if (option_given(options, OPTION_IMPORT_HEADS))
        TRY(calibrate_import_heads(&c->result, option_text(options, OPTION_IMPORT_HEADS), error));
    if (!option_given(options, OPTION_CALIBRATION)) TRY(calibration_path(options->positionals[0], &path, error));
    const char *target = path != NULL ? path : option_text(options, OPTION_CALIBRATION);
    status = calibration_write(&c->result, c->session.model, target, error);
    if (status == STATUS_OK && !quiet)
        fprintf(stderr, "loam-lab: %s, %.1f s, peak memory %s\n", target, clock_seconds() - began,
                bytes_text(peak_rss_bytes(), size_text, sizeof size_text));
    free(path);
    return status;
}

enum status calibrate_output(const struct options *options, const char **name, char **path, struct error *error) {
    *name = "-o";
    *path = NULL;
    return option_text(options, OPTION_CALIBRATION) != NULL ? STATUS_OK
                                                            : calibration_path(options->positionals[0], path, error);
}

enum status calibrate_command(const struct options *options, struct error *error) {
    struct calibrate *c = calloc(1, sizeof *c);
    if (c == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    interrupt_install();
    c->options = options;
    enum status status = calibrate(c, error);
    if (status == STATUS_INTERRUPTED) error->message[0] = '\0'; /* the user knows */
    if (status == STATUS_OK) {
        for (size_t i = 0; i < c->result.options.bits_count; i++) print_recalls(&c->result, i);
        print_layers(&c->result);
        print_idle(&c->result);
    }
    calibration_result_deinit(&c->result);
    free(c->windows);
    token_list_deinit(&c->text);
    session_close(&c->session);
    free(c);
    return status;
}
