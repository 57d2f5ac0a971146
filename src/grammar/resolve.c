/* resolve: from entries to forms.  How deep the shallowest value of each place nests, and how long the shortest one is,
 * is found by relaxation: what refers to itself alone stays impossible. */
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "grammar/builder_internal.h"

/* An object without required properties that may not be empty: the lowest of them. */
static uint32_t lowest_property(const struct form *form, const struct place *places) {
    uint32_t lowest = HEIGHT_IMPOSSIBLE;
    for (uint32_t i = 0; i < form->property_count; i++)
        lowest = (uint32_t)min_size(lowest, places[form->properties[i].place].height);
    return lowest;
}

static uint32_t form_height(const struct form *form, const struct place *places) {
    uint32_t inner = 0;
    switch (form->kind) {
    case FORM_OBJECT:
        for (uint32_t i = form->properties[0].next_required; i < form->property_count;
             i = form->properties[i + 1].next_required)
            inner = (uint32_t)max_size(inner, places[form->properties[i].place].height);
        if (form->item_min > 0) inner = lowest_property(form, places);
        break;
    case FORM_ARRAY:
        for (uint32_t i = 0; i < form->item_min && i <= form->prefix_count; i++)
            inner = (uint32_t)max_size(inner, places[form_item_place(form, i)].height);
        break;
    case FORM_MAP:
        if (form->item_min > 0) inner = form->item_max > 0 ? places[form->place].height : HEIGHT_IMPOSSIBLE;
        break;
    case FORM_STRING:
    case FORM_TEXT:
    case FORM_NUMBER:
    case FORM_INTEGER:
    case FORM_DECIMAL:
    case FORM_LITERALS: return form->height;
    }
    return (uint32_t)min_size(inner + 1, HEIGHT_IMPOSSIBLE);
}

/* Above JSON_OUTPUT_BYTES_MAX all are the same. */
static size_t bounded(size_t bytes) { return min_size(bytes, (size_t)JSON_OUTPUT_BYTES_MAX + 1); }

static size_t form_shortest(const struct form *form, const struct place *places) {
    size_t bytes = 2; /* brackets or quotes */
    switch (form->kind) {
    case FORM_OBJECT:
        for (uint32_t i = form->properties[0].next_required; i < form->property_count;
             i = form->properties[i + 1].next_required)
            bytes = bounded(bytes + form->properties[i].key_bytes + 1 + places[form->properties[i].place].shortest);
        break;
    case FORM_ARRAY:
        for (uint32_t i = 0; i < form->item_min && i < form->prefix_count; i++)
            bytes = bounded(bytes + places[form->prefix[i]].shortest + 1);
        if (form->item_min > form->prefix_count)
            bytes += (form->item_min - form->prefix_count) * (places[form->place].shortest + 1);
        break;
    case FORM_STRING: bytes += form->item_min; break;
    case FORM_TEXT:
    case FORM_DECIMAL: return bounded(form->text->shortest);
    case FORM_MAP: break;
    case FORM_NUMBER:
    case FORM_INTEGER:
    case FORM_LITERALS: return 1;
    }
    return bounded(bytes);
}

static void place_measure(const struct builder *b, const struct site *site, struct place *place,
                          const struct place *places) {
    for (uint32_t i = 0; i < site->entry_count; i++) {
        const uint32_t entry = b->entries[site->entry_begin + i];
        const struct place *other = entry & ENTRY_IS_PLACE ? &places[entry & ~ENTRY_IS_PLACE] : NULL;
        const struct form *form = other == NULL ? &b->forms[entry] : NULL;
        place->height = (uint32_t)min_size(place->height, other != NULL ? other->height : form_height(form, places));
        place->shortest = min_size(place->shortest, other != NULL ? other->shortest : form_shortest(form, places));
    }
}

/* From the last place to the first: what a place refers to mostly comes later. */
static void measure(const struct builder *b, struct place *places) {
    for (uint32_t i = 0; i < b->site_count; i++)
        places[i] = (struct place){.height = HEIGHT_IMPOSSIBLE, .shortest = bounded(SIZE_MAX)};
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t i = b->site_count; i-- > 0;) {
            struct place next = places[i];
            place_measure(b, &b->sites[i], &next, places);
            changed |= next.height != places[i].height || next.shortest != places[i].shortest;
            places[i] = next;
        }
    }
    for (uint32_t i = 0; i < b->form_count; i++) b->forms[i].height = form_height(&b->forms[i], places);
}

struct walk {
    const struct builder *builder;
    const struct place *places;
    uint32_t *pending;                /* [site_count] */
    uint32_t *place_seen, *form_seen; /* the place + 1 for which it was seen last */
    uint32_t forms[JSON_SCHEMA_ALTERNATIVES_MAX];
    uint32_t form_count;
};

/* The forms of a place, through all places that it refers to. */
static enum status collect(struct walk *w, uint32_t place, struct error *error) {
    const struct builder *b = w->builder;
    uint32_t pending_count = 1;
    w->form_count = 0;
    w->pending[0] = place;
    w->place_seen[place] = place + 1;
    while (pending_count > 0) {
        const struct site *site = &b->sites[w->pending[--pending_count]];
        for (uint32_t i = 0; i < site->entry_count; i++) {
            uint32_t entry = b->entries[site->entry_begin + i];
            uint32_t *seen = entry & ENTRY_IS_PLACE ? w->place_seen : w->form_seen;
            const bool is_place = (entry & ENTRY_IS_PLACE) != 0;
            entry &= ~ENTRY_IS_PLACE;
            if (seen[entry] == place + 1) continue;
            seen[entry] = place + 1;
            if (is_place) {
                w->pending[pending_count++] = entry;
                continue;
            }
            if (b->forms[entry].height >= HEIGHT_IMPOSSIBLE ||
                form_shortest(&b->forms[entry], w->places) > JSON_OUTPUT_BYTES_MAX)
                continue;
            if (w->form_count == JSON_SCHEMA_ALTERNATIVES_MAX)
                return builder_refuse(b, place, error, "more than %d alternatives", JSON_SCHEMA_ALTERNATIVES_MAX);
            w->forms[w->form_count++] = entry;
        }
    }
    return STATUS_OK;
}

static enum status list_forms(struct walk *w, struct place *places, struct error *error) {
    for (uint32_t i = 0; i < w->builder->site_count; i++) {
        TRY(collect(w, i, error));
        if (w->form_count == 0) continue;
        places[i].forms = arena_array(&w->builder->schema->arena, w->form_count, sizeof *w->forms);
        if (places[i].forms == NULL) return builder_no_memory(error);
        memcpy(places[i].forms, w->forms, w->form_count * sizeof *w->forms);
        places[i].form_count = w->form_count;
    }
    return STATUS_OK;
}

/* What uniqueItems can be said of: one list of literals, each of which has a bit. */
static enum status check_unique(struct builder *b, const struct place *places, struct error *error) {
    for (uint32_t i = 0; i < b->site_count; i++)
        for (uint32_t e = 0; e < b->sites[i].entry_count; e++) {
            const uint32_t entry = b->entries[b->sites[i].entry_begin + e];
            if ((entry & ENTRY_IS_PLACE) != 0 || !b->forms[entry].is_unique) continue;
            struct form *form = &b->forms[entry];
            const struct place *items = &places[form->place];
            if (items->form_count == 0) continue;
            const struct form *values = &b->forms[items->forms[0]];
            if (items->form_count != 1 || values->kind != FORM_LITERALS || values->literals.count > UNIQUE_MAX)
                return builder_refuse(b, i, error, "uniqueItems: only of at most %d values of an enum", UNIQUE_MAX);
            if (form->item_min > values->literals.count)
                return builder_refuse(b, i, error, "uniqueItems: there are fewer values than minItems");
            form->item_max = (uint32_t)min_size(form->item_max, values->literals.count);
        }
    return STATUS_OK;
}

enum status builder_resolve(struct builder *b, struct error *error) {
    struct json_schema *schema = b->schema;
    struct place *places = arena_array(&schema->arena, b->site_count, sizeof *places);
    struct form *forms = arena_array(&schema->arena, b->form_count, sizeof *forms);
    struct walk walk = {.builder = b,
                        .places = places,
                        .pending = calloc(b->site_count, sizeof(uint32_t)),
                        .place_seen = calloc(b->site_count, sizeof(uint32_t)),
                        .form_seen = calloc(b->form_count, sizeof(uint32_t))};
    enum status status;
    if (places == NULL || forms == NULL || walk.pending == NULL || walk.place_seen == NULL || walk.form_seen == NULL) {
        status = builder_no_memory(error);
    } else {
        measure(b, places);
        status = list_forms(&walk, places, error);
        if (status == STATUS_OK) status = check_unique(b, places, error);
        memcpy(forms, b->forms, b->form_count * sizeof *forms);
    }
    free(walk.pending);
    free(walk.place_seen);
    free(walk.form_seen);
    schema->places = places;
    schema->forms = forms;
    schema->place_count = b->site_count;
    schema->form_count = b->form_count;
    return status;
}
