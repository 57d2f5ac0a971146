/* builder: a schema on its way from JSON to places and forms.
 *
 * Places are made in order of discovery and read from a list, so that a schema of any shape takes no recursion.  What a
 * place may be is first a list of entries, forms and other places; json_schema_resolve makes forms of all of them. */
#pragma once

#include "grammar/grammar_internal.h"

#define ENTRY_IS_PLACE 0x80000000U

/* A schema that a value of a place must meet, but for what was decided already. */
struct part {
    const json_t *value;
    uint32_t decided; /* PART_*: those keywords are other parts now */
    uint32_t from;    /* the part that named it; itself: none */
};
enum { PART_ANY_OF = 1, PART_ONE_OF = 2, PART_EXPANDED = 4, PARTS_MAX = 48 };

/* Where a place was found, for messages, and what a value of it must meet: all parts. */
struct site {
    uint32_t part_begin, part_count; /* none: any value */
    uint32_t parent;                 /* NOTHING: the root, or what a $ref names */
    const char *keyword, *name;
    size_t index; /* name NULL: of an array; SIZE_MAX: neither */
    uint32_t entry_begin, entry_count;
};

struct builder {
    struct json_schema *schema;
    const json_t *root;
    const char *source; /* for messages */
    struct site *sites; /* [site_count] */
    struct form *forms;
    uint32_t *entries;
    struct part *parts;
    uint32_t *buckets; /* [bucket_count]: site + 1, by its parts */
    json_t *made;      /* a list of schemas that the schema does not have, but means */
    uint32_t site_count, form_count, entry_count, part_count;
    size_t site_capacity, form_capacity, entry_capacity, part_capacity;
    uint32_t bucket_count;
    uint64_t work; /* of automata */
    uint32_t any;  /* the place of any value */
};

void builder_deinit(struct builder *builder);
/* A new place, or the one of these parts [count] that is there already; at most BUILDER_PLACES_MAX. */
enum { BUILDER_PLACES_MAX = 16384 };
enum status builder_place(struct builder *builder, const struct site *site, const struct part *parts, uint32_t count,
                          uint32_t *place, struct error *error) STATUS_CHECKED;
enum status builder_form(struct builder *builder, const struct form *form, uint32_t *index, struct error *error)
    STATUS_CHECKED;
/* Adds to the entries of the place that is being read. */
enum status builder_entry(struct builder *builder, uint32_t place, uint32_t entry, struct error *error) STATUS_CHECKED;
/* "schema: #/properties/a: message" */
enum status builder_refuse(const struct builder *builder, uint32_t place, struct error *error, const char *format, ...)
    __attribute__((format(printf, 4, 5))) STATUS_CHECKED;
enum status builder_no_memory(struct error *error) STATUS_CHECKED;

/* Counts what is done for a place; a schema that takes too much of it is refused. */
enum status builder_work(struct builder *builder, uint32_t place, uint64_t work, struct error *error) STATUS_CHECKED;
/* The schema that a $ref names. */
enum status builder_reference(const struct builder *builder, uint32_t place, const json_t *reference,
                              const json_t **target, struct error *error) STATUS_CHECKED;
/* Adds what the schema of a place says to its entries. */
enum status builder_read(struct builder *builder, uint32_t place, struct error *error) STATUS_CHECKED;
/* Heights, then the list of forms of each place. */
enum status builder_resolve(struct builder *builder, struct error *error) STATUS_CHECKED;
