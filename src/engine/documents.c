#include "engine/documents.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/document_terms.h"
#include "kernels/codec/codec.h"
#include "plan/quantized_pages.h"
#include "platform/pool.h"
#include "platform/trace.h"

enum {
    REFUSALS_MAX = 16, /* documents tried in vain before the prompt is computed */
    COPIES_MAX = 4,    /* bytes copied at most for each new byte */
};

struct documents {
    struct store *store;                         /* owned */
    struct trace *trace;                         /* borrowed; NULL: none */
    struct kv_backing backing;                   /* name: owned */
    uint8_t other_kind[STORE_FINGERPRINT_BYTES]; /* of documents by plans with another --suffix */
    char *name;
    bool is_read_only;    /* the folder cannot be written: nothing is saved, and unwritable has the reason */
    bool is_told;         /* somebody was told so */
    bool fixes_fractions; /* only documents with these fractions are used */
    bool takes_key_index; /* only documents with this key index: it stays where they have it */
    bool takes_rows;      /* and documents without pages in 4 bits, of rows_codecs */
    char rows_codecs[KV_GROUPS_MAX][STORE_WORD_MAX];
    bool ignores; /* what it holds: damage was found, and cannot be flagged */
    struct error unwritable;
    struct error damage;      /* of the catalog, as found last; no message: none was */
    uint64_t limit_bytes;     /* of the folder; 0: none */
    documents_choose *choose; /* NULL: all pages have one form, or the fractions are given */
    bool chosen;              /* the backing's fractions */
    void *choose_context;
};

static const char *kv_word(enum kv_type type) { return type == KV_F16 ? "f16" : "q8"; }

static void set_rows_codec(char codec[STORE_WORD_MAX], const struct kv_layout *layout) {
    snprintf(codec, STORE_WORD_MAX, "%s.%zu,%s.%zu", kv_word(layout->k_type), layout->k_dimension,
             kv_word(layout->v_type), layout->v_dimension);
}

/* K in 4 bits per channel over the chunk's 64 tokens, V per token over 32 channels. */
static void set_q4_codec(char codec[STORE_WORD_MAX], const struct kv_layout *layout, bool mixed) {
    const char *rows = mixed ? "f16+" : "";
    snprintf(codec, STORE_WORD_MAX, "%sq4k%d.%zu,%sq4v%d.%zu", rows, KV_CHUNK_TOKENS, layout->k_dimension, rows,
             Q4_V_GROUP, layout->v_dimension);
}

/* Of the pages of each group; that of layers which keep a state has none. */
static void set_codecs(struct documents *documents, const struct plan *plan, const struct kv_cache *cache) {
    struct store_layout *store = &documents->backing.layout;
    for (size_t layer = 0; layer < store->layer_count; layer++) {
        const struct kv_layout *layout = kv_cache_layer_layout(cache, layer);
        const size_t number = layer < STORE_GROUP_LAYERS_MAX ? store->groups.of_layer[layer] : 0;
        if (number == STORE_GROUP_NONE) continue;
        char *codec = number > 0 ? store->groups.later[number - 1].codec : store->codec;
        set_rows_codec(documents->rows_codecs[number], layout);
        memcpy(codec, documents->rows_codecs[number], STORE_WORD_MAX);
        if (plan->quantized_pages) set_q4_codec(codec, layout, plan->mixes_pages);
    }
}

/* A model file in slices of this size, each hashed by one of the device's threads. */
enum { SLICE_BYTES = 4 << 20 };

struct slices {
    const struct file_map *map;
    uint8_t (*fingerprints)[STORE_FINGERPRINT_BYTES];
    size_t count;
};

static void hash_slice(struct slices *slices, size_t index) {
    uint64_t first = (uint64_t)index * SLICE_BYTES, bytes = slices->map->size_bytes - first;
    store_fingerprint_add(slices->fingerprints[index], (const uint8_t *)slices->map->data + first,
                          bytes < SLICE_BYTES ? bytes : SLICE_BYTES);
}

static void hash_slices(void *context, const struct pool_worker *worker) {
    struct slices *slices = context;
    for (size_t i; (i = pool_ticket(worker)) < slices->count;) hash_slice(slices, i);
}

/* All bytes of the model's files: another model, or one with a changed bit, has another fingerprint. */
static enum status fingerprint_add(uint8_t fingerprint[STORE_FINGERPRINT_BYTES], const struct file_map *map,
                                   struct pool *pool, struct error *error) {
    struct slices slices = {.map = map, .count = (size_t)((map->size_bytes - 1) / SLICE_BYTES + 1)};
    slices.fingerprints = calloc(slices.count, sizeof *slices.fingerprints);
    if (slices.fingerprints == NULL) return error_set(error, STATUS_MEMORY, "documents: out of memory");
    if (pool != NULL)
        pool_run(pool, hash_slices, &slices);
    else
        for (size_t i = 0; i < slices.count; i++) hash_slice(&slices, i);
    store_fingerprint_add(fingerprint, slices.fingerprints, slices.count * sizeof *slices.fingerprints);
    free(slices.fingerprints);
    return STATUS_OK;
}

/* A folder that cannot be written, because of its file system, permissions or owner, can still be read. */
static enum status open_store(struct documents *documents, struct store_options *options, struct error *error) {
    struct error *why = &documents->unwritable, read;
    enum status status = store_open(&documents->store, options, why);
    bool cannot = why->os_error == EROFS || why->os_error == EACCES || why->os_error == EPERM;
    if (status == STATUS_IO && cannot) {
        options->read_only = documents->is_read_only = true;
        if (store_open(&documents->store, options, &read) == STATUS_OK) {
            why->status = STATUS_FULL; /* where RAM does not do without it, memory is what is lacking */
            return STATUS_OK;
        }
        if (strcmp(read.message, why->message) != 0)
            return error_set(error, read.status, "%s; nor can it be read: %s", why->message, read.message);
    }
    if (status != STATUS_OK && error != NULL) *error = *why;
    return status;
}

/* Fixed fractions hold for opened documents, too. */
static bool takes_rows(const struct plan *plan) {
    return plan->mixes_pages && (!plan->fixes_fractions || plan->quantized_of_16 == 0);
}

/* Documents with rows that have chosen, and that therefore are not what another history would give, are as those of
 * another model to plans whose documents have none. */
static void set_kind(struct documents *documents, const struct plan *plan, bool selects) {
    static const char chosen[] = "rows have chosen";
    struct kv_backing *backing = &documents->backing;
    memcpy(documents->other_kind, backing->model.fingerprint, sizeof documents->other_kind);
    const bool has_chosen = selects && plan->suffix != SUFFIX_DENSE;
    store_fingerprint_add(has_chosen ? backing->model.fingerprint : documents->other_kind, chosen, sizeof chosen);
}

enum status documents_open(struct documents **result, const struct documents_options *options, struct error *error) {
    const struct plan *plan = options->plan;
    const struct model *model = options->model;
    struct select *select = options->select;
    struct documents *documents = calloc(1, sizeof *documents);
    *result = documents;
    if (documents == NULL) return error_set(error, STATUS_MEMORY, "documents: out of memory");
    struct store_options store_options = {.directory = plan->disk_directory,
                                          .limit_bytes = plan->disk_bytes,
                                          .staging_bytes = (size_t)options->buffer_bytes,
                                          .faults = options->engine->io_faults,
                                          .sqlite_vfs = options->engine->sqlite_vfs};
    TRY(open_store(documents, &store_options, error));
    documents->limit_bytes = plan->disk_bytes;
    documents->trace = options->engine->trace;
    documents->ignores = documents->is_read_only && options->engine->found_damage;
    struct kv_backing *backing = &documents->backing;
    documents->name = strdup(plan->document_name != NULL ? plan->document_name : "");
    if (documents->name == NULL) return error_set(error, STATUS_MEMORY, "documents: out of memory");
    backing->store = documents->store;
    backing->name = documents->name;
    backing->model.description = model->config.name;
    for (uint32_t i = 0; i < model->gguf.file_count; i++)
        TRY(fingerprint_add(backing->model.fingerprint, &model->gguf.maps[i], device_pool(model->device), error));
    if (model->config.stretched_from > 0) /* other positions, of the same bytes */
        store_fingerprint_add(backing->model.fingerprint, &model->config.context_length,
                              sizeof model->config.context_length);
    TRY(gguf_check(&model->gguf, error)); /* the fingerprint is of what was loaded */
    set_kind(documents, plan, select != NULL);
    backing->layout = kv_tier_store_layout(kv_cache_get_config(options->cache));
    backing->layout.key_index_bytes = 0; /* as the selection says */
    set_codecs(documents, plan, options->cache);
    documents->takes_rows = takes_rows(plan);
    documents->takes_key_index = options->key_index_on_disk;
    if (plan->mixes_pages) { /* zero until they are chosen */
        backing->layout.fractions = plan->fractions;
        backing->layout.fractions.layer_count = (uint16_t)backing->layout.layer_count;
        documents->fixes_fractions = plan->fixes_fractions;
        if (plan->fixes_fractions) {
            memset(backing->layout.fractions.sixteenths, plan->quantized_of_16, backing->layout.layer_count);
            page_fractions_keep_first(&backing->layout.fractions);
        }
    }
    snprintf(backing->layout.key_index_kind, sizeof backing->layout.key_index_kind, "none");
    bool selects = select != NULL && select_get_options(select)->dense_layers < model->config.layer_count;
    if (selects && select_key_index_bytes(select) > 0) {
        select_key_index_kind(select, backing->layout.key_index_kind);
        backing->layout.key_index_bytes = (uint32_t)select_key_index_bytes(select);
    }
    return STATUS_OK;
}

const struct kv_backing *documents_backing(const struct documents *documents) { return &documents->backing; }

const char *documents_warning(const struct documents *documents) { return store_warning(documents->store); }

const char *documents_damage(const struct documents *documents) {
    return documents->damage.message[0] != '\0' ? documents->damage.message : NULL;
}

void documents_close(struct documents *documents) {
    if (documents == NULL) return;
    store_close(documents->store);
    free(documents->name);
    free(documents);
}

static bool same_key_index(const struct store_layout *a, const struct store_layout *b) {
    return strcmp(a->key_index_kind, b->key_index_kind) == 0 && a->key_index_bytes == b->key_index_bytes;
}

struct naming {
    const char *name;
    bool is_other;
};

static void see_name(void *context, const struct document_info *info) {
    struct naming *naming = context;
    naming->is_other = strcmp(info->name, naming->name) != 0;
}

/* A prompt with a name of its own does not go on in a document of another name. */
static bool is_named_otherwise(struct documents *documents, uint64_t id, const struct documents_prompt *prompt) {
    struct naming naming = {.name = prompt->name};
    struct error ignored; /* opening it tells */
    return prompt->name != NULL && store_show(documents->store, id, see_name, &naming, &ignored) == STATUS_OK &&
           naming.is_other;
}

/* The prompt uses all of it, so it continues where the document ends.  Otherwise it is only read; *full->message says
 * so if the disk lacks space for a copy. */
static enum status open_match(struct documents *documents, const struct kv_backing *backing,
                              const struct store_match *match, const struct documents_prompt *prompt,
                              struct document **document, bool *writable, struct error *full, struct error *error) {
    const uint64_t token_capacity = prompt->token_capacity;
    *writable = match->prefix_tokens == match->token_count && same_key_index(&match->layout, &backing->layout) &&
                !documents->is_read_only && !is_named_otherwise(documents, match->document, prompt);
    if (*writable) {
        enum status status = document_open_begin(document, documents->store, match->document, &backing->model,
                                                 &match->layout, DOCUMENT_APPEND, token_capacity, error);
        if (status == STATUS_IO && io_is_full(error->os_error)) {
            *full = *error;
            full->status = STATUS_FULL; /* where RAM does not do without it, memory is what is lacking */
        }
        if (status != STATUS_FULL && full->message[0] == '\0') return status;
        *writable = false; /* another process continues it, or the disk lacks space */
    }
    return document_open_begin(document, documents->store, match->document, &backing->model, &match->layout,
                               DOCUMENT_READ, 0, error);
}

/* Rows of a compressed page are rounded, and the rows that follow must be exact.  So of a chunk that is full in the
 * document either all rows are taken or none. */
static void keep_exact(struct store_match *match) {
    uint64_t full = match->token_count - match->token_count % KV_CHUNK_TOKENS;
    if (match->layout.tail_bytes != 0 && match->prefix_tokens < full)
        match->prefix_tokens -= match->prefix_tokens % KV_CHUNK_TOKENS;
}

/* The layout of documents whose pages are all rows, where pages are mixed: a fraction of 0 in 4 bits. */
static struct store_layout rows_layout(const struct documents *documents) {
    struct store_layout rows = documents->backing.layout;
    memcpy(rows.codec, documents->rows_codecs[0], sizeof rows.codec);
    rows.chunk_bytes = rows.tail_bytes;
    rows.tail_bytes = 0;
    for (size_t i = 0; i < rows.groups.later_count; i++) {
        struct store_group *group = &rows.groups.later[i];
        memcpy(group->codec, documents->rows_codecs[i + 1], sizeof group->codec);
        group->chunk_bytes = group->tail_bytes;
        group->tail_bytes = 0;
    }
    rows.fractions = (struct page_fractions){0};
    return rows;
}

/* A longer prefix than match has, in a document with pages as in the query's layout.  Its key index is of that kind, or
 * is rebuilt from the stored keys. */
static enum status find_longer(struct documents *documents, struct store_query query, struct store_match *match,
                               struct error *error) {
    struct store_match same, other;
    if (match->prefix_tokens == query.token_count) return STATUS_OK;
    TRY(store_find(documents->store, &query, &same, error));
    if (same.prefix_tokens > match->prefix_tokens) *match = same;
    if (documents->takes_key_index) return STATUS_OK;
    query.likeness = STORE_LIKE_PAGES;
    TRY(store_find(documents->store, &query, &other, error));
    if (other.prefix_tokens > match->prefix_tokens) *match = other;
    return STATUS_OK;
}

/* The longest prefix that can be used.  The key index of rounded pages was built from exact keys and cannot be
 * rebuilt. */
static enum status find(struct documents *documents, const struct kv_backing *backing, const int32_t *tokens,
                        uint64_t token_count, struct store_match *match, struct error *error) {
    struct store_query query = {&backing->model, &backing->layout, tokens, token_count, STORE_LIKE_KIND};
    *match = (struct store_match){0};
    if (backing->layout.tail_bytes == 0) {
        TRY(find_longer(documents, query, match, error));
    } else {
        if (documents->fixes_fractions) query.likeness = STORE_LIKE_ALL;
        TRY(store_find(documents->store, &query, match, error));
    }
    if (documents->takes_rows) {
        const struct store_layout rows = rows_layout(documents);
        query.layout = &rows;
        query.likeness = STORE_LIKE_KIND;
        TRY(find_longer(documents, query, match, error));
    }
    keep_exact(match);
    return STATUS_OK;
}

/* What follows the document is in RAM. */
static void only_read(struct documents *documents, struct kv_sequence *sequence, const struct error *why,
                      struct error *notice) {
    struct error before = *notice;
    const char *damage = before.message, *between = damage[0] != '\0' ? "; " : "";
    kv_sequence_keep_in_ram(sequence, why);
    if (!documents->is_told)
        (void)error_set(notice, STATUS_IO, "%s%snothing is saved, only read: %s", damage, between, why->message);
    documents->is_told = true;
}

/* Of a document of token_count tokens that is about to have token_end: what is chosen for its new pages.  false: what
 * it has. */
static bool choose_again(struct documents *documents, struct kv_sequence *sequence, const struct store_layout *layout,
                         uint64_t token_count, uint64_t token_end, uint64_t token_capacity,
                         struct page_fractions *fractions) {
    struct page_fractions wanted;
    const uint64_t chunks = kv_chunks_of(token_count), chunk_end = token_end / KV_CHUNK_TOKENS;
    if (documents->choose == NULL || fractions->layer_count == 0) return false;
    if (!quantized_pages_grows(chunks, chunk_end)) return false; /* not worth measuring */
    return documents->choose(documents->choose_context, documents->store, layout, sequence, token_end, token_capacity,
                             &wanted) &&
           quantized_pages_continue(fractions, &wanted, chunks, chunk_end);
}

/* Chooses the fractions again, before the document becomes the sequence's.  Without room it keeps those it has. */
static void grow_document(struct documents *documents, struct kv_sequence *sequence, struct document *document,
                          const struct documents_prompt *prompt) {
    struct page_fractions fractions = document_layout(document)->fractions;
    if (kv_sequence_divides_slots(sequence) &&
        choose_again(documents, sequence, document_layout(document), document_token_count(document),
                     prompt->token_count + 1, prompt->token_capacity, &fractions)) {
        enum status ignored = document_set_fractions(document, &fractions, NULL);
        (void)ignored;
    }
}

static bool holds(const struct document *document, const int32_t *tokens, uint64_t count) {
    return document_token_count(document) >= count &&
           memcmp(document_tokens(document), tokens, (size_t)count * sizeof *tokens) == 0;
}

bool documents_copies(uint64_t prefix_tokens, uint64_t new_tokens) { return prefix_tokens / COPIES_MAX <= new_tokens; }

/* outcome->reused stays 0 if it fails, and if the document has grown since it was found (another process continued
 * it): it must then be evaluated anew. */
static enum status use(struct documents *documents, const struct kv_backing *backing, struct kv_sequence *sequence,
                       const struct store_match *match, const struct documents_prompt *prompt,
                       struct documents_outcome *outcome, struct error *error) {
    const uint64_t whole = prompt->token_count + 1; /* tokens of the prompt */
    struct document *document;
    bool writable;
    struct error full = {.message = ""};
    const uint64_t began = trace_clock(documents->trace);
    TRY(open_match(documents, backing, match, prompt, &document, &writable, &full, error));
    trace_since(documents->trace, "open document", TRACE_ENGINE, began, TRACE_NONE, TRACE_NONE);
    if (document_token_count(document) != match->token_count) {
        document_close(document);
        return STATUS_OK;
    }
    if (writable) grow_document(documents, sequence, document, prompt);
    TRY(kv_sequence_open_document(sequence, document, match->prefix_tokens, writable, error));
    outcome->reused = match->prefix_tokens;
    if (documents->is_read_only || full.message[0] != '\0') {
        only_read(documents, sequence, documents->is_read_only ? &documents->unwritable : &full, &outcome->notice);
        return STATUS_OK;
    }
    bool departs = match->prefix_tokens < match->token_count || !same_key_index(&match->layout, &backing->layout);
    const bool is_worth = documents_copies(match->prefix_tokens, whole - match->prefix_tokens);
    const bool is_asked = prompt->name != NULL && !holds(document, prompt->tokens, whole);
    if (writable || !(departs || is_asked) || !(is_worth || is_asked)) return STATUS_OK;
    enum status status = kv_sequence_copy_document(sequence, prompt->token_capacity, error);
    if (status == STATUS_OK) documents_grow(documents, sequence, whole, prompt->token_capacity);
    if (status == STATUS_OK) return STATUS_OK;
    if (kv_sequence_length(sequence) == 0) {
        outcome->reused = 0;
        return status;
    }
    (void)error_set(&outcome->notice, status, "not saved: %s", error->message);
    return STATUS_OK;
}

/* Where other sequences hold slots, a new document gets the fractions that the slots were divided by. */
static enum status create(struct documents *documents, struct kv_backing *backing, struct kv_sequence *sequence,
                          uint64_t token_count, uint64_t token_capacity, struct error *error) {
    struct page_fractions *fractions = &documents->backing.layout.fractions;
    if (documents->choose != NULL && (!documents->chosen || kv_sequence_divides_slots(sequence))) {
        const struct store_layout layout = documents->backing.layout;
        (void)documents->choose(documents->choose_context, documents->store, &layout, sequence, token_count,
                                token_capacity, fractions);
        documents->chosen = true;
    }
    backing->layout.fractions = *fractions;
    kv_sequence_set_backing(sequence, backing);
    if (fractions->layer_count > 0) TRY(kv_sequence_set_fractions(sequence, fractions, error));
    if (documents->is_read_only) return error_set(error, STATUS_FULL, "%s", documents->unwritable.message);
    return kv_sequence_create_document(sequence, token_capacity, error);
}

/* An owner's documents are those of a model of its own: nobody else's search matches them. */
static void fingerprint_of_owner(const struct documents *documents, const char *owner,
                                 uint8_t fingerprint[STORE_FINGERPRINT_BYTES]) {
    memcpy(fingerprint, documents->backing.model.fingerprint, STORE_FINGERPRINT_BYTES);
    if (owner != NULL && owner[0] != '\0') store_fingerprint_add(fingerprint, owner, strlen(owner));
}

static struct kv_backing backing_of(const struct documents *documents, const struct documents_prompt *prompt) {
    struct kv_backing backing = documents->backing;
    fingerprint_of_owner(documents, prompt->owner, backing.model.fingerprint);
    if (prompt->name != NULL) backing.name = prompt->name;
    return backing;
}

bool documents_belongs(const struct documents *documents, const char *owner, const struct document_info *info) {
    uint8_t fingerprint[STORE_FINGERPRINT_BYTES];
    fingerprint_of_owner(documents, owner, fingerprint);
    return memcmp(fingerprint, info->fingerprint, sizeof fingerprint) == 0;
}

enum status documents_terms(const struct documents *documents, const char *owner, bool stores,
                            struct document_terms *terms, struct error *error) {
    const struct kv_backing *backing = &documents->backing;
    if (stores && documents->is_read_only) return error_set(error, STATUS_IO, "%s", documents->unwritable.message);
    *terms = (struct document_terms){.limit_bytes = documents->limit_bytes,
                                     .layouts = {backing->layout},
                                     .layout_count = 1,
                                     .fixes_fractions = documents->fixes_fractions,
                                     .takes_key_index = documents->takes_key_index};
    memcpy(terms->model_fingerprint, backing->model.fingerprint, sizeof terms->model_fingerprint);
    fingerprint_of_owner(documents, owner, terms->fingerprint);
    if (documents->takes_rows) terms->layouts[terms->layout_count++] = rows_layout(documents);
    return STATUS_OK;
}

enum status documents_find_prefix(struct documents *documents, const struct documents_prompt *prompt,
                                  uint64_t *token_count, struct error *error) {
    const struct kv_backing backing = backing_of(documents, prompt);
    struct store_match match = {0};
    *token_count = 0;
    if (documents->ignores) return STATUS_OK;
    const enum status status = find(documents, &backing, prompt->tokens, prompt->token_count, &match, error);
    if (status == STATUS_DOCUMENT) return STATUS_OK; /* the catalog: nothing is found */
    TRY(status);
    *token_count = match.document != 0 ? match.prefix_tokens : 0;
    return STATUS_OK;
}

static enum status attach(struct documents *documents, struct kv_sequence *sequence,
                          const struct documents_prompt *prompt, struct documents_outcome *outcome,
                          struct error *error) {
    struct error *notice = &outcome->notice;
    struct kv_backing backing = backing_of(documents, prompt);
    outcome->reused = 0;
    notice->message[0] = '\0';
    kv_sequence_set_backing(sequence, &backing);
    bool was_searched = !documents->ignores;
    size_t refusals = 0;
    for (; refusals < REFUSALS_MAX && !documents->ignores; refusals++) {
        struct store_match match;
        const uint64_t began = trace_clock(documents->trace);
        enum status status = find(documents, &backing, prompt->tokens, prompt->token_count, &match, error);
        trace_since(documents->trace, "find document", TRACE_ENGINE, began, TRACE_NONE, TRACE_NONE);
        if (status == STATUS_OK && match.document == 0) break;
        if (status == STATUS_OK)
            status = use(documents, &backing, sequence, &match, prompt, outcome, error);
        else if (status == STATUS_DOCUMENT) { /* the catalog: nothing is found, and perhaps nothing saved */
            documents->damage = *notice = *error;
            was_searched = false;
            break;
        }
        if (status == STATUS_OK && outcome->reused > 0) return STATUS_OK;
        if (status == STATUS_OK) continue; /* it has grown */
        if (status != STATUS_DOCUMENT && status != STATUS_IO) return status;
        (void)error_set(notice, status, "%s; computed anew", error->message);
        if (status == STATUS_IO) break;
        /* the document is flagged now, and will not be found again */
    }
    if (documents->is_read_only && refusals == 0 && was_searched) /* the user meant a saved document */
        return error_set(error, STATUS_IO,
                         "%s; and of what is saved there nothing begins like the prompt, by the same model",
                         documents->unwritable.message);
    enum status status = create(documents, &backing, sequence, prompt->token_count, prompt->token_capacity, error);
    if (status == STATUS_DOCUMENT) documents->damage = *error;
    if (status != STATUS_FULL && status != STATUS_IO && status != STATUS_DOCUMENT) return status;
    /* An answer is worth more than a saved document: RAM may hold all of it. */
    const struct error damage = *notice;
    (void)error_set(notice, status, "%s%snot saved: %s", damage.message, damage.message[0] != '\0' ? "; " : "",
                    error->message);
    kv_sequence_keep_in_ram(sequence, error);
    return STATUS_OK;
}

/* Like store_find_other, of documents that a plan of another --suffix has saved. */
static enum status find_other_kind(struct documents *documents, const struct documents_prompt *prompt,
                                   uint64_t *prefix_tokens, struct error *why, struct error *error) {
    struct kv_backing backing = backing_of(documents, prompt);
    struct store_match match = {0};
    memcpy(backing.model.fingerprint, documents->other_kind, sizeof documents->other_kind);
    if (prompt->owner != NULL && prompt->owner[0] != '\0')
        store_fingerprint_add(backing.model.fingerprint, prompt->owner, strlen(prompt->owner));
    *prefix_tokens = 0;
    TRY(find(documents, &backing, prompt->tokens, prompt->token_count, &match, error));
    if (match.document == 0) return STATUS_OK;
    *prefix_tokens = match.prefix_tokens;
    (void)!error_set(why, STATUS_DOCUMENT, "document %llu was saved with another --suffix, and answers differently",
                     (unsigned long long)match.document);
    return STATUS_OK;
}

/* Of documents of before version 4, which have everything of layers with windows. */
static enum status find_whole(struct documents *documents, const struct documents_prompt *prompt,
                              uint64_t *prefix_tokens, struct error *why, struct error *error) {
    struct kv_backing backing = backing_of(documents, prompt);
    struct store_match match = {0};
    *prefix_tokens = 0;
    if (backing.layout.windows.tokens == 0 || documents->ignores) return STATUS_OK;
    backing.layout.windows = (struct store_windows){0};
    TRY(store_find(
        documents->store,
        &(struct store_query){&backing.model, &backing.layout, prompt->tokens, prompt->token_count, STORE_LIKE_KIND},
        &match, error));
    *prefix_tokens = match.prefix_tokens;
    (void)!error_set(why, STATUS_DOCUMENT, "document %llu has all K and V of layers with windows, expected version 4",
                     (unsigned long long)match.document);
    return STATUS_OK;
}

/* Of documents that have the prompt's tokens, and whose states or windows all lie behind those. */
static enum status find_stateless(struct documents *documents, const struct documents_prompt *prompt,
                                  uint64_t *prefix_tokens, struct error *why, struct error *error) {
    const struct kv_backing backing = backing_of(documents, prompt);
    const struct store_query query = {&backing.model, &backing.layout, prompt->tokens, prompt->token_count,
                                      STORE_LIKE_KIND};
    uint64_t id;
    *prefix_tokens = 0;
    if (documents->ignores) return STATUS_OK;
    TRY(store_find_stateless(documents->store, &query, &id, prefix_tokens, error));
    if (id != 0)
        (void)!error_set(why, STATUS_DOCUMENT,
                         "document %llu begins with %llu of its tokens, but has no %s behind any of them",
                         (unsigned long long)id, (unsigned long long)*prefix_tokens,
                         query.layout->windows.tokens > 0 ? "window" : "state");
    return STATUS_OK;
}

enum status documents_attach(struct documents *documents, struct kv_sequence *sequence,
                             const struct documents_prompt *prompt, struct documents_outcome *outcome,
                             struct error *error) {
    TRY(attach(documents, sequence, prompt, outcome, error));
    const struct kv_backing backing = backing_of(documents, prompt);
    const struct error before = outcome->notice;
    struct error why, ignored;
    uint64_t other;
    enum status status = store_find_other(
        documents->store,
        &(struct store_query){.model = &backing.model, .tokens = prompt->tokens, .token_count = prompt->token_count},
        &other, &why, &ignored);
    if (status == STATUS_OK && other <= outcome->reused)
        status = find_other_kind(documents, prompt, &other, &why, &ignored);
    if (status == STATUS_OK && other <= outcome->reused) status = find_whole(documents, prompt, &other, &why, &ignored);
    if (status == STATUS_OK && other <= outcome->reused)
        status = find_stateless(documents, prompt, &other, &why, &ignored);
    if (status == STATUS_OK && other > outcome->reused)
        (void)error_set(&outcome->notice, why.status, "%s%s%s; computed anew", before.message,
                        before.message[0] != '\0' ? "; " : "", why.message);
    return STATUS_OK;
}

void documents_build_with(struct documents *documents,
                          enum status (*build)(void *context, struct kv_sequence *sequence, size_t layer_index,
                                               uint64_t position_first, uint64_t row_count, struct error *error),
                          void *context) {
    documents->backing.build_key_index = build;
    documents->backing.build_context = context;
}

void documents_choose_with(struct documents *documents, documents_choose *choose, void *context) {
    documents->choose = choose;
    documents->choose_context = context;
}

void documents_grow(struct documents *documents, struct kv_sequence *sequence, uint64_t token_count,
                    uint64_t token_capacity) {
    struct page_fractions fractions;
    if (!kv_sequence_may_change_fractions(sequence)) return;
    fractions = *kv_sequence_fractions(sequence);
    if (choose_again(documents, sequence, &documents->backing.layout, kv_sequence_length(sequence), token_count,
                     token_capacity, &fractions)) {
        enum status ignored = kv_sequence_change_fractions(sequence, &fractions, NULL);
        (void)ignored;
    }
}

enum status documents_measure(struct documents *documents, uint64_t token_capacity, struct store_rates *rates,
                              struct error *error) {
    enum { SAMPLE_PAGES = 64 };
    const struct store_layout *layout = &documents->backing.layout;
    if (documents->is_read_only) return error_set(error, STATUS_IO, "%s", documents->unwritable.message);
    return store_measure(documents->store, layout, token_capacity, SAMPLE_PAGES * store_tail_bytes(layout), rates,
                         error);
}

enum status documents_attach_nameless(struct documents *documents, struct kv_sequence *sequence,
                                      uint64_t token_capacity, struct error *error) {
    if (documents->is_read_only) /* on purpose, to go to the disk */
        return error_set(error, STATUS_IO, "%s", documents->unwritable.message);
    struct kv_backing backing = documents->backing;
    return create(documents, &backing, sequence, token_capacity, token_capacity, error);
}
