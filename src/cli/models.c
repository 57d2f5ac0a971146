/* loam models: what was pulled, and what can be by name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/command.h"
#include "cli/json_file.h"
#include "cli/output.h"
#include "cli/table.h"
#include "cli/utf8.h"
#include "format/gguf.h"
#include "pull/known_model.h"
#include "pull/model_folder.h"
#include "server/json_text.h"

enum { SHOWN_BYTES = 64, KEY_BYTES = 80 };

/* The tokens that the file says its model was made for; 0: it says nothing, or is no model. */
static uint64_t read_context(const char *path) {
    struct gguf gguf = {0};
    struct error none;
    struct gguf_string name = {0};
    uint64_t context = 0;
    char key[KEY_BYTES];
    if (gguf_open(&gguf, path, &none) == STATUS_OK &&
        gguf_get_string(&gguf, "general.architecture", &name, &none) == STATUS_OK && name.length < KEY_BYTES / 2) {
        snprintf(key, sizeof key, "%.*s.context_length", (int)name.length, name.text);
        if (gguf_get_uint(&gguf, key, UINT32_MAX, &context, &none) != STATUS_OK) context = 0;
    }
    gguf_close(&gguf);
    return context;
}

static const char *tokens_text(uint64_t tokens, char text[32]) {
    if (tokens == 0)
        snprintf(text, 32, "-");
    else
        snprintf(text, 32, "%lluK", (unsigned long long)(tokens + 512) / 1024);
    return text;
}

/* The short name that -m takes as well. */
static const char *short_name(const char *file) {
    for (size_t i = 0; i < known_model_count; i++)
        if (strcmp(known_models[i].file, file) == 0) return known_models[i].name;
    return "-";
}

static void add_pulled(struct table *table, const struct model_entry *entry) {
    char size[32], context[32], license[SHOWN_BYTES], name[2 * SHOWN_BYTES];
    const char *terms = entry->license != NULL ? entry->license : "-";
    table_cell(table, "%s", utf8_escape(entry->name, strlen(entry->name), name, sizeof name));
    table_cell(table, "%s", short_name(entry->name));
    table_cell(table, "%s", bytes_text(entry->size_bytes, size, sizeof size));
    table_cell(table, "%s", tokens_text(entry->is_part ? 0 : read_context(entry->path), context));
    table_cell(table, "%s", utf8_escape(terms, strlen(terms), license, sizeof license));
    table_cell(table, "%s", entry->is_part ? "not whole: pull it again" : "ready");
}

static void add_known(struct table *table, const struct known_model *known) {
    char size[32], context[32], kv[32];
    table_cell(table, "%s", known->name);
    table_cell(table, "%s", bytes_text(known->size_bytes, size, sizeof size));
    table_cell(table, "%s", tokens_text(known->context, context));
    table_cell(table, "%s", bytes_text(known->size_bytes + 32768 * known->kv_bytes, kv, sizeof kv));
    table_cell(table, "%s", known->license);
    table_cell(table, "hf:%s:%s", known->repository, known->file);
}

static enum status print_table(struct table *table, struct error *error) {
    struct text text = {0};
    table_write(table, &text);
    if (!text.failed) output_bytes(text.bytes, text.length);
    const bool failed = text.failed;
    text_deinit(&text);
    table_deinit(table);
    return failed ? error_set(error, STATUS_MEMORY, "models: out of memory") : STATUS_OK;
}

static enum status print_tables(const struct model_list *list, const char *folder, struct error *error) {
    static const char *const pulled[] = {"file", "name", "size", "context", "licence", "state"},
                             *const known[] = {"name", "size", "context", "RAM at 32K", "licence", "source"};
    enum { COLUMNS = sizeof pulled / sizeof *pulled };
    struct table table = {.column_count = COLUMNS, .is_number = {[2] = true, [3] = true}};
    if (list->count > 0) {
        output_text("In %s:\n\n", folder);
        for (size_t i = 0; i < COLUMNS; i++) table_cell(&table, "%s", pulled[i]);
        for (size_t i = 0; i < list->count; i++) add_pulled(&table, &list->entries[i]);
        TRY(print_table(&table, error));
    } else {
        output_text("No models in %s.\n", folder);
    }
    output_text("\nFor long contexts, by loam pull NAME:\n\n");
    table = (struct table){.column_count = COLUMNS, .is_number = {[1] = true, [2] = true, [3] = true}};
    for (size_t i = 0; i < COLUMNS; i++) table_cell(&table, "%s", known[i]);
    for (size_t i = 0; i < known_model_count; i++) add_known(&table, &known_models[i]);
    TRY(print_table(&table, error));
    return output_flush(error);
}

static enum status print_json(const struct model_list *list, const char *folder, struct error *error) {
    json_t *models = json_array(), *known = json_array();
    json_t *root = JSON({"folder", json_text(folder, strlen(folder))});
    for (size_t i = 0; i < list->count; i++) {
        const struct model_entry *entry = &list->entries[i];
        (void)json_array_append_new(
            models, JSON({"name", json_text(entry->name, strlen(entry->name))},
                         {"path", json_text(entry->path, strlen(entry->path))}, {"bytes", json_uint(entry->size_bytes)},
                         {"context", json_uint(entry->is_part ? 0 : read_context(entry->path))},
                         {"license", entry->license != NULL ? json_string(entry->license) : json_null()},
                         {"url", entry->url != NULL ? json_string(entry->url) : json_null()},
                         {"ready", json_boolean(!entry->is_part)}));
    }
    for (size_t i = 0; i < known_model_count; i++) {
        (void)json_array_append_new(
            known,
            JSON({"name", json_string(known_models[i].name)}, {"repository", json_string(known_models[i].repository)},
                 {"file", json_string(known_models[i].file)}, {"bytes", json_uint(known_models[i].size_bytes)},
                 {"context", json_uint(known_models[i].context)}, {"license", json_string(known_models[i].license)}));
    }
    JSON_PUT(root, {"models", models}, {"known", known});
    enum status status = json_print(root, JSON_INDENT(1), error);
    json_decref(root);
    return status;
}

enum status models_command(const struct options *options, struct error *error) {
    struct model_list list = {0};
    char *folder;
    TRY(model_folder_path(&folder, error));
    enum status status = model_list_read(&list, error);
    if (status == STATUS_OK)
        status =
            option_flag(options, OPTION_JSON) ? print_json(&list, folder, error) : print_tables(&list, folder, error);
    model_list_deinit(&list);
    free(folder);
    return status;
}
