#include "token/chat_builder_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "token/unicode.h"

void chat_builder_put_token(struct chat_builder *b, token_id id) {
    if (b->status != STATUS_OK) return;
    if (!array_reserve(&b->parts, b->count, &b->capacity, sizeof *b->parts))
        b->status = error_set(b->error, STATUS_MEMORY, "no memory for a conversation");
    else
        b->parts[b->count++] = (struct chat_part){id, b->text.length, 0};
}

void chat_builder_put_bytes(struct chat_builder *b, const char *text, size_t length) {
    if (b->status != STATUS_OK || length == 0) return;
    if (b->count == 0 || b->parts[b->count - 1].id != TOKEN_NONE) chat_builder_put_token(b, TOKEN_NONE);
    if (b->status != STATUS_OK) return;
    if (!text_append(&b->text, text, length)) {
        b->status = error_set(b->error, STATUS_MEMORY, "no memory for a conversation");
        return;
    }
    b->parts[b->count - 1].length += length;
}

/* What Python's str.strip and Jinja's trim call space. */
static bool is_trimmed(uint32_t code) {
    return unicode_classes(code) & UNICODE_SPACE || (code >= 0x1C && code <= 0x1F);
}

struct chat_message chat_message_trim(struct chat_message message) {
    const uint8_t *text = (const uint8_t *)message.content;
    size_t start = 0, end = 0;
    bool begun = false;
    for (size_t at = 0; at < message.length;) {
        struct unicode_character c = unicode_decode(text, message.length, at);
        at += c.length;
        if (is_trimmed(c.code)) {
            if (!begun) start = at;
        } else {
            begun = true;
            end = at;
        }
    }
    message.content += start;
    message.length = begun ? end - start : 0;
    return message;
}

void chat_builder_strip_after_control(struct chat_builder *b) {
    for (size_t i = 1; i < b->count; i++) {
        struct chat_part *part = &b->parts[i];
        if (part->id != TOKEN_NONE || b->parts[i - 1].id == TOKEN_NONE) continue;
        struct chat_message rest = {CHAT_USER, b->text.bytes + part->start, part->length};
        while (rest.length > 0) {
            struct unicode_character c = unicode_decode((const uint8_t *)rest.content, rest.length, 0);
            if (!is_trimmed(c.code)) break;
            rest.content += c.length;
            rest.length -= c.length;
        }
        part->start += part->length - rest.length;
        part->length = rest.length;
    }
}

enum status chat_builder_encode(struct chat_builder *b, struct token_list *list) {
    if (b->count == 0) return STATUS_OK;
    struct tokenize_part *parts = malloc(b->count * sizeof *parts);
    if (!parts) return error_set(b->error, STATUS_MEMORY, "no memory for a conversation");
    for (size_t i = 0; i < b->count; i++)
        parts[i] = (struct tokenize_part){b->parts[i].id, b->text.bytes ? b->text.bytes + b->parts[i].start : NULL,
                                          b->parts[i].length};
    enum status status = tokenizer_encode_parts(b->tokenizer, parts, b->count, list, b->error);
    free(parts);
    return status;
}

size_t chat_builder_turn_end(const struct chat_builder *b, const struct token_list *list) {
    size_t part = b->given_end, behind = 0;
    if (b->given_end == 0) return 0;
    while (part < b->count && b->parts[part].id == TOKEN_NONE) part++;
    if (part == b->count) return 0;
    /* Text makes no control tokens, so it is found from the end, by how often it comes there. */
    const token_id id = b->parts[part].id;
    for (; part < b->count; part++) behind += b->parts[part].id == id;
    size_t at = list->count;
    while (behind > 0 && at > 0) behind -= list->ids[--at] == id;
    return behind == 0 ? at : 0;
}

static void reverse(char *to, const char *from, size_t length) {
    for (size_t i = 0; i < length; i++) to[i] = from[length - 1 - i];
}

/* Where wanted begins the last time; SIZE_MAX: nowhere.  Backwards and linear: both may be long, and of one letter. */
static size_t find_last(const char *text, size_t text_length, const char *wanted, size_t length, char *space) {
    reverse(space, text, text_length);
    reverse(space + text_length, wanted, length);
    const char *found = memmem(space, text_length, space + text_length, length);
    return found != NULL ? text_length - (size_t)(found - space) - length : SIZE_MAX;
}

void chat_builder_cut(struct chat_builder *b, const char *text, size_t length) {
    if (b->status != STATUS_OK) return;
    const struct chat_message whole = {.content = text, .length = length}, trimmed = chat_message_trim(whole);
    if (trimmed.length == 0) return;
    char *space = malloc(b->text.length + trimmed.length);
    if (space == NULL) {
        b->status = error_set(b->error, STATUS_MEMORY, "no memory for a conversation");
        return;
    }
    const size_t found = find_last(b->text.bytes, b->text.length, trimmed.content, trimmed.length, space);
    free(space);
    if (found == SIZE_MAX) {
        b->status = error_set(b->error, STATUS_USAGE, "the chat template does not show the answer to go on with");
        return;
    }
    /* Blanks that the template left are the beginning of the answer, too. */
    const size_t blanks = (size_t)(text + length - trimmed.content) - trimmed.length;
    size_t end = found + trimmed.length;
    if (b->text.length - end >= blanks && memcmp(b->text.bytes + end, trimmed.content + trimmed.length, blanks) == 0)
        end += blanks;
    while (b->count > 0) {
        struct chat_part *part = &b->parts[b->count - 1];
        if (part->start < end && part->id == TOKEN_NONE) break;
        b->count--;
    }
    if (b->count > 0 && b->parts[b->count - 1].start + b->parts[b->count - 1].length > end)
        b->parts[b->count - 1].length = end - b->parts[b->count - 1].start;
    b->text.length = end;
}

void chat_builder_deinit(struct chat_builder *b) {
    free(b->parts);
    text_deinit(&b->text);
}
