#include "grammar/text_rules.h"

#include <stdlib.h>
#include <string.h>

#include "grammar/grammar_internal.h"

#define YEAR "[1-9][0-9]{3}"
#define LEAP "(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)"
#define DATE                                                                                              \
    "(?:" YEAR "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|" \
    "02-(?:0[1-9]|1[0-9]|2[0-8]))|" LEAP "-02-29)"
#define CLOCK    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?"
#define ZONE     "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define HOURS    "(?:[0-9]{1,4}H(?:[0-9]{1,2}M(?:[0-9]{1,2}S)?)?|[0-9]{1,4}M(?:[0-9]{1,2}S)?|[0-9]{1,4}S)"
#define BYTE     "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define LABEL    "[A-Za-z0-9](?:[A-Za-z0-9-]{0,14}[A-Za-z0-9])?"
#define HOST     LABEL "(?:\\." LABEL "){0,3}"
#define URI_TEXT "[A-Za-z0-9._~!$&'()*+,;=:@/-]"

/* Part of what a format takes, where all of it has no short expression: leap seconds, comments in an address, and the
 * like are not written.  NULL: a word for programs that says nothing about the text. */
static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date", "^" DATE "$"},
    {"time", "^" CLOCK ZONE "$"},
    {"date-time", "^" DATE "T" CLOCK ZONE "$"},
    {"duration", "^P(?:[0-9]{1,4}W|[0-9]{1,4}D(?:T" HOURS ")?|T" HOURS ")$"},
    {"email", "^[A-Za-z0-9_+-]{1,32}(?:\\.[A-Za-z0-9_+-]{1,16}){0,2}@" LABEL "(?:\\." LABEL "){1,3}$"},
    {"uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[1-8][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"},
    {"ipv4", "^(?:" BYTE "\\.){3}" BYTE "$"},
    {"ipv6", "^(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}$"},
    {"hostname", "^" HOST "$"},
    {"uri",
     "^[a-z][a-z0-9+.-]{1,9}://" HOST "(?::[0-9]{2,4})?(?:/" URI_TEXT "*)?(?:\\?" URI_TEXT "*)?(?:#" URI_TEXT "*)?$"},
    {"password", NULL},
    {"binary", NULL},
    {"byte", NULL},
    {"text", NULL},
    {"markdown", NULL},
};

void text_rules_deinit(struct text_rules *rules) {
    for (size_t i = 0; i < rules->pattern_count; i++) pattern_deinit(&rules->patterns[i]);
    rules->pattern_count = 0;
}

enum status text_rules_add_pattern(struct text_rules *rules, const char *pattern, size_t length, struct error *error) {
    if (rules->pattern_count == TEXT_RULES_PATTERNS_MAX)
        return error_set(error, STATUS_USAGE, "more than %d for one string", TEXT_RULES_PATTERNS_MAX);
    TRY(pattern_read(&rules->patterns[rules->pattern_count], pattern, length, error));
    rules->pattern_count++;
    return STATUS_OK;
}

enum status text_rules_add_format(struct text_rules *rules, const char *name, struct error *error) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (strcmp(formats[i].name, name) != 0) continue;
        if (formats[i].pattern == NULL) return STATUS_OK;
        return text_rules_add_pattern(rules, formats[i].pattern, strlen(formats[i].pattern), error);
    }
    return error_set(error, STATUS_UNSUPPORTED, "\"%.40s\" is not supported", name);
}

/* ---- the automaton ---- */

/* A state: where in the lexeme, characters so far, then a set of states of each pattern. */
enum { KEY_LEXEME, KEY_COUNT, KEY_SETS };
enum { BEFORE_QUOTE = 100 }; /* beside enum string_state */

static bool may_close(const struct text_rules *rules, const uint32_t *key) {
    const uint32_t *set = key + KEY_SETS;
    if (key[KEY_COUNT] < rules->length_min) return false;
    for (size_t i = 0; i < rules->pattern_count; set += pattern_words(&rules->patterns[i]), i++)
        if (!pattern_ends(&rules->patterns[i], set)) return false;
    return true;
}

static bool step(const void *context, const uint32_t *key, uint8_t byte, uint32_t *next, uint64_t *work) {
    const struct text_rules *rules = context;
    if (key[KEY_LEXEME] == BEFORE_QUOTE) {
        if (byte != '"') return false;
        next[KEY_LEXEME] = STRING_TEXT;
        uint32_t *set = next + KEY_SETS;
        for (size_t i = 0; i < rules->pattern_count; set += pattern_words(&rules->patterns[i]), i++)
            pattern_begin(&rules->patterns[i], set);
        return true;
    }
    if (key[KEY_LEXEME] == STRING_CLOSED) return false;
    next[KEY_LEXEME] = (uint32_t)string_next((enum string_state)key[KEY_LEXEME], byte);
    if (next[KEY_LEXEME] == STRING_WRONG) return false;
    if (next[KEY_LEXEME] == STRING_CLOSED) return may_close(rules, key); /* the rest stays zero: one end */
    next[KEY_COUNT] = key[KEY_COUNT];
    if (key[KEY_LEXEME] == STRING_TEXT) {
        if (key[KEY_COUNT] == rules->length_max) return false;
        if (rules->length_max != UINT32_MAX || key[KEY_COUNT] < rules->length_min) next[KEY_COUNT]++;
    }
    const uint32_t *set = key + KEY_SETS;
    uint32_t *next_set = next + KEY_SETS;
    for (size_t i = 0; i < rules->pattern_count; i++) {
        const size_t words = pattern_words(&rules->patterns[i]);
        if (!pattern_step(&rules->patterns[i], set, byte, next_set, work)) return false;
        set += words;
        next_set += words;
    }
    return true;
}

static bool accepts(const void *context, const uint32_t *key) {
    (void)context;
    return key[KEY_LEXEME] == STRING_CLOSED;
}

enum status text_rules_compile(struct text_rules *rules, struct arena *arena, struct automaton **automaton,
                               uint64_t *work, struct error *error) {
    struct explorer explorer = {
        .context = rules, .key_words = KEY_SETS, .step = step, .accepts = accepts, .work = work};
    bool begins[257] = {false};
    begins['"'] = begins['"' + 1] = true;
    for (size_t i = 0; i < rules->pattern_count; i++) {
        explorer.key_words += pattern_words(&rules->patterns[i]);
        pattern_mark_classes(&rules->patterns[i], begins);
    }
    for (unsigned byte = 1; byte < 256; byte++)
        explorer.classes[byte] = (uint8_t)(explorer.classes[byte - 1] + begins[byte]);
    explorer.class_count = explorer.classes[255] + 1U;
    uint32_t *first = calloc(explorer.key_words, sizeof *first);
    if (first == NULL) return error_set(error, STATUS_MEMORY, "no memory for the JSON schema");
    first[KEY_LEXEME] = BEFORE_QUOTE;
    explorer.first = first;
    const enum status status = automaton_explore(automaton, arena, &explorer, error);
    free(first);
    return status;
}
