/* Which name is which value.  A loop's turn and a macro have a scope of their own; what they set ends with it. */
#include <string.h>

#include "jinja/node_internal.h"

struct jinja_scope *jinja_scope_create(struct jinja_run *run, struct jinja_scope *outer) {
    struct jinja_scope *scope = jinja_allocate(run, sizeof *scope);
    if (scope != NULL) scope->outer = outer;
    return scope;
}

void jinja_scope_set(struct jinja_run *run, struct jinja_scope *scope, const char *name, struct jinja_value value) {
    if (jinja_failed(run)) return;
    for (size_t i = 0; i < scope->count && jinja_charge(run, 1); i++) {
        if (strcmp(scope->bindings[i].name, name) != 0) continue;
        scope->bindings[i].value = value;
        return;
    }
    if (scope->count == scope->capacity) {
        const size_t capacity = 2 * scope->capacity + 4;
        struct jinja_binding *bindings = jinja_allocate(run, capacity * sizeof *bindings);
        if (bindings == NULL) return;
        if (scope->count > 0) memcpy(bindings, scope->bindings, scope->count * sizeof *bindings);
        scope->bindings = bindings;
        scope->capacity = capacity;
    }
    scope->bindings[scope->count++] = (struct jinja_binding){name, value};
}

struct jinja_value jinja_scope_get(struct jinja_run *run, const struct jinja_scope *scope, const char *name) {
    for (; scope != NULL; scope = scope->outer)
        for (size_t i = 0; i < scope->count && jinja_charge(run, 1); i++)
            if (strcmp(scope->bindings[i].name, name) == 0) return scope->bindings[i].value;
    return jinja_undefined(name);
}

void jinja_scope_assign(struct jinja_run *run, struct jinja_scope *scope, const struct jinja_node *targets,
                        struct jinja_value value) {
    if (jinja_failed(run)) return;
    if (targets->count == 1) {
        jinja_scope_set(run, scope, targets->items[0]->name, value);
        return;
    }
    const struct jinja_list *items = jinja_items(run, &value);
    if (items == NULL) return;
    if (items->count != targets->count) {
        jinja_fail(run, STATUS_UNSUPPORTED, "%zu values for %zu names", items->count, targets->count);
        return;
    }
    for (size_t i = 0; i < targets->count; i++) jinja_scope_set(run, scope, targets->items[i]->name, items->items[i]);
}
