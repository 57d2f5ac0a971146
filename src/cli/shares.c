#include "cli/shares.h"

#include <stdio.h>

#include "cli/json_file.h"

static double part(uint64_t sixteenths) { return (double)sixteenths / PAGE_SHARE_WHOLE; }

double shares_mean(const struct page_shares *shares) {
    uint64_t sum = 0;
    for (size_t i = 0; i < shares->layer_count; i++) sum += shares->sixteenths[i];
    return part(sum) / (double)shares->layer_count;
}

const char *shares_text(const struct page_shares *shares, char text[SHARES_TEXT_BYTES]) {
    uint8_t least = PAGE_SHARE_WHOLE, most = 0;
    for (size_t i = 0; i < shares->layer_count; i++) {
        least = shares->sixteenths[i] < least ? shares->sixteenths[i] : least;
        most = shares->sixteenths[i] > most ? shares->sixteenths[i] : most;
    }
    int used = snprintf(text, SHARES_TEXT_BYTES, "%.2f", shares_mean(shares));
    if (least < most)
        snprintf(text + used, SHARES_TEXT_BYTES - (size_t)used, " (%.2f to %.2f by layer)", part(least),
                 part(most));
    return text;
}

json_t *shares_layers_json(const struct page_shares *shares) {
    json_t *layers = json_array();
    for (size_t i = 0; i < shares->layer_count; i++)
        json_array_append_new(layers, json_real(part(shares->sixteenths[i])));
    return layers;
}

void shares_print(const struct engine *engine, const struct sequence *sequence) {
    const struct page_shares *shares = sequence != NULL ? sequence_shares(sequence) : NULL;
    const struct page_costs *costs = engine_page_costs(engine);
    char text[SHARES_TEXT_BYTES];
    if (shares == NULL) return;
    fprintf(stderr, "loam: pages in 4 bits: %s", shares_text(shares, text));
    if (costs != NULL)
        fprintf(stderr,
                ", chosen by: a page read in %.1f us, in 4 bits in %.1f; attended to in %.1f us, in 4 bits "
                "in %.1f",
                costs->disk.tail_seconds * 1e6, costs->disk.page_seconds * 1e6, costs->rows_attend * 1e6,
                costs->quantized_attend * 1e6);
    if (costs != NULL && costs->layer > 0) fprintf(stderr, "; a layer in %.2f ms", costs->layer * 1e3);
    fprintf(stderr, "\n");
}

json_t *shares_json(const struct engine *engine, const struct sequence *sequence) {
    const struct page_shares *shares = sequence != NULL ? sequence_shares(sequence) : NULL;
    const struct page_costs *costs = engine_page_costs(engine);
    if (shares == NULL) return NULL;
    json_t *object = json_object(), *measured = json_null();
    json_add_number(object, "share", shares_mean(shares));
    json_add(object, "layers", shares_layers_json(shares));
    if (costs != NULL) {
        measured = json_object();
        json_add_number(measured, "page_seconds", costs->disk.tail_seconds);
        json_add_number(measured, "packed_page_seconds", costs->disk.page_seconds);
        json_add_number(measured, "packed_page_alone_seconds", costs->disk.alone_seconds);
        json_add_number(measured, "attend_seconds", costs->rows_attend);
        json_add_number(measured, "quantized_attend_seconds", costs->quantized_attend);
        json_add_number(measured, "decode_seconds", costs->decode);
        json_add_number(measured, "layer_seconds", costs->layer);
    }
    json_add(object, "measured", measured);
    return object;
}
