/* answer_parser: tells content, reasoning and tool calls in an answer's text apart while it comes.
 *
 *   <think> reasoning </think> content <tool_call> {"name": ..., "arguments": {...}} </tool_call>
 *
 * or what the family of the model writes for these (answer_calls.h).
 *
 * Tags never come out: what may be the beginning of one is held back until the next piece decides.  <think> counts at
 * the start of an answer only.  A tool call that is no valid JSON comes out as content, without its tags; one that
 * the answer's end cuts as a call with what there is of its arguments.  How the
 * text is cut makes no difference.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/text.h"
#include "server/answer_calls.h"

enum answer_part_kind { ANSWER_CONTENT, ANSWER_REASONING, ANSWER_TOOL_CALL };

struct answer_part {
    enum answer_part_kind kind;
    const char *bytes; /* [length]; of a tool call its arguments, a JSON object */
    size_t length;
    const char *tool_name; /* of a tool call */
};

typedef void answer_part_sink(void *context, const struct answer_part *part);

enum answer_state { ANSWER_IN_START, ANSWER_IN_CONTENT, ANSWER_IN_REASONING, ANSWER_IN_TOOL_CALL };

/* Zeros but for the flags. */
struct answer_parser {
    bool has_tools;          /* <tool_call> counts */
    bool has_reasoning;      /* <think> counts */
    enum chat_syntax syntax; /* of tool calls */
    enum answer_state state;
    const struct answer_call_tags *call; /* in a call: its tags; NULL: <tool_call>'s */
    bool drops_blanks;                   /* behind a tag */
    bool saw_tag;                        /* of a call: without it the answer began as a call, which it must be */
    struct text held;
};

/* Before the first piece: the prompt ended with <think>. */
void answer_parser_begin_thought(struct answer_parser *parser);
/* false: no memory. */
bool answer_parser_push(struct answer_parser *parser, const char *bytes, size_t length, answer_part_sink *sink,
                        void *context);
void answer_parser_finish(struct answer_parser *parser, answer_part_sink *sink, void *context);
void answer_parser_deinit(struct answer_parser *parser);
