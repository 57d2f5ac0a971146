/* What a compiled schema is made of.
 *
 * A place is where a value stands: it lists the forms of which the value must have one.  A form is what can be told by
 * its bytes: an object, an array, a string, a number or one of some literals.  References and anyOf are gone: they
 * became lists of forms.  A form's height is how deep the shallowest value of it nests, so that an answer never opens
 * what it could not close within JSON_OUTPUT_DEPTH_MAX; shortest is how many bytes its shortest value has. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "grammar/automaton.h"
#include "grammar/json_schema.h"

enum { HEIGHT_IMPOSSIBLE = JSON_OUTPUT_DEPTH_MAX + 1, UNIQUE_MAX = 32 };
#define NOTHING UINT32_MAX

enum form_kind {
    FORM_OBJECT,
    FORM_MAP,
    FORM_ARRAY,
    FORM_STRING,
    FORM_TEXT, /* a string that an automaton describes */
    FORM_NUMBER,
    FORM_INTEGER,
    FORM_DECIMAL, /* a number that an automaton describes */
    FORM_LITERALS,
};

/* Texts in the order of their bytes, a shorter one before a longer one that begins with it. */
struct literal {
    const uint8_t *bytes; /* borrowed from the schema's arena */
    uint32_t length;
    uint32_t index; /* of a property */
};

struct literal_table {
    struct literal *items; /* [count] */
    uint32_t count;
};

struct property {
    uint32_t place;
    uint32_t next_required; /* the first required property from this one on; the count: none */
    uint32_t key_bytes;     /* with its quotes */
};

struct form {
    enum form_kind kind;
    uint32_t height;
    uint32_t place;                /* MAP: of its values; ARRAY: of its items behind the first ones */
    uint32_t item_min, item_max;   /* ARRAY, MAP; STRING: characters; item_max UINT32_MAX: no limit; OBJECT: item_min */
    uint32_t prefix_count;         /* ARRAY */
    uint32_t *prefix;              /* ARRAY: places of the first items, [prefix_count] */
    bool is_unique;                /* ARRAY: of literals, of which none comes twice */
    const struct automaton *text;  /* TEXT, DECIMAL; MAP: of its keys, NULL: any */
    uint32_t property_count;       /* OBJECT */
    struct property *properties;   /* OBJECT, [property_count + 1]: the last is a mark */
    struct literal_table literals; /* LITERALS: the values; OBJECT: the keys with their quotes */
};

struct place {
    uint32_t *forms; /* [form_count], indices of json_schema.forms */
    uint32_t form_count, height;
    size_t shortest;
};

struct json_schema {
    struct arena arena;
    struct form *forms; /* [form_count] */
    struct place *places;
    uint32_t form_count, place_count;
    uint32_t root; /* place */
};

/* ---- literals.c ---- */

/* Narrows items[*begin, *end), which agree on `offset` bytes, to those whose next byte is `byte`. */
bool literals_narrow(const struct literal_table *table, uint32_t *begin, uint32_t *end, uint32_t offset, uint8_t byte);
/* Sorts; removes what is there twice. */
void literals_sort(struct literal_table *table);
/* The one text by which a value is written: no whitespace, characters as themselves. */
enum status literal_of(struct arena *arena, const json_t *value, struct literal *literal, struct error *error)
    STATUS_CHECKED;
/* How deep a value nests. */
uint32_t json_height(const json_t *value);

/* ---- lexemes.c ---- */

/* Where in a string's text the next byte stands. */
enum string_state {
    STRING_TEXT,
    STRING_ONE_MORE, /* bytes of a character that must follow: 80..BF each */
    STRING_TWO_MORE,
    STRING_AFTER_E0, /* A0..BF: not overlong */
    STRING_AFTER_ED, /* 80..9F: no surrogate */
    STRING_THREE_MORE,
    STRING_AFTER_F0, /* 90..BF */
    STRING_AFTER_F4, /* 80..8F: up to U+10FFFF */
    STRING_ESCAPE,   /* after a backslash */
    STRING_HEX_1,    /* after \u */
    STRING_HEX_2,
    STRING_HEX_3,
    STRING_HEX_4,
    STRING_HEX_2_ZERO, /* all zeros so far: \u0000 is not written, for many programs cut a text there */
    STRING_HEX_3_ZERO,
    STRING_HEX_4_ZERO,
    STRING_HEX_2_D, /* \uD: D8..DB begin a pair of surrogates */
    STRING_HEX_3_HIGH,
    STRING_HEX_4_HIGH,
    STRING_LOW_BACKSLASH, /* the pair's second half must follow */
    STRING_LOW_U,
    STRING_LOW_1,
    STRING_LOW_2,
    STRING_CLOSED,
    STRING_WRONG,
};
enum string_state string_next(enum string_state state, uint8_t byte);

enum number_state {
    NUMBER_BEGIN,
    NUMBER_MINUS,
    NUMBER_ZERO,
    NUMBER_INTEGER,
    NUMBER_POINT,
    NUMBER_FRACTION,
    NUMBER_E,
    NUMBER_SIGN,
    NUMBER_EXPONENT,
    NUMBER_WRONG,
};
/* *digits counts those of the part that the number is in. */
enum number_state number_next(enum number_state state, uint32_t *digits, uint8_t byte, bool only_integer);
bool number_is_complete(enum number_state state);

/* The place of an array's item. */
static inline uint32_t form_item_place(const struct form *form, uint32_t index) {
    return index < form->prefix_count ? form->prefix[index] : form->place;
}

/* Whitespace between the parts of JSON: nothing, one blank, or a line break and an indentation; around a colon, nothing
 * or one blank. */
enum { SPACE_NONE = 0, SPACE_OVER = 1, SPACE_LINE = 2, SPACE_INDENT_MAX = 20, SPACE_SHORT = 254, SPACE_WRONG = 255 };
uint8_t space_next(uint8_t state, uint8_t byte);
