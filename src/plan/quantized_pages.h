/* quantized_pages: what share of its pages a new document has in 4 bits (LeoAM, section 4.4; docs/decisions/0016).
 *
 * Of each layer the balance of plan/compression.h: reading what a step misses against what the reads hide under.
 * Differs from LeoAM: a slot in RAM holds what a page holds (0012), so a larger share also means fewer misses.  What a
 * step reads and computes follows from the selection and the budget; how long that takes is measured, when the first
 * document of an engine is made, in some 60 ms:
 *
 *   a page's time on this disk, in either form, many under way: random reads cost by the request as much as by the byte
 *   attention to a chunk in either form, and decoding one, by these processors
 *   a layer's computation, where reads of the next layer hide under it (looking ahead, or everything is attended to)
 *
 * A prompt that RAM holds whole stays exact.  Where nothing is measured otherwise (it is too short to sample, or the
 * disk refuses) everything is in 4 bits.  Thread: the engine's.
 */
#ifndef LOAM_PLAN_QUANTIZED_PAGES_H
#define LOAM_PLAN_QUANTIZED_PAGES_H

#include "cache/kv_cache.h"
#include "cache/page_shares.h"
#include "cache/store/store.h"
#include "kernels/attention/kv_layout.h"

struct page_costs { /* seconds */
    struct store_rates disk;
    double rows_attend, quantized_attend, decode; /* a chunk of one KV head, by one thread */
    double layer; /* of one token, but for attention; 0: nothing hides under it */
};

/* What a step does. */
struct page_work {
    size_t layer_count, dense_layers, kv_head_count, thread_count;
    size_t rows_bytes;        /* of a chunk */
    size_t quantized_bytes;   /* of one in 4 bits, in RAM */
    uint64_t chunks, kept;    /* of a head: there are, and are attended to in layers that choose */
    double held;              /* 0..1: of all chunks that RAM holds, if they are rows */
    const float *sensitivity; /* [layer_count]: what 4 bits cost a layer, or NULL */
};

struct page_sample {
    struct store *store;
    const struct store_layout *layout;
    uint64_t token_capacity, bytes; /* as store_measure has them */
    const struct kv_layout *kv;
    size_t group; /* query heads of a KV head */
};
/* A document that is about to be made, and who will read it. */
struct page_question {
    struct store *store;
    const struct store_layout *layout; /* of its pages */
    const struct kv_cache_config *cache;
    const struct kv_layout *rows;         /* of a chunk that is not in 4 bits */
    uint64_t token_count, token_capacity; /* now, and at most */
    uint64_t kept_tokens;                 /* that layers behind dense_layers attend to */
    size_t dense_layers, thread_count, group;
    const float *sensitivity; /* of struct page_work */
    /* Of one token through a layer, without attention; NULL: reads hide under nothing. */
    double (*layer_seconds)(void *context);
    void *layer_context;
};
/* Its shares.  false: nothing was measured, and pages are all of one form. */
bool quantized_pages_plan(struct page_costs *costs, const struct page_question *question,
                          struct page_shares *shares);

/* The parts of that.  Everything but `layer`. */
enum status quantized_pages_measure(struct page_costs *costs, const struct page_sample *sample,
                                    struct error *error) STATUS_CHECKED;
/* The least share at which a layer of a step takes least time, 0 to 1 in steps of 1 / 256.  Where RAM holds nothing
 * that is compression_share. */
double quantized_pages_share(const struct page_costs *costs, const struct page_work *work,
                             size_t layer_index);
void quantized_pages_choose(const struct page_costs *costs, const struct page_work *work,
                            struct page_shares *shares);

#endif
