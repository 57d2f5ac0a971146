/* How long pages of this disk take to be read, as the host tier reads them: at random, many at once. */
#include <string.h>

#include "base/checked.h"
#include "cache/store/store_internal.h"
#include "rates/rates.h"

enum { ROUNDS = 3, ALONE = 16 /* pages that are read one after another */ };
static const uint64_t ROUND_NS = 8000000;

/* In turns, so that what else the disk does is not in one of the numbers alone. */
static enum status measure(struct disk_probe *probe, const struct geometry *geometry, struct store_rates *rates,
                           struct error *error) {
    const size_t sizes[] = {geometry->page_bytes, geometry->tail_page_bytes};
    struct rate found[2] = {{.count = 0}}, alone = {.count = 0};
    for (int round = 0; round < ROUNDS; round++)
        for (size_t i = 0; i < 2; i++)
            TRY(disk_probe_read(
                probe,
                &(struct disk_probe_round){
                    .bytes = sizes[i], .depth = DISK_PROBE_DEPTH, .reads_min = DISK_PROBE_DEPTH, .ns_min = ROUND_NS},
                &found[i], error));
    TRY(disk_probe_read(probe,
                        &(struct disk_probe_round){.bytes = geometry->page_bytes, .depth = 1, .reads_min = ALONE},
                        &alone, error));
    *rates = (struct store_rates){rate_seconds(&found[0]), rate_seconds(&found[1]), rate_seconds(&alone)};
    /* Less to read is no slower: what says otherwise was something else. */
    if (geometry->page_bytes <= geometry->tail_page_bytes && rates->page_seconds > rates->tail_seconds)
        rates->page_seconds = rates->tail_seconds;
    return STATUS_OK;
}

/* In a transaction: others that want to reserve space wait until the file is gone. */
static enum status measure_within(struct store *store, const struct disk_probe_options *options,
                                  const struct geometry *geometry, struct store_rates *rates, struct error *error) {
    struct disk_probe *probe = NULL;
    TRY(catalog_begin(&store->catalog, error));
    enum status status = store_check_space(store, options->bytes, error);
    if (status == STATUS_OK) status = disk_probe_open(&probe, options, NULL, error);
    if (status == STATUS_OK) status = measure(probe, geometry, rates, error);
    disk_probe_close(probe);
    catalog_rollback(&store->catalog);
    return status;
}

enum status store_measure(struct store *store, const struct store_layout *layout, uint64_t token_capacity,
                          uint64_t bytes, struct store_rates *rates, struct error *error) {
    struct geometry geometry;
    struct store_layout smallest = *layout;
    smallest.fractions.later_count = 0;
    memset(smallest.fractions.sixteenths, PAGE_FRACTION_WHOLE, smallest.fractions.layer_count);
    geometry_init(&geometry, &smallest);
    const uint64_t bytes_max = document_bytes_max(&geometry, token_capacity);
    const size_t place = max_size(geometry.page_bytes, geometry.tail_page_bytes);
    TRY(store_make_space(store, bytes_max, error));
    const struct disk_probe_options options = {.folder = &store->folder,
                                               .bytes = (bytes < bytes_max ? bytes : bytes_max) / place * place,
                                               .place_bytes = place,
                                               .backend = store->options.backend};
    return measure_within(store, &options, &geometry, rates, error);
}
