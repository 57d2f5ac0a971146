/* Finds the tokenizer.ggml.pre of a tokenizer.json.  Its pre_tokenizer is written as one line per step ("Digits",
 * "ByteLevel regex", "Split <pattern>") and looked up in a table.  The patterns come from the public tokenizer.json
 * files of the named models; the scanners are in src/token/pre_tokenizer_scan.c. */
#include <stdlib.h>
#include <string.h>

#include "lab/import/import_internal.h"

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TAIL         "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define TEKKEN_TAIL  "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER        "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER        "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"

static const struct {
    const char *steps;
    const char *pre; /* for models that ignore merges for whole tokens: pre_whole, else pre */
    const char *pre_whole;
} known[] = {
    {"ByteLevel regex", "gpt-2", NULL},
    {"Digits\nByteLevel regex", "smollm", NULL},
    {"Split " CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}" TAIL "\nByteLevel", "smaug-bpe", "llama-bpe"},
    {"Split " CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" TAIL "\nByteLevel", "qwen2", NULL},
    {"Split " CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|"
     "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+\nByteLevel",
     "qwen35", NULL},
    {"Split " UPPER "*" LOWER "+|" UPPER "+" LOWER "*|\\p{N}" TEKKEN_TAIL "\nByteLevel", NULL, "tekken"},
    {"Split " UPPER "*" LOWER "+" CONTRACTIONS "?|" UPPER "+" LOWER "*" CONTRACTIONS "?|\\p{N}{1,3}" TEKKEN_TAIL
     "\nByteLevel",
     "gpt-4o", "gpt-4o"},
    {"Split [\\r\\n]\nSplit \\s?\\p{L}+\nSplit \\s?\\p{P}+\nSplit "
     "[一-龥ࠀ-一가-퟿]+\nDigits\nByteLevel",
     "deepseek-coder", NULL},
    {"Split \\p{N}{1,3}\nSplit [一-龥぀-ゟ゠-ヿ]+\nSplit "
     "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
     "?[\\p{P}\\p{S}]+"
     "[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+\nByteLevel",
     "deepseek-v3", NULL},
};

struct steps {
    char text[2048];
    size_t length;
    bool fits;
};

static void steps_add(struct steps *steps, const char *text, size_t length) {
    steps->fits = steps->fits && length < sizeof steps->text - steps->length;
    if (!steps->fits) return;
    memcpy(steps->text + steps->length, text, length);
    steps->length += length;
    steps->text[steps->length] = '\0';
}

/* A pattern as JSON would write it without escaped characters: line ends become \r and \n, so that "[\r\n]" and its
 * escaped form compare equal. */
static void steps_add_pattern(struct steps *steps, const char *pattern) {
    for (const char *c = pattern; *c != '\0'; c++) {
        if (*c == '\n')
            steps_add(steps, "\\n", 2);
        else if (*c == '\r')
            steps_add(steps, "\\r", 2);
        else
            steps_add(steps, c, 1);
    }
}

static void describe(struct steps *steps, const json_t *step) {
    const char *type = json_string_value(json_object_get(step, "type"));
    if (type == NULL) type = "?";
    if (steps->length > 0) steps_add(steps, "\n", 1);
    steps_add(steps, type, strlen(type));
    if (strcmp(type, "ByteLevel") == 0) {
        /* older files do not have use_regex, which then is true */
        if (!json_is_false(json_object_get(step, "use_regex"))) steps_add(steps, " regex", 6);
        if (json_is_true(json_object_get(step, "add_prefix_space"))) steps_add(steps, " add_prefix_space", 17);
    } else if (strcmp(type, "Digits") == 0) {
        if (!json_is_true(json_object_get(step, "individual_digits"))) steps_add(steps, " together", 9);
    } else if (strcmp(type, "Split") == 0) {
        const json_t *pattern = json_object_get(step, "pattern");
        const char *regex = json_string_value(json_object_get(pattern, "Regex"));
        const char *behavior = json_string_value(json_object_get(step, "behavior"));
        bool isolated = behavior != NULL && strcmp(behavior, "Isolated") == 0;
        bool removed = behavior != NULL && strcmp(behavior, "Removed") == 0; /* inverted: the same cut */
        bool inverted = json_is_true(json_object_get(step, "invert"));
        steps_add(steps, isolated || (removed && inverted) ? " " : " otherwise ",
                  isolated || (removed && inverted) ? 1 : 11);
        if (regex != NULL) steps_add_pattern(steps, regex);
    }
}

enum status import_find_pre(struct import *import, const char **pre) {
    if (import->options->pre != NULL) {
        *pre = import->options->pre;
        return STATUS_OK;
    }
    const json_t *root = import->tokenizer.object, *step = import_member(root, "pre_tokenizer");
    const json_t *list = json_object_get(step, "pretokenizers");
    bool whole = json_is_true(json_object_get(json_object_get(root, "model"), "ignore_merges"));
    struct steps steps = {.fits = true};
    if (!json_is_array(list)) describe(&steps, step);
    for (size_t i = 0; i < json_array_size(list); i++) describe(&steps, json_array_get(list, i));
    for (size_t i = 0; steps.fits && i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(known[i].steps, steps.text) != 0) continue;
        *pre = whole ? known[i].pre_whole : known[i].pre;
        if (*pre != NULL) return STATUS_OK;
        return import_refuse(import, "tokenizer.json", "model.ignore_merges",
                             "%s is not what this pre-tokenizer (%s) goes with; --pre NAME decides",
                             whole ? "true" : "false", known[i].pre != NULL ? known[i].pre : known[i].pre_whole);
    }
    return import_refuse(import, "tokenizer.json", "pre_tokenizer",
                         "not one that loam knows (%.120s); --pre NAME decides", steps.text);
}
