/* The plan: the result of presets and settings, on disk and in RAM, and what a budget holds. */
#include "plan/plan.h"

#include "testing.h"

#include <string.h>

static const struct model_config config = {.layer_count = 4,
                                           .head_count = 8,
                                           .kv_head_count = 2,
                                           .k_dimension = 64,
                                           .v_dimension = 64,
                                           .has_rope = true,
                                           .context_length = 8192};
enum { TOKEN_BYTES = 4 * 2 * 2 * 64 * 2 }; /* of f16 K and V */

static struct plan plan_of(const char *preset, const char *set, bool on_disk, enum kv_type type) {
    struct error error;
    struct plan plan = {.sequence_capacity = 1, .k_type = type, .v_type = type};
    if (on_disk) assert_ok(plan_set_disk(&plan, "folder:", 6, 7, &error), error);
    assert_ok(plan_set_axes(&plan, preset, set, NULL, &error), error);
    return plan;
}

static void a_preset_is_its_row(void **state) {
    (void)state;
    struct plan plan = plan_of("leoam", NULL, false, KV_F16);
    assert_ptr_equal(plan.select.method, &select_tree);
    assert_true(plan.select.rank == TREE_MEAN_DEVIATION && plan.prefetches);
    assert_true(plan.select.heads == SELECT_HEADS_EVEN && plan.select.keep.ratio == 0.1);
    assert_true(plan.select.leaf == select_options_default().leaf && !plan.quantized_pages);
    assert_int_equal(plan.select.dense_layers, 0);
    plan = plan_of("leoam", NULL, true, KV_F16);
    assert_string_equal(plan.disk_directory, "folder");
    assert_int_equal(plan.disk_bytes, 7);
    assert_true(plan.select.method == &select_hash && plan.select.planes == 1 && plan.select.page == 64);
    assert_true(plan.select.leaf == 64 && plan.select.dense_layers == 0 && plan.resident_layers == 0);
    assert_true(plan.select.group == SELECT_GROUP_SOFTMAX && plan.select.take == 0);
    assert_true(plan.select.rank == TREE_MEAN_DEVIATION && plan.quantized_pages && plan.mixes_pages);
    assert_true(plan.select.heads == SELECT_HEADS_EVEN && plan.select.keep.ratio == 0.22);
    assert_true(plan.fixes_fractions && plan.quantized_of_16 == 16 && plan_caveat(&plan) == NULL);
    plan_deinit(&plan);
    plan = plan_of("quest", NULL, true, KV_F16);
    assert_true(!plan.quantized_pages && !plan.prefetches && plan.select.heads == SELECT_HEADS_EVEN);
    assert_int_equal(plan.resident_layers, plan.select.dense_layers);
    plan_deinit(&plan);
}

/* Bytes of a chunk's block: codes, a factor a token, a mean. */
static void planes_are_bits_of_a_coordinate(void **state) {
    (void)state;
    static const struct {
        const char *set;
        size_t dimension, bytes; /* 0: refused */
    } cases[] = {{"planes=1", 64, 64 * (8 + 2) + 128},
                 {"planes=2", 64, 64 * (16 + 2) + 128},
                 {"bits=64", 64, 64 * (8 + 2) + 128},
                 {"planes=1", 128, 64 * (16 + 2) + 256},
                 /* two planes: codes are words of 32 bits; blocks are of 64 bytes */
                 {"planes=1", 16, 64 * (4 + 2) + 64},
                 /* the later one */
                 {"planes=1,bits=256", 64, 64 * (32 + 2) + 128},
                 {"bits=256,planes=1", 64, 64 * (8 + 2) + 128},
                 {"planes=9", 64, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct plan plan = plan_of("hata", cases[i].set, false, KV_F16);
        const struct select_shape shape = {
            .layer_count = 4, .head_count = 4, .kv_head_count = 2, .k_dimension = cases[i].dimension};
        struct error error;
        size_t bytes = 0;
        const enum status status = select_options_key_index_bytes(&plan.select, &shape, &bytes, &error);
        if (cases[i].bytes == 0)
            assert_non_null(status == STATUS_USAGE ? strstr(error.message, "planes=9, expected up to 8")
                                                   : NULL);
        else
            assert_int_equal(status == STATUS_OK ? bytes : 0, cases[i].bytes);
        plan_deinit(&plan);
    }
}

/* The user's settings take precedence over the preset's, and a preset's codec does not make KV of another type. */
static void settings_change_the_row(void **state) {
    (void)state;
    static const struct {
        const char *set;
        enum kv_type given, type;
        bool q4, mixes;
        int fixed; /* of 16; -1: measured, where pages are mixed */
    } cases[] = {{"codec=q4", KV_F16, KV_F16, true, false, -1},
                 {"codec=q8", KV_F16, KV_Q8, false, false, -1},
                 {"codec=f16", KV_Q8, KV_F16, false, false, -1},
                 {NULL, KV_Q8, KV_Q8, false, false, -1},
                 {"scan=1", KV_F16, KV_F16, false, false, -1},
                 {"select=exact", KV_F16, KV_F16, false, false, -1},
                 {"codec=q4", KV_Q8, KV_F16, true, false, -1},
                 {"leaf=32", KV_F16, KV_F16, true, true, 16},
                 {"select=quest", KV_F16, KV_F16, true, true, 16},
                 {"quantized=4", KV_F16, KV_F16, true, true, 4},
                 {"codec=dynamic", KV_F16, KV_F16, true, true, -1},
                 {"quantized=4,codec=dynamic", KV_F16, KV_F16, true, true, 4}};
    char text[32];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct plan plan = plan_of("leoam", cases[i].set, true, cases[i].given);
        if (plan.k_type != cases[i].type || plan.v_type != cases[i].type ||
            plan.quantized_pages != cases[i].q4 || plan.mixes_pages != cases[i].mixes)
            fail_msg("%s: type %d, 4 bits %d %d", cases[i].set, (int)plan.k_type, plan.quantized_pages,
                     plan.mixes_pages);
        if ((plan.fixes_fractions ? plan.quantized_of_16 : -1) != cases[i].fixed ||
            (plan_caveat(&plan) != NULL) != (cases[i].mixes && cases[i].fixed < 0))
            fail_msg("%s: %d of 16 pages, %s", cases[i].set, plan.quantized_of_16, plan_caveat(&plan));
        if (!plan.quantized_pages && plan.k_type == KV_F16)
            assert_string_equal(plan_method(&plan, AXIS_CODEC, text, sizeof text), "f16");
        plan_deinit(&plan);
    }
    struct plan plan = plan_of("leoam", "leaf=32,dense=3,heads=importance,speculate=none", true, KV_F16);
    assert_true(plan.select.leaf == 32 && plan.select.dense_layers == 3 && plan.resident_layers == 3);
    assert_true(plan.select.heads == SELECT_HEADS_IMPORTANCE && !plan.prefetches);
    plan_deinit(&plan);
    struct error error;
    struct plan in_ram = {0};
    assert_int_equal(plan_set_axes(&in_ram, "leoam", "codec=q4", NULL, &error), STATUS_USAGE);
    assert_non_null(strstr(error.message, "there is no --kv-disk"));
    struct plan rows = {.sequence_capacity = 1};
    assert_ok(plan_set_disk(&rows, "folder:", 6, 7, &error), error);
    assert_int_equal(plan_set_axes(&rows, "leoam", "select=exact,quantized=8", NULL, &error), STATUS_USAGE);
    assert_non_null(strstr(error.message, "--set quantized"));
    plan_deinit(&rows);
}

static void texts(void **state) {
    (void)state;
    char text[80];
    struct plan plan = plan_of("hata", NULL, false, KV_F16);
    assert_string_equal(plan_text(&plan, text, sizeof text), "hata");
    plan = plan_of("quest", "select=meanstd", false, KV_F16);
    plan.select.keep = (struct select_keep){.tokens = 512};
    assert_string_equal(plan_text(&plan, text, sizeof text), "quest select=meanstd keep 512");
}

static void a_context_fits_its_budget(void **state) {
    (void)state;
    struct error error;
    struct plan plan = plan_of("full", NULL, false, KV_F16);
    plan.sequence_capacity = 2;
    assert_ok(plan_fit_context(&plan, &config, &error), error);
    assert_int_equal(plan.context_size, config.context_length);
    plan.has_budget = true;
    plan.budget_bytes = (uint64_t)2 * 1000 * TOKEN_BYTES; /* 1,000 tokens are 15 whole chunks */
    plan.context_size = 0;
    assert_ok(plan_fit_context(&plan, &config, &error), error);
    assert_int_equal(plan.context_size, 960);
    plan.context_size = 961;
    assert_int_equal(plan_fit_context(&plan, &config, &error), STATUS_MEMORY);
    assert_non_null(strstr(error.message, "holds 960 tokens"));
    plan.budget_bytes = 100;
    plan.context_size = 0;
    assert_int_equal(plan_fit_context(&plan, &config, &error), STATUS_MEMORY);
}

/* On a device with memory of its own: K and V lie there, or in RAM where the context is given and they do not fit. */
static void what_a_device_does_not_hold_is_in_ram(void **state) {
    (void)state;
    struct error error;
    struct plan plan = plan_of("full", NULL, false, KV_F16);
    plan.device_bytes = (uint64_t)1024 * TOKEN_BYTES;
    assert_ok(plan_fit_context(&plan, &config, &error), error);
    assert_int_equal(plan.context_size, 1024); /* none is given: cut */
    assert_false(plan.rows_in_host);
    plan.context_size = 2048;
    assert_ok(plan_fit_context(&plan, &config, &error), error);
    assert_true(plan.rows_in_host);
    assert_int_equal(plan.near_layers, config.layer_count / 2); /* every step reads all: no slots */
    assert_int_equal(plan.unit_bytes, 0);
    plan.has_budget = true; /* RAM's, for the other half */
    plan.budget_bytes = (uint64_t)1000 * TOKEN_BYTES;
    assert_int_equal(plan_fit_context(&plan, &config, &error), STATUS_MEMORY);
    assert_non_null(strstr(error.message, "holds 1984 tokens"));
    plan.context_size = 1024;
    plan.budget_bytes *= 2;
    assert_ok(plan_fit_context(&plan, &config, &error), error);
    assert_false(plan.rows_in_host);

    /* Inputs beside K and V in RAM, where they are fewer bytes, and a layer's room for what is computed of them. */
    struct model_config apart = config;
    apart.hidden_size = 512;
    const uint64_t rows = (uint64_t)2048 * 8 * 2 * 64 * 2, inputs = (uint64_t)2048 * (512 * 2 + 4);
    for (int grouped = 0; grouped < 2; grouped++) {
        struct plan again = plan_of("kvpr", NULL, false, KV_F16);
        apart.kv_head_count = grouped ? config.kv_head_count : config.head_count;
        const uint64_t far = grouped ? 2048 * TOKEN_BYTES / 2 : 3 * (rows + inputs);
        again.context_size = 2048;
        again.device_bytes = grouped ? 2048 * TOKEN_BYTES / 2 : 2 * rows;
        again.has_budget = true;
        again.budget_bytes = far;
        assert_ok(plan_fit_context(&again, &apart, &error), error);
        assert_int_equal(plan_keeps_inputs(&again, &apart), !grouped);
        assert_int_equal(again.near_layers, grouped ? 2 : 1);
        assert_int_equal(again.unit_bytes, grouped ? 0 : rows);
        again.budget_bytes = far - 1;
        assert_int_equal(plan_fit_context(&again, &apart, &error), STATUS_MEMORY);
    }

    struct plan selects = plan_of("hata", "planes=1,page=8,dense=0", false, KV_F16);
    struct kv_cache_config cache;
    assert_ok(plan_cache_config(&selects, &config, &cache, &error), error);
    const uint64_t key_index = kv_cache_bytes_per_token(&cache) - TOKEN_BYTES;
    assert_true(key_index > 0);
    selects.context_size = 2048;
    selects.device_bytes = 2048 * key_index + 4096;
    assert_ok(plan_fit_context(&selects, &config, &error), error);
    assert_true(selects.rows_in_host);
    assert_int_equal(selects.unit_bytes, 4096);
    assert_int_equal(selects.near_layers, 0); /* all choose */
    struct plan dense = plan_of("hata", "planes=1,page=8,dense=1", false, KV_F16);
    const uint64_t layer = 2048 * TOKEN_BYTES / config.layer_count;
    for (uint64_t layers = 1; layers < 3; layers++) { /* half of the memory is for slots */
        dense.context_size = 2048;
        dense.device_bytes = 2048 * key_index + layers * layer;
        assert_ok(plan_fit_context(&dense, &config, &error), error);
        assert_int_equal(dense.near_layers, layers - 1);
        assert_true(dense.unit_bytes >= layer);
    }
    dense.shares_memory = true; /* of RAM's own memory nothing is copied */
    assert_ok(plan_fit_context(&dense, &config, &error), error);
    assert_true(dense.rows_in_host && dense.unit_bytes == 0 && dense.near_layers == 0);
    selects.device_bytes = 2048 * key_index - 1;
    assert_int_equal(plan_fit_context(&selects, &config, &error), STATUS_MEMORY);
    assert_non_null(strstr(error.message, "key index, states and page tables of 2048 tokens need"));

    /* Beside rows on disk it is all that the device has, and RAM has nothing of it; sequences that share it share no
     * more, with two columns of each for cuts. */
    struct plan disk = plan_of("hata", "planes=1,page=8,dense=0", true, KV_F16);
    uint64_t in_ram, beside;
    disk.context_size = 2048;
    disk.sequence_capacity = 2;
    assert_ok(plan_host_bytes_min(&disk, &config, &in_ram, &error), error);
    const uint64_t tables = 2 * 2048 / KV_CHUNK_TOKENS * 2 * kv_lane_count(&cache) * sizeof(uint32_t);
    disk.device_bytes = 2 * 2048 * key_index + tables;
    assert_ok(plan_host_bytes_min(&disk, &config, &beside, &error), error);
    struct attention_options attention; /* RAM has what the host writes in its turns, */
    assert_ok(plan_attention_options(&disk, &config, &attention, &error), error);
    uint64_t turns = attention_bytes(&attention);
    attention.turns = false;
    turns -= attention_bytes(&attention);
    assert_in_range(turns, 1, 1 << 16);
    /* and the way there: two areas of 32 chunks of a layer, whole pages. */
    const uint64_t area = 32 * KV_CHUNK_TOKENS * key_index / kv_lane_count(&cache) * cache.kv_head_count;
    assert_int_equal(beside, in_ram + turns - disk.device_bytes + 2 * align_up(area, IO_ALIGNMENT));
    assert_ok(plan_cache_config(&disk, &config, &cache, &error), error);
    assert_int_equal(cache.pooled_tokens, 0);
    disk.device_bytes -= 64 * key_index;
    assert_int_equal(plan_cache_config(&disk, &config, &cache, &error), STATUS_MEMORY);
    assert_non_null(strstr(error.message, "key index, states and page tables of 4096 tokens need"));
    disk.pools_key_index = true;
    assert_ok(plan_cache_config(&disk, &config, &cache, &error), error);
    assert_int_equal(cache.pooled_tokens, 4096 - 64 - 4 * 64);
    assert_int_equal(kv_tier_device_bytes(&cache), disk.device_bytes);
    for (uint64_t spare = 0; spare < 8192; spare += 4096) { /* what it has beside that is slots, also for 4 bits */
        struct plan slots = disk, q4 = disk, shared;
        slots.device_bytes += 64 * key_index + spare;
        assert_ok(plan_set_host_bytes(&slots, &config, &error), error);
        assert_int_equal(slots.unit_bytes, spare);
        shared = slots;
        shared.shares_memory = true;
        assert_ok(plan_set_host_bytes(&shared, &config, &error), error);
        assert_int_equal(shared.unit_bytes, 0);
        q4.device_bytes = slots.device_bytes + tables / 2; /* of chunks in 4 bits, as of rows */
        q4.quantized_pages = true;
        assert_ok(plan_set_host_bytes(&q4, &config, &error), error);
        assert_int_equal(q4.unit_bytes, spare);
    }
    struct model_config keeps = config; /* layers that keep a state */
    keeps.state.layer_count = 2;
    keeps.state.layer_floats = 100000;
    disk.device_bytes = 0;
    assert_ok(plan_host_bytes_min(&disk, &keeps, &in_ram, &error), error);
    disk.device_bytes = UINT64_MAX;
    assert_ok(plan_host_bytes_min(&disk, &keeps, &beside, &error), error);
    assert_ok(plan_cache_config(&disk, &keeps, &cache, &error), error);
    assert_true(kv_states_bytes(&cache) > 0);
    assert_int_equal(kv_tier_device_bytes(&cache), 2 * 2048 * key_index + tables + 2 * kv_states_bytes(&cache));
    assert_int_equal(beside, in_ram + turns - kv_tier_device_bytes(&cache) + 2 * align_up(area, IO_ALIGNMENT));
    disk.device_bytes = 2047 * key_index;
    assert_int_equal(plan_cache_config(&disk, &config, &cache, &error), STATUS_MEMORY);
}

/* Slots are chunks in whole pages, and cost more than K and V where heads are narrow. */
static void a_budget_that_nobody_gives_holds_everything(void **state) {
    (void)state;
    struct model_config narrow = config;
    narrow.k_dimension = narrow.v_dimension = 32;
    for (enum kv_type type = KV_F16; type <= KV_Q8; type++) {
        struct plan plan = plan_of("full", NULL, true, type);
        struct kv_cache_config cache;
        struct error error;
        plan.memory_bytes = (uint64_t)1 << 36;
        assert_ok(plan_set_host_bytes(&plan, &narrow, &error), error);
        assert_ok(plan_cache_config(&plan, &narrow, &cache, &error), error);
        assert_in_range(kv_tier_chunk_slots(&cache, 0), kv_lane_count(&cache) * 8192 / KV_CHUNK_TOKENS, UINT64_MAX);
        plan_deinit(&plan);
    }
    /* Also where buffers grow with it: workspace and inputs of what is computed again. */
    struct model_config wide = config;
    wide.layer_count = 16, wide.head_count = wide.kv_head_count = 8;
    wide.hidden_size = 512, wide.k_dimension = wide.v_dimension = 64;
    for (uint64_t context = 2001; context <= 8192; context *= 2) {
        struct plan plan = plan_of("kvpr", NULL, true, KV_F16);
        struct kv_cache_config cache;
        struct error error;
        plan.context_size = context;
        plan.memory_bytes = (uint64_t)1 << 36;
        assert_ok(plan_set_host_bytes(&plan, &wide, &error), error);
        assert_ok(plan_cache_config(&plan, &wide, &cache, &error), error);
        assert_true(plan_keeps_inputs(&plan, &wide));
        const uint64_t slots = kv_tier_chunk_slots(&cache, 0), chunks = kv_lane_count(&cache) * kv_chunks_of(context);
        assert_in_range(slots, chunks, chunks + chunks / 2 + 256);
        plan.memory_bytes = plan.host_bytes * 2 - 2; /* half of it is all that is taken */
        assert_ok(plan_set_host_bytes(&plan, &wide, &error), error);
        assert_int_equal(plan.host_bytes, plan.memory_bytes / 2);
        plan_deinit(&plan);
    }
}

/* One line, with a budget, on disk and without either; never a size of KV that there cannot be. */
static void kv_types_fit_the_heads(void **state) {
    (void)state;
    struct model_config narrow = config;
    struct error error;
    narrow.k_dimension = narrow.v_dimension = 24;
    for (int kind = 0; kind < 3; kind++) {
        struct plan plan = plan_of("full", NULL, kind == 2, KV_Q8);
        plan.has_budget = kind == 1;
        plan.budget_bytes = plan.memory_bytes = 64u << 20;
        assert_int_equal(plan_fit_context(&plan, &narrow, &error), STATUS_USAGE);
        assert_non_null(strstr(error.message, "multiples of 32, not 24 and 24"));
        assert_int_equal(plan_check_budget(&plan, &narrow, 64, &error), STATUS_USAGE);
        assert_int_equal(plan_set_host_bytes(&plan, &narrow, &error), kind == 2 ? STATUS_USAGE : STATUS_OK);
        plan_deinit(&plan);
    }
}

/* The cache accepts the least budget in RAM, and a larger context needs more. */
static void a_tier_has_a_min_budget(void **state) {
    (void)state;
    struct error error;
    uint64_t short_bytes, long_bytes, around;
    struct plan plan = plan_of("leoam", NULL, true, KV_F16);
    plan.context_size = 4096;
    assert_ok(plan_host_bytes_min(&plan, &config, &short_bytes, &error), error);
    plan.context_size = 1 << 20;
    assert_ok(plan_host_bytes_min(&plan, &config, &long_bytes, &error), error);
    assert_true(long_bytes > short_bytes);
    plan.context_size = 4096;
    assert_ok(plan_host_bytes_around(&plan, &config, 64 << 20, &around, &error), error);
    assert_true(around > short_bytes && around > 64 << 20);
    assert_int_equal(plan_check(&plan, &config, &error), STATUS_USAGE);
    assert_non_null(strstr(error.message, "need a budget in RAM"));
    plan.has_budget = true;
    plan.budget_bytes = around;
    assert_ok(plan_set_host_bytes(&plan, &config, &error), error);
    assert_int_equal(plan.host_bytes, around);
    assert_ok(plan_check(&plan, &config, &error), error);
    plan.has_budget = false; /* then what the context needs, or half of what there is */
    assert_ok(plan_set_host_bytes(&plan, &config, &error), error);
    assert_true(plan.host_bytes >= short_bytes && plan.host_bytes != around);
    plan_deinit(&plan);
}

/* Of 8,192 tokens, in loam-nano's shape. */
static void sixteen_mebibytes_hold_eight_sequences(void **state) {
    (void)state;
    struct model_config nano = config;
    struct error error;
    uint64_t bytes;
    nano.layer_count = 9;
    nano.head_count = 4;
    for (size_t i = 0; i < 5; i++) {
        static const char *const presets[] = {"full", "meanstd", "hata", "clo", "leoam"};
        struct plan plan = plan_of(presets[i], NULL, true, KV_F16);
        plan.context_size = 8192;
        plan.sequence_capacity = 8;
        plan.pools_key_index = true;
        plan.host_bytes = 16 << 20;
        assert_ok(plan_host_bytes_min(&plan, &nano, &bytes, &error), error);
        assert_in_range(bytes, 1, plan.host_bytes);
        plan_deinit(&plan);
    }
}

/* Buffers of lists: of single tokens that change from step to step, and fill what a buffer has place for. */
static void who_has_buffers_of_lists(void **state) {
    (void)state;
    enum { DEPTH = 8000 };
    static const struct model_config smollm2 = {.layer_count = 30,
                                                .head_count = 9,
                                                .kv_head_count = 3,
                                                .k_dimension = 64,
                                                .v_dimension = 64,
                                                .has_rope = true,
                                                .context_length = 8192};
    static const struct {
        const char *preset, *set;
        bool has;
    } cases[] = {{"hata", NULL, true},
                 {"clo", NULL, true},
                 {"pqcache", NULL, true},
                 {"infinigen", NULL, true},
                 {"infinigen", "alpha=5", false},
                 {"infinigen-published", NULL, false},
                 {"infinigen-published", "alpha=0", true},
                 {"retroinfer", NULL, false},
                 {"streaming", NULL, false},
                 {"hata", "page=16", false},
                 {"hata", "list_buffer=0", false}};
    struct error error;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct plan plan = plan_of(cases[i].preset, cases[i].set, true, KV_F16);
        struct kv_cache_config cache;
        plan.context_size = DEPTH;
        assert_ok(plan_host_bytes_around(&plan, &smollm2, DEPTH / 8 * 30 * 3 * 2 * 64 * 2, &plan.host_bytes,
                                         &error),
                  error);
        assert_ok(plan_cache_config(&plan, &smollm2, &cache, &error), error);
        if ((cache.list_bytes > 0) != cases[i].has)
            fail_msg("%s %s: %llu bytes", cases[i].preset, cases[i].set != NULL ? cases[i].set : "",
                     (unsigned long long)cache.list_bytes);
        plan_deinit(&plan);
    }
}

/* Where inputs are more bytes than KV there is no workspace for what is computed again: kvpr needs what flexgen does.
 */
static void no_workspace_for_inputs_that_are_more(void **state) {
    (void)state;
    struct error error;
    for (size_t grouped = 0; grouped < 2; grouped++) {
        struct model_config own = config;
        own.hidden_size = own.head_count * own.k_dimension;
        own.kv_head_count = grouped == 1 ? 2 : 8;
        struct plan kvpr = plan_of("kvpr", NULL, true, KV_F16),
                    flexgen = plan_of("flexgen", NULL, true, KV_F16);
        struct attention_options attention;
        uint64_t with, without;
        kvpr.context_size = flexgen.context_size = 8192;
        assert_ok(plan_host_bytes_min(&kvpr, &own, &with, &error), error);
        assert_ok(plan_host_bytes_min(&flexgen, &own, &without, &error), error);
        kvpr.host_bytes = with;
        assert_ok(plan_attention_options(&kvpr, &own, &attention, &error), error);
        assert_true(plan_keeps_inputs(&kvpr, &own) == (grouped == 0));
        assert_true((attention.rebuild.chunks > 0) == (grouped == 0));
        assert_true(grouped == 0 ? with > without : with == without);
        if (grouped == 0) { /* RAM for more; a device that holds three chunks of all heads computes so many at once */
            kvpr.host_bytes = with + (256 << 20);
            assert_ok(plan_attention_options(&kvpr, &own, &attention, &error), error);
            assert_true(attention.rebuild.chunks > 3);
            kvpr.device_bytes = 4 * own.kv_head_count * attention.rebuild.chunk_bytes - 1;
            assert_ok(plan_attention_options(&kvpr, &own, &attention, &error), error);
            assert_int_equal(attention.rebuild.chunks, 3);
        }
        plan_deinit(&kvpr);
        plan_deinit(&flexgen);
    }
}

/* Every option of the papers' evaluations, and none that is ours. */
static void recipes_are_the_papers(void **state) {
    (void)state;
    struct error error;
    struct plan plan = {.sequence_capacity = 1};
    assert_ok(plan_set_disk(&plan, "unused", 6, 0, &error), error);
    assert_ok(plan_set_axes(&plan, "clo-published", NULL, NULL, &error), error);
    const struct select_options *options = &plan.select;
    assert_ptr_equal(options->method, &select_hash);
    assert_true(options->code == SELECT_CODE_SIGN && options->bits == 256 && options->norms);
    assert_int_equal(options->group, SELECT_GROUP_SUM);
    assert_true(options->sinks == 4 && options->recent == 64 && options->dense_layers == 0);
    assert_true(options->keep.ratio == 0.1 && options->units_min == 0 && options->page == 0);
    assert_true(options->reuse.eta == 0.8 && options->reuse.power == 3 && options->reuse.epsilon == 0.1);
    assert_true(options->reuse.reused == 0 && options->reuse.age == 0);
    assert_true(options->reuse.aggregate == LABEL_HARMONIC && options->reuse.labels == REUSE_SPECULATED);
    assert_true(plan.persistent && plan.prefetches && plan.resident_layers == 1);
    assert_true(!plan.quantized_pages && plan.k_type == KV_F16);
    plan_deinit(&plan);
    plan = (struct plan){.sequence_capacity = 1};
    assert_ok(plan_set_disk(&plan, "unused", 6, 0, &error), error);
    assert_ok(plan_set_axes(&plan, "leoam-published", NULL, NULL, &error), error);
    assert_ptr_equal(options->method, &select_tree);
    assert_true(options->rank == TREE_BOUND && options->leaf == 64 && options->take == 0);
    assert_true(options->group == SELECT_GROUP_MAX && options->keep.ratio == 0.1 && options->units_min == 0);
    assert_true(options->dense_layers == 2 && plan.resident_layers == 2);
    assert_true(plan.mixes_pages && plan.prefetches);
    plan_deinit(&plan);
    plan = (struct plan){.sequence_capacity = 1};
    assert_ok(plan_set_axes(&plan, "leoam-published", NULL, NULL, &error), error);
    assert_int_equal(options->leaf, 8); /* in RAM chunks are split */
    plan_deinit(&plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recipes_are_the_papers),
        cmocka_unit_test(a_preset_is_its_row),
        cmocka_unit_test(planes_are_bits_of_a_coordinate),
        cmocka_unit_test(settings_change_the_row),
        cmocka_unit_test(texts),
        cmocka_unit_test(a_context_fits_its_budget),
        cmocka_unit_test(what_a_device_does_not_hold_is_in_ram),
        cmocka_unit_test(a_budget_that_nobody_gives_holds_everything),
        cmocka_unit_test(kv_types_fit_the_heads),
        cmocka_unit_test(a_tier_has_a_min_budget),
        cmocka_unit_test(sixteen_mebibytes_hold_eight_sequences),
        cmocka_unit_test(who_has_buffers_of_lists),
        cmocka_unit_test(no_workspace_for_inputs_that_are_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
