#include "cli/page_fractions.h"

#include <math.h>
#include <stdio.h>

#include "kernels/attention/kv_layout.h"
#include "server/json_text.h"

/* Of less than a segment: what its pages will have.  The first page of a head counts as what it would be: that it is
 * rows whatever the fraction says is no choice of anybody. */
static double part(const struct page_fractions *fractions, size_t layer, uint64_t token_count) {
    const uint64_t segment = PAGE_FRACTION_WHOLE, chunks = token_count / KV_CHUNK_TOKENS;
    const uint64_t whole = chunks < segment ? segment : chunks / segment * segment;
    const uint64_t quantized =
        page_fractions_before(fractions, layer, 0, 1, whole) + page_fractions_kept(fractions, layer, 1, 1);
    return (double)quantized / (double)whole;
}

double fractions_mean(const struct page_fractions *fractions, uint64_t token_count) {
    double sum = 0;
    for (size_t i = 0; i < fractions->layer_count; i++) sum += part(fractions, i, token_count);
    return sum / (double)fractions->layer_count;
}

const char *fractions_text(const struct page_fractions *fractions, uint64_t token_count,
                           char text[FRACTIONS_TEXT_BYTES]) {
    double smallest = 1, largest = 0;
    for (size_t i = 0; i < fractions->layer_count; i++) {
        const double layer = part(fractions, i, token_count);
        smallest = fmin(smallest, layer);
        largest = fmax(largest, layer);
    }
    int used = snprintf(text, FRACTIONS_TEXT_BYTES, "%.2f", fractions_mean(fractions, token_count));
    if (smallest < largest)
        snprintf(text + used, FRACTIONS_TEXT_BYTES - (size_t)used, " (%.2f to %.2f by layer)", smallest, largest);
    return text;
}

json_t *fractions_layers_json(const struct page_fractions *fractions, uint64_t token_count) {
    json_t *layers = json_array();
    for (size_t i = 0; i < fractions->layer_count; i++)
        json_array_append_new(layers, json_real(part(fractions, i, token_count)));
    return layers;
}

void fractions_print(const struct engine *engine, const struct sequence *sequence) {
    const struct page_fractions *fractions = sequence != NULL ? sequence_fractions(sequence) : NULL;
    const struct page_costs *costs = engine_page_costs(engine);
    char text[FRACTIONS_TEXT_BYTES];
    if (fractions == NULL) return;
    fprintf(stderr, "loam: pages in 4 bits: %s", fractions_text(fractions, sequence_length(sequence), text));
    if (costs != NULL)
        fprintf(stderr,
                ", chosen by: a page read in %.1f us, in 4 bits in %.1f; attended to in %.1f us, in 4 bits "
                "in %.1f",
                costs->disk.tail_seconds * 1e6, costs->disk.page_seconds * 1e6, costs->rows_attend * 1e6,
                costs->quantized_attend * 1e6);
    if (costs != NULL && costs->layer > 0) fprintf(stderr, "; a layer in %.2f ms", costs->layer * 1e3);
    fprintf(stderr, "\n");
}

json_t *fractions_json(const struct engine *engine, const struct sequence *sequence) {
    const struct page_fractions *fractions = sequence != NULL ? sequence_fractions(sequence) : NULL;
    const struct page_costs *costs = engine_page_costs(engine);
    if (fractions == NULL) return NULL;
    json_t *measured = json_null();
    json_t *object = JSON({"quantized_fraction", json_number(fractions_mean(fractions, sequence_length(sequence)))},
                          {"layers", fractions_layers_json(fractions, sequence_length(sequence))});
    if (costs != NULL) {
        measured = json_object();
        JSON_PUT(measured, {"page_seconds", json_number(costs->disk.tail_seconds)},
                 {"quantized_page_seconds", json_number(costs->disk.page_seconds)},
                 {"quantized_page_alone_seconds", json_number(costs->disk.alone_seconds)},
                 {"attend_seconds", json_number(costs->rows_attend)},
                 {"quantized_attend_seconds", json_number(costs->quantized_attend)},
                 {"decode_seconds", json_number(costs->decode)}, {"layer_seconds", json_number(costs->layer)});
    }
    json_put(object, "measured", measured);
    return object;
}
