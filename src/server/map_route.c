/* /v1/loam/map: where the chunks of the caller's sequence are, and what its last token did with them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/attention.h"
#include "cache/kv_watch.h"
#include "engine/engine.h"
#include "server/json_text.h"
#include "server/routes.h"

/* At once: each waits for the turn of the service that runs, and has a worker meanwhile. */
enum { READERS_MAX = 2 };

/* What is read between two turns of the service. */
struct reading {
    const char *owner;
    uint64_t since;
    size_t sequence_count;
    bool runs, found, selects;
    struct kv_map map;
    size_t layer_count, kv_head_count;
    uint64_t row_bytes;
    struct kv_tier_statistics tiers;
    struct device_counts device;
    struct fetch_counts fetched;
    struct service_levels levels;
    struct mass_receipt receipt;
    enum status status;
    struct error error;
};

/* The owner's sequence that runs, or else the one that was used last. */
static void read_map(void *context, struct engine *engine, const struct service_live *live, size_t live_count) {
    struct reading *reading = context;
    const struct service_live *shown = NULL;
    for (size_t i = 0; i < live_count; i++) {
        if (strcmp(live[i].owner, reading->owner) != 0 || live[i].sequence == NULL) continue;
        reading->sequence_count++;
        if (shown == NULL || shown->ticket == 0) shown = &live[i];
    }
    reading->selects = engine_selects(engine);
    reading->layer_count = model_stored_layers(engine_config(engine));
    reading->kv_head_count = engine_config(engine)->kv_head_count;
    reading->row_bytes = engine_kv_row_bytes(engine);
    reading->tiers = engine_tier_statistics(engine);
    reading->device = engine_device_counts(engine);
    reading->receipt = attention_statistics(engine_attention(engine)).receipt;
    if (shown == NULL) return;
    reading->found = true;
    reading->runs = shown->ticket != 0;
    struct kv_sequence *kv = sequence_kv(shown->sequence);
    reading->status = kv_sequence_read_map(kv, reading->since, &reading->map, &reading->error);
}

/* ---- as JSON ---- */

static json_t *counts_json(const struct kv_watch_counts *counts, uint64_t row_bytes) {
    json_t *object = json_object();
    json_put_counters(object, "", &kv_watch_counters, counts);
    json_put_uint(object, "attended_bytes", counts->rows * row_bytes);
    return object;
}

static json_t *chunks_json(const struct kv_map *map) {
    return JSON({"all", json_uint(map->chunks.all)}, {"ram", json_uint(map->chunks.in_ram)},
                {"disk", json_uint(map->chunks.saved)}, {"disk_only", json_uint(map->chunks.only_saved)},
                {"read", json_uint(map->chunks.read)}, {"attended", json_uint(map->chunks.attended)});
}

/* [offset, cells, ...] */
static json_t *changes_json(const struct kv_map *map) {
    json_t *changes = json_array();
    for (size_t i = 0; i < map->run_count; i++) {
        const struct kv_map_run run = map->runs[i];
        (void)json_array_append_new(changes, json_integer((json_int_t)run.first));
        (void)json_array_append_new(changes, json_stringn(map->cells + run.first, run.count));
    }
    return changes;
}

static json_t *receipt_json(const struct mass_receipt *receipt) {
    const struct mass_estimate mean = mass_receipt_mean(receipt);
    return JSON({"mean", json_number(mean.left_out)}, {"mean_error", json_number(mean.error)},
                {"worst_head", json_number(receipt->worst.left_out)}, {"sum", json_number(receipt->sum)},
                {"count", json_uint(receipt->count)});
}

static json_t *map_json(const struct reading *reading) {
    const struct kv_map *map = &reading->map;
    json_t *object = JSON({"object", json_string("loam.map")}, {"sequences", json_uint(reading->sequence_count)},
                          {"state", json_string(!reading->found  ? "none"
                                                : !reading->runs ? "idle"
                                                : map->has_token ? "answering"
                                                                 : "reading")});
    if (reading->receipt.count > 0) json_put(object, "receipt", receipt_json(&reading->receipt));
    if (reading->device.launches > 0) {
        json_put_counters(object, device_counters.prefix, &device_counters, &reading->device);
        JSON_PUT(object, {"kv_device_bytes", json_uint(reading->levels.kv_device_bytes)},
                 {"kv_unit_bytes", json_uint(reading->levels.kv_unit_bytes)});
        json_put_counters(object, fetch_counters.prefix, &fetch_counters, &reading->fetched);
    }
    if (!reading->found) return object;
    JSON_PUT(object, {"selects", json_boolean(reading->selects)}, {"number", json_uint(map->number)},
             {"tokens", json_uint(map->token_count)}, {"layers", json_uint(reading->layer_count)},
             {"kv_heads", json_uint(reading->kv_head_count)}, {"columns", json_uint(map->column_count)},
             {"column_tokens", json_uint(map->column_chunks * KV_CHUNK_TOKENS)}, {"chunks", chunks_json(map)},
             {"token", counts_json(&map->token, reading->row_bytes)});
    if (map->has_token) json_put_uint(object, "position", map->position);
    JSON_PUT(object, {"watched", counts_json(&map->watched, reading->row_bytes)},
             {"watched_tokens", json_uint(map->watched_tokens)},
             {"resident_layers", json_uint(reading->tiers.resident_layers)});
    if (map->has_changes) {
        JSON_PUT(object, {"changes", changes_json(map)}, {"late", json_uint(map->late_count)});
    } else {
        json_put(object, "cells", json_string(map->cells));
    }
    return object;
}

/* ?since=N: the number of the map that the caller has; 0: none. */
static uint64_t since_of(const struct exchange *exchange) {
    unsigned long long since = 0;
    return sscanf(exchange_query(exchange), "since=%19llu", &since) == 1 ? since : 0;
}

void map_route(struct server *server, struct exchange *exchange) {
    char owner[SERVICE_OWNER_MAX];
    struct reading reading = {.owner = server_owner(server, exchange_key(exchange), owner),
                              .since = since_of(exchange)};
    enum status status = STATUS_FULL;
    if (atomic_fetch_add(&server->map_readers, 1) < READERS_MAX)
        status = service_call(server->model.service, read_map, &reading, &reading.error);
    else
        (void)error_set(&reading.error, STATUS_FULL, "other maps are being read");
    atomic_fetch_sub(&server->map_readers, 1);
    if (status == STATUS_OK) status = reading.status;
    const struct service_statistics statistics = service_get_statistics(server->model.service);
    reading.fetched = statistics.fetched;
    reading.levels = statistics.levels;
    if (status == STATUS_OK)
        exchange_reply_json(exchange, 200, map_json(&reading));
    else
        exchange_reply_failure(exchange, &reading.error);
    kv_map_deinit(&reading.map);
}
