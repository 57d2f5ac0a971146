#include "card.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "platform/clock.h"

enum { ROUNDS = 5 };

/* ---- lines ---- */

void verdict_add(struct verdict *verdict, bool holds, const char *format, ...) {
    if (verdict->failed) return;
    verdict->failed = !holds;
    const size_t used = holds ? strlen(verdict->text) : 0;
    va_list list;
    va_start(list, format);
    vsnprintf(verdict->text + used, sizeof verdict->text - used, format, list);
    va_end(list);
    for (char *c = verdict->text; *c != '\0'; c++)
        if (*c == ',' || *c == '\n') *c = ';'; /* it is one field */
}

void verdict_launches(struct verdict *verdict, const struct card *card, struct cuda_counts before,
                      uint64_t expected) {
    const uint64_t found = device_cuda_counts(card->device).launches - before.launches;
    verdict_add(verdict, found == expected, "%llu launches%s", (unsigned long long)found,
                found == expected ? "" : ": other than expected");
}

void verdict_wgmma(struct verdict *verdict, const struct card *card, struct cuda_counts before, uint64_t expected) {
    const uint64_t found = device_cuda_counts(card->device).wgmma_products - before.wgmma_products;
    const bool has_wgmma = card->cuda->context.properties.capability == 90;
    verdict_add(verdict, found == (has_wgmma ? expected : 0), "; %llu by wgmma", (unsigned long long)found);
}

void verdict_near(struct verdict *verdict, double found, double want, double bound, const char *what,
                  size_t at) {
    if (!(fabs(found - want) <= bound)) /* NaN, too */
        verdict_add(verdict, false, "%s %zu is %g: expected %g by %g at most", what, at, found, want, bound);
}

void card_line(struct card *card, const char *what, const char *unit, double value, double spread,
               double limit, const struct verdict *verdict) {
    printf("%s,%s,%s,", card->part, what, unit);
    if (card->is_fake)
        printf(",,");
    else
        printf("%.4g,%.1f%%,", value, spread * 100);
    if (limit > 0 && !card->is_fake) printf("%.4g", limit);
    printf(",%s: %s\n", verdict->failed ? "FAILED" : "ok", verdict->text);
    fflush(stdout);
    card->failures += verdict->failed;
}

void card_left_out(const struct card *card, const char *what, const char *why) {
    printf("%s,%s,,,,,left out: %s\n", card->part, what, why);
    fflush(stdout);
}

/* ---- the device ---- */

void card_require(struct card *card, enum status status, const struct error *error) {
    struct verdict verdict = {.failed = false};
    if (status == STATUS_OK) return;
    verdict_add(&verdict, false, "%s", error->message);
    card_line(card, "the device", "", 0, 0, 0, &verdict);
    exit(1); /* nothing works any more */
}

void card_synchronize(struct card *card) {
    struct error error;
    card_require(card, card->operations->stream_synchronize(card->stream, &error), &error);
}

void card_allocate(struct card *card, enum memory_kind kind, size_t bytes, struct buffer *buffer) {
    struct error error;
    card_require(card, card->operations->allocate(card->device, kind, bytes, buffer, &error), &error);
}

void *card_memory(struct card *card, size_t bytes) {
    struct error error;
    void *memory = malloc(bytes);
    if (memory == NULL) card_require(card, error_set(&error, STATUS_MEMORY, "no memory"), &error);
    return memory;
}

void card_fill_normal(struct card *card, struct buffer *buffer, size_t count, float deviation,
                      float *values) {
    float *made = values != NULL ? values : card_memory(card, count * sizeof *made);
    for (size_t i = 0; i < count; i++) made[i] = deviation * (float)random_normal(&card->random);
    card_allocate(card, MEMORY_DEVICE, count * sizeof *made, buffer);
    card->operations->upload(card->stream, span_of(buffer, 0), made, count * sizeof *made);
    if (values == NULL) free(made);
}

void card_fill_nan(struct card *card, const struct buffer *buffer) {
    cuda_stream_fill(card->queue, buffer->address, 0xff, buffer->bytes);
}

/* ---- times ---- */

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

size_t card_rounds(const struct card *card) { return card->is_small ? 2 : ROUNDS + 1; }

struct card_time card_time(struct card *card, void (*work)(void *context), void *context, size_t count) {
    double seconds[ROUNDS];
    const size_t rounds = card_rounds(card) - 1;
    work(context);
    card_synchronize(card);
    for (size_t i = 0; i < rounds; i++) {
        const double begin = clock_seconds();
        work(context);
        card_synchronize(card);
        seconds[i] = (clock_seconds() - begin) / (double)count;
    }
    qsort(seconds, rounds, sizeof *seconds, compare_doubles);
    return (struct card_time){seconds[rounds / 2], (seconds[rounds - 1] - seconds[0]) / seconds[rounds / 2]};
}

struct replays {
    struct cuda_graph *graph;
    struct cuda_stream *queue;
    size_t times;
};

static void replay(void *context) {
    const struct replays *replays = context;
    for (size_t i = 0; i < replays->times; i++) cuda_graph_launch(replays->graph, replays->queue);
}

struct card_time card_time_graph(struct card *card, struct cuda_graph *graph, size_t times, size_t count) {
    struct replays replays = {graph, card->queue, times};
    return card_time(card, replay, &replays, times * count);
}
