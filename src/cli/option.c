#include "cli/option.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "cli/command.h"
#include "cli/foreign_option.h"

enum { WORD_MAX = 63 };

size_t edit_distance(const char *a, const char *b) {
    size_t rows = strlen(a), columns = strlen(b);
    if (rows > WORD_MAX || columns > WORD_MAX) return WORD_MAX;
    size_t d[WORD_MAX + 1][WORD_MAX + 1];
    for (size_t i = 0; i <= rows; i++) d[i][0] = i;
    for (size_t j = 0; j <= columns; j++) d[0][j] = j;
    for (size_t i = 1; i <= rows; i++)
        for (size_t j = 1; j <= columns; j++) {
            size_t best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (d[i - 1][j] + 1 < best) best = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < best) best = d[i][j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && d[i - 2][j - 2] + 1 < best)
                best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    return d[rows][columns];
}

const char *option_environment_name(const struct option_spec *spec, char *buffer, size_t buffer_bytes) {
    snprintf(buffer, buffer_bytes, "LOAM_ARG_%s", spec->name);
    for (char *c = buffer; *c != '\0'; c++) *c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
    return buffer;
}

static bool belongs(const struct option_spec *spec, const struct command *command) {
    return (spec->commands >> command->id & 1) != 0;
}

/* `word` is what stood on the command line up to '=', dashes included. */
static bool names(const struct option_spec *spec, const char *word) {
    if (word[1] == '-')
        return strcmp(word + 2, spec->name) == 0 || (spec->alias != NULL && strcmp(word + 2, spec->alias) == 0);
    return spec->short_name != NULL && strcmp(word + 1, spec->short_name) == 0;
}

/* command: NULL: of any. */
static const struct option_spec *find(const struct program *program, const struct command *command, const char *word) {
    const struct option_spec *spec;
    for (size_t i = 0; (spec = program_option(program, i)) != NULL; i++)
        if ((command == NULL || belongs(spec, command)) && names(spec, word)) return spec;
    return NULL;
}

/* The option of this command whose name is nearest; NULL when none is near enough to be meant. */
static const struct option_spec *nearest(const struct options *options, const char *word) {
    const char *bare = word + (word[1] == '-' ? 2 : 1);
    size_t length = strlen(bare);
    if (length < 2) return NULL;
    const struct option_spec *best = NULL, *spec;
    size_t best_distance = length / 3 + 1;
    for (size_t i = 0; (spec = program_option(options->program, i)) != NULL; i++) {
        if (!belongs(spec, options->command)) continue;
        size_t distance = edit_distance(bare, spec->name);
        if (spec->alias != NULL && edit_distance(bare, spec->alias) < distance)
            distance = edit_distance(bare, spec->alias);
        if (length >= 3 && strncmp(bare, spec->name, length) == 0) distance = 1; /* cut short */
        if (distance <= best_distance && (best == NULL || distance < best_distance)) {
            best = spec;
            best_distance = distance;
        }
    }
    return best;
}

static enum status refuse_unknown(const struct options *options, const char *word, struct error *error) {
    const struct command *command = options->command;
    const struct option_spec *near = nearest(options, word);
    const struct option_spec *elsewhere = find(options->program, NULL, word);
    const char *hint = elsewhere == NULL ? foreign_option_hint(word) : NULL;
    if (hint != NULL) return error_set(error, STATUS_USAGE, "%s: loam has no '%s': %s", command->name, word, hint);
    if (elsewhere != NULL && near == NULL)
        for (size_t i = 0; i < COMMAND_COUNT; i++)
            if (belongs(elsewhere, &options->program->commands[i]))
                return error_set(error, STATUS_USAGE, "%s: '%s' is an option of '%s %s', not of this command",
                                 command->name, word, options->program->name, options->program->commands[i].name);
    if (near != NULL)
        return error_set(error, STATUS_USAGE, "%s: unknown option '%s'; did you mean '--%s'?", command->name, word,
                         near->name);
    return error_set(error, STATUS_USAGE, "%s: unknown option '%s'; '%s help %s' lists them", command->name, word,
                     options->program->name, command->name);
}

/* ---- values ---- */

/* shown: the name as the user wrote it: "--temp", or "LOAM_ARG_TEMP" from the environment. */
struct place {
    const struct option_spec *spec;
    const struct command *command;
    const char *shown;
};

static bool takes_list(const struct place *place) {
    const enum argument_kind kind = place->spec->kind;
    return kind == ARGUMENT_WORDS || kind == ARGUMENT_COUNTS || (place->spec->lists >> place->command->id & 1) != 0;
}

static enum status bad_value(const struct place *place, const char *text, const char *expected, struct error *error) {
    return error_set(error, STATUS_USAGE, "%s: found '%.80s', expected %s", place->shown, text, expected);
}

static enum status out_of_range(const struct place *place, const char *text, struct error *error) {
    return error_set(error, STATUS_USAGE, "%s: found %.80s, expected %.16g to %.16g", place->shown, text,
                     place->spec->min, place->spec->max);
}

static bool in_range(const struct option_spec *spec, double value) {
    return (spec->min == 0 && spec->max == 0) || (value >= spec->min && value <= spec->max);
}

/* The index of word in "a|b|c"; false when it is none of them. */
static bool choice_find(const char *choices, const char *word, size_t length, uint64_t *index) {
    *index = 0;
    for (const char *c = choices; *c != '\0'; (*index)++) {
        size_t n = strcspn(c, "|");
        if (n == length && strncasecmp(c, word, n) == 0) return true;
        c += n + (c[n] == '|');
    }
    return false;
}

static enum status list_append(struct option_value *value, const struct place *place, uint64_t item,
                               struct error *error) {
    if (value->list_count == OPTION_LIST_MAX)
        return error_set(error, STATUS_USAGE, "%s: more than %d values", place->shown, OPTION_LIST_MAX);
    value->list[value->list_count++] = item;
    return STATUS_OK;
}

static enum status parse_list(struct option_value *value, const struct place *place, const char *text,
                              struct error *error) {
    const struct option_spec *spec = place->spec;
    for (const char *c = text;;) {
        size_t length = strcspn(c, ",");
        uint64_t item;
        if (spec->choices != NULL) {
            if (!choice_find(spec->choices, c, length, &item)) return bad_value(place, text, spec->choices, error);
        } else {
            char part[32];
            if (length >= sizeof part) return bad_value(place, text, "numbers by comma", error);
            memcpy(part, c, length);
            part[length] = '\0';
            if (!size_parse(part, &item)) return bad_value(place, text, "numbers by comma", error);
            if (!in_range(spec, (double)item)) return out_of_range(place, part, error);
        }
        TRY(list_append(value, place, item, error));
        if (c[length] == '\0') return STATUS_OK;
        c += length + 1;
    }
}

/* -f a -f b are two files. */
static enum status add_text(struct option_value *value, const struct place *place, const char *text,
                            struct error *error) {
    TRY(list_append(value, place, 0, error));
    value->texts[value->list_count - 1] = text;
    value->text = value->texts[0];
    return STATUS_OK;
}

static enum status parse_flag(struct option_value *value, const struct place *place, const char *text,
                              struct error *error) {
    static const char *const words[] = {"0", "off", "false", "no", "", "1", "on", "true", "yes"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcasecmp(text, words[i]) == 0) {
            value->count = i >= 5;
            return STATUS_OK;
        }
    return bad_value(place, text, "1 or 0", error);
}

/* --set a=b --set c=d is --set a=b,c=d. */
static enum status join_text(struct option_value *value, const char *before, const char *text, struct error *error) {
    if (before == NULL) return STATUS_OK;
    char *joined;
    if (asprintf(&joined, "%s,%s", before, text) < 0) return error_set(error, STATUS_MEMORY, "out of memory");
    free(value->joined);
    value->joined = joined;
    value->text = joined;
    return STATUS_OK;
}

static enum status parse_value(struct option_value *value, const struct place *place, const char *text,
                               enum option_source source, struct error *error) {
    const struct option_spec *spec = place->spec;
    bool again = value->present && value->source == source;
    const char *before = again ? value->text : NULL;
    if (!again) value->list_count = 0; /* a repeated list grows */
    value->present = true;
    value->source = source;
    value->text = text;
    char *end;
    uint64_t number;
    errno = 0;
    if (takes_list(place)) return parse_list(value, place, text, error);
    switch (spec->kind) {
    case ARGUMENT_NONE: return parse_flag(value, place, text, error);
    case ARGUMENT_TEXT: return STATUS_OK;
    case ARGUMENT_TEXTS: return join_text(value, before, text, error);
    case ARGUMENT_FILES: return add_text(value, place, text, error);
    case ARGUMENT_WORD:
        if (!choice_find(spec->choices, text, strlen(text), &value->count))
            return bad_value(place, text, spec->choices, error);
        return STATUS_OK;
    case ARGUMENT_COUNT:
        if (spec->choices != NULL &&
            (choice_find(spec->choices, text, strlen(text), &number) || strcmp(text, "-1") == 0)) {
            value->count = UINT64_MAX;
            return STATUS_OK;
        }
        if (!size_parse(text, &value->count))
            return bad_value(place, text, spec->choices != NULL ? "a whole number or all" : "a whole number (K, M, G)",
                             error);
        return in_range(spec, (double)value->count) ? STATUS_OK : out_of_range(place, text, error);
    case ARGUMENT_INTEGER:
        if (size_parse(text, &number) && number <= INT64_MAX) {
            value->integer = (int64_t)number;
        } else {
            value->integer = strtoll(text, &end, 10);
            if (*text == '\0' || *end != '\0' || errno != 0)
                return bad_value(place, text, "a whole number (K, M, G)", error);
        }
        return in_range(spec, (double)value->integer) ? STATUS_OK : out_of_range(place, text, error);
    case ARGUMENT_NUMBER:
        value->number = strtod(text, &end);
        if (*text == '\0' || *end != '\0' || errno != 0 || !isfinite(value->number))
            return bad_value(place, text, "a number", error);
        return in_range(spec, value->number) ? STATUS_OK : out_of_range(place, text, error);
    case ARGUMENT_WORDS:
    case ARGUMENT_COUNTS: break; /* lists */
    }
    return STATUS_OK;
}

/* ---- the command line ---- */

/* argv[*index] is an option; takes its argument too. */
static enum status parse_option(struct options *options, int argc, char *const *argv, int *index, struct error *error) {
    const char *whole = argv[*index];
    char word[WORD_MAX + 1];
    const char *equals = whole[1] == '-' ? strchr(whole, '=') : NULL;
    size_t length = equals != NULL ? (size_t)(equals - whole) : strlen(whole);
    snprintf(word, sizeof word, "%.*s", (int)(length < WORD_MAX ? length : WORD_MAX), whole);
    const struct option_spec *spec = find(options->program, options->command, word);
    if (spec == NULL) return refuse_unknown(options, word, error);
    const char *text = equals != NULL ? equals + 1 : NULL;
    if (spec->kind == ARGUMENT_NONE) {
        if (text == NULL) text = "1";
    } else if (text == NULL) {
        if (*index + 1 >= argc)
            return error_set(error, STATUS_USAGE, "%s: %s needs %s", options->command->name, word, spec->argument);
        text = argv[++*index];
    }
    struct place place = {spec, options->command, word};
    return parse_value(&options->values[spec->id], &place, text, SOURCE_ARGUMENT, error);
}

static enum status parse_rest(struct options *options, enum option_source source, struct error *error) {
    const struct option_spec *spec;
    for (size_t i = 0; (spec = program_option(options->program, i)) != NULL; i++) {
        struct option_value *value = &options->values[spec->id];
        if (!belongs(spec, options->command) || value->present) continue;
        char name[WORD_MAX + 1];
        const char *text = spec->default_text;
        if (source == SOURCE_ENVIRONMENT)
            text = spec->id == OPTION_HELP ? NULL : getenv(option_environment_name(spec, name, sizeof name));
        else
            snprintf(name, sizeof name, "--%s", spec->name);
        struct place place = {spec, options->command, name};
        if (text != NULL) TRY(parse_value(value, &place, text, source, error));
    }
    return STATUS_OK;
}

enum status options_parse(struct options *options, const struct program *program, enum command_id id, int argc,
                          char *const *argv, struct error *error) {
    const struct command *command = &program->commands[id];
    *options = (struct options){.program = program, .command = command};
    options->positionals = calloc((size_t)argc + 1, sizeof *options->positionals);
    if (options->positionals == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    bool only_positionals = false;
    for (int i = 1; i < argc; i++) {
        if (only_positionals || argv[i][0] != '-' || argv[i][1] == '\0')
            options->positionals[options->positional_count++] = argv[i];
        else if (strcmp(argv[i], "--") == 0)
            only_positionals = true;
        else
            TRY(parse_option(options, argc, argv, &i, error));
    }
    if (option_flag(options, OPTION_HELP)) return STATUS_OK; /* help never fails over the rest */
    if (options->positional_count > command->positionals_max)
        return error_set(error, STATUS_USAGE, "%s: unexpected argument '%s'; usage: %s %s %s", command->name,
                         options->positionals[command->positionals_max], program->name, command->name, command->usage);
    if (options->positional_count < command->positionals_min)
        return error_set(error, STATUS_USAGE, "%s: too few arguments; usage: %s %s %s", command->name, program->name,
                         command->name, command->usage);
    TRY(parse_rest(options, SOURCE_ENVIRONMENT, error));
    return parse_rest(options, SOURCE_DEFAULT, error);
}

void options_deinit(struct options *options) {
    for (size_t i = 0; i < OPTION_LIMIT; i++) free(options->values[i].joined);
    free(options->positionals);
    *options = (struct options){0};
}

bool option_flag(const struct options *options, unsigned id) {
    return options->values[id].present && options->values[id].count != 0;
}

bool option_given(const struct options *options, unsigned id) {
    return options->values[id].present && options->values[id].source != SOURCE_DEFAULT;
}

const char *option_text(const struct options *options, unsigned id) {
    return options->values[id].present ? options->values[id].text : NULL;
}

size_t option_texts(const struct options *options, unsigned id, const char *texts[OPTION_LIST_MAX]) {
    const struct option_value *value = &options->values[id];
    if (!value->present) return 0;
    texts[0] = value->text;
    for (size_t i = 1; i < value->list_count; i++) texts[i] = value->texts[i];
    return value->list_count > 0 ? value->list_count : 1;
}

uint64_t option_count(const struct options *options, unsigned id) {
    ASSERT(options->values[id].present);
    return options->values[id].count;
}

int64_t option_integer(const struct options *options, unsigned id) {
    ASSERT(options->values[id].present);
    return options->values[id].integer;
}

double option_number(const struct options *options, unsigned id) {
    ASSERT(options->values[id].present);
    return options->values[id].number;
}

const struct option_value *option_list(const struct options *options, unsigned id) { return &options->values[id]; }
