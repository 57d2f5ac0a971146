/* Random histories of an engine on a device with a queue (device/queued_device.h), whose work runs late and in an order
 * that is drawn: every logit as on the cpu device, bit for bit.  Sequences whose prompts begin alike are prefilled in
 * segments, with pauses between which others go on, several in one pass, step together, are cut back, saved, dropped,
 * and begun again from what was saved: with drawn presets and budgets, in RAM and from disk, and with weights that are
 * read for each pass.  With layers that keep a state as well, and steps ahead of which some are dropped. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../platform/scratch.h"
#include "base/checked.h"
#include "base/random.h"
#include "device/queued_device.h"
#include "engine/engine.h"
#include "model/tiny_calibration.h"
#include "model/tiny_model.h"
#include "seed.h"

enum { ROUNDS = 24, STATE_ROUNDS = 2 * TINY_STATE_FAMILIES, ACTIONS = 24 };
enum { SEQUENCES = 3, CONTEXT = 448, LAYERS = 4, BLOCK = 96 };

static const char *const without_states[] = {"llama", "qwen2", "qwen3", "qwen3moe"};
enum { FAMILIES = sizeof without_states / sizeof *without_states };

/* What both devices do alike. */
struct history {
    struct tiny_model tiny;
    int32_t tokens[SEQUENCES][CONTEXT]; /* of prompts that begin alike */
    const struct preset *preset;
    size_t segment_size, keep, dense_layers;
    enum plan_suffix suffix;
    enum kv_type type;
    bool on_disk, reads_weights;
    uint64_t more_bytes; /* than the least budget */
    uint64_t seed;       /* of the actions */
};

struct player {
    const struct history *history;
    struct random random;
    char path[64], *calibration;
    struct scratch scratch;
    struct device *device;
    struct model *model;
    struct plan plan;
    struct engine *engine;
    struct sequence *sequences[SEQUENCES];
    float *log; /* owned: all logits so far, [log_count][width] */
    size_t log_count, log_capacity;
    size_t kept, dropped; /* of what went ahead */
    struct error error;
};

static struct history draw_history(struct random *random, const char *const *families, size_t family_count) {
    struct history history = {.tiny = tiny_model_default(families[random_below(random, family_count)]),
                              .segment_size = random_between(random, 1, 300),
                              .keep = random_between(random, 96, 200),
                              .on_disk = random_below(random, 4) != 0,
                              .more_bytes = random_below(random, 3) * (random_below(random, 1 << 19)),
                              .type = random_below(random, 4) == 0 ? KV_Q8 : KV_F16,
                              .reads_weights = random_below(random, 4) == 0};
    history.tiny.head_dimension = 32;
    if (history.tiny.taps == 0) history.tiny.layer_count = LAYERS; /* those with states have an order of their own */
    do {
        history.preset = preset_table[random_below(random, preset_count)];
    } while (preset_is_auto(history.preset));
    tiny_model_tokens(&history.tiny, random, history.tokens[0], CONTEXT);
    for (size_t s = 1; s < SEQUENCES; s++) {
        memcpy(history.tokens[s], history.tokens[0], sizeof history.tokens[0]);
        const size_t alike = random_between(random, 0, CONTEXT - 1);
        tiny_model_tokens(&history.tiny, random, history.tokens[s] + alike, CONTEXT - alike);
    }
    history.suffix = (enum plan_suffix)random_below(random, 3);
    history.dense_layers = random_below(random, 3);
    history.seed = random_next(random);
    return history;
}

/* ---- a player ---- */

static void make_plan(struct player *player) {
    static const uint8_t fractions[LAYERS] = {7, 12, 16, 0};
    const struct history *history = player->history;
    struct plan *plan = &player->plan;
    char keep[32];
    *plan = (struct plan){.context_size = CONTEXT,
                          .sequence_capacity = SEQUENCES,
                          .batch_size = BLOCK,
                          .segment_size = history->segment_size,
                          .k_type = history->type,
                          .v_type = history->type};
    snprintf(keep, sizeof keep, "%zu", history->keep);
    if (history->on_disk)
        assert_ok(plan_set_disk(plan, player->scratch.path, strlen(player->scratch.path), 0, &player->error),
                  player->error);
    assert_ok(plan_set_axes(plan, history->preset->name, NULL,
                            strcmp(history->preset->keep, "100%") == 0 ? NULL : keep, &player->error),
              player->error);
    if (plan->quantized_pages) plan->k_type = plan->v_type = KV_F16;
    plan->select.recent = 16;
    plan->select.dense_layers = history->dense_layers;
    plan->suffix = history->suffix;
    if (plan->mixes_pages) {
        plan->fractions.layer_count = LAYERS; /* of a model with states none is accepted */
        memcpy(plan->fractions.sixteenths, fractions, sizeof fractions);
        page_fractions_keep_first(&plan->fractions);
    }
}

/* Weights beyond what a pass reads at once are read for each. */
static void limit_weights(struct player *player) {
    unsigned long long least = 0;
    assert_int_equal(model_limit_weights(player->model, 1, NULL, &player->error), STATUS_MEMORY);
    const char *number = strstr(player->error.message, "at least ");
    assert_true(number != NULL && sscanf(number, "at least %llu", &least) == 1);
    assert_ok(model_limit_weights(player->model, least, NULL, &player->error), player->error);
}

/* device: taken over.  The status is that of the engine's making. */
static enum status player_open(struct player *player, const struct history *history, const char *name,
                               struct device *device) {
    *player = (struct player){.history = history, .device = device};
    random_init(&player->random, history->seed);
    tiny_model_write(&history->tiny, tiny_model_path(name, player->path, sizeof player->path));
    assert_ok(model_load(&player->model, player->path, device, &player->error), player->error);
    player->calibration = tiny_calibration_write(player->model);
    if (history->reads_weights) limit_weights(player);
    scratch_create(&player->scratch, SCRATCH_MEMORY);
    make_plan(player);
    if (history->on_disk) {
        assert_ok(plan_host_bytes_min(&player->plan, &player->model->config, &player->plan.host_bytes,
                                      &player->error),
                  player->error);
        player->plan.host_bytes += history->more_bytes;
    }
    TRY(engine_create(&player->engine, player->model, &player->plan, NULL, &player->error));
    for (size_t s = 0; s < SEQUENCES; s++)
        assert_ok(sequence_create(&player->sequences[s], player->engine, &player->error), player->error);
    return STATUS_OK;
}

static void player_close(struct player *player) {
    for (size_t s = 0; s < SEQUENCES; s++) sequence_destroy(player->sequences[s]);
    engine_destroy(player->engine);
    plan_deinit(&player->plan);
    scratch_destroy(&player->scratch);
    unlink(player->calibration);
    free(player->calibration);
    unlink(player->path);
    model_destroy(player->model);
    device_destroy(player->device);
    free(player->log);
}

/* ---- actions ---- */

static void note(struct player *player, const float *logits, size_t rows) {
    const size_t width = player->history->tiny.vocabulary_size;
    if (player->log_count + rows > player->log_capacity) {
        player->log_capacity = 2 * (player->log_count + rows);
        player->log = realloc(player->log, player->log_capacity * width * sizeof *player->log);
        assert_non_null(player->log);
    }
    memcpy(player->log + player->log_count * width, logits, rows * width * sizeof *logits);
    player->log_count += rows;
}

static size_t length_of(const struct player *player, size_t s) {
    return (size_t)sequence_length(player->sequences[s]);
}

static size_t room_of(const struct player *player, size_t s) { return CONTEXT - length_of(player, s); }

/* Of the others some, together. */
static void step_some(struct player *player, size_t but) {
    struct sequence *sequences[SEQUENCES];
    int32_t tokens[SEQUENCES];
    const float *logits;
    size_t count = 0;
    for (size_t s = 0; s < SEQUENCES; s++) {
        size_t done;
        if (s == but || length_of(player, s) == 0 || room_of(player, s) == 0) continue;
        if (sequence_paused_tokens(player->sequences[s], &done) > 0) continue;
        if (random_below(&player->random, 3) == 0) continue;
        sequences[count] = player->sequences[s];
        tokens[count++] = player->history->tokens[s][length_of(player, s)];
    }
    if (count == 0) return;
    assert_ok(engine_step(player->engine, sequences, tokens, count, &logits, &player->error), player->error);
    note(player, logits, count);
}

struct pauses {
    size_t every, asked;
};

static bool pause_sometimes(void *context) {
    struct pauses *pauses = context;
    return ++pauses->asked % pauses->every == 0;
}

static bool leave_sometimes(void *context, size_t layers_done, size_t layer_count) {
    (void)layers_done;
    (void)layer_count;
    return pause_sometimes(context);
}

/* A sequence's tokens up to so many, in parts, between which the others go on. */
static void prefill_up_to(struct player *player, size_t s, size_t end) {
    struct pauses pauses = {.every = random_between(&player->random, 1, 8)};
    const bool may_pause = random_below(&player->random, 2) == 0;
    for (const float *logits = NULL; logits == NULL;) {
        const size_t done = length_of(player, s);
        const struct prefill_request request = {.tokens = player->history->tokens[s] + done,
                                                .token_count = end - done,
                                                .pauses = may_pause ? pause_sometimes : NULL,
                                                .pauses_context = &pauses};
        assert_ok(engine_prefill(player->engine, player->sequences[s], &request, &logits, &player->error),
                  player->error);
        if (logits != NULL)
            note(player, logits, 1);
        else
            step_some(player, s);
    }
}

/* Of these tokens some are right. */
static void step_ahead(struct player *player, size_t s) {
    struct sequence *sequence = player->sequences[s];
    int32_t tokens[ENGINE_AHEAD_MAX];
    const float *logits;
    size_t paused;
    if (length_of(player, s) == 0 || room_of(player, s) == 0 || sequence_paused_tokens(sequence, &paused) > 0) return;
    const size_t count = sequence_ahead_max(sequence), right = random_between(&player->random, 1, count);
    if (count < 2) return;
    for (size_t i = 0; i < count; i++)
        tokens[i] = i < right ? player->history->tokens[s][length_of(player, s) + i] : 1;
    assert_ok(engine_step_ahead(player->engine, sequence, tokens, count, &logits, &player->error), player->error);
    note(player, logits, right);
    for (size_t i = 1; i < right; i++) assert_ok(sequence_keep_next(sequence, &player->error), player->error);
    player->kept += right - 1;
    player->dropped += count - right;
}

static void prefill(struct player *player, size_t s) {
    const size_t room = room_of(player, s);
    if (room > 0)
        prefill_up_to(player, s,
                      length_of(player, s) + random_between(&player->random, 1, min_size(room, 250)));
}

/* Steps and prompts in one pass, which the prompts may leave. */
static void prefill_together(struct player *player) {
    struct pauses pauses = {.every = random_between(&player->random, 2, 9)};
    const struct prefill_pauses leave = {.asks = leave_sometimes, .context = &pauses};
    struct prefill_part parts[SEQUENCES];
    size_t count = 0, ends[SEQUENCES];
    const float *logits;
    for (size_t s = 0; s < SEQUENCES; s++) {
        struct sequence *sequence = player->sequences[s];
        const size_t done = length_of(player, s);
        if (done == 0 || room_of(player, s) == 0 || !sequence_prefills_together(sequence)) continue;
        const size_t tokens =
            random_between(&player->random, 1, min_size(room_of(player, s), BLOCK / SEQUENCES));
        ends[count] = done + tokens;
        parts[count++] = (struct prefill_part){
            .sequence = sequence, .tokens = player->history->tokens[s] + done, .token_count = tokens};
    }
    if (count == 0) return;
    assert_ok(engine_prefill_together(player->engine, parts, count, &leave, &logits, &player->error),
              player->error);
    if (logits != NULL) {
        note(player, logits, count);
        return;
    }
    for (size_t i = 0; i < count; i++)
        for (size_t s = 0; s < SEQUENCES; s++)
            if (player->sequences[s] == parts[i].sequence) prefill_up_to(player, s, ends[i]);
}

static void cut_back(struct player *player, size_t s) {
    const size_t length = length_of(player, s);
    if (length < 2) return;
    const size_t left = random_between(&player->random, 1, length - 1);
    if (sequence_cuts_at(player->sequences[s], left)) sequence_truncate(player->sequences[s], left);
}

/* What there is of it is saved, and found again by whoever begins like it. */
static void begin_again(struct player *player, size_t s) {
    if (length_of(player, s) > 0) {
        assert_ok(sequence_save(player->sequences[s], &player->error), player->error);
        assert_ok(sequence_flush(player->sequences[s], &player->error), player->error);
    }
    sequence_destroy(player->sequences[s]);
    assert_ok(sequence_create(&player->sequences[s], player->engine, &player->error), player->error);
}

static void flush_all(struct player *player) {
    for (size_t s = 0; s < SEQUENCES; s++)
        assert_ok(sequence_flush(player->sequences[s], &player->error), player->error);
}

static void act(struct player *player) {
    const size_t s = (size_t)random_below(&player->random, SEQUENCES);
    const uint64_t what = random_below(&player->random, player->history->tiny.taps > 0 ? 12 : 10);
    bool more = true;
    if (what < 6) flush_all(player); /* what they find saved does not depend on the disk's haste */
    switch (what) {
    case 0:
    case 1:
    case 2: prefill(player, s); break;
    case 3: prefill_together(player); break;
    case 4: cut_back(player, s); break;
    case 5: begin_again(player, s); break;
    case 6: assert_ok(sequence_warm(player->sequences[s], &more, &player->error), player->error); break;
    case 10:
    case 11: step_ahead(player, s); break;
    default: step_some(player, SEQUENCES);
    }
}

/* ---- rounds ---- */

struct met {
    size_t on_disk, in_ram, reads_weights, refused;
    uint64_t late, read_pages, logits;
    size_t kept, dropped;
};

static void compare(const struct player *cpu, const struct player *queued) {
    const struct history *history = cpu->history;
    const size_t width = history->tiny.vocabulary_size;
    if (cpu->log_count != queued->log_count)
        fail_msg("%s %s: %zu logits, not %zu", history->preset->name, history->on_disk ? "on disk" : "in RAM",
                 queued->log_count, cpu->log_count);
    for (size_t i = 0; i < cpu->log_count; i++)
        if (memcmp(cpu->log + i * width, queued->log + i * width, width * sizeof *cpu->log) != 0)
            fail_msg("%s %s: other logits %zu of %zu", history->preset->name,
                     history->on_disk ? "on disk" : "in RAM", i, cpu->log_count);
}

static void play_history(struct random *random, const struct history *history, struct met *met) {
    const struct device_options options = {.thread_count = 1, .mask = cpu_default()};
    struct device *queued = queued_device_create(&options, random_next(random));
    if (history->reads_weights) queued_device_map_weights(queued);
    struct player players[2];
    struct device *cpu;
    struct error error;
    assert_ok(device_cpu_create(&cpu, &options, &error), error);
    const enum status expected = player_open(&players[0], history, "histories-cpu", cpu);
    const enum status found = player_open(&players[1], history, "histories", queued);
    assert_int_equal(expected, found);
    for (size_t i = 0; i < 2 && found == STATUS_OK; i++)
        for (size_t n = 0; n < ACTIONS; n++) act(&players[i]);
    met->refused += found != STATUS_OK;
    if (found == STATUS_OK) {
        compare(&players[0], &players[1]);
        met->on_disk += history->on_disk;
        met->in_ram += !history->on_disk;
        met->reads_weights += history->reads_weights;
        met->late += queued_device_counts(players[1].device).late;
        met->read_pages += engine_tier_statistics(players[1].engine).read_pages;
        met->logits += players[1].log_count;
        met->kept += players[1].kept;
        met->dropped += players[1].dropped;
    }
    for (size_t i = 0; i < 2; i++) player_close(&players[i]);
}

static void play(struct random *random, const char *const *families, size_t family_count, struct met *met) {
    const struct history history = draw_history(random, families, family_count);
    play_history(random, &history, met);
}

static void print_met(const struct met *met) {
    print_message("%zu on disk, %zu in RAM, %zu of which read weights, %zu refused; %llu logits, %zu kept ahead, %zu "
                  "dropped\n",
                  met->on_disk, met->in_ram, met->reads_weights, met->refused, (unsigned long long)met->logits,
                  met->kept, met->dropped);
}

static void histories(void **state) {
    (void)state;
    struct random random;
    struct met met = {0};
    random_init(&random, test_seed(21));
    for (size_t round = 0; round < ROUNDS; round++) play(&random, without_states, FAMILIES, &met);
    print_met(&met);
    assert_met(met.on_disk > 0 && met.in_ram > 0 && met.reads_weights > 0 && met.late > 0 &&
               met.read_pages > 0);
}

static void histories_with_states(void **state) {
    (void)state;
    struct random random;
    struct met met = {0};
    random_init(&random, test_seed(22));
    for (size_t round = 0; round < STATE_ROUNDS; round++)
        play(&random, &tiny_state_families[round % TINY_STATE_FAMILIES], 1, &met);
    print_met(&met);
    assert_met(met.on_disk > 0 && met.in_ram > 0 && met.late > 0 && met.read_pages > 0 && met.kept > 0 &&
               met.dropped > 0);
}

/* A document was opened where slots were short, and the sequence that opened it was written to a new one meanwhile: one
 * history of 600 does so. */
static void a_document_opens_where_slots_are_short(void **state) {
    (void)state;
    struct random random;
    struct met met = {0};
    random_init(&random, 6934);
    struct history history = draw_history(&random, without_states, FAMILIES);
    assert_string_equal(history.preset->name, "leoam-published"); /* with other presets other histories do */
    history.more_bytes = 0;
    play_history(&random, &history, &met);
    assert_true(met.on_disk > 0 && met.read_pages > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(histories), cmocka_unit_test(histories_with_states),
                                       cmocka_unit_test(a_document_opens_where_slots_are_short)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
