#include "cli/page_fractions.h"

#include <stdio.h>

#include "cli/json_file.h"

static double part(uint64_t sixteenths) { return (double)sixteenths / PAGE_FRACTION_WHOLE; }

double fractions_mean(const struct page_fractions *fractions) {
    uint64_t sum = 0;
    for (size_t i = 0; i < fractions->layer_count; i++) sum += fractions->sixteenths[i];
    return part(sum) / (double)fractions->layer_count;
}

const char *fractions_text(const struct page_fractions *fractions, char text[FRACTIONS_TEXT_BYTES]) {
    uint8_t smallest = PAGE_FRACTION_WHOLE, largest = 0;
    for (size_t i = 0; i < fractions->layer_count; i++) {
        smallest = fractions->sixteenths[i] < smallest ? fractions->sixteenths[i] : smallest;
        largest = fractions->sixteenths[i] > largest ? fractions->sixteenths[i] : largest;
    }
    int used = snprintf(text, FRACTIONS_TEXT_BYTES, "%.2f", fractions_mean(fractions));
    if (smallest < largest)
        snprintf(text + used, FRACTIONS_TEXT_BYTES - (size_t)used, " (%.2f to %.2f by layer)", part(smallest),
                 part(largest));
    return text;
}

json_t *fractions_layers_json(const struct page_fractions *fractions) {
    json_t *layers = json_array();
    for (size_t i = 0; i < fractions->layer_count; i++)
        json_array_append_new(layers, json_real(part(fractions->sixteenths[i])));
    return layers;
}

void fractions_print(const struct engine *engine, const struct sequence *sequence) {
    const struct page_fractions *fractions = sequence != NULL ? sequence_fractions(sequence) : NULL;
    const struct page_costs *costs = engine_page_costs(engine);
    char text[FRACTIONS_TEXT_BYTES];
    if (fractions == NULL) return;
    fprintf(stderr, "loam: pages in 4 bits: %s", fractions_text(fractions, text));
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
    json_t *object = json_object(), *measured = json_null();
    json_add_number(object, "quantized_fraction", fractions_mean(fractions));
    json_add(object, "layers", fractions_layers_json(fractions));
    if (costs != NULL) {
        measured = json_object();
        json_add_number(measured, "page_seconds", costs->disk.tail_seconds);
        json_add_number(measured, "quantized_page_seconds", costs->disk.page_seconds);
        json_add_number(measured, "quantized_page_alone_seconds", costs->disk.alone_seconds);
        json_add_number(measured, "attend_seconds", costs->rows_attend);
        json_add_number(measured, "quantized_attend_seconds", costs->quantized_attend);
        json_add_number(measured, "decode_seconds", costs->decode);
        json_add_number(measured, "layer_seconds", costs->layer);
    }
    json_add(object, "measured", measured);
    return object;
}
