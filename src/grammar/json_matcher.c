/* json_matcher: the threads of an answer, and the walks over the tokens. */
#include "grammar/json_matcher.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "grammar/thread_internal.h"
#include "grammar/trie_internal.h"

/* Enclosures of the threads of an answer, and those that the bytes of one token can add: a thread adds one for each
 * byte, and accept reads the token twice. */
enum { KEPT_MAX = THREADS_MAX * JSON_OUTPUT_DEPTH_MAX, ADDED_MAX = 2 * THREADS_MAX * (TOKEN_BYTES_MAX + 1) };

struct json_matcher {
    struct stepper stepper;
    const struct token_trie *trie; /* borrowed */
    struct thread threads[THREADS_MAX];
    uint32_t thread_count;
    struct thread_set levels[TOKEN_BYTES_MAX + 1]; /* of a walk: after so many bytes */
    uint32_t marks[TOKEN_BYTES_MAX + 1];           /* enclosures that a level needs */
    struct thread *level_threads;                  /* owned, [TOKEN_BYTES_MAX + 1][THREADS_MAX] */
    struct enclosure *enclosures, *spare;          /* owned, [KEPT_MAX + ADDED_MAX], [KEPT_MAX] */
    uint64_t *allowed;                             /* owned, a bit for each token */
};

enum status json_matcher_create(struct json_matcher **matcher, const struct json_schema *schema,
                                const struct token_trie *trie, struct error *error) {
    struct json_matcher *made = calloc(1, sizeof *made);
    *matcher = NULL;
    if (made == NULL) return error_set(error, STATUS_MEMORY, "no memory for the answer's form");
    made->stepper.schema = schema;
    made->trie = trie;
    made->level_threads = calloc((size_t)(TOKEN_BYTES_MAX + 1) * THREADS_MAX, sizeof *made->level_threads);
    made->enclosures = calloc(KEPT_MAX + ADDED_MAX, sizeof *made->enclosures);
    made->spare = calloc(KEPT_MAX, sizeof *made->spare);
    made->allowed = calloc(trie->word_count, sizeof *made->allowed);
    if (made->level_threads == NULL || made->enclosures == NULL || made->spare == NULL ||
        made->allowed == NULL) {
        json_matcher_destroy(made);
        return error_set(error, STATUS_MEMORY, "no memory for the answer's form");
    }
    made->stepper.enclosures = (struct enclosures){made->enclosures, 0, KEPT_MAX + ADDED_MAX};
    for (size_t i = 0; i <= TOKEN_BYTES_MAX; i++)
        made->levels[i].items = made->level_threads + i * THREADS_MAX;
    json_matcher_reset(made);
    *matcher = made;
    return STATUS_OK;
}

void json_matcher_destroy(struct json_matcher *matcher) {
    if (matcher == NULL) return;
    free(matcher->level_threads);
    free(matcher->enclosures);
    free(matcher->spare);
    free(matcher->allowed);
    free(matcher);
}

void json_matcher_reset(struct json_matcher *m) {
    m->stepper.enclosures.count = 0;
    m->thread_count = 1;
    m->threads[0] = (struct thread){
        .kind = THREAD_BEFORE, .state = SPACE_WRONG, .form = m->stepper.schema->root, .enclosure = NOTHING};
}

/* In the text of a string: nearly every token may come next. */
static bool is_in_text(const struct thread *thread) {
    return (thread->kind == THREAD_STRING || thread->kind == THREAD_KEY_STRING) &&
           thread->state == STRING_TEXT;
}

/* The threads that are in a text, or the others.  The two are walked apart, in mask and accept alike: where threads are
 * dropped, both must drop the same. */
static void take_part(struct json_matcher *m, bool in_text, struct thread_set *part) {
    part->count = 0;
    for (uint32_t i = 0; i < m->thread_count; i++)
        if (is_in_text(&m->threads[i]) == in_text) part->items[part->count++] = m->threads[i];
}

static void step_set(struct json_matcher *m, const struct thread_set *from, uint8_t byte,
                     struct thread_set *to) {
    to->count = 0;
    for (uint32_t i = 0; i < from->count; i++) thread_step(&m->stepper, &from->items[i], byte, to);
}

/* ---- mask ---- */

static void allow(struct json_matcher *m, token_id id) { m->allowed[id / 64] |= 1ULL << (id % 64); }

static void allow_all(struct json_matcher *m, const uint64_t *bits) {
    for (size_t i = 0; i < m->trie->word_count; i++) m->allowed[i] |= bits[i];
}

/* Allows every token of the tree that levels[0] can read. */
static void walk(struct json_matcher *m, const struct trie_tree *tree) {
    if (m->levels[0].count == 0) return;
    m->marks[0] = m->stepper.enclosures.count;
    for (size_t i = 0; i < tree->node_count;) {
        const struct trie_node *node = &tree->nodes[i];
        struct thread_set *next = &m->levels[node->depth + 1];
        m->stepper.enclosures.count = m->marks[node->depth];
        step_set(m, &m->levels[node->depth], node->byte, next);
        if (next->count == 0) {
            i = node->skip;
            continue;
        }
        m->marks[node->depth + 1] = m->stepper.enclosures.count;
        for (size_t t = 0; t < node->token_count; t++) allow(m, tree->tokens[node->token_begin + t]);
        i++;
    }
    m->stepper.enclosures.count = m->marks[0];
}

static void find_allowed(struct json_matcher *m) {
    const struct token_trie *trie = m->trie;
    const uint32_t kept = m->stepper.enclosures.count;
    memset(m->allowed, 0, trie->word_count * sizeof *m->allowed);
    take_part(m, true, &m->levels[1]);
    if (m->levels[1].count > 0) {
        allow_all(m, trie->inside);
        for (size_t i = 0; i < trie->closed_count; i++) allow(m, trie->closed_tokens[i]);
        step_set(m, &m->levels[1], '"', &m->levels[0]);
        walk(m, &trie->closing);
        m->stepper.enclosures.count = kept;
    }
    take_part(m, false, &m->levels[0]);
    walk(m, &trie->all);
    if (json_matcher_may_end(m)) allow_all(m, trie->ends);
}

enum status json_matcher_mask(struct json_matcher *m, float *logits, size_t count, struct error *error) {
    const struct token_trie *trie = m->trie;
    uint64_t any = 0;
    find_allowed(m);
    for (size_t word = 0; word * 64 < count; word++) {
        const uint64_t bits = word < trie->word_count ? m->allowed[word] : 0;
        const size_t begin = word * 64, end = begin + 64 < count ? begin + 64 : count;
        any |= bits;
        if (bits == UINT64_MAX) continue;
        for (size_t i = begin; i < end; i++)
            if ((bits >> (i - begin) & 1) == 0) logits[i] = -INFINITY;
    }
    if (any == 0)
        return error_set(error, STATUS_UNSUPPORTED,
                         "the vocabulary has no token that continues the JSON of the answer");
    return STATUS_OK;
}

/* ---- accept ---- */

/* Keeps only the enclosures of the answer's threads. */
static void compact(struct json_matcher *m) {
    uint32_t used = 0;
    for (uint32_t t = 0; t < m->thread_count; t++) {
        uint32_t *link = &m->threads[t].enclosure;
        while (*link != NOTHING) {
            ASSERT(used < KEPT_MAX);
            m->spare[used] = m->enclosures[*link];
            *link = used;
            link = &m->spare[used++].outer;
        }
    }
    memcpy(m->enclosures, m->spare, used * sizeof *m->enclosures);
    m->stepper.enclosures.count = used;
}

/* The threads of levels[0] after length bytes. */
static const struct thread_set *read_bytes(struct json_matcher *m, const uint8_t *bytes, size_t length) {
    for (size_t i = 0; i < length; i++) {
        step_set(m, &m->levels[i % 2], bytes[i], &m->levels[(i + 1) % 2]);
        if (m->levels[(i + 1) % 2].count == 0) return &m->levels[(i + 1) % 2];
    }
    return &m->levels[length % 2];
}

/* At most TOKEN_BYTES_MAX bytes. */
static bool accept_piece(struct json_matcher *m, const uint8_t *bytes, size_t length) {
    const uint32_t kept = m->stepper.enclosures.count;
    struct thread_set *merged = &m->levels[2];
    merged->count = 0;
    for (int in_text = 1; in_text >= 0; in_text--) {
        take_part(m, in_text == 1, &m->levels[0]);
        const struct thread_set *read = read_bytes(m, bytes, length);
        for (uint32_t i = 0; i < read->count; i++) thread_set_add(&m->stepper, merged, &read->items[i]);
    }
    if (merged->count == 0) {
        m->stepper.enclosures.count = kept;
        return false;
    }
    memcpy(m->threads, merged->items, merged->count * sizeof *m->threads);
    m->thread_count = merged->count;
    compact(m);
    return true;
}

bool json_matcher_accept_bytes(struct json_matcher *m, const char *bytes, size_t length) {
    ASSERT(length <= TOKEN_BYTES_MAX);
    return accept_piece(m, (const uint8_t *)bytes, length);
}

enum status json_matcher_accept(struct json_matcher *m, token_id id, struct error *error) {
    const struct token_trie *trie = m->trie;
    const bool is_known = id >= 0 && (size_t)id < trie->vocabulary_size;
    if (is_known && (trie->ends[id / 64] >> (id % 64) & 1) != 0 && json_matcher_may_end(m)) return STATUS_OK;
    const uint32_t begin = is_known ? trie->offsets[id] : 0, end = is_known ? trie->offsets[id + 1] : 0;
    if (end > begin && accept_piece(m, trie->bytes + begin, end - begin)) return STATUS_OK;
    return error_set(error, STATUS_FAILED, "token %d cannot continue the JSON of the answer", id);
}

bool json_matcher_may_end(const struct json_matcher *m) {
    for (uint32_t i = 0; i < m->thread_count; i++)
        if (thread_may_end(&m->stepper, &m->threads[i])) return true;
    return false;
}

/* The root's number or literal cannot grow: 16 digits, or "true". */
static bool can_grow(struct json_matcher *m, const struct thread *thread) {
    struct thread_set *next = &m->levels[0];
    next->count = 0;
    for (unsigned byte = 0; byte < 256 && next->count == 0; byte++)
        thread_step(&m->stepper, thread, (uint8_t)byte, next);
    return next->count > 0;
}

bool json_matcher_is_complete(struct json_matcher *m) {
    for (uint32_t i = 0; i < m->thread_count; i++)
        if (!thread_may_end(&m->stepper, &m->threads[i]) || can_grow(m, &m->threads[i])) return false;
    return true;
}
