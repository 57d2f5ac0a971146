/* Expressions, with the precedence of Jinja: a if b else c, or, and, not, comparisons, + -, ~, * / // %, **, signs,
 * then attributes, items and calls, then filters and tests. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "jinja/node_internal.h"

enum { PARSE_DEPTH_MAX = 100, NAMES_MAX = 256 };

void jinja_parser_fail(struct jinja_parser *parser, const char *format, ...) {
    if (parser->status != STATUS_OK) return;
    char message[200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    parser->status = error_set(parser->error, STATUS_UNSUPPORTED, "tokenizer.chat_template, line %u: %s",
                               parser->token.line, message);
    parser->token = (struct jinja_token){.kind = TOKEN_END, .line = parser->token.line, .text = ""};
}

static void fail_memory(struct jinja_parser *parser) {
    if (parser->status == STATUS_OK)
        parser->status = error_set(parser->error, STATUS_MEMORY, "no memory for the chat template");
}

struct jinja_node *jinja_node_create(struct jinja_parser *parser, enum jinja_node_kind kind) {
    if (parser->status != STATUS_OK) return NULL;
    struct jinja_node *node = arena_allocate(&parser->program->arena, sizeof *node);
    if (node == NULL) {
        fail_memory(parser);
        return NULL;
    }
    node->kind = kind;
    node->line = parser->token.line;
    return node;
}

void jinja_node_add(struct jinja_parser *parser, struct jinja_node *node, const struct jinja_node *item,
                    const char *name, size_t *capacity) {
    if (parser->status != STATUS_OK || node == NULL || (item == NULL && name == NULL)) return;
    if (node->count == *capacity) {
        const size_t wanted = 2 * *capacity + 4;
        const struct jinja_node **items = arena_array(&parser->program->arena, wanted, sizeof *items);
        const char **names = arena_array(&parser->program->arena, wanted, sizeof *names);
        if (items == NULL || names == NULL) {
            fail_memory(parser);
            return;
        }
        if (node->count > 0) {
            memcpy(items, node->items, node->count * sizeof *items);
            memcpy(names, node->names, node->count * sizeof *names);
        }
        node->items = items;
        node->names = names;
        *capacity = wanted;
    }
    node->names[node->count] = name;
    node->items[node->count++] = item;
}

void jinja_parser_advance(struct jinja_parser *parser) {
    if (parser->status != STATUS_OK) return;
    parser->status = jinja_next_token(&parser->lexer, &parser->token);
    if (parser->status != STATUS_OK) parser->token = (struct jinja_token){.kind = TOKEN_END, .text = ""};
}

bool jinja_parser_is(const struct jinja_parser *parser, enum jinja_token_kind kind, const char *text) {
    return parser->status == STATUS_OK && parser->token.kind == kind &&
           (text == NULL || strcmp(parser->token.text, text) == 0);
}

bool jinja_parser_skip(struct jinja_parser *parser, enum jinja_token_kind kind, const char *text) {
    if (!jinja_parser_is(parser, kind, text)) return false;
    jinja_parser_advance(parser);
    return true;
}

void jinja_parser_expect(struct jinja_parser *parser, enum jinja_token_kind kind, const char *text) {
    if (!jinja_parser_skip(parser, kind, text))
        jinja_parser_fail(parser, "expected '%s'", text != NULL ? text : "the end of the tag");
}

const char *jinja_parser_word(struct jinja_parser *parser) {
    const char *word = parser->token.text;
    if (jinja_parser_is(parser, TOKEN_WORD, NULL)) {
        jinja_parser_advance(parser);
        return word;
    }
    jinja_parser_fail(parser, "expected a name");
    return "";
}

static bool is_mark(const struct jinja_parser *parser, const char *mark) {
    return jinja_parser_is(parser, TOKEN_MARK, mark);
}

static bool skip_mark(struct jinja_parser *parser, const char *mark) {
    return jinja_parser_skip(parser, TOKEN_MARK, mark);
}

static struct jinja_node *node_of(struct jinja_parser *parser, enum jinja_node_kind kind, const struct jinja_node *left,
                                  const struct jinja_node *right) {
    struct jinja_node *node = jinja_node_create(parser, kind);
    if (node == NULL) return NULL;
    node->left = left;
    node->right = right;
    return node;
}

static struct jinja_node *constant(struct jinja_parser *parser, struct jinja_value value) {
    struct jinja_node *node = jinja_node_create(parser, NODE_CONSTANT);
    if (node != NULL) node->constant = value;
    return node;
}

/* ---- primaries ---- */

static void note_name(struct jinja_parser *parser, const char *name) {
    struct jinja_program *program = parser->program;
    if (program->name_count == NAMES_MAX) return;
    for (size_t i = 0; i < program->name_count; i++)
        if (strcmp(program->names[i], name) == 0) return;
    if (program->name_count == program->name_capacity) {
        const size_t capacity = 2 * program->name_capacity + 16;
        const char **names = arena_array(&program->arena, capacity, sizeof *names);
        if (names == NULL) {
            fail_memory(parser);
            return;
        }
        if (program->name_count > 0) memcpy(names, program->names, program->name_count * sizeof *names);
        program->names = names;
        program->name_capacity = capacity;
    }
    program->names[program->name_count++] = name;
}

static const struct jinja_node *parse_word(struct jinja_parser *parser) {
    static const struct {
        const char *word;
        struct jinja_value value;
    } constants[] = {{"true", {.kind = JINJA_BOOL, .boolean = true}},
                     {"True", {.kind = JINJA_BOOL, .boolean = true}},
                     {"false", {.kind = JINJA_BOOL}},
                     {"False", {.kind = JINJA_BOOL}},
                     {"none", {.kind = JINJA_NONE}},
                     {"None", {.kind = JINJA_NONE}}};
    const char *word = jinja_parser_word(parser);
    for (size_t i = 0; i < sizeof constants / sizeof constants[0]; i++)
        if (strcmp(constants[i].word, word) == 0) return constant(parser, constants[i].value);
    struct jinja_node *node = jinja_node_create(parser, NODE_NAME);
    if (node == NULL) return NULL;
    node->name = word;
    note_name(parser, word);
    return node;
}

/* "a" "b" is one text. */
static const struct jinja_node *parse_text(struct jinja_parser *parser) {
    struct jinja_node *node = jinja_node_create(parser, NODE_CONSTANT);
    if (node == NULL) return NULL;
    node->text = (struct jinja_text){.bytes = parser->token.text, .length = parser->token.length, .by_template = true};
    node->constant = (struct jinja_value){.kind = JINJA_TEXT, .text = &node->text};
    jinja_parser_advance(parser);
    while (jinja_parser_is(parser, TOKEN_TEXT_LITERAL, NULL)) {
        char *joined = arena_allocate(&parser->program->arena, node->text.length + parser->token.length + 1);
        if (joined == NULL) {
            fail_memory(parser);
            return NULL;
        }
        memcpy(joined, node->text.bytes, node->text.length);
        memcpy(joined + node->text.length, parser->token.text, parser->token.length);
        node->text.bytes = joined;
        node->text.length += parser->token.length;
        jinja_parser_advance(parser);
    }
    return node;
}

/* Up to the closing mark. */
static const struct jinja_node *parse_items(struct jinja_parser *parser, enum jinja_node_kind kind, const char *end) {
    struct jinja_node *node = jinja_node_create(parser, kind);
    size_t capacity = 0;
    while (parser->status == STATUS_OK && !is_mark(parser, end)) {
        jinja_node_add(parser, node, jinja_parse_expression(parser), NULL, &capacity);
        if (kind == NODE_MAP) {
            jinja_parser_expect(parser, TOKEN_MARK, ":");
            jinja_node_add(parser, node, jinja_parse_expression(parser), NULL, &capacity);
        }
        if (!skip_mark(parser, ",")) break;
    }
    jinja_parser_expect(parser, TOKEN_MARK, end);
    return node;
}

static const struct jinja_node *parse_primary(struct jinja_parser *parser) {
    const struct jinja_node *node = NULL;
    if (jinja_parser_is(parser, TOKEN_WORD, NULL)) return parse_word(parser);
    if (jinja_parser_is(parser, TOKEN_TEXT_LITERAL, NULL)) return parse_text(parser);
    if (jinja_parser_is(parser, TOKEN_INTEGER_LITERAL, NULL)) {
        node = constant(parser, jinja_integer(parser->token.integer));
        jinja_parser_advance(parser);
    } else if (jinja_parser_is(parser, TOKEN_FLOAT_LITERAL, NULL)) {
        node = constant(parser, jinja_real(parser->token.real));
        jinja_parser_advance(parser);
    } else if (skip_mark(parser, "(")) {
        if (skip_mark(parser, ")")) return jinja_node_create(parser, NODE_TUPLE);
        node = jinja_parse_tuple(parser, false);
        jinja_parser_expect(parser, TOKEN_MARK, ")");
    } else if (skip_mark(parser, "[")) {
        node = parse_items(parser, NODE_LIST, "]");
    } else if (skip_mark(parser, "{")) {
        node = parse_items(parser, NODE_MAP, "}");
    } else {
        jinja_parser_fail(parser, "expected a value");
    }
    return node;
}

/* ---- what follows a value ---- */

/* Parses what follows (. */
static void parse_arguments(struct jinja_parser *parser, struct jinja_node *node) {
    size_t capacity = 0;
    while (parser->status == STATUS_OK && node != NULL && !is_mark(parser, ")")) {
        if (is_mark(parser, "*") || is_mark(parser, "**"))
            jinja_parser_fail(parser, "arguments of a list are not known");
        const struct jinja_node *value = jinja_parse_expression(parser);
        const char *name = NULL;
        if (value != NULL && value->kind == NODE_NAME && skip_mark(parser, "=")) {
            name = value->name;
            value = jinja_parse_expression(parser);
        }
        if (node->count == JINJA_ARGUMENTS_MAX)
            jinja_parser_fail(parser, "more than %d arguments", JINJA_ARGUMENTS_MAX);
        jinja_node_add(parser, node, value, name, &capacity);
        if (!skip_mark(parser, ",")) break;
    }
    jinja_parser_expect(parser, TOKEN_MARK, ")");
}

static const struct jinja_node *parse_call(struct jinja_parser *parser, const struct jinja_node *left) {
    struct jinja_node *node = node_of(parser, NODE_CALL, left, NULL);
    parse_arguments(parser, node);
    return node;
}

/* Parses what follows [. */
static const struct jinja_node *parse_subscript(struct jinja_parser *parser, const struct jinja_node *left) {
    const struct jinja_node *parts[3] = {NULL, NULL, NULL};
    size_t place = 0;
    bool is_slice = false;
    while (parser->status == STATUS_OK && !is_mark(parser, "]")) {
        if (skip_mark(parser, ":")) {
            is_slice = true;
            if (++place > 2) jinja_parser_fail(parser, "a slice has three parts");
        } else {
            if (parts[place] != NULL) jinja_parser_fail(parser, "expected ']'");
            parts[place] = jinja_parse_expression(parser);
        }
    }
    jinja_parser_expect(parser, TOKEN_MARK, "]");
    if (!is_slice && parts[0] == NULL) jinja_parser_fail(parser, "expected a key");
    struct jinja_node *node = node_of(parser, is_slice ? NODE_SLICE : NODE_ITEM, left, is_slice ? NULL : parts[0]);
    if (node == NULL || !is_slice) return node;
    node->items = arena_array(&parser->program->arena, 3, sizeof *node->items);
    if (node->items == NULL) {
        fail_memory(parser);
        return NULL;
    }
    memcpy(node->items, parts, sizeof parts);
    node->count = 3;
    return node;
}

/* false: nothing that belongs to the value. */
static bool parse_postfix(struct jinja_parser *parser, const struct jinja_node **node) {
    if (skip_mark(parser, ".")) {
        struct jinja_node *member = NULL;
        if (jinja_parser_is(parser, TOKEN_INTEGER_LITERAL, NULL)) {
            member = node_of(parser, NODE_ITEM, *node, constant(parser, jinja_integer(parser->token.integer)));
            jinja_parser_advance(parser);
        } else if ((member = node_of(parser, NODE_MEMBER, *node, NULL)) != NULL) {
            member->name = jinja_parser_word(parser);
        }
        *node = member;
    } else if (skip_mark(parser, "[")) {
        *node = parse_subscript(parser, *node);
    } else if (skip_mark(parser, "(")) {
        *node = parse_call(parser, *node);
    } else {
        return false;
    }
    return parser->status == STATUS_OK;
}

static const struct jinja_node *parse_filter(struct jinja_parser *parser, const struct jinja_node *left) {
    struct jinja_node *node = node_of(parser, NODE_FILTER, left, NULL);
    const char *name = jinja_parser_word(parser);
    if (node == NULL) return NULL;
    node->name = name;
    node->filter = jinja_find_filter(name);
    if (node->filter == NULL) jinja_parser_fail(parser, "the filter '%.60s' is not known", name);
    if (skip_mark(parser, "(")) parse_arguments(parser, node);
    return node;
}

const struct jinja_node *jinja_parse_filters(struct jinja_parser *parser, const struct jinja_node *value) {
    while (skip_mark(parser, "|")) value = parse_filter(parser, value);
    return value;
}

static bool is_argument(const struct jinja_parser *parser) {
    if (jinja_parser_is(parser, TOKEN_WORD, NULL))
        return !jinja_parser_is(parser, TOKEN_WORD, "else") && !jinja_parser_is(parser, TOKEN_WORD, "or") &&
               !jinja_parser_is(parser, TOKEN_WORD, "and") && !jinja_parser_is(parser, TOKEN_WORD, "is") &&
               !jinja_parser_is(parser, TOKEN_WORD, "if");
    return jinja_parser_is(parser, TOKEN_TEXT_LITERAL, NULL) || jinja_parser_is(parser, TOKEN_INTEGER_LITERAL, NULL) ||
           jinja_parser_is(parser, TOKEN_FLOAT_LITERAL, NULL) || is_mark(parser, "[") || is_mark(parser, "{");
}

/* Parses what follows `is`. */
static const struct jinja_node *parse_check(struct jinja_parser *parser, const struct jinja_node *left) {
    const bool is_negated = jinja_parser_skip(parser, TOKEN_WORD, "not");
    struct jinja_node *node = node_of(parser, NODE_CHECK, left, NULL);
    const char *name = jinja_parser_word(parser);
    if (node == NULL) return NULL;
    node->name = name;
    node->check = jinja_find_check(name);
    if (node->check == NULL) jinja_parser_fail(parser, "the test '%.60s' is not known", name);
    if (skip_mark(parser, "(")) {
        parse_arguments(parser, node);
    } else if (is_argument(parser)) {
        size_t capacity = 0;
        const struct jinja_node *argument = parse_primary(parser);
        while (argument != NULL && parse_postfix(parser, &argument)) {}
        jinja_node_add(parser, node, argument, NULL, &capacity);
    }
    return is_negated ? node_of(parser, NODE_NOT, node, NULL) : node;
}

static const struct jinja_node *parse_unary(struct jinja_parser *parser, bool with_filters) {
    const struct jinja_node *node;
    if (++parser->depth > PARSE_DEPTH_MAX) jinja_parser_fail(parser, "it nests too deeply");
    if (skip_mark(parser, "-"))
        node = node_of(parser, NODE_MINUS, parse_unary(parser, false), NULL);
    else if (skip_mark(parser, "+"))
        node = node_of(parser, NODE_PLUS, parse_unary(parser, false), NULL);
    else
        node = parse_primary(parser);
    while (node != NULL && parse_postfix(parser, &node)) {}
    while (with_filters && node != NULL && parser->status == STATUS_OK) {
        if (skip_mark(parser, "|"))
            node = parse_filter(parser, node);
        else if (jinja_parser_skip(parser, TOKEN_WORD, "is"))
            node = parse_check(parser, node);
        else if (skip_mark(parser, "("))
            node = parse_call(parser, node);
        else
            break;
    }
    parser->depth--;
    return node;
}

/* ---- operators ---- */

struct level {
    struct {
        const char *mark;
        enum jinja_operator operation;
    } marks[5];
};

/* From the loosest. */
static const struct level levels[] = {
    {{{"+", JINJA_ADD}, {"-", JINJA_SUBTRACT}}},
    {{{"~", JINJA_JOIN}}},
    {{{"*", JINJA_MULTIPLY}, {"//", JINJA_DIVIDE_FLOOR}, {"/", JINJA_DIVIDE}, {"%", JINJA_REMAINDER}}},
    {{{"**", JINJA_POWER}}},
};
enum { LEVEL_COUNT = sizeof levels / sizeof levels[0] };

static const struct jinja_node *parse_level(struct jinja_parser *parser, size_t level) {
    if (level == LEVEL_COUNT) return parse_unary(parser, true);
    const struct jinja_node *left = parse_level(parser, level + 1);
    for (unsigned chain = 0;;) {
        size_t i = 0;
        while (levels[level].marks[i].mark != NULL && !is_mark(parser, levels[level].marks[i].mark)) i++;
        if (levels[level].marks[i].mark == NULL) return left;
        if (++chain > PARSE_DEPTH_MAX) jinja_parser_fail(parser, "it nests too deeply");
        jinja_parser_advance(parser);
        struct jinja_node *node = node_of(parser, NODE_OPERATE, left, parse_level(parser, level + 1));
        if (node == NULL) return NULL;
        node->operation = levels[level].marks[i].operation;
        left = node;
    }
}

/* false: no comparison here. */
static bool read_comparison(struct jinja_parser *parser, enum jinja_operator *operation) {
    static const struct {
        const char *mark;
        enum jinja_operator operation;
    } marks[] = {{"==", JINJA_EQUAL},      {"!=", JINJA_UNEQUAL}, {"<", JINJA_LESS},
                 {"<=", JINJA_LESS_EQUAL}, {">", JINJA_GREATER},  {">=", JINJA_GREATER_EQUAL}};
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        if (!skip_mark(parser, marks[i].mark)) continue;
        *operation = marks[i].operation;
        return true;
    }
    *operation = JINJA_IN;
    if (jinja_parser_skip(parser, TOKEN_WORD, "in")) return true;
    if (!jinja_parser_skip(parser, TOKEN_WORD, "not")) return false; /* only `not in` can stand here */
    jinja_parser_expect(parser, TOKEN_WORD, "in");
    *operation = JINJA_NOT_IN;
    return true;
}

static const struct jinja_node *parse_comparison(struct jinja_parser *parser) {
    const struct jinja_node *left = parse_level(parser, 0);
    struct jinja_node *node = NULL;
    uint8_t operations[8];
    size_t capacity = 0;
    enum jinja_operator operation;
    while (parser->status == STATUS_OK && read_comparison(parser, &operation)) {
        if (node == NULL) node = node_of(parser, NODE_COMPARE, left, NULL);
        if (node == NULL) return NULL;
        if (node->count == sizeof operations) jinja_parser_fail(parser, "a chain of more than 8 comparisons");
        if (parser->status != STATUS_OK) return NULL;
        operations[node->count] = (uint8_t)operation;
        jinja_node_add(parser, node, parse_level(parser, 0), NULL, &capacity);
    }
    if (node == NULL || parser->status != STATUS_OK) return left;
    uint8_t *kept = arena_allocate(&parser->program->arena, sizeof operations);
    if (kept == NULL) {
        fail_memory(parser);
        return NULL;
    }
    memcpy(kept, operations, sizeof operations);
    node->operations = kept;
    return node;
}

static const struct jinja_node *parse_not(struct jinja_parser *parser) {
    if (!jinja_parser_skip(parser, TOKEN_WORD, "not")) return parse_comparison(parser);
    if (++parser->depth > PARSE_DEPTH_MAX) jinja_parser_fail(parser, "it nests too deeply");
    const struct jinja_node *node = node_of(parser, NODE_NOT, parse_not(parser), NULL);
    parser->depth--;
    return node;
}

static const struct jinja_node *parse_and(struct jinja_parser *parser);

/* Operands of `and`, or, of those, of `or`. */
static const struct jinja_node *parse_chain(struct jinja_parser *parser, bool is_or) {
    const struct jinja_node *(*const operand)(struct jinja_parser *) = is_or ? parse_and : parse_not;
    const struct jinja_node *left = operand(parser);
    for (unsigned chain = 0; jinja_parser_skip(parser, TOKEN_WORD, is_or ? "or" : "and");) {
        if (++chain > PARSE_DEPTH_MAX) jinja_parser_fail(parser, "it nests too deeply");
        left = node_of(parser, is_or ? NODE_OR : NODE_AND, left, operand(parser));
    }
    return left;
}
static const struct jinja_node *parse_and(struct jinja_parser *parser) { return parse_chain(parser, false); }
static const struct jinja_node *parse_or(struct jinja_parser *parser) { return parse_chain(parser, true); }

static const struct jinja_node *parse_choice(struct jinja_parser *parser, bool without_choice) {
    if (++parser->depth > PARSE_DEPTH_MAX) jinja_parser_fail(parser, "it nests too deeply");
    const struct jinja_node *node = parse_or(parser);
    for (unsigned chain = 0; !without_choice && jinja_parser_skip(parser, TOKEN_WORD, "if");) {
        if (++chain > PARSE_DEPTH_MAX) jinja_parser_fail(parser, "it nests too deeply");
        struct jinja_node *choice = node_of(parser, NODE_CHOICE, node, parse_or(parser));
        if (choice == NULL) break;
        if (jinja_parser_skip(parser, TOKEN_WORD, "else")) choice->third = parse_choice(parser, false);
        node = choice;
    }
    parser->depth--;
    return parser->status == STATUS_OK ? node : NULL;
}

const struct jinja_node *jinja_parse_expression(struct jinja_parser *parser) { return parse_choice(parser, false); }

static bool ends_tuple(const struct jinja_parser *parser) {
    return parser->token.kind == TOKEN_BLOCK_END || parser->token.kind == TOKEN_OUTPUT_END || is_mark(parser, ")") ||
           is_mark(parser, "=") || jinja_parser_is(parser, TOKEN_WORD, "in");
}

const struct jinja_node *jinja_parse_tuple(struct jinja_parser *parser, bool without_choice) {
    const struct jinja_node *first = parse_choice(parser, without_choice);
    if (!is_mark(parser, ",")) return first;
    struct jinja_node *tuple = jinja_node_create(parser, NODE_TUPLE);
    size_t capacity = 0;
    jinja_node_add(parser, tuple, first, NULL, &capacity);
    while (skip_mark(parser, ",") && !ends_tuple(parser))
        jinja_node_add(parser, tuple, parse_choice(parser, without_choice), NULL, &capacity);
    return tuple;
}
