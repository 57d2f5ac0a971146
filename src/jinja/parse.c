/* Statements. */

#include "jinja/node_internal.h"

enum { BODY_DEPTH_MAX = 50 };

static void expect_block_end(struct jinja_parser *parser) {
    if (!jinja_parser_skip(parser, TOKEN_BLOCK_END, NULL)) jinja_parser_fail(parser, "expected the end of the tag");
}

/* A body up to `word`, with the rest of that tag. */
static const struct jinja_node *parse_until(struct jinja_parser *parser, const char *word) {
    const char *const ends[] = {word};
    const struct jinja_node *body = jinja_parse_body(parser, ends, 1);
    jinja_parser_expect(parser, TOKEN_WORD, word);
    return body;
}

/* Parses what follows `if` or `elif`, up to the end of the tag of endif. */
static const struct jinja_node *parse_if(struct jinja_parser *parser) {
    static const char *const ends[] = {"elif", "else", "endif"};
    struct jinja_node *node = jinja_node_create(parser, NODE_IF), *first = node;
    while (node != NULL) {
        node->left = jinja_parse_tuple(parser, false);
        expect_block_end(parser);
        node->right = jinja_parse_body(parser, ends, 3);
        if (jinja_parser_skip(parser, TOKEN_WORD, "elif")) {
            struct jinja_node *next = jinja_node_create(parser, NODE_IF);
            node->third = next;
            node = next;
            continue;
        }
        if (jinja_parser_skip(parser, TOKEN_WORD, "else")) {
            expect_block_end(parser);
            node->third = parse_until(parser, "endif");
        } else {
            jinja_parser_expect(parser, TOKEN_WORD, "endif");
        }
        break;
    }
    expect_block_end(parser);
    return first;
}

/* a, b or a namespace's member. */
static void parse_targets(struct jinja_parser *parser, struct jinja_node *node) {
    size_t capacity = 0;
    const bool has_brackets = jinja_parser_skip(parser, TOKEN_MARK, "(");
    do {
        struct jinja_node *target = jinja_node_create(parser, NODE_NAME);
        if (target == NULL) return;
        target->name = jinja_parser_word(parser);
        jinja_node_add(parser, node, target, NULL, &capacity);
    } while (jinja_parser_skip(parser, TOKEN_MARK, ","));
    if (has_brackets) jinja_parser_expect(parser, TOKEN_MARK, ")");
}

static const struct jinja_node *parse_for(struct jinja_parser *parser) {
    static const char *const ends[] = {"else", "endfor"};
    struct jinja_node *node = jinja_node_create(parser, NODE_FOR);
    if (node == NULL) return NULL;
    parse_targets(parser, node);
    jinja_parser_expect(parser, TOKEN_WORD, "in");
    node->left = jinja_parse_tuple(parser, true);
    if (jinja_parser_skip(parser, TOKEN_WORD, "if")) node->fourth = jinja_parse_expression(parser);
    if (jinja_parser_is(parser, TOKEN_WORD, "recursive")) jinja_parser_fail(parser, "a recursive loop is not known");
    expect_block_end(parser);
    parser->loop_depth++;
    node->right = jinja_parse_body(parser, ends, 2);
    parser->loop_depth--;
    if (jinja_parser_skip(parser, TOKEN_WORD, "else")) {
        expect_block_end(parser);
        node->third = parse_until(parser, "endfor");
    } else {
        jinja_parser_expect(parser, TOKEN_WORD, "endfor");
    }
    expect_block_end(parser);
    return node;
}

static const struct jinja_node *parse_set(struct jinja_parser *parser) {
    struct jinja_node *node = jinja_node_create(parser, NODE_SET);
    if (node == NULL) return NULL;
    parse_targets(parser, node);
    if (node->count == 1 && jinja_parser_skip(parser, TOKEN_MARK, ".")) node->name = jinja_parser_word(parser);
    if (jinja_parser_skip(parser, TOKEN_MARK, "=")) {
        node->left = jinja_parse_tuple(parser, false);
        expect_block_end(parser);
        return node;
    }
    if (node->count != 1 || node->name != NULL) jinja_parser_fail(parser, "expected '='");
    if (parser->status != STATUS_OK) return NULL;
    node->kind = NODE_SET_BODY;
    struct jinja_node *value = jinja_node_create(parser, NODE_NAME); /* the body's text, for filters */
    if (value == NULL) return NULL;
    value->name = "";
    node->left = jinja_parse_filters(parser, value);
    expect_block_end(parser);
    node->right = parse_until(parser, "endset");
    expect_block_end(parser);
    return node;
}

static const struct jinja_node *parse_macro(struct jinja_parser *parser) {
    struct jinja_node *node = jinja_node_create(parser, NODE_MACRO);
    size_t capacity = 0;
    if (node == NULL) return NULL;
    node->name = jinja_parser_word(parser);
    jinja_parser_expect(parser, TOKEN_MARK, "(");
    while (parser->status == STATUS_OK && !jinja_parser_is(parser, TOKEN_MARK, ")")) {
        const char *name = jinja_parser_word(parser);
        const struct jinja_node *otherwise =
            jinja_parser_skip(parser, TOKEN_MARK, "=") ? jinja_parse_expression(parser) : NULL;
        if (node->count == JINJA_ARGUMENTS_MAX)
            jinja_parser_fail(parser, "more than %d parameters", JINJA_ARGUMENTS_MAX);
        jinja_node_add(parser, node, otherwise, name, &capacity);
        if (!jinja_parser_skip(parser, TOKEN_MARK, ",")) break;
    }
    jinja_parser_expect(parser, TOKEN_MARK, ")");
    expect_block_end(parser);
    const unsigned loop_depth = parser->loop_depth;
    parser->loop_depth = 0;
    node->right = parse_until(parser, "endmacro");
    parser->loop_depth = loop_depth;
    expect_block_end(parser);
    return node;
}

static const struct jinja_node *data_node(struct jinja_parser *parser, const struct jinja_token *token) {
    struct jinja_node *node = jinja_node_create(parser, NODE_TEXT);
    if (node != NULL)
        node->text = (struct jinja_text){.bytes = token->text, .length = token->length, .by_template = true};
    return node;
}

/* The tag's end is not read: what follows it is no template. */
static const struct jinja_node *parse_raw(struct jinja_parser *parser) {
    struct jinja_token token;
    if (!jinja_parser_is(parser, TOKEN_BLOCK_END, NULL)) jinja_parser_fail(parser, "expected the end of the tag");
    if (parser->status == STATUS_OK) parser->status = jinja_raw_token(&parser->lexer, &token);
    if (parser->status != STATUS_OK) return NULL;
    const struct jinja_node *node = data_node(parser, &token);
    jinja_parser_advance(parser);
    return node;
}

static const struct jinja_node *parse_jump(struct jinja_parser *parser, enum jinja_node_kind kind) {
    const struct jinja_node *node = jinja_node_create(parser, kind);
    if (parser->loop_depth == 0) jinja_parser_fail(parser, "break and continue stand in loops");
    expect_block_end(parser);
    return node;
}

/* Parses what follows {%. */
static const struct jinja_node *parse_statement(struct jinja_parser *parser) {
    if (jinja_parser_skip(parser, TOKEN_WORD, "if")) return parse_if(parser);
    if (jinja_parser_skip(parser, TOKEN_WORD, "for")) return parse_for(parser);
    if (jinja_parser_skip(parser, TOKEN_WORD, "set")) return parse_set(parser);
    if (jinja_parser_skip(parser, TOKEN_WORD, "macro")) return parse_macro(parser);
    if (jinja_parser_skip(parser, TOKEN_WORD, "break")) return parse_jump(parser, NODE_BREAK);
    if (jinja_parser_skip(parser, TOKEN_WORD, "continue")) return parse_jump(parser, NODE_CONTINUE);
    if (jinja_parser_skip(parser, TOKEN_WORD, "generation")) { /* marks what training counts: nothing here */
        expect_block_end(parser);
        const struct jinja_node *body = parse_until(parser, "endgeneration");
        expect_block_end(parser);
        return body;
    }
    if (jinja_parser_is(parser, TOKEN_WORD, "raw")) { /* its end is looked at, not behind it */
        jinja_parser_advance(parser);
        return parse_raw(parser);
    }
    jinja_parser_fail(parser, "the statement '%.60s' is not known",
                      parser->token.kind == TOKEN_WORD ? parser->token.text : "");
    return NULL;
}

static bool is_end(const struct jinja_parser *parser, const char *const *ends, size_t end_count) {
    for (size_t i = 0; i < end_count; i++)
        if (jinja_parser_is(parser, TOKEN_WORD, ends[i])) return true;
    return false;
}

const struct jinja_node *jinja_parse_body(struct jinja_parser *parser, const char *const *ends, size_t end_count) {
    struct jinja_node *body = jinja_node_create(parser, NODE_BODY);
    size_t capacity = 0;
    if (++parser->depth > BODY_DEPTH_MAX) jinja_parser_fail(parser, "it nests too deeply");
    while (parser->status == STATUS_OK) {
        const struct jinja_node *node = NULL;
        if (jinja_parser_is(parser, TOKEN_DATA, NULL)) {
            node = data_node(parser, &parser->token);
            jinja_parser_advance(parser);
        } else if (jinja_parser_skip(parser, TOKEN_OUTPUT_BEGIN, NULL)) {
            struct jinja_node *output = jinja_node_create(parser, NODE_OUTPUT);
            if (output != NULL) output->left = jinja_parse_tuple(parser, false);
            if (!jinja_parser_skip(parser, TOKEN_OUTPUT_END, NULL)) jinja_parser_fail(parser, "expected '}}'");
            node = output;
        } else if (jinja_parser_skip(parser, TOKEN_BLOCK_BEGIN, NULL)) {
            if (is_end(parser, ends, end_count)) break;
            node = parse_statement(parser);
        } else {
            if (end_count > 0) jinja_parser_fail(parser, "'%s' is missing", ends[end_count - 1]);
            break;
        }
        jinja_node_add(parser, body, node, NULL, &capacity);
    }
    parser->depth--;
    return body;
}
