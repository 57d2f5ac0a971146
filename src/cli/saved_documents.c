/* loam ls, show, rm, verify: the documents that --kv-disk DIR holds.
 *
 * None of them makes a folder or a catalog (store_open_existing). */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/array.h"
#include "cache/inputs.h"
#include "cache/store/conversations.h"
#include "cli/command.h"
#include "cli/json_file.h"
#include "cli/kv_disk.h"
#include "cli/output.h"
#include "cli/page_fractions.h"
#include "cli/table.h"
#include "cli/utf8.h"
#include "server/json_text.h"

enum { TIME_BYTES = 32, SHOWN_BYTES = 48 };

/* ---- the store ---- */

static enum status open_store(struct store **store, const struct options *options, enum store_purpose purpose,
                              struct error *error) {
    const char *text = option_text(options, OPTION_KV_DISK);
    struct kv_disk disk;
    if (text == NULL)
        return error_set(error, STATUS_USAGE, "%s: which folder of saved documents?  --kv-disk DIR",
                         options->command->name);
    TRY(kv_disk_parse(&disk, text, error));
    enum status status = store_open_existing(store, disk.directory, purpose, error);
    kv_disk_deinit(&disk);
    if (status == STATUS_OK && store_warning(*store) != NULL)
        fprintf(stderr, "loam: note: %s\n", store_warning(*store));
    return status;
}

/* ---- one document ---- */

static const char *state_of(const struct document_info *info) {
    if (info->damaged != NULL) return "damaged";
    if (info->is_other) return "other version";
    if (info->in_use) return "in use";
    return info->token_count == 0 ? "empty" : "ready";
}

static const char *time_text(int64_t seconds, char text[TIME_BYTES]) {
    struct tm utc;
    time_t time = (time_t)seconds;
    text[0] = '\0';
    if (gmtime_r(&time, &utc) == NULL || strftime(text, TIME_BYTES, "%Y-%m-%dT%H:%M:%SZ", &utc) == 0)
        snprintf(text, TIME_BYTES, "%" PRId64, seconds);
    return text;
}

/* The texts come from a file; the terminal must only show them. */
static const char *shown(const char *text, char *buffer, size_t buffer_bytes) {
    return utf8_escape(text, strlen(text), buffer, buffer_bytes);
}

static const char *fingerprint_text(const struct document_info *info, char text[2 * STORE_FINGERPRINT_BYTES + 1]) {
    for (size_t i = 0; i < STORE_FINGERPRINT_BYTES; i++) sprintf(text + 2 * i, "%02x", info->fingerprint[i]);
    return text;
}

static json_t *info_json(const struct document_info *info) {
    char time[TIME_BYTES], fingerprint[2 * STORE_FINGERPRINT_BYTES + 1];
    json_t *object =
        JSON({"id", json_uint(info->id)}, {"name", json_text(info->name, strlen(info->name))},
             {"state", json_string(state_of(info))},
             {"damaged", info->damaged != NULL ? json_text(info->damaged, strlen(info->damaged)) : json_null()},
             {"version", json_uint(info->version)}, {"tokens", json_uint(info->token_count)},
             {"bytes", json_uint(info->bytes)}, {"commits", json_uint(info->commits)},
             {"created", json_string(time_text(info->created, time))},
             {"used", json_string(time_text(info->used, time))}, {"model", json_text(info->model, strlen(info->model))},
             {"layout", json_text(info->layout, strlen(info->layout))});
    if (info->fractions != NULL) {
        JSON_PUT(object, {"quantized_fraction", json_number(fractions_mean(info->fractions, info->token_count))},
                 {"quantized_fraction_by_layer", fractions_layers_json(info->fractions, info->token_count)});
    }
    json_put(object, "fingerprint", json_string(fingerprint_text(info, fingerprint)));
    return object;
}

/* ---- ls ---- */

struct listing {
    struct table table;
    json_t *documents; /* array; NULL: the table is wanted */
    size_t count;
    uint64_t bytes;
};

static void list_document(void *context, const struct document_info *info) {
    struct listing *listing = context;
    listing->count++;
    listing->bytes += info->bytes;
    if (listing->documents != NULL) {
        (void)json_array_append_new(listing->documents, info_json(info));
        return;
    }
    char size[32], time[TIME_BYTES], name[SHOWN_BYTES], model[SHOWN_BYTES];
    table_cell(&listing->table, "%" PRIu64, info->id);
    table_cell(&listing->table, "%s", shown(info->name, name, sizeof name));
    table_cell(&listing->table, "%" PRIu64, info->token_count);
    table_cell(&listing->table, "%s", bytes_text(info->bytes, size, sizeof size));
    table_cell(&listing->table, "%s", time_text(info->used, time));
    table_cell(&listing->table, "%s", state_of(info));
    table_cell(&listing->table, "%s", shown(info->model, model, sizeof model));
}

static enum status print_listing(const struct listing *listing, const struct options *options, struct error *error) {
    if (listing->documents != NULL) return json_print(listing->documents, JSON_INDENT(1), error);
    if (listing->count == 0) {
        fprintf(stderr, "loam: no saved documents in %s\n", option_text(options, OPTION_KV_DISK));
        return STATUS_OK;
    }
    char size[32];
    struct text text = {0};
    table_write(&listing->table, &text);
    if (!text.failed) output_bytes(text.bytes, text.length);
    bool failed = text.failed;
    text_deinit(&text);
    if (failed) return error_set(error, STATUS_MEMORY, "ls: out of memory");
    output_text("%zu document%s, %s\n", listing->count, listing->count == 1 ? "" : "s",
                bytes_text(listing->bytes, size, sizeof size));
    return output_flush(error);
}

static void count_conversation(void *context, const struct conversation_row *row) {
    struct listing *listing = context;
    listing->count++;
    listing->bytes += row->length;
}

/* A line where there are some: what people wrote is in the folder, too. */
static enum status print_conversations(const struct options *options, struct error *error) {
    struct listing found = {.count = 0};
    struct kv_disk disk;
    char size[32];
    TRY(kv_disk_parse(&disk, option_text(options, OPTION_KV_DISK), error));
    const enum status status = conversations_see(disk.directory, NULL, NULL, count_conversation, &found, error);
    kv_disk_deinit(&disk);
    if (status != STATUS_OK || found.count == 0) return status;
    output_text("%zu conversation%s of the server's page, %s\n", found.count, found.count == 1 ? "" : "s",
                bytes_text(found.bytes, size, sizeof size));
    return output_flush(error);
}

enum status ls_command(const struct options *options, struct error *error) {
    static const char *const headings[] = {"id", "name", "tokens", "size", "last used", "state", "model"};
    enum { COLUMNS = sizeof headings / sizeof headings[0] };
    struct store *store = NULL;
    struct listing listing = {.table = {.column_count = COLUMNS, .is_number = {true, false, true, true}}};
    TRY(open_store(&store, options, STORE_LOOK, error));
    if (option_flag(options, OPTION_JSON)) listing.documents = json_array();
    for (size_t i = 0; i < COLUMNS; i++) table_cell(&listing.table, "%s", headings[i]);
    enum status status = store_list(store, list_document, &listing, error);
    if (status == STATUS_OK) status = print_listing(&listing, options, error);
    if (status == STATUS_OK && listing.documents == NULL) status = print_conversations(options, error);
    json_decref(listing.documents);
    table_deinit(&listing.table);
    store_close(store);
    return status;
}

/* ---- show ---- */

struct shown_document {
    struct kept_inputs inputs; /* that go with it */
    json_t *object;
};

static const char *holds(const struct document_info *info) {
    return inputs_is_layout(info->layout) ? "inputs of layers" : "KV";
}

static void show_text(void *context, const struct document_info *info) {
    const struct shown_document *document = context;
    char text[4 * STORE_TEXT_MAX], size[32], time[TIME_BYTES], hex[2 * STORE_FINGERPRINT_BYTES + 1];
    char fractions[FRACTIONS_TEXT_BYTES];
    output_text("document     %" PRIu64 "\n", info->id);
    output_text("name         %s\n", shown(info->name, text, sizeof text));
    output_text("state        %s\n", state_of(info));
    if (info->damaged != NULL) output_text("reason       %s\n", shown(info->damaged, text, sizeof text));
    output_text("version      %u%s\n", info->version,
                info->is_other ? ", which this loam does not read: it is not used, and stays" : "");
    output_text("tokens       %" PRIu64 "\n", info->token_count);
    output_text("size         %" PRIu64 " bytes (%s)\n", info->bytes, bytes_text(info->bytes, size, sizeof size));
    output_text("commits      %" PRIu64 "\n", info->commits);
    output_text("created      %s\n", time_text(info->created, time));
    output_text("last used    %s\n", time_text(info->used, time));
    output_text("model        %s\n", shown(info->model, text, sizeof text));
    output_text("layout       %s\n", shown(info->layout, text, sizeof text));
    output_text("holds        %s\n", holds(info));
    if (document->inputs.document != 0)
        output_text("inputs       document %" PRIu64 ", of %" PRIu64 " of its tokens\n", document->inputs.document,
                    document->inputs.token_count);
    if (info->fractions != NULL)
        output_text("in 4 bits    %s of the pages\n", fractions_text(info->fractions, info->token_count, fractions));
    output_text("fingerprint  %s\n", fingerprint_text(info, hex));
}

static void show_json(void *context, const struct document_info *info) {
    struct shown_document *document = context;
    document->object = info_json(info);
    json_put(document->object, "holds", json_string(inputs_is_layout(info->layout) ? "inputs" : "kv"));
    if (document->inputs.document == 0) return;
    json_put_uint(document->object, "inputs", document->inputs.document);
    json_put_uint(document->object, "inputs_tokens", document->inputs.token_count);
}

enum status show_command(const struct options *options, struct error *error) {
    struct store *store = NULL;
    uint64_t id;
    struct shown_document document = {.object = NULL};
    bool json = option_flag(options, OPTION_JSON);
    TRY(kv_disk_read_id(options->positionals[0], &id, error));
    TRY(open_store(&store, options, STORE_LOOK, error));
    struct error unused; /* of a damaged document nothing else can be said */
    enum status found = kept_inputs_find(store, id, &document.inputs, &unused);
    enum status status = found == STATUS_MEMORY ? found : STATUS_OK;
    if (status != STATUS_OK) *error = unused;
    if (status == STATUS_OK) status = store_show(store, id, json ? show_json : show_text, &document, error);
    if (status == STATUS_OK) status = json ? json_print(document.object, JSON_INDENT(1), error) : output_flush(error);
    json_decref(document.object);
    store_close(store);
    return status;
}

/* ---- rm ---- */

enum status rm_command(const struct options *options, struct error *error) {
    struct store *store = NULL;
    enum status status = STATUS_OK;
    uint64_t id;
    for (size_t i = 0; i < options->positional_count; i++) /* all of them before any is gone */
        TRY(kv_disk_read_id(options->positionals[i], &id, error));
    TRY(open_store(&store, options, STORE_CHANGE, error));
    for (size_t i = 0; status == STATUS_OK && i < options->positional_count; i++) {
        status = kv_disk_read_id(options->positionals[i], &id, error);
        if (status == STATUS_OK) status = store_remove(store, id, error);
        if (status == STATUS_OK) output_text("removed document %" PRIu64 "\n", id);
    }
    store_close(store);
    /* STATUS_FULL means memory; a document that somebody has open is another failure (exit code 1). */
    if (status == STATUS_FULL) status = error->status = STATUS_FAILED;
    return status;
}

/* ---- verify ---- */

struct verification {
    struct store *store;
    uint64_t *ids; /* owned */
    size_t count, capacity, damaged_count;
    bool failed;    /* no memory for ids */
    json_t *report; /* array; NULL: lines are wanted */
};

static void add_id(struct verification *v, uint64_t id) {
    if (array_reserve(&v->ids, v->count, &v->capacity, sizeof *v->ids))
        v->ids[v->count++] = id;
    else
        v->failed = true;
}

/* A document without a commit has nothing to verify. */
static void take_id(void *context, const struct document_info *info) {
    if (info->token_count > 0 || info->damaged != NULL) add_id(context, info->id);
}

static void report_document(struct verification *v, uint64_t id, const char *damage) {
    if (v->report == NULL) {
        char text[4 * STORE_TEXT_MAX];
        if (damage == NULL)
            output_text("document %" PRIu64 ": ok\n", id);
        else
            output_text("document %" PRIu64 ": damaged: %s\n", id, shown(damage, text, sizeof text));
        return;
    }
    (void)json_array_append_new(v->report,
                                JSON({"id", json_uint(id)}, {"ok", json_boolean(damage == NULL)},
                                     {"damaged", damage != NULL ? json_text(damage, strlen(damage)) : json_null()}));
}

/* A document that cannot be read does not stop the others.  The first such failure is reported at the end. */
static enum status verify_documents(struct verification *v, struct error *error) {
    enum status first = STATUS_OK;
    for (size_t i = 0; i < v->count; i++) {
        struct error why;
        enum status status = store_verify(v->store, v->ids[i], &why);
        if (status == STATUS_OK || status == STATUS_DOCUMENT) {
            v->damaged_count += status == STATUS_DOCUMENT;
            report_document(v, v->ids[i], status == STATUS_DOCUMENT ? why.message : NULL);
            TRY(output_flush(error)); /* a document of gigabytes takes its time */
        } else if (first == STATUS_OK) {
            first = status;
            *error = why;
        }
    }
    return first;
}

static enum status verify(struct verification *v, const struct options *options, struct error *error) {
    uint64_t id;
    for (size_t i = 0; i < options->positional_count; i++) {
        TRY(kv_disk_read_id(options->positionals[i], &id, error));
        add_id(v, id);
    }
    if (options->positional_count == 0) TRY(store_list(v->store, take_id, v, error));
    if (v->failed) return error_set(error, STATUS_MEMORY, "verify: out of memory");
    enum status status = verify_documents(v, error);
    if (v->report != NULL) TRY(json_print(v->report, JSON_INDENT(1), error));
    if (status != STATUS_OK || v->damaged_count == 0) return status;
    return error_set(error, STATUS_DOCUMENT, "%zu of %zu document%s damaged", v->damaged_count, v->count,
                     v->count == 1 ? " is" : "s are");
}

enum status verify_command(const struct options *options, struct error *error) {
    struct verification v = {0};
    TRY(open_store(&v.store, options, STORE_VERIFY, error));
    if (option_flag(options, OPTION_JSON)) v.report = json_array();
    enum status status = verify(&v, options, error);
    json_decref(v.report);
    free(v.ids);
    store_close(v.store);
    return status;
}
