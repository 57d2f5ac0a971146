/* What a step with KV on disk reads, predicted and counted: every setting of bench/results in which steps over recorded
 * keys and queries were counted, and others over another text.  Bytes and requests depend on no machine.  What is
 * printed is in docs/planner.md, "What is assumed". */
#include "plan/cost.h"

#include "sample_machine.h"
#include "testing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SETTINGS_MAX = 256, LINE_BYTES = 512, FIELDS_MAX = 32 };
static const struct model_config smollm2 = {.name = "SmolLM2-135M",
                                            .layer_count = 30,
                                            .hidden_size = 576,
                                            .head_count = 9,
                                            .kv_head_count = 3,
                                            .k_dimension = 64,
                                            .v_dimension = 64,
                                            .has_rope = true,
                                            .context_length = 8192},
                                 llama = {.name = "llama-1b",
                                          .layer_count = 16,
                                          .hidden_size = 2048,
                                          .head_count = 32,
                                          .kv_head_count = 8,
                                          .k_dimension = 64,
                                          .v_dimension = 64,
                                          .has_rope = true,
                                          .context_length = 131072};

struct setting {
    const struct model_config *config;
    uint64_t depth;
    double share; /* of the KV that RAM holds, and 8 MiB */
    const char *preset, *set, *keep;
};

static double one(void *context) {
    (void)context;
    return 1;
}

static struct cost predicted(const struct setting *setting) {
    const struct machine machine = sample_machine(one, NULL);
    const struct model_config *config = setting->config;
    const struct cost_model model = {
        .machine = &machine, .config = config, .row_seconds = 1e-3, .token_seconds = 1e-4};
    const double kv = (double)(setting->depth * config->layer_count * config->kv_head_count * 256);
    struct plan plan = {.sequence_capacity = 1,
                        .has_budget = true,
                        .budget_bytes = (uint64_t)(kv * setting->share) + (8 << 20),
                        .context_size = setting->depth + 17};
    const struct cost_work work = {.depth = setting->depth};
    struct error error;
    struct cost cost;
    assert_ok(plan_set_disk(&plan, "folder", 6, 0, &error), error);
    assert_ok(plan_set_axes(&plan, setting->preset, setting->set, setting->keep, &error), error);
    assert_ok(plan_set_host_bytes(&plan, config, &error), error);
    assert_ok(cost_of_plan(&cost, &model, &plan, &work, &error), error);
    plan_deinit(&plan);
    return cost;
}

/* ---- all that bench/results has ---- */

/* By how much predictions are off, of the counted. */
struct errors {
    double list[SETTINGS_MAX];
    size_t count;
};

static int by_size(const void *a, const void *b) {
    const double first = *(const double *)a, second = *(const double *)b;
    return first < second ? -1 : first > second;
}

/* Of those from `first` on. */
static double quantile(struct errors *errors, size_t first, double share) {
    const size_t count = errors->count - first;
    qsort(errors->list + first, count, sizeof *errors->list, by_size);
    return count > 0 ? errors->list[first + (size_t)(share * (double)count)] : 0;
}

static void add(struct errors *errors, double found, const char *counted, double least) {
    const double number = strtod(counted, NULL);
    if (number < least) return; /* a share of next to nothing says nothing */
    assert_true(errors->count < SETTINGS_MAX);
    errors->list[errors->count++] = fabs(found / number - 1);
}

/* A table's line, by the names of its first one. */
struct line {
    char *names[FIELDS_MAX], *fields[FIELDS_MAX];
    size_t count;
};

static size_t split(char *text, char *fields[FIELDS_MAX]) {
    size_t count = 0;
    for (char *end; text != NULL && count < FIELDS_MAX; text = end) {
        fields[count++] = text;
        end = strpbrk(text, ",\n");
        if (end != NULL) *end++ = '\0';
        if (end != NULL && *end == '\0') end = NULL;
    }
    return count;
}

static const char *field(const struct line *line, const char *a, const char *b) {
    for (size_t i = 0; i < line->count; i++)
        if (strcmp(line->names[i], a) == 0 || (b != NULL && strcmp(line->names[i], b) == 0)) return line->fields[i];
    return "";
}

/* 0.5 and 1/2 of it; 4: a quarter. */
static double share_of(const char *text) {
    char *end;
    const double number = strtod(text, &end);
    if (*end == '/') return number / strtod(end + 1, NULL);
    return number > 1 ? 1 / number : number;
}

/* leoam was that by leaves until it was by codes (decision 0058). */
static void add_line(const struct line *line, bool by_leaves, struct errors *bytes, struct errors *requests) {
    char preset[64], set[64];
    const char *model = field(line, "model", NULL), *depth = field(line, "depth", "tokens"),
               *buffers = field(line, "list_buffer", NULL);
    struct setting setting = {.config = strncmp(model, "1b", 2) == 0 ? &llama : &smollm2,
                              .depth = depth[0] != '\0' ? (uint64_t)strtoul(depth, NULL, 10) : 8000,
                              .share =
                                  share_of(field(line, "budget", "share")[0] != '\0' ? field(line, "budget", "share")
                                                                                     : field(line, "ram", NULL)),
                              .preset = preset,
                              .set = set,
                              .keep = field(line, "keep", NULL)};
    snprintf(preset, sizeof preset, "%s", field(line, "plan", "preset"));
    char *space = strchr(preset, ' ');
    if (space != NULL) *space++ = '\0';
    if (space != NULL && *space == '(') return; /* as it was before */
    snprintf(set, sizeof set, "%s", space != NULL ? space : "");
    if (buffers[0] != '\0') snprintf(set, sizeof set, "list_buffer=%s", buffers);
    if (strcmp(preset, "leoam") == 0 && by_leaves) {
        snprintf(set, sizeof set, "select=tree%s%s", space != NULL ? "," : "", space != NULL ? space : "");
        setting.keep = "25%";
    }
    if (set[0] == '\0') setting.set = NULL;
    if (setting.keep[0] == '\0') setting.keep = NULL;
    const struct cost cost = predicted(&setting);
    if (cost.held < 1 && cost.parts[COST_SELECTION] == 0 && strcmp(preset, "full") != 0)
        return; /* a list of all tokens: the model reads a scan, and the tier single chunks */
    const char *megabytes = field(line, "read_mb", "mb");
    add(bytes, 1e-6 * cost.read_bytes, megabytes[0] != '\0' ? megabytes : field(line, "megabytes_per_token", NULL), 1);
    add(requests, cost.read_requests, field(line, "requests", NULL), 100);
}

static void print(const char *name, const char *what, struct errors *errors, size_t first) {
    printf("%s: %zu of %s, off by %.1f%% (median), %.1f%% (nine of ten)\n", name, errors->count - first, what,
           100 * quantile(errors, first, 0.5), 100 * quantile(errors, first, 0.9));
}

static void reads_are_as_counted(void **state) {
    static const struct {
        const char *name;
        bool by_leaves;
    } files[] = {{"2026-11-24-smollm2-hits", true},
                 {"2026-11-23-smollm2-list-bytes", true},
                 {"2026-11-24-zen3-planner-steps", true},
                 {"2026-11-26-xeon-planner-1b", true},
                 {"2026-11-26-xeon-planner-1b-codes", false}};
    struct errors bytes = {.count = 0}, requests = {.count = 0};
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const size_t bytes_before = bytes.count, requests_before = requests.count;
        char path[256], names[LINE_BYTES], text[LINE_BYTES];
        struct line line = {.count = 0};
        snprintf(path, sizeof path, LOAM_SOURCE_DIR "/bench/results/%s.csv", files[i].name);
        FILE *file = fopen(path, "r");
        assert_non_null(file);
        while (fgets(text, sizeof text, file) != NULL) {
            if (text[0] == '#') continue;
            if (line.count > 0) {
                assert_int_equal(split(text, line.fields), line.count);
                add_line(&line, files[i].by_leaves, &bytes, &requests);
                continue;
            }
            memcpy(names, text, sizeof names);
            line.count = split(names, line.names);
        }
        fclose(file);
        print(files[i].name, "bytes", &bytes, bytes_before);
        print(files[i].name, "requests", &requests, requests_before);
    }
    print("all", "bytes", &bytes, 0);
    print("all", "requests", &requests, 0);
    assert_true(bytes.count > 150 && quantile(&bytes, 0, 0.5) < 0.075 && quantile(&bytes, 0, 0.9) < 0.36);
    assert_true(requests.count > 130 && quantile(&requests, 0, 0.5) < 0.085 && quantile(&requests, 0, 0.9) < 0.36);
}

/* ---- another text ---- */

/* Chunks that steps over recorded rows of Shakespeare, 8,128 tokens, read or read parts of.  None was fitted. */
static const struct {
    const char *preset, *set, *keep;
    unsigned share;
    double chunks;
} missed[] = {
    {"streaming", NULL, NULL, 8, 2021},
    {"quest", NULL, NULL, 8, 5294},
    {"quest", NULL, NULL, 4, 3972},
    {"quest", NULL, NULL, 2, 1611},
    {"quest", "select=meanstd", NULL, 8, 4567},
    {"quest", "select=meanstd", NULL, 4, 3187},
    {"hata", NULL, NULL, 8, 8758},
    {"hata", NULL, NULL, 4, 7869},
    {"hata", NULL, NULL, 2, 5891},
    {"clo", NULL, NULL, 4, 3687},
    {"clo", NULL, NULL, 2, 1700},
    {"full", NULL, NULL, 2, 6179},
    {"full", NULL, NULL, 4, 9040},
    {"full", NULL, NULL, 8, 10111},
    {"leoam", "select=tree", "25%", 8, 153},
    {"leoam", "select=tree", "25%", 4, 16},
    {"leoam", "select=tree,codec=f16", "25%", 4, 444},
    {"leoam", "select=tree,codec=f16", "25%", 2, 83},
    {"leoam", NULL, NULL, 8, 306},
    {"leoam", NULL, NULL, 4, 35},
    {"leoam", "codec=f16", NULL, 4, 431},
    {"leoam", "codec=f16", NULL, 2, 95},
};

/* Of what fits RAM the first steps' are among those counted. */
static void another_text_is_like_it(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof missed / sizeof *missed; i++) {
        const struct setting setting = {&smollm2,         8128,          1. / missed[i].share,
                                        missed[i].preset, missed[i].set, missed[i].keep};
        const double chunks = predicted(&setting).missed_chunks, counted = missed[i].chunks;
        printf("%s %s 1/%u: %.0f, %.0f\n", missed[i].preset, missed[i].set != NULL ? missed[i].set : "",
               missed[i].share, counted, chunks);
        assert_true(fabs(chunks - counted) < fmax(0.25 * counted, 160));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(reads_are_as_counted),
                                       cmocka_unit_test(another_text_is_like_it)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
