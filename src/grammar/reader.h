/* reader: the schemas that a value of one place must meet, together. */
#pragma once

#include "grammar/builder_internal.h"

enum {
    TYPE_OBJECT = 1,
    TYPE_ARRAY = 2,
    TYPE_STRING = 4,
    TYPE_FRACTION = 8, /* numbers that are not whole */
    TYPE_INTEGER = 16,
    TYPE_BOOLEAN = 32,
    TYPE_NULL = 64,
    TYPE_NUMBER = TYPE_FRACTION | TYPE_INTEGER,
    TYPE_ANY = 127,
};

struct reader {
    struct builder *builder;
    uint32_t place;
    struct part parts[PARTS_MAX];
    uint32_t count;
    bool is_impossible; /* one of them is false */
};

/* The parts, and what they name by $ref and allOf; each keyword is known. */
enum status reader_expand(struct reader *reader, struct error *error) STATUS_CHECKED;
/* from: the part that names it; the count: none. */
enum status reader_add(struct reader *reader, const json_t *value, uint32_t from, struct error *error) STATUS_CHECKED;
/* A place of all of the value's parts.  site: the keyword, and the name or index by which the reader's place knows
 * it. */
enum status reader_place(const struct reader *reader, const struct reader *value, struct site site, uint32_t *place,
                         struct error *error) STATUS_CHECKED;
/* The keyword of a part; NULL: it has none. */
const json_t *reader_get(const struct reader *reader, uint32_t part, const char *keyword);
/* The first part from `from` on that has it; count: none. */
uint32_t reader_find(const struct reader *reader, uint32_t from, const char *keyword);

/* The part says nothing of its own: true, annotations, what other parts are now. */
bool reader_is_silent(const struct reader *reader, uint32_t part);

/* *types: those that the parts name; TYPE_ANY where none does. */
enum status reader_types(const struct reader *reader, unsigned *types, struct error *error) STATUS_CHECKED;
/* Those that may be written: where no type is named, those of which the keywords speak. */
unsigned reader_written(const struct reader *reader, unsigned types);
/* Whether a value is of one of these types. */
bool reader_has_type(const json_t *value, unsigned types);

/* A schema that is a $ref and nothing else: the place of what it names is an entry. */
enum status reader_refer(const struct reader *reader, bool *is_reference, struct error *error) STATUS_CHECKED;
/* anyOf and oneOf: places of their own, one for each alternative with all the rest.  *is_split: there was one. */
enum status reader_split(const struct reader *reader, bool *is_split, struct error *error) STATUS_CHECKED;
