/* What a step is predicted to take, and which plan is chosen: against every possible plan, and against a step that is
 * played layer by layer. */
#include "plan/choose.h"

#include "sample_machine.h"
#include "seed.h"
#include "testing.h"

#include <math.h>
#include <string.h>

#include "base/random.h"

static const struct model_config config = {.name = "sample",
                                           .layer_count = 6,
                                           .hidden_size = 512,
                                           .head_count = 8,
                                           .kv_head_count = 2,
                                           .k_dimension = 64,
                                           .v_dimension = 64,
                                           .has_rope = true,
                                           .context_length = 1 << 17};

static double any_factor(void *context) { return exp(4 * random_double(context) - 2); }

static double one(void *context) {
    (void)context;
    return 1;
}

/* 20 MiB of weights: 2 always stay, 6 layers of 3. */
static const struct weight_sizes weights = {
    .all = 20 << 20, .top = 2 << 20, .slot = 3 << 20, .layers = 18 << 20, .layer_count = 6};

static struct cost_model model_on(const struct machine *machine) {
    return (struct cost_model){.machine = machine,
                               .config = &config,
                               .row_seconds = 1e-3,
                               .token_seconds = 1e-4,
                               .output_seconds = 1e-5,
                               .device_weight_bytes = 20 << 20,
                               .weights = weights};
}

/* The machine with 4, 2 and 1 threads. */
struct threads {
    struct machine machines[3];
    struct cost_model models[3];
};

static void threads_init(struct threads *threads, const struct machine *machine) {
    for (size_t i = 0; i < 3; i++) {
        assert_true(machine_with_threads(&threads->machines[i], machine, 4 >> i));
        threads->models[i] = model_on(&threads->machines[i]);
        if (i == 0) continue;
        const struct machine_threads *speed = &machine->threads[2 - i];
        threads->models[i].row_seconds /= speed->wide;
        threads->models[i].token_seconds /= speed->block;
        threads->models[i].output_seconds /= speed->block;
    }
}

static struct plan sizes(bool on_disk, uint64_t budget_bytes) {
    struct error error;
    struct plan plan = {.sequence_capacity = 1, .has_budget = budget_bytes > 0, .budget_bytes = budget_bytes};
    if (on_disk) assert_ok(plan_set_disk(&plan, "folder", 6, 0, &error), error);
    return plan;
}

/* ---- the choice, against all of them ---- */

/* Every preset and change that a choice is made of, written down again. */
static const struct {
    const char *preset, *set;
    bool is_exact, dials;
} possible[] = {
    {"full", NULL, true, false},         {"kvpr", NULL, true, false},
    {"full", "codec=q8", false, false},  {"streaming", NULL, false, false},
    {"quest", NULL, false, true},        {"quest", "select=meanstd", false, true},
    {"hata", NULL, false, true},         {"leoam", NULL, false, true},
    {"leoam", "codec=f16", false, true}, {"clo", NULL, false, false},
    {"retroinfer", NULL, false, false},  {"pqcache", NULL, false, false},
};

static bool same(const char *a, const char *b) {
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

/* Its loss, of a table that nobody believes. */
static double kld_of(void *context, const char *text) {
    (void)context;
    if (strncmp(text, "hata", 4) == 0) return 0.01;
    if (strncmp(text, "leoam", 5) == 0) return 0.03;
    return strncmp(text, "quest", 5) == 0 ? 0.2 : NAN;
}

/* Seconds of a token of all sequences; 5% in favour of exact ones. */
static double key_of(const struct candidate *candidate) {
    return (candidate->is_exact ? 1 : 1.05) / candidate_rate(candidate);
}

/* One way to run a plan: a step and a prompt; infinity: it is not possible. */
struct way {
    double step, prompt;
    uint64_t weights; /* bytes in RAM; 0: all */
};

static const struct way impossible = {INFINITY, INFINITY, 0};

/* How much of the weights stays beside so much KV; false: not even the least. */
static bool weights_beside(const struct choose_question *question, uint64_t kv, uint64_t *bytes) {
    const uint64_t memory = question->memory_bytes, least = (2 + 2 * 3) << 20, layer = 3 << 20;
    *bytes = question->weights_host_bytes;
    if (*bytes > 0) return *bytes >= least;
    if (memory == 0 || (memory >= kv && memory - kv >= weights.all)) return true;
    for (*bytes = least; *bytes + layer + kv <= memory && *bytes < least + 6 * layer;) *bytes += layer;
    return *bytes + kv <= memory;
}

static struct way way_of(const struct choose_question *question, const struct cost_model *model,
                         const char *preset, const char *set, size_t sequences, uint64_t budget) {
    struct error error;
    struct plan plan = *question->plan;
    struct cost cost;
    struct cost_work work = {.depth = question->depth, .sequences = sequences};
    plan.context_size = question->depth + 1;
    plan.sequence_capacity = sequences;
    plan.memory_bytes = question->memory_bytes;
    if (budget > 0) plan.has_budget = true, plan.budget_bytes = budget;
    if (plan_set_axes(&plan, preset, set, NULL, &error) != STATUS_OK ||
        plan_set_host_bytes(&plan, &config, &error) != STATUS_OK ||
        plan_check_budget(&plan, &config, question->depth, &error) != STATUS_OK ||
        cost_of_plan(&cost, model, &plan, &work, &error) != STATUS_OK ||
        !weights_beside(question, cost.host_bytes, &work.weights_host_bytes))
        return impossible;
    assert_ok(cost_of_plan(&cost, model, &plan, &work, &error), error);
    return (struct way){cost.step_seconds, cost.prompt_seconds, work.weights_host_bytes};
}

/* The memory divided in every way, where it is to be divided. */
static struct way divided(const struct choose_question *question, const struct cost_model *model,
                          const char *preset, const char *set, size_t sequences) {
    struct way best = way_of(question, model, preset, set, sequences, 0);
    const bool fits = isfinite(best.step) && best.weights == 0;
    if (question->plan->disk_directory == NULL || question->plan->has_budget || question->memory_bytes == 0 ||
        fits)
        return best;
    for (uint64_t eighths = 1; eighths < 8; eighths++) {
        const struct way way =
            way_of(question, model, preset, set, sequences, question->memory_bytes / 8 * eighths);
        if (way.step < best.step) best = way;
    }
    return best;
}

static struct way threaded(const struct choose_question *question, const char *preset, const char *set,
                           size_t sequences) {
    const struct way all = divided(question, &question->models[0], preset, set, sequences);
    struct way best = all;
    for (size_t i = 1; i < question->model_count && isfinite(all.step); i++) {
        const struct way way = divided(question, &question->models[i], preset, set, sequences);
        if (way.step * 1.05 < all.step && way.prompt <= 1.05 * all.prompt && way.step < best.step) best = way;
    }
    return best;
}

/* Seconds of a token, with as many sequences as are asked for, or the fewest that are about as quick as any. */
static double token_seconds(const struct choose_question *question, const char *preset, const char *set) {
    double quickest = INFINITY;
    if (question->sequences > 0)
        return threaded(question, preset, set, question->sequences).step / (double)question->sequences;
    for (size_t n = 1; n <= 64; n *= 2)
        quickest = fmin(quickest, threaded(question, preset, set, n).step / (double)n);
    for (size_t n = 1; n <= 64; n *= 2) {
        const double seconds = threaded(question, preset, set, n).step / (double)n;
        if (seconds <= quickest * 1.05) return seconds;
    }
    return INFINITY;
}

/* The quickest of all by trying each; infinity: none is possible. */
static double quickest(const struct choose_question *question) {
    double best = INFINITY;
    for (size_t i = 0; i < sizeof possible / sizeof *possible; i++) {
        char text[128], set[64];
        const char *changes = possible[i].set != NULL ? possible[i].set : "";
        const bool dials = question->loss > 0 && possible[i].dials,
                   on_disk = question->plan->disk_directory != NULL;
        snprintf(set, sizeof set, "%s%s%s", changes, dials && changes[0] != '\0' ? "," : "",
                 dials ? "loss=0.05" : "");
        snprintf(text, sizeof text, "%s%s%s", possible[i].preset, set[0] != '\0' ? " " : "", set);
        const double kld = question->kld != NULL ? question->kld(NULL, text) : NAN;
        const bool in_4_bits = on_disk && strcmp(text, "leoam loss=0.05") == 0;
        if (!possible[i].is_exact && (!dials || in_4_bits) && !(kld <= question->kld_max)) continue;
        if (!on_disk && (strcmp(possible[i].preset, "kvpr") == 0 || same(possible[i].set, "codec=f16")))
            continue;
        best = fmin(best, token_seconds(question, possible[i].preset, set[0] != '\0' ? set : NULL) *
                              (possible[i].is_exact ? 1 : 1.05));
    }
    return best;
}

static void check_choices(const struct choices *choices, const struct choose_question *question) {
    assert_true(choices->list[0].is_allowed);
    for (size_t i = 1; i < choices->count; i++) {
        const struct candidate *a = &choices->list[i - 1], *b = &choices->list[i];
        assert_true(a->is_allowed >= b->is_allowed);
        if (a->is_allowed == b->is_allowed) assert_true(key_of(a) <= key_of(b));
    }
    for (size_t i = 0; i < choices->count; i++) {
        const struct candidate *c = &choices->list[i];
        if (question->loss == 0 && question->kld == NULL) assert_true(c->is_exact == c->is_allowed);
        assert_true(c->cost.step_seconds > 0 && isfinite(c->cost.step_seconds));
        assert_true(c->cost.prompt_seconds >= c->cost.step_seconds && isfinite(c->cost.prompt_seconds));
        assert_true(c->cost.held >= 0 && c->cost.held <= 1);
        if (question->plan->has_budget && question->plan->disk_directory != NULL)
            assert_true(c->cost.host_bytes <= question->plan->budget_bytes);
        assert_true(c->sequences >= 1 && (question->sequences == 0 || c->sequences == question->sequences));
        assert_true(c->resident_layers == 6 || c->cost.pass_bytes > 0);
        if (question->memory_bytes > 0 && question->weights_host_bytes == 0)
            assert_true(c->cost.host_bytes +
                            (c->weights_host_bytes > 0 ? c->weights_host_bytes : weights.all) <=
                        question->memory_bytes);
    }
}

struct seen {
    size_t chosen, lossy, refused, on_disks, fewer_threads, together, streams;
};

static void note_choice(struct seen *seen, const struct candidate *choice) {
    seen->chosen++;
    seen->lossy += !choice->is_exact;
    seen->on_disks += choice->cost.held < 1;
    seen->fewer_threads += choice->thread_count < 4;
    seen->together += choice->sequences > 1;
    seen->streams += choice->weights_host_bytes > 0;
}

/* A budget, memory, depth and loss at random. */
static struct choose_question any_question(struct random *random, const struct threads *threads,
                                           struct plan *plan) {
    const bool on_disk = random_below(random, 5) != 0, kld = random_below(random, 3) == 0;
    const uint64_t budget =
        random_below(random, 3) == 0 ? 0 : (uint64_t)(8e6 * exp(5 * random_double(random)));
    *plan = sizes(on_disk, budget);
    return (struct choose_question){
        .models = threads->models,
        .model_count = 3,
        .plan = plan,
        .depth = (uint64_t)exp(11.7 * random_double(random)),
        .sequences = random_below(random, 4),
        .memory_bytes = random_below(random, 2) == 0 ? 0 : (uint64_t)(16e6 * exp(4 * random_double(random))),
        .weights_host_bytes = random_below(random, 6) == 0 ? random_below(random, 24 << 20) : 0,
        .loss = random_below(random, 3) == 0 ? 0.05 : 0,
        .kld_max = kld ? 0.05 : 0,
        .kld = kld ? kld_of : NULL};
}

static void the_choice_is_the_quickest(void **state) {
    (void)state;
    struct random random;
    enum { ROUNDS = 400 };
    struct seen seen = {0};
    random_init(&random, test_seed(15));
    for (size_t round = 0; round < ROUNDS; round++) {
        const struct machine machine = sample_machine(any_factor, &random);
        struct threads threads;
        struct plan plan;
        threads_init(&threads, &machine);
        const struct choose_question question = any_question(&random, &threads, &plan);
        struct choices choices, again;
        struct error error = {0};
        const double best = quickest(&question);
        if (plan_choose(&choices, &question, &error) != STATUS_OK) {
            assert_true(isinf(best));
            assert_true(error.message[0] != '\0');
            seen.refused++;
        } else {
            if (fabs(key_of(&choices.list[0]) / best - 1) > 1e-12)
                fail_msg("round %zu: %s, %g s a token; found %g", round, choices.list[0].text,
                         key_of(&choices.list[0]), best);
            check_choices(&choices, &question);
            assert_ok(plan_choose(&again, &question, &error), error);
            assert_int_equal(again.count, choices.count);
            for (size_t i = 0; i < choices.count; i++)
                assert_string_equal(again.list[i].text, choices.list[i].text);
            note_choice(&seen, &choices.list[0]);
        }
        plan_deinit(&plan);
    }
    printf(
        "%zu chosen, %zu lossy, %zu with KV on disk, %zu with fewer threads, %zu of several sequences, %zu "
        "with weights on the way, %zu refused\n",
        seen.chosen, seen.lossy, seen.on_disks, seen.fewer_threads, seen.together, seen.streams,
        seen.refused);
    assert_met(seen.chosen > ROUNDS / 2 && seen.lossy > ROUNDS / 10 && seen.refused > 0 &&
               seen.on_disks > ROUNDS / 20 && seen.fewer_threads > ROUNDS / 20 &&
               seen.together > ROUNDS / 4 && seen.streams > ROUNDS / 20);
}

static double kld_of_keepers(void *context, const char *text) {
    (void)context;
    return strcmp(text, "hata") == 0 || strcmp(text, "quest") == 0 ? 0.1 : NAN;
}

/* What is as quick as the exact plan is not chosen before it. */
static void of_equal_plans_the_exact_one(void **state) {
    (void)state;
    struct machine machine = sample_machine(one, NULL);
    const struct cost_model model = model_on(&machine);
    struct plan plan = sizes(false, 0);
    struct choices choices;
    struct error error;
    const struct choose_question question = {.models = &model,
                                             .model_count = 1,
                                             .sequences = 1,
                                             .plan = &plan,
                                             .depth = 1024, /* hata and quest keep every token */
                                             .kld_max = 0.5,
                                             .kld = kld_of_keepers};
    assert_ok(plan_choose(&choices, &question, &error), error);
    assert_true(choices.list[0].is_exact);
    assert_string_equal(choices.list[0].text, "full");
    assert_true(choices.list[1].is_allowed && choices.list[2].is_allowed);
    assert_true(choices.list[1].cost.step_seconds == choices.list[0].cost.step_seconds);
    assert_string_equal(choices.list[1].text, "hata"); /* as in the list: loam's own are before the lab's */
    assert_string_equal(choices.list[2].text, "quest");
}

/* ---- a step, played layer by layer ---- */

/* Seconds of a page: on the disk, and of the processor as it arrives; of a layer: computing. */
struct played {
    double read, handle, compute;
};

/* A layer's reads are asked for when the layer before it begins, and the disk does one thing at a time; a page that
 * has arrived is handled while the next ones are on their way. */
static double played_seconds(size_t layers, size_t pages, const struct played *play) {
    double disk_free = 0, busy = 0, asked = 0;
    for (size_t i = 0; i < layers; i++) {
        const double begins = busy;
        for (size_t page = 0; page < pages; page++) {
            disk_free = fmax(disk_free, asked) + play->read;
            busy = fmax(busy, disk_free) + play->handle;
        }
        busy += play->compute;
        asked = begins;
    }
    return busy;
}

static void reading_everything_is_as_played(void **state) {
    (void)state;
    struct random random;
    enum { ROUNDS = 200, PAGES = 1000 };
    size_t disk_bound = 0, handling_bound = 0;
    random_init(&random, test_seed(12));
    for (size_t round = 0; round < ROUNDS; round++) {
        struct machine machine = sample_machine(any_factor, &random);
        machine.tier.page_seconds *= 10 * any_factor(&random);
        const struct cost_model model = model_on(&machine);
        struct plan plan = sizes(true, 24 << 20);
        struct cost cost, serial;
        const struct cost_work deep = {.depth = 65536};
        struct error error;
        plan.context_size = 65537;
        assert_ok(plan_set_axes(&plan, "full", NULL, NULL, &error), error);
        assert_ok(plan_set_host_bytes(&plan, &config, &error), error);
        assert_ok(cost_of_plan(&cost, &model, &plan, &deep, &error), error);
        assert_true(cost.held > 0 && cost.held < 1);
        const double disk = cost.parts[COST_DISK], pages = cost.parts[COST_PAGES];
        double compute = -pages;
        for (enum cost_part part = 0; part < COST_PARTS; part++)
            if (part != COST_DISK && part != COST_LINK) compute += cost.parts[part];
        const double layers = (double)config.layer_count;
        const struct played play = {disk / layers / PAGES, pages / layers / PAGES, compute / layers};
        const double played = played_seconds(config.layer_count, PAGES, &play);
        assert_true(fabs(cost.step_seconds - played) <= 2e-3 * played); /* a page at the ends */
        machine.disk.serial = 1; /* the processors move the disk's bytes */
        assert_ok(cost_of_plan(&serial, &model, &plan, &deep, &error), error);
        const double sum = fmax(disk, pages) + 0.75 * fmin(disk, pages) + compute;
        assert_true(fabs(serial.step_seconds - sum) <= 1e-9 * sum);
        disk_bound += disk > compute + pages;
        handling_bound += pages > disk;
        plan_deinit(&plan);
    }
    assert_met(disk_bound > ROUNDS / 10 && disk_bound < ROUNDS * 9 / 10 && handling_bound > ROUNDS / 20);
}

/* Seconds that a step of so many layers, all of which choose, is longer than its computing. */
static double waited_for(struct cost *cost, const struct machine *machine, const char *preset,
                         const char *keep) {
    const struct cost_model model = model_on(machine);
    struct plan plan = sizes(true, 40 << 20);
    const struct cost_work deep = {.depth = 65536};
    struct error error;
    plan.context_size = 65537;
    assert_ok(plan_set_axes(&plan, preset, "dense=0", keep, &error), error);
    assert_ok(plan_set_host_bytes(&plan, &config, &error), error);
    assert_ok(cost_of_plan(cost, &model, &plan, &deep, &error), error);
    plan_deinit(&plan);
    const double *parts = cost->parts;
    const double waited = cost->step_seconds - parts[COST_MATRICES] - parts[COST_LAYERS] -
                          parts[COST_ATTENTION] - parts[COST_SELECTION];
    assert_true(parts[COST_PAGES] > 0 && parts[COST_DISK] > 0);
    assert_true(fabs(waited - parts[COST_DISK] - parts[COST_PAGES]) < 1e-9);
    return waited;
}

/* As steps on such a disk were measured; where none were, as the disk and the handling of pages say. */
static void a_choice_pays_for_its_reads(void **state) {
    (void)state;
    struct machine machine = sample_machine(one, NULL);
    struct cost cost;
    const double alone = waited_for(&cost, &machine, "quest", "25%");
    for (size_t i = 0; i < MACHINE_DISK_SIZES; i++)
        for (size_t j = 0; j < MACHINE_DISK_DEPTHS; j++) machine.disk.read[i][j] /= 4;
    assert_true(waited_for(&cost, &machine, "quest", "25%") > 1.5 * alone);
    machine.tier = (struct machine_tier){
        .page_seconds = 1e-7, .layer_seconds = 3e-4, .request_seconds = 5e-6, .neighbour_seconds = 7e-6};
    const double layers = (double)config.layer_count, byte = machine_tier_byte_seconds(&machine);
    const double many = waited_for(&cost, &machine, "quest", "25%");
    assert_true(cost.read_requests > layers * MACHINE_LAYER_REQUESTS);
    assert_true(fabs(many - layers * 3e-4 - cost.read_requests * 5e-6 - cost.read_bytes * byte) < 1e-9);
    const double few = waited_for(&cost, &machine, "quest", "512"),
                 share = cost.read_requests / MACHINE_LAYER_REQUESTS;
    assert_true(share > 0.1 && share < layers);
    assert_true(fabs(few - share * 3e-4 - cost.read_requests * 5e-6 - cost.read_bytes * byte) < 1e-9);
    const double streaming = waited_for(&cost, &machine, "streaming", "25%"); /* whole layers, neighbours */
    const double least = cost.read_requests * 7e-6 + cost.read_bytes * byte;
    assert_true(streaming > least && streaming <= least + layers * 3e-4);
}

/* A plan that reads no disk needs no numbers of it; one that does says which are missing. */
static void a_disk_that_nobody_measured(void **state) {
    (void)state;
    struct machine machine = sample_machine(one, NULL);
    const struct cost_model model = model_on(&machine);
    struct choices choices;
    struct error error;
    struct plan plan = sizes(false, 0), on_disk = sizes(true, 8 << 20);
    struct choose_question question = {
        .models = &model, .model_count = 1, .plan = &plan, .depth = 4096, .memory_bytes = UINT64_C(1) << 30};
    machine.disk = (struct machine_disk){.write = 0};
    machine.tier = (struct machine_tier){.page_seconds = 0};
    assert_false(plan_may_read_disk(&question, &config, &weights));
    assert_ok(plan_choose(&choices, &question, &error), error);
    assert_string_equal(choices.list[0].preset, "full");
    const struct kv_cache_config cache = model_cache_config(&config, KV_F16, KV_F16);
    question.memory_bytes = weights.all + 4096 * kv_cache_bytes_per_token(&cache) - 1; /* a layer is read */
    assert_true(plan_may_read_disk(&question, &config, &weights));
    if (plan_choose(&choices, &question, &error) != STATUS_UNSUPPORTED) fail_msg("%s", error.message);
    assert_non_null(strstr(error.message, "disk.write: none"));
    question.plan = &on_disk;
    question.memory_bytes = UINT64_C(1) << 30;
    assert_true(plan_may_read_disk(&question, &config, &weights));
    assert_int_equal(plan_choose(&choices, &question, &error), STATUS_UNSUPPORTED);
    assert_non_null(strstr(error.message, "disk.write: none"));
    plan_deinit(&on_disk);
}

/* ---- what must follow ---- */

/* Seconds of a preset with so much RAM, at a depth; NaN: not possible. */
static double seconds_of(const struct machine *machine, const char *preset, uint64_t budget, uint64_t depth) {
    const struct cost_model model = model_on(machine);
    struct plan plan = sizes(budget > 0, budget);
    struct error error;
    struct cost cost = {.step_seconds = NAN};
    plan.context_size = depth + 1;
    assert_ok(plan_set_axes(&plan, preset, NULL, NULL, &error), error);
    assert_ok(plan_set_host_bytes(&plan, &config, &error), error);
    if (cost_of_plan(&cost, &model, &plan, &(struct cost_work){.depth = depth}, &error) != STATUS_OK)
        cost.step_seconds = NAN;
    plan_deinit(&plan);
    return cost.step_seconds;
}

/* The machine with a disk that reads requests of every size at one rate. */
static struct machine with_even_disk(const struct machine *machine) {
    struct machine even = *machine;
    for (size_t i = 0; i < MACHINE_DISK_SIZES; i++)
        for (size_t j = 0; j < MACHINE_DISK_DEPTHS; j++) even.disk.read[i][j] = machine->disk.read[0][0];
    return even;
}

/* More RAM, and a quicker disk, make nothing slower; a longer context makes nothing quicker.  RAM is looked at with a
 * disk that has one rate: fewer misses are fewer neighbours, so smaller requests, which may take longer than all of
 * them in large ones. */
static void more_is_not_worse(void **state) {
    (void)state;
    static const char *const presets[] = {"full", "quest", "hata", "leoam", "clo", "streaming", "kvpr"};
    struct random random;
    random_init(&random, test_seed(13));
    for (size_t round = 0; round < 150; round++) {
        struct machine machine = sample_machine(any_factor, &random), faster;
        const char *preset = presets[random_below(&random, sizeof presets / sizeof *presets)];
        const uint64_t budget = (uint64_t)(8e6 * exp(3 * random_double(&random))),
                       depth = 4096 + random_below(&random, 1 << 16);
        const double seconds = seconds_of(&machine, preset, budget, depth);
        if (isnan(seconds)) continue;
        const bool rebuilds = strcmp(preset, "kvpr") == 0; /* a tenth less, or as it was: not monotone */
        const struct machine even = with_even_disk(&machine);
        if (!rebuilds)
            assert_true(seconds_of(&even, preset, budget * 2, depth) <=
                        seconds_of(&even, preset, budget, depth) * (1 + 1e-9));
        faster = machine;
        for (size_t i = 0; i < MACHINE_DISK_SIZES; i++)
            for (size_t j = 0; j < MACHINE_DISK_DEPTHS; j++) faster.disk.read[i][j] *= 2;
        if (!rebuilds) assert_true(seconds_of(&faster, preset, budget, depth) <= seconds * (1 + 1e-9));
        if (strcmp(preset, "full") == 0)
            assert_true(seconds_of(&machine, preset, 0, depth * 2) > seconds_of(&machine, preset, 0, depth));
    }
}

/* In RAM a selection is as everything where it keeps everything, and quicker far behind that. */
static void exact_below_is_where_lines_cross(void **state) {
    (void)state;
    struct random random;
    size_t crossed = 0;
    random_init(&random, test_seed(14));
    for (size_t round = 0; round < 100; round++) {
        const struct machine machine = sample_machine(any_factor, &random);
        const struct cost_model model = model_on(&machine);
        struct plan plan = sizes(false, 0);
        struct error error;
        const uint64_t depth = 65536;
        plan.context_size = depth + 1;
        assert_ok(plan_set_axes(&plan, "hata", NULL, NULL, &error), error);
        const uint64_t below = plan_exact_below(&model, &plan, depth);
        assert_true(below <= depth);
        for (uint64_t at = 1024; at <= depth; at += 512) {
            const double selected = seconds_of(&machine, "hata", 0, at),
                         everything = seconds_of(&machine, "full", 0, at);
            if (at <= below) assert_true(everything <= selected * (1.05 + 1e-9));
            if (at > below + below / 8 + 64 && at > 4096) assert_true(selected * 1.05 < everything);
        }
        crossed += below > 0 && below < depth;
        plan_deinit(&plan);
    }
    assert_true(crossed > 50);
}

/* ---- weights on the way, and sequences together ---- */

/* Layers that pass through two slots: one is read while another one computes, pass after pass. */
static double played_pass(double read, double compute) {
    enum { LAYERS = 6, PASSES = 40 };
    double disk_free = 0, computed = 0, freed[2] = {0, 0}, half = 0;
    for (size_t i = 0; i < LAYERS * PASSES; i++) {
        if (i == LAYERS * PASSES / 2) half = computed;
        disk_free = fmax(disk_free, freed[i % 2]) + read;
        computed = fmax(disk_free, computed) + compute;
        freed[i % 2] = computed;
    }
    return (computed - half) / (PASSES / 2);
}

static void reading_weights_is_as_played(void **state) {
    (void)state;
    struct random random;
    size_t disk_bound = 0;
    random_init(&random, test_seed(15));
    for (size_t round = 0; round < 200; round++) {
        const struct machine machine = sample_machine(any_factor, &random);
        struct cost_model model = model_on(&machine);
        struct plan plan = sizes(false, 0);
        struct cost in_ram, cost;
        struct error error;
        model.row_seconds = 1e-2 * any_factor(&random);
        const struct cost_work all = {.depth = 1024},
                               some = {.depth = 1024, .weights_host_bytes = (2 + 2 * 3) << 20};
        assert_ok(plan_set_axes(&plan, "full", NULL, NULL, &error), error);
        assert_ok(cost_of_plan(&in_ram, &model, &plan, &all, &error), error);
        assert_ok(cost_of_plan(&cost, &model, &plan, &some, &error), error);
        assert_true(cost.pass_bytes == 18 << 20);
        const double played = played_pass(cost.parts[COST_WEIGHTS] / 6, in_ram.step_seconds / 6);
        assert_true(fabs(cost.step_seconds - played) <= 1e-9 * played);
        disk_bound += cost.parts[COST_WEIGHTS] > in_ram.step_seconds;
        plan_deinit(&plan);
    }
    assert_met(disk_bound > 20 && disk_bound < 180);
}

/* Of 20 MiB in less memory whole layers stay, as many as fit; a larger memory is never slower. */
static void more_memory_keeps_more_layers(void **state) {
    (void)state;
    const struct machine machine = sample_machine(one, NULL);
    const struct cost_model model = model_on(&machine);
    struct plan plan = sizes(false, 0);
    double before = INFINITY;
    size_t resident = 0;
    for (uint64_t memory = 10 << 20; memory <= 24 << 20; memory += 1 << 20) {
        struct choices choices;
        struct error error;
        const struct choose_question question = {.models = &model,
                                                 .model_count = 1,
                                                 .sequences = 1,
                                                 .plan = &plan,
                                                 .depth = 512, /* 1.5 MiB of KV */
                                                 .memory_bytes = memory};
        assert_ok(plan_choose(&choices, &question, &error), error);
        const struct candidate *choice = &choices.list[0];
        const uint64_t spare = memory - choice->cost.host_bytes, least = (2 + 2 * 3) << 20;
        assert_true(choice->cost.host_bytes + choice->weights_host_bytes <= memory);
        if (spare >= weights.all)
            assert_true(choice->weights_host_bytes == 0 && choice->resident_layers == 6);
        else
            assert_int_equal(choice->resident_layers, (spare - least) / (3 << 20));
        assert_true(choice->resident_layers >= resident && choice->cost.step_seconds <= before);
        resident = choice->resident_layers;
        before = choice->cost.step_seconds;
    }
    assert_int_equal(resident, 6);
}

/* With weights on the way many sequences pay; in RAM, with products that take their time for each row, fewer do. */
static void sequences_share_a_pass(void **state) {
    (void)state;
    const struct machine machine = sample_machine(one, NULL);
    struct cost_model model = model_on(&machine);
    struct plan plan = sizes(false, 0);
    struct choices choices;
    struct error error;
    struct choose_question question = {.models = &model, .model_count = 1, .plan = &plan, .depth = 512};
    model.token_seconds = model.row_seconds; /* nothing is shared */
    assert_ok(plan_choose(&choices, &question, &error), error);
    assert_int_equal(choices.list[0].sequences, 1);
    question.weights_host_bytes = 8 << 20;
    assert_ok(plan_choose(&choices, &question, &error), error);
    const double alone = candidate_rate(&choices.list[0]);
    assert_true(choices.list[0].sequences > 1);
    question.sequences = 1;
    assert_ok(plan_choose(&choices, &question, &error), error);
    assert_true(candidate_rate(&choices.list[0]) * 1.5 < alone);
}

/* What a device cannot choose by is left out, with one line; a device that attends to everything has full. */
static void what_the_device_cannot_is_left_out(void **state) {
    (void)state;
    const struct machine machine = sample_machine(one, NULL);
    const struct cost_model model = model_on(&machine);
    struct plan plan = sizes(false, 0);
    struct choices choices;
    struct error error;
    struct device device = {.name = "new", .key_indexes = UINT32_MAX & ~(1U << KEY_INDEX_LEVEL)};
    const struct choose_question question = {.models = &model,
                                             .model_count = 1,
                                             .sequences = 1,
                                             .plan = &plan,
                                             .depth = 65536,
                                             .device = &device,
                                             .loss = 0.05};
    assert_ok(plan_choose(&choices, &question, &error), error);
    size_t selecting = 0;
    for (size_t i = 0; i < choices.count; i++) {
        assert_false(same(choices.list[i].preset, "hata"));
        selecting += !choices.list[i].is_exact;
    }
    assert_true(selecting > 0);
    assert_int_equal(choices.left_out.status, STATUS_UNSUPPORTED);
    assert_non_null(strstr(choices.left_out.message, "the new device cannot choose so"));
    device.key_indexes = 0;
    assert_ok(plan_choose(&choices, &question, &error), error);
    assert_true(choices.count > 0);
    for (size_t i = 0; i < choices.count; i++) assert_true(same(choices.list[i].preset, "full"));
    device.key_indexes = UINT32_MAX;
    assert_ok(plan_choose(&choices, &question, &error), error);
    assert_int_equal(choices.left_out.status, STATUS_OK);
}

/* A file without a selection's numbers: that one is not offered. */
static void what_is_not_measured_is_not_chosen(void **state) {
    (void)state;
    struct machine machine = sample_machine(one, NULL);
    for (size_t i = 0; i < MACHINE_SELECTIONS_MAX; i++)
        if (same(machine.selections[i].name, "hata") || same(machine.selections[i].name, "clo"))
            machine.selections[i].rows = (struct machine_by_group){0, 0};
    const struct cost_model model = model_on(&machine);
    struct plan plan = sizes(false, 0);
    struct choices choices;
    struct error error;
    const struct choose_question question = {
        .models = &model, .model_count = 1, .sequences = 1, .plan = &plan, .depth = 65536, .loss = 0.05};
    assert_ok(plan_choose(&choices, &question, &error), error);
    assert_true(choices.count > 5);
    for (size_t i = 0; i < choices.count; i++)
        assert_false(same(choices.list[i].preset, "hata") || same(choices.list[i].preset, "clo"));
}

/* A step of layers with windows attends to those, and they are what there is of their K and V; `dense` counts the other
 * layers. */
static void windows_are_what_is_seen(void **state) {
    (void)state;
    enum { DEPTH = 65536, WINDOW = 1024, CHUNK_BYTES = 64 * 2 * (64 + 64) * 2 };
    static const struct kv_windows windows = {.tokens = WINDOW, .slides = {true, true, false, true, true, true}};
    struct model_config sliding = config;
    sliding.kv_windows = &windows;
    const struct machine machine = sample_machine(one, NULL);
    struct cost_model whole = model_on(&machine), model = whole;
    model.config = &sliding;
    struct plan plan = sizes(false, 0);
    struct cost all, cost;
    struct error error;
    const struct cost_work deep = {.depth = DEPTH};
    assert_ok(plan_set_axes(&plan, "full", NULL, NULL, &error), error);
    assert_ok(cost_of_plan(&all, &whole, &plan, &deep, &error), error);
    assert_ok(cost_of_plan(&cost, &model, &plan, &deep, &error), error);
    assert_int_equal(all.kv_bytes, 6 * DEPTH / 64 * CHUNK_BYTES);
    assert_int_equal(cost.kv_bytes, (DEPTH / 64 + 5 * (WINDOW / 64 + 1)) * CHUNK_BYTES);
    const double share = (DEPTH + 5.0 * WINDOW) / (6.0 * DEPTH);
    assert_true(fabs(cost.parts[COST_ATTENTION] - share * all.parts[COST_ATTENTION]) <=
                1e-9 * all.parts[COST_ATTENTION]);
    assert_true(cost.prompt_seconds < all.prompt_seconds);
    plan_deinit(&plan);
    struct select_shape shape = plan_select_shape(&sliding);
    struct select_options options = select_options_default();
    for (options.dense_layers = 0; options.dense_layers < 3; options.dense_layers++)
        assert_int_equal(select_layer_first(&options, &shape), options.dense_layers == 0 ? 2 : 6);
    shape.windows = NULL;
    assert_int_equal(select_layer_first(&options, &shape), 3);
}

/* Of a device with memory of its own: the three tiers are what the engine makes of the same budgets, the link moves
 * what lies in RAM, and what does not fit is refused. */
static void a_device_holds_what_the_engine_puts_there(void **state) {
    (void)state;
    enum { DEPTH = 65536, MIB = 1 << 20, LAYER = DEPTH * 2 * (64 + 64) * 2 }; /* bytes: 32 MiB */
    static const struct {
        uint64_t device, kv_device, kv_host; /* MiB free beside the weights; budgets, 0: none */
        double near, far;                    /* layers, and those in RAM, which are read */
        bool is_possible;
    } cases[] = {{400, 0, 0, 6, 0, true},   {150, 0, 0, 2, 4, true},     {400, 100, 200, 3, 3, true},
                 {400, 100, 50, 0, 0, false}, {10, 0, 0, 0, 6, true}};
    struct machine machine = sample_machine(one, NULL);
    machine.device_link = 1e9;
    const struct cost_model model = model_on(&machine);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct choices choices;
        struct error error;
        const uint64_t budget = (cases[i].kv_device + cases[i].kv_host) * MIB;
        struct plan plan = sizes(false, budget), placed = plan;
        plan.device_budget_bytes = placed.device_budget_bytes = cases[i].kv_device * MIB;
        machine.device_bytes = (double)((20 + cases[i].device) * MIB);
        const struct choose_question question = {
            .models = &model, .model_count = 1, .sequences = 1, .plan = &plan, .depth = DEPTH - 1};
        const enum status status = plan_choose(&choices, &question, &error);
        assert_int_equal(status == STATUS_OK, cases[i].is_possible);
        if (!cases[i].is_possible) continue;
        placed.context_size = DEPTH;
        assert_ok(plan_set_axes(&placed, "full", NULL, NULL, &error), error);
        plan_bound_memory(&placed, cases[i].device * MIB);
        assert_ok(plan_fit_context(&placed, &config, &error), error);
        const struct candidate *full = &choices.list[0];
        assert_string_equal(full->preset, "full");
        assert_true(placed.rows_in_host == (cases[i].far > 0));
        assert_int_equal(full->cost.host_bytes, (uint64_t)cases[i].far * LAYER);
        assert_int_equal(full->cost.device_bytes, placed.rows_in_host
                                                      ? placed.near_layers * LAYER + placed.unit_bytes
                                                      : 6 * (uint64_t)LAYER);
        assert_true(full->cost.device_bytes <= max_size(placed.device_bytes, 1));
        assert_true(fabs(full->cost.parts[COST_LINK] - cases[i].far * LAYER / 1e9) < 1e-9);
        for (size_t j = 1; j < choices.count; j++) /* lists move less than everything */
            assert_true(choices.list[j].cost.parts[COST_LINK] <= full->cost.parts[COST_LINK] * 1.01);
    }
    struct choices choices;
    struct error error;
    struct plan plan = sizes(false, 0);
    const struct choose_question question = {.models = &model, .model_count = 1, .plan = &plan, .depth = 64};
    machine.device_bytes = 19 << 20;
    assert_int_equal(plan_choose(&choices, &question, &error), STATUS_MEMORY);
    assert_string_equal(error.message, "the weights need 20.00 MiB, the device has 19.00 MiB: try -ngl N, or --device "
                                       "cpu; loam inspect says N");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_holds_what_the_engine_puts_there),
        cmocka_unit_test(the_choice_is_the_quickest),
        cmocka_unit_test(of_equal_plans_the_exact_one),
        cmocka_unit_test(reading_everything_is_as_played),
        cmocka_unit_test(a_choice_pays_for_its_reads),
        cmocka_unit_test(a_disk_that_nobody_measured),
        cmocka_unit_test(more_is_not_worse),
        cmocka_unit_test(exact_below_is_where_lines_cross),
        cmocka_unit_test(what_the_device_cannot_is_left_out),
        cmocka_unit_test(what_is_not_measured_is_not_chosen),
        cmocka_unit_test(reading_weights_is_as_played),
        cmocka_unit_test(more_memory_keeps_more_layers),
        cmocka_unit_test(sequences_share_a_pass),
        cmocka_unit_test(windows_are_what_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
