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
    uint8_t groups[THREADS_MAX]; /* of a thread: the first one that reads as it does; THREADS_MAX: brackets */
    uint32_t thread_count;
    struct thread_set levels[TOKEN_BYTES_MAX + 1];    /* of a walk: after so many bytes */
    const struct thread_set *at[TOKEN_BYTES_MAX + 1]; /* where they are: in levels, or of a closed string */
    bool is_outside[TOKEN_BYTES_MAX + 1];             /* at: no thread is in a text, a key or a literal */
    struct thread_set group, closed;                  /* of strings that read alike; behind their closing quote */
    uint32_t marks[TOKEN_BYTES_MAX + 1];              /* enclosures that a level needs */
    struct thread *level_threads;                     /* owned, [TOKEN_BYTES_MAX + 3][THREADS_MAX] */
    uint32_t *level_hashes;                           /* owned, likewise */
    struct enclosures spare;                          /* [KEPT_MAX] */
    uint64_t *allowed;                                /* owned, a bit for each token */
    uint32_t least, most; /* characters that the string may still have, while the rests of closing tokens are walked */
};

enum status json_matcher_create(struct json_matcher **matcher, const struct json_schema *schema,
                                const struct token_trie *trie, struct error *error) {
    struct json_matcher *made = calloc(1, sizeof *made);
    *matcher = NULL;
    if (made == NULL) return error_set(error, STATUS_MEMORY, "no memory for the answer's form");
    made->stepper.schema = schema;
    made->trie = trie;
    const size_t level_items = (size_t)(TOKEN_BYTES_MAX + 3) * THREADS_MAX;
    made->level_threads = calloc(level_items, sizeof *made->level_threads);
    made->level_hashes = calloc(level_items, sizeof *made->level_hashes);
    made->allowed = calloc(trie->word_count, sizeof *made->allowed);
    const bool has_enclosures =
        enclosures_init(&made->stepper.enclosures, KEPT_MAX + ADDED_MAX) && enclosures_init(&made->spare, KEPT_MAX);
    if (made->level_threads == NULL || made->level_hashes == NULL || made->allowed == NULL || !has_enclosures) {
        json_matcher_destroy(made);
        return error_set(error, STATUS_MEMORY, "no memory for the answer's form");
    }
    for (size_t i = 0; i < TOKEN_BYTES_MAX + 3; i++) {
        struct thread_set *set = i <= TOKEN_BYTES_MAX       ? &made->levels[i]
                                 : i == TOKEN_BYTES_MAX + 1 ? &made->group
                                                            : &made->closed;
        *set = (struct thread_set){made->level_threads + i * THREADS_MAX, made->level_hashes + i * THREADS_MAX, 0};
    }
    json_matcher_reset(made);
    *matcher = made;
    return STATUS_OK;
}

void json_matcher_destroy(struct json_matcher *matcher) {
    if (matcher == NULL) return;
    free(matcher->level_threads);
    free(matcher->level_hashes);
    enclosures_deinit(&matcher->stepper.enclosures);
    enclosures_deinit(&matcher->spare);
    free(matcher->allowed);
    free(matcher);
}

void json_matcher_reset(struct json_matcher *m) {
    enclosures_cut(&m->stepper.enclosures, 0);
    m->thread_count = 1;
    m->threads[0] = (struct thread){
        .kind = THREAD_BEFORE, .state = SPACE_WRONG, .form = m->stepper.schema->root, .enclosure = NOTHING};
}

/* ---- groups ---- */

/* Groups are walked apart, in mask and accept alike: where threads are dropped, both must drop the same. */
static void find_groups(struct json_matcher *m) {
    for (uint8_t i = 0; i < m->thread_count; i++) {
        m->groups[i] = thread_is_text(&m->threads[i]) ? i : THREADS_MAX;
        for (uint8_t first = 0; first < i && m->groups[i] == i; first++)
            if (thread_reads_alike(&m->stepper, &m->threads[first], &m->threads[i])) m->groups[i] = first;
    }
}

/* False: the group is empty. */
static bool take_group(struct json_matcher *m, uint8_t group, struct thread_set *set) {
    set->count = 0;
    for (uint32_t i = 0; i < m->thread_count; i++)
        if (m->groups[i] == group) thread_set_add(&m->stepper, set, &m->threads[i]);
    return set->count > 0;
}

static void step_set(struct json_matcher *m, const struct thread_set *from, uint8_t byte, struct thread_set *to) {
    to->count = 0;
    for (uint32_t i = 0; i < from->count; i++) thread_step(&m->stepper, &from->items[i], byte, to);
}

/* ---- mask ---- */

static void allow(struct json_matcher *m, token_id id) { m->allowed[id / 64] |= 1ULL << (id % 64); }

static void allow_all(struct json_matcher *m, const uint64_t *bits) {
    for (size_t i = 0; i < m->trie->word_count; i++) m->allowed[i] |= bits[i];
}

/* Of the tree of what follows a closing quote: those with as many characters before it as the string may still have. */
static void allow_of(struct json_matcher *m, const struct trie_tree *tree, const struct trie_node *node) {
    for (size_t t = 0; t < node->token_count; t++) {
        const token_id id = tree->tokens[node->token_begin + t];
        const uint32_t count = m->trie->characters[id];
        if (tree == &m->trie->all || (count >= m->least && count <= m->most)) allow(m, id);
    }
}

/* When the mask has taken its work, tokens of one byte are still looked for, so that one is left: less can be written
 * then, and nothing wrong. */
static bool is_spent(const struct json_matcher *m, const struct trie_node *node) {
    return m->stepper.work >= JSON_MASK_WORK && node->depth > 0;
}

/* Between values and in numbers few bytes can come: the others are passed over, however many threads there are. */
static bool can_come_outside(uint8_t byte) {
    return byte != 0 && strchr(" \t\r\n{}[]:,\"+-.0123456789eEtfn", byte) != NULL;
}

static bool is_outside(const struct thread_set *set) {
    for (uint32_t i = 0; i < set->count; i++)
        if (!thread_is_outside(&set->items[i])) return false;
    return true;
}

static void walk(struct json_matcher *m, const struct trie_tree *tree, size_t begin, size_t end);

/* Allows the tokens of nodes [begin, end) that can be read in the string that `text` is in, and behind its closing
 * quote by the threads `closed`. */
static void walk_string(struct json_matcher *m, const struct trie_tree *tree, size_t begin, size_t end,
                        const struct thread *text, const struct thread_set *closed) {
    struct text_state states[TOKEN_BYTES_MAX + 1];
    uint64_t nodes = 0;
    if (begin < end) states[tree->nodes[begin].depth] = thread_text_state(text);
    for (size_t i = begin; i < end;) {
        const struct trie_node *node = &tree->nodes[i];
        struct text_state state = states[node->depth];
        const enum text_step step = is_spent(m, node) ? TEXT_WRONG : text_step(&m->stepper, text, &state, node->byte);
        m->stepper.work += ++nodes % 8 == 0; /* it takes that much less than a thread */
        if (step == TEXT_WRONG) {
            i = node->skip;
            continue;
        }
        allow_of(m, tree, node);
        states[node->depth + 1] = state;
        i++;
        if (step != TEXT_CLOSED) continue;
        m->at[node->depth + 1] = closed;
        walk(m, tree, i, node->skip);
        i = node->skip;
    }
}

/* What several strings that read alike are behind their closing quote. */
static void close_strings(struct json_matcher *m, const struct thread_set *strings, struct thread_set *closed) {
    closed->count = 0;
    for (uint32_t i = 0; i < strings->count; i++) thread_close_text(&m->stepper, &strings->items[i], closed);
}

static bool read_alike(const struct json_matcher *m, const struct thread_set *set) {
    bool are_alike = thread_is_text(&set->items[0]);
    for (uint32_t i = 1; i < set->count && are_alike; i++)
        are_alike = thread_reads_alike(&m->stepper, &set->items[0], &set->items[i]);
    return are_alike;
}

/* Allows the tokens of nodes [begin, end) that the threads m->at[depth of begin] can read. */
static void walk(struct json_matcher *m, const struct trie_tree *tree, size_t begin, size_t end) {
    struct enclosures *enclosures = &m->stepper.enclosures;
    if (begin == end) return;
    const uint32_t kept = enclosures->count;
    m->marks[tree->nodes[begin].depth] = kept;
    m->is_outside[tree->nodes[begin].depth] = is_outside(m->at[tree->nodes[begin].depth]);
    for (size_t i = begin; i < end;) {
        const struct trie_node *node = &tree->nodes[i];
        struct thread_set *next = &m->levels[node->depth + 1];
        enclosures_cut(enclosures, m->marks[node->depth]);
        if (is_spent(m, node) || (m->is_outside[node->depth] && !can_come_outside(node->byte)))
            next->count = 0;
        else
            step_set(m, m->at[node->depth], node->byte, next);
        i = node->skip;
        if (next->count == 0) continue;
        allow_of(m, tree, node);
        m->at[node->depth + 1] = next;
        m->is_outside[node->depth + 1] = is_outside(next);
        m->marks[node->depth + 1] = enclosures->count;
        const size_t inner = (size_t)(node - tree->nodes) + 1;
        if (read_alike(m, next)) {
            memcpy(m->group.items, next->items, next->count * sizeof *next->items);
            m->group.count = next->count;
            const struct thread text = next->items[0];
            close_strings(m, &m->group, next);
            walk_string(m, tree, inner, node->skip, &text, next);
        } else {
            i = inner;
        }
    }
    enclosures_cut(enclosures, kept);
}

/* In the text of a string nearly every token may come next. */
static void walk_text(struct json_matcher *m) {
    const struct token_trie *trie = m->trie;
    if (m->most >= trie->characters_max) {
        allow_all(m, trie->inside);
    } else {
        m->stepper.work += trie->vocabulary_size / 32;
        for (size_t id = 0; id < trie->vocabulary_size; id++)
            if ((trie->inside[id / 64] >> (id % 64) & 1) != 0 && trie->characters[id] <= m->most)
                allow(m, (token_id)id);
    }
    for (size_t i = 0; i < trie->closed_count; i++) {
        const uint32_t count = trie->characters[trie->closed_tokens[i]];
        if (count >= m->least && count <= m->most) allow(m, trie->closed_tokens[i]);
    }
    m->at[0] = &m->closed;
    walk(m, &trie->closing, 0, trie->closing.node_count);
}

static void find_allowed(struct json_matcher *m) {
    const struct token_trie *trie = m->trie;
    const uint32_t kept = m->stepper.enclosures.count;
    m->stepper.work = 0;
    memset(m->allowed, 0, trie->word_count * sizeof *m->allowed);
    find_groups(m);
    for (uint8_t i = 0; i < m->thread_count; i++) {
        if (m->groups[i] != i || !take_group(m, i, &m->group)) continue;
        close_strings(m, &m->group, &m->closed);
        if (thread_is_plain(&m->stepper, &m->threads[i], &m->least, &m->most))
            walk_text(m);
        else
            walk_string(m, &trie->all, 0, trie->all.node_count, &m->threads[i], &m->closed);
        enclosures_cut(&m->stepper.enclosures, kept);
    }
    if (take_group(m, THREADS_MAX, &m->levels[0])) {
        m->at[0] = &m->levels[0];
        walk(m, &trie->all, 0, trie->all.node_count);
    }
    if (json_matcher_may_end(m)) allow_all(m, trie->ends);
}

uint64_t json_matcher_work(const struct json_matcher *m) { return m->stepper.work; }

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
    const struct enclosure *items = m->stepper.enclosures.items;
    enclosures_cut(&m->spare, 0);
    for (uint32_t t = 0; t < m->thread_count; t++) {
        uint32_t around[JSON_OUTPUT_DEPTH_MAX], count = 0, kept = NOTHING;
        for (uint32_t at = m->threads[t].enclosure; at != NOTHING; at = items[at].outer) {
            ASSERT(count < JSON_OUTPUT_DEPTH_MAX);
            around[count++] = at;
        }
        while (count-- > 0)
            kept = enclosures_intern(&m->spare, kept, items[around[count]].form, items[around[count]].count);
        m->threads[t].enclosure = kept;
    }
    enclosures_cut(&m->stepper.enclosures, 0);
    for (uint32_t i = 0; i < m->spare.count; i++) {
        const struct enclosure *kept = &m->spare.items[i];
        const uint32_t index = enclosures_intern(&m->stepper.enclosures, kept->outer, kept->form, kept->count);
        ASSERT(index == i);
    }
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
    find_groups(m);
    for (uint8_t group = 0; group <= THREADS_MAX; group++) {
        if (group < m->thread_count && m->groups[group] != group) continue;
        if (!take_group(m, group, &m->levels[0])) continue;
        const struct thread_set *read = read_bytes(m, bytes, length);
        for (uint32_t i = 0; i < read->count; i++) thread_set_add(&m->stepper, merged, &read->items[i]);
    }
    if (merged->count == 0) {
        enclosures_cut(&m->stepper.enclosures, kept);
        return false;
    }
    memcpy(m->threads, merged->items, merged->count * sizeof *m->threads);
    m->thread_count = merged->count;
    compact(m);
    return true;
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
