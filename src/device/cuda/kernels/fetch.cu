/* unit_fetch: where attention finds what a list names, and which slots it fills (kernels.h).  A block has a KV head.
 * unit_fetch_q4: the same where some chunks are in 4 bits, which have slots of their own. */
#include "device/cuda/attention_rows.h"
#include "device/cuda/kernels_turns.h"
#include "device/cuda/kv_places.h"
#include "device/cuda/rows.h"

enum { FETCHERS = 512, FETCH_WARPS = FETCHERS / 32 };

/* One KV head's cache. */
struct unit_cache {
    int32_t *table;
    uint32_t *owner, *stamp;
    uint8_t *used;
    char *slots;
    uint64_t *addresses;
    uint32_t count; /* slots */
    uint32_t step;  /* this one's number */
};
DEVICE struct unit_cache unit_cache_of(const struct cuda_fetch_args &args, uint32_t kv_head,
                                       uint64_t position) {
    const uint32_t *firsts = at<uint32_t>(args.firsts) + kv_head;
    const uint64_t first = firsts[0];
    struct unit_cache cache;
    cache.table = at<int32_t>(args.tables) + (uint64_t)kv_head * args.unit_stride;
    cache.owner = at<uint32_t>(args.owners) + first;
    cache.stamp = at<uint32_t>(args.stamps) + first;
    cache.used = at<uint8_t>(args.used) + first;
    cache.slots = at<char>(args.slots) + first * args.block_bytes;
    cache.addresses = at<uint64_t>(args.addresses) + (uint64_t)kv_head * args.list_stride;
    cache.count = firsts[1] - firsts[0];
    cache.step = (uint32_t)position + 1;
    return cache;
}

/* What a kernel has of a KV head, behind what precedes it in the stream. */
struct fetched_head {
    uint64_t position;
    const struct step_item *item;
    const uint32_t *pages;
    struct cuda_list list;
    struct unit_cache cache;
};
DEVICE struct fetched_head fetched_head_of(const struct cuda_fetch_args &args, uint32_t kv_head) {
    struct fetched_head head;
    dependents_start();
    dependency_wait();
    const struct step_row row = at<struct step_row>(args.rows)[0];
    head.position = row.position;
    head.item = at<struct step_item>(args.items) + row.item;
    head.pages = head_places(head.item, args.layer_pages, kv_head);
    head.list = list_at(args.lists, args.limits, kv_head);
    head.cache = unit_cache_of(args, kv_head, row.position);
    return head;
}

/* How many threads before this one hold, and how many in all; barriers around. */
DEVICE uint32_t holders_before(bool holds, uint32_t *all, struct fetch_shared &shared) {
    const uint32_t bits = warp_ballot(holds), warp = thread_index() / 32;
    block_barrier();
    if (lane_index() == 0) shared.counts[warp] = bits_count(bits);
    block_barrier();
    uint32_t before = bits_count(bits & ((1u << lane_index()) - 1));
    *all = 0;
    for (uint32_t i = 0; i < FETCH_WARPS; i++) {
        if (i < warp) before += shared.counts[i];
        *all += shared.counts[i];
    }
    return before;
}

DEVICE char *unit_home(const struct cuda_fetch_args &args, uint32_t place, uint32_t unit) {
    return (char *)chunk_at(at<struct cuda_pools>(args.pools), place) +
           unit % KV_CHUNK_BLOCKS * args.block_bytes;
}

/* A KV head's chunks in 4 bits. */
struct chunk_cache {
    struct unit_cache slots; /* of chunks */
    const uint32_t *pages;   /* their places; 0: it has rows */
    uint32_t complete;       /* chunks before it are not written any more */
    uint32_t device_pools;
};
DEVICE struct chunk_cache chunk_cache_of(const struct cuda_fetch_q4_args &args, const struct step_item *item,
                                         const struct unit_cache &units, uint32_t kv_head, uint64_t position) {
    const uint32_t *firsts = at<uint32_t>(args.firsts) + kv_head;
    const uint64_t first = firsts[0];
    struct chunk_cache q4;
    q4.slots.table = at<int32_t>(args.tables) + (uint64_t)kv_head * args.chunk_stride;
    q4.slots.owner = at<uint32_t>(args.owners) + first;
    q4.slots.stamp = at<uint32_t>(args.stamps) + first;
    q4.slots.used = at<uint8_t>(args.used) + first;
    q4.slots.slots = at<char>(args.slots) + first * args.chunk_bytes;
    q4.slots.addresses = units.addresses;
    q4.slots.count = firsts[1] - firsts[0];
    q4.slots.step = units.step;
    q4.pages = at<uint32_t>(item->q4_pages) + (uint64_t)kv_head * item->chunk_stride;
    q4.complete = (uint32_t)(position / KV_CHUNK_TOKENS);
    q4.device_pools = args.fetch.device_pools;
    return q4;
}

DEVICE bool chunk_is_near(const struct chunk_cache &q4, uint32_t chunk) {
    return q4.device_pools >> (q4.pages[chunk] >> 30) & 1;
}
/* Its slot, if it may have one; or UNIT_ABSENT. */
DEVICE int32_t chunk_slot(const struct chunk_cache &q4, uint32_t chunk) {
    return chunk < q4.complete && !chunk_is_near(q4, chunk) ? q4.slots.table[chunk] : UNIT_ABSENT;
}
/* It is read in 4 bits. */
DEVICE bool chunk_is_q4(const struct chunk_cache &q4, uint32_t chunk) {
    return q4.pages[chunk] != 0 || chunk_slot(q4, chunk) >= 0;
}

/* Its slot, as long as its chunk is not written; or UNIT_ABSENT. */
DEVICE int32_t unit_slot(const struct cuda_fetch_args &args, const struct unit_cache &cache, uint32_t unit,
                         uint32_t place, uint32_t complete_chunks) {
    const bool is_far = !(args.device_pools >> (place >> 30) & 1);
    return is_far && unit / KV_CHUNK_BLOCKS < complete_chunks ? cache.table[unit] : UNIT_ABSENT;
}

/* Hits get their addresses; misses, in the order of the list, go to shared.units and .places.  Q4: but for units of
 * chunks in 4 bits. */
template <bool Q4>
DEVICE struct fetch_result units_look_up(const struct cuda_fetch_args &args, const struct unit_cache &cache,
                                         const struct chunk_cache &q4, const uint32_t *rows, uint32_t count,
                                         const uint32_t *pages, uint32_t complete_chunks,
                                         struct fetch_shared &shared) {
    struct fetch_result result = {};
    for (uint32_t first = 0; first < count; first += FETCHERS) {
        const uint32_t i = first + thread_index(), unit = i < count ? rows[i * UNIT_TOKENS] / UNIT_TOKENS : 0,
                       chunk = unit / KV_CHUNK_BLOCKS;
        const bool is_listed = i < count && !(Q4 && chunk_is_q4(q4, chunk));
        const uint32_t place = is_listed ? pages[chunk] : 0, pool = place >> 30;
        const int32_t slot = is_listed ? unit_slot(args, cache, unit, place, complete_chunks) : UNIT_ABSENT;
        const bool is_there = slot >= 0 || (is_listed && pool != 0);
        const bool is_direct =
            is_there && slot < 0 && (chunk >= complete_chunks || (args.device_pools >> pool & 1));
        if (is_direct) cache.addresses[i] = (uint64_t)(uintptr_t)unit_home(args, place, unit);
        if (slot >= 0) {
            cache.stamp[slot] = cache.step;
            cache.used[slot] = 1;
            cache.addresses[i] =
                (uint64_t)(uintptr_t)(cache.slots + (uint64_t)(uint32_t)slot * args.block_bytes);
        }
        uint32_t all;
        (void)holders_before(is_direct, &all, shared);
        result.direct += all;
        (void)holders_before(slot >= 0, &all, shared);
        result.hits += all;
        (void)holders_before(is_listed && !is_there, &all, shared);
        if (is_listed && !is_there) cache.addresses[i] = 0;
        result.absent += all;
        const bool misses = is_there && !is_direct && slot < 0;
        const uint32_t number = (uint32_t)result.misses + holders_before(misses, &all, shared);
        if (misses && number < FETCH_MISSES_MAX)
            shared.units[number] = unit, shared.places[number] = i;
        else if (misses)
            cache.addresses[i] = (uint64_t)(uintptr_t)unit_home(args, place, unit);
        result.misses += all;
    }
    if (result.misses > FETCH_MISSES_MAX) {
        result.direct += result.misses - FETCH_MISSES_MAX;
        result.misses = FETCH_MISSES_MAX;
    }
    return result;
}

/* CLOCK: slots for `need` units into shared.victims; how many there are.  Of the slots from the hand on, this
 * step's are passed, in the first round also those used since the last visit. */
DEVICE uint32_t victims_find(const struct unit_cache &cache, uint32_t need, uint32_t *hand,
                             struct fetch_shared &shared) {
    uint32_t found = 0;
    const uint32_t start = *hand;
    if (thread_index() == 0) shared.hand = start;
    block_barrier(); /* the misses are written; all have read the hand, which the first thread may soon write */
    for (uint32_t round = 0; round < 2; round++)
        for (uint32_t passed = 0; passed < cache.count && found < need; passed += FETCHERS) {
            const uint32_t mine = passed + thread_index(), slot = (start + mine) % cache.count;
            const bool is_free = mine < cache.count && cache.stamp[slot] != cache.step;
            const bool takes = is_free && (round == 1 || !cache.used[slot]);
            uint32_t all;
            const uint32_t number = found + holders_before(takes, &all, shared);
            if (takes && number < need) {
                shared.victims[number] = slot;
                cache.stamp[slot] = cache.step; /* so that the second round passes it */
            }
            if (is_free && !takes && number < need) cache.used[slot] = 0; /* passed before the last victim */
            found = smaller(found + all, need);
            if (takes && number == found - 1)
                shared.hand = (slot + 1) % cache.count; /* the last so far */
            block_barrier();
        }
    *hand = shared.hand;
    return found;
}

/* The misses have their slots: the bytes of the first `found` of them are to come. */
DEVICE void victims_take(const struct unit_cache &cache, uint32_t found, const struct fetch_shared &shared) {
    for (uint32_t n = thread_index(); n < found;
         n += FETCHERS) { /* nobody's unit is a miss and another's victim: those are hits */
        const uint32_t slot = shared.victims[n], unit = shared.units[n], before = cache.owner[slot];
        if (before != SLOT_EMPTY) cache.table[before] = UNIT_ABSENT;
        cache.owner[slot] = unit;
        cache.table[unit] = (int32_t)slot;
        cache.used[slot] = 1;
    }
}

/* Units that are rows.  Q4: q4 are the KV head's chunks in 4 bits. */
template <bool Q4>
DEVICE void units_fetch(const struct cuda_fetch_args &args, const struct fetched_head &head,
                        const struct chunk_cache &q4, struct fetch_shared &shared) {
    const struct unit_cache &cache = head.cache;
    const uint32_t *pages = head.pages;
    const uint32_t kv_head = block_x(), t = thread_index();
    struct fetch_result result = units_look_up<Q4>(
        args, cache, q4, at<uint32_t>(head.list.rows), (head.list.count + UNIT_TOKENS - 1) / UNIT_TOKENS, pages,
        (uint32_t)(head.position / KV_CHUNK_TOKENS), shared);
    uint32_t hand = at<uint32_t>(args.hands)[kv_head];
    const uint32_t found = victims_find(cache, (uint32_t)result.misses, &hand, shared);
    victims_take(cache, found, shared);
    for (uint32_t n = t; n < found; n += FETCHERS)
        cache.addresses[shared.places[n]] =
            (uint64_t)(uintptr_t)(cache.slots + (uint64_t)shared.victims[n] * args.block_bytes) + SLOT_UNFILLED;
    for (uint32_t n = found + t; n < result.misses; n += FETCHERS) /* no slot is left */
        cache.addresses[shared.places[n]] =
            (uint64_t)(uintptr_t)unit_home(args, pages[shared.units[n] / KV_CHUNK_BLOCKS], shared.units[n]);
    result.direct += result.misses - found;
    result.misses = found;
    if (t == 0) {
        at<uint32_t>(args.hands)[kv_head] = hand;
        struct fetch_result *sum = at<struct fetch_result>(args.results) + kv_head;
        sum->hits += result.hits, sum->misses += result.misses;
        sum->direct += result.direct, sum->absent += result.absent;
    }
}

KERNEL(unit_fetch, cuda_fetch_args, 512, 1) {
    struct fetch_shared &shared = SHARED(struct fetch_shared);
    units_fetch<false>(args, fetched_head_of(args, block_x()), {}, shared);
}

/* ---- chunks in 4 bits */

/* A list's units, of which those of a chunk follow each other. */
struct unit_rows {
    const uint32_t *rows;
    uint32_t count; /* units */
};
DEVICE uint32_t listed_chunk(const struct unit_rows &list, uint32_t i) {
    return list.rows[i * UNIT_TOKENS] / KV_CHUNK_TOKENS;
}

DEVICE void q4_unit_put(const struct unit_cache &cache, const struct unit_rows &list, uint32_t i, const char *chunk) {
    cache.addresses[i] =
        (uint64_t)(uintptr_t)chunk | Q4_UNIT | list.rows[i * UNIT_TOKENS] % KV_CHUNK_TOKENS / UNIT_TOKENS;
}

DEVICE char *chunk_in_slot(const struct cuda_fetch_q4_args &args, const struct unit_cache &cache, uint32_t slot) {
    return cache.slots + (uint64_t)slot * args.chunk_bytes;
}

/* As units_look_up, of chunks: each is found, counted and missed by the first of its units. */
DEVICE struct fetch_result chunks_look_up(const struct cuda_fetch_q4_args &args, const struct chunk_cache &q4,
                                          const struct cuda_pools *pools, const struct unit_rows &list,
                                          struct fetch_shared &shared) {
    const struct unit_cache &cache = q4.slots;
    struct fetch_result result = {};
    for (uint32_t first = 0; first < list.count; first += FETCHERS) {
        const uint32_t i = first + thread_index(), chunk = i < list.count ? listed_chunk(list, i) : 0;
        const bool is_listed = i < list.count && chunk_is_q4(q4, chunk);
        const bool leads = is_listed && (i == 0 || listed_chunk(list, i - 1) != chunk);
        const int32_t slot = is_listed ? chunk_slot(q4, chunk) : UNIT_ABSENT;
        const bool misses = is_listed && slot < 0 && chunk < q4.complete && !chunk_is_near(q4, chunk);
        const bool is_direct = is_listed && slot < 0 && !misses;
        if (slot >= 0) q4_unit_put(cache, list, i, chunk_in_slot(args, cache, (uint32_t)slot));
        if (is_direct) q4_unit_put(cache, list, i, chunk_at(pools, q4.pages[chunk]));
        if (slot >= 0 && leads) {
            cache.used[slot] = 1;
            cache.stamp[slot] = cache.step;
        }
        uint32_t all;
        (void)holders_before(leads && slot >= 0, &all, shared);
        result.q4_hits += all;
        (void)holders_before(leads && is_direct, &all, shared);
        result.q4_direct += all;
        const uint32_t before = (uint32_t)result.q4_misses + holders_before(leads && misses, &all, shared),
                       number = before - !leads; /* of those that follow, the one that leads */
        if (misses && number >= FETCH_MISSES_MAX) q4_unit_put(cache, list, i, chunk_at(pools, q4.pages[chunk]));
        if (leads && misses && number < FETCH_MISSES_MAX) shared.units[number] = chunk, shared.places[number] = i;
        result.q4_misses += all;
    }
    if (result.q4_misses > FETCH_MISSES_MAX) {
        result.q4_direct += result.q4_misses - FETCH_MISSES_MAX;
        result.q4_misses = FETCH_MISSES_MAX;
    }
    return result;
}

DEVICE void chunks_fetch(const struct cuda_fetch_q4_args &args, const struct chunk_cache &q4,
                         const struct unit_rows &list, struct fetch_shared &shared) {
    const uint32_t kv_head = block_x(), t = thread_index();
    const struct cuda_pools *pools = at<struct cuda_pools>(args.fetch.pools);
    struct fetch_result result = chunks_look_up(args, q4, pools, list, shared);
    const uint32_t misses = (uint32_t)result.q4_misses;
    uint32_t hand = at<uint32_t>(args.hands)[kv_head];
    const uint32_t found = victims_find(q4.slots, misses, &hand, shared);
    victims_take(q4.slots, found, shared);
    for (uint32_t n = t; n < misses; n += FETCHERS) {
        const uint32_t chunk = shared.units[n];
        const char *there = n < found ? chunk_in_slot(args, q4.slots, shared.victims[n]) + Q4_UNFILLED
                                      : chunk_at(pools, q4.pages[chunk]);
        for (uint32_t i = shared.places[n]; i < list.count && listed_chunk(list, i) == chunk; i++)
            q4_unit_put(q4.slots, list, i, there);
    }
    if (t == 0) {
        at<uint32_t>(args.hands)[kv_head] = hand;
        struct fetch_result *sum = at<struct fetch_result>(args.fetch.results) + kv_head;
        sum->q4_hits += result.q4_hits, sum->q4_misses += found;
        sum->q4_direct += result.q4_direct + misses - found;
    }
}

KERNEL(unit_fetch_q4, cuda_fetch_q4_args, 512, 1) {
    struct fetch_shared &shared = SHARED(struct fetch_shared);
    const struct cuda_fetch_args &fetch = args.fetch;
    const struct fetched_head head = fetched_head_of(fetch, block_x());
    const struct chunk_cache q4 = chunk_cache_of(args, head.item, head.cache, block_x(), head.position);
    units_fetch<true>(fetch, head, q4, shared);
    chunks_fetch(args, q4, {at<uint32_t>(head.list.rows), (head.list.count + UNIT_TOKENS - 1) / UNIT_TOKENS}, shared);
}

/* ---- what a fetch would read in the host's memory */

/* Lists are short beside what their units hold, so a block goes through one. */
KERNEL(unit_missing, cuda_missing_args, 512, 1) {
    const struct cuda_fetch_args &fetch = args.fetch;
    const uint32_t kv_head = block_x();
    const struct fetched_head head = fetched_head_of(fetch, kv_head);
    uint8_t *missing = at<uint8_t>(args.missing) + (uint64_t)kv_head * fetch.list_stride;
    for (uint32_t i = thread_index(); i < (head.list.count + UNIT_TOKENS - 1) / UNIT_TOKENS; i += FETCHERS) {
        const uint32_t unit = at<uint32_t>(head.list.rows)[i * UNIT_TOKENS] / UNIT_TOKENS,
                       place = head.pages[unit / KV_CHUNK_BLOCKS];
        const bool is_near = fetch.device_pools >> (place >> 30) & 1;
        missing[i] =
            !is_near && unit_slot(fetch, head.cache, unit, place, (uint32_t)head.position / KV_CHUNK_TOKENS) < 0;
    }
}

KERNEL(unit_missing_q4, cuda_missing_q4_args, 512, 1) {
    const struct cuda_fetch_args &fetch = args.fetch.fetch;
    const uint32_t kv_head = block_x();
    const struct fetched_head head = fetched_head_of(fetch, kv_head);
    const struct chunk_cache q4 = chunk_cache_of(args.fetch, head.item, head.cache, kv_head, head.position);
    uint8_t *missing = at<uint8_t>(args.missing) + (uint64_t)kv_head * fetch.list_stride;
    for (uint32_t i = thread_index(); i < (head.list.count + UNIT_TOKENS - 1) / UNIT_TOKENS; i += FETCHERS) {
        const uint32_t unit = at<uint32_t>(head.list.rows)[i * UNIT_TOKENS] / UNIT_TOKENS,
                       chunk = unit / KV_CHUNK_BLOCKS, place = head.pages[chunk];
        const bool is_near = fetch.device_pools >> (place >> 30) & 1;
        missing[i] = chunk_is_q4(q4, chunk)
                         ? !chunk_is_near(q4, chunk) && chunk_slot(q4, chunk) < 0
                         : !is_near && unit_slot(fetch, head.cache, unit, place, q4.complete) < 0;
    }
}
