/* Makes a vocabulary from arrays: checks every token's type, text and bytes, and builds the tables for encoding. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/assert.h"
#include "token/tokenizer_internal.h"
#include "token/unicode.h"

#define KEY_TOKENS "tokenizer.ggml.tokens"
#define KEY_MERGES "tokenizer.ggml.merges"

/* ---- the byte-level alphabet of GPT-2: printable Latin-1 stands for itself, the rest from U+0100 on ---- */

static bool is_printable_byte(unsigned byte) {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

/* The byte that a character of the alphabet stands for; -1: not of it. */
static int byte_level_decode(uint32_t code) {
    if (code < 256) return is_printable_byte(code) ? (int)code : -1;
    if (code < 0x100 + 33) return (int)(code - 0x100);                  /* 00..20 */
    if (code < 0x100 + 33 + 34) return (int)(code - 33 - 0x100 + 0x7F); /* 7F..A0 */
    return code == 0x100 + 33 + 34 ? 0xAD : -1;
}

size_t byte_level_encode(uint8_t byte, uint8_t bytes[4]) {
    uint32_t code = byte;
    if (!is_printable_byte(byte))
        code = byte <= 0x20 ? 0x100U + byte : byte == 0xAD ? 0x100U + 33 + 34 : 0x100U + 33 + (byte - 0x7FU);
    return utf8_encode(code, bytes);
}

/* ---- tables ---- */

static uint64_t mix(uint64_t value) { /* the finisher of splitmix64 */
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9U;
    value = (value ^ value >> 27) * 0x94D049BB133111EBU;
    return value ^ value >> 31;
}

static uint64_t hash_bytes(uint64_t seed, const char *bytes, size_t length) {
    uint64_t hash = seed ^ length;
    for (; length >= 8; bytes += 8, length -= 8) {
        uint64_t word;
        memcpy(&word, bytes, 8);
        hash = mix(hash ^ word);
    }
    uint64_t word = 0;
    memcpy(&word, bytes, length);
    return mix(hash ^ word);
}

static bool table_init(struct tokenizer *t, struct token_table *table, size_t count) {
    size_t slots = 16;
    while (slots < 2 * count) slots *= 2;
    table->slots = arena_array(&t->arena, slots, sizeof *table->slots);
    table->mask = slots - 1;
    if (table->slots) memset(table->slots, 0xFF, slots * sizeof *table->slots); /* TOKEN_NONE */
    return table->slots != NULL;
}

static token_id find_text(const struct tokenizer *t, const char *text, size_t length) {
    size_t slot = hash_bytes(t->hash_seed, text, length) & t->by_text.mask;
    for (token_id id; (id = t->by_text.slots[slot]) != TOKEN_NONE; slot = (slot + 1) & t->by_text.mask)
        if (t->tokens[id].text_length == length && memcmp(t->texts + t->tokens[id].text, text, length) == 0) return id;
    return TOKEN_NONE;
}

token_id vocabulary_find_bytes(const struct tokenizer *t, const uint8_t *bytes, size_t length) {
    if (length > t->byte_length_max) return TOKEN_NONE;
    size_t slot = hash_bytes(t->hash_seed, (const char *)bytes, length) & t->by_bytes.mask;
    for (token_id id; (id = t->by_bytes.slots[slot]) != TOKEN_NONE; slot = (slot + 1) & t->by_bytes.mask)
        if (t->tokens[id].byte_length == length && memcmp(token_bytes(t, id), bytes, length) == 0) return id;
    return TOKEN_NONE;
}

/* A text that is already there keeps its first id: of equal tokens only the first is ever produced. */
static void add_by_text(struct tokenizer *t, token_id id) {
    const struct vocabulary_token *token = &t->tokens[id];
    const char *text = t->texts + token->text;
    if (find_text(t, text, token->text_length) != TOKEN_NONE) return;
    size_t slot = hash_bytes(t->hash_seed, text, token->text_length) & t->by_text.mask;
    while (t->by_text.slots[slot] != TOKEN_NONE) slot = (slot + 1) & t->by_text.mask;
    t->by_text.slots[slot] = id;
}

static void add_by_bytes(struct tokenizer *t, token_id id) {
    const struct vocabulary_token *token = &t->tokens[id];
    if (token->byte_length > t->byte_length_max) t->byte_length_max = token->byte_length;
    const char *bytes = token_bytes(t, id);
    if (vocabulary_find_bytes(t, (const uint8_t *)bytes, token->byte_length) != TOKEN_NONE) return;
    size_t slot = hash_bytes(t->hash_seed, bytes, token->byte_length) & t->by_bytes.mask;
    while (t->by_bytes.slots[slot] != TOKEN_NONE) slot = (slot + 1) & t->by_bytes.mask;
    t->by_bytes.slots[slot] = id;
}

static uint64_t pair_key(token_id left, token_id right) { return (uint64_t)(uint32_t)left << 32 | (uint32_t)right; }

/* Where the rule of the pair is, or would be: TOKEN_NONE. */
static struct merge_rule *merge_slot(const struct tokenizer *t, uint64_t pair) {
    const struct merge_table *table = &t->merges;
    size_t slot = mix(pair ^ t->hash_seed) & table->mask;
    while (table->rules[slot].merged != TOKEN_NONE && table->rules[slot].pair != pair) slot = (slot + 1) & table->mask;
    return &table->rules[slot];
}

struct merge_rule vocabulary_find_merge(const struct tokenizer *t, token_id left, token_id right) {
    return *merge_slot(t, pair_key(left, right));
}

/* ---- tokens ---- */

/* Texts that structure a conversation in chat templates.  Some files type them as user-defined or normal tokens, so
 * that text typed by a user would become them.  They always count as control tokens. */
static const char *const chat_markers[] = {"<|im_start|>",
                                           "<|im_end|>",
                                           "<|im_sep|>",
                                           "<|start_header_id|>",
                                           "<|end_header_id|>",
                                           "<|eot_id|>",
                                           "<|eom_id|>",
                                           "<|begin_of_text|>",
                                           "<|end_of_text|>",
                                           "<|endoftext|>",
                                           "[INST]",
                                           "[/INST]",
                                           "[SYSTEM_PROMPT]",
                                           "[/SYSTEM_PROMPT]",
                                           "<start_of_turn>",
                                           "<end_of_turn>",
                                           "<|turn>",
                                           "<turn|>",
                                           "<|tool_response>",
                                           "<tool_response|>",
                                           "<|system|>",
                                           "<|user|>",
                                           "<|assistant|>",
                                           "<|end|>",
                                           "<|start_of_role|>",
                                           "<|end_of_role|>",
                                           "<｜User｜>",
                                           "<｜Assistant｜>",
                                           "<｜begin▁of▁sentence｜>",
                                           "<｜end▁of▁sentence｜>"};

static bool is_chat_marker(struct gguf_string text) {
    for (size_t i = 0; i < sizeof chat_markers / sizeof chat_markers[0]; i++)
        if (strlen(chat_markers[i]) == text.length && memcmp(chat_markers[i], text.text, text.length) == 0) return true;
    return false;
}

static int hex_digit(char digit) {
    if (digit >= '0' && digit <= '9') return digit - '0';
    if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
    return -1;
}

/* The byte of `<0xNN>`; -1: another text. */
static int byte_of_text(struct gguf_string text) {
    if (text.length != 6 || memcmp(text.text, "<0x", 3) != 0 || text.text[5] != '>') return -1;
    int high = hex_digit(text.text[3]), low = hex_digit(text.text[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

static uint8_t type_of(const struct tokenizer_source *source, token_id id) {
    struct gguf_string text = source->tokens[id];
    uint8_t type = source->types ? source->types[id] : TOKEN_UNDEFINED;
    if (!source->types) {
        if (id == source->rules.unknown)
            type = TOKEN_UNKNOWN;
        else if (id == source->rules.bos || id == source->rules.eos)
            type = TOKEN_CONTROL;
        else if (source->model != TOKENIZER_BPE && byte_of_text(text) >= 0)
            type = TOKEN_BYTE;
    }
    if (type == TOKEN_UNDEFINED) type = TOKEN_NORMAL;
    if ((type == TOKEN_NORMAL || type == TOKEN_USER_DEFINED) && is_chat_marker(text)) type = TOKEN_CONTROL;
    if (source->model == TOKENIZER_BPE && type == TOKEN_BYTE) type = TOKEN_NORMAL;
    return type;
}

/* The bytes of a byte-level text.  Returns their count; SIZE_MAX: a character is not of the alphabet. */
static size_t byte_level_text(struct gguf_string text, char *bytes) {
    const uint8_t *from = (const uint8_t *)text.text;
    size_t count = 0;
    for (size_t at = 0; at < text.length;) {
        struct unicode_character c = unicode_decode(from, text.length, at);
        int byte = c.code == UNICODE_REPLACEMENT ? -1 : byte_level_decode(c.code);
        if (byte < 0) return SIZE_MAX;
        bytes[count++] = (char)byte;
        at += c.length;
    }
    return count;
}

static size_t unescape_spaces(struct gguf_string text, char *bytes) {
    size_t count = 0;
    for (size_t at = 0; at < text.length;) {
        if (text.length - at >= 3 && memcmp(text.text + at, "\xE2\x96\x81", 3) == 0) {
            bytes[count++] = ' ';
            at += 3;
        } else {
            bytes[count++] = text.text[at++];
        }
    }
    return count;
}

/* Copies one token.  *used: how much of the texts' memory is filled; it holds twice the length of all texts. */
static enum status add_token(struct tokenizer *t, const struct tokenizer_source *source, token_id id, size_t *used,
                             struct error *error) {
    struct gguf_string text = source->tokens[id];
    struct vocabulary_token *token = &t->tokens[id];
    char *texts = (char *)t->texts;
    token->type = type_of(source, id);
    token->text = *used;
    token->text_length = (uint32_t)text.length;
    if (text.length) memcpy(texts + *used, text.text, text.length);
    *used += text.length;
    char *bytes = texts + *used;
    size_t count = SIZE_MAX;
    bool plain = token->type == TOKEN_NORMAL || token->type == TOKEN_UNUSED;
    if (token->type == TOKEN_BYTE) {
        int byte = byte_of_text(text);
        if (byte < 0)
            return error_set(error, STATUS_MODEL, KEY_TOKENS "[%d]: a byte token must read <0xNN>, found '%.*s'", id,
                             (int)(text.length < 40 ? text.length : 40), text.text);
        bytes[0] = (char)byte;
        count = 1;
        if (t->byte_tokens[byte] == TOKEN_NONE) t->byte_tokens[byte] = id;
    } else if (plain && t->model == TOKENIZER_BPE) {
        count = byte_level_text(text, bytes);
    } else if (plain || (token->type == TOKEN_USER_DEFINED && t->model == TOKENIZER_SPM)) {
        count = unescape_spaces(text, bytes);
    }
    if (count == SIZE_MAX) { /* stands for its own text */
        token->bytes = token->text;
        token->byte_length = token->text_length;
    } else {
        token->bytes = *used;
        token->byte_length = (uint32_t)count;
        *used += count;
    }
    add_by_text(t, id);
    bool merges = token->type == TOKEN_NORMAL || (token->type == TOKEN_USER_DEFINED && t->model == TOKENIZER_SPM);
    if (merges && token->byte_length > 0 && count != SIZE_MAX) add_by_bytes(t, id);
    return STATUS_OK;
}

static enum status add_tokens(struct tokenizer *t, const struct tokenizer_source *source, struct error *error) {
    uint64_t total = 0;
    for (uint64_t i = 0; i < source->token_count; i++) {
        if (source->tokens[i].length > TOKEN_TEXT_BYTES_MAX)
            return error_set(error, STATUS_MODEL, KEY_TOKENS "[%llu]: %llu bytes, at most %d", (unsigned long long)i,
                             (unsigned long long)source->tokens[i].length, TOKEN_TEXT_BYTES_MAX);
        if (source->types && source->types[i] >= TOKEN_TYPE_COUNT)
            return error_set(error, STATUS_MODEL, "tokenizer.ggml.token_type[%llu]: found %d, expected 0 to %d",
                             (unsigned long long)i, source->types[i], TOKEN_TYPE_COUNT - 1);
        total += source->tokens[i].length;
    }
    t->texts = arena_array(&t->arena, 2 * total + 1, 1);
    t->tokens = arena_array(&t->arena, t->token_count, sizeof *t->tokens);
    t->whole = arena_array(&t->arena, t->token_count, sizeof *t->whole);
    if (!t->texts || !t->tokens || !t->whole || !table_init(t, &t->by_text, t->token_count) ||
        !table_init(t, &t->by_bytes, t->token_count))
        return error_set(error, STATUS_MEMORY, "no memory for a vocabulary of %zu tokens", t->token_count);
    size_t used = 0;
    for (size_t i = 0; i < t->token_count; i++) TRY(add_token(t, source, (token_id)i, &used, error));
    ASSERT(used <= 2 * total);
    return STATUS_OK;
}

/* ---- SentencePiece: scores to ranks ---- */

static int compare_scores(const void *a, const void *b, void *scores) {
    float left = ((const float *)scores)[*(const token_id *)a];
    float right = ((const float *)scores)[*(const token_id *)b];
    return left > right ? -1 : left < right;
}

static enum status rank_scores(struct tokenizer *t, const float *scores, struct error *error) {
    for (size_t i = 0; i < t->token_count; i++)
        if (isnan(scores[i])) return error_set(error, STATUS_MODEL, "tokenizer.ggml.scores[%zu]: not a number", i);
    token_id *order = malloc(t->token_count * sizeof *order);
    if (!order) return error_set(error, STATUS_MEMORY, "no memory to order %zu scores", t->token_count);
    for (size_t i = 0; i < t->token_count; i++) order[i] = (token_id)i;
    float *readable = (float *)(uintptr_t)scores; /* qsort_r takes it without const, but only reads it */
    qsort_r(order, t->token_count, sizeof *order, compare_scores, readable);
    uint32_t rank = 0;
    for (size_t i = 0; i < t->token_count; i++) {
        if (i > 0 && scores[order[i]] < scores[order[i - 1]]) rank++;
        t->tokens[order[i]].rank = rank;
    }
    free(order);
    return STATUS_OK;
}

/* If no token that merging can produce has a space after another character, no merge crosses from a word into the
 * space before the next.  Then words can be merged one by one: the same result, sooner. */
static bool splits_at_spaces(const struct tokenizer *t) {
    for (size_t i = 0; i < t->token_count; i++) {
        const struct vocabulary_token *token = &t->tokens[i];
        if (token->type != TOKEN_NORMAL && token->type != TOKEN_USER_DEFINED) continue;
        const char *bytes = token_bytes(t, (token_id)i);
        for (size_t at = 1; at < token->byte_length; at++)
            if (bytes[at] == ' ' && bytes[at - 1] != ' ') return false;
    }
    return true;
}

/* ---- BPE: merges ---- */

enum { MERGE_TEXT_BYTES_MAX = 2 * TOKEN_TEXT_BYTES_MAX };

static enum status add_merge(struct tokenizer *t, struct gguf_string text, uint32_t rank, char *joined,
                             struct error *error) {
    int shown = (int)(text.length < 60 ? text.length : 60);
    const char *space = text.length > 1 ? memchr(text.text + 1, ' ', text.length - 1) : NULL;
    size_t left = space ? (size_t)(space - text.text) : 0;
    size_t right = space ? text.length - left - 1 : 0;
    if (right == 0 || text.length > MERGE_TEXT_BYTES_MAX)
        return error_set(error, STATUS_MODEL, KEY_MERGES "[%u]: found '%.*s', expected two tokens", rank, shown,
                         text.text);
    memcpy(joined, text.text, left);
    memcpy(joined + left, space + 1, right);
    token_id a = find_text(t, joined, left);
    token_id b = find_text(t, joined + left, right);
    token_id merged = find_text(t, joined, left + right);
    if (a == TOKEN_NONE || b == TOKEN_NONE || merged == TOKEN_NONE)
        return error_set(error, STATUS_MODEL, KEY_MERGES "[%u]: '%.*s': a part or the result is no token", rank, shown,
                         text.text);
    struct merge_rule *rule = merge_slot(t, pair_key(a, b));
    if (rule->merged != TOKEN_NONE)
        return error_set(error, STATUS_MODEL, KEY_MERGES "[%u]: '%.*s' is entry %u already", rank, shown, text.text,
                         rule->rank);
    *rule = (struct merge_rule){pair_key(a, b), rank, merged};
    return STATUS_OK;
}

static enum status add_merges(struct tokenizer *t, const struct tokenizer_source *source, struct error *error) {
    if (source->merge_count >= UINT32_MAX / 4)
        return error_set(error, STATUS_MODEL, KEY_MERGES ": %llu entries", (unsigned long long)source->merge_count);
    size_t slots = 16;
    while (slots < 2 * source->merge_count) slots *= 2;
    t->merges.rules = arena_array(&t->arena, slots, sizeof *t->merges.rules);
    if (!t->merges.rules) return error_set(error, STATUS_MEMORY, "no memory for %zu merges", slots / 2);
    t->merges.mask = slots - 1;
    for (size_t i = 0; i < slots; i++) t->merges.rules[i].merged = TOKEN_NONE;
    char *joined = malloc(MERGE_TEXT_BYTES_MAX);
    if (!joined) return error_set(error, STATUS_MEMORY, "no memory to read merges");
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < source->merge_count && status == STATUS_OK; i++)
        status = add_merge(t, source->merges[i], i, joined, error);
    free(joined);
    TRY(status);
    for (unsigned byte = 0; byte < 256 && t->model == TOKENIZER_BPE; byte++) {
        uint8_t text[4];
        size_t length = byte_level_encode((uint8_t)byte, text);
        t->byte_tokens[byte] = find_text(t, (const char *)text, length);
    }
    return STATUS_OK;
}

/* ---- tokens that are looked for in the text ---- */

static int compare_bytes(const void *a, const void *b, void *tokenizer) {
    const struct tokenizer *t = tokenizer;
    token_id left = *(const token_id *)a, right = *(const token_id *)b;
    size_t left_length = t->tokens[left].byte_length, right_length = t->tokens[right].byte_length;
    int order =
        memcmp(token_bytes(t, left), token_bytes(t, right), left_length < right_length ? left_length : right_length);
    if (order == 0) order = (left_length > right_length) - (left_length < right_length);
    return order ? order : (left > right) - (left < right);
}

static enum status special_list_init(struct tokenizer *t, struct special_list *list, bool control,
                                     struct error *error) {
    size_t count = 0;
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1) list->ids = arena_array(&t->arena, count ? count : 1, sizeof *list->ids);
        if (pass == 1 && !list->ids) return error_set(error, STATUS_MEMORY, "no memory for a vocabulary");
        count = 0;
        for (size_t i = 0; i < t->token_count; i++) {
            uint8_t type = t->tokens[i].type;
            if (type != TOKEN_USER_DEFINED && !(control && (type == TOKEN_CONTROL || type == TOKEN_UNKNOWN))) continue;
            if (t->tokens[i].byte_length == 0) continue;
            if (t->tokens[i].byte_length > SPECIAL_TEXT_BYTES_MAX)
                return error_set(error, STATUS_MODEL, KEY_TOKENS "[%zu]: a special token of %u bytes, at most %d", i,
                                 t->tokens[i].byte_length, SPECIAL_TEXT_BYTES_MAX);
            if (pass == 1) {
                list->ids[count] = (token_id)i;
                list->starts[(uint8_t)token_bytes(t, (token_id)i)[0]] = true;
            }
            count++;
        }
    }
    list->count = count;
    qsort_r(list->ids, count, sizeof *list->ids, compare_bytes, t);
    return STATUS_OK;
}

/* Narrows the sorted range [low, high) of tokens that match the text, byte by byte. */
token_id special_match(const struct tokenizer *t, const struct special_list *list, const uint8_t *text, size_t length) {
    token_id best = TOKEN_NONE;
    size_t low = 0, high = list->count;
    for (size_t depth = 0; low < high; depth++) {
        /* Of equal texts the lowest id is first: keep it. */
        if (t->tokens[list->ids[low]].byte_length == depth) best = list->ids[low];
        while (low < high && t->tokens[list->ids[low]].byte_length == depth) low++;
        if (depth == length) break;
        size_t from = low, to = high; /* first token whose byte is not below the text's */
        while (from < to) {
            size_t middle = from + (to - from) / 2;
            if ((uint8_t)token_bytes(t, list->ids[middle])[depth] < text[depth])
                from = middle + 1;
            else
                to = middle;
        }
        low = from;
        to = high; /* and the first whose byte is above */
        while (from < to) {
            size_t middle = from + (to - from) / 2;
            if ((uint8_t)token_bytes(t, list->ids[middle])[depth] <= text[depth])
                from = middle + 1;
            else
                to = middle;
        }
        high = from;
    }
    return best;
}

/* ---- the whole ---- */

static enum status check_source(const struct tokenizer_source *source, struct error *error) {
    if (source->token_count == 0 || source->token_count >= INT32_MAX)
        return error_set(error, STATUS_MODEL, KEY_TOKENS ": %llu tokens", (unsigned long long)source->token_count);
    if (source->model == TOKENIZER_SPM && !source->scores)
        return error_set(error, STATUS_MODEL, "tokenizer.ggml.scores: missing");
    if (source->model != TOKENIZER_SPM && !source->pre)
        return error_set(error, STATUS_MODEL, "tokenizer.ggml.pre: missing");
    return STATUS_OK;
}

/* More texts that end an answer, whatever the file names as eos, eot and eom. */
static const char *const end_texts[] = {
    "<|eot_id|>",    "<|eom_id|>",      "<|im_end|>", "<|end|>",         "<end_of_turn>",
    "<|endoftext|>", "<|end_of_text|>", "<EOT>",      "_<EOT>",          "<｜end▁of▁sentence｜>",
    "<|return|>",    "<|call|>",        "<turn|>",    "<|tool_response>"};

static void add_end(struct tokenizer *t, token_id id) {
    if (id == TOKEN_NONE || t->rules.end_count == TOKENIZER_ENDS_MAX || tokenizer_is_end(t, id)) return;
    t->rules.ends[t->rules.end_count++] = id;
}

static enum status fill(struct tokenizer *t, const struct tokenizer_source *source, struct error *error) {
    t->model = source->model;
    t->token_count = source->token_count;
    t->rules = source->rules;
    t->rules.end_count = 0;
    memset(t->byte_tokens, 0xFF, sizeof t->byte_tokens); /* TOKEN_NONE */
    if (getrandom(&t->hash_seed, sizeof t->hash_seed, GRND_NONBLOCK) != sizeof t->hash_seed)
        t->hash_seed = mix((uintptr_t)t);
    TRY(add_tokens(t, source, error));
    if (t->model == TOKENIZER_SPM) {
        TRY(rank_scores(t, source->scores, error));
        t->splits_at_spaces = splits_at_spaces(t);
    } else {
        t->pre_tokenizer = source->pre->pre_tokenizer;
        t->ignore_merges = source->pre->ignore_merges;
        TRY(add_merges(t, source, error));
    }
    TRY(special_list_init(t, &t->user_defined, false, error));
    TRY(special_list_init(t, &t->special, true, error));
    add_end(t, t->rules.eos);
    for (size_t i = 0; i < source->rules.end_count; i++) add_end(t, source->rules.ends[i]);
    for (size_t i = 0; i < sizeof end_texts / sizeof end_texts[0]; i++) {
        token_id id = tokenizer_find(t, end_texts[i]);
        if (id != TOKEN_NONE && t->tokens[id].type != TOKEN_NORMAL) add_end(t, id);
    }
    return STATUS_OK;
}

enum status tokenizer_build(struct tokenizer **tokenizer, const struct tokenizer_source *source, struct error *error) {
    *tokenizer = NULL;
    TRY(check_source(source, error));
    struct tokenizer *t = calloc(1, sizeof *t);
    if (!t) return error_set(error, STATUS_MEMORY, "no memory for a tokenizer");
    arena_init(&t->arena);
    enum status status = fill(t, source, error);
    if (status == STATUS_OK)
        *tokenizer = t;
    else
        tokenizer_destroy(t);
    return status;
}

void tokenizer_destroy(struct tokenizer *tokenizer) {
    if (!tokenizer) return;
    arena_deinit(&tokenizer->arena);
    free(tokenizer);
}

size_t tokenizer_vocabulary_size(const struct tokenizer *tokenizer) { return tokenizer->token_count; }
const token_id *tokenizer_suppressed(const struct tokenizer *tokenizer, size_t *count) {
    *count = tokenizer->suppressed_count;
    return tokenizer->suppressed;
}

token_id tokenizer_bos(const struct tokenizer *tokenizer) { return tokenizer->rules.bos; }
token_id tokenizer_eos(const struct tokenizer *tokenizer) { return tokenizer->rules.eos; }

bool tokenizer_adds_bos(const struct tokenizer *tokenizer) {
    return tokenizer->rules.adds_bos && tokenizer->rules.bos != TOKEN_NONE;
}

bool tokenizer_is_end(const struct tokenizer *tokenizer, token_id id) {
    for (size_t i = 0; i < tokenizer->rules.end_count; i++)
        if (tokenizer->rules.ends[i] == id) return id != TOKEN_NONE;
    return false;
}

token_id tokenizer_find(const struct tokenizer *tokenizer, const char *text) {
    return find_text(tokenizer, text, strlen(text));
}
