/* tokenizer.json to tokenizer.ggml.*.
 *
 * Two kinds of BPE: byte-level ("gpt2": tokens spelt in GPT-2's byte alphabet, merges as they are, a
 * pre-tokenizer by name) and SentencePiece's ("llama": spaces as U+2581, bytes as <0xNN>, and instead of merges
 * a score per token).  A SentencePiece vocabulary merges the neighbours whose union scores highest, so a score
 * of minus the rank of the merge that makes a token gives the same order.
 */
#include <stdlib.h>
#include <string.h>

#include "lab/import/import_internal.h"

enum { TOKEN_NORMAL = 1, TOKEN_UNKNOWN = 2, TOKEN_CONTROL = 3, TOKEN_USER = 4, TOKEN_UNUSED = 5, TOKEN_BYTE = 6 };

static const char file[] = "tokenizer.json";

struct vocabulary {
    struct import *import;
    const json_t *model;        /* of tokenizer.json */
    uint64_t count;             /* config.json's vocab_size */
    struct gguf_string *tokens; /* [count] */
    int32_t *types;             /* [count] */
    float *scores;              /* [count], SentencePiece only */
    struct gguf_string *merges; /* [merge_count], "a b" */
    uint64_t merge_count;
};

static enum status out_of_memory(const struct import *import) {
    return error_set(import->error, STATUS_MEMORY, "%s: out of memory", file);
}

static enum status place_token(struct vocabulary *vocabulary, const char *field, const char *text, size_t length,
                               const json_t *id, int32_t type) {
    const struct import *import = vocabulary->import;
    json_int_t index = json_integer_value(id);
    if (!json_is_integer(id) || index < 0 || (uint64_t)index >= vocabulary->count)
        return import_refuse(import, file, field, "token '%.40s' has id %lld, expected 0 to %llu (vocab_size)", text,
                             (long long)index, (unsigned long long)vocabulary->count - 1);
    struct gguf_string *token = &vocabulary->tokens[index];
    bool is_same = token->length == length && token->text != NULL && memcmp(token->text, text, length) == 0;
    if (token->text != NULL && !is_same)
        return import_refuse(import, file, field, "tokens '%.40s' and '%.40s' have the same id %lld", token->text, text,
                             (long long)index);
    *token = (struct gguf_string){text, length};
    vocabulary->types[index] = type;
    return STATUS_OK;
}

static enum status place_added(struct vocabulary *vocabulary) {
    const struct import *import = vocabulary->import;
    const json_t *added = import_member(import->tokenizer.object, "added_tokens");
    if (added != NULL && !json_is_array(added)) return import_refuse(import, file, "added_tokens", "expected an array");
    size_t i;
    json_t *entry;
    json_array_foreach((json_t *)(uintptr_t)added, i, entry) {
        const json_t *content = json_object_get(entry, "content");
        if (!json_is_string(content)) return import_refuse(import, file, "added_tokens", "entry %zu has no content", i);
        bool is_special = json_is_true(json_object_get(entry, "special"));
        TRY(place_token(vocabulary, "added_tokens", json_string_value(content), json_string_length(content),
                        json_object_get(entry, "id"), is_special ? TOKEN_CONTROL : TOKEN_USER));
    }
    return STATUS_OK;
}

/* Unassigned ids become [PADn], as in llama.cpp. */
static enum status place_holes(struct vocabulary *vocabulary) {
    for (uint64_t i = 0; i < vocabulary->count; i++) {
        if (vocabulary->tokens[i].text != NULL) continue;
        char *text = arena_allocate(&vocabulary->import->arena, 24);
        if (text == NULL) return out_of_memory(vocabulary->import);
        int length = snprintf(text, 24, "[PAD%llu]", (unsigned long long)i);
        vocabulary->tokens[i] = (struct gguf_string){text, (uint64_t)length};
        vocabulary->types[i] = TOKEN_UNUSED;
    }
    return STATUS_OK;
}

static enum status read_tokens(struct vocabulary *vocabulary) {
    struct import *import = vocabulary->import;
    json_t *vocab = json_object_get(vocabulary->model, "vocab");
    if (!json_is_object(vocab)) return import_refuse(import, file, "model.vocab", "expected an object");
    vocabulary->tokens = arena_array(&import->arena, vocabulary->count, sizeof *vocabulary->tokens);
    vocabulary->types = arena_array(&import->arena, vocabulary->count, sizeof *vocabulary->types);
    if (vocabulary->tokens == NULL || vocabulary->types == NULL) return out_of_memory(import);
    const char *text;
    json_t *id;
    json_object_foreach(vocab, text, id)
        TRY(place_token(vocabulary, "model.vocab", text, strlen(text), id, TOKEN_NORMAL));
    TRY(place_added(vocabulary));
    return place_holes(vocabulary);
}

/* "a b", or a pair of strings, whose spaces are written as llama.cpp writes them. */
static enum status read_merge(struct vocabulary *vocabulary, const json_t *merge, struct gguf_string *result) {
    struct import *import = vocabulary->import;
    if (json_is_string(merge)) {
        *result = (struct gguf_string){json_string_value(merge), json_string_length(merge)};
        if (memchr(result->text, ' ', result->length) != NULL) return STATUS_OK;
        return import_refuse(import, file, "model.merges", "'%.40s' has no space", result->text);
    }
    const char *left = json_string_value(json_array_get(merge, 0));
    const char *right = json_string_value(json_array_get(merge, 1));
    if (left == NULL || right == NULL || json_array_size(merge) != 2)
        return import_refuse(import, file, "model.merges", "expected pairs of strings");
    if (strchr(left, ' ') != NULL || strchr(right, ' ') != NULL)
        return import_refuse(import, file, "model.merges", "'%.40s' + '%.40s': a space inside cannot be written", left,
                             right);
    size_t length = strlen(left) + 1 + strlen(right);
    char *text = arena_allocate(&import->arena, length + 1);
    if (text == NULL) return out_of_memory(import);
    snprintf(text, length + 1, "%s %s", left, right);
    *result = (struct gguf_string){text, length};
    return STATUS_OK;
}

static enum status read_merges(struct vocabulary *vocabulary) {
    struct import *import = vocabulary->import;
    const json_t *merges = json_object_get(vocabulary->model, "merges");
    if (!json_is_array(merges)) return import_refuse(import, file, "model.merges", "expected an array");
    vocabulary->merge_count = json_array_size(merges);
    vocabulary->merges = arena_array(&import->arena, vocabulary->merge_count, sizeof *vocabulary->merges);
    if (vocabulary->merges == NULL) return out_of_memory(import);
    for (uint64_t i = 0; i < vocabulary->merge_count; i++)
        TRY(read_merge(vocabulary, json_array_get(merges, i), &vocabulary->merges[i]));
    return STATUS_OK;
}

static enum status add_text(struct import *import, const char *key, const char *text) {
    return gguf_writer_add_string(import->writer, key, text, strlen(text), import->error);
}

static enum status write_common(struct vocabulary *vocabulary, const char *model, const char *pre) {
    struct import *import = vocabulary->import;
    import->report->pre = pre;
    TRY(add_text(import, "tokenizer.ggml.model", model));
    TRY(add_text(import, "tokenizer.ggml.pre", pre));
    TRY(gguf_writer_add_strings(import->writer, "tokenizer.ggml.tokens", vocabulary->tokens, vocabulary->count,
                                import->error));
    return gguf_writer_add_ints(import->writer, "tokenizer.ggml.token_type", vocabulary->types, vocabulary->count,
                                import->error);
}

/* ---- byte-level ---- */

/* Reports what a GGUF file cannot express about text before it is split. */
static enum status check_byte_level(struct import *import) {
    const json_t *normalizer = import_member(import->tokenizer.object, "normalizer");
    const char *type = json_string_value(json_object_get(normalizer, "type"));
    if (normalizer == NULL) return STATUS_OK;
    if (type != NULL && strcmp(type, "NFC") == 0) {
        snprintf(import->report->warning, sizeof import->report->warning,
                 "the tokenizer composes Unicode (NFC) first, which GGUF cannot say: text that is not "
                 "composed may "
                 "get other tokens");
        return STATUS_OK;
    }
    return import_refuse(import, file, "normalizer", "found %.40s, which GGUF cannot say",
                         type != NULL ? type : "no type");
}

static enum status write_byte_level(struct vocabulary *vocabulary) {
    struct import *import = vocabulary->import;
    const char *pre;
    TRY(check_byte_level(import));
    TRY(import_find_pre(import, &pre));
    TRY(write_common(vocabulary, "gpt2", pre));
    return gguf_writer_add_strings(import->writer, "tokenizer.ggml.merges", vocabulary->merges, vocabulary->merge_count,
                                   import->error);
}

/* ---- SentencePiece ---- */

/* The token that a merge makes: both halves joined, found by name. */
static const json_t *merged_token(const struct vocabulary *vocabulary, struct gguf_string merge, char *buffer) {
    const char *space = memchr(merge.text, ' ', merge.length);
    size_t left = (size_t)(space - merge.text);
    memcpy(buffer, merge.text, left);
    memcpy(buffer + left, space + 1, merge.length - left - 1);
    buffer[merge.length - 1] = '\0';
    return json_object_get(json_object_get(vocabulary->model, "vocab"), buffer);
}

/* scores[token] = minus the rank of the first merge that makes it.  A token that no merge makes is never chosen. */
static enum status score_tokens(struct vocabulary *vocabulary) {
    struct import *import = vocabulary->import;
    vocabulary->scores = arena_array(&import->arena, vocabulary->count, sizeof *vocabulary->scores);
    bool *is_scored = arena_array(&import->arena, vocabulary->count, sizeof *is_scored);
    if (vocabulary->scores == NULL || is_scored == NULL) return out_of_memory(import);
    for (uint64_t i = 0; i < vocabulary->merge_count; i++) {
        struct gguf_string merge = vocabulary->merges[i];
        char *buffer = malloc(merge.length + 1);
        if (buffer == NULL) return out_of_memory(import);
        const json_t *id = merged_token(vocabulary, merge, buffer);
        free(buffer);
        if (id == NULL) return import_refuse(import, file, "model.merges", "'%.40s' makes no token", merge.text);
        json_int_t index = json_integer_value(id);
        if (is_scored[index]) continue;
        is_scored[index] = true;
        vocabulary->scores[index] = -(float)i;
    }
    for (uint64_t i = 0; i < vocabulary->count; i++)
        if (!is_scored[i])
            vocabulary->scores[i] = vocabulary->types[i] == TOKEN_NORMAL ? -(float)vocabulary->merge_count
                                    : vocabulary->types[i] == TOKEN_USER ? -1000.0f
                                                                         : 0.0f;
    return STATUS_OK;
}

/* "<0x0A>" */
static bool is_byte(struct gguf_string token) {
    return token.length == 6 && memcmp(token.text, "<0x", 3) == 0 && token.text[5] == '>' &&
           strspn(token.text + 3, "0123456789ABCDEF") == 2;
}

static void type_tokens(struct vocabulary *vocabulary) {
    const char *unknown = json_string_value(json_object_get(vocabulary->model, "unk_token"));
    for (uint64_t i = 0; i < vocabulary->count; i++) {
        struct gguf_string token = vocabulary->tokens[i];
        if (vocabulary->types[i] == TOKEN_NORMAL && is_byte(token)) vocabulary->types[i] = TOKEN_BYTE;
        if (unknown != NULL && strlen(unknown) == token.length && memcmp(unknown, token.text, token.length) == 0)
            vocabulary->types[i] = TOKEN_UNKNOWN;
    }
}

static bool splits_into_tokens(const json_t *vocab, const json_t *pairs, const char *text, char *buffer) {
    size_t length = strlen(text);
    for (size_t cut = 1; cut < length; cut++) {
        if (((unsigned char)text[cut] & 0xc0) == 0x80) continue; /* inside a character */
        memcpy(buffer, text, cut);
        buffer[cut] = '\0';
        if (json_object_get(vocab, buffer) == NULL || json_object_get(vocab, text + cut) == NULL) continue;
        buffer[cut] = ' ';
        memcpy(buffer + cut + 1, text + cut, length - cut + 1);
        if (json_object_get(pairs, buffer) == NULL) return true;
    }
    return false;
}

/* SentencePiece merges any two neighbours whose union is a token, whether or not the merges list it.  Reports how
 * many tokens can come about in a way that the merges do not list (none, if SentencePiece made the vocabulary). */
static enum status count_unlisted(struct vocabulary *vocabulary, uint64_t *unlisted) {
    const json_t *vocab = json_object_get(vocabulary->model, "vocab");
    json_t *pairs = json_object(), *yes = json_true();
    bool fits = pairs != NULL;
    size_t longest = 0;
    for (uint64_t i = 0; fits && i < vocabulary->merge_count; i++) {
        char *pair = arena_text(&vocabulary->import->arena, vocabulary->merges[i].text, vocabulary->merges[i].length);
        fits = pair != NULL && json_object_set_nocheck(pairs, pair, yes) == 0;
    }
    for (uint64_t i = 0; i < vocabulary->count; i++)
        if (vocabulary->tokens[i].length > longest) longest = vocabulary->tokens[i].length;
    char *buffer = fits ? malloc(longest + 2) : NULL;
    *unlisted = 0;
    const char *text;
    json_t *id;
    if (buffer != NULL) json_object_foreach((json_t *)(uintptr_t)vocab, text, id) {
            if (vocabulary->types[json_integer_value(id)] != TOKEN_NORMAL) continue;
            *unlisted += splits_into_tokens(vocab, pairs, text, buffer);
        }
    json_decref(pairs);
    if (buffer == NULL) return out_of_memory(vocabulary->import);
    free(buffer);
    return STATUS_OK;
}

static bool type_is(const json_t *object, const char *type) {
    const char *found = json_string_value(json_object_get(object, "type"));
    return found != NULL && strcmp(found, type) == 0;
}

/* Whether a "▁" goes before the text: by the normalizer's Prepend or by the Metaspace pre-tokenizer. */
static enum status read_space_prefix(struct import *import, bool *adds_prefix) {
    const json_t *root = import->tokenizer.object, *normalizer = import_member(root, "normalizer");
    const json_t *pre = import_member(root, "pre_tokenizer"), *list = json_object_get(normalizer, "normalizers");
    *adds_prefix = false;
    size_t count = normalizer == NULL ? 0 : json_is_array(list) ? json_array_size(list) : 1;
    for (size_t i = 0; i < count; i++) {
        const json_t *step = json_is_array(list) ? json_array_get(list, i) : normalizer;
        if (type_is(step, "Prepend"))
            *adds_prefix = true;
        else if (!type_is(step, "Replace"))
            return import_refuse(import, file, "normalizer", "found a step that is not Prepend or Replace");
    }
    if (pre == NULL) return STATUS_OK;
    if (!type_is(pre, "Metaspace"))
        return import_refuse(import, file, "pre_tokenizer", "expected Metaspace or none with byte_fallback");
    const char *scheme = json_string_value(json_object_get(pre, "prepend_scheme"));
    const json_t *old = json_object_get(pre, "add_prefix_space");
    if (scheme != NULL ? strcmp(scheme, "never") != 0 : !json_is_false(old)) *adds_prefix = true;
    return STATUS_OK;
}

static enum status write_sentencepiece(struct vocabulary *vocabulary) {
    struct import *import = vocabulary->import;
    bool adds_prefix;
    uint64_t unlisted;
    TRY(read_space_prefix(import, &adds_prefix));
    type_tokens(vocabulary);
    TRY(score_tokens(vocabulary));
    TRY(count_unlisted(vocabulary, &unlisted));
    if (unlisted > 0)
        snprintf(import->report->warning, sizeof import->report->warning,
                 "not a vocabulary that SentencePiece made: %llu tokens can come about in ways that its merges do "
                 "not list, so some text gets other tokens than in transformers",
                 (unsigned long long)unlisted);
    TRY(write_common(vocabulary, "llama", "default"));
    TRY(gguf_writer_add_floats(import->writer, "tokenizer.ggml.scores", vocabulary->scores, vocabulary->count,
                               import->error));
    return gguf_writer_add_bool(import->writer, "tokenizer.ggml.add_space_prefix", adds_prefix, import->error);
}

static bool has_byte_level(const json_t *pre) {
    if (type_is(pre, "ByteLevel")) return true;
    const json_t *list = json_object_get(pre, "pretokenizers");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (type_is(json_array_get(list, i), "ByteLevel")) return true;
    return false;
}

enum status import_write_tokenizer(struct import *import) {
    const json_t *model = json_object_get(import->tokenizer.object, "model");
    const char *type = json_string_value(json_object_get(model, "type"));
    if (type != NULL && strcmp(type, "BPE") != 0)
        return import_refuse(import, file, "model.type", "found '%.40s', only BPE is supported", type);
    struct vocabulary vocabulary = {.import = import, .model = model, .count = import->config.vocabulary};
    TRY(read_tokens(&vocabulary));
    TRY(read_merges(&vocabulary));
    if (has_byte_level(import_member(import->tokenizer.object, "pre_tokenizer"))) return write_byte_level(&vocabulary);
    if (json_is_true(json_object_get(model, "byte_fallback"))) return write_sentencepiece(&vocabulary);
    return import_refuse(import, file, "pre_tokenizer", "expected ByteLevel, or a model with byte_fallback");
}
