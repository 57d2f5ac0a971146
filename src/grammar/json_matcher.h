/* json_matcher: follows one answer through a schema, and says which tokens may come next.
 *
 * The state is a set of threads: anyOf may be undecided until later bytes tell.  A thread knows its form and what
 * encloses it.  A set has at most 64 threads: further ones are dropped, which makes fewer answers possible and none
 * of them wrong.  Every thread that is alive can be brought to an end.
 *
 * All memory is taken at creation.  Not thread-safe; schema and trie are borrowed and can be shared.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "grammar/json_schema.h"
#include "grammar/token_trie.h"

struct json_matcher;

/* What a mask may take, in bytes read by threads: below a millisecond.  Behind JSON_MASK_WORK only tokens of one byte
 * are looked for. */
enum { JSON_MASK_WORK = 5 << 12, JSON_MASK_WORK_MAX = 3 << 14 };

enum status json_matcher_create(struct json_matcher **matcher, const struct json_schema *schema,
                                const struct token_trie *trie, struct error *error) STATUS_CHECKED;
void json_matcher_destroy(struct json_matcher *matcher); /* NULL allowed */
void json_matcher_reset(struct json_matcher *matcher);   /* to the beginning of an answer */

/* Sets the logits of tokens that cannot come next to -INFINITY: end tokens where the value is not complete, all that
 * are not in the vocabulary, too.  logits: [count].  STATUS_UNSUPPORTED: none is left, because the vocabulary lacks a
 * token for a byte. */
enum status json_matcher_mask(struct json_matcher *matcher, float *logits, size_t count, struct error *error)
    STATUS_CHECKED;
/* What the last mask took. */
uint64_t json_matcher_work(const struct json_matcher *matcher);
/* Continues with a token.  An end token changes nothing.  STATUS_FAILED: it could not come next; nothing changed. */
enum status json_matcher_accept(struct json_matcher *matcher, token_id id, struct error *error) STATUS_CHECKED;

/* The answer so far is a whole value; more may follow ("1" may become "12"). */
bool json_matcher_may_end(const struct json_matcher *matcher);
/* Nothing can follow. */
bool json_matcher_is_complete(struct json_matcher *matcher);
