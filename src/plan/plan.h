/* plan: how a context is stored and read.  One struct for the command line, loam.h and the engine.
 *
 *   sizes, budgets, folder                  set by the caller
 *   plan_set_axes                           the preset, its changes, and how many tokens are kept
 *   plan_fit_context, plan_set_host_bytes   called once the model is known
 *
 * A plan of zeros with a sequence capacity reads all KV, stores it in RAM in half precision, and has the model's
 * context size. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attention/attention.h"
#include "base/status.h"
#include "cache/inputs.h"
#include "cache/kv_cache.h"
#include "cache/page_fractions.h"
#include "model/model.h"
#include "plan/presets.h"

enum {
    PLAN_SEQUENCES_MAX = 64,
    PLAN_BATCH_DEFAULT = 512,
    PLAN_SEGMENT_MAX = 1 << 19,
    PLAN_BLOCK_MIN = 256, /* tokens that the cache must accept at once, even if prefill blocks are smaller */
};

/* How the suffix of a prompt attends: its tokens behind the prefix that a saved document holds. */
enum plan_suffix {
    /* Every token attends to the whole document, which is read from disk once.  Answers are those of a fresh prefill:
     * rows that an answer has chosen are neither saved nor another prompt's (sequence_whole_tokens). */
    SUFFIX_DENSE,
    /* Each token attends as in an engine_step of its own.  Only what it selects is read.  Documents hold what answers
     * have chosen, too, and an answer depends on what was saved.  Plans with SUFFIX_DENSE do not find them. */
    SUFFIX_SELECTS,
    /* Selects if that attends to fewer rows in total: for a suffix of up to length / kept tokens. */
    SUFFIX_CHEAPER,
};

/* Where the key index of full chunks lies, with KV on disk.  What is chosen is the same. */
enum plan_key_index {
    PLAN_KEY_INDEX_FITS, /* in RAM if host_bytes holds it there, else on disk */
    PLAN_KEY_INDEX_RAM,
    PLAN_KEY_INDEX_DISK,
};

struct plan {
    /* What a step reads, and in what form.  Set by plan_set_axes. */
    const char *preset; /* a name of preset_table; NULL: plan_set_axes was not called */
    bool is_auto;       /* the preset is auto: measure/auto.h is to choose; until then nothing runs by the plan */
    /* is_auto: what the choice may lose on this model, in nats (plan/kld_table.h); 0: nothing */
    double kld_max;
    const char *methods[AXIS_COUNT]; /* borrowed from axis_table: each ends at '|' or zero; see plan_method */
    struct select_options select;    /* method NULL: attention is full */
    enum kv_type k_type, v_type;
    /* Pages on disk, and full chunks in RAM, are quantized to 4 bits.  f16 only. */
    bool quantized_pages;
    /* With quantized_pages: only a fraction of each layer's chunks is quantized.  fractions are those of new documents;
     * without layers they are chosen for each document, by what the machine is measured to do
     * (plan/quantized_pages.h), and answers follow: plan_caveat. */
    bool mixes_pages;
    struct page_fractions fractions;
    /* Fixed fractions instead: quantized_of_16 of every 16 pages in all layers, on any machine and budget.  So
     * answers do not depend on the budget.  Documents with other fractions are not used. */
    bool fixes_fractions;
    uint8_t quantized_of_16;
    /* With KV on disk: this many first layers stay in RAM if host_bytes holds them. */
    size_t resident_layers;
    enum kv_eviction eviction; /* with KV on disk */
    /* With KV on disk: struct kv_cache_config's, by this machine's numbers (machine_read_gap); 0: not known */
    uint64_t read_gap_bytes;
    enum plan_key_index key_index;
    /* With KV on disk: sequences share the memory of the key index where host_bytes does not hold that of every
     * sequence's whole context.  A sequence that grows may then get STATUS_MEMORY: for a caller that makes room. */
    bool pools_key_index;
    /* Heads that are hard to reuse choose anew in every step; with KV on disk they stay in RAM as well, as far as they
     * have room (plan/persistent_heads.h). */
    bool persistent;
    /* With KV on disk, or rows_in_host: K and V are computed from kept inputs (plan_keeps_inputs). */
    bool rebuilds;
    /* Set by the engine, which tries them (engine/inputs.c); until then there is room for floats. */
    enum inputs_form inputs_form;
    bool prefetches; /* with KV on disk: prefetch the next layer's chunks while this layer computes */
    enum plan_suffix suffix;

    /* Sizes. */
    uint64_t context_size; /* tokens per sequence; 0: the model's */
    /* Tokens of prompt and answer, if known.  In a read-only folder RAM must hold this many tokens, or the prompt is
     * rejected before it is computed.  0: the prompt's length. */
    uint64_t wanted_tokens;
    size_t sequence_capacity; /* 1..PLAN_SEQUENCES_MAX */
    size_t batch_size;        /* tokens of a prefill block; 0: PLAN_BATCH_DEFAULT */
    /* Tokens of a prompt that pass through one layer before the next layer starts.  An interrupted prefill loses at
     * most this many.  Rounded down to whole blocks, at least one.  0: what 64 MiB of activations hold, max 8,192. */
    size_t segment_size;

    /* Tiers. */
    bool has_budget;
    uint64_t budget_bytes;        /* for KV, device and host together: one memory on a CPU */
    uint64_t device_budget_bytes; /* of those, --kv-device's; 0: none was given */
    /* RAM for KV, key index, tables and buffers; the rest of the KV is on disk (cache/kv_tier.h).  0: all KV is in RAM.
     * plan_set_host_bytes derives it from the budget. */
    uint64_t host_bytes;
    /* What the device's memory has for KV, of a device that has its own (plan_bound_device); 0: it is the host's. */
    uint64_t device_bytes;
    uint64_t device_free_bytes; /* of the device's memory, for KV and to work in; 0: nobody has asked it */
    bool shares_memory;         /* device_bytes are of RAM as well: nothing there has slots, or is computed again */
    /* K and V lie in RAM that the device reads, as its own memory holds the key index alone; set by
     * plan_fit_context. */
    bool rows_in_host;
    /* Layers with windows keep all of K and V (cache/kv_windows.h): who measures goes back to lengths of its choice. */
    bool keeps_rows;
    size_t near_layers; /* with rows_in_host: the first so many layers' K and V are on the device all the same */
    /* With rows_in_host, or K and V on disk: of device_bytes, for slots of units (cache/unit_cache.h); the former also
     * for what is computed again (attention/bus_rebuild.h). */
    uint64_t unit_bytes;
    uint64_t input_row_bytes;   /* the same: of a token and layer, kept beside the rows; 0: none are */
    uint64_t memory_bytes;      /* RAM that there is for plan_set_host_bytes; 0: what the system has available */
    const char *disk_directory; /* the folder of saved documents (cache/store/store.h); NULL: none */
    uint64_t disk_bytes;        /* max size of the folder; 0: no limit */
    const char *document_name;  /* borrowed; a name for people, given to what is saved; NULL: none */
};

/* Sets the folder and its limit.  The plan owns its copy of the path. */
enum status plan_set_disk(struct plan *plan, const char *directory, size_t length, uint64_t limit_bytes,
                          struct error *error) STATUS_CHECKED;
void plan_deinit(struct plan *plan); /* frees what plan_set_disk allocated; safe on zeros */

/* The preset where none is named: auto, or full, which set and keep then change. */
const char *plan_default_preset(const char *set, const char *keep);
/* preset NULL: full.  set ("AXIS=METHOD,NAME=NUMBER,...") and keep ("2048", "10%") NULL: not given.  Call plan_set_disk
 * first.  The plan's types of K and V hold unless set names a codec.  STATUS_USAGE: one line with the valid words. */
enum status plan_set_axes(struct plan *plan, const char *preset, const char *set, const char *keep, struct error *error)
    STATUS_CHECKED;
/* "sinks, recent, ... rank (bound or meanstd) ...": the names that set takes besides axes.  Returns buffer. */
const char *plan_setting_names(char *buffer, size_t buffer_bytes);
/* Copies the method's name of an axis, zero-terminated.  Returns buffer. */
const char *plan_method(const struct plan *plan, enum axis axis, char *buffer, size_t buffer_bytes);
/* The preset's name and what differs from the preset: "hata", "hata keep 512", "quest select=meanstd". */
const char *plan_text(const struct plan *plan, char *buffer, size_t buffer_bytes);

/* A line for people: by what answers may differ though request and plan are the same; NULL: by nothing. */
const char *plan_caveat(const struct plan *plan);

/* STATUS_USAGE, STATUS_UNSUPPORTED: the plan asks for something that this model or this build cannot do. */
enum status plan_check(const struct plan *plan, const struct model_config *config, struct error *error) STATUS_CHECKED;

/* Before plan_fit_context, once, when the weights are loaded: KV in memory is bounded by what the device has free,
 * and by --kv-device; what is left of the budget is then RAM's. */
void plan_bound_device(struct plan *plan, struct device *device);
/* The same for a device with so much free. */
void plan_bound_memory(struct plan *plan, uint64_t free_bytes);
/* The context of a sequence, at most the model's, whose K and V a device holds that has so much free beside the
 * weights; 0: not one chunk. */
uint64_t plan_device_context(const struct model_config *config, enum kv_type type, uint64_t free_bytes);

struct select_shape plan_select_shape(const struct model_config *config);
uint64_t plan_context_size(const struct plan *plan, const struct model_config *config);
/* Tokens of a block and of a segment of a prompt. */
size_t plan_batch_size(const struct plan *plan);
size_t plan_segment_size(const struct plan *plan, const struct model_config *config);
/* Of forward_create, but for attention and a trace. */
struct forward_options plan_forward_options(const struct plan *plan, const struct model_config *config);
/* Of K and V of a sequence of so many tokens, where all that a row to come may see is in memory; UINT64_MAX: they fit
 * none. */
uint64_t plan_sequence_bytes(const struct model_config *config, enum kv_type k_type, enum kv_type v_type,
                             uint64_t token_count);
/* Bytes of a layer's inputs over those of its KV, in the smallest form that inputs have there: halves on a device that
 * has its own memory. */
double plan_inputs_ratio(const struct plan *plan, const struct model_config *config);
/* rebuilds, and inputs are less than what they stand for: else there is neither a workspace nor a document of inputs.
 */
bool plan_keeps_inputs(const struct plan *plan, const struct model_config *config);
/* The options of attention_create.  The caller adds whether KV is in tiers, once the cache exists. */
enum status plan_attention_options(const struct plan *plan, const struct model_config *config,
                                   struct attention_options *attention, struct error *error) STATUS_CHECKED;
/* The cache's configuration, with the selection's key index. */
enum status plan_cache_config(const struct plan *plan, const struct model_config *config, struct kv_cache_config *cache,
                              struct error *error) STATUS_CHECKED;
/* Divides the RAM of that configuration anew, now that *head_count heads of later layers than those that stay are to
 * stay as well (kv_tier_set_resident_heads).  *head_count: of them so many, where the others have buffers for their
 * lists; else what it was. */
enum status plan_keep_heads(const struct plan *plan, const struct model_config *config, struct kv_cache_config *cache,
                            size_t *head_count, struct error *error) STATUS_CHECKED;
/* The min host_bytes of the plan. */
enum status plan_host_bytes_min(const struct plan *plan, const struct model_config *config, uint64_t *bytes,
                                struct error *error) STATUS_CHECKED;
/* The host_bytes that leave kv_bytes for chunks; the rest is for key index, tables and buffers. */
enum status plan_host_bytes_around(const struct plan *plan, const struct model_config *config, uint64_t kv_bytes,
                                   uint64_t *bytes, struct error *error) STATUS_CHECKED;

/* A context size of 0 becomes the model's, cut to what the device has beside what it works in, and without a disk to
 * the budget.  One that is given and that the device's own memory does not hold has its K and V in RAM (rows_in_host).
 * STATUS_MEMORY: the given context size, or any, does not fit for all sequences; the message says what does, or what is
 * needed. */
enum status plan_fit_context(struct plan *plan, const struct model_config *config, struct error *error) STATUS_CHECKED;
/* Without a disk.  STATUS_MEMORY: the budget does not hold token_count tokens of every sequence. */
enum status plan_check_budget(const struct plan *plan, const struct model_config *config, uint64_t token_count,
                              struct error *error) STATUS_CHECKED;
/* With a disk.  host_bytes becomes the budget.  Without a budget it is half of the available memory, or what the
 * context needs if that is less. */
enum status plan_set_host_bytes(struct plan *plan, const struct model_config *config, struct error *error)
    STATUS_CHECKED;
/* STATUS_MEMORY: the KV of token_count tokens exceeds the available memory.  Checked before the work, so that the
 * kernel does not end the process in the middle of it. */
enum status plan_check_memory(const struct plan *plan, const struct model_config *config, uint64_t token_count,
                              struct error *error) STATUS_CHECKED;
