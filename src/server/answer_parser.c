#include "server/answer_parser.h"

#include <jansson.h>
#include <string.h>

static bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

/* Passes on the first `count` held bytes. */
static void emit(struct answer_parser *parser, enum answer_part_kind kind, size_t count, answer_part_sink *sink,
                 void *context) {
    if (count > 0) sink(context, &(struct answer_part){.kind = kind, .bytes = parser->held.bytes, .length = count});
    text_drop(&parser->held, count);
}

/* Bytes at the end of text that may be the beginning of tag. */
static size_t tag_beginning(const char *text, size_t length, const char *tag) {
    size_t longest = strlen(tag) - 1;
    if (longest > length) longest = length;
    for (size_t count = longest; count > 0; count--)
        if (memcmp(text + length - count, tag, count) == 0) return count;
    return 0;
}

static size_t trailing_blanks(const char *text, size_t length) {
    size_t count = 0;
    while (count < length && is_blank(text[length - 1 - count])) count++;
    return count;
}

/* The first `count` held bytes are between the tags. */
static void emit_call(struct answer_parser *parser, size_t count, answer_part_sink *sink, void *context) {
    json_t *calls = answer_calls_parse(parser->syntax, parser->held.bytes, count);
    if (calls == NULL) {
        emit(parser, ANSWER_CONTENT, count, sink, context);
        return;
    }
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i), *arguments = json_object_get(call, "arguments");
        sink(context, &(struct answer_part){.kind = ANSWER_TOOL_CALL,
                                            .bytes = json_string_value(arguments),
                                            .length = json_string_length(arguments),
                                            .tool_name = json_string_value(json_object_get(call, "name"))});
    }
    json_decref(calls);
    text_drop(&parser->held, count);
}

/* Marks that are no call's are never content. */
static bool counts(const struct answer_parser *parser, const struct answer_call_tags *tags) {
    return parser->has_tools || (tags->end != NULL && tags->end[0] == '\0');
}

/* The first of the tags that begin a call in what is held; NULL: none is there. */
static const char *find_call(const struct answer_parser *parser, const struct answer_call_tags **tags) {
    const char *first = NULL;
    const struct answer_call_tags *candidate;
    for (size_t i = 0; (candidate = answer_call_tags(parser->syntax, i)) != NULL; i++) {
        const char *at = memmem(parser->held.bytes, parser->held.length, candidate->begin, strlen(candidate->begin));
        if (!counts(parser, candidate) || at == NULL || (first != NULL && at >= first)) continue;
        first = at;
        *tags = candidate;
    }
    return first;
}

/* Bytes at the end that may be the beginning of any of them. */
static size_t call_beginning(const struct answer_parser *parser) {
    size_t longest = 0;
    const struct answer_call_tags *tags;
    for (size_t i = 0; (tags = answer_call_tags(parser->syntax, i)) != NULL; i++) {
        const size_t count =
            counts(parser, tags) ? tag_beginning(parser->held.bytes, parser->held.length, tags->begin) : 0;
        if (count > longest) longest = count;
    }
    return longest;
}

/* true: a tag was found, there may be more. */
static bool step_content(struct answer_parser *parser, answer_part_sink *sink, void *context) {
    const struct answer_call_tags *tags = NULL;
    const char *tag = find_call(parser, &tags);
    if (tag != NULL) {
        const size_t before = (size_t)(tag - parser->held.bytes);
        const size_t blanks = trailing_blanks(parser->held.bytes, before);
        emit(parser, ANSWER_CONTENT, before - blanks, sink, context);
        text_drop(&parser->held, blanks + (tags->keeps_begin ? 0 : strlen(tags->begin)));
        parser->drops_blanks = tags->end != NULL && tags->end[0] == '\0';
        if (parser->drops_blanks) return true;
        parser->state = ANSWER_IN_TOOL_CALL;
        parser->saw_tag = true;
        parser->call = tags;
        return true;
    }
    size_t kept = call_beginning(parser);
    if (parser->has_tools) kept += trailing_blanks(parser->held.bytes, parser->held.length - kept);
    emit(parser, ANSWER_CONTENT, parser->held.length - kept, sink, context);
    return false;
}

/* Of a call that has no tag as the whole answer is one; NULL: there is no such form. */
static const char *bare_call(const struct answer_parser *parser) {
    if (!parser->has_tools) return NULL;
    return parser->syntax == CHAT_LLAMA3 ? "{" : parser->syntax == CHAT_HARMONY ? "to=functions." : NULL;
}

static bool step_start(struct answer_parser *parser) {
    const char *think_begin = answer_thought_tags(parser->syntax).begin;
    const size_t length = strlen(think_begin);
    size_t blanks = 0;
    while (blanks < parser->held.length && is_blank(parser->held.bytes[blanks])) blanks++;
    const char *text = parser->held.bytes + blanks;
    const size_t count = parser->held.length - blanks;
    const char *bare = bare_call(parser);
    if (parser->has_reasoning && count < length && memcmp(text, think_begin, count) == 0) return false;
    if (bare != NULL && count < strlen(bare) && memcmp(text, bare, count) == 0) return false;
    if (parser->has_reasoning && count >= length && memcmp(text, think_begin, length) == 0) {
        text_drop(&parser->held, blanks + length);
        parser->state = ANSWER_IN_REASONING;
        parser->drops_blanks = true;
    } else if (bare != NULL && memcmp(text, bare, strlen(bare)) == 0) {
        parser->state = ANSWER_IN_TOOL_CALL;
        parser->saw_tag = true;
        parser->call = answer_call_tags(parser->syntax, 0);
    } else {
        parser->state = ANSWER_IN_CONTENT;
    }
    return true;
}

static bool step_reasoning(struct answer_parser *parser, answer_part_sink *sink, void *context) {
    const char *think_end = answer_thought_tags(parser->syntax).end;
    const char *tag = memmem(parser->held.bytes, parser->held.length, think_end, strlen(think_end));
    size_t before = tag != NULL
                        ? (size_t)(tag - parser->held.bytes)
                        : parser->held.length - tag_beginning(parser->held.bytes, parser->held.length, think_end);
    before -= trailing_blanks(parser->held.bytes, before);
    emit(parser, ANSWER_REASONING, before, sink, context);
    if (tag == NULL) return false;
    const char *end = memmem(parser->held.bytes, parser->held.length, think_end, strlen(think_end));
    text_drop(&parser->held, (size_t)(end - parser->held.bytes) + strlen(think_end));
    parser->state = ANSWER_IN_CONTENT;
    parser->drops_blanks = true;
    return true;
}

static bool step_call(struct answer_parser *parser, answer_part_sink *sink, void *context) {
    const struct answer_call_tags *tags = parser->call != NULL ? parser->call : answer_call_tags(CHAT_HERMES, 0);
    const char *mark = tags->end != NULL ? tags->end : tags->begin;
    const char *tag = memmem(parser->held.bytes, parser->held.length, mark, strlen(mark));
    if (tag == NULL) return false;
    emit_call(parser, (size_t)(tag - parser->held.bytes), sink, context);
    if (tags->end != NULL) text_drop(&parser->held, strlen(mark));
    parser->state = ANSWER_IN_CONTENT;
    parser->drops_blanks = true;
    return true;
}

static bool step(struct answer_parser *parser, answer_part_sink *sink, void *context) {
    if (parser->drops_blanks) {
        size_t blanks = 0;
        while (blanks < parser->held.length && is_blank(parser->held.bytes[blanks])) blanks++;
        text_drop(&parser->held, blanks);
        if (parser->held.length == 0) return false;
        parser->drops_blanks = false;
    }
    switch (parser->state) {
    case ANSWER_IN_START: return step_start(parser);
    case ANSWER_IN_CONTENT: return step_content(parser, sink, context);
    case ANSWER_IN_REASONING: return step_reasoning(parser, sink, context);
    case ANSWER_IN_TOOL_CALL: return step_call(parser, sink, context);
    }
    return false;
}

void answer_parser_begin_thought(struct answer_parser *parser) {
    parser->state = ANSWER_IN_REASONING;
    parser->drops_blanks = true;
}

bool answer_parser_push(struct answer_parser *parser, const char *bytes, size_t length, answer_part_sink *sink,
                        void *context) {
    if (length == 0) return true;
    if (!text_append(&parser->held, bytes, length)) return false;
    while (step(parser, sink, context)) {}
    return true;
}

static const char *skip_blanks(const char *at, const char *end) {
    while (at < end && is_blank(*at)) at++;
    return at;
}

/* Behind a mark and what is blank around it; NULL: it is not there. */
static const char *skip(const char *at, const char *end, const char *mark) {
    const size_t length = strlen(mark);
    if (at == NULL) return NULL;
    at = skip_blanks(at, end);
    if ((size_t)(end - at) < length || memcmp(at, mark, length) != 0) return NULL;
    return skip_blanks(at + length, end);
}

/* {"name": "...", "arguments": {...  of which the end is missing.  *name is the caller's; NULL: it is cut before. */
static const char *cut_call(const char *text, size_t length, json_t **name) {
    const char *end = text + length, *at = skip(skip(skip(text, end, "{"), end, "\"name\""), end, ":");
    json_error_t where;
    *name = NULL;
    if (at == NULL || at == end || *at != '"') return NULL;
    *name = json_loadb(at, (size_t)(end - at), JSON_DECODE_ANY | JSON_DISABLE_EOF_CHECK, &where);
    if (*name == NULL) return NULL;
    at = skip(skip(skip(at + where.position, end, ","), end, "\"arguments\""), end, ":");
    return at != NULL ? at : end;
}

/* The answer ends in a call.  Cut by the length, it is a call with what there is of its arguments, or, where it had to
 * be one and has no name yet, nothing: it is no text. */
static void emit_last_call(struct answer_parser *parser, answer_part_sink *sink, void *context) {
    json_t *calls = answer_calls_parse(parser->syntax, parser->held.bytes, parser->held.length), *name;
    const bool is_whole = calls != NULL;
    json_decref(calls);
    const char *begin =
        is_whole || parser->syntax != CHAT_HERMES ? NULL : cut_call(parser->held.bytes, parser->held.length, &name);
    if (begin == NULL) {
        if (is_whole || parser->saw_tag) emit_call(parser, parser->held.length, sink, context);
        return;
    }
    sink(context, &(struct answer_part){.kind = ANSWER_TOOL_CALL,
                                        .bytes = begin,
                                        .length = (size_t)(parser->held.bytes + parser->held.length - begin),
                                        .tool_name = json_string_value(name)});
    json_decref(name);
}

void answer_parser_finish(struct answer_parser *parser, answer_part_sink *sink, void *context) {
    if (parser->held.length == 0) return;
    switch (parser->state) {
    case ANSWER_IN_START:
    case ANSWER_IN_CONTENT:
        if (!parser->drops_blanks) emit(parser, ANSWER_CONTENT, parser->held.length, sink, context);
        break;
    case ANSWER_IN_REASONING: emit(parser, ANSWER_REASONING, parser->held.length, sink, context); break;
    case ANSWER_IN_TOOL_CALL: emit_last_call(parser, sink, context); break;
    }
}

void answer_parser_deinit(struct answer_parser *parser) {
    text_deinit(&parser->held);
    *parser = (struct answer_parser){0};
}
