/* Special tokens: the ids that begin and end a text, whether they are added automatically, and the chat template. */
#include <string.h>

#include "lab/import/import_internal.h"

enum { ENDS_MAX = 16 };

static const char pre_key[] = "tokenizer.ggml.";

static enum status add_id(struct import *import, const char *name, uint64_t id) {
    char key[64];
    snprintf(key, sizeof key, "%s%s", pre_key, name);
    return gguf_writer_add_uint(import->writer, key, (uint32_t)id, import->error);
}

/* The id of a token's text: first among the added tokens, then in the vocabulary. */
static bool id_of(const struct import *import, const char *text, uint64_t *id) {
    const json_t *root = import->tokenizer.object, *found = NULL;
    size_t i;
    json_t *entry;
    json_array_foreach(json_object_get(root, "added_tokens"), i, entry) {
        const char *content = json_string_value(json_object_get(entry, "content"));
        if (content != NULL && strcmp(content, text) == 0) found = json_object_get(entry, "id");
    }
    if (found == NULL) found = json_object_get(json_object_get(json_object_get(root, "model"), "vocab"), text);
    if (found == NULL) return false;
    *id = (uint64_t)json_integer_value(found);
    return true;
}

/* tokenizer_config.json gives a token as its text or as {"content": text}. */
static bool named_id(const struct import *import, const char *field, uint64_t *id) {
    const json_t *member = import_member(import->tokenizer_config.object, field);
    if (json_is_object(member)) member = json_object_get(member, "content");
    const char *text = json_string_value(member);
    return text != NULL && id_of(import, text, id);
}

struct ends {
    uint64_t ids[ENDS_MAX];
    size_t count;
};

/* The added token with this id, or NULL. */
static const json_t *added_token(const struct import *import, uint64_t id) {
    size_t i;
    json_t *entry;
    json_array_foreach(json_object_get(import->tokenizer.object, "added_tokens"), i, entry) {
        const json_t *found = json_object_get(entry, "id");
        if (json_is_integer(found) && json_integer_value(found) == (json_int_t)id) return entry;
    }
    return NULL;
}

/* Appends a number or an array of numbers, without duplicates.  After the first only special tokens count: many
 * configurations keep their class's default, which is an ordinary word in this vocabulary. */
static void collect(const struct import *import, const json_t *value, struct ends *ends) {
    size_t count = json_is_array(value) ? json_array_size(value) : json_is_integer(value) ? 1 : 0;
    for (size_t i = 0; i < count; i++) {
        const json_t *element = json_is_array(value) ? json_array_get(value, i) : value;
        json_int_t id = json_integer_value(element);
        bool is_new = json_is_integer(element) && id >= 0 && (uint64_t)id < import->config.vocabulary;
        for (size_t j = 0; j < ends->count; j++) is_new = is_new && ends->ids[j] != (uint64_t)id;
        if (!is_new || ends->count == ENDS_MAX) continue;
        const json_t *added = added_token(import, (uint64_t)id);
        if (ends->count == 0 || json_is_true(json_object_get(added, "special")))
            ends->ids[ends->count++] = (uint64_t)id;
    }
}

static bool mentions_message(const struct import *import, uint64_t id) {
    const char *content = json_string_value(json_object_get(added_token(import, id), "content"));
    return content != NULL && strstr(content, "eom") != NULL;
}

/* The tokens that end an answer: the tokenizer's eos first, then those of the configurations.  GGUF has three keys:
 * eos, eot (end of turn) and eom (end of message). */
static enum status write_ends(struct import *import) {
    struct ends ends = {0};
    uint64_t id;
    if (named_id(import, "eos_token", &id) && id < import->config.vocabulary) ends.ids[ends.count++] = id;
    collect(import, import_member(import->generation.object, "eos_token_id"), &ends);
    collect(import, import_member(import->config_source.object, "eos_token_id"), &ends);
    if (ends.count == 0) return STATUS_OK;
    TRY(add_id(import, "eos_token_id", ends.ids[0]));
    bool has_turn = false, has_message = false;
    for (size_t i = 1; i < ends.count; i++) {
        bool message = (has_turn || mentions_message(import, ends.ids[i])) && !has_message;
        if (!message && has_turn) {
            snprintf(import->report->warning, sizeof import->report->warning,
                     "%zu tokens end an answer, but GGUF has keys for three", ends.count);
            break;
        }
        TRY(add_id(import, message ? "eom_token_id" : "eot_token_id", ends.ids[i]));
        has_message = has_message || message;
        has_turn = has_turn || !message;
    }
    return STATUS_OK;
}

/* ---- what is added to a text ---- */

struct additions {
    bool known, bos, eos;
    uint64_t bos_id;
};

/* The template of a single text: special tokens before and after sequence A. */
static void read_template_processing(const struct import *import, const json_t *processor,
                                     struct additions *additions) {
    bool past_text = false;
    size_t i;
    json_t *piece;
    additions->known = true;
    json_array_foreach(json_object_get(processor, "single"), i, piece) {
        const char *token = json_string_value(json_object_get(json_object_get(piece, "SpecialToken"), "id"));
        if (token == NULL)
            past_text = true;
        else if (past_text)
            additions->eos = true;
        else
            additions->bos = id_of(import, token, &additions->bos_id);
    }
}

static void read_additions(const struct import *import, struct additions *additions) {
    const json_t *processor = import_member(import->tokenizer.object, "post_processor");
    const json_t *list = json_object_get(processor, "processors");
    size_t count = json_is_array(list) ? json_array_size(list) : 1;
    for (size_t i = 0; i < count; i++) {
        const json_t *step = json_is_array(list) ? json_array_get(list, i) : processor;
        const char *type = json_string_value(json_object_get(step, "type"));
        if (type != NULL && strcmp(type, "TemplateProcessing") == 0) read_template_processing(import, step, additions);
    }
}

static enum status write_additions(struct import *import) {
    struct additions additions = {0};
    uint64_t bos;
    bool has_bos;
    read_additions(import, &additions);
    if (!additions.known) { /* then flags of the tokenizer's class add them */
        TRY(import_bool(import, &import->tokenizer_config, import->tokenizer_config.object, "add_bos_token",
                        &additions.bos));
        TRY(import_bool(import, &import->tokenizer_config, import->tokenizer_config.object, "add_eos_token",
                        &additions.eos));
    }
    has_bos = named_id(import, "bos_token", &bos);
    if (additions.known && additions.bos) {
        has_bos = true;
        bos = additions.bos_id;
    }
    if (!has_bos) {
        const json_t *id = import_member(import->config_source.object, "bos_token_id");
        has_bos = json_is_integer(id) && json_integer_value(id) >= 0;
        if (has_bos) bos = (uint64_t)json_integer_value(id);
    }
    if (has_bos && bos < import->config.vocabulary)
        TRY(add_id(import, "bos_token_id", bos));
    else
        additions.bos = false;
    TRY(gguf_writer_add_bool(import->writer, "tokenizer.ggml.add_bos_token", additions.bos, import->error));
    return gguf_writer_add_bool(import->writer, "tokenizer.ggml.add_eos_token", additions.eos, import->error);
}

/* ---- the chat template ---- */

static enum status write_template(struct import *import) {
    const char key[] = "tokenizer.chat_template";
    if (import->chat_template != NULL)
        return gguf_writer_add_string(import->writer, key, import->chat_template, import->chat_template_bytes,
                                      import->error);
    const json_t *chosen = import_member(import->tokenizer_config.object, "chat_template");
    if (json_is_array(chosen)) { /* several by name: the default one */
        const json_t *list = chosen;
        chosen = NULL;
        for (size_t i = 0; i < json_array_size(list); i++) {
            const json_t *entry = json_array_get(list, i);
            const char *name = json_string_value(json_object_get(entry, "name"));
            if (name != NULL && strcmp(name, "default") == 0) chosen = json_object_get(entry, "template");
        }
    }
    if (!json_is_string(chosen)) return STATUS_OK;
    return gguf_writer_add_string(import->writer, key, json_string_value(chosen), json_string_length(chosen),
                                  import->error);
}

enum status import_write_special(struct import *import) {
    uint64_t id;
    TRY(write_ends(import));
    TRY(write_additions(import));
    const char *unknown =
        json_string_value(json_object_get(json_object_get(import->tokenizer.object, "model"), "unk_token"));
    bool has_unknown = unknown != NULL ? id_of(import, unknown, &id) : named_id(import, "unk_token", &id);
    if (has_unknown && id < import->config.vocabulary) TRY(add_id(import, "unknown_token_id", id));
    if (named_id(import, "pad_token", &id) && id < import->config.vocabulary)
        TRY(add_id(import, "padding_token_id", id));
    return write_template(import);
}
