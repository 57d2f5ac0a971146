#include "lab/eval/ruler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "lab/eval/ruler_internal.h"

static const struct task {
    const char *name;
    bool is_part, is_needle;
    size_t token_budget; /* RULER's tokens_to_generate */
    bool (*draw)(struct ruler_draft *draft);
    void (*write)(struct ruler_draft *draft, size_t unit_count, struct ruler_page *page);
} tasks[RULER_TASK_COUNT] = {
    [RULER_NIAH_SINGLE_1] = {"niah_single_1", false, true, 128, ruler_niah_draw, ruler_niah_write},
    [RULER_NIAH_SINGLE_2] = {"niah_single_2", false, true, 128, ruler_niah_draw, ruler_niah_write},
    [RULER_NIAH_SINGLE_3] = {"niah_single_3", false, true, 128, ruler_niah_draw, ruler_niah_write},
    [RULER_NIAH_MULTIKEY_1] = {"niah_multikey_1", false, true, 128, ruler_niah_draw, ruler_niah_write},
    [RULER_NIAH_MULTIKEY_2] = {"niah_multikey_2", false, true, 128, ruler_niah_draw, ruler_niah_write},
    [RULER_NIAH_MULTIKEY_3] = {"niah_multikey_3", false, true, 128, ruler_niah_draw, ruler_niah_write},
    [RULER_NIAH_MULTIVALUE] = {"niah_multivalue", false, false, 128, ruler_niah_draw, ruler_niah_write},
    [RULER_NIAH_MULTIQUERY] = {"niah_multiquery", false, false, 128, ruler_niah_draw, ruler_niah_write},
    [RULER_VT] = {"vt", false, false, 30, ruler_vt_draw, ruler_vt_write},
    [RULER_CWE] = {"cwe", false, false, 120, ruler_cwe_draw, ruler_cwe_write},
    [RULER_FWE] = {"fwe", false, false, 50, ruler_fwe_draw, ruler_fwe_write},
    [RULER_QA_1] = {"qa_1", true, false, 32, ruler_qa_draw, ruler_qa_write},
    [RULER_QA_2] = {"qa_2", true, false, 32, ruler_qa_draw, ruler_qa_write},
};

const char *ruler_task_name(enum ruler_task task) { return tasks[task].name; }
bool ruler_task_is_part(enum ruler_task task) { return tasks[task].is_part; }
bool ruler_task_is_needle(enum ruler_task task) { return tasks[task].is_needle; }

bool ruler_task_can_share(enum ruler_task task) {
    switch (task) {
    case RULER_NIAH_SINGLE_2:
    case RULER_NIAH_SINGLE_3:
    case RULER_NIAH_MULTIKEY_1:
    case RULER_NIAH_MULTIVALUE:
    case RULER_NIAH_MULTIQUERY:
    case RULER_VT: return true;
    case RULER_NIAH_SINGLE_1: /* noise, or a haystack of needles: not an essay */
    case RULER_NIAH_MULTIKEY_2:
    case RULER_NIAH_MULTIKEY_3:
    case RULER_CWE:
    case RULER_FWE:
    case RULER_QA_1:
    case RULER_QA_2:
    case RULER_TASK_COUNT: return false;
    }
    return false;
}

/* ---- one size ---- */

struct trial {
    struct ruler_draft draft;
    struct ruler_page page;
    struct token_list tokens;
};

static void trial_deinit(struct trial *trial) {
    text_deinit(&trial->page.prompt);
    token_list_deinit(&trial->tokens);
    ruler_draft_deinit(&trial->draft);
}

enum status ruler_page_tokens(const struct ruler_page *page, const struct tokenizer *tokenizer,
                              struct token_list *tokens, struct error *error) {
    if (page->prompt.failed) return error_set(error, STATUS_MEMORY, "out of memory for a prompt");
    tokens->count = 0;
    return tokenizer_encode(tokenizer, page->prompt.bytes, page->prompt.length,
                            (struct tokenize_options){.add_special = true}, tokens, error);
}

static enum status write_page(void *context, size_t unit_count, size_t *token_count, bool *exhausted,
                              struct error *error) {
    struct trial *trial = context;
    struct ruler_page *page = &trial->page;
    text_clear(&page->prompt);
    page->answer_count = 0;
    page->exhausted = false;
    page->depth = -1;
    tasks[trial->draft.task].write(&trial->draft, unit_count, page);
    *exhausted = page->exhausted;
    if (page->exhausted && !page->prompt.failed) return STATUS_OK;
    TRY(ruler_page_tokens(page, trial->draft.options->tokenizer, &trial->tokens, error));
    *token_count = trial->tokens.count;
    return STATUS_OK;
}

static enum status answer_text(const struct ruler_page *page, char **text, struct error *error) {
    struct text made = {0};
    text_add(&made, ruler_separator_text(SEPARATOR_answer_begin));
    for (size_t i = 0; i < page->answer_count; i++) {
        if (i > 0) text_add(&made, ruler_separator_text(SEPARATOR_answer));
        text_add(&made, page->answers[i]);
    }
    text_add(&made, ruler_separator_text(SEPARATOR_answer_end));
    if (made.failed) {
        text_deinit(&made);
        return error_set(error, STATUS_MEMORY, "out of memory for an answer");
    }
    *text = made.bytes;
    return STATUS_OK;
}

enum status ruler_page_budget(const struct ruler_page *page, const struct tokenizer *tokenizer, enum ruler_task task,
                              size_t *budget, struct error *error) {
    enum { SPARE = 8 };
    char *text;
    TRY(answer_text(page, &text, error));
    struct token_list list = {0};
    enum status status = tokenizer_encode(tokenizer, text, strlen(text), (struct tokenize_options){0}, &list, error);
    free(text);
    size_t needed = list.count + SPARE;
    token_list_deinit(&list);
    *budget = tasks[task].token_budget;
    if (needed > *budget) *budget = needed;
    return status;
}

/* ---- the size that fits ---- */

enum { UNITS_MIN_FWE = 64, INTERPOLATIONS_MAX = 16 };

/* The token count grows by nearly the same amount per unit, so interpolation finds the place in a few writings. */
enum status ruler_fit(ruler_write *write, void *context, size_t lower, size_t lower_tokens, size_t target,
                      bool *exhausted, struct error *error) {
    size_t upper = SIZE_MAX, written = lower, tokens = lower_tokens;
    double rate = 10; /* tokens per unit, to begin with */
    *exhausted = false;
    for (size_t round = 0; upper - lower > 1; round++) {
        double step = (double)(target - lower_tokens) / rate;
        size_t unit_count = lower + (step >= 1 ? (size_t)step : 1);
        if (round >= INTERPOLATIONS_MAX && upper != SIZE_MAX) unit_count = lower + (upper - lower) / 2;
        if (unit_count >= upper) unit_count = upper - 1;
        bool ended;
        TRY(write(context, unit_count, &tokens, &ended, error));
        written = unit_count;
        if (ended) {
            *exhausted = true;
            upper = unit_count;
            continue;
        }
        double units = (double)(unit_count - lower), more = (double)tokens - (double)lower_tokens;
        if (more > 0) rate = more / units;
        if (tokens > target) {
            *exhausted = false;
            upper = unit_count;
        } else {
            lower = unit_count;
            lower_tokens = tokens;
        }
    }
    bool ended = false;
    if (written != lower) TRY(write(context, lower, &tokens, &ended, error));
    ASSERT(!ended && tokens <= target);
    return STATUS_OK;
}

size_t ruler_occurrences(const char *text, const char *part) {
    size_t count = 0;
    for (const char *place = text; (place = strstr(place, part)) != NULL; place++) count++;
    return count;
}

/* The answer must not stand in the haystack by chance (in a needle's value, or in the essay). */
static bool is_unambiguous(const struct trial *trial) {
    if (trial->draft.task > RULER_NIAH_MULTIQUERY) return true;
    for (size_t i = 0; i < trial->page.answer_count; i++)
        if (ruler_occurrences(trial->page.prompt.bytes, trial->page.answers[i]) != 1) return false;
    return true;
}

/* ---- a sample ---- */

static uint64_t mix(uint64_t hash, uint64_t value) {
    struct random random;
    random_init(&random, hash ^ value);
    return random_next(&random);
}

void ruler_draft_deinit(struct ruler_draft *draft) {
    urn_deinit(&draft->urn);
    urn_deinit(&draft->towns);
}

enum status ruler_draft_draw(struct ruler_draft *draft, const struct ruler_options *options, struct ruler_key key,
                             uint64_t attempt, bool pairs, struct error *error) {
    ruler_draft_deinit(draft);
    uint64_t series = mix(mix(options->seed, (uint64_t)key.task), key.length);
    *draft = (struct ruler_draft){.options = options,
                                  .task = key.task,
                                  .is_needle = tasks[key.task].is_needle,
                                  .length = key.length,
                                  .pairs = pairs};
    struct random first;
    random_init(&first, series);
    const double golden = 0.6180339887498949;
    draft->depth = fmod(random_double(&first) + (double)key.index * golden, 1);
    random_init(&draft->random, mix(mix(series, key.index), attempt));
    return tasks[key.task].draw(draft) ? STATUS_OK : error_set(error, STATUS_MEMORY, "out of memory for a sample");
}

/* One attempt, in the trial; *exhausted: the task's word lists are too short for this length. */
static enum status attempt_sample(struct trial *trial, size_t *budget, bool *exhausted, struct error *error) {
    const struct ruler_draft *draft = &trial->draft;
    size_t units_min = draft->task == RULER_FWE ? UNITS_MIN_FWE : 0, token_count;
    TRY(write_page(trial, units_min, &token_count, exhausted, error));
    TRY(ruler_page_budget(&trial->page, draft->options->tokenizer, draft->task, budget, error));
    if (token_count + *budget > draft->length)
        return error_set(error, STATUS_USAGE, "%s: needs a length of %zu tokens at least, found %llu",
                         tasks[draft->task].name, token_count + *budget, (unsigned long long)draft->length);
    return ruler_fit(write_page, trial, units_min, token_count, (size_t)draft->length - *budget, exhausted, error);
}

static enum status make(struct trial *trial, const struct ruler_options *options, struct ruler_key key, size_t *budget,
                        struct error *error) {
    enum { ATTEMPTS_MAX = 100 };
    bool exhausted = false, pairs = false;
    for (uint64_t attempt = 0; attempt < ATTEMPTS_MAX; attempt++) {
        TRY(ruler_draft_draw(&trial->draft, options, key, attempt, pairs, error));
        TRY(attempt_sample(trial, budget, &exhausted, error));
        if (exhausted && key.task == RULER_CWE && !pairs) {
            pairs = true;
            continue;
        }
        if (exhausted)
            return error_set(error, STATUS_USAGE, "%s: the word lists are too short for a length of %llu tokens",
                             tasks[key.task].name, (unsigned long long)key.length);
        if (is_unambiguous(trial)) return STATUS_OK;
    }
    return error_set(error, STATUS_USAGE, "%s: the text holds every answer that was drawn", tasks[key.task].name);
}

enum status ruler_sample_take(struct ruler_sample *sample, struct ruler_page *page, struct token_list *tokens,
                              size_t budget, struct error *error) {
    *sample = (struct ruler_sample){.depth = page->depth, .token_budget = budget};
    TRY(answer_text(page, &sample->answer_text, error));
    sample->prompt = page->prompt.bytes;
    sample->prompt_bytes = page->prompt.length;
    sample->tokens = *tokens;
    memcpy(sample->answers, page->answers, sizeof sample->answers);
    sample->answer_count = page->answer_count;
    page->prompt = (struct text){0};
    *tokens = (struct token_list){0};
    return STATUS_OK;
}

enum status ruler_sample_create(struct ruler_sample *sample, const struct ruler_options *options, enum ruler_task task,
                                uint64_t length, uint64_t index, struct error *error) {
    *sample = (struct ruler_sample){.depth = -1};
    struct trial trial = {0};
    size_t budget = 0;
    enum status status = make(&trial, options, (struct ruler_key){task, length, index}, &budget, error);
    if (status == STATUS_OK) status = ruler_sample_take(sample, &trial.page, &trial.tokens, budget, error);
    trial_deinit(&trial);
    return status;
}

void ruler_sample_deinit(struct ruler_sample *sample) {
    free(sample->prompt);
    free(sample->answer_text);
    token_list_deinit(&sample->tokens);
    *sample = (struct ruler_sample){0};
}
