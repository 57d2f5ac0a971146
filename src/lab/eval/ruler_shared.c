/* One text for the samples of several tasks.  Each task is drawn as for a text of its own, and the needles of all go
 * into one essay.  If two tasks draw the same key, or an answer occurs elsewhere, all are drawn again. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "lab/eval/ruler_internal.h"

enum { HIDDEN_MAX = RULER_TASK_COUNT * NEEDLES_MAX + VT_NAMES, ATTEMPTS_MAX = 100 };

struct shared {
    const struct ruler_options *options;
    const enum ruler_task *tasks;
    size_t task_count;
    uint64_t length;
    struct ruler_draft drafts[RULER_TASK_COUNT]; /* [task_count], as the three below */
    struct ruler_page pages[RULER_TASK_COUNT];
    struct token_list tokens[RULER_TASK_COUNT];
    size_t budgets[RULER_TASK_COUNT];
    struct hidden hidden[HIDDEN_MAX];
    size_t hidden_count;
    struct text intro, text; /* text: intro and haystack, what the prompts have in common */
};

static void shared_deinit(struct shared *shared) {
    for (size_t i = 0; i < shared->task_count; i++) {
        ruler_draft_deinit(&shared->drafts[i]);
        text_deinit(&shared->pages[i].prompt);
        token_list_deinit(&shared->tokens[i]);
    }
    for (size_t i = 0; i < HIDDEN_MAX; i++) text_deinit(&shared->hidden[i].text);
    text_deinit(&shared->intro);
    text_deinit(&shared->text);
}

/* ---- what is hidden ---- */

static struct text *hide(struct shared *shared, double depth, bool own_line) {
    ASSERT(shared->hidden_count < HIDDEN_MAX);
    struct hidden *hidden = &shared->hidden[shared->hidden_count++];
    hidden->depth = depth;
    hidden->own_line = own_line;
    text_clear(&hidden->text);
    return &hidden->text;
}

static int by_depth(const void *a, const void *b) {
    double x = ((const struct hidden *)a)->depth, y = ((const struct hidden *)b)->depth;
    return (x > y) - (x < y);
}

static void hide_all(struct shared *shared) {
    shared->hidden_count = 0;
    for (size_t i = 0; i < shared->task_count; i++) {
        const struct ruler_draft *draft = &shared->drafts[i];
        if (draft->task == RULER_VT)
            for (size_t j = 0; j < VT_NAMES; j++) ruler_vt_statement(draft, j, hide(shared, draft->places[j], true));
        else
            for (size_t j = 0; j < draft->needle_count; j++)
                ruler_niah_needle(draft, &draft->needles[j], hide(shared, draft->needles[j].depth, false));
    }
    qsort(shared->hidden, shared->hidden_count, sizeof shared->hidden[0], by_depth);
}

/* What hides in the text is said first, as each task's own introduction does. */
static void write_intro(struct shared *shared) {
    char kinds[2][RULER_ANSWER_BYTES];
    size_t kind_count = 0;
    bool variables = false, has[2] = {false};
    for (size_t i = 0; i < shared->task_count; i++)
        if (shared->tasks[i] == RULER_VT)
            variables = true;
        else
            has[shared->drafts[i].value_kind == KIND_uuid] = true;
    for (size_t i = 0; i < 2; i++)
        if (has[i]) strcpy(kinds[kind_count++], ruler_kind_text(i == 0 ? KIND_number : KIND_uuid, true));
    text_clear(&shared->intro);
    struct text joined = {0};
    ruler_join_keys(&joined, (const char(*)[RULER_ANSWER_BYTES])kinds, kind_count);
    if (kind_count > 0 && !joined.failed) FILL(&shared->intro, TEMPLATE_intro_niah, {"kinds", joined.bytes});
    if (variables && kind_count > 0) text_add(&shared->intro, "\n");
    if (variables) ruler_fill(&shared->intro, TEMPLATE_intro_vt, NULL, 0);
    text_add(&shared->intro, "\n");
    if (joined.failed) shared->intro.failed = true;
    text_deinit(&joined);
}

/* ---- one size ---- */

static enum status write_pages(void *context, size_t unit_count, size_t *token_count, bool *exhausted,
                               struct error *error) {
    struct shared *shared = context;
    struct random random = shared->drafts[0].random;
    text_clear(&shared->text);
    text_append(&shared->text, shared->intro.bytes, shared->intro.length);
    ruler_write_essay(shared->options->essay, &random, unit_count, shared->hidden, shared->hidden_count, &shared->text);
    if (shared->text.failed) return error_set(error, STATUS_MEMORY, "out of memory for a prompt");
    *token_count = 0;
    *exhausted = false;
    for (size_t i = 0; i < shared->task_count; i++) {
        struct ruler_page *page = &shared->pages[i];
        text_clear(&page->prompt);
        page->answer_count = 0;
        page->depth = -1;
        text_append(&page->prompt, shared->text.bytes, shared->text.length);
        (shared->tasks[i] == RULER_VT ? ruler_vt_question : ruler_niah_question)(&shared->drafts[i], page);
        TRY(ruler_page_tokens(page, shared->options->tokenizer, &shared->tokens[i], error));
        TRY(ruler_page_budget(page, shared->options->tokenizer, shared->tasks[i], &shared->budgets[i], error));
        size_t needed = shared->tokens[i].count + shared->budgets[i];
        if (needed > *token_count) *token_count = needed;
    }
    return STATUS_OK;
}

/* ---- one attempt ---- */

static enum status draw_all(struct shared *shared, uint64_t index, uint64_t attempt, struct error *error) {
    for (size_t i = 0; i < shared->task_count; i++)
        TRY(ruler_draft_draw(&shared->drafts[i], shared->options,
                             (struct ruler_key){shared->tasks[i], shared->length, index}, attempt, false, error));
    hide_all(shared);
    write_intro(shared);
    for (size_t i = 0; i < shared->hidden_count; i++)
        if (shared->hidden[i].text.failed) shared->intro.failed = true;
    return shared->intro.failed ? error_set(error, STATUS_MEMORY, "out of memory for a sample") : STATUS_OK;
}

/* In the text every value occurs once, and every key as often as it has values. */
static bool needles_are_alone(const struct ruler_draft *draft, const char *text) {
    char stated[RULER_ANSWER_BYTES + 16];
    for (size_t i = 0; i < draft->needle_count; i++) {
        const struct needle *needle = &draft->needles[i];
        size_t own = 0;
        for (size_t j = 0; j < draft->needle_count; j++) own += strcmp(draft->needles[j].key, needle->key) == 0;
        strcpy(stated, " ");
        strcat(strcat(stated, needle->key), " is: ");
        if (ruler_occurrences(text, needle->value) != 1 || ruler_occurrences(text, stated) != own) return false;
    }
    return true;
}

/* Every name stands in its own statement and, but the last, in the next one; the value once. */
static bool chain_is_alone(const struct ruler_draft *draft, const char *text) {
    for (size_t i = 0; i < VT_NAMES; i++)
        if (ruler_occurrences(text, draft->names[i]) != (i + 1 < VT_NAMES ? 2 : 1)) return false;
    return ruler_occurrences(text, draft->vt_value) == 1;
}

static bool is_unambiguous(const struct shared *shared) {
    for (size_t i = 0; i < shared->task_count; i++) {
        bool is_chain = shared->tasks[i] == RULER_VT;
        if (!(is_chain ? chain_is_alone : needles_are_alone)(&shared->drafts[i], shared->text.bytes)) return false;
    }
    return true;
}

static enum status make(struct shared *shared, uint64_t index, struct error *error) {
    for (uint64_t attempt = 0; attempt < ATTEMPTS_MAX; attempt++) {
        size_t token_min;
        bool exhausted;
        TRY(draw_all(shared, index, attempt, error));
        TRY(write_pages(shared, 0, &token_min, &exhausted, error));
        if (token_min > shared->length)
            return error_set(error, STATUS_USAGE, "a shared text: needs a length of %zu tokens at least, found %llu",
                             token_min, (unsigned long long)shared->length);
        TRY(ruler_fit(write_pages, shared, 0, token_min, (size_t)shared->length, &exhausted, error));
        if (is_unambiguous(shared)) return STATUS_OK;
    }
    return error_set(error, STATUS_USAGE, "a shared text: the essay holds every answer that was drawn");
}

enum status ruler_samples_create_shared(struct ruler_sample *samples, const struct ruler_options *options,
                                        const enum ruler_task *tasks, size_t task_count, uint64_t length,
                                        uint64_t index, struct error *error) {
    ASSERT(task_count > 0 && task_count <= RULER_TASK_COUNT);
    for (size_t i = 0; i < task_count; i++) ASSERT(ruler_task_can_share(tasks[i]));
    memset(samples, 0, task_count * sizeof *samples);
    struct shared *shared = calloc(1, sizeof *shared);
    if (shared == NULL) return error_set(error, STATUS_MEMORY, "out of memory for a sample");
    shared->options = options;
    shared->tasks = tasks;
    shared->task_count = task_count;
    shared->length = length;
    enum status status = make(shared, index, error);
    for (size_t i = 0; i < task_count && status == STATUS_OK; i++)
        status = ruler_sample_take(&samples[i], &shared->pages[i], &shared->tokens[i], shared->budgets[i], error);
    if (status != STATUS_OK)
        for (size_t i = 0; i < task_count; i++) ruler_sample_deinit(&samples[i]);
    shared_deinit(shared);
    free(shared);
    return status;
}
