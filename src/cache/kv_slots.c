/* Slots: whose chunk each holds, and which one goes when another is wanted.  Nothing here waits. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "cache/kv_tier_internal.h"

enum {
    SAMPLE_SLOTS = 16, /* of which the one that is used least goes */
    AGE_USES = 16,     /* uses per slot after which all counts are halved */
};

void kv_tier_fail(struct kv_tier *tier, const struct error *error) {
    if (tier->failed != STATUS_OK) return;
    tier->failed = error->status;
    tier->failure = *error;
}

enum status kv_tier_failure(const struct kv_cache *cache, struct error *error) {
    if (cache->tier == NULL || cache->tier->failed == STATUS_OK) return STATUS_OK;
    if (error != NULL) *error = cache->tier->failure;
    return cache->tier->failed;
}

uint64_t kv_tier_failed_document(const struct kv_cache *cache) {
    const struct kv_tier *tier = cache->tier;
    return tier != NULL && tier->failed != STATUS_OK ? tier->failed_document : 0;
}

enum status tier_failure_status(const struct kv_sequence *sequence) {
    return sequence->pages->failed == STATUS_IO ? STATUS_IO : STATUS_MEMORY;
}

enum status tier_without_disk(const struct kv_sequence *sequence, enum status status, struct error *error,
                              const char *format, ...) {
    const struct error *why = &sequence->pages->failure;
    char lacking[200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(lacking, sizeof lacking, format, arguments);
    va_end(arguments);
    (void)error_set(error, status, "%s; %s", why->message, lacking);
    if (error != NULL) error->os_error = why->os_error; /* whether the disk is full */
    return status;
}

enum status kv_tier_full(const struct kv_cache *cache, struct error *error) {
    TRY(kv_tier_failure(cache, error));
    for (const struct kv_sequence *s = cache->sequences; s != NULL; s = s->next)
        if (s->pages->failed != STATUS_OK)
            return tier_without_disk(s, tier_failure_status(s), error,
                                     "and without the disk --kv-host does not hold the KV");
    return error_set(error, STATUS_MEMORY,
                     "KV tier: all %" PRIu64 " slots are in use: give more --kv-host, or --kv-disk",
                     cache->tier->slots.plain.count + cache->tier->slots.quantized.count);
}

/* ---- who reads ---- */

static struct ticket oldest_of(const struct tier_readers *readers) { return readers->list[readers->first].ticket; }

static void forget_oldest(struct tier_readers *readers) {
    readers->first = (readers->first + 1) % TIER_READERS_MAX;
    readers->count--;
}

static void oldest_is_done(struct tier_readers *readers) {
    readers->done = readers->list[readers->first].number;
    forget_oldest(readers);
}

bool tier_wait_reader(struct kv_tier *tier) {
    struct tier_readers *readers = &tier->readers;
    const struct device_operations *operations = tier->cache->device->operations;
    struct error error;
    if (readers->count == 0) return false;
    if (operations->ticket_wait(oldest_of(readers), &error) != STATUS_OK) kv_tier_fail(tier, &error);
    oldest_is_done(readers);
    return true;
}

bool tier_is_read(struct kv_tier *tier) {
    struct tier_readers *readers = &tier->readers;
    const struct device_operations *operations = tier->cache->device->operations;
    while (readers->count > 0 && operations->ticket_done(oldest_of(readers))) oldest_is_done(readers);
    return readers->count > 0;
}

static bool is_read(struct kv_tier *tier, const struct slot *slot) {
    return slot->reader > tier->readers.done && tier_is_read(tier) && slot->reader > tier->readers.done;
}

/* Of so many that one is forgotten, what it reads counts as read until the next one is done. */
void tier_slot_read_until(struct kv_tier *tier, struct slot *slot, struct ticket ticket) {
    struct tier_readers *readers = &tier->readers;
    if (ticket.stream == NULL) return;
    if (readers->count > 0 && oldest_of(readers).stream != ticket.stream)
        while (tier_wait_reader(tier)) continue; /* they have no order with the others */
    const size_t last = (readers->first + readers->count - 1) % TIER_READERS_MAX;
    if (readers->count == 0 || readers->list[last].ticket.value != ticket.value) {
        if (readers->count == TIER_READERS_MAX) forget_oldest(readers);
        const size_t at = (readers->first + readers->count++) % TIER_READERS_MAX;
        readers->list[at].number = ++readers->last;
        readers->list[at].ticket = ticket;
    }
    slot->reader = readers->last;
}

/* ---- slots ---- */

bool tier_slot_is_quantized(const struct kv_tier *tier, const struct slot *slot) {
    return (uint64_t)(slot - tier->slots.list) >= tier->slots.quantized.first;
}

struct tier_pool *tier_pool_of(struct kv_tier *tier, const struct slot *slot) {
    return tier_slot_is_quantized(tier, slot) ? &tier->slots.quantized : &tier->slots.plain;
}

struct slot *tier_slot_at(const struct kv_tier *tier, uint32_t place) {
    const bool quantized = place_pool(place) == POOL_QUANTIZED;
    return &tier->slots.list[(quantized ? tier->slots.quantized.first : tier->slots.plain.first) + place_slot(place)];
}

static uint32_t slot_place(const struct kv_tier *tier, const struct slot *slot) {
    const uint64_t index = (uint64_t)(slot - tier->slots.list);
    return tier_slot_is_quantized(tier, slot) ? place_make(POOL_QUANTIZED, index - tier->slots.quantized.first)
                                              : place_make(POOL_ROWS, index - tier->slots.plain.first);
}

uint8_t *tier_slot_memory(const struct kv_tier *tier, const struct slot *slot) {
    return span_host(kv_pools_chunk(&tier->cache->pools[0], slot_place(tier, slot)));
}

/* The sequence's table of the slot's form. */
static struct page_table *table_of(const struct kv_tier *tier, const struct slot *slot, struct kv_sequence *sequence) {
    return tier_slot_is_quantized(tier, slot) ? &sequence->quantized : &sequence->chunks;
}

static uint32_t place_in(const struct kv_tier *tier, const struct slot *slot, struct kv_sequence *sequence) {
    return page_table_place(table_of(tier, slot, sequence), slot->lane, slot->chunk);
}

static void set_place(const struct kv_tier *tier, const struct slot *slot, struct kv_sequence *sequence,
                      uint32_t place) {
    page_table_set(table_of(tier, slot, sequence), slot->lane, slot->chunk, place);
}

/* Of the others that share the slot the first one from `s` on; NULL: none. */
static struct kv_sequence *next_user(const struct kv_tier *tier, const struct slot *slot, struct kv_sequence *s) {
    const uint32_t place = slot_place(tier, slot);
    for (; slot->is_shared && s != NULL; s = s->next)
        if (s != slot->sequence && slot->chunk < s->column_count && place_in(tier, slot, s) == place) return s;
    return NULL;
}

struct document *tier_document_of(const struct kv_sequence *sequence, uint64_t chunk) {
    for (size_t i = sequence->pages->source_count; i > 0; i--) {
        const struct page_source *source = &sequence->pages->sources[i - 1];
        if (chunk >= source->chunk_first && chunk < source->chunk_end) return source->document;
    }
    return NULL;
}

/* A page on its way has arrived on disk: the slot may go. */
static bool is_written(struct kv_tier *tier, struct slot *slot) {
    const struct kv_lane_place lane = kv_lane_place(&tier->cache->config, slot->lane);
    const struct document *document = tier_document_of(slot->sequence, slot->chunk);
    ASSERT(slot->state == SLOT_QUEUED && document != NULL);
    if (!document_page_written(document, lane.layer, lane.kv_head, slot->chunk)) return false;
    slot->state = SLOT_CLEAN;
    return true;
}

/* Whether the chunk in the slot is to stay in memory.  Rows of a chunk that is in a slot in 4 bits, too, are copies; in
 * a layer of which the sequence has other fractions than the slots were divided by nothing stays. */
bool tier_slot_is_resident(const struct kv_tier *tier, const struct slot *slot) {
    if (!tier->lane_stays[slot->lane]) return false;
    const struct kv_lane_place lane = kv_lane_place(&tier->cache->config, slot->lane);
    if (tier->cache->config.mixes_pages &&
        !page_fractions_same_in(&slot->sequence->pages->fractions, &tier->fractions, lane.layer))
        return false;
    return tier_slot_is_quantized(tier, slot) ==
           kv_chunk_is_quantized(slot->sequence, lane.layer, lane.kv_head, slot->chunk);
}

bool tier_slot_is_clean(struct kv_tier *tier, struct slot *slot) {
    return slot->state == SLOT_CLEAN || (slot->state == SLOT_QUEUED && is_written(tier, slot));
}

static bool may_go(struct kv_tier *tier, struct slot *slot) {
    if (slot->sequence == NULL || slot->pins > 0 || tier_slot_is_resident(tier, slot)) return false;
    return tier_slot_is_clean(tier, slot) && !is_read(tier, slot);
}

/* The slot is nobody's; it is not put among the free ones. */
static void slot_forget(struct kv_tier *tier, struct slot *slot) {
    ASSERT(slot->pins == 0 && slot->state != SLOT_READING);
    for (struct kv_sequence *s = next_user(tier, slot, tier->cache->sequences); s != NULL;
         s = next_user(tier, slot, s->next))
        set_place(tier, slot, s, PLACE_NOWHERE);
    set_place(tier, slot, slot->sequence, PLACE_NOWHERE);
    slot->sequence = NULL;
    slot->state = SLOT_FREE;
}

void tier_slot_free(struct kv_tier *tier, struct slot *slot) {
    struct tier_pool *pool = tier_pool_of(tier, slot);
    slot_forget(tier, slot);
    pool->free_slots[pool->free_count++] = (uint32_t)(slot - tier->slots.list);
}

bool tier_slot_has_others(const struct kv_tier *tier, const struct slot *slot, const struct kv_sequence *sequence) {
    return slot->sequence != sequence || next_user(tier, slot, tier->cache->sequences) != NULL;
}

void tier_slot_leave(struct kv_tier *tier, struct slot *slot, struct kv_sequence *sequence) {
    ASSERT(place_in(tier, slot, sequence) == slot_place(tier, slot));
    if (slot->sequence == sequence) {
        struct kv_sequence *heir = next_user(tier, slot, tier->cache->sequences);
        if (heir == NULL) {
            tier_slot_free(tier, slot);
            return;
        }
        ASSERT(!slot->is_held);
        slot->sequence = heir;
    }
    set_place(tier, slot, sequence, PLACE_NOWHERE);
}

struct slot *tier_slot_share(struct kv_tier *tier, struct kv_sequence *sequence, size_t lane, uint64_t chunk,
                             bool quantized) {
    const struct kv_lane_place at = kv_lane_place(&tier->cache->config, lane);
    const size_t layer = at.layer, head = at.kv_head;
    const struct document *document = tier_document_of(sequence, chunk);
    const struct page_read read = {.layer = (uint32_t)layer, .kv_head = (uint32_t)head, .chunk = chunk};
    if (document != NULL && document_read_is_tail(document, &read)) return NULL; /* others may have its page */
    for (struct kv_sequence *s = tier->cache->sequences; s != NULL && document != NULL; s = s->next) {
        if (s == sequence || chunk >= s->column_count) continue;
        const uint32_t place = (quantized ? kv_quantized_place : kv_chunk_place)(s, layer, head, chunk);
        const struct document *its = place != PLACE_NOWHERE ? tier_document_of(s, chunk) : NULL;
        if (its == NULL || document_id(its) != document_id(document)) continue;
        struct slot *slot = tier_slot_at(tier, place);
        if (slot->state != SLOT_READING && !tier_slot_is_clean(tier, slot)) continue;
        slot->is_shared = true;
        set_place(tier, slot, sequence, place);
        return slot;
    }
    return NULL;
}

/* ---- who goes ---- */

uint8_t *tier_uses_at(struct kv_sequence *sequence, size_t lane, uint64_t chunk) {
    return &sequence->pages->uses[lane * sequence->column_capacity + chunk];
}

/* The chunk of the lowest goes. */
static uint32_t worth_of(const struct kv_tier *tier, const struct slot *slot) {
    if (tier->cache->config.eviction == KV_EVICT_LRU) return UINT32_MAX - (tier->use_clock - slot->used_at);
    return *tier_uses_at(slot->sequence, slot->lane, slot->chunk);
}

/* Counts that never fell would keep what was wanted long ago. */
static void age_uses(struct kv_tier *tier, struct tier_pool *pool) {
    size_t lanes = kv_lane_count(&tier->cache->config);
    for (struct kv_sequence *s = tier->cache->sequences; s != NULL; s = s->next)
        for (size_t i = 0; i < lanes * s->column_capacity; i++) s->pages->uses[i] /= 2;
    pool->use_count = 0;
}

void tier_count_use(struct kv_tier *tier, struct slot *slot) {
    struct tier_pool *pool = tier_pool_of(tier, slot);
    uint8_t *uses = tier_uses_at(slot->sequence, slot->lane, slot->chunk);
    if (*uses < UINT8_MAX) ++*uses;
    slot->used_at = ++tier->use_clock;
    if (++pool->use_count > pool->count * AGE_USES) age_uses(tier, pool);
}

void tier_make_victim(struct kv_tier *tier, struct slot *slot) {
    struct tier_pool *pool = tier_pool_of(tier, slot);
    if (slot->is_victim) return;
    slot->is_victim = true;
    pool->victims[pool->victim_count++] = (uint32_t)(slot - tier->slots.list);
}

static struct slot *take_victim(struct kv_tier *tier, struct tier_pool *pool) {
    while (pool->victim_count > 0) {
        struct slot *slot = &tier->slots.list[pool->victims[--pool->victim_count]];
        slot->is_victim = false;
        if (may_go(tier, slot)) return slot;
    }
    return NULL;
}

/* Of the next `sample` slots that may go the one that is used least; NULL: none of the next `slots_max`. */
static struct slot *least_used(struct kv_tier *tier, struct tier_pool *pool, uint64_t slots_max, size_t sample) {
    struct slot *victim = NULL;
    size_t seen = 0;
    for (uint64_t i = 0; i < slots_max && seen < sample; i++) {
        struct slot *slot = &tier->slots.list[pool->first + pool->hand];
        const struct slot *later = slot + (pool->hand + TIER_PREFETCH_CHUNKS < pool->count ? TIER_PREFETCH_CHUNKS : 0);
        if (later->sequence != NULL) __builtin_prefetch(tier_uses_at(later->sequence, later->lane, later->chunk), 0);
        pool->hand = (pool->hand + 1) % pool->count;
        if (slot->is_victim || !may_go(tier, slot)) continue;
        seen++;
        if (victim == NULL || worth_of(tier, slot) < worth_of(tier, victim)) victim = slot;
    }
    return victim;
}

/* A chunk that was fetched for a choice stays if it is used more than another one, which then goes in its place: what
 * is wanted now and then does not drive out what is wanted often (LeoAM's table of access frequencies; the
 * admission is that of TinyLFU, Einziger et al. 2017). */
void tier_admit(struct kv_tier *tier, struct slot *slot) {
    if (tier->cache->config.eviction != KV_EVICT_FREQUENCY_ADMITTED) return;
    struct slot *other = least_used(tier, tier_pool_of(tier, slot), SAMPLE_SLOTS * 4, SAMPLE_SLOTS);
    tier_make_victim(tier,
                     other != NULL && other != slot && worth_of(tier, other) < worth_of(tier, slot) ? other : slot);
}

uint64_t tier_vacant_slots(const struct tier_pool *pool) {
    return pool->free_count + (pool->count - pool->fresh_count);
}

/* A scan evicts the next slot without comparing. */
struct slot *tier_slot_take(struct kv_tier *tier, struct tier_pool *pool, bool scan) {
    if (pool->free_count > 0 && !is_read(tier, &tier->slots.list[pool->free_slots[pool->free_count - 1]]))
        return &tier->slots.list[pool->free_slots[--pool->free_count]];
    if (pool->fresh_count < pool->count) return &tier->slots.list[pool->first + pool->fresh_count++];
    struct slot *slot = take_victim(tier, pool);
    if (slot == NULL) slot = least_used(tier, pool, pool->count, scan ? 1 : SAMPLE_SLOTS);
    if (slot != NULL) slot_forget(tier, slot);
    return slot;
}

void tier_slot_give(struct kv_tier *tier, struct slot *slot, struct kv_sequence *sequence, size_t lane, uint64_t chunk,
                    enum slot_state state) {
    *slot = (struct slot){.sequence = sequence,
                          .lane = (uint32_t)lane,
                          .chunk = (uint32_t)chunk,
                          .state = (uint8_t)state,
                          .parts = state == SLOT_READING ? 0 : TIER_PARTS_ALL,
                          .used_at = tier->use_clock,
                          .is_victim = slot->is_victim,
                          .reader = slot->reader};
    set_place(tier, slot, sequence, slot_place(tier, slot));
}
