/* quantized_pages: the fraction of its pages that a new document quantizes to 4 bits (LeoAM, section 4.4; decision
 * 0016).
 *
 * For each layer, plan/compression.h balances the reads of a step's misses against the computation they overlap with.
 * Differs from LeoAM: a slot in RAM holds what a page holds (0012), so a larger fraction also means fewer misses.
 *
 * What a step reads and computes follows from the selection and the budget.  The fraction is chosen for every new
 * document, and again when a document has grown by a quarter, since RAM then holds less of it: pages keep their form,
 * so those that come make up for those that are there (quantized_pages_continue).  An engine measures the times once,
 * in about 60 ms:
 *
 *   read     one page of each form from this disk, with many requests in flight: a random read costs per request as
 *            well as per byte
 *   compute  attention to a chunk of each form, and decoding a chunk, on these processors
 *   layer    a layer's computation, if reads of the next layer overlap with it (prefetch, or full attention); a
 *            prefetch hides that much at most, since what it did not expect is read when it is wanted
 *
 * A prompt that RAM holds whole stays exact.  If nothing else can be measured (the prompt is too short to sample, or
 * the disk fails), all pages are quantized.  Thread: the engine's.
 */
#pragma once

#include "cache/kv_cache.h"
#include "cache/page_fractions.h"
#include "cache/store/store.h"
#include "kernels/attention/kv_layout.h"

struct page_costs { /* seconds */
    struct store_rates disk;
    double rows_attend, quantized_attend, decode; /* a chunk of one KV head, on one thread */
    double layer; /* one token through a layer without attention; 0: no reads overlap with it */
};

/* The work of a decode step. */
struct page_work {
    size_t layer_count, dense_layers, kv_head_count, thread_count;
    size_t rows_bytes;        /* of an exact chunk */
    size_t quantized_bytes;   /* of a quantized chunk in RAM */
    uint64_t chunks, kept;    /* per head: all chunks, and chunks attended to in layers that select */
    double held;              /* 0..1: the fraction of all chunks that RAM holds if they are exact */
    const float *sensitivity; /* [layer_count]: a layer's error at 4 bits; NULL: unknown */
};

struct page_sample {
    struct store *store;
    const struct store_layout *layout;
    uint64_t token_capacity, bytes; /* arguments of store_measure */
    const struct kv_layout *kv;
    size_t group; /* query heads of a KV head */
};
/* A new document, and the work of the steps that will read it. */
struct page_question {
    struct store *store;
    const struct store_layout *layout; /* of its pages */
    const struct kv_cache_config *cache;
    const struct kv_layout *rows;         /* of an exact chunk */
    uint64_t token_count, token_capacity; /* current and max */
    uint64_t kept_tokens;                 /* attended to by each layer behind dense_layers */
    size_t dense_layers, thread_count, group;
    const float *sensitivity; /* struct page_work.sensitivity */
    double layer_seconds;     /* struct page_costs.layer */
};
/* Measures the costs, unless *has_costs says that they are there, and chooses the fractions of the document.  false:
 * they cannot be measured, and all pages are in 4 bits. */
bool quantized_pages_plan(struct page_costs *costs, bool *has_costs, const struct page_question *question,
                          struct page_fractions *fractions);

/* A document of chunk_count chunks of a head is to have chunk_end: adds a span to its fractions, from the next segment
 * on, so that all of it has the wanted fractions as far as the new pages can.  Spans that begin behind chunk_count go.
 * false, and nothing has changed: it grows by less than a quarter or by no segment, has as many spans as it may, or
 * nothing changes by a sixteenth per layer. */
bool quantized_pages_grows(uint64_t chunk_count, uint64_t chunk_end); /* enough for that */
bool quantized_pages_continue(struct page_fractions *fractions, const struct page_fractions *wanted,
                              uint64_t chunk_count, uint64_t chunk_end);

/* Sets rows_attend, and of halves quantized_attend and decode; group: query heads of a KV head. */
enum status quantized_pages_measure_attention(struct page_costs *costs, const struct kv_layout *kv, size_t group,
                                              struct error *error) STATUS_CHECKED;

/* The parts of quantized_pages_plan, for tests.  Measures all costs except `layer`. */
enum status quantized_pages_measure(struct page_costs *costs, const struct page_sample *sample, struct error *error)
    STATUS_CHECKED;
/* The smallest fraction that minimises a layer's time, 0 to 1 in steps of 1 / 256.  If RAM holds no chunk that is the
 * paper's closed form, with D as given:
 *
 *     clamp((T0 + D / B - Tc) / (D ((1 - delta) / B + 1 / R)), 0, 1) */
double quantized_pages_fraction(const struct page_costs *costs, const struct page_work *work, size_t layer_index);
/* Chooses the fraction of every layer. */
void quantized_pages_choose(const struct page_costs *costs, const struct page_work *work,
                            struct page_fractions *fractions);
