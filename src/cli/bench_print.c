/* Prints the results of `loam bench`: a table, CSV or JSON. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench_result.h"
#include "cli/output.h"
#include "cli/page_fractions.h"
#include "cli/plan.h"
#include "cli/rebuilt.h"
#include "cli/version.h"
#include "rates/rates.h"
#include "server/json_text.h"

/* As llama-bench names it. */
static const char *backend_of(const struct bench_model *model) {
    return strcmp(model->device, "cpu") == 0 ? "CPU" : "CUDA";
}

static uint64_t token_count(const struct bench_test *test) {
    return (test->prompt_count + test->generate_count) * test->sequence_count;
}

static double sample_rate(const struct bench_test *test, size_t index) {
    return (double)token_count(test) * 1e9 / (double)test->samples_ns[index];
}

struct bench_statistics bench_statistics(const struct bench_test *test) {
    struct bench_statistics s = {0};
    size_t n = test->sample_count;
    if (n == 0) return s;
    for (size_t i = 0; i < n; i++) {
        s.mean_ns += (double)test->samples_ns[i] / (double)n;
        s.mean_rate += sample_rate(test, i) / (double)n;
    }
    if (n < 2) return s;
    for (size_t i = 0; i < n; i++) {
        double ns = (double)test->samples_ns[i] - s.mean_ns, rate = sample_rate(test, i) - s.mean_rate;
        s.deviation_ns += ns * ns / (double)(n - 1);
        s.deviation_rate += rate * rate / (double)(n - 1);
    }
    s.deviation_ns = sqrt(s.deviation_ns);
    s.deviation_rate = sqrt(s.deviation_rate);
    return s;
}

uint64_t bench_step_bytes(const struct bench_model *model, const struct bench_test *test) {
    return model->weight_bytes_per_token + test->sequence_count * test->kv_bytes.step;
}

/* "pp512", "tg128", "pp512+tg128", "tg128 x8", then " @ d4096". */
static const char *test_name(const struct bench_test *test, char *buffer, size_t buffer_bytes) {
    char name[160] = "";
    size_t used = 0;
    if (test->prompt_count > 0) used += (size_t)snprintf(name, sizeof name, "pp%" PRIu64, test->prompt_count);
    if (test->generate_count > 0)
        used += (size_t)snprintf(name + used, sizeof name - used, "%stg%" PRIu64, used > 0 ? "+" : "",
                                 test->generate_count);
    if (test->sequence_count > 1)
        used += (size_t)snprintf(name + used, sizeof name - used, " x%" PRIu64, test->sequence_count);
    if (test->depth > 0)
        snprintf(name + used, sizeof name - used, " @ d%" PRIu64 "%s", test->depth,
                 test->random_depth ? " (random KV)"
                 : test->replays    ? " (recorded KV)"
                                    : "");
    char plan[64];
    plan_text(test->plan, plan, sizeof plan);
    used = strlen(name);
    if (strcmp(plan, "full") != 0) snprintf(name + used, sizeof name - used, " %s", plan);
    snprintf(buffer, buffer_bytes, "%s", name);
    return buffer;
}

bool bench_measures_floor(const struct bench_test *test) { return test->generate_count > 0 && test->prompt_count == 0; }

/* Medians over the repetitions. */
struct floor {
    double bandwidth; /* bytes per second; 0: not measured */
    double ratio;     /* the part of it that decoding reached */
};

/* Of one repetition: a step compared with the reads between its steps. */
static double sample_ratio(const struct bench_model *model, const struct bench_test *test, size_t index) {
    double steps_per_second = sample_rate(test, index) / (double)test->sequence_count;
    return steps_per_second * (double)bench_step_bytes(model, test) / test->read_rates[index];
}

static struct floor floor_of(const struct bench_model *model, const struct bench_test *test) {
    double rates[BENCH_SAMPLES_MAX], ratios[BENCH_SAMPLES_MAX];
    if (test->sample_count == 0 || test->read_rates[0] <= 0) return (struct floor){0};
    for (size_t i = 0; i < test->sample_count; i++) {
        rates[i] = test->read_rates[i];
        ratios[i] = sample_ratio(model, test, i);
    }
    return (struct floor){rate_median(rates, test->sample_count), rate_median(ratios, test->sample_count)};
}

/* ---- the table ---- */

enum { TEST_WIDTH = 16, RATE_WIDTH = 18 };

static void print_dashes(size_t width) {
    for (size_t i = 0; i < width; i++) output_bytes("-", 1);
}

static void print_rule(size_t width, bool right) {
    output_text(" ");
    print_dashes(right ? width - 1 : width);
    output_text(right ? ": |" : " |");
}

/* One function prints both the titles and the rule below them. */
static void print_head_line(const struct bench_printer *p, bool rule) {
    const struct {
        const char *title;
        size_t width;
        bool shown, right;
    } columns[] = {
        {"model", strlen(p->model->type), true, false},
        {"size", 11, true, true},
        {"params", 10, true, true},
        {"backend", 10, true, false},
        {"threads", 7, true, true},
        {"n_batch", 7, p->shows_batch, true},
        {"n_ubatch", 8, p->shows_ubatch, true},
        {"type_k", 6, p->shows_k, true},
        {"type_v", 6, p->shows_v, true},
        {"test", TEST_WIDTH, true, true},
        {"t/s", RATE_WIDTH, true, true},
        {"reused", 8, p->shows_reuse, true},
        {"age", 6, p->shows_reuse, true},
        {"MB kept", 9, p->shows_reuse, true},
        {"heads stay", 10, p->shows_heads, true},
        {"MB/step", 9, p->has_floor, true},
        {"read limit", 10, p->has_floor, true},
        {"reached", 8, p->has_floor, true},
    };
    output_text("|");
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++) {
        if (!columns[i].shown) continue;
        if (rule)
            print_rule(columns[i].width, columns[i].right);
        else
            output_text(columns[i].right ? " %*s |" : " %-*s |", (int)columns[i].width, columns[i].title);
    }
    output_text("\n");
}

/* Lists that were reused in all repetitions, the tokens since they were chosen, and their K and V a step. */
static void print_reuse(const struct bench_test *test) {
    const struct reuse_counts *counts = &test->counted.select.reuse;
    const uint64_t lookups = counts->hits + counts->misses, steps = test->sample_count * test->generate_count;
    if (lookups == 0 || steps == 0) {
        output_text(" %8s | %6s | %9s |", "", "", "");
        return;
    }
    output_text(" %6.1f %% | %6.1f | %9.3f |", 100 * (double)counts->hits / (double)lookups,
                counts->hits > 0 ? (double)counts->age_sum / (double)counts->hits : 0,
                (double)(counts->rows * test->kv_bytes.row) / (double)steps * 1e-6);
}

static void print_md_row(const struct bench_printer *p, const struct bench_test *test) {
    const struct bench_model *model = p->model;
    struct bench_statistics s = bench_statistics(test);
    char size[32], params[32], rate[64], name[160];
    if (model->parameter_count >= 1000000000)
        snprintf(params, sizeof params, "%.2f B", (double)model->parameter_count * 1e-9);
    else
        snprintf(params, sizeof params, "%.2f M", (double)model->parameter_count * 1e-6);
    snprintf(rate, sizeof rate, "%.2f \xc2\xb1 %.2f", s.mean_rate, s.deviation_rate);
    output_text("| %s | %11s | %10s | %-10s | %7" PRIu64 " |", model->type,
                bytes_text(model->size_bytes, size, sizeof size), params, backend_of(model), test->threads);
    if (p->shows_batch) output_text(" %7" PRIu64 " |", test->batch);
    if (p->shows_ubatch) output_text(" %8" PRIu64 " |", test->ubatch);
    if (p->shows_k) output_text(" %6s |", kv_type_name(test->k_type));
    if (p->shows_v) output_text(" %6s |", kv_type_name(test->v_type));
    /* the plus-minus sign takes two bytes and one column */
    output_text(" %*s | %*s |", TEST_WIDTH, test_name(test, name, sizeof name), RATE_WIDTH + 1, rate);
    if (p->shows_reuse) print_reuse(test);
    if (p->shows_heads) output_text(" %10zu |", test->counted.tier.resident_heads);
    if (p->has_floor) {
        struct floor floor = floor_of(model, test);
        if (floor.bandwidth > 0)
            output_text(" %9.1f | %5.1f GB/s | %6.1f %% |", (double)bench_step_bytes(model, test) * 1e-6,
                        floor.bandwidth * 1e-9, floor.ratio * 100);
        else
            output_text(" %9s | %10s | %8s |", "", "", "");
    }
    output_text("\n");
}

/* ---- for scripts ---- */

static json_t *times_json(const struct bench_test *test) {
    json_t *list = json_array();
    for (size_t i = 0; i < test->sample_count; i++)
        json_array_append_new(list, json_integer((json_int_t)test->samples_ns[i]));
    return list;
}

static json_t *rates_json(const struct bench_test *test) {
    json_t *list = json_array();
    for (size_t i = 0; i < test->sample_count; i++) json_array_append_new(list, json_real(sample_rate(test, i)));
    return list;
}

/* Of each repetition; their medians are read_bandwidth and bandwidth_fraction. */
static void add_floor(json_t *row, const struct bench_model *model, const struct bench_test *test) {
    struct floor floor = floor_of(model, test);
    bool measured = floor.bandwidth > 0;
    JSON_PUT(row, {"bytes_per_step", json_uint(bench_step_bytes(model, test))},
             {"read_bandwidth", measured ? json_real(floor.bandwidth) : json_null()},
             {"bandwidth_fraction", measured ? json_real(floor.ratio) : json_null()});
    json_t *list = json_array();
    for (size_t i = 0; measured && i < test->sample_count; i++)
        json_array_append_new(list, json_real(sample_ratio(model, test, i)));
    json_put(row, "samples_fraction", list);
}

/* What is read, and how the time of attention is divided (seconds of all repetitions). */
/* What a receipt says, and what of the steps' time it took to estimate it. */
static json_t *left_out_json(const struct bench_test *test) {
    json_t *receipt = receipt_json(&test->counted.select.receipt);
    double ns = 0;
    for (size_t i = 0; i < test->sample_count; i++) ns += (double)test->samples_ns[i];
    json_put_number(receipt, "time_fraction", (double)test->counted.select.receipt.time_ns / ns);
    return receipt;
}

static void add_selection(json_t *row, const struct bench_test *test) {
    const struct select_statistics *s = &test->counted.select;
    char keep[32];
    JSON_PUT(row, {"preset", json_string(test->plan->preset)}, {"select", json_string(test->plan->select.method->name)},
             {"keep", json_string(select_keep_text(test->plan->select.keep, keep, sizeof keep))},
             {"kept_ratio", json_number(s->visible > 0 ? (double)s->kept / (double)s->visible : 1)});
    json_put_counters(row, "", &select_counters, s);
    JSON_PUT(row, {"select_tree", tree_counts_json(&s->tree)}, {"select_mass_bound", mass_bounds_json(&s->mass_bound)});
    if (test->plan->select.receipt) json_put(row, "select_left_out", left_out_json(test));
    json_put(row, "reuse", reuse_json(&s->reuse, test->kv_bytes.row));
}

static void add_test(json_t *row, const struct bench_model *model, const struct bench_test *test) {
    struct bench_statistics s = bench_statistics(test);
    char when[32] = "", name[160];
    struct tm utc;
    if (gmtime_r(&test->time, &utc) != NULL) strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &utc);
    JSON_PUT(row, {"n_batch", json_uint(test->batch)}, {"n_ubatch", json_uint(test->ubatch)},
             {"n_threads", json_uint(test->threads)}, {"type_k", json_string(kv_type_name(test->k_type))},
             {"type_v", json_string(kv_type_name(test->v_type))}, {"n_gpu_layers", json_uint(model->device_layers)},
             {"weights_bus_bytes", json_uint(model->bus_bytes)},
             {"test", json_string(test_name(test, name, sizeof name))}, {"n_prompt", json_uint(test->prompt_count)},
             {"n_gen", json_uint(test->generate_count)}, {"n_depth", json_uint(test->depth)},
             {"depth_random", json_boolean(test->depth > 0 && test->random_depth)},
             {"replayed", json_boolean(test->replays)}, {"n_parallel", json_uint(test->sequence_count)});
    add_selection(row, test);
    JSON_PUT(row, {"test_time", json_string(when)}, {"avg_ns", json_uint((uint64_t)s.mean_ns)},
             {"stddev_ns", json_uint((uint64_t)s.deviation_ns)}, {"avg_ts", json_number(s.mean_rate)},
             {"stddev_ts", json_number(s.deviation_rate)}, {"samples_ns", times_json(test)},
             {"samples_ts", rates_json(test)});
}

/* Of K and V in RAM, behind the device's slots: units of 8 tokens, and chunks in 4 bits; sums over all repetitions. */
static void add_fetched(json_t *row, const struct bench_test *test) {
    if (!test->plan->rows_in_host && test->plan->unit_bytes == 0) return;
    json_put_uint(row, "kv_unit_bytes", test->counted.unit_bytes);
    json_put_counters(row, fetch_counters.prefix, &fetch_counters, &test->counted.fetched);
}

/* Of --kv-disk; sums over all repetitions. */
static void add_tier(json_t *row, const struct bench_test *test) {
    const struct kv_tier_statistics *tier = &test->counted.tier;
    if (test->plan->disk_directory == NULL) return;
    uint64_t chunks = tier->hits + tier->misses;
    json_put_counters(row, kv_tier_counters.prefix, &kv_tier_counters, tier);
    json_put_counters(row, list_buffer_counters.prefix, &list_buffer_counters, &test->counted.lists);
    json_put_uint(row, "kv_chunks", chunks); /* that were attended to, or some of their rows */
    json_put_number(row, "kv_hit_ratio", chunks > 0 ? (double)tier->hits / (double)chunks : 1);
    if (test->fractions != NULL)
        json_put_number(row, "kv_quantized_fraction", fractions_mean(test->fractions, test->fractions_tokens));
}

/* llama-bench's names first, then loam's. */
static json_t *row_json(const struct bench_printer *p, const struct bench_test *test) {
    const struct bench_model *model = p->model;
    json_t *row = JSON(
        {"build_commit", json_string(version_commit)}, {"build_number", json_uint(0)},
        {"cpu_info", json_text(model->cpu, strlen(model->cpu))}, {"gpu_info", json_string("")},
        {"backends", json_string(backend_of(model))}, {"model_filename", json_text(model->path, strlen(model->path))},
        {"model_type", json_text(model->type, strlen(model->type))}, {"model_size", json_uint(model->size_bytes)},
        {"model_n_params", json_uint(model->parameter_count)});
    add_test(row, p->model, test);
    JSON_PUT(row, {"engine", json_string("loam")}, {"version", json_string(version_number)},
             {"kernels", json_string(model->kernels)}, {"device", json_string(model->device)});
    json_put_counters(row, device_counters.prefix, &device_counters, &test->counted.device);
    JSON_PUT(row, {"kv_bytes_per_token", json_uint(test->kv_bytes.per_token)},
             {"kv_bytes_per_step", json_uint(test->sequence_count * test->kv_bytes.step)});
    add_tier(row, test);
    add_fetched(row, test);
    json_put(row, "rebuild", rebuilt_json(&test->counted.rebuilt));
    if (p->has_floor) add_floor(row, model, test);
    return row;
}

static void print_json_row(const struct bench_printer *p, const struct bench_test *test) {
    size_t flags = p->format == BENCH_JSON ? JSON_INDENT(2) : JSON_COMPACT;
    json_t *row = row_json(p, test);
    char *text = json_dumps(row, flags | JSON_REAL_PRECISION(9));
    if (p->format == BENCH_JSON && p->row_count > 0) output_text(",\n");
    if (text != NULL) output_bytes(text, strlen(text));
    if (p->format == BENCH_JSONL) output_text("\n");
    free(text);
    json_decref(row);
}

static void print_csv_text(const char *text) {
    output_bytes("\"", 1);
    for (const char *c = text; *c != '\0'; c++) {
        if (*c == '"') output_bytes("\"", 1);
        output_bytes(c, 1);
    }
    output_bytes("\"", 1);
}

/* The scalar fields of the JSON row; on the first row also their names, above. */
static void print_csv_row(const struct bench_printer *p, const struct bench_test *test) {
    json_t *row = row_json(p, test);
    const char *key;
    json_t *value;
    for (int titles = p->row_count == 0; titles >= 0; titles--) {
        size_t column = 0;
        json_object_foreach(row, key, value) {
            if (json_is_array(value)) continue;
            if (column++ > 0) output_text(",");
            if (titles == 1)
                output_text("%s", key);
            else if (json_is_string(value))
                print_csv_text(json_string_value(value));
            else if (json_is_integer(value))
                output_text("\"%lld\"", (long long)json_integer_value(value));
            else if (json_is_real(value))
                output_text("\"%.6f\"", json_real_value(value));
            else
                output_text("\"%s\"", json_is_true(value) ? "1" : json_is_false(value) ? "0" : "");
        }
        output_text("\n");
    }
    json_decref(row);
}

void bench_print_head(struct bench_printer *printer) {
    if (printer->format == BENCH_JSON) output_text("[\n");
    if (printer->format != BENCH_MD) return;
    print_head_line(printer, false);
    print_head_line(printer, true);
}

enum status bench_print_row(struct bench_printer *printer, const struct bench_test *test, struct error *error) {
    switch (printer->format) {
    case BENCH_MD: print_md_row(printer, test); break;
    case BENCH_JSON:
    case BENCH_JSONL: print_json_row(printer, test); break;
    case BENCH_CSV: print_csv_row(printer, test); break;
    }
    printer->row_count++;
    return output_flush(error);
}

enum status bench_print_end(struct bench_printer *printer, struct error *error) {
    if (printer->format == BENCH_JSON) output_text("%s]\n", printer->row_count > 0 ? "\n" : "");
    if (printer->format == BENCH_MD)
        output_text("\nbuild: loam %s (%s), kernels: %s, %s\n", version_number, version_commit, printer->model->kernels,
                    printer->model->cpu);
    return output_flush(error);
}
