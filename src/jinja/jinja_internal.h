/* The values of a rendering, and the run that owns them.  The first failure of a run stays: everything after it does
 * nothing and gives undefined values, so only loops look. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "jinja/jinja.h"

enum { JINJA_DEPTH_MAX = 600, JINJA_ARGUMENTS_MAX = 16 };

enum jinja_kind {
    JINJA_UNDEFINED,
    JINJA_NONE,
    JINJA_BOOL,
    JINJA_INTEGER,
    JINJA_FLOAT,
    JINJA_TEXT,
    JINJA_LIST,
    JINJA_MAP,
    JINJA_LOOP,
    JINJA_MACRO,
    JINJA_METHOD,
    JINJA_FUNCTION,
};

/* Constant once made. */
struct jinja_text {
    const char *bytes;    /* [length] */
    const uint8_t *marks; /* [length], 1: by the template; NULL: all bytes are of by_template */
    size_t length;
    bool by_template;
};

struct jinja_value {
    enum jinja_kind kind;
    union {
        bool boolean;
        int64_t integer;
        double real;
        const struct jinja_text *text;
        struct jinja_list *list;
        struct jinja_map *map;
        struct jinja_loop *loop;
        const struct jinja_macro *macro;
        const struct jinja_method *method;
        int function;     /* enum jinja_function */
        const char *name; /* of what is undefined; NULL: unknown */
    };
};

static inline struct jinja_value jinja_none(void) { return (struct jinja_value){.kind = JINJA_NONE}; }
static inline struct jinja_value jinja_bool(bool boolean) {
    return (struct jinja_value){.kind = JINJA_BOOL, .boolean = boolean};
}
static inline struct jinja_value jinja_integer(int64_t integer) {
    return (struct jinja_value){.kind = JINJA_INTEGER, .integer = integer};
}
static inline struct jinja_value jinja_real(double real) {
    return (struct jinja_value){.kind = JINJA_FLOAT, .real = real};
}
static inline struct jinja_value jinja_undefined(const char *name) {
    return (struct jinja_value){.kind = JINJA_UNDEFINED, .name = name};
}

struct jinja_list {
    struct jinja_value *items; /* [count] */
    size_t count, capacity;
    bool is_tuple;
};

struct jinja_entry {
    struct jinja_value key, value;
};

struct jinja_map {
    struct jinja_entry *entries; /* [count], in the order in which they came */
    size_t count, capacity;
    bool is_namespace;
};

struct jinja_loop {
    const struct jinja_list *items;
    size_t index;               /* from 0 */
    struct jinja_value changed; /* what loop.changed saw last */
    bool has_changed;
};

enum jinja_function {
    JINJA_RANGE,
    JINJA_DICT,
    JINJA_NAMESPACE,
    JINJA_RAISE,
    JINJA_STRFTIME,
    JINJA_CYCLE,       /* of a loop */
    JINJA_LOOP_CHANGED /* of a loop */
};

struct jinja_method {
    struct jinja_value self;
    const char *name;
    enum jinja_function function; /* of a loop */
};

/* A macro where it was defined. */
struct jinja_macro {
    const struct jinja_node *node;
    struct jinja_scope *scope;
};

struct jinja_arguments {
    struct jinja_value values[JINJA_ARGUMENTS_MAX]; /* positional ones first */
    const char *names[JINJA_ARGUMENTS_MAX];         /* NULL: positional */
    size_t count;
};

struct jinja_block;

struct jinja_run {
    struct jinja_block *blocks; /* owned, newest first */
    size_t used_bytes, bytes_max;
    uint64_t steps, steps_max;
    unsigned depth, line;
    int64_t now;
    struct jinja_scope *top;
    enum status status;
    struct error *error;
};

/* ---- run.c ---- */
void jinja_run_init(struct jinja_run *run, const struct jinja_limits *limits, struct error *error);
void jinja_run_deinit(struct jinja_run *run);
bool jinja_failed(const struct jinja_run *run);
/* An undefined value. STATUS_UNSUPPORTED messages get the line. */
struct jinja_value jinja_fail(struct jinja_run *run, enum status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* false: the run has failed, of this or earlier. */
bool jinja_charge(struct jinja_run *run, uint64_t steps);
bool jinja_charge_bytes(struct jinja_run *run, size_t bytes);
void *jinja_allocate(struct jinja_run *run, size_t bytes); /* zeroed; NULL: the run has failed */

/* ---- text.c ---- */
struct jinja_builder {
    struct jinja_run *run;
    char *bytes;    /* [length] */
    uint8_t *marks; /* [length]; NULL: all are of by_template */
    size_t length, capacity;
    bool by_template;
};
struct jinja_value jinja_text_value(struct jinja_run *run, const char *bytes, size_t length, bool by_template);
struct jinja_value jinja_text_word(struct jinja_run *run, const char *word); /* by the template */
struct jinja_value jinja_text_cut(struct jinja_run *run, const struct jinja_text *text, size_t begin, size_t end);
void jinja_put(struct jinja_builder *builder, const char *bytes, size_t length, bool by_template);
void jinja_reserve(struct jinja_builder *builder, size_t length);     /* of an empty one */
void jinja_put_word(struct jinja_builder *builder, const char *word); /* by the template */
void jinja_put_text(struct jinja_builder *builder, const struct jinja_text *text, size_t begin, size_t end);
struct jinja_value jinja_built(struct jinja_builder *builder);
size_t jinja_text_characters(const struct jinja_text *text);
size_t jinja_text_offset(const struct jinja_text *text, size_t character); /* in bytes; of its end: length */
/* Its code point, -1 of what is no UTF-8; returns its bytes. */
size_t jinja_character(const struct jinja_text *text, size_t at, int32_t *code);
bool jinja_is_space(int32_t code); /* as Python's str.isspace */
size_t jinja_character_bytes(const struct jinja_text *text, size_t at);
bool jinja_text_is(const struct jinja_text *text, const char *word);
/* From `from` on; SIZE_MAX: not there. */
size_t jinja_text_find(struct jinja_run *run, const struct jinja_text *text, const struct jinja_text *wanted,
                       size_t from);
enum jinja_case { JINJA_UPPER, JINJA_LOWER, JINJA_TITLE, JINJA_TITLE_WORDS, JINJA_CAPITALIZE };
struct jinja_value jinja_text_case(struct jinja_run *run, const struct jinja_text *text, enum jinja_case how);
/* characters NULL: white space. */
struct jinja_value jinja_text_strip(struct jinja_run *run, const struct jinja_text *text,
                                    const struct jinja_text *characters, bool left, bool right);
/* count_max below zero: all. */
struct jinja_value jinja_text_replace(struct jinja_run *run, const struct jinja_text *text,
                                      const struct jinja_text *old, const struct jinja_text *new_text,
                                      int64_t count_max);

/* ---- value.c ---- */
struct jinja_value jinja_list(struct jinja_run *run, bool is_tuple);
struct jinja_value jinja_map(struct jinja_run *run, bool is_namespace);
void jinja_list_add(struct jinja_run *run, struct jinja_list *list, struct jinja_value value);
void jinja_map_set(struct jinja_run *run, struct jinja_map *map, struct jinja_value key, struct jinja_value value);
/* NULL: absent. */
const struct jinja_value *jinja_map_find(struct jinja_run *run, const struct jinja_map *map,
                                         const struct jinja_value *key);
const struct jinja_value *jinja_map_find_word(struct jinja_run *run, const struct jinja_map *map, const char *word);
const char *jinja_kind_name(const struct jinja_value *value);
bool jinja_is_number(const struct jinja_value *value); /* bool, too, as in Python */
double jinja_as_real(const struct jinja_value *value);
int64_t jinja_as_integer(const struct jinja_value *value); /* of a bool or integer */
bool jinja_is_true(const struct jinja_value *value);
bool jinja_equal(struct jinja_run *run, const struct jinja_value *a, const struct jinja_value *b);
/* < 0, 0, > 0; a failure where there is no order. */
int jinja_compare(struct jinja_run *run, const struct jinja_value *a, const struct jinja_value *b);
bool jinja_contains(struct jinja_run *run, const struct jinja_value *container, const struct jinja_value *value);
/* What a loop goes through: a list's items, keys, characters; nothing of what is undefined. */
const struct jinja_list *jinja_items(struct jinja_run *run, const struct jinja_value *value);
struct jinja_value jinja_map_pairs(struct jinja_run *run, const struct jinja_map *map);

/* ---- split.c ---- */
struct jinja_value jinja_text_split(struct jinja_run *run, const struct jinja_text *text,
                                    const struct jinja_text *separator, int64_t count_max, bool from_right);
struct jinja_value jinja_text_lines(struct jinja_run *run, const struct jinja_text *text, bool keeps_ends);
struct jinja_value jinja_text_indent(struct jinja_run *run, const struct jinja_text *text,
                                     const struct jinja_text *indentation, bool first, bool blank);

/* ---- print.c ---- */
void jinja_print(struct jinja_builder *builder, const struct jinja_value *value); /* as {{ }} */
struct jinja_value jinja_to_text(struct jinja_run *run, const struct jinja_value *value);
/* indent below zero: one line. */
struct jinja_value jinja_to_json(struct jinja_run *run, const struct jinja_value *value,
                                 const struct jinja_arguments *arguments);
struct jinja_value jinja_from_json(struct jinja_run *run, const json_t *json);

/* ---- arguments.c ---- */
/* The argument at this place or of this name; NULL: not given. */
const struct jinja_value *jinja_argument(const struct jinja_arguments *arguments, size_t place, const char *name);
const struct jinja_text *jinja_text_argument(struct jinja_run *run, const struct jinja_arguments *arguments,
                                             size_t place, const char *name);
int64_t jinja_integer_argument(struct jinja_run *run, const struct jinja_arguments *arguments, size_t place,
                               const char *name, int64_t otherwise);
bool jinja_bool_argument(const struct jinja_arguments *arguments, size_t place, const char *name, bool otherwise);

/* ---- attributes.c ---- */
/* value.name and value[key]; undefined where there is none. */
struct jinja_value jinja_attribute(struct jinja_run *run, const struct jinja_value *value, const char *name);
struct jinja_value jinja_item(struct jinja_run *run, const struct jinja_value *value, const struct jinja_value *key);
/* NULL: not given. */
struct jinja_value jinja_slice(struct jinja_run *run, const struct jinja_value *value, const struct jinja_value *begin,
                               const struct jinja_value *end, const struct jinja_value *step);

/* ---- methods.c, functions.c, filters.c ---- */
typedef struct jinja_value jinja_call(struct jinja_run *run, const struct jinja_value *value,
                                      const struct jinja_arguments *arguments);
/* Begins a filter, or a method: of the value. */
#define JINJA_CALL(NAME)                                                                   \
    static struct jinja_value NAME(struct jinja_run *run, const struct jinja_value *value, \
                                   const struct jinja_arguments *arguments)
bool jinja_has_method(const struct jinja_value *self, const char *name);
const char *jinja_method_filter(const struct jinja_method *method); /* that does what it does; NULL: it is called */
struct jinja_value jinja_call_method(struct jinja_run *run, const struct jinja_method *method,
                                     const struct jinja_arguments *arguments);
bool jinja_find_function(const char *name, enum jinja_function *function);
struct jinja_value jinja_call_function(struct jinja_run *run, enum jinja_function function,
                                       const struct jinja_arguments *arguments);

/* ---- filters.c, checks.c ---- */
struct jinja_filter;
const struct jinja_filter *jinja_find_filter(const char *name); /* NULL: unknown */
struct jinja_value jinja_call_filter(struct jinja_run *run, const struct jinja_filter *filter,
                                     const struct jinja_value *value, const struct jinja_arguments *arguments);
struct jinja_check;
const struct jinja_check *jinja_find_check(const char *name); /* a test: `is NAME`; NULL: unknown */
bool jinja_call_check(struct jinja_run *run, const struct jinja_check *check, const struct jinja_value *value,
                      const struct jinja_arguments *arguments);

/* ---- operators.c ---- */
enum jinja_operator {
    JINJA_ADD,
    JINJA_SUBTRACT,
    JINJA_MULTIPLY,
    JINJA_DIVIDE,
    JINJA_DIVIDE_FLOOR,
    JINJA_REMAINDER,
    JINJA_POWER,
    JINJA_JOIN, /* ~ */
    JINJA_EQUAL,
    JINJA_UNEQUAL,
    JINJA_LESS,
    JINJA_LESS_EQUAL,
    JINJA_GREATER,
    JINJA_GREATER_EQUAL,
    JINJA_IN,
    JINJA_NOT_IN,
};
struct jinja_value jinja_operate(struct jinja_run *run, enum jinja_operator operation, const struct jinja_value *left,
                                 const struct jinja_value *right);
