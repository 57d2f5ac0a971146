/* A real language model against llama.cpp (tools/golden/make_smollm2.py): in five types of the same weights, its
 * greedy texts, raw and by the chat template, and its distributions over a page of a book.
 *
 * Greedy texts part where two tokens are nearly equal, by the order of sums.  So the texts are scored: at every place
 * the peer's token must be the likeliest or nearly so.  Where the file's types need rounded activations (all but F32
 * and F16) roundings differ at some places and move a logit by a few tenths.  The farthest token then follows from the
 * order of sums (docs/agreement.md), so the mean over all tokens is bounded as well. */
#include "testing.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/process.h"
#include "engine/engine.h"
#include "generate/prompt.h"
#include "lab/import/quantize.h"
#include "real_model.h"

enum { TEXTS = 12, TOKENS_MAX = 512, TOP = 8 };

static const struct kind {
    const char *name;
    double behind_max; /* of the peer's token behind the likeliest, nats */
    double mean_max;   /* of the same over all tokens: steadier than the farthest */
    /* Of the peer's eight likeliest: log-probabilities, weighted by the probabilities, nats */
    double difference_max;
} kinds[] = {
    {"Q4_1", 0.5, 0.004, 0.15}, {"F32", 0.01, 0.0001, 0.005}, {"F16", 0.01, 0.0001, 0.005},
    {"Q8_0", 0.5, 0.008, 0.15}, {"Q4_K_M", 0.6, 0.009, 0.2},
};

static json_t *peer;

struct rig {
    struct device *device;
    struct model *model;
    struct tokenizer *tokenizer;
    struct engine *engine;
    struct error error;
};

static void rig_open(struct rig *rig, const char *path) {
    struct error *error = &rig->error;
    const struct device_options machine = {.thread_count = 2, .mask = cpu_default()};
    struct plan plan = {.sequence_capacity = 1, .context_size = TOKENS_MAX, .batch_size = TOKENS_MAX};
    assert_ok(device_cpu_create(&rig->device, &machine, error), *error);
    assert_ok(model_load(&rig->model, path, rig->device, error), *error);
    assert_ok(tokenizer_create(&rig->tokenizer, &rig->model->gguf, false, error), *error);
    assert_ok(engine_create(&rig->engine, rig->model, &plan, NULL, error), *error);
}

static void rig_close(struct rig *rig) {
    engine_destroy(rig->engine);
    tokenizer_destroy(rig->tokenizer);
    model_destroy(rig->model);
    device_destroy(rig->device);
}

static const char *text_at(json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

static struct prompt_part part(const char *text) {
    return (struct prompt_part){text, text != NULL ? strlen(text) : 0};
}

static double log_sum(const float *logits, size_t count, double *largest) {
    double sum = 0;
    *largest = -INFINITY;
    for (size_t i = 0; i < count; i++) *largest = fmax(*largest, (double)logits[i]);
    for (size_t i = 0; i < count; i++) sum += exp((double)logits[i] - *largest);
    return *largest + log(sum);
}

/* ---- texts ---- */

struct scoring {
    const int32_t *tokens;
    size_t first, count;
    size_t vocabulary_size;
    size_t likeliest; /* tokens that are */
    double behind;    /* the farthest */
    double sum;       /* of how far each is behind */
};

static enum status score(void *context, uint64_t index, const float *logits, struct error *error) {
    (void)error;
    struct scoring *s = context;
    if (index + 1 < s->first || index + 1 >= s->count) return STATUS_OK;
    double largest;
    (void)log_sum(logits, s->vocabulary_size, &largest);
    double behind = largest - (double)logits[s->tokens[index + 1]];
    s->likeliest += behind == 0;
    s->behind = fmax(s->behind, isnan(behind) ? INFINITY : behind);
    s->sum += behind;
    return STATUS_OK;
}

static void prefill(struct rig *rig, const struct token_list *list, engine_each_logits *each, void *context) {
    struct sequence *sequence;
    const struct prefill_request request = {
        .tokens = list->ids, .token_count = list->count, .each = each, .each_context = context};
    assert_ok(sequence_create(&sequence, rig->engine, &rig->error), rig->error);
    assert_ok(engine_prefill(rig->engine, sequence, &request, NULL, &rig->error), rig->error);
    sequence_destroy(sequence);
}

static void encode_prompt(struct rig *rig, json_t *item, struct token_list *list) {
    const struct prompt prompt = {.system = part(text_at(item, "system")),
                                  .question = part(text_at(item, "prompt"))};
    const struct tokenize_options how = {.add_special = true};
    const struct chat_template *chat;
    assert_ok(chat_template_of_model(&rig->model->gguf, &chat, &rig->error), rig->error);
    if (prompt.system.bytes != NULL)
        assert_ok(prompt_encode_chat(&prompt, chat, rig->tokenizer, list, &rig->error), rig->error);
    else
        assert_ok(prompt_encode(&prompt, rig->tokenizer, how, list, &rig->error), rig->error);
}

/* Of every step-th text. */
static void check_texts(struct rig *rig, const struct kind *kind, json_t *texts, size_t step) {
    size_t tokens = 0, likeliest = 0, index;
    double behind = 0, sum = 0;
    json_t *item;
    assert_int_equal(json_array_size(texts), TEXTS);
    json_array_foreach(texts, index, item) {
        if (index % step != 0) continue;
        struct token_list list = {0};
        const char *text = text_at(item, "text");
        encode_prompt(rig, item, &list);
        struct scoring s = {.first = list.count,
                            .vocabulary_size = tokenizer_vocabulary_size(rig->tokenizer)};
        assert_ok(tokenizer_encode(rig->tokenizer, text, strlen(text), (struct tokenize_options){0}, &list,
                                   &rig->error),
                  rig->error);
        if (json_is_true(json_object_get(item, "ends")))
            assert_ok(token_list_append(&list, tokenizer_eos(rig->tokenizer), &rig->error), rig->error);
        s.tokens = list.ids;
        s.count = list.count;
        assert_true(s.count > s.first + 4);
        prefill(rig, &list, score, &s);
        if (s.behind > kind->behind_max)
            fail_msg("%s, '%s': a token is %.3f nats behind", kind->name, text_at(item, "prompt"), s.behind);
        tokens += s.count - s.first;
        likeliest += s.likeliest;
        behind = fmax(behind, s.behind);
        sum += s.sum;
        token_list_deinit(&list);
    }
    print_message(
        "%s: of %zu tokens of texts %zu are the likeliest, they are %.5f nats behind in the mean, %.4f at most\n",
        kind->name, tokens, likeliest, sum / (double)tokens, behind);
    assert_true(sum / (double)tokens <= kind->mean_max);
    assert_true(likeliest >= tokens - tokens / 20);
}

/* ---- distributions ---- */

struct comparison {
    json_t *positions;
    uint64_t first;
    size_t seen, vocabulary_size;
    double worst;
};

static enum status compare(void *context, uint64_t index, const float *logits, struct error *error) {
    (void)error;
    struct comparison *c = context;
    json_t *position = json_array_get(c->positions, c->seen);
    if (position == NULL) return STATUS_OK;
    const uint64_t row = (uint64_t)json_integer_value(json_object_get(position, "row"));
    if (index != c->first + row) return STATUS_OK;
    c->seen++;
    double largest, sum = log_sum(logits, c->vocabulary_size, &largest), moved = 0;
    for (size_t i = 0; i < TOP; i++) {
        size_t id = (size_t)json_integer_value(json_array_get(json_object_get(position, "ids"), i));
        double expected = json_number_value(json_array_get(json_object_get(position, "logprobs"), i));
        moved += exp(expected) * fabs((double)logits[id] - sum - expected);
    }
    c->worst = fmax(c->worst, isnan(moved) ? INFINITY : moved);
    return STATUS_OK;
}

/* The page's ids are the peer's tokenizer's, too. */
static struct token_list read_page(struct rig *rig, json_t *ids) {
    char *text;
    size_t length;
    struct token_list list = {0};
    assert_ok(file_read_all(LOAM_SOURCE_DIR "/tests/data/a-scandal-in-bohemia.txt", 1 << 20, &text, &length,
                            &rig->error),
              rig->error);
    assert_ok(tokenizer_encode(rig->tokenizer, text, length, (struct tokenize_options){.add_special = true},
                               &list, &rig->error),
              rig->error);
    free(text);
    assert_int_equal(json_array_size(ids), TOKENS_MAX);
    for (size_t i = 0; i < TOKENS_MAX; i++)
        assert_int_equal(list.ids[i], json_integer_value(json_array_get(ids, i)));
    list.count = TOKENS_MAX;
    return list;
}

static void check_distributions(struct rig *rig, const struct kind *kind, json_t *peers, json_t *ids) {
    struct token_list list = read_page(rig, ids);
    struct comparison c = {.positions = json_object_get(peers, "positions"),
                           .first = (uint64_t)json_integer_value(json_object_get(peers, "first")),
                           .vocabulary_size = tokenizer_vocabulary_size(rig->tokenizer)};
    prefill(rig, &list, compare, &c);
    assert_int_equal(c.seen, json_array_size(c.positions));
    assert_true(c.seen >= 16);
    print_message("%s: the eight likeliest differ by %.4f nats at most\n", kind->name, c.worst);
    if (c.worst > kind->difference_max) fail_msg("%s: differ by %.4f", kind->name, c.worst);
    token_list_deinit(&list);
}

static void check_kind(const struct kind *kind) {
    struct rig rig = {0};
    char path[300] = REAL_MODEL;
    const bool is_made = kind != kinds;
    json_t *types = json_object_get(peer, "types"), *type = json_object_get(types, kind->name),
           *page = json_object_get(json_object_get(types, kinds[0].name), "distributions");
    if (is_made) {
        const struct quantize_options options = {.type_name = kind->name, .thread_count = 2};
        struct quantize_report report;
        snprintf(path, sizeof path, "%s", scratch_path("smollm2.gguf"));
        assert_ok(model_quantize(REAL_MODEL, path, &options, &report, &rig.error), rig.error);
    }
    rig_open(&rig, path);
    check_texts(&rig, kind, json_object_get(type, "texts"), is_made ? 3 : 1);
    check_distributions(&rig, kind, json_object_get(type, "distributions"), json_object_get(page, "tokens"));
    rig_close(&rig);
    if (is_made) assert_int_equal(unlink(path), 0);
}

static void as_it_is(void **state) {
    (void)state;
    check_kind(&kinds[0]);
}
static void in_f32(void **state) {
    (void)state;
    check_kind(&kinds[1]);
}
static void in_f16(void **state) {
    (void)state;
    check_kind(&kinds[2]);
}
static void in_q8_0(void **state) {
    (void)state;
    check_kind(&kinds[3]);
}
static void in_q4_k_m(void **state) {
    (void)state;
    check_kind(&kinds[4]);
}

int main(void) {
    if (real_model_missing() != 0) return 77;
    json_error_t why;
    peer = json_load_file(LOAM_SOURCE_DIR "/tests/golden/smollm2/peer.json", 0, &why);
    if (peer == NULL) {
        printf("peer.json: %s\n", why.text);
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_it_is), cmocka_unit_test(in_f32),
                                       cmocka_unit_test(in_f16), cmocka_unit_test(in_q8_0),
                                       cmocka_unit_test(in_q4_k_m)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    json_decref(peer);
    return failed;
}
