/* loam-lab eval recall: what each preset's selection caught, per layer and query head. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "lab/cli/eval_reader.h"
#include "lab/eval/recall.h"
#include "platform/pool.h"
#include "server/json_text.h"

struct recall_run {
    struct evaluation *evaluation;
    struct eval_reader reader;
    struct recall recall;
    size_t layer_count, head_count;
    /* Each owned, [layer_count][head_count]. */
    struct recall_cell *cells[EVAL_PRESETS_MAX][EVAL_LENGTHS_MAX];
    struct tree_counts tree[EVAL_PRESETS_MAX][EVAL_LENGTHS_MAX];
};

/* Asks for the logits of every token only so that the last layer runs for all of them. */
static enum status ignore_logits(void *context, uint64_t index, const float *logits, struct error *error) {
    (void)context, (void)index, (void)logits, (void)error;
    return STATUS_OK;
}

static enum status read_preset(void *context, const struct eval_place *place, size_t preset, struct error *error) {
    struct recall_run *run = context;
    struct engine *engine = run->evaluation->session.engine;
    struct attention *attention = engine_attention(engine);
    if (engine_select(engine) == NULL) return STATUS_OK; /* everything */
    recall_reset(&run->recall);
    attention_reset_statistics(attention);
    attention_set_observer(attention, recall_add, &run->recall);
    enum status status = eval_reader_stretch(&run->reader, place, true, ignore_logits, run, error);
    attention_set_observer(attention, NULL, NULL);
    TRY(status);
    struct select_statistics statistics = attention_statistics(attention);
    tree_counts_add(&run->tree[preset][place->length_index], &statistics.tree);
    struct recall_cell *cells = run->cells[preset][place->length_index];
    for (size_t layer = 0; layer < run->layer_count; layer++)
        for (size_t head = 0; head < run->head_count; head++)
            recall_cell_add(&cells[layer * run->head_count + head], recall_get(&run->recall, layer, head));
    return STATUS_OK;
}

/* ---- reporting ---- */

static struct recall_cell sum_of(const struct recall_cell *cells, size_t count) {
    struct recall_cell sum = {0};
    for (size_t i = 0; i < count; i++) recall_cell_add(&sum, &cells[i]);
    return sum;
}

/* Whether the table has a column for it. */
static bool bounds_mass(const struct recall_run *run) {
    bool bounds = false;
    for (size_t i = 0; i < run->evaluation->preset_count; i++)
        bounds = bounds || run->evaluation->plans[i].select.mass_bound;
    return bounds;
}

static double percent(double sum, uint64_t count) { return 100 * sum / (double)count; }

/* One layer, or all of them: the head that lost most is named. */
static void row_cells(struct table *table, const struct recall_run *run, size_t preset, size_t length,
                      struct range layers) {
    const struct recall_cell *cells = run->cells[preset][length];
    const size_t layer_first = layers.begin, layer_count = layers.end - layers.begin;
    struct recall_cell sum = sum_of(cells + layer_first * run->head_count, layer_count * run->head_count);
    size_t worst = SIZE_MAX;
    for (size_t i = layer_first * run->head_count; i < (layer_first + layer_count) * run->head_count; i++)
        if (cells[i].count > 0 && (worst == SIZE_MAX || cells[i].mass / (double)cells[i].count <
                                                            cells[worst].mass / (double)cells[worst].count))
            worst = i;
    table_cell(table, "%s", run->evaluation->labels[preset]);
    table_cell(table, "%" PRIu64, run->reader.lengths[length]);
    if (layer_count > 1)
        table_cell(table, "all");
    else
        table_cell(table, "%zu", layer_first);
    if (worst == SIZE_MAX) { /* the layer is dense, or has fewer tokens than are kept */
        table_cell(table, "100.00");
        table_cell(table, "100.00");
        if (bounds_mass(run)) table_cell(table, "100.00");
        table_cell(table, "-");
        table_cell(table, "100.00");
        table_cell(table, "-");
        return;
    }
    table_cell(table, "%.2f", percent(sum.kept, sum.count));
    table_cell(table, "%.2f", percent(sum.mass, sum.count));
    if (bounds_mass(run) && sum.mass_bound_count > 0)
        table_cell(table, "%.2f", percent(sum.mass_bound, sum.mass_bound_count));
    else if (bounds_mass(run))
        table_cell(table, "-");
    table_cell(table, "%.2f (%zu.%zu)", percent(cells[worst].mass, cells[worst].count), worst / run->head_count,
               worst % run->head_count);
    table_cell(table, "%.2f", percent(sum.top, sum.count));
    table_cell(table, "%" PRIu64, sum.count);
}

static json_t *head_json(const struct recall_run *run, size_t preset, size_t length, size_t index,
                         const struct recall_cell *cell) {
    json_t *object = json_object();
    double count = (double)cell->count;
    json_put(object, "preset", json_string(run->evaluation->labels[preset]));
    json_put_uint(object, "length", run->reader.lengths[length]);
    json_put_uint(object, "layer", index / run->head_count);
    json_put_uint(object, "head", index % run->head_count);
    json_put_uint(object, "tokens", cell->count);
    json_put_number(object, "kept", cell->count > 0 ? cell->kept / count : 1);
    json_put_number(object, "mass", cell->count > 0 ? cell->mass / count : 1);
    json_put_number(object, "mass_min", cell->count > 0 ? cell->mass_min : 1);
    json_put_number(object, "top", cell->count > 0 ? cell->top / count : 1);
    if (run->evaluation->plans[preset].select.mass_bound) {
        bool has = cell->mass_bound_count > 0;
        json_put_number(object, "mass_bound", has ? cell->mass_bound / (double)cell->mass_bound_count : 1);
        json_put_number(object, "mass_bound_min", has ? cell->mass_bound_min : 1);
        json_put_number(object, "mass_bound_excess", has ? cell->mass_bound_excess : 0);
    }
    return object;
}

/* Per preset with a tree and length: what its searches evaluated. */
static json_t *trees_json(const struct recall_run *run) {
    json_t *list = json_array();
    for (size_t preset = 0; preset < run->evaluation->preset_count; preset++)
        for (size_t length = 0; length < run->reader.length_count; length++) {
            json_t *object = tree_counts_json(&run->tree[preset][length]);
            if (object == NULL) continue;
            json_put(object, "preset", json_string(run->evaluation->labels[preset]));
            json_put_uint(object, "length", run->reader.lengths[length]);
            json_array_append_new(list, object);
        }
    return list;
}

static enum status report(void *context, struct error *error) {
    struct recall_run *run = context;
    static const char *const heads[] = {"preset",  "length",     "layer", "kept %", "mass %",
                                        "bound %", "worst head", "top %", "steps"};
    enum { MASS_BOUND = 5 };
    struct table table = {.column_count = sizeof heads / sizeof heads[0] - !bounds_mass(run)};
    json_t *root = evaluation_json(run->evaluation), *results = json_array();
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        if (i < table.column_count) table.is_number[i] = i > 0;
        if (i != MASS_BOUND || bounds_mass(run)) table_cell(&table, "%s", heads[i]);
    }
    for (size_t preset = 0; preset < run->evaluation->preset_count; preset++)
        for (size_t length = 0; length < run->reader.length_count; length++) {
            if (run->evaluation->plans[preset].select.method == &select_all) continue;
            const struct recall_cell *cells = run->cells[preset][length];
            for (size_t layer = 0; layer < run->layer_count; layer++)
                row_cells(&table, run, preset, length, (struct range){layer, layer + 1});
            if (run->layer_count > 1) row_cells(&table, run, preset, length, (struct range){0, run->layer_count});
            for (size_t i = 0; i < run->layer_count * run->head_count; i++)
                json_array_append_new(results, head_json(run, preset, length, i, &cells[i]));
        }
    json_put(root, "results", results);
    json_put(root, "trees", trees_json(run));
    char note[300];
    snprintf(note, sizeof note,
             "%s: the %" PRIu64 " tokens before each length, of %zu windows; all: layers that select; worst head: "
             "mass %% (layer.head)",
             run->reader.text_name, run->reader.stretch, run->reader.windows_done);
    enum status status = evaluation_report(run->evaluation, &table, note, root, error);
    table_deinit(&table);
    return status;
}

static enum status open_run(struct recall_run *run, struct error *error) {
    struct evaluation *evaluation = run->evaluation;
    bool selects = false;
    for (size_t i = 0; i < evaluation->preset_count; i++)
        selects = selects || evaluation->plans[i].select.method != &select_all;
    if (!selects)
        return error_set(error, STATUS_USAGE,
                         "eval recall: full reads everything; name presets that select: "
                         "--preset hata,quest");
    TRY(eval_reader_open(&run->reader, evaluation, error));
    const struct model_config *config = &evaluation->session.model->config;
    run->layer_count = config->layer_count;
    run->head_count = config->head_count;
    struct recall_shape shape = {.layer_count = config->layer_count,
                                 .head_count = config->head_count,
                                 .kv_head_count = config->kv_head_count,
                                 .k_dimension = config->k_dimension,
                                 .scale = config->attention_scale,
                                 .softcap = config->score_softcap};
    TRY(recall_create(&run->recall, &shape, run->reader.window_size, error));
    for (size_t preset = 0; preset < evaluation->preset_count; preset++)
        for (size_t length = 0; length < run->reader.length_count; length++) {
            struct recall_cell *cells = calloc(run->layer_count * run->head_count, sizeof *cells);
            if (cells == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
            run->cells[preset][length] = cells;
        }
    return STATUS_OK;
}

enum status eval_recall(struct evaluation *evaluation, struct error *error) {
    struct recall_run *run = calloc(1, sizeof *run);
    if (run == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    run->evaluation = evaluation;
    enum status status = open_run(run, error);
    if (status == STATUS_OK) {
        status = eval_reader_run(&run->reader, NULL, read_preset, run, error);
        status = evaluation_conclude(status, report, run, error);
    }
    eval_reader_close(&run->reader);
    recall_destroy(&run->recall);
    for (size_t preset = 0; preset < EVAL_PRESETS_MAX; preset++)
        for (size_t length = 0; length < EVAL_LENGTHS_MAX; length++) free(run->cells[preset][length]);
    free(run);
    return status;
}
