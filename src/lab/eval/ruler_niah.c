/* The needle tasks: keys and values hidden in noise, in an essay, or among needles of other keys. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "lab/eval/ruler_internal.h"

enum haystack { HAYSTACK_NOISE, HAYSTACK_ESSAY, HAYSTACK_NEEDLES };

/* RULER's configurations; needles = keys * values. */
static const struct niah_shape {
    enum haystack haystack;
    enum ruler_kind key_kind, value_kind;
    size_t key_count, value_count, asked_count;
} shapes[] = {
    [RULER_NIAH_SINGLE_1] = {HAYSTACK_NOISE, KIND_word, KIND_number, 1, 1, 1},
    [RULER_NIAH_SINGLE_2] = {HAYSTACK_ESSAY, KIND_word, KIND_number, 1, 1, 1},
    [RULER_NIAH_SINGLE_3] = {HAYSTACK_ESSAY, KIND_word, KIND_uuid, 1, 1, 1},
    [RULER_NIAH_MULTIKEY_1] = {HAYSTACK_ESSAY, KIND_word, KIND_number, 4, 1, 1},
    [RULER_NIAH_MULTIKEY_2] = {HAYSTACK_NEEDLES, KIND_word, KIND_number, 1, 1, 1},
    [RULER_NIAH_MULTIKEY_3] = {HAYSTACK_NEEDLES, KIND_uuid, KIND_uuid, 1, 1, 1},
    [RULER_NIAH_MULTIVALUE] = {HAYSTACK_ESSAY, KIND_word, KIND_number, 1, 4, 1},
    [RULER_NIAH_MULTIQUERY] = {HAYSTACK_ESSAY, KIND_word, KIND_number, 4, 1, 4},
};

static void draw_key(struct ruler_draft *draft, struct urn *urn, char *key, struct random *random) {
    if (draft->key_kind != KIND_word) {
        ruler_word(key, draft->key_kind, random);
        return;
    }
    int64_t index = urn_draw(urn, random);
    ASSERT(index != URN_EMPTY);
    if (draft->needle_count == 0) draft->key_index = (size_t)index;
    ruler_word_pair(key, (size_t)index);
}

static bool has_value(const struct ruler_draft *draft, const char *value) {
    for (size_t i = 0; i < draft->needle_count; i++)
        if (strcmp(draft->needles[i].value, value) == 0) return true;
    return false;
}

bool ruler_niah_draw(struct ruler_draft *draft) {
    const struct niah_shape *shape = &shapes[draft->task];
    draft->key_kind = shape->key_kind;
    draft->value_kind = shape->value_kind;
    if (!urn_init(&draft->urn, ruler_word_pair_count())) return false;
    for (size_t k = 0; k < shape->key_count; k++) {
        char key[RULER_ANSWER_BYTES];
        draw_key(draft, &draft->urn, key, &draft->random);
        for (size_t v = 0; v < shape->value_count; v++) {
            struct needle needle = {.depth = random_double(&draft->random)};
            memcpy(needle.key, key, sizeof key);
            do ruler_word(needle.value, draft->value_kind, &draft->random);
            while (has_value(draft, needle.value));
            draft->needles[draft->needle_count++] = needle;
        }
    }
    /* The first key is asked for.  If it has one value, that is at the sample's depth. */
    if (shape->asked_count == 1 && shape->value_count == 1) draft->needles[0].depth = draft->depth;
    return true;
}

static int by_depth(const void *a, const void *b) {
    double x = ((const struct needle *)a)->depth, y = ((const struct needle *)b)->depth;
    return (x > y) - (x < y);
}

static void sort_needles(const struct ruler_draft *draft, struct needle *in_order) {
    memcpy(in_order, draft->needles, sizeof draft->needles);
    qsort(in_order, draft->needle_count, sizeof *in_order, by_depth);
}

void ruler_niah_needle(const struct ruler_draft *draft, const struct needle *needle, struct text *text) {
    FILL(text, TEMPLATE_needle, {"kinds", ruler_kind_text(draft->value_kind, true)}, {"key", needle->key},
         {"value", needle->value});
}

static size_t place_of(double depth, size_t unit_count) {
    size_t place = (size_t)(depth * (double)(unit_count + 1));
    return place < unit_count ? place : unit_count;
}

/* unit_count sentences of an endless text: the essay from a random sentence on, then again and again, each further
 * time with its sentences shuffled.  The caller frees the array; NULL: no memory. */
static const struct essay_sentence **read_essay(const struct essay *essay, size_t unit_count, struct random *random) {
    size_t count = essay->sentence_count, first = (size_t)random_below(random, count);
    const struct essay_sentence **read = malloc((unit_count + count) * sizeof *read);
    if (read == NULL) return NULL;
    for (size_t i = 0; i < count; i++) read[i] = &essay->sentences[(first + i) % count];
    for (size_t begin = count; begin < unit_count; begin += count) {
        memcpy(read + begin, read + begin - count, count * sizeof *read);
        for (size_t i = count - 1; i > 0; i--) {
            size_t j = (size_t)random_below(random, i + 1);
            const struct essay_sentence *kept = read[begin + i];
            read[begin + i] = read[begin + j];
            read[begin + j] = kept;
        }
    }
    return read;
}

/* Sentences differ in length by a factor of twenty, so depth is measured in bytes. */
void ruler_write_essay(const struct essay *essay, struct random *random, size_t unit_count, const struct hidden *hidden,
                       size_t count, struct text *text) {
    const struct essay_sentence **sentences = read_essay(essay, unit_count, random);
    if (sentences == NULL) {
        text->failed = true;
        return;
    }
    size_t total = 0, before = 0, next = 0;
    bool line_ends = false;
    for (size_t i = 0; i < unit_count; i++) total += sentences[i]->length + 1;
    for (size_t i = 0; i <= unit_count; i++) {
        while (next < count && (i == unit_count || hidden[next].depth * (double)total <= (double)before)) {
            line_ends = line_ends || hidden[next].own_line;
            if (i + next > 0) text_add(text, line_ends ? "\n" : " ");
            line_ends = hidden[next].own_line;
            text_add(text, hidden[next++].text.bytes);
        }
        if (i == unit_count) break;
        if (i + next > 0) text_add(text, line_ends ? "\n" : " ");
        line_ends = false;
        text_append(text, sentences[i]->bytes, sentences[i]->length);
        before += sentences[i]->length + 1;
    }
    free(sentences);
}

static void write_essay(struct ruler_draft *draft, struct random *random, size_t unit_count, struct text *text) {
    struct needle in_order[NEEDLES_MAX];
    struct hidden hidden[NEEDLES_MAX] = {0};
    sort_needles(draft, in_order);
    for (size_t i = 0; i < draft->needle_count; i++) {
        hidden[i].depth = in_order[i].depth;
        ruler_niah_needle(draft, &in_order[i], &hidden[i].text);
        text->failed = text->failed || hidden[i].text.failed;
    }
    if (!text->failed) ruler_write_essay(draft->options->essay, random, unit_count, hidden, draft->needle_count, text);
    for (size_t i = 0; i < draft->needle_count; i++) text_deinit(&hidden[i].text);
}

static void write_needles(struct ruler_draft *draft, struct random *random, size_t unit_count,
                          struct ruler_page *page) {
    struct text *text = &page->prompt;
    size_t place = place_of(draft->needles[0].depth, unit_count);
    urn_refill(&draft->urn);
    if (draft->key_kind == KIND_word) urn_remove(&draft->urn, draft->key_index);
    for (size_t i = 0; i <= unit_count; i++) {
        if (i > 0) text_add(text, "\n");
        if (i == place) {
            ruler_niah_needle(draft, &draft->needles[0], text);
            continue;
        }
        if (draft->key_kind == KIND_word && draft->urn.left == 0) {
            page->exhausted = true;
            return;
        }
        struct needle other;
        draw_key(draft, &draft->urn, other.key, random);
        do ruler_word(other.value, draft->value_kind, random);
        while (has_value(draft, other.value));
        ruler_niah_needle(draft, &other, text);
    }
}

static void write_noise(const struct ruler_draft *draft, size_t unit_count, struct text *text) {
    struct text line = {0};
    ruler_niah_needle(draft, &draft->needles[0], &line);
    if (line.failed)
        text->failed = true;
    else
        ruler_write_noise(text, unit_count, &(const char *){line.bytes}, &draft->needles[0].depth, 1);
    text_deinit(&line);
}

void ruler_niah_question(const struct ruler_draft *draft, struct ruler_page *page) {
    const struct niah_shape *shape = &shapes[draft->task];
    struct needle in_order[NEEDLES_MAX];
    sort_needles(draft, in_order);
    bool many = shape->asked_count * shape->value_count > 1;
    struct text keys = {0};
    char asked[NEEDLES_MAX][RULER_ANSWER_BYTES];
    for (size_t i = 0; i < shape->asked_count; i++) memcpy(asked[i], draft->needles[i].key, sizeof asked[i]);
    ruler_join_keys(&keys, (const char(*)[RULER_ANSWER_BYTES])asked, shape->asked_count);
    if (keys.failed) {
        page->prompt.failed = true;
        return;
    }
    const struct field fields[] = {{"kind", ruler_kind_text(draft->value_kind, false)},
                                   {"kinds", ruler_kind_text(draft->value_kind, true)},
                                   {"keys", keys.bytes}};
    text_add(&page->prompt, "\n");
    ruler_fill(&page->prompt, many ? TEMPLATE_question_many : TEMPLATE_question_one, fields, 3);
    text_add(&page->prompt, "\n");
    ruler_fill(&page->prompt, many ? TEMPLATE_prefix_many : TEMPLATE_prefix_one, fields, 3);
    text_deinit(&keys);
    if (shape->value_count > 1)
        for (size_t i = 0; i < draft->needle_count; i++) ruler_page_answer(page, in_order[i].value);
    else
        for (size_t i = 0; i < shape->asked_count; i++) ruler_page_answer(page, draft->needles[i].value);
    page->depth = draft->is_needle ? draft->depth : -1;
}

void ruler_niah_write(struct ruler_draft *draft, size_t unit_count, struct ruler_page *page) {
    const struct niah_shape *shape = &shapes[draft->task];
    struct random random = draft->random;
    FILL(&page->prompt, TEMPLATE_intro_niah, {"kinds", ruler_kind_text(draft->value_kind, true)});
    text_add(&page->prompt, "\n");
    switch (shape->haystack) {
    case HAYSTACK_NOISE: write_noise(draft, unit_count, &page->prompt); break;
    case HAYSTACK_ESSAY: write_essay(draft, &random, unit_count, &page->prompt); break;
    case HAYSTACK_NEEDLES: write_needles(draft, &random, unit_count, page); break;
    }
    ruler_niah_question(draft, page);
}
