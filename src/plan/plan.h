/* plan: how a context is kept and read: one struct for the command line, loam.h and the engine.
 *
 *   sizes, budgets, folder   set by whoever makes the plan
 *   plan_set_axes            the preset, what is changed of it, and how much is kept
 *   plan_fit_context, plan_set_host_bytes   once the model is known
 *
 * A plan of zeros, but for a sequence capacity, reads everything, keeps it in RAM in half precision and has the model's
 * context. */
#ifndef LOAM_PLAN_PLAN_H
#define LOAM_PLAN_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attention/attention.h"
#include "base/status.h"
#include "cache/kv_cache.h"
#include "cache/page_shares.h"
#include "model/model.h"
#include "plan/presets.h"

enum {
    PLAN_SEQUENCES_MAX = 64,
    PLAN_BATCH_DEFAULT = 512,
    PLAN_SEGMENT_MAX = 1 << 19,
    PLAN_BLOCK_MIN = 256, /* tokens that the cache takes at once, in smaller prefill blocks too */
};

/* The tokens of a prompt behind those that a saved document had: densely, every one attends to all of the document,
 * which is read from disk once, and answers are those of a fresh prefill but for rounding.  Selecting, each attends as
 * it would in an engine_step of its own, and only what it chooses is read. */
enum plan_suffix {
    SUFFIX_DENSE,
    SUFFIX_SELECTS,
    SUFFIX_CHEAPER, /* selects where that attends to fewer rows in all: up to length / kept tokens */
};

struct plan {
    /* What a step reads, and in what form: plan_set_axes. */
    const char *preset;              /* of the table; NULL: not set by plan_set_axes */
    const char *methods[AXIS_COUNT]; /* words of axis_table: they end at '|' or the end; see plan_method */
    struct select_options select;    /* method NULL: all */
    enum kv_type k_type, v_type;
    bool q4_pages; /* on disk, and so once they are full in RAM, chunks hold what 4 bits hold; f16 only */
    /* With q4_pages: only a share of each layer's chunks does.  shares: of new documents; no layers: chosen when the
     * first one is made, from what the machine is measured to do then (plan/quantized_pages.h). */
    bool mixes_pages;
    struct page_shares shares;
    /* Instead: so many of every 16 pages in all layers, whatever machine and budget; a document that was made with
     * other shares is then not used.  Answers are the same for any budget. */
    bool fixes_shares;
    uint8_t quantized_of_16;
    size_t
        resident_layers; /* where KV is on disk: the first layers, that stay in RAM if host_bytes holds them */
    bool prefetches;     /* where KV is on disk: what the next layer will choose, while this one computes */
    enum plan_suffix suffix;

    /* Sizes. */
    uint64_t context_size; /* tokens per sequence; 0: the model's */
    /* Prompt and answer, where they are known: in a read-only folder RAM must hold this many tokens, or the prompt is
     * rejected before it is computed.  0: as many as the prompt has. */
    uint64_t wanted_tokens;
    size_t sequence_capacity; /* 1..PLAN_SEQUENCES_MAX */
    size_t batch_size;        /* tokens of a prefill block; 0: PLAN_BATCH_DEFAULT */
    /* Tokens of a prompt that go through a layer before the next one: what an interrupted prefill loses at most.
     * Rounded down to whole blocks, at least one; 0: what 64 MiB of activations hold, at most 8,192. */
    size_t segment_size;

    /* Tiers. */
    bool has_budget;
    uint64_t budget_bytes; /* of KV, device and host together: one memory on a CPU */
    /* RAM for KV and all that belongs to it, beyond which it lies on disk (cache/kv_tier.h); 0: it all lies in RAM.
     * plan_set_host_bytes derives it from the budget. */
    uint64_t host_bytes;
    const char *disk_directory; /* saved documents (cache/store/store.h); NULL: none */
    uint64_t disk_bytes;        /* of the directory at most; 0: no limit */
    const char *document_name;  /* borrowed: of what is saved, for people; NULL: none */
};

/* Owned by the plan from then on. */
enum status plan_set_disk(struct plan *plan, const char *directory, size_t length, uint64_t limit_bytes,
                          struct error *error) STATUS_CHECKED;
void plan_deinit(struct plan *plan); /* only what plan_set_disk has made; safe on zeros */

/* preset NULL: full; set ("AXIS=METHOD,NAME=NUMBER,...") and keep ("2048", "10%") NULL: not given.  The types of K and
 * V are the plan's unless set names a codec; whether KV may lie on disk is known (plan_set_disk).  STATUS_USAGE: one
 * line, with what there is. */
enum status plan_set_axes(struct plan *plan, const char *preset, const char *set, const char *keep,
                          struct error *error) STATUS_CHECKED;
/* "sinks, recent, ... rank (bound or meanstd) ...": what set takes beside axes.  Returns buffer. */
const char *plan_setting_names(char *buffer, size_t buffer_bytes);
/* The method of an axis as a text of its own; returns buffer. */
const char *plan_method(const struct plan *plan, enum axis axis, char *buffer, size_t buffer_bytes);
/* "hata", or what makes it different: "hata keep 512", "quest select=meanstd". */
const char *plan_text(const struct plan *plan, char *buffer, size_t buffer_bytes);

/* STATUS_USAGE, STATUS_UNSUPPORTED: what this model, or what is built, cannot do. */
enum status plan_check(const struct plan *plan, const struct model_config *config, struct error *error)
    STATUS_CHECKED;

struct select_shape plan_select_shape(const struct model_config *config);
uint64_t plan_context_size(const struct plan *plan, const struct model_config *config);
/* What attention is made for; whether over KV in tiers is added with the cache. */
enum status plan_attention_options(const struct plan *plan, const struct model_config *config,
                                   struct attention_options *attention, struct error *error) STATUS_CHECKED;
/* The cache, the selection's metadata included. */
enum status plan_cache_config(const struct plan *plan, const struct model_config *config,
                              struct kv_cache_config *cache, struct error *error) STATUS_CHECKED;
/* The least host_bytes that the plan needs. */
enum status plan_host_bytes_min(const struct plan *plan, const struct model_config *config, uint64_t *bytes,
                                struct error *error) STATUS_CHECKED;
/* The host_bytes of which kv_bytes are for chunks, the rest for metadata, tables and buffers. */
enum status plan_host_bytes_around(const struct plan *plan, const struct model_config *config,
                                   uint64_t kv_bytes, uint64_t *bytes, struct error *error) STATUS_CHECKED;

/* Without a disk: a context of 0 becomes the model's, cut to the budget; another one that the budget does not hold for
 * all sequences is STATUS_MEMORY, with what would fit. */
enum status plan_fit_context(struct plan *plan, const struct model_config *config, struct error *error)
    STATUS_CHECKED;
/* With a disk: host_bytes is the budget, or without one half of what the system has to give, or all that the context
 * needs. */
enum status plan_set_host_bytes(struct plan *plan, const struct model_config *config, struct error *error)
    STATUS_CHECKED;
/* STATUS_MEMORY when the KV of so many tokens is more than the system has to give now: said before the work, not by the
 * kernel in the middle of it. */
enum status plan_check_memory(const struct plan *plan, const struct model_config *config,
                              uint64_t token_count, struct error *error) STATUS_CHECKED;

#endif
