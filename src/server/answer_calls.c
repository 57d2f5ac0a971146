#include "server/answer_calls.h"

#include <stdlib.h>
#include <string.h>

#include "format/json.h"

const struct answer_call_tags *answer_call_tags(enum chat_syntax syntax, size_t index) {
    enum { TAGS_MAX = 8 };
    static const struct answer_call_tags hermes = {"<tool_call>", "</tool_call>", false};
    static const struct answer_call_tags tags[][TAGS_MAX] = {
        [CHAT_HERMES] = {{NULL, NULL, false}},
        [CHAT_QWEN_XML] = {{NULL, NULL, false}},
        [CHAT_LLAMA3] = {{"<|python_tag|>", NULL, false}},
        [CHAT_MISTRAL] = {{"[TOOL_CALLS]", NULL, false}},
        [CHAT_HARMONY] = {{"<|start|>assistant to=functions.", "<|call|>", true},
                          {"<|channel|>commentary to=functions.", "<|call|>", true},
                          {"<|start|>assistant<|channel|>commentary to=functions.", "<|call|>", true},
                          {"<|start|>assistant<|channel|>final<|message|>", "", false},
                          {"<|channel|>final<|message|>", "", false},
                          {"<|start|>assistant<|channel|>commentary<|message|>", "", false},
                          {"<|channel|>commentary<|message|>", "", false},
                          {"<|end|>", "", false}},
        [CHAT_GEMMA] = {{"<|tool_call>", "<tool_call|>", false},
                        {"<start_function_call>", "<end_function_call>", false}},
        [CHAT_GLM] = {{NULL, NULL, false}},
    };
    if (index < TAGS_MAX && tags[syntax][index].begin != NULL) return &tags[syntax][index];
    return index == 0 ? &hermes : NULL;
}

struct answer_call_tags answer_thought_tags(enum chat_syntax syntax) {
    if (syntax == CHAT_HARMONY) return (struct answer_call_tags){"<|channel|>analysis<|message|>", "<|end|>", false};
    if (syntax == CHAT_GEMMA) return (struct answer_call_tags){"<|channel>thought", "<channel|>", false};
    return (struct answer_call_tags){"<think>", "</think>", false};
}

bool answer_has_mark(enum chat_syntax syntax, const char *text, size_t length) {
    enum { MARKS_MAX = 9 };
    static const char *const common[] = {"<think>", "</think>", "<tool_call>", "</tool_call>"};
    static const char *const marks[][MARKS_MAX] = {
        [CHAT_HERMES] = {NULL},
        [CHAT_QWEN_XML] = {NULL},
        [CHAT_LLAMA3] = {"<|python_tag|>"},
        [CHAT_MISTRAL] = {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"},
        [CHAT_HARMONY] = {"<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>", "<|call|>"},
        [CHAT_GEMMA] = {"<|tool_call>", "<tool_call|>", "<|\"|>", "<start_function_call>", "<end_function_call>",
                        "<escape>", "<|channel>", "<channel|>"},
        [CHAT_GLM] = {"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"},
    };
    for (size_t i = 0; i < sizeof common / sizeof common[0]; i++)
        if (strlen(common[i]) == length && memcmp(common[i], text, length) == 0) return true;
    for (size_t i = 0; i < MARKS_MAX && marks[syntax][i] != NULL; i++)
        if (strlen(marks[syntax][i]) == length && memcmp(marks[syntax][i], text, length) == 0) return true;
    return false;
}

/* ---- scanning ---- */

struct scan {
    const char *text;
    size_t length, at;
};

static void skip_blanks(struct scan *scan) {
    while (scan->at < scan->length && strchr(" \n\t\r", scan->text[scan->at]) != NULL && scan->text[scan->at] != '\0')
        scan->at++;
}

static bool skip(struct scan *scan, const char *word) {
    const size_t length = strlen(word);
    if (scan->length - scan->at < length || memcmp(scan->text + scan->at, word, length) != 0) return false;
    scan->at += length;
    return true;
}

/* The text up to word, which is passed; NULL: it does not come. */
static const char *take_until(struct scan *scan, const char *word, size_t *length) {
    const char *begin = scan->text + scan->at;
    const char *end = memmem(begin, scan->length - scan->at, word, strlen(word));
    if (end == NULL) return NULL;
    *length = (size_t)(end - begin);
    scan->at += *length + strlen(word);
    return begin;
}

static json_t *trimmed(const char *text, size_t length) {
    while (length > 0 && strchr(" \n\t\r", text[length - 1]) != NULL) length--;
    while (length > 0 && strchr(" \n\t\r", *text) != NULL) text++, length--;
    return json_stringn(text, length);
}

/* One line end on each side is the syntax's. */
static json_t *between_lines(const char *text, size_t length) {
    if (length > 0 && text[0] == '\n') text++, length--;
    if (length > 0 && text[length - 1] == '\n') length--;
    return json_stringn(text, length);
}

static json_t *parse_json(const char *text, size_t length) {
    json_t *value = NULL;
    if (json_parse_bytes(text, length, "tool call", STATUS_USAGE, &value, NULL) != STATUS_OK) return NULL;
    return value;
}

/* As Python's templates write them. */
static json_t *python_value(const char *text) {
    return strcmp(text, "True") == 0    ? json_true()
           : strcmp(text, "False") == 0 ? json_false()
           : strcmp(text, "None") == 0  ? json_null()
                                        : NULL;
}

/* A number, truth value, list or object as such; what is no JSON, or is text there, as text. */
static json_t *value_of(json_t *text) {
    char *wrapped = NULL;
    json_t *value = text != NULL ? python_value(json_string_value(text)) : NULL;
    const size_t length = json_string_length(text);
    if (text != NULL && value == NULL && (wrapped = malloc(length + 3)) != NULL) {
        wrapped[0] = '[';
        memcpy(wrapped + 1, json_string_value(text), length);
        memcpy(wrapped + 1 + length, "]", 2);
        json_t *list = parse_json(wrapped, length + 2);
        if (json_array_size(list) == 1 && !json_is_string(json_array_get(list, 0)))
            value = json_incref(json_array_get(list, 0));
        json_decref(list);
    }
    free(wrapped);
    if (value == NULL) return text;
    json_decref(text);
    return value;
}

/* Takes both; false: one is missing, or the name is empty. */
static bool add_call(json_t *calls, json_t *name, json_t *arguments) {
    char *text = json_is_string(arguments)   ? strdup(json_string_value(arguments))
                 : json_is_object(arguments) ? json_dumps(arguments, 0)
                                             : NULL;
    const bool is_call = json_is_string(name) && json_string_length(name) > 0 && text != NULL;
    if (is_call) json_array_append_new(calls, json_pack("{s:O, s:s}", "name", name, "arguments", text));
    free(text);
    json_decref(name);
    json_decref(arguments);
    return is_call;
}

/* ---- the syntaxes ---- */

/* {"name": "...", "arguments" or "parameters": {...}} */
static bool add_object(json_t *calls, const json_t *call) {
    json_t *given = json_object_get(call, "arguments");
    if (given == NULL) given = json_object_get(call, "parameters");
    return add_call(calls, json_incref(json_object_get(call, "name")),
                    given != NULL ? json_incref(given) : json_object());
}

static bool parse_objects(json_t *calls, const char *text, size_t length) {
    json_t *whole = parse_json(text, length);
    bool all = json_is_object(whole) && add_object(calls, whole);
    if (json_array_size(whole) > 0) all = true;
    for (size_t i = 0; i < json_array_size(whole) && all; i++) all = add_object(calls, json_array_get(whole, i));
    json_decref(whole);
    return all;
}

/* Llama 3: objects, several parted by semicolons.  A brace in a text does not count. */
static bool parse_parted(json_t *calls, const char *text, size_t length) {
    size_t begin = 0, depth = 0;
    bool in_text = false;
    for (size_t i = 0; i < length; i++) {
        const char c = text[i];
        if (in_text && c == '\\') i++;
        if (c == '"') in_text = !in_text;
        if (in_text) continue;
        depth += c == '{' || c == '[';
        depth -= (c == '}' || c == ']') && depth > 0;
        if (c != ';' || depth > 0) continue;
        if (!parse_objects(calls, text + begin, i - begin)) return false;
        begin = i + 1;
    }
    return parse_objects(calls, text + begin, length - begin);
}

/* [{...}, ...], or NAME[ARGS]{...}, or NAME{...}; some have [CALL_ID]ID between. */
static bool parse_mistral(json_t *calls, struct scan scan) {
    skip_blanks(&scan);
    if (scan.at < scan.length && scan.text[scan.at] == '[')
        return parse_objects(calls, scan.text + scan.at, scan.length - scan.at);
    const char *begin = scan.text + scan.at;
    const size_t rest = scan.length - scan.at;
    const char *brace = memchr(begin, '{', rest), *bracket = memchr(begin, '[', rest);
    if (brace == NULL) return false;
    const char *end = bracket != NULL && bracket < brace ? bracket : brace;
    return add_call(calls, trimmed(begin, (size_t)(end - begin)), parse_json(brace, rest - (size_t)(brace - begin)));
}

/* <function=NAME> <parameter=KEY>VALUE</parameter> ... </function> */
static bool parse_xml(json_t *calls, struct scan scan) {
    size_t length;
    bool has_one = false;
    for (skip_blanks(&scan); skip(&scan, "<function="); skip_blanks(&scan)) {
        const char *text = take_until(&scan, ">", &length);
        if (text == NULL) return false;
        json_t *name = trimmed(text, length), *arguments = json_object();
        for (skip_blanks(&scan); skip(&scan, "<parameter="); skip_blanks(&scan)) {
            size_t key_length;
            const char *key = take_until(&scan, ">", &key_length);
            text = key != NULL ? take_until(&scan, "</parameter>", &length) : NULL;
            if (text == NULL) break;
            json_object_setn_new(arguments, key, key_length, value_of(between_lines(text, length)));
        }
        if (!skip(&scan, "</function>")) {
            json_decref(name);
            json_decref(arguments);
            return false;
        }
        if (!add_call(calls, name, arguments)) return false;
        has_one = true;
    }
    return has_one && scan.at == scan.length;
}

/* NAME <arg_key>KEY</arg_key> <arg_value>VALUE</arg_value> ... */
static bool parse_glm(json_t *calls, struct scan scan) {
    size_t length, key_length;
    const char *begin = scan.text, *key = memmem(begin, scan.length, "<arg_key>", 9);
    const size_t name_length = key != NULL ? (size_t)(key - begin) : scan.length;
    json_t *name = trimmed(begin, name_length), *arguments = json_object();
    scan.at = name_length;
    bool is_whole = memchr(begin, '<', name_length) == NULL && memchr(begin, '{', name_length) == NULL;
    for (skip_blanks(&scan); is_whole && scan.at < scan.length; skip_blanks(&scan)) {
        key = skip(&scan, "<arg_key>") ? take_until(&scan, "</arg_key>", &key_length) : NULL;
        skip_blanks(&scan);
        const char *text =
            key != NULL && skip(&scan, "<arg_value>") ? take_until(&scan, "</arg_value>", &length) : NULL;
        is_whole = text != NULL;
        if (is_whole) json_object_setn_new(arguments, key, key_length, value_of(json_stringn(text, length)));
    }
    if (is_whole) return add_call(calls, name, arguments);
    json_decref(name);
    json_decref(arguments);
    return false;
}

/* ... to=functions.NAME ...<|message|>{...} */
static bool parse_harmony(json_t *calls, struct scan scan) {
    size_t length;
    if (take_until(&scan, "to=functions.", &length) == NULL) return false;
    const char *name = scan.text + scan.at;
    size_t name_length = 0;
    while (scan.at + name_length < scan.length && strchr(" <\n", name[name_length]) == NULL) name_length++;
    if (take_until(&scan, "<|message|>", &length) == NULL) return false;
    return add_call(calls, json_stringn(name, name_length), parse_json(scan.text + scan.at, scan.length - scan.at));
}

/* call:NAME{KEY:VALUE,...}: objects and lists of these within; a text stands between <|"|> or <escape>; all else is
 * JSON. */
enum { NESTED_MAX = 32 };

/* The text between two quotes of these kinds; NULL: none begins here, or its end is missing. */
static const char *take_quoted(struct scan *scan, size_t *length) {
    static const char *const quotes[] = {"<|\"|>", "<escape>"};
    for (size_t i = 0; i < sizeof quotes / sizeof *quotes; i++)
        if (skip(scan, quotes[i])) return take_until(scan, quotes[i], length);
    return NULL;
}

static json_t *take_scalar(struct scan *scan) {
    const size_t begin = scan->at;
    bool in_text = false;
    for (; scan->at < scan->length; scan->at++) {
        const char c = scan->text[scan->at];
        if (!in_text && (c == ',' || c == '}' || c == ']')) break;
        if (in_text && c == '\\') scan->at++;
        if (c == '"') in_text = !in_text;
    }
    if (scan->at > scan->length) scan->at = scan->length;
    const char *text = scan->text + begin;
    const size_t length = scan->at - begin;
    if (length > 0 && text[0] == '"') { /* a text as JSON has it */
        json_error_t where;
        return json_loadb(text, length, JSON_DECODE_ANY, &where);
    }
    return value_of(trimmed(text, length));
}

static bool take_gemma_key(struct scan *scan, const char **key, size_t *length) {
    skip_blanks(scan);
    *key = take_quoted(scan, length);
    if (*key == NULL && skip(scan, "\"")) *key = take_until(scan, "\"", length);
    if (*key == NULL) {
        *key = take_until(scan, ":", length);
        return *key != NULL;
    }
    skip_blanks(scan);
    return skip(scan, ":");
}

static json_t *take_gemma_value(struct scan *scan, unsigned depth);

/* Behind the bracket that begins it.  NULL: its end is missing, or it nests too deep. */
static json_t *take_gemma_items(struct scan *scan, const char *end, unsigned depth) {
    const bool is_object = end[0] == '}';
    json_t *items = is_object ? json_object() : json_array();
    bool is_whole = depth < NESTED_MAX;
    skip_blanks(scan);
    while (is_whole && !skip(scan, end)) {
        const char *key = NULL;
        size_t key_length = 0;
        is_whole = !is_object || take_gemma_key(scan, &key, &key_length);
        json_t *value = is_whole ? take_gemma_value(scan, depth + 1) : NULL;
        is_whole = value != NULL && (is_object ? json_object_setn_new(items, key, key_length, value)
                                               : json_array_append_new(items, value)) == 0;
        skip_blanks(scan);
        if (!skip(scan, ",") && (scan->at == scan->length || scan->text[scan->at] != end[0])) is_whole = false;
        skip_blanks(scan);
    }
    if (is_whole) return items;
    json_decref(items);
    return NULL;
}

static json_t *take_gemma_value(struct scan *scan, unsigned depth) {
    size_t length;
    skip_blanks(scan);
    if (skip(scan, "{")) return take_gemma_items(scan, "}", depth);
    if (skip(scan, "[")) return take_gemma_items(scan, "]", depth);
    const char *text = take_quoted(scan, &length);
    return text != NULL ? json_stringn(text, length) : take_scalar(scan);
}

static bool parse_gemma(json_t *calls, struct scan scan) {
    size_t length;
    skip_blanks(&scan);
    const char *name = skip(&scan, "call:") ? take_until(&scan, "{", &length) : NULL;
    if (name == NULL) return false;
    json_t *arguments = take_gemma_items(&scan, "}", 0);
    return arguments != NULL && add_call(calls, trimmed(name, length), arguments);
}

json_t *answer_calls_parse(enum chat_syntax syntax, const char *text, size_t length) {
    const struct scan scan = {.text = text, .length = length};
    json_t *calls = json_array();
    bool is_call = false;
    switch (syntax) {
    case CHAT_HERMES: is_call = parse_objects(calls, text, length); break;
    case CHAT_QWEN_XML: is_call = parse_xml(calls, scan); break;
    case CHAT_LLAMA3: is_call = parse_parted(calls, text, length); break;
    case CHAT_MISTRAL: is_call = parse_mistral(calls, scan); break;
    case CHAT_HARMONY: is_call = parse_harmony(calls, scan); break;
    case CHAT_GEMMA: is_call = parse_gemma(calls, scan); break;
    case CHAT_GLM: is_call = parse_glm(calls, scan); break;
    }
    if (is_call) return calls;
    json_decref(calls);
    return NULL;
}
