/* Expressions to values. */

#include "jinja/node_internal.h"

static struct jinja_value evaluate_items(const struct jinja_evaluator *e, const struct jinja_node *node) {
    struct jinja_value list = jinja_list(e->run, node->kind == NODE_TUPLE);
    for (size_t i = 0; i < node->count && !jinja_failed(e->run); i++)
        jinja_list_add(e->run, list.list, jinja_evaluate(e, node->items[i]));
    return list;
}

static struct jinja_value evaluate_map(const struct jinja_evaluator *e, const struct jinja_node *node) {
    struct jinja_value map = jinja_map(e->run, false);
    for (size_t i = 0; i + 1 < node->count && !jinja_failed(e->run); i += 2) {
        const struct jinja_value key = jinja_evaluate(e, node->items[i]);
        jinja_map_set(e->run, map.map, key, jinja_evaluate(e, node->items[i + 1]));
    }
    return map;
}

static struct jinja_value evaluate_sign(const struct jinja_evaluator *e, const struct jinja_node *node) {
    const struct jinja_value zero = jinja_integer(0), value = jinja_evaluate(e, node->left);
    return jinja_operate(e->run, node->kind == NODE_MINUS ? JINJA_SUBTRACT : JINJA_ADD, &zero, &value);
}

/* a < b < c: b is evaluated once. */
static struct jinja_value compare(const struct jinja_evaluator *e, const struct jinja_node *node) {
    struct jinja_value left = jinja_evaluate(e, node->left), result = jinja_bool(true);
    for (size_t i = 0; i < node->count && jinja_is_true(&result); i++) {
        const struct jinja_value right = jinja_evaluate(e, node->items[i]);
        result = jinja_operate(e->run, (enum jinja_operator)node->operations[i], &left, &right);
        left = right;
    }
    return result;
}

static struct jinja_value evaluate_slice(const struct jinja_evaluator *e, const struct jinja_node *node) {
    const struct jinja_value value = jinja_evaluate(e, node->left);
    struct jinja_value bounds[3];
    for (size_t i = 0; i < 3; i++)
        bounds[i] = node->items[i] != NULL ? jinja_evaluate(e, node->items[i]) : jinja_none();
    return jinja_slice(e->run, &value, &bounds[0], &bounds[1], &bounds[2]);
}

static void evaluate_arguments(const struct jinja_evaluator *e, const struct jinja_node *node,
                               struct jinja_arguments *arguments) {
    arguments->count = node->count;
    for (size_t i = 0; i < node->count; i++) {
        arguments->values[i] = jinja_evaluate(e, node->items[i]);
        arguments->names[i] = node->names[i];
    }
}

static struct jinja_value evaluate_name(const struct jinja_evaluator *e, const char *name) {
    const struct jinja_value value = jinja_scope_get(e->run, e->scope, name);
    enum jinja_function function;
    /* A template that asks whether there is a clock has a date of its own for engines without one.  It gets none: with
     * today's date in it, what was saved of a prompt yesterday would be of no use. */
    if (value.kind != JINJA_UNDEFINED || !jinja_find_function(name, &function) || function == JINJA_STRFTIME)
        return value;
    return (struct jinja_value){.kind = JINJA_FUNCTION, .function = (int)function};
}

static struct jinja_value call(const struct jinja_evaluator *e, const struct jinja_node *node) {
    struct jinja_arguments arguments;
    enum jinja_function function;
    struct jinja_value callee = jinja_evaluate(e, node->left);
    if (callee.kind == JINJA_UNDEFINED && node->left->kind == NODE_NAME &&
        jinja_find_function(node->left->name, &function))
        callee = (struct jinja_value){.kind = JINJA_FUNCTION, .function = (int)function};
    evaluate_arguments(e, node, &arguments);
    if (jinja_failed(e->run)) return jinja_undefined(NULL);
    e->run->line = node->line;
    const char *name = callee.kind == JINJA_METHOD ? jinja_method_filter(callee.method) : NULL;
    if (name != NULL) return jinja_call_filter(e->run, jinja_find_filter(name), &callee.method->self, &arguments);
    if (callee.kind == JINJA_METHOD) return jinja_call_method(e->run, callee.method, &arguments);
    if (callee.kind == JINJA_FUNCTION)
        return jinja_call_function(e->run, (enum jinja_function)callee.function, &arguments);
    if (callee.kind == JINJA_MACRO) return e->call_macro(e->run, callee.macro, &arguments);
    return jinja_fail(e->run, STATUS_UNSUPPORTED, "there is no function or method '%.60s'",
                      node->left->name != NULL ? node->left->name : "");
}

static struct jinja_value filter(const struct jinja_evaluator *e, const struct jinja_node *node) {
    struct jinja_arguments arguments;
    const struct jinja_value value = jinja_evaluate(e, node->left);
    evaluate_arguments(e, node, &arguments);
    e->run->line = node->line;
    return jinja_call_filter(e->run, node->filter, &value, &arguments);
}

static struct jinja_value check(const struct jinja_evaluator *e, const struct jinja_node *node) {
    struct jinja_arguments arguments;
    const struct jinja_value value = jinja_evaluate(e, node->left);
    evaluate_arguments(e, node, &arguments);
    e->run->line = node->line;
    return jinja_bool(jinja_call_check(e->run, node->check, &value, &arguments));
}

/* Evaluates nodes that hold two values, or a name and a value. */
static struct jinja_value evaluate_pair(const struct jinja_evaluator *e, const struct jinja_node *node) {
    const struct jinja_value left = jinja_evaluate(e, node->left);
    e->run->line = node->line;
    if (node->kind == NODE_MEMBER) return jinja_attribute(e->run, &left, node->name);
    if (node->kind == NODE_AND && !jinja_is_true(&left)) return left;
    if (node->kind == NODE_OR && jinja_is_true(&left)) return left;
    const struct jinja_value right = jinja_evaluate(e, node->right);
    e->run->line = node->line;
    if (node->kind == NODE_ITEM) return jinja_item(e->run, &left, &right);
    return node->kind == NODE_OPERATE ? jinja_operate(e->run, node->operation, &left, &right) : right;
}

static struct jinja_value evaluate(const struct jinja_evaluator *e, const struct jinja_node *node) {
    struct jinja_value value;
    switch (node->kind) {
    case NODE_CONSTANT: return node->constant;
    case NODE_NAME: return evaluate_name(e, node->name);
    case NODE_LIST:
    case NODE_TUPLE: return evaluate_items(e, node);
    case NODE_MAP: return evaluate_map(e, node);
    case NODE_NOT: value = jinja_evaluate(e, node->left); return jinja_bool(!jinja_is_true(&value));
    case NODE_MINUS:
    case NODE_PLUS: return evaluate_sign(e, node);
    case NODE_AND:
    case NODE_OR:
    case NODE_OPERATE:
    case NODE_MEMBER:
    case NODE_ITEM: return evaluate_pair(e, node);
    case NODE_COMPARE: return compare(e, node);
    case NODE_CHOICE:
        value = jinja_evaluate(e, node->right);
        if (jinja_is_true(&value)) return jinja_evaluate(e, node->left);
        return node->third != NULL ? jinja_evaluate(e, node->third) : jinja_undefined(NULL);
    case NODE_SLICE: return evaluate_slice(e, node);
    case NODE_CALL: return call(e, node);
    case NODE_FILTER: return filter(e, node);
    case NODE_CHECK: return check(e, node);
    case NODE_TEXT:
    case NODE_OUTPUT:
    case NODE_BODY:
    case NODE_IF:
    case NODE_FOR:
    case NODE_SET:
    case NODE_SET_BODY:
    case NODE_MACRO:
    case NODE_BREAK:
    case NODE_CONTINUE: break;
    }
    return jinja_undefined(NULL);
}

struct jinja_value jinja_evaluate(const struct jinja_evaluator *e, const struct jinja_node *node) {
    struct jinja_run *run = e->run;
    if (jinja_failed(run) || !jinja_charge(run, 1)) return jinja_undefined(NULL);
    if (++run->depth > JINJA_DEPTH_MAX) jinja_fail(run, STATUS_USAGE, "tokenizer.chat_template nests too deeply");
    const struct jinja_value value = jinja_failed(run) ? jinja_undefined(NULL) : evaluate(e, node);
    run->depth--;
    return jinja_failed(run) ? jinja_undefined(NULL) : value;
}
