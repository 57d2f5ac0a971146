/* Statements to text, and the library's front. */
#include <stdlib.h>
#include <string.h>

#include "jinja/node_internal.h"

enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };

struct renderer {
    struct jinja_evaluator evaluator;
    struct jinja_builder *output;
};

static enum flow render(const struct renderer *r, const struct jinja_node *node);

static struct jinja_value call_macro(struct jinja_run *run, const struct jinja_macro *macro,
                                     const struct jinja_arguments *arguments) {
    const struct jinja_node *node = macro->node;
    struct jinja_builder builder = {.run = run};
    struct jinja_scope *scope = jinja_scope_create(run, macro->scope);
    const struct renderer inner = {.evaluator = {run, scope, call_macro}, .output = &builder};
    size_t used = 0;
    for (size_t i = 0; i < node->count && !jinja_failed(run); i++) {
        const struct jinja_value *given = jinja_argument(arguments, i, node->names[i]);
        struct jinja_value value = jinja_undefined(node->names[i]);
        if (given != NULL)
            value = *given;
        else if (node->items[i] != NULL)
            value = jinja_evaluate(&inner.evaluator, node->items[i]);
        jinja_scope_set(run, scope, node->names[i], value);
        used += given != NULL;
    }
    if (used < arguments->count)
        return jinja_fail(run, STATUS_UNSUPPORTED, "the macro '%.60s' has no such parameters", node->name);
    if (!jinja_failed(run)) (void)render(&inner, node->right);
    return jinja_built(&builder);
}

static void define_macro(const struct renderer *r, const struct jinja_node *node) {
    struct jinja_macro *macro = jinja_allocate(r->evaluator.run, sizeof *macro);
    if (macro == NULL) return;
    *macro = (struct jinja_macro){node, r->evaluator.scope};
    jinja_scope_set(r->evaluator.run, r->evaluator.scope, node->name,
                    (struct jinja_value){.kind = JINJA_MACRO, .macro = macro});
}

static enum flow render_if(const struct renderer *r, const struct jinja_node *node) {
    for (; node != NULL && node->kind == NODE_IF; node = node->third) {
        const struct jinja_value condition = jinja_evaluate(&r->evaluator, node->left);
        if (jinja_is_true(&condition)) return render(r, node->right);
        if (jinja_failed(r->evaluator.run)) return FLOW_ON;
    }
    return node != NULL ? render(r, node) : FLOW_ON;
}

/* The items for which the loop's condition holds. */
static const struct jinja_list *filtered(const struct renderer *r, const struct jinja_node *node,
                                         const struct jinja_list *items) {
    struct jinja_run *run = r->evaluator.run;
    struct jinja_value kept = jinja_list(run, false);
    for (size_t i = 0; i < items->count && !jinja_failed(run); i++) {
        struct jinja_evaluator inner = r->evaluator;
        inner.scope = jinja_scope_create(run, r->evaluator.scope);
        if (jinja_failed(run)) break;
        jinja_scope_assign(run, inner.scope, node, items->items[i]);
        const struct jinja_value holds = jinja_evaluate(&inner, node->fourth);
        if (jinja_is_true(&holds)) jinja_list_add(run, kept.list, items->items[i]);
    }
    return jinja_failed(run) ? NULL : kept.list;
}

static void render_for(const struct renderer *r, const struct jinja_node *node) {
    struct jinja_run *run = r->evaluator.run;
    const struct jinja_value value = jinja_evaluate(&r->evaluator, node->left);
    if (jinja_failed(run)) return;
    run->line = node->line;
    const struct jinja_list *items = jinja_items(run, &value);
    if (items != NULL && node->fourth != NULL) items = filtered(r, node, items);
    struct jinja_loop *loop = jinja_allocate(run, sizeof *loop);
    if (items == NULL || loop == NULL) return;
    struct renderer inner = *r;
    *loop = (struct jinja_loop){.items = items};
    for (; loop->index < items->count && !jinja_failed(run); loop->index++) {
        inner.evaluator.scope = jinja_scope_create(run, r->evaluator.scope);
        if (jinja_failed(run)) return;
        jinja_scope_set(run, inner.evaluator.scope, "loop", (struct jinja_value){.kind = JINJA_LOOP, .loop = loop});
        jinja_scope_assign(run, inner.evaluator.scope, node, items->items[loop->index]);
        if (render(&inner, node->right) == FLOW_BREAK) break;
    }
    if (items->count == 0 && node->third != NULL) (void)render(r, node->third);
}

static void render_set(const struct renderer *r, const struct jinja_node *node) {
    struct jinja_run *run = r->evaluator.run;
    const struct jinja_value value = jinja_evaluate(&r->evaluator, node->left);
    run->line = node->line;
    if (node->name == NULL) {
        jinja_scope_assign(run, r->evaluator.scope, node, value);
        return;
    }
    const struct jinja_value space = jinja_scope_get(run, r->evaluator.scope, node->items[0]->name);
    if (space.kind != JINJA_MAP || !space.map->is_namespace) {
        jinja_fail(run, STATUS_UNSUPPORTED, "'%.60s' is no namespace", node->items[0]->name);
        return;
    }
    jinja_map_set(run, space.map, jinja_text_word(run, node->name), value);
}

static void render_set_body(const struct renderer *r, const struct jinja_node *node) {
    struct jinja_run *run = r->evaluator.run;
    struct jinja_builder builder = {.run = run};
    struct renderer inner = *r;
    inner.output = &builder;
    inner.evaluator.scope = jinja_scope_create(run, r->evaluator.scope);
    if (jinja_failed(run)) return;
    (void)render(&inner, node->right);
    jinja_scope_set(run, inner.evaluator.scope, "", jinja_built(&builder));
    jinja_scope_assign(run, r->evaluator.scope, node, jinja_evaluate(&inner.evaluator, node->left));
}

static enum flow render_body(const struct renderer *r, const struct jinja_node *node) {
    for (size_t i = 0; i < node->count && !jinja_failed(r->evaluator.run); i++) {
        const enum flow flow = render(r, node->items[i]);
        if (flow != FLOW_ON) return flow;
    }
    return FLOW_ON;
}

static enum flow render_node(const struct renderer *r, const struct jinja_node *node) {
    struct jinja_value value;
    switch (node->kind) {
    case NODE_TEXT: jinja_put_text(r->output, &node->text, 0, node->text.length); break;
    case NODE_OUTPUT:
        value = jinja_evaluate(&r->evaluator, node->left);
        r->evaluator.run->line = node->line;
        if (!jinja_failed(r->evaluator.run)) jinja_print(r->output, &value);
        break;
    case NODE_BODY: return render_body(r, node);
    case NODE_IF: return render_if(r, node);
    case NODE_FOR: render_for(r, node); break;
    case NODE_SET: render_set(r, node); break;
    case NODE_SET_BODY: render_set_body(r, node); break;
    case NODE_MACRO: define_macro(r, node); break;
    case NODE_BREAK: return FLOW_BREAK;
    case NODE_CONTINUE: return FLOW_CONTINUE;
    case NODE_CONSTANT:
    case NODE_NAME:
    case NODE_LIST:
    case NODE_TUPLE:
    case NODE_MAP:
    case NODE_NOT:
    case NODE_MINUS:
    case NODE_PLUS:
    case NODE_AND:
    case NODE_OR:
    case NODE_OPERATE:
    case NODE_COMPARE:
    case NODE_CHOICE:
    case NODE_MEMBER:
    case NODE_ITEM:
    case NODE_SLICE:
    case NODE_CALL:
    case NODE_FILTER:
    case NODE_CHECK: break;
    }
    return FLOW_ON;
}

static enum flow render(const struct renderer *r, const struct jinja_node *node) {
    struct jinja_run *run = r->evaluator.run;
    if (node == NULL || jinja_failed(run) || !jinja_charge(run, 1)) return FLOW_ON;
    if (++run->depth > JINJA_DEPTH_MAX) jinja_fail(run, STATUS_USAGE, "tokenizer.chat_template nests too deeply");
    const enum flow flow = jinja_failed(run) ? FLOW_ON : render_node(r, node);
    run->depth--;
    return flow;
}

/* ---- the front ---- */

/* Line ends as \n, and without the last one, as Jinja reads a source. */
static char *read_source(struct arena *arena, const char *source, size_t *length) {
    char *text = arena_allocate(arena, *length + 1);
    size_t count = 0;
    if (text == NULL) return NULL;
    for (size_t i = 0; i < *length; i++) {
        const bool is_return = source[i] == '\r';
        if (is_return && i + 1 < *length && source[i + 1] == '\n') continue;
        text[count++] = is_return ? '\n' : source[i];
    }
    if (count > 0 && text[count - 1] == '\n') count--;
    *length = count;
    return text;
}

static enum status parse(struct jinja_program *program, const char *source, size_t length, struct error *error) {
    const char *text = read_source(&program->arena, source, &length);
    if (text == NULL) return error_set(error, STATUS_MEMORY, "no memory for the chat template");
    struct jinja_parser parser = {.program = program,
                                  .error = error,
                                  .lexer = {.arena = &program->arena,
                                            .source = text,
                                            .length = length,
                                            .line = 1,
                                            .line_is_starting = true,
                                            .error = error}};
    jinja_parser_advance(&parser);
    program->body = jinja_parse_body(&parser, NULL, 0);
    return parser.status;
}

enum status jinja_program_create(struct jinja_program **program, const char *source, size_t length,
                                 struct error *error) {
    *program = NULL;
    if (length > JINJA_SOURCE_BYTES_MAX)
        return error_set(error, STATUS_UNSUPPORTED, "tokenizer.chat_template: found %zu bytes, expected at most %d",
                         length, JINJA_SOURCE_BYTES_MAX);
    struct jinja_program *made = calloc(1, sizeof *made);
    if (made == NULL) return error_set(error, STATUS_MEMORY, "no memory for the chat template");
    arena_init(&made->arena);
    const enum status status = parse(made, source, length, error);
    if (status != STATUS_OK) {
        jinja_program_destroy(made);
        return status;
    }
    *program = made;
    return STATUS_OK;
}

void jinja_program_destroy(struct jinja_program *program) {
    if (program == NULL) return;
    arena_deinit(&program->arena);
    free(program);
}

bool jinja_program_reads(const struct jinja_program *program, const char *name) {
    for (size_t i = 0; i < program->name_count; i++)
        if (strcmp(program->names[i], name) == 0) return true;
    return false;
}

static struct jinja_value make_messages(struct jinja_run *run, const struct jinja_input *input) {
    struct jinja_value list = jinja_list(run, false);
    for (size_t i = 0; i < input->message_count && !jinja_failed(run); i++) {
        const struct jinja_message *message = &input->messages[i];
        struct jinja_value map = jinja_map(run, false);
        if (jinja_failed(run)) break;
        jinja_map_set(run, map.map, jinja_text_word(run, "role"), jinja_text_word(run, message->role));
        jinja_map_set(run, map.map, jinja_text_word(run, "content"),
                      message->content != NULL ? jinja_text_value(run, message->content, message->length, false)
                                               : jinja_none());
        const struct jinja_value more = message->more != NULL ? jinja_from_json(run, message->more) : jinja_none();
        for (size_t n = 0; more.kind == JINJA_MAP && n < more.map->count && !jinja_failed(run); n++)
            jinja_map_set(run, map.map, more.map->entries[n].key, more.map->entries[n].value);
        jinja_list_add(run, list.list, map);
    }
    return list;
}

static void set_variables(struct jinja_run *run, const struct jinja_input *input) {
    jinja_scope_set(run, run->top, "messages", make_messages(run, input));
    for (size_t i = 0; i < input->variable_count && !jinja_failed(run); i++) {
        const struct jinja_variable *variable = &input->variables[i];
        jinja_scope_set(run, run->top, variable->name,
                        variable->json != NULL
                            ? jinja_from_json(run, variable->json)
                            : jinja_text_value(run, variable->text, variable->length, variable->by_template));
    }
}

void jinja_output_deinit(struct jinja_output *output) {
    free(output->bytes);
    free(output->marks);
    *output = (struct jinja_output){0};
}

static enum status take_output(const struct jinja_builder *builder, struct jinja_output *output, struct error *error) {
    output->length = builder->length;
    if (builder->length == 0) return STATUS_OK;
    output->bytes = malloc(builder->length);
    output->marks = malloc(builder->length);
    if (output->bytes == NULL || output->marks == NULL) {
        jinja_output_deinit(output);
        return error_set(error, STATUS_MEMORY, "no memory for a conversation");
    }
    memcpy(output->bytes, builder->bytes, builder->length);
    if (builder->marks != NULL)
        memcpy(output->marks, builder->marks, builder->length);
    else
        memset(output->marks, builder->by_template, builder->length);
    return STATUS_OK;
}

enum status jinja_render(const struct jinja_program *program, const struct jinja_input *input,
                         struct jinja_output *output, struct error *error) {
    struct jinja_run run;
    struct jinja_builder builder = {.run = &run};
    *output = (struct jinja_output){0};
    jinja_run_init(&run, &input->limits, error);
    run.now = input->now;
    run.top = jinja_scope_create(&run, NULL);
    if (!jinja_failed(&run)) set_variables(&run, input);
    const struct renderer renderer = {.evaluator = {&run, run.top, call_macro}, .output = &builder};
    (void)render(&renderer, program->body);
    enum status status = run.status;
    if (status == STATUS_OK) status = take_output(&builder, output, error);
    output->steps = run.steps;
    jinja_run_deinit(&run);
    return status;
}
