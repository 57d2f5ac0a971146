/* The search: best first, by the buckets of a queue.
 *
 *   1  Every node of the frontier is in the bucket of its importance.  A bucket is a range of importances; the last one
 *      has everything above, the first everything below.  Nodes that are leaves are only counted.
 *   2  The capacity of a bucket is the number of leaves below its nodes.  No leaf is in a bucket above that of its
 *      ancestors (tree.h, 1).  So where fewer than k leaves fit above a bucket, the k-th best is in it or below, and
 *      all its inner nodes are opened.  A queue that is ordered to the last bit would open the same nodes, except in
 *      the bucket of the k-th leaf.
 *   3  A wave leaves no inner node in the buckets that it opens.  The search ends when the k-th leaf is in one of
 *      them.  Every wave opens a node, so the search ends for any boxes.
 *   4  A node is taken whole, without opening it, when by its lower bound its leaves are in buckets from which up at
 *      most k leaves fit.
 *
 * The queue of the paper is ordered "approximately", too.  With buckets a wave of nodes is opened at once, and their
 * children are evaluated eight to a tile by the kernel that scores pages.  The start's importances are spread over the
 * buckets; when the search reaches the lowest bucket, the rest is spread over all of them anew.
 *
 * Lower bounds cost an evaluation and rarely decide anything (real boxes are wide), so a wave tries eight of its best
 * nodes and goes on only while that succeeds; after FRUITLESS_MAX waves in which none did the search gives up on them.
 *
 * Measured, one core of an AMD EPYC (Zen 3), 2026-11-21, 32K tokens, dimension 64, group 4, key index out of memory: a
 * node of a level that is scored in a row takes 22 to 35 ns, one that the search asks for 50 to 65, queue included. */
#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "kernels/top_k/top_k_internal.h"
#include "kernels/tree/tree.h"

enum {
    BUCKETS = 128,
    PIECE = 256, /* nodes opened by one call of the kernel */
    ROWS_MAX = PIECE * TREE_RUN_CHUNKS,
    PROBE = 8, /* lower bounds tried at a time */
    FRUITLESS_MAX = 6,
    LEVEL_BITS = 28,
    NONE = -1,
};

struct entry { /* an inner node of the frontier, in the list of its level and bucket */
    float score;
    uint32_t node;
    int32_t next;
};

struct search {
    const struct score_kernels *score;
    const struct tree_search_args *args;
    size_t leaf_tokens;
    uint64_t leaf_first;
    struct entry *entries; /* [number of leaves + 1] at most */
    size_t entry_count;
    float *leaf_scores; /* [number of leaves]: those evaluated, in this order */
    uint32_t *leaves;   /* and which they are, from leaf_first */
    size_t leaf_count, whole_count;
    uint64_t *sure, *edge; /* a bit per leaf; edge also a bit per node of a level while it is opened */
    float low, high, scale;
    int32_t head[TREE_LEVEL_COUNT][BUCKETS];
    size_t capacity[BUCKETS], inner[BUCKETS]; /* inner: the part of the capacity that inner nodes have */
    size_t capacity_above[BUCKETS];           /* capacity from the bucket up, when the wave began */
    bool tries_lower;
    size_t fruitless;
    float slack; /* of a lower bound, per greatest element of a box */
    const void *rows[ROWS_MAX];
    float scores[ROWS_MAX];
    void *kernel_scratch;
    struct tree_counts counts;
};

/* ---- scratch ---- */

static size_t scratch_add(size_t *used, size_t bytes) {
    size_t offset = *used;
    *used += align_up(bytes, 64);
    return offset;
}

static size_t bitmap_words(size_t leaf_count) { return leaf_count / 64 + 1; }

struct scratch_parts {
    size_t search, entries, leaf_scores, leaves, bitmaps, end;
};

static struct scratch_parts scratch_parts(const struct tree_layout *layout, uint64_t token_count) {
    size_t leaves = (size_t)(token_count / tree_tokens(layout->leaf)), used = 0;
    struct scratch_parts parts;
    parts.search = scratch_add(&used, sizeof(struct search));
    parts.entries = scratch_add(&used, (leaves + 1) * sizeof(struct entry));
    parts.leaf_scores = scratch_add(&used, leaves * sizeof(float));
    parts.leaves = scratch_add(&used, leaves * sizeof(uint32_t));
    parts.bitmaps = scratch_add(&used, 2 * bitmap_words(leaves) * sizeof(uint64_t));
    parts.end = used;
    return parts;
}

size_t tree_score_scratch_bytes(const struct tree_layout *layout) {
    return align_up(layout->node_bytes / sizeof(uint16_t) * sizeof(float), 64) + ROWS_MAX * sizeof(void *);
}

/* ---- evaluating ---- */

size_t tree_query_floats(const struct tree_layout *layout, size_t group) { return 2 * group * 2 * layout->dimension; }

void tree_query(const struct tree_layout *layout, const float *q, size_t q_stride, size_t group, float *prepared) {
    const size_t dimension = layout->dimension;
    for (size_t head = 0; head < group; head++) {
        float *upper = prepared + head * 2 * dimension, *lower = upper + group * 2 * dimension;
        for (size_t d = 0; d < dimension; d++) {
            float x = q[head * q_stride + d]; /* NaN stays in one of them */
            upper[d] = lower[dimension + d] = x > 0 ? 0 : x;
            upper[dimension + d] = lower[d] = x > 0 ? x : 0;
        }
    }
}

void tree_score(const struct score_kernels *score, const struct tree_score_args *args) {
    const struct tree_layout *layout = args->layout;
    const void **runs = args->scratch;
    struct score_args rows = {.blocks = args->blocks,
                              .block_offset = layout->offset[args->level],
                              .block_rows =
                                  args->level == TREE_RUN ? 1 : KV_CHUNK_TOKENS / (size_t)tree_tokens(args->level),
                              .columns = 2 * layout->dimension,
                              .q = args->query,
                              .q_stride = 2 * layout->dimension,
                              .heads = args->group,
                              .aggregate = layout->aggregate,
                              .scratch = runs + ROWS_MAX};
    for (uint64_t node = args->node_begin; node < args->node_end; node = rows.row_end) {
        rows.row_begin = node;
        rows.row_end = args->node_end;
        rows.scores = args->scores + (node - args->node_begin);
        if (args->level != TREE_RUN) {
            score->rows(&rows);
            continue;
        }
        size_t count = (size_t)(args->node_end - node < ROWS_MAX ? args->node_end - node : ROWS_MAX);
        for (size_t i = 0; i < count; i++) runs[i] = args->blocks[(node + i + 1) * TREE_RUN_CHUNKS - 1];
        rows.blocks = runs;
        rows.row_begin = 0;
        rows.row_end = count;
        score->rows(&rows);
        rows.row_end = node + count;
    }
}

static const uint8_t *node_box(const struct tree_search_args *args, enum tree_level level, uint64_t node) {
    uint64_t tokens = tree_tokens(level),
             chunk = ((node + 1) * tokens - 1) / KV_CHUNK_TOKENS; /* that of a run is in its last chunk */
    size_t place =
        level == TREE_RUN ? 0 : (size_t)(node * tokens % KV_CHUNK_TOKENS / tokens) * args->layout->node_bytes;
    return (const uint8_t *)args->blocks[chunk] + args->layout->offset[level] + place;
}

/* scores[count * siblings]: of the boxes at search->rows, each followed by its siblings. */
static void score_rows(struct search *search, size_t count, size_t siblings, bool upper) {
    const struct tree_search_args *args = search->args;
    size_t columns = 2 * args->layout->dimension;
    search->score->rows(&(struct score_args){.blocks = search->rows,
                                             .block_rows = siblings,
                                             .columns = columns,
                                             .row_begin = 0,
                                             .row_end = count * siblings,
                                             .q = args->query + (upper ? 0 : args->group * columns),
                                             .q_stride = columns,
                                             .heads = args->group,
                                             .aggregate = args->layout->aggregate,
                                             .scores = search->scores,
                                             .scratch = search->kernel_scratch});
}

/* ---- the queue ---- */

/* Monotone in the score, without branches, which would be mispredicted; NaN is above everything. */
static inline size_t bucket_of(const struct search *search, float score) {
    float place = (score - search->low) * search->scale;
    place = place > -1 ? place : -1;
    place = place < BUCKETS - 3 ? place : BUCKETS - 3;
    size_t bucket = (size_t)((int32_t)place + 1);
    return score < search->high ? bucket : BUCKETS - 1;
}

static size_t node_leaves(const struct search *search, enum tree_level level) {
    return (size_t)tree_tokens(level) / search->leaf_tokens;
}

static void link_entry(struct search *search, size_t index) {
    struct entry *entry = &search->entries[index];
    enum tree_level level = (enum tree_level)(entry->node >> LEVEL_BITS);
    size_t bucket = bucket_of(search, entry->score);
    entry->next = search->head[level][bucket];
    search->head[level][bucket] = (int32_t)index;
    search->inner[bucket] += node_leaves(search, level);
    search->capacity[bucket] += node_leaves(search, level);
}

static void insert(struct search *search, enum tree_level level, uint64_t node, float score) {
    if (level == search->args->layout->leaf) {
        search->leaf_scores[search->leaf_count] = score;
        search->leaves[search->leaf_count++] = (uint32_t)(node - search->leaf_first);
        search->capacity[bucket_of(search, score)]++;
        return;
    }
    search->entries[search->entry_count] =
        (struct entry){.score = score, .node = (uint32_t)level << LEVEL_BITS | (uint32_t)node};
    link_entry(search, search->entry_count++);
}

struct spread { /* of finite importances */
    float low, high;
};
static void spread_add(struct spread *spread, float score) {
    if (!isfinite(score)) return;
    if (score < spread->low) spread->low = score;
    if (score > spread->high) spread->high = score;
}

/* Spreads empty buckets; false: there are no finite importances. */
static bool spread_set(struct search *search, const struct spread *spread) {
    if (spread->low > spread->high) return false;
    search->low = spread->low;
    search->high = spread->high;
    search->scale = (float)(BUCKETS - 3) / (spread->high - spread->low);
    if (!(search->scale < 1e30F)) search->scale = 0;
    for (size_t level = 0; level < TREE_LEVEL_COUNT; level++)
        for (size_t bucket = 0; bucket < BUCKETS; bucket++) search->head[level][bucket] = NONE;
    memset(search->capacity, 0, sizeof search->capacity);
    memset(search->inner, 0, sizeof search->inner);
    return true;
}

/* Spreads the buckets over what lies in the lowest one, which the search has come to: all that lies above are leaves
 * and nodes taken whole, fewer than k.  false: it is all minus infinity. */
static bool spread_anew(struct search *search) {
    struct spread spread = {INFINITY, -INFINITY};
    for (size_t level = 0; level < TREE_LEVEL_COUNT; level++)
        for (int32_t i = search->head[level][0]; i != NONE; i = search->entries[i].next)
            spread_add(&spread, search->entries[i].score);
    for (size_t i = 0; i < search->leaf_count; i++)
        if (bucket_of(search, search->leaf_scores[i]) == 0) spread_add(&spread, search->leaf_scores[i]);
    int32_t heads[TREE_LEVEL_COUNT];
    for (size_t level = 0; level < TREE_LEVEL_COUNT; level++) heads[level] = search->head[level][0];
    if (!spread_set(search, &spread)) return false;
    for (size_t level = 0; level < TREE_LEVEL_COUNT; level++)
        for (int32_t i = heads[level], next; i != NONE; i = next) {
            next = search->entries[i].next;
            link_entry(search, (size_t)i);
        }
    for (size_t i = 0; i < search->leaf_count; i++) search->capacity[bucket_of(search, search->leaf_scores[i])]++;
    search->capacity[BUCKETS - 1] += search->whole_count;
    return true;
}

/* ---- opening ---- */

/* The greatest magnitude in a box; halves are ordered as their bits are. */
static float largest_element(const uint8_t *box, size_t count) {
    const uint16_t *halves = (const uint16_t *)(const void *)box;
    uint16_t largest = 0;
    for (size_t i = 0; i < count; i++) {
        uint16_t magnitude = halves[i] & 0x7fffu;
        largest = magnitude > largest ? magnitude : largest;
    }
    return half_to_float(largest);
}

/* Takes those nodes whole that may be, of `count`, at most PROBE.  Moves the others to the front: returns how many. */
static size_t take_whole(struct search *search, enum tree_level level, uint64_t *nodes, size_t count) {
    const struct tree_search_args *args = search->args;
    size_t kept = 0, leaves = node_leaves(search, level);
    for (size_t i = 0; i < count; i++) search->rows[i] = node_box(args, level, nodes[i]);
    score_rows(search, count, 1, false);
    search->counts.lower += count;
    for (size_t i = 0; i < count; i++) {
        float slack = search->slack * largest_element(search->rows[i], 2 * args->layout->dimension);
        float lower = search->scores[i] - slack;
        size_t bucket = isfinite(lower) ? bucket_of(search, lower) : 0;
        if (bucket == 0 || search->capacity_above[bucket] > args->k || search->whole_count + leaves > args->k) {
            nodes[kept++] = nodes[i];
            continue;
        }
        uint64_t first = nodes[i] * leaves - search->leaf_first;
        for (uint64_t leaf = first; leaf < first + leaves; leaf++) search->sure[leaf / 64] |= (uint64_t)1 << leaf % 64;
        search->whole_count += leaves;
        search->capacity[BUCKETS - 1] += leaves;
        search->counts.whole[level]++;
    }
    return kept;
}

/* Opens nodes of a level, or takes them whole. */
static void open_piece(struct search *search, enum tree_level level, uint64_t *nodes, size_t count) {
    for (size_t done = 0; search->tries_lower && done < count;) {
        size_t tried = min_size(count - done, PROBE), left = take_whole(search, level, nodes + done, tried);
        search->tries_lower = left < tried;
        memmove(nodes + done + left, nodes + done + tried, (count - done - tried) * sizeof *nodes);
        count -= tried - left;
        done += left;
    }
    enum tree_level below = level - 1;
    size_t children = tree_children(level), siblings = level == TREE_RUN ? 1 : children;
    if (count == 0) return;
    for (size_t i = 0; i < count * children; i += siblings)
        search->rows[i / siblings] = node_box(search->args, below, nodes[i / children] * children + i % children);
    score_rows(search, count * children / siblings, siblings, true);
    search->counts.evaluated[below] += count * children;
    for (size_t i = 0; i < count * children; i++)
        insert(search, below, nodes[i / children] * children + i % children, search->scores[i]);
}

/* Takes the nodes of a level out of the buckets from low up; their bits are set in `edge`.  Of the best, at most PROBE,
 * the lower bounds are tried, and whether it pays to try more. */
static void take_level(struct search *search, enum tree_level level, size_t low, uint64_t first) {
    uint64_t best[PROBE];
    size_t best_count = 0, leaves = node_leaves(search, level);
    for (size_t bucket = BUCKETS; bucket-- > low;) {
        if (search->inner[bucket] == 0) continue;
        for (int32_t i = search->head[level][bucket]; i != NONE; i = search->entries[i].next) {
            uint64_t node = search->entries[i].node & (((uint32_t)1 << LEVEL_BITS) - 1);
            search->edge[(node - first) / 64] |= (uint64_t)1 << (node - first) % 64;
            search->inner[bucket] -= leaves;
            search->capacity[bucket] -= leaves;
            search->counts.opened[level]++;
            if (best_count < PROBE) best[best_count++] = node;
        }
        search->head[level][bucket] = NONE;
    }
    uint64_t tried[PROBE];
    memcpy(tried, best, sizeof tried);
    size_t left = best_count;
    if (best_count > 0 && search->fruitless < FRUITLESS_MAX) left = take_whole(search, level, best, best_count);
    search->tries_lower = left < best_count;
    search->fruitless = search->tries_lower ? 0 : search->fruitless + 1;
    for (size_t i = 0, kept = 0; i < best_count; i++)
        if (kept < left && best[kept] == tried[i])
            kept++;
        else
            search->edge[(tried[i] - first) / 64] &= ~((uint64_t)1 << (tried[i] - first) % 64);
}

/* Opens all inner nodes in the buckets from low up: level by level from above, so that their children, none of which
 * lies higher than they do, are opened too; within a level in the order of memory. */
static void open_buckets(struct search *search, size_t low) {
    uint64_t nodes[PIECE];
    size_t capacity = 0;
    for (size_t bucket = BUCKETS; bucket-- > 0;) search->capacity_above[bucket] = capacity += search->capacity[bucket];
    for (enum tree_level level = search->args->start; level > search->args->layout->leaf; level--) {
        uint64_t first = search->args->token_begin / tree_tokens(level);
        uint64_t end_node = search->args->token_end / tree_tokens(level);
        size_t count = 0;
        take_level(search, level, low, first);
        for (uint64_t word = 0; first + word * 64 < end_node; word++) {
            for (uint64_t bits = search->edge[word]; bits != 0; bits &= bits - 1) {
                nodes[count++] = first + word * 64 + (uint64_t)__builtin_ctzll(bits);
                if (count < PIECE) continue;
                open_piece(search, level, nodes, count);
                count = 0;
            }
            search->edge[word] = 0;
        }
        if (count > 0) open_piece(search, level, nodes, count);
    }
}

/* ---- from the start to the end ---- */

void tree_start_range(enum tree_level level, uint64_t token_begin, uint64_t token_end, uint64_t *begin, uint64_t *end) {
    uint64_t tokens = tree_tokens(level);
    *begin = (token_begin + tokens - 1) / tokens;
    *end = token_end / tokens;
    if (*end < *begin) *end = *begin;
}

/* Evaluates the tokens of [begin, end) that the start's nodes do not cover, by the largest nodes within. */
static void insert_rest(struct search *search, uint64_t begin, uint64_t end) {
    const struct tree_search_args *args = search->args;
    while (begin < end) {
        enum tree_level level = args->start;
        while (begin % tree_tokens(level) != 0 || begin + tree_tokens(level) > end) level--;
        ASSERT(level >= args->layout->leaf && level < TREE_LEVEL_COUNT);
        uint64_t node = begin / tree_tokens(level);
        search->rows[0] = node_box(args, level, node);
        score_rows(search, 1, 1, true);
        search->counts.evaluated[level]++;
        insert(search, level, node, search->scores[0]);
        begin += tree_tokens(level);
    }
}

static void insert_start(struct search *search) {
    const struct tree_search_args *args = search->args;
    struct spread spread = {INFINITY, -INFINITY};
    uint64_t begin, end;
    tree_start_range(args->start, args->token_begin, args->token_end, &begin, &end);
    size_t count = (size_t)(end - begin);
    for (size_t i = 0; i < count; i++) spread_add(&spread, args->start_scores[i]);
    if (!spread_set(search, &spread)) {
        spread = (struct spread){0, 0}; /* no nodes, or broken ones */
        (void)spread_set(search, &spread);
    }
    for (size_t i = 0; i < count; i++) insert(search, args->start, begin + i, args->start_scores[i]);
    search->counts.evaluated[args->start] += count;
    uint64_t tokens = tree_tokens(args->start);
    insert_rest(search, args->token_begin, end > begin ? begin * tokens : args->token_end);
    if (end > begin) insert_rest(search, end * tokens, args->token_end);
}

/* The leaves above the last bucket, and of those in it, whose indices go through `edge` into their order, the best. */
static void finish(struct search *search, const struct top_k_kernels *top_k, size_t last) {
    const struct tree_search_args *args = search->args;
    size_t leaf_count = (size_t)((args->token_end - args->token_begin) / search->leaf_tokens);
    size_t sure_count = search->whole_count, edge_count = 0, taken = 0;
    /* The entries are not needed any more: their memory takes the edge's scores, in the order of the leaves. */
    float *dense = (float *)(void *)search->entries, *edge_scores = dense + leaf_count;
    uint32_t *edge_leaves = (uint32_t *)(void *)(edge_scores + leaf_count);
    for (size_t i = 0; i < search->leaf_count; i++) {
        size_t bucket = bucket_of(search, search->leaf_scores[i]);
        if (bucket < last) continue;
        dense[search->leaves[i]] = search->leaf_scores[i];
        uint64_t *bitmap = bucket > last ? search->sure : search->edge;
        bitmap[search->leaves[i] / 64] |= (uint64_t)1 << search->leaves[i] % 64;
        sure_count += bucket > last;
        edge_count += bucket == last;
    }
    ASSERT(sure_count <= args->k && args->k - sure_count <= edge_count);
    edge_count = 0;
    for (size_t word = 0; word < bitmap_words(leaf_count); word++)
        for (uint64_t bits = search->edge[word]; bits != 0; bits &= bits - 1) {
            uint32_t leaf = (uint32_t)(word * 64) + (uint32_t)__builtin_ctzll(bits);
            edge_scores[edge_count] = dense[leaf];
            edge_leaves[edge_count++] = leaf;
        }
    uint32_t *best = search->leaves; /* [edge_count] at most */
    top_k->select(&(struct top_k_args){.scores = edge_scores,
                                       .count = edge_count,
                                       .k = args->k - sure_count,
                                       .indices = best,
                                       .scratch = search->kernel_scratch});
    for (size_t i = 0; i < args->k - sure_count; i++)
        search->sure[edge_leaves[best[i]] / 64] |= (uint64_t)1 << edge_leaves[best[i]] % 64;
    for (size_t word = 0; word < bitmap_words(leaf_count); word++)
        for (uint64_t bits = search->sure[word]; bits != 0; bits &= bits - 1)
            args->indices[taken++] = (uint32_t)(search->leaf_first + word * 64) + (uint32_t)__builtin_ctzll(bits);
    ASSERT(taken == args->k);
}

static struct search *search_begin(const struct score_kernels *score, const struct tree_search_args *args) {
    const struct tree_layout *layout = args->layout;
    uint64_t token_count = args->token_end - args->token_begin, leaf_tokens = tree_tokens(layout->leaf);
    struct scratch_parts parts = scratch_parts(layout, token_count);
    uint8_t *memory = args->scratch;
    struct search *search = (struct search *)(void *)(memory + parts.search);
    size_t leaf_count = (size_t)(token_count / leaf_tokens), columns = 2 * layout->dimension;
    search->score = score;
    search->args = args;
    search->leaf_tokens = (size_t)leaf_tokens;
    search->leaf_first = args->token_begin / leaf_tokens;
    search->entries = (struct entry *)(void *)(memory + parts.entries);
    search->leaf_scores = (float *)(void *)(memory + parts.leaf_scores);
    search->leaves = (uint32_t *)(void *)(memory + parts.leaves);
    search->sure = (uint64_t *)(void *)(memory + parts.bitmaps);
    search->edge = search->sure + bitmap_words(leaf_count);
    search->kernel_scratch = memory + parts.end;
    memset(search->sure, 0, 2 * bitmap_words(leaf_count) * sizeof *search->sure);
    search->entry_count = search->leaf_count = search->whole_count = search->fruitless = 0;
    search->counts = (struct tree_counts){.searches = 1, .tokens = token_count, .leaves = leaf_count};
    for (enum tree_level level = layout->leaf; level <= args->start; level++)
        search->counts.nodes[level] = token_count / tree_tokens(level);
    /* An importance and a lower bound are sums of so many products with box elements, in any order: what they are
     * off by is bounded by the sum of the products' magnitudes times the roundings. */
    float norm = 0;
    for (size_t head = 0; head < args->group; head++) {
        float sum = 0;
        for (size_t i = 0; i < columns; i++) sum += fabsf(args->query[head * columns + i]);
        norm = layout->aggregate == SCORE_SUM ? norm + sum : fmaxf(norm, sum);
    }
    search->slack = 2 * 1.01F * (float)(columns + 2) * 0x1p-24F * norm;
    return search;
}

size_t tree_search_scratch_bytes(const struct tree_layout *layout, const struct top_k_kernels *top_k,
                                 uint64_t token_count) {
    size_t leaves = (size_t)(token_count / tree_tokens(layout->leaf));
    return scratch_parts(layout, token_count).end +
           max_size(2 * layout->dimension * sizeof(float), top_k->scratch_bytes(leaves, leaves));
}

/* The lowest bucket of a wave: where, by what was left of the last wave's capacity, a little more than k leaves will
 * lie above.  Opening only what is certain takes three times as many waves, of ever fewer nodes, to save 2% of
 * them. */
static size_t wave_end(const struct search *search, size_t bucket, size_t above, size_t inner, double yield) {
    const double enough = 1.05 * (double)search->args->k;
    double expected = (double)(above - inner) + yield * (double)inner;
    while (bucket > 1) {
        expected += (double)(search->capacity[bucket - 1] - search->inner[bucket - 1]) +
                    yield * (double)search->inner[bucket - 1];
        if (expected >= enough) break;
        bucket--;
    }
    return bucket;
}

/* Opens the buckets from low up.  Returns the fraction of the inner nodes' capacity that stays in them. */
static double open_wave(struct search *search, size_t low) {
    size_t before = 0, inner = 0, after = 0;
    for (size_t bucket = low; bucket < BUCKETS; bucket++) {
        before += search->capacity[bucket];
        inner += search->inner[bucket];
    }
    open_buckets(search, low);
    for (size_t bucket = low; bucket < BUCKETS; bucket++) after += search->capacity[bucket];
    double yield = after + inner > before ? (double)(after + inner - before) / (double)inner : 0;
    return yield > 0.35 ? yield : 0.35;
}

void tree_search(const struct score_kernels *score, const struct top_k_kernels *top_k,
                 const struct tree_search_args *args) {
    ASSERT(args->start > args->layout->leaf && args->k > 0);
    ASSERT(args->k < (args->token_end - args->token_begin) / tree_tokens(args->layout->leaf));
    struct search *search = search_begin(score, args);
    size_t floor = 1;
    double yield = 1;
    insert_start(search);
    for (;;) {
        size_t above = 0, inner = 0, bucket = BUCKETS;
        while (bucket > floor && above < args->k) {
            bucket--;
            inner += search->inner[bucket];
            above += search->capacity[bucket];
        }
        if (inner > 0) {
            yield = open_wave(search, wave_end(search, bucket, above, inner, yield));
        } else if (above >= args->k) {
            finish(search, top_k, bucket);
            break;
        } else if (!spread_anew(search)) {
            floor = 0;
        }
    }
    tree_counts_add(args->counts, &search->counts);
}

void tree_counts_add(struct tree_counts *sum, const struct tree_counts *counts) {
    sum->searches += counts->searches;
    sum->tokens += counts->tokens;
    sum->leaves += counts->leaves;
    sum->lower += counts->lower;
    for (size_t level = 0; level < TREE_LEVEL_COUNT; level++) {
        sum->nodes[level] += counts->nodes[level];
        sum->evaluated[level] += counts->evaluated[level];
        sum->opened[level] += counts->opened[level];
        sum->whole[level] += counts->whole[level];
    }
}
