/* loam-lab eval kl: how far a preset's next-token distributions are from those of full attention, by position.
 *
 * A text is read into the context with full attention.  At each length L of --lengths the last --stretch tokens before
 * L are read again and again from the same prefix: with full attention, which is the base, and with each preset,
 * every token attending as in a decode step of its own.  With --kv-disk a preset decodes them, over KV of its own of
 * which --kv-host is in RAM. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "lab/cli/eval_reader.h"
#include "lab/eval/divergence.h"
#include "server/json_text.h"

/* What a preset's rows attended to. */
struct kl_choice {
    uint64_t kept, visible;
    struct reuse_counts reuse;
};

struct kl_run {
    struct evaluation *evaluation;
    struct eval_reader reader;
    size_t vocabulary_size;
    float *base; /* [stretch][vocabulary_size] log-probabilities, owned */
    float *own;  /* [vocabulary_size], owned */
    const struct eval_place *place;
    size_t preset; /* being read; preset_count: the base */
    struct divergence figures[EVAL_PRESETS_MAX][EVAL_LENGTHS_MAX];
    double largest[EVAL_PRESETS_MAX][EVAL_LENGTHS_MAX]; /* KLD */
    struct divergence window;                           /* of the current preset, at one length of one window */
    struct eval_tier_work work[EVAL_PRESETS_MAX][EVAL_LENGTHS_MAX];
    struct kl_choice choices[EVAL_PRESETS_MAX][EVAL_LENGTHS_MAX];
};

/* An engine_each_logits: token `index` of the stretch was read, and its logits predict the next one. */
static enum status each(void *context, uint64_t index, const float *logits, struct error *error) {
    struct kl_run *run = context;
    float *base = run->base + index * run->vocabulary_size;
    token_id next = run->place->next[index];
    bool is_base = run->preset == run->evaluation->preset_count;
    float *row = is_base ? base : run->own;
    log_softmax(logits, (uint32_t)run->vocabulary_size, row);
    if (!isfinite(row[next]))
        return error_set(error, STATUS_FAILED, "the model gives no probability at token %" PRIu64 " of %" PRIu64, index,
                         run->place->length);
    if (is_base) return STATUS_OK;
    double kld = divergence_add(&run->figures[run->preset][run->place->length_index], base, row, run->vocabulary_size,
                                -INFINITY, (uint32_t)next);
    (void)divergence_add(&run->window, base, row, run->vocabulary_size, -INFINITY, (uint32_t)next);
    double *largest = &run->largest[run->preset][run->place->length_index];
    if (kld > *largest) *largest = kld;
    return STATUS_OK;
}

static json_t *figures_json(const struct kl_run *run, size_t preset, uint64_t length, const struct divergence *d) {
    json_t *row = json_object();
    json_put(row, "preset", json_string(run->evaluation->labels[preset]));
    json_put_uint(row, "length", length);
    json_put_uint(row, "tokens", d->kld.count);
    json_put_number(row, "perplexity", exp(tally_mean(&d->loss)));
    json_put_number(row, "perplexity_base", exp(tally_mean(&d->base_loss)));
    json_put_number(row, "kld", tally_mean(&d->kld));
    json_put_number(row, "kld_error", tally_error(&d->kld));
    json_put_number(row, "same_top", (double)d->same_top / (double)d->kld.count);
    json_put_number(row, "delta_p_mean", tally_mean(&d->delta_p));
    json_put_number(row, "delta_p_rms", sqrt(d->delta_p.square / (double)d->delta_p.count));
    return row;
}

static void add_work(json_t *row, const struct eval_tier_work *work) {
    json_put_uint(row, "decoded_tokens", work->tokens);
    json_put_number(row, "decode_seconds", work->seconds);
    json_put_uint(row, "disk_bytes", work->read_bytes);
    json_put_uint(row, "hits", work->hits);
    json_put_uint(row, "misses", work->misses);
    json_put_uint(row, "prefetched", work->prefetched);
    json_put_uint(row, "prefetched_used", work->prefetched_used);
    json_put_uint(row, "resident_heads", work->resident_heads);
}

static void add_window_work(json_t *row, const struct eval_tier_work *before, const struct eval_tier_work *after) {
    add_work(row, &(struct eval_tier_work){.tokens = after->tokens - before->tokens,
                                           .seconds = after->seconds - before->seconds,
                                           .read_bytes = after->read_bytes - before->read_bytes,
                                           .hits = after->hits - before->hits,
                                           .misses = after->misses - before->misses,
                                           .prefetched = after->prefetched - before->prefetched,
                                           .prefetched_used = after->prefetched_used - before->prefetched_used,
                                           .resident_heads = after->resident_heads});
}

static enum status read_base(void *context, const struct eval_place *place, struct error *error) {
    struct kl_run *run = context;
    run->place = place;
    run->preset = run->evaluation->preset_count;
    return eval_reader_stretch(&run->reader, place, false, each, run, error);
}

static void add_choice(struct kl_choice *choice, const struct select_statistics *before,
                       const struct select_statistics *after) {
    choice->kept += after->kept - before->kept;
    choice->visible += after->visible - before->visible;
    choice->reuse.hits += after->reuse.hits - before->reuse.hits;
    choice->reuse.misses += after->reuse.misses - before->reuse.misses;
}

/* Heads of rows that took a list from a row before, of those that looked; negative: none did. */
static double hits_percent(const struct kl_choice *choice) {
    const uint64_t lookups = choice->reuse.hits + choice->reuse.misses;
    return lookups > 0 ? 100 * (double)choice->reuse.hits / (double)lookups : -1;
}

static double kept_percent(const struct kl_choice *choice) {
    return choice->visible > 0 ? 100 * (double)choice->kept / (double)choice->visible : 100;
}

static enum status read_preset(void *context, const struct eval_place *place, size_t preset, struct error *error) {
    struct kl_run *run = context;
    struct evaluation *evaluation = run->evaluation;
    struct eval_tier_work *work = &run->work[preset][place->length_index], before = *work;
    run->place = place;
    run->preset = preset;
    run->window = (struct divergence){0};
    const bool on_disk = evaluation->tiers.used;
    if (on_disk) TRY(eval_tiers_open(evaluation, place->length, error));
    struct attention *attention =
        engine_attention(on_disk ? evaluation->tiers.engines[preset] : evaluation->session.engine);
    const struct select_statistics began = attention_statistics(attention);
    if (on_disk) {
        const struct eval_tier_steps steps = {.prefix_tokens = place->length - run->reader.stretch,
                                              .tokens = place->tokens,
                                              .count = (size_t)run->reader.stretch,
                                              .each = each,
                                              .context = run};
        TRY(eval_tiers_decode(evaluation, preset, &steps, work, error));
    } else {
        TRY(eval_reader_stretch(&run->reader, place, true, each, run, error));
    }
    const struct select_statistics ended = attention_statistics(attention);
    add_choice(&run->choices[preset][place->length_index], &began, &ended);
    if (!evaluation_wants_lines(evaluation)) return STATUS_OK;
    json_t *line = figures_json(run, preset, place->length, &run->window);
    json_put_uint(line, "window", run->reader.windows_done);
    if (ended.reuse.hits + ended.reuse.misses > 0) {
        json_put_uint(line, "lists_reused", ended.reuse.hits - began.reuse.hits);
        json_put_uint(line, "lists_chosen", ended.reuse.misses - began.reuse.misses);
    }
    if (evaluation->tiers.used) add_window_work(line, &before, work);
    return evaluation_line(evaluation, line, error);
}

static void row_cells(const struct kl_run *run, struct table *table, size_t preset, size_t length) {
    const struct divergence *d = &run->figures[preset][length];
    double same = d->kld.count > 0 ? (double)d->same_top / (double)d->kld.count : 0;
    table_cell(table, "%s", run->evaluation->labels[preset]);
    table_cell(table, "%" PRIu64, run->reader.lengths[length]);
    table_cell(table, "%" PRIu64, d->kld.count);
    table_cell(table, "%.4f \xc2\xb1 %.4f", exp(tally_mean(&d->loss)),
               exp(tally_mean(&d->loss)) * tally_error(&d->loss));
    table_cell(table, "%.5f", tally_mean(&d->loss) - tally_mean(&d->base_loss));
    table_cell(table, "%.6f \xc2\xb1 %.6f", tally_mean(&d->kld), tally_error(&d->kld));
    table_cell(table, "%.4f", run->largest[preset][length]);
    table_cell(table, "%.2f", 100 * same);
    table_cell(table, "%.2f", 100 * sqrt(d->delta_p.square / (double)d->delta_p.count));
    const struct kl_choice *choice = &run->choices[preset][length];
    table_cell(table, "%.1f", kept_percent(choice));
    if (hits_percent(choice) >= 0)
        table_cell(table, "%.1f", hits_percent(choice));
    else
        table_cell(table, "-");
    if (!run->evaluation->tiers.used) return;
    const struct eval_tier_work *work = &run->work[preset][length];
    uint64_t attended = work->hits + work->misses;
    table_cell(table, "%.2f", (double)work->read_bytes / 1e6 / (double)work->tokens);
    table_cell(table, "%.1f", attended > 0 ? 100 * (double)work->hits / (double)attended : 100);
    table_cell(table, "%zu", work->resident_heads);
}

static json_t *row_json(const struct kl_run *run, size_t preset, size_t length) {
    json_t *row = figures_json(run, preset, run->reader.lengths[length], &run->figures[preset][length]);
    json_put_number(row, "kld_largest", run->largest[preset][length]);
    const struct kl_choice *choice = &run->choices[preset][length];
    json_put_number(row, "kept_ratio", kept_percent(choice) / 100);
    if (hits_percent(choice) >= 0) json_put_number(row, "reuse_hit_ratio", hits_percent(choice) / 100);
    if (run->evaluation->tiers.used) add_work(row, &run->work[preset][length]);
    return row;
}

static enum status report(void *context, struct error *error) {
    struct kl_run *run = context;
    static const char *const heads[] = {
        "preset",     "length",          "tokens", "PPL",      "ln(PPL/base)", "KLD",    "largest KLD",
        "same top %", "RMS \xce\x94p %", "kept %", "reused %", "disk MB/t",    "hits %", "heads stay"};
    struct table table = {.column_count = sizeof heads / sizeof heads[0] - (run->evaluation->tiers.used ? 0 : 3)};
    json_t *root = evaluation_json(run->evaluation), *results = json_array();
    for (size_t i = 0; i < table.column_count; i++) {
        table.is_number[i] = i > 0;
        table_cell(&table, "%s", heads[i]);
    }
    for (size_t length = 0; length < run->reader.length_count; length++)
        for (size_t preset = 0; preset < run->evaluation->preset_count; preset++) {
            if (run->figures[preset][length].kld.count == 0) continue;
            row_cells(run, &table, preset, length);
            json_array_append_new(results, row_json(run, preset, length));
        }
    json_put(root, "results", results);
    char note[200];
    snprintf(note, sizeof note,
             "%s: the %" PRIu64 " tokens before each length, of %zu windows; base: full attention; nats",
             run->reader.text_name, run->reader.stretch, run->reader.windows_done);
    enum status status = evaluation_report(run->evaluation, &table, note, root, error);
    table_deinit(&table);
    return status;
}

static enum status open_run(struct kl_run *run, struct error *error) {
    TRY(eval_reader_open(&run->reader, run->evaluation, error));
    run->vocabulary_size = run->evaluation->session.model->config.vocabulary_size;
    uint64_t bytes;
    if (!checked_multiply(run->reader.stretch * sizeof(float), run->vocabulary_size, &bytes) || bytes > 1u << 30)
        return error_set(error, STATUS_USAGE,
                         "--stretch %" PRIu64
                         ": the base's probabilities over %zu tokens of vocabulary would take more "
                         "than 1 GiB",
                         run->reader.stretch, run->vocabulary_size);
    run->base = malloc(bytes);
    run->own = malloc(run->vocabulary_size * sizeof *run->own);
    if (run->base == NULL || run->own == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    return STATUS_OK;
}

enum status eval_kl(struct evaluation *evaluation, struct error *error) {
    struct kl_run *run = calloc(1, sizeof *run);
    if (run == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    run->evaluation = evaluation;
    enum status status = open_run(run, error);
    if (status == STATUS_OK) {
        status = eval_reader_run(&run->reader, read_base, read_preset, run, error);
        status = evaluation_conclude(status, report, run, error);
    }
    eval_reader_close(&run->reader);
    free(run->base);
    free(run->own);
    free(run);
    return status;
}
