/* Every family by every preset, over the files whose logits tests/golden compares, and a small one of each family that
 * has none: what does not go together is refused by one line, and is so in the table of docs/agreement.md; a setting
 * that the line names works.
 *   in RAM     what keeps everything is full attention, bit for bit, and what chooses is not
 *   on disk    at the least budget, in smaller blocks, as in RAM, bit for bit; with all of it in f16 rows as full
 *              attention
 *   saved      opened by another engine, with an ample budget, bit for bit as it was
 */
#include "testing.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "../platform/scratch.h"
#include "base/checked.h"
#include "engine/decode_rig.h"
#include "engine/engine.h"
#include "model/tiny_model.h"
#include "platform/file.h"

enum { PROMPT = 330, STEPS = 5, CONTEXT = 384, AMPLE_BYTES = 1 << 26, TEXT = 400 };

struct rig {
    const char *name; /* of the family, or the file's folder */
    struct decode_rig base;
    struct scratch folder; /* of documents */
    float *full;           /* owned; of full attention in RAM */
    uint64_t pages;        /* that were read */
    char row[2][TEXT];     /* of the table: what is refused in RAM, on disk */
};

struct cell {
    const struct preset *preset;
    char set[120]; /* what refusals said, each behind a comma */
};

enum place { IN_RAM, LEAST, AMPLE };

static bool chooses(const struct preset *preset) { return strcmp(preset->methods[AXIS_SELECT], "all") != 0; }

static size_t row_bytes(const struct rig *rig) { return rig->base.width * sizeof(float); }

/* Logits of the prompt's last token and of the steps. */
static float *answer(struct rig *rig, struct engine *engine, bool saves, uint64_t *reused) {
    struct decode_rig *base = &rig->base;
    struct sequence *sequence;
    const struct prefill_request request = {.tokens = base->tokens, .token_count = PROMPT};
    const float *logits;
    float *all = calloc(1 + STEPS, row_bytes(rig));
    assert_non_null(all);
    assert_ok(sequence_create(&sequence, engine, &base->error), base->error);
    assert_ok(engine_prefill(engine, sequence, &request, &logits, &base->error), base->error);
    memcpy(all, logits, row_bytes(rig));
    for (size_t i = 1; i <= STEPS; i++)
        memcpy(all + i * base->width, decode_rig_step(base, engine, sequence), row_bytes(rig));
    *reused = sequence_reused_tokens(sequence);
    if (saves) assert_ok(sequence_flush(sequence, &base->error), base->error);
    rig->pages += engine_tier_statistics(engine).read_pages;
    sequence_destroy(sequence);
    return all;
}

/* NULL: it is refused.  keeps_all: in f16 rows. */
static float *run(struct rig *rig, const struct cell *cell, bool keeps_all, enum place place, uint64_t *reused) {
    struct decode_rig *base = &rig->base;
    const struct model_config *config = &base->model->config;
    struct engine *engine;
    char set[160];
    snprintf(set, sizeof set, "dense=0%s%s", cell->set, keeps_all ? ",codec=f16" : "");
    struct plan plan = decode_rig_plan(base, cell->preset->name, set,
                                       keeps_all ? "100%" : chooses(cell->preset) ? "96" : NULL,
                                       place != IN_RAM ? rig->folder.path : NULL);
    plan.context_size = CONTEXT;
    plan.batch_size = place == IN_RAM ? 96 : 31;
    plan.has_budget = place != IN_RAM;
    plan.budget_bytes = AMPLE_BYTES;
    float *all = NULL;
    enum status status = plan_set_host_bytes(&plan, config, &base->error);
    if (status == STATUS_OK && place == LEAST)
        status = plan_host_bytes_min(&plan, config, &plan.host_bytes, &base->error);
    if (status == STATUS_OK) status = engine_create(&engine, base->model, &plan, NULL, &base->error);
    if (status == STATUS_OK) {
        all = answer(rig, engine, place != IN_RAM, reused);
        engine_destroy(engine);
    } else if (status != STATUS_UNSUPPORTED && status != STATUS_USAGE) {
        assert_ok(status, base->error);
    }
    plan_deinit(&plan);
    return all;
}

/* The same, or by the setting that the refusal names, which is then of the cell.  A refusal goes into the table. */
static float *run_or_say(struct rig *rig, struct cell *cell, enum place place, uint64_t *reused) {
    static const char words[] = "try --set ";
    char *row = rig->row[place != IN_RAM];
    float *all = run(rig, cell, false, place, reused);
    if (all != NULL) return all;
    const char *message = rig->base.error.message, *said = strstr(message, words);
    const size_t used = strlen(row), length = strlen(cell->set);
    assert_null(strchr(message, '\n'));
    said = said != NULL ? said + sizeof words - 1 : "";
    snprintf(row + used, TEXT - used, "%s`%s`%s%s", used > 0 ? ", " : "", cell->preset->name,
             *said != '\0' ? " but for " : "", said);
    if (*said == '\0') return NULL;
    snprintf(cell->set + length, sizeof cell->set - length, ",%s", said);
    all = run(rig, cell, false, place, reused);
    if (all == NULL) fail_msg("%s, %s does not do: %s", rig->name, cell->set, rig->base.error.message);
    return all;
}

/* found: owned. */
static void expect_same(const struct rig *rig, const struct cell *cell, const char *what, float *found,
                        const float *expected) {
    if (found == NULL) fail_msg("%s, %s, %s: %s", rig->name, cell->preset->name, what, rig->base.error.message);
    for (size_t i = 0; i <= STEPS; i++)
        if (memcmp(found + i * rig->base.width, expected + i * rig->base.width, row_bytes(rig)) != 0)
            fail_msg("%s, %s%s, %s: other logits from row %zu on", rig->name, cell->preset->name, cell->set, what, i);
    free(found);
}

static void try_preset(struct rig *rig, const struct preset *preset) {
    struct cell cell = {.preset = preset};
    uint64_t reused;
    float *in_ram = run_or_say(rig, &cell, IN_RAM, &reused), *on_disk = NULL;
    if (in_ram == NULL) return;
    const bool is_full = memcmp(in_ram, rig->full, (1 + STEPS) * row_bytes(rig)) == 0;
    if (is_full == chooses(preset))
        fail_msg("%s, %s: %s", rig->name, preset->name, is_full ? "nothing was left out" : "not full");
    on_disk = run_or_say(rig, &cell, LEAST, &reused);
    if (on_disk != NULL) {
        assert_int_equal(reused, 0);
        if (preset->disk_settings == NULL) expect_same(rig, &cell, "in RAM", in_ram, on_disk), in_ram = NULL;
        expect_same(rig, &cell, "saved", run(rig, &cell, false, AMPLE, &reused), on_disk);
        assert_true(reused >= PROMPT / KV_CHUNK_TOKENS * KV_CHUNK_TOKENS);
        scratch_empty(&rig->folder);
        if (chooses(preset)) expect_same(rig, &cell, "all of it", run(rig, &cell, true, LEAST, &reused), rig->full);
        scratch_empty(&rig->folder);
    }
    free(in_ram);
    free(on_disk);
}

/* path: of a file beside which its calibration may lie.  table: the page that is to have the row; returns
 * whether it does. */
static bool try_family(const char *name, const char *path, const char *table) {
    struct rig *rig = calloc(1, sizeof *rig);
    uint64_t reused;
    assert_non_null(rig);
    rig->name = name;
    scratch_create(&rig->folder, SCRATCH_MEMORY);
    decode_rig_open_file(&rig->base, path, NULL, PROMPT + STEPS, 5);
    rig->full = run(rig, &(struct cell){.preset = preset_table[0]}, false, IN_RAM, &reused);
    for (size_t i = 0; i < preset_count; i++)
        if (!preset_is_auto(preset_table[i])) try_preset(rig, preset_table[i]);
    assert_true(rig->pages > 0);
    char row[2 * TEXT + 100];
    snprintf(row, sizeof row, "| %s | %s | %s |\n", name, rig->row[0], rig->row[1]);
    const bool is_there = strstr(table, row) != NULL;
    if (!is_there) print_message("docs/agreement.md lacks: %s", row);
    free(rig->full);
    decode_rig_close(&rig->base);
    scratch_destroy(&rig->folder);
    free(rig);
    return is_there;
}

static int is_file(const struct dirent *entry) {
    char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/%.100s/model.gguf", LOAM_SOURCE_DIR, entry->d_name);
    return access(path, F_OK) == 0;
}

static void every_family(void **state) {
    (void)state;
    static const char *const without_file[] = {"llama", "opt", "qwen2", "qwen3"};
    struct dirent **folders;
    struct scratch files;
    struct file_map page;
    struct error error;
    char root[400], golden[600], path[400];
    size_t lacking = 0;
    if ((cpu_default() & CPU_NEON) != 0) skip(); /* prompts and steps multiply weights of BF16 in different orders */
    /* A sixth of the time would go into clearing huge pages for the engines' slabs. */
    (void)prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    assert_ok(file_map_open(&page, LOAM_SOURCE_DIR "/docs/agreement.md", &error), error);
    char *table = strndup((const char *)page.data, page.size_bytes);
    file_map_close(&page);
    scratch_create(&files, SCRATCH_MEMORY);
    snprintf(path, sizeof path, "%s", scratch_name(&files, "model.gguf"));
    snprintf(root, sizeof root, "%s/tests/golden", LOAM_SOURCE_DIR);
    const int count = scandir(root, &folders, is_file, alphasort);
    assert_true(count >= 21);
    for (int i = 0; i < count; i++) {
        snprintf(golden, sizeof golden, "%s/%.100s/model.gguf", root, folders[i]->d_name);
        assert_int_equal(symlink(golden, path), 0);
        lacking += !try_family(folders[i]->d_name, path, table);
        unlink(path);
        free(folders[i]);
    }
    for (size_t i = 0; i < sizeof without_file / sizeof *without_file; i++) {
        const struct tiny_model tiny = tiny_model_default(without_file[i]);
        tiny_model_write(&tiny, path);
        lacking += !try_family(without_file[i], path, table);
    }
    free(table);
    free(folders);
    scratch_destroy(&files);
    assert_int_equal(lacking, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_family)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
