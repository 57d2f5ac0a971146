/* ruler: what the files that build prompts share.
 *
 * A sample is drawn once (ruler_draw: keys, values, names, places) and then written at several sizes until it fits
 * (ruler_write).  Writing takes its random numbers from a copy of one generator, so that a size always gives the
 * same text. */
#pragma once

#include "base/random.h"
#include "base/text.h"
#include "lab/eval/ruler.h"
#include "lab/eval/ruler_text.h"

enum ruler_template {
#define X(name, text) TEMPLATE_##name,
    RULER_TEMPLATES(X)
#undef X
};
enum ruler_separator {
#define X(name, text) SEPARATOR_##name,
    RULER_SEPARATORS(X)
#undef X
};
enum ruler_kind {
#define X(name, singular, plural) KIND_##name,
    RULER_KINDS(X)
#undef X
};

struct word_list {
    const char *const *words;
    size_t count;
};
extern const struct word_list ruler_noise, ruler_adjectives, ruler_nouns, ruler_first_names, ruler_surnames,
    ruler_town_starts, ruler_town_ends, ruler_regions, ruler_jobs;

const char *ruler_separator_text(enum ruler_separator separator);
const char *ruler_kind_text(enum ruler_kind kind, bool plural);

/* A place {name} in a template, and what goes there. */
struct field {
    const char *name, *value;
};
/* Appends the template; a {name} without a field is a bug. */
void ruler_fill(struct text *text, enum ruler_template template, const struct field *fields, size_t count);
#define FILL(text, template, ...)                                   \
    ruler_fill(text, template, (const struct field[]){__VA_ARGS__}, \
               sizeof((const struct field[]){__VA_ARGS__}) / sizeof(struct field))

/* "a, b and c" */
void ruler_join_keys(struct text *text, const char (*keys)[RULER_ANSWER_BYTES], size_t count);

/* Draws without replacement from [0, count). */
struct urn {
    uint64_t *drawn; /* bits, owned */
    size_t count, left;
};
enum { URN_EMPTY = -1 };
bool urn_init(struct urn *urn, size_t count); /* false: no memory */
void urn_deinit(struct urn *urn);
void urn_refill(struct urn *urn);
void urn_remove(struct urn *urn, size_t index);
int64_t urn_draw(struct urn *urn, struct random *random); /* URN_EMPTY when nothing is left */

enum { NEEDLES_MAX = 4, VT_NAMES = 5, CWE_COMMON = 10, FWE_ASKED = 3 };

struct needle {
    char key[RULER_ANSWER_BYTES], value[RULER_ANSWER_BYTES];
    double depth;
};

/* The parts of a sample that do not depend on its size. */
struct ruler_draft {
    const struct ruler_options *options;
    enum ruler_task task;
    bool is_needle; /* ruler_task_is_needle */
    uint64_t length;
    struct random random; /* for writing; copied each time */
    double depth;         /* of the asked needle */
    struct needle needles[NEEDLES_MAX];
    size_t needle_count, key_index; /* key_index: of needles[0], when keys are words */
    enum ruler_kind key_kind, value_kind;
    char names[VT_NAMES][8], vt_value[8];
    double places[VT_NAMES];
    bool pairs;       /* cwe: the words are adjective-noun pairs, because there are too few single words */
    struct urn urn;   /* keys, words or people; refilled for each writing */
    struct urn towns; /* qa_2 */
    struct {
        size_t question;             /* qa_1 */
        size_t person, town, region; /* qa */
    } asked;
};

/* A sample as written at one size. */
struct ruler_page {
    struct text prompt;
    char answers[RULER_ANSWERS_MAX][RULER_ANSWER_BYTES];
    size_t answer_count;
    double depth;
    bool exhausted; /* the word lists do not have enough for this number of units */
};

void ruler_word_pair(char *target, size_t index); /* adjective-noun number index, RULER_ANSWER_BYTES */
size_t ruler_word_pair_count(void);
void ruler_word(char *target, enum ruler_kind kind, struct random *random);
void ruler_page_answer(struct ruler_page *page, const char *answer);

/* A sentence or line that is hidden in an essay. */
struct hidden {
    double depth; /* in the essay's bytes, 0 to 1 */
    bool own_line;
    struct text text;
};
/* unit_count sentences of the essay, with the needles [count] between them, in the order of depth. */
void ruler_write_essay(const struct essay *essay, struct random *random, size_t unit_count, const struct hidden *hidden,
                       size_t count, struct text *text);

/* Parts of a needle task's and of vt's prompts: one needle, one statement; the question with the line end before it,
 * which also gives the page its answers and depth. */
void ruler_niah_needle(const struct ruler_draft *draft, const struct needle *needle, struct text *text);
void ruler_niah_question(const struct ruler_draft *draft, struct ruler_page *page);
void ruler_vt_statement(const struct ruler_draft *draft, size_t index, struct text *text);
void ruler_vt_question(const struct ruler_draft *draft, struct ruler_page *page);

/* ---- what ruler.c and ruler_shared.c share ---- */

/* Which sample: it follows from these and the options. */
struct ruler_key {
    enum ruler_task task;
    uint64_t length, index;
};
/* Draws the fixed parts of a sample.  The draft is zeroed or an earlier one. */
enum status ruler_draft_draw(struct ruler_draft *draft, const struct ruler_options *options, struct ruler_key key,
                             uint64_t attempt, bool pairs, struct error *error) STATUS_CHECKED;
void ruler_draft_deinit(struct ruler_draft *draft);
/* The tokens of the page's prompt. */
enum status ruler_page_tokens(const struct ruler_page *page, const struct tokenizer *tokenizer,
                              struct token_list *tokens, struct error *error) STATUS_CHECKED;
/* Tokens to answer the page with. */
enum status ruler_page_budget(const struct ruler_page *page, const struct tokenizer *tokenizer, enum ruler_task task,
                              size_t *budget, struct error *error) STATUS_CHECKED;
/* Moves prompt and tokens into the sample. */
enum status ruler_sample_take(struct ruler_sample *sample, struct ruler_page *page, struct token_list *tokens,
                              size_t budget, struct error *error) STATUS_CHECKED;
size_t ruler_occurrences(const char *text, const char *part);

/* Writes with so many units: the tokens that takes, unless the word lists end before (*exhausted). */
typedef enum status ruler_write(void *context, size_t unit_count, size_t *token_count, bool *exhausted,
                                struct error *error);
/* Finds the largest unit count that takes at most `target` tokens, between `lower` (which takes lower_tokens and fits)
 * and the end of the word lists, and writes that at last.  *exhausted: the lists ended first. */
enum status ruler_fit(ruler_write *write, void *context, size_t lower, size_t lower_tokens, size_t target,
                      bool *exhausted, struct error *error) STATUS_CHECKED;

/* The families of tasks.  draw: false when there is no memory. */
bool ruler_niah_draw(struct ruler_draft *draft);
void ruler_niah_write(struct ruler_draft *draft, size_t unit_count, struct ruler_page *page);
bool ruler_vt_draw(struct ruler_draft *draft);
void ruler_vt_write(struct ruler_draft *draft, size_t unit_count, struct ruler_page *page);
bool ruler_cwe_draw(struct ruler_draft *draft);
void ruler_cwe_write(struct ruler_draft *draft, size_t unit_count, struct ruler_page *page);
bool ruler_fwe_draw(struct ruler_draft *draft);
void ruler_fwe_write(struct ruler_draft *draft, size_t unit_count, struct ruler_page *page);
bool ruler_qa_draw(struct ruler_draft *draft);
void ruler_qa_write(struct ruler_draft *draft, size_t unit_count, struct ruler_page *page);

/* Noise of sentence_count sentences, five to a line, with lines[i] as a line of its own behind noise line
 * floor(places[i] * (line count + 1)); places ascend. */
void ruler_write_noise(struct text *text, size_t sentence_count, const char *const *lines, const double *places,
                       size_t count);
