/* Text to ids: first finds tokens that the text contains verbatim, then cuts the rest into pieces and merges them. */
#include <stdlib.h>

#include "base/assert.h"
#include "token/tokenizer_internal.h"

/* One encoding under way. */
struct encoder {
    const struct tokenizer *t;
    struct merge_scratch scratch;
    uint8_t *spaced; /* not byte-level: the text with spaces as the model expects them */
    size_t spaced_capacity;
    bool after_special; /* at the start, or directly after a verbatim token */
    bool after_space;   /* SPM: the text so far ends with a space, or is empty */
    bool single_prefix; /* SPM: a text that begins with a space of its own gets no other */
    struct token_list *list;
};

static enum status encode_pieces(struct encoder *e, const uint8_t *text, size_t length, struct error *error) {
    struct pre_tokenizer_cursor cursor;
    pre_tokenizer_begin(&cursor, e->t->pre_tokenizer, text, length);
    for (size_t start, end; pre_tokenizer_next(&cursor, &start, &end);)
        TRY(merge_piece(e->t, text + start, end - start, &e->scratch, e->list, error));
    return STATUS_OK;
}

/* The text as SentencePiece's normalizer leaves it (with a space for U+2581): a space before the first word, and
 * single spaces if the model asks for that. */
static size_t space_text(struct encoder *e, const uint8_t *text, size_t length, bool last) {
    uint8_t *to = e->spaced;
    size_t count = 0;
    for (size_t at = 0; at < length;) {
        bool escape = length - at >= 3 && text[at] == 0xE2 && text[at + 1] == 0x96 && text[at + 2] == 0x81;
        uint8_t byte = escape ? ' ' : text[at];
        at += escape ? 3 : 1;
        if (e->t->rules.removes_extra_spaces && byte == ' ' && e->after_space) continue;
        e->after_space = byte == ' ';
        bool prefix = count == 0 && e->t->rules.adds_space_prefix && e->after_special;
        if (prefix && !(e->single_prefix && byte == ' ')) to[count++] = ' ';
        to[count++] = byte;
    }
    if (last && e->t->rules.removes_extra_spaces && count > 0 && to[count - 1] == ' ') count--;
    return count;
}

static enum status encode_spaced(struct encoder *e, const uint8_t *text, size_t length, bool last,
                                 struct error *error) {
    if (length + 1 > e->spaced_capacity) {
        free(e->spaced);
        e->spaced_capacity = length + 1;
        e->spaced = malloc(e->spaced_capacity);
        if (!e->spaced) {
            e->spaced_capacity = 0;
            return error_set(error, STATUS_MEMORY, "no memory to tokenize %zu bytes", length);
        }
    }
    size_t count = space_text(e, text, length, last);
    text = e->spaced;
    if (e->t->pre_tokenizer != NULL) return encode_pieces(e, text, count, error);
    for (size_t start = 0, end; start < count; start = end) {
        end = count;
        if (e->t->splits_at_spaces) {
            end = start;
            while (end < count && text[end] == ' ') end++;
            while (end < count && text[end] != ' ') end++;
        }
        TRY(merge_piece(e->t, text + start, end - start, &e->scratch, e->list, error));
    }
    return STATUS_OK;
}

static enum status encode_plain(struct encoder *e, const uint8_t *text, size_t length, bool last, struct error *error) {
    if (length == 0) return STATUS_OK;
    if (e->t->model == TOKENIZER_BPE)
        TRY(encode_pieces(e, text, length, error));
    else
        TRY(encode_spaced(e, text, length, last, error));
    e->after_special = false;
    return STATUS_OK;
}

static enum status encode_token(struct encoder *e, token_id id, struct error *error) {
    e->after_special = true;
    e->after_space = false;
    return token_list_append(e->list, id, error);
}

static enum status encode_text(struct encoder *e, const uint8_t *text, size_t length, bool special, bool last,
                               struct error *error) {
    const struct special_list *specials = special ? &e->t->special : &e->t->user_defined;
    size_t start = 0, at = 0;
    if (length >= UINT32_MAX) return error_set(error, STATUS_USAGE, "text of %zu bytes, too long", length);
    while (specials->count > 0 && at < length) {
        token_id id = TOKEN_NONE;
        if (specials->starts[text[at]]) id = special_match(e->t, specials, text + at, length - at);
        if (id == TOKEN_NONE) {
            at++;
            continue;
        }
        TRY(encode_plain(e, text + start, at - start, false, error));
        TRY(encode_token(e, id, error));
        start = at += e->t->tokens[id].byte_length;
    }
    return encode_plain(e, text + start, length - start, last, error);
}

static void encoder_init(struct encoder *e, const struct tokenizer *t, struct token_list *list) {
    *e = (struct encoder){.t = t, .after_special = true, .after_space = true, .list = list};
}

static void encoder_deinit(struct encoder *e) {
    merge_scratch_deinit(&e->scratch);
    free(e->spaced);
}

enum status tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t length,
                             struct tokenize_options options, struct token_list *list, struct error *error) {
    struct encoder e;
    encoder_init(&e, tokenizer, list);
    enum status status = STATUS_OK;
    if (options.add_special && tokenizer_adds_bos(tokenizer))
        status = token_list_append(list, tokenizer->rules.bos, error);
    if (status == STATUS_OK)
        status = encode_text(&e, (const uint8_t *)text, length, options.parse_special, true, error);
    const struct token_rules *rules = &tokenizer->rules;
    if (status == STATUS_OK && options.add_special && rules->adds_eos && rules->eos != TOKEN_NONE)
        status = token_list_append(list, rules->eos, error);
    encoder_deinit(&e);
    return status;
}

enum status tokenizer_encode_parts(const struct tokenizer *tokenizer, const struct tokenize_part *parts, size_t count,
                                   struct token_list *list, struct error *error) {
    struct encoder e;
    encoder_init(&e, tokenizer, list);
    e.single_prefix = true; /* "[INST] text" is the token and one space, as in training */
    enum status status = STATUS_OK;
    for (size_t i = 0; i < count && status == STATUS_OK; i++) {
        const struct tokenize_part *part = &parts[i];
        ASSERT(part->id == TOKEN_NONE || (size_t)part->id < tokenizer->token_count);
        if (part->id != TOKEN_NONE)
            status = encode_token(&e, part->id, error);
        else
            status = encode_text(&e, (const uint8_t *)part->text, part->length, false, i + 1 == count, error);
    }
    encoder_deinit(&e);
    return status;
}
