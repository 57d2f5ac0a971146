/* The split of KVPR (attention/split.h): against every multiple of the tile, by hand, and on the hardware, models and
 * tables of the paper (Jiang et al. 2025: section 4, Tables 3 to 5, Figure 12); docs/kvpr.md shows what it prints. */
#include "attention/split.h"

#include "seed.h"
#include "testing.h"

#include <math.h>
#include <string.h>

#include "base/random.h"

enum { ROUNDS = 3000 };

static double between(struct random *random, double low, double high) { /* evenly in the logarithm */
    return low * exp(random_double(random) * log(high / low));
}

static struct split_question any_question(struct random *random) {
    struct split_question question = {.token_count = random_below(random, 3000),
                                      .tile_tokens = 1 + random_below(random, 100),
                                      .input_bytes = between(random, 100, 10000),
                                      .kv_bytes = between(random, 100, 10000),
                                      .bytes_per_second = between(random, 1e7, 1e11),
                                      .seconds_per_token = between(random, 1e-9, 1e-4),
                                      .schedule = (enum split_schedule)random_below(random, 3),
                                      .first_tokens = random_below(random, 1000),
                                      .held_tokens = random_below(random, 4000),
                                      .seconds_per_read = between(random, 1e-9, 1e-5)};
    question.tokens_max = random_below(random, (uint32_t)question.token_count + 1);
    if (random_below(random, 10) == 0) question.seconds_per_token = 0;
    return question;
}

static void is_the_best_of_all(void **state) {
    (void)state;
    struct random random;
    size_t none = 0, inside = 0, capped = 0;
    random_init(&random, test_seed(20));
    for (size_t round = 0; round < ROUNDS; round++) {
        const struct split_question question = any_question(&random);
        const struct split split = split_choose(&question);
        const uint64_t most = question.tokens_max / question.tile_tokens * question.tile_tokens;
        assert_true(split.tokens <= most && split.tokens % question.tile_tokens == 0);
        assert_true(split.seconds == split_seconds(&question, split.tokens));
        assert_true(split.seconds_without == split_seconds(&question, 0));
        for (uint64_t l = 0; l <= most; l += question.tile_tokens)
            assert_true(split_seconds(&question, l) >= split.seconds * (1 - 1e-12));
        none += split.tokens == 0;
        capped += split.tokens > 0 && split.tokens == most;
        inside += split.tokens > 0 && split.tokens < most;
    }
    assert_met(none > ROUNDS / 20 && inside > ROUNDS / 20 && capped > ROUNDS / 20); /* all came up */
}

/* Inputs of half the bytes of KV; the link takes 2 us for a token's KV, computing takes 2 us: half and half by row.  By
 * column 1 us for each token's inputs: the same l, and 1.5 us a token. */
static void by_hand(void **state) {
    (void)state;
    struct split_question question = {.token_count = 1024,
                                      .tokens_max = 1024,
                                      .tile_tokens = 64,
                                      .input_bytes = 1000,
                                      .kv_bytes = 2000,
                                      .bytes_per_second = 1e9,
                                      .seconds_per_token = 2e-6,
                                      .schedule = SPLIT_ROW};
    struct split split = split_choose(&question);
    assert_int_equal(split.tokens, 512);
    assert_true(fabs(split.seconds - 512 * 2e-6) < 1e-12 &&
                fabs(split.seconds_without - 1024 * 2e-6) < 1e-12);
    question.schedule = SPLIT_COLUMN;
    split = split_choose(&question);
    assert_int_equal(split.tokens, 512);
    assert_true(fabs(split.seconds - 512 * 3e-6) < 1e-12);
    /* A token's inputs, 256 of them at first, while the others are computed: l = 2/2.5 of 1024 and more than 256 us. */
    question.schedule = SPLIT_OVERLAPPED;
    question.first_tokens = 256;
    question.held_tokens = 1024;
    assert_true(fabs(split_seconds(&question, 512) - 1536e-6) < 1e-12); /* the link */
    assert_true(fabs(split_seconds(&question, 640) - 1536e-6) < 1e-12); /* 256 us, and 640 tokens */
    split = split_choose(&question);
    assert_int_equal(split.tokens, 576);
    assert_true(fabs(split.seconds - 1472e-6) < 1e-12);
    /* Half a us of the computing thread for each of the 448 that come meanwhile: 256 us, 512 times 2 and 512 times a
     * half are 1536 us, as the link takes. */
    question.seconds_per_read = 0.5e-6;
    split = split_choose(&question);
    assert_int_equal(split.tokens, 512);
    assert_true(fabs(split.seconds - 1536e-6) < 1e-12);
    /* Memory has room for 128 of them: the others come when 256 us, 640 times 2 and 128 times a half are over. */
    question.held_tokens = 128;
    assert_true(fabs(split_seconds(&question, 640) - (256 + 1280 + 64 + 256 * 2) * 1e-6) < 1e-12);
    question.schedule = SPLIT_COLUMN;
    question.tokens_max = 200;
    assert_int_equal(split_choose(&question).tokens, 192);
    /* Grouped queries: a token's inputs are more than its KV (Llama-3-8B in halves). */
    question.tokens_max = 1024;
    question.input_bytes = 4096 * 2;
    question.kv_bytes = 2 * 8 * 128 * 2;
    split = split_choose(&question);
    assert_int_equal(split.tokens, 0);
    question.schedule = SPLIT_ROW; /* where they are free, they are used */
    assert_true(split_choose(&question).tokens > 0);
}

/* ---- several sequences ---- */

/* Steps of sequences with lengths of their own, at the rates of docs/decisions/kvpr.md, 0113: how often a run changes,
 * together and each for itself, and how far the steps are from the least seconds. */
static void runs_grow_together(void **state) {
    (void)state;
    enum { SEQUENCES = 32, STEPS = 2000, TILE = 256 };
    struct split_growth runs[SEQUENCES] = {{.had = 0}};
    size_t together = 0, apart = 0;
    double worst = 1;
    for (uint64_t step = 0; step < STEPS; step++) {
        struct split_question questions[SEQUENCES];
        double least = 0, seconds = 0;
        size_t grown = 0;
        for (size_t i = 0; i < SEQUENCES; i++) {
            const uint64_t length = 6000 + 131 * i + step;
            questions[i] = (struct split_question){.token_count = length,
                                                   .tokens_max = length,
                                                   .tile_tokens = TILE,
                                                   .input_bytes = 8192,
                                                   .kv_bytes = 16384,
                                                   .bytes_per_second = 50e9,
                                                   .seconds_per_token = 0.27e-6,
                                                   .schedule = SPLIT_COLUMN};
            const struct split split = split_choose(&questions[i]);
            least += split.seconds;
            grown += step > 0 && runs[i].wanted != split.tokens;
            runs[i].wanted = split.tokens;
        }
        apart += grown > 0;
        const bool stays = split_stays(runs, SEQUENCES);
        together += !stays;
        for (size_t i = 0; i < SEQUENCES; i++) {
            if (!stays) runs[i].had = runs[i].wanted;
            seconds += split_seconds(&questions[i], runs[i].had);
        }
        worst = fmax(worst, seconds / least);
    }
    printf("%zu changes together, %zu apart, at most %.3f of the least seconds\n", together, apart, worst);
    assert_true(apart > STEPS / 16 && together <= STEPS / 300);
    assert_true(worst < 1.03);
    /* One that joins, and one that is shorter now. */
    runs[3].had = 0;
    assert_false(split_stays(runs, SEQUENCES));
    runs[3].had = 2 * runs[3].wanted * SEQUENCES;
    assert_false(split_stays(runs, SEQUENCES));
}

/* ---- the paper ---- */

struct machine {
    double flops, link; /* half precision, peak; bytes a second */
};
static const struct machine a100 = {312e12, 32e9}, rtx5000 = {89.2e12, 16e9};

struct opt {
    const char *name;
    size_t layers;
    double hidden;
};
static const struct opt opt_6_7b = {"OPT-6.7B", 32, 4096}, opt_13b = {"OPT-13B", 40, 5120};

/* Equations 6 to 9: halves, 4 b h^2 operations a token. */
static struct split_question of_paper(const struct opt *model, const struct machine *machine, double batch,
                                      uint64_t tokens, enum split_schedule schedule) {
    return (struct split_question){
        .token_count = tokens,
        .tokens_max = tokens,
        .tile_tokens = 1,
        .input_bytes = 2 * batch * model->hidden,
        .kv_bytes = 4 * batch * model->hidden,
        .bytes_per_second = machine->link,
        .seconds_per_token = 4 * batch * model->hidden * model->hidden / machine->flops,
        .schedule = schedule,
    };
}

/* Seconds of the transfers of `generated` steps, with and without; weights: of a layer, in seconds. */
static void generate(const struct opt *model, const struct machine *machine, double batch, uint64_t prompt,
                     uint64_t generated, double weights, double *with, double *without) {
    *with = *without = 0;
    for (uint64_t i = 1; i <= generated; i++) {
        const struct split_question question = of_paper(model, machine, batch, prompt + i, SPLIT_COLUMN);
        const struct split split = split_choose(&question);
        *with += (double)model->layers * (split.seconds + weights);
        *without += (double)model->layers * (split.seconds_without + weights);
    }
}

struct published {
    const struct opt *model;
    uint64_t prompt, generated;
    double base, kvpr; /* seconds; of Table 5 tokens a second */
    double ratio;      /* of ours to the paper's speed-up, as docs/kvpr.md has it */
};
static const struct published tables_3_4[] = {
    {&opt_6_7b, 128, 32, 8.905, 6.651, 1.15},   {&opt_6_7b, 128, 128, 71.327, 45.766, 0.99},
    {&opt_6_7b, 256, 32, 26.825, 19.138, 1.10}, {&opt_6_7b, 256, 128, 88.354, 61.597, 1.08},
    {&opt_6_7b, 512, 32, 24.390, 20.349, 1.29}, {&opt_6_7b, 512, 128, 110.277, 93.932, 1.31},
    {&opt_13b, 128, 32, 11.409, 9.148, 1.19},   {&opt_13b, 128, 128, 73.896, 66.119, 1.33},
    {&opt_13b, 256, 32, 19.381, 16.654, 1.28},  {&opt_13b, 256, 128, 104.115, 88.492, 1.26},
    {&opt_13b, 512, 32, 35.066, 29.215, 1.24},  {&opt_13b, 512, 128, 168.155, 138.377, 1.22},
};
static const struct published table_5[] = {
    {&opt_6_7b, 256, 32, 50.057, 53.976, 1.18},  {&opt_6_7b, 256, 128, 46.779, 49.860, 1.20},
    {&opt_6_7b, 512, 32, 29.614, 33.666, 1.16},  {&opt_6_7b, 512, 128, 28.650, 32.277, 1.18},
    {&opt_6_7b, 1024, 32, 15.778, 18.285, 1.17}, {&opt_6_7b, 1024, 128, 16.194, 18.108, 1.22},
};

/* What the equations give is the most that recomputing can save; the ratios are those of docs/kvpr.md, which says why
 * they are not 1.  The link alone never takes longer than the paper's baseline did. */
static void tables_of_the_paper(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof tables_3_4 / sizeof *tables_3_4; i++) {
        const struct published *row = &tables_3_4[i];
        double with, without;
        generate(row->model, &a100, 64, row->prompt, row->generated, 0, &with, &without);
        const double ratio = without / with / (row->base / row->kvpr);
        printf("| %s | %d | %d | %.1f | %.1f | %.2f | %.2f | %.2f |\n", row->model->name, (int)row->prompt,
               (int)row->generated, row->base, without, row->base / row->kvpr, without / with, ratio);
        assert_true(without < row->base && with < row->kvpr);
        assert_true(fabs(ratio - row->ratio) < 0.006);
    }
    /* Eight batches of 32; the weights of a layer, 12 h^2 halves, are on the way too, once for all of them. */
    const double weights = 12 * 2 * opt_6_7b.hidden * opt_6_7b.hidden / rtx5000.link;
    for (size_t i = 0; i < sizeof table_5 / sizeof *table_5; i++) {
        const struct published *row = &table_5[i];
        double with, without;
        generate(row->model, &rtx5000, 256, row->prompt, row->generated, weights, &with, &without);
        const double tokens = 256 * (double)row->generated;
        const double ratio = without / with / (row->kvpr / row->base);
        printf("| %d | %d | %.1f | %.1f | %.2f | %.2f | %.2f |\n", (int)row->prompt, (int)row->generated,
               row->base, tokens / without, row->kvpr / row->base, without / with, ratio);
        assert_true(tokens / without > row->base && tokens / with > row->kvpr);
        assert_true(fabs(ratio - row->ratio) < 0.006);
    }
}

/* Figure 12: OPT-6.7B, 64 sequences, 128 tokens and up to 32 more.  Its text says that l "is 182 when the generation
 * length is 1, and increases to 128" at 32: the first is more than there are tokens.  The link's rate is that of the
 * baseline in the same setting: what KV it moved in 8.905 s. */
static void figure_12(void **state) {
    (void)state;
    struct machine measured = a100;
    double bytes = 0;
    for (uint64_t i = 1; i <= 32; i++)
        bytes += of_paper(&opt_6_7b, &a100, 64, 128 + i, SPLIT_ROW).kv_bytes * (double)(128 + i) *
                 (double)opt_6_7b.layers;
    measured.link = bytes / 8.905;
    for (int schedule = SPLIT_ROW; schedule <= SPLIT_COLUMN; schedule++) {
        struct split_question first = of_paper(&opt_6_7b, &measured, 64, 129, (enum split_schedule)schedule);
        struct split_question last = of_paper(&opt_6_7b, &measured, 64, 160, (enum split_schedule)schedule);
        const uint64_t a = split_choose(&first).tokens, b = split_choose(&last).tokens;
        printf("Figure 12: link %.1f GB/s: l = %d at the first token, %d at the last\n", measured.link / 1e9,
               (int)a, (int)b);
        assert_true(fabs((double)b / 128 - 1) < 0.1); /* 128 in the paper */
        assert_true(a < b && a < 129);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_the_best_of_all),
        cmocka_unit_test(by_hand),
        cmocka_unit_test(runs_grow_together),
        cmocka_unit_test(tables_of_the_paper),
        cmocka_unit_test(figure_12),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
