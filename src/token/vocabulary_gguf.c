/* Makes a vocabulary from the metadata of a GGUF file: keys and defaults. */
#include <stdlib.h>
#include <string.h>

#include "token/tokenizer_internal.h"

enum { PATH_SHOWN_BYTES = 160 }; /* its end: the message needs space too */

#define KEY(name) "tokenizer.ggml." name

static bool is(struct gguf_string text, const char *word) {
    return text.length == strlen(word) && memcmp(text.text, word, text.length) == 0;
}

static enum status read_model(const struct gguf *gguf, enum tokenizer_model *model, struct error *error) {
    struct gguf_string name = {"", 0};
    TRY(gguf_required(gguf, KEY("model"), error));
    TRY(gguf_get_string(gguf, KEY("model"), &name, error));
    if (is(name, "llama"))
        *model = TOKENIZER_SPM;
    else if (is(name, "gpt2"))
        *model = TOKENIZER_BPE;
    else if (is(name, "gemma4"))
        *model = TOKENIZER_CHARACTER_BPE;
    else
        return error_set(error, STATUS_UNSUPPORTED,
                         KEY("model") ": found '%.*s', this build knows 'llama', 'gpt2' and 'gemma4'",
                         (int)(name.length < 60 ? name.length : 60), name.text);
    return STATUS_OK;
}

static enum status read_pre(const struct gguf *gguf, bool force_pre, const struct pre_tokenizer_name **pre,
                            struct error *error) {
    struct gguf_string name = {"", 0};
    TRY(gguf_get_string(gguf, KEY("pre"), &name, error));
    *pre = pre_tokenizer_find(name.text, name.length);
    if (!*pre && force_pre) *pre = pre_tokenizer_find("default", 7);
    if (*pre) return STATUS_OK;
    if (name.length == 0) return error_set(error, STATUS_MODEL, KEY("pre") ": missing (--force-pre: 'default')");
    return error_set(error, STATUS_MODEL, KEY("pre") ": unknown pre-tokenizer '%.*s' (--force-pre: 'default')",
                     (int)(name.length < 60 ? name.length : 60), name.text);
}

/* An id that must be in range.  Absent, or -1 as some writers have it: *id stays unchanged. */
static enum status read_id(const struct gguf *gguf, const char *key, uint64_t token_count, token_id *id,
                           struct error *error) {
    uint64_t value = UINT64_MAX;
    TRY(gguf_get_uint(gguf, key, UINT32_MAX, &value, error));
    if (value == UINT64_MAX) return STATUS_OK;
    if (value == UINT32_MAX) {
        *id = TOKEN_NONE;
        return STATUS_OK;
    }
    if (value >= token_count)
        return error_set(error, STATUS_MODEL, "%s: found %llu, expected below %llu", key, (unsigned long long)value,
                         (unsigned long long)token_count);
    *id = (token_id)value;
    return STATUS_OK;
}

static enum status read_ids(const struct gguf *gguf, struct tokenizer_source *source, struct error *error) {
    static const char *const ends[] = {KEY("eot_token_id"), KEY("eom_token_id")};
    static const char *const unused[] = {KEY("seperator_token_id"), KEY("padding_token_id"), KEY("mask_token_id"),
                                         KEY("cls_token_id"),       KEY("fim_pre_token_id"), KEY("fim_suf_token_id"),
                                         KEY("fim_mid_token_id"),   KEY("fim_pad_token_id"), KEY("fim_rep_token_id"),
                                         KEY("fim_sep_token_id")};
    source->rules.bos = source->rules.eos = source->rules.unknown = TOKEN_NONE;
    /* What sentencepiece writes by default; SentencePiece models without these keys have it. */
    if (source->model == TOKENIZER_SPM && source->token_count > 2) {
        if (is(source->tokens[0], "<unk>")) source->rules.unknown = 0;
        if (is(source->tokens[1], "<s>")) source->rules.bos = 1;
        if (is(source->tokens[2], "</s>")) source->rules.eos = 2;
    }
    TRY(read_id(gguf, KEY("bos_token_id"), source->token_count, &source->rules.bos, error));
    TRY(read_id(gguf, KEY("eos_token_id"), source->token_count, &source->rules.eos, error));
    TRY(read_id(gguf, KEY("unknown_token_id"), source->token_count, &source->rules.unknown, error));
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        token_id id = TOKEN_NONE;
        TRY(read_id(gguf, ends[i], source->token_count, &id, error));
        if (id != TOKEN_NONE) source->rules.ends[source->rules.end_count++] = id;
    }
    for (size_t i = 0; i < sizeof unused / sizeof unused[0]; i++) {
        token_id id = TOKEN_NONE;
        TRY(read_id(gguf, unused[i], source->token_count, &id, error));
    }
    return STATUS_OK;
}

static enum status read_flags(const struct gguf *gguf, struct tokenizer_source *source, struct error *error) {
    bool spm = source->model == TOKENIZER_SPM;
    source->rules.adds_bos = spm || (source->pre && source->pre->adds_bos);
    source->rules.adds_space_prefix = spm;
    TRY(gguf_get_bool(gguf, KEY("add_bos_token"), &source->rules.adds_bos, error));
    if (source->model == TOKENIZER_CHARACTER_BPE) source->rules.adds_bos = true; /* as llama.cpp, whatever files say */
    TRY(gguf_get_bool(gguf, KEY("add_eos_token"), &source->rules.adds_eos, error));
    TRY(gguf_get_bool(gguf, KEY("add_space_prefix"), &source->rules.adds_space_prefix, error));
    TRY(gguf_get_bool(gguf, KEY("remove_extra_whitespaces"), &source->rules.removes_extra_spaces, error));
    if (!spm) source->rules.adds_space_prefix = source->rules.removes_extra_spaces = false;
    const struct gguf_entry *charsmap = gguf_find(gguf, KEY("precompiled_charsmap"));
    if (spm && charsmap && charsmap->type == GGUF_ARRAY && charsmap->count > 0)
        return error_set(error, STATUS_UNSUPPORTED,
                         KEY("precompiled_charsmap") ": this build does not normalize text by such a table");
    return STATUS_OK;
}

/* An array that must have one element per token; NULL: absent. */
static enum status read_per_token(const struct gguf *gguf, const char *key, bool integers, uint64_t token_count,
                                  const struct gguf_entry **array, struct error *error) {
    *array = gguf_find(gguf, key);
    if (!*array) return STATUS_OK;
    enum gguf_type found = (*array)->element_type;
    bool fits = (*array)->type == GGUF_ARRAY &&
                (integers ? found == GGUF_INT32 || found == GGUF_UINT32 : found == GGUF_FLOAT32);
    if (!fits)
        return error_set(error, STATUS_MODEL, "%s: expected an array of %s", key,
                         integers ? "32-bit integers" : "32-bit floats");
    if ((*array)->count != token_count)
        return error_set(error, STATUS_MODEL, "%s: found %llu elements, expected %llu, one per token", key,
                         (unsigned long long)(*array)->count, (unsigned long long)token_count);
    return STATUS_OK;
}

/* Copies of the numbers, which are unaligned in the file. */
struct numbers {
    uint8_t *types;
    float *scores;
};

static enum status read_numbers(const struct gguf *gguf, struct tokenizer_source *source, struct numbers *numbers,
                                struct error *error) {
    const struct gguf_entry *types = NULL, *scores = NULL;
    TRY(read_per_token(gguf, KEY("token_type"), true, source->token_count, &types, error));
    if (source->model == TOKENIZER_SPM)
        TRY(read_per_token(gguf, KEY("scores"), false, source->token_count, &scores, error));
    if (types) numbers->types = malloc(source->token_count);
    if (scores) numbers->scores = malloc(source->token_count * sizeof *numbers->scores);
    if ((types && !numbers->types) || (scores && !numbers->scores))
        return error_set(error, STATUS_MEMORY, "no memory for a vocabulary");
    for (uint64_t i = 0; types && i < source->token_count; i++) {
        int64_t type = gguf_array_int(types, i);
        if (type < 0 || type >= TOKEN_TYPE_COUNT)
            return error_set(error, STATUS_MODEL, KEY("token_type") "[%llu]: found %lld, expected 0 to %d",
                             (unsigned long long)i, (long long)type, TOKEN_TYPE_COUNT - 1);
        numbers->types[i] = (uint8_t)type;
    }
    for (uint64_t i = 0; scores && i < source->token_count; i++)
        numbers->scores[i] = (float)gguf_array_float(scores, i);
    source->types = numbers->types;
    source->scores = numbers->scores;
    return STATUS_OK;
}

static enum status read_source(const struct gguf *gguf, bool force_pre, struct tokenizer_source *source,
                               struct numbers *numbers, struct error *error) {
    const struct gguf_entry *tokens = NULL, *merges = NULL;
    TRY(read_model(gguf, &source->model, error));
    TRY(gguf_required(gguf, KEY("tokens"), error));
    TRY(gguf_get_array(gguf, KEY("tokens"), GGUF_STRING, &tokens, error));
    source->tokens = tokens->strings;
    source->token_count = tokens->count;
    if (source->token_count == 0 || source->token_count >= INT32_MAX)
        return error_set(error, STATUS_MODEL, KEY("tokens") ": %llu tokens", (unsigned long long)source->token_count);
    if (source->model == TOKENIZER_CHARACTER_BPE) source->pre = pre_tokenizer_find("gemma4", 6);
    if (source->model != TOKENIZER_SPM) {
        if (source->pre == NULL) TRY(read_pre(gguf, force_pre, &source->pre, error));
        TRY(gguf_required(gguf, KEY("merges"), error));
        TRY(gguf_get_array(gguf, KEY("merges"), GGUF_STRING, &merges, error));
        if (merges->count == 0) /* every text would become single bytes */
            return error_set(error, STATUS_MODEL, KEY("merges") ": found none, expected at least one");
        source->merges = merges->strings;
        source->merge_count = merges->count;
    }
    TRY(read_numbers(gguf, source, numbers, error));
    TRY(read_ids(gguf, source, error));
    return read_flags(gguf, source, error);
}

/* What no answer may have; numbers that are no tokens are passed over, as llama.cpp does. */
static enum status read_suppressed(const struct gguf *gguf, struct tokenizer *t, struct error *error) {
    const struct gguf_entry *ids = NULL;
    TRY(gguf_get_array(gguf, KEY("suppress_tokens"), GGUF_INT32, &ids, error));
    if (ids == NULL || ids->count == 0) return STATUS_OK;
    t->suppressed = arena_array(&t->arena, ids->count, sizeof *t->suppressed);
    if (t->suppressed == NULL) return error_set(error, STATUS_MEMORY, "no memory for a vocabulary");
    for (uint64_t i = 0; i < ids->count; i++) {
        const int64_t id = gguf_array_int(ids, i);
        if (id >= 0 && id < (int64_t)t->token_count) t->suppressed[t->suppressed_count++] = (token_id)id;
    }
    return STATUS_OK;
}

enum status tokenizer_create(struct tokenizer **tokenizer, const struct gguf *gguf, bool force_pre,
                             struct error *error) {
    struct tokenizer_source source = {0};
    struct numbers numbers = {0};
    *tokenizer = NULL;
    enum status status = read_source(gguf, force_pre, &source, &numbers, error);
    if (status == STATUS_OK) status = tokenizer_build(tokenizer, &source, error);
    if (status == STATUS_OK) status = read_suppressed(gguf, *tokenizer, error);
    if (status != STATUS_OK) tokenizer_destroy(*tokenizer), *tokenizer = NULL;
    free(numbers.types);
    free(numbers.scores);
    if (status != STATUS_OK && error && gguf->path && strncmp(error->message, "tokenizer.", 10) == 0) {
        size_t length = strlen(gguf->path); /* gguf's own messages have the path already */
        error_prefix(error, gguf->path + (length > PATH_SHOWN_BYTES ? length - PATH_SHOWN_BYTES : 0));
    }
    return status;
}
