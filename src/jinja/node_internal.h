/* The tree of a template.  Nodes live in the program's arena and are constant. */
#pragma once

#include "base/arena.h"
#include "jinja/jinja_internal.h"

enum jinja_node_kind {
    /* statements */
    NODE_TEXT,     /* text */
    NODE_OUTPUT,   /* left */
    NODE_BODY,     /* items */
    NODE_IF,       /* left: condition, right: body, third: otherwise or NULL */
    NODE_FOR,      /* items: targets; left: what, right: body, third: otherwise; fourth: condition */
    NODE_SET,      /* items: targets; left: value; name: member of a namespace */
    NODE_SET_BODY, /* items: targets; right: body; filters in left, over a NODE_BLOCK_VALUE */
    NODE_MACRO,    /* name; items: parameters (NODE_NAME), defaults: items of left; right: body */
    NODE_BREAK,
    NODE_CONTINUE,
    /* expressions */
    NODE_CONSTANT, /* constant */
    NODE_NAME,     /* name */
    NODE_LIST,     /* items */
    NODE_TUPLE,    /* items */
    NODE_MAP,      /* items: key, value, key, value ... */
    NODE_NOT,      /* left */
    NODE_MINUS,    /* left */
    NODE_PLUS,     /* left */
    NODE_AND,      /* left, right */
    NODE_OR,       /* left, right */
    NODE_OPERATE,  /* left, right, operation */
    NODE_COMPARE,  /* left; items, operations */
    NODE_CHOICE,   /* left if right else third (NULL: undefined) */
    NODE_MEMBER,   /* left.name */
    NODE_ITEM,     /* left[right] */
    NODE_SLICE,    /* left[items[0]:items[1]:items[2]], NULLs allowed */
    NODE_CALL,     /* left(items, names) */
    NODE_FILTER,   /* left|filter(items, names) */
    NODE_CHECK,    /* left is check(items, names) */
};

struct jinja_node {
    enum jinja_node_kind kind;
    unsigned line;
    const char *name; /* zero-terminated */
    const struct jinja_node *left, *right, *third, *fourth;
    const struct jinja_node **items; /* [count] */
    const char **names;              /* [count]; NULL: positional */
    size_t count;
    enum jinja_operator operation;
    const uint8_t *operations; /* [count] */
    const struct jinja_filter *filter;
    const struct jinja_check *check;
    struct jinja_value constant;
    struct jinja_text text;
};

struct jinja_program {
    struct arena arena;
    const struct jinja_node *body;
    const char **names; /* [name_count]: variables that are read */
    size_t name_count, name_capacity;
};

/* ---- lexer.c ---- */
enum jinja_token_kind {
    TOKEN_END,
    TOKEN_DATA,
    TOKEN_OUTPUT_BEGIN,
    TOKEN_OUTPUT_END,
    TOKEN_BLOCK_BEGIN,
    TOKEN_BLOCK_END,
    TOKEN_WORD,
    TOKEN_TEXT_LITERAL,
    TOKEN_INTEGER_LITERAL,
    TOKEN_FLOAT_LITERAL,
    TOKEN_MARK
};

struct jinja_token {
    enum jinja_token_kind kind;
    unsigned line;
    const char *text; /* [length] zero-terminated: a word, a mark such as "==", data, or a literal's value */
    size_t length;
    int64_t integer;
    double real;
};

struct jinja_lexer {
    struct arena *arena;
    const char *source; /* [length], newlines as \n */
    size_t length, at;
    unsigned line;
    enum { LEXER_IN_DATA, LEXER_IN_OUTPUT, LEXER_IN_BLOCK } state;
    unsigned brackets;     /* open, in an expression */
    bool line_is_starting; /* what came before ends with a line */
    bool strips;           /* the next data loses its white space in front */
    bool trims;            /* the next data loses a line end in front */
    struct error *error;
};
enum status jinja_next_token(struct jinja_lexer *lexer, struct jinja_token *token) STATUS_CHECKED;
/* Reads what follows {% raw %} as data, up to {% endraw %}. */
enum status jinja_raw_token(struct jinja_lexer *lexer, struct jinja_token *token) STATUS_CHECKED;

/* ---- parse_expression.c ---- */
struct jinja_parser {
    struct jinja_lexer lexer;
    struct jinja_program *program;
    struct jinja_token token; /* the current one */
    unsigned depth, loop_depth;
    enum status status; /* the first failure */
    struct error *error;
};
struct jinja_node *jinja_node_create(struct jinja_parser *parser, enum jinja_node_kind kind);
void jinja_node_add(struct jinja_parser *parser, struct jinja_node *node, const struct jinja_node *item,
                    const char *name, size_t *capacity);
void jinja_parser_advance(struct jinja_parser *parser);
void jinja_parser_fail(struct jinja_parser *parser, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool jinja_parser_is(const struct jinja_parser *parser, enum jinja_token_kind kind, const char *text);
/* Passes a token like this; false: there was another one. */
bool jinja_parser_skip(struct jinja_parser *parser, enum jinja_token_kind kind, const char *text);
void jinja_parser_expect(struct jinja_parser *parser, enum jinja_token_kind kind, const char *text);
const char *jinja_parser_word(struct jinja_parser *parser);
/* NULL: failed. */
const struct jinja_node *jinja_parse_expression(struct jinja_parser *parser);
/* a, b: a tuple.  without_choice: `if` ends it. */
const struct jinja_node *jinja_parse_tuple(struct jinja_parser *parser, bool without_choice);
/* Parses the filters behind a value: |filter|filter. */
const struct jinja_node *jinja_parse_filters(struct jinja_parser *parser, const struct jinja_node *value);

/* ---- parse.c ---- */
const struct jinja_node *jinja_parse_body(struct jinja_parser *parser, const char *const *ends, size_t end_count);

/* ---- scope.c, evaluate.c ---- */
struct jinja_binding {
    const char *name;
    struct jinja_value value;
};
struct jinja_scope {
    struct jinja_scope *outer;      /* NULL: the top */
    struct jinja_binding *bindings; /* [count] */
    size_t count, capacity;
};
struct jinja_scope *jinja_scope_create(struct jinja_run *run, struct jinja_scope *outer);
void jinja_scope_set(struct jinja_run *run, struct jinja_scope *scope, const char *name, struct jinja_value value);
struct jinja_value jinja_scope_get(struct jinja_run *run, const struct jinja_scope *scope, const char *name);
/* To a name, or several: a, b = value. */
void jinja_scope_assign(struct jinja_run *run, struct jinja_scope *scope, const struct jinja_node *targets,
                        struct jinja_value value);

typedef struct jinja_value jinja_macro_caller(struct jinja_run *run, const struct jinja_macro *macro,
                                              const struct jinja_arguments *arguments);
struct jinja_evaluator {
    struct jinja_run *run;
    struct jinja_scope *scope;
    jinja_macro_caller *call_macro; /* bodies are rendered above expressions */
};
struct jinja_value jinja_evaluate(const struct jinja_evaluator *evaluator, const struct jinja_node *node);
