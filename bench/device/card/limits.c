/* What bounds everything else: the rate of device memory and of the link. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "card.h"

enum { EDGE = 64 << 10 }; /* bytes at either end of a copy that are compared */

/* ---- within device memory ---- */

struct copies {
    struct card *card;
    struct buffer from, to;
    size_t bytes, count;
};

static void copies_run(void *context) {
    const struct copies *c = context;
    for (size_t i = 0; i < c->count; i++)
        cuda_stream_copy(c->card->queue, c->to.address, c->from.address, c->bytes);
}

static void edge_check(struct card *card, const struct copies *c, size_t offset, struct verdict *verdict) {
    uint8_t *read[2] = {card_memory(card, EDGE), card_memory(card, EDGE)};
    card->operations->download(card->stream, read[0], span_of(&c->from, offset), EDGE);
    card->operations->download(card->stream, read[1], span_of(&c->to, offset), EDGE);
    card_synchronize(card);
    if (memcmp(read[0], read[1], EDGE) != 0) verdict_add(verdict, false, "other bytes at %zu", offset);
    free(read[0]), free(read[1]);
}

static struct card_time copies_measure(struct card *card, struct copies *c, struct verdict *verdict) {
    struct buffer edge;
    card_allocate(card, MEMORY_DEVICE, c->bytes, &c->from);
    card_allocate(card, MEMORY_DEVICE, c->bytes, &c->to);
    card_fill_normal(card, &edge, EDGE / sizeof(float), 1, NULL);
    for (size_t i = 0; i < 2; i++)
        cuda_stream_copy(card->queue, c->from.address + i * (c->bytes - EDGE), edge.address, EDGE);
    card_fill_nan(card, &c->to);
    card_synchronize(card);
    const struct cuda_counts before = device_cuda_counts(card->device);
    const struct card_time time = card_time(card, copies_run, c, c->count);
    const uint64_t copied = device_cuda_counts(card->device).copied_bytes - before.copied_bytes;
    const uint64_t expected = card_rounds(card) * c->count * c->bytes;
    verdict_add(verdict, copied == expected, "%llu bytes copied", (unsigned long long)copied);
    edge_check(card, c, 0, verdict);
    edge_check(card, c, c->bytes - EDGE, verdict);
    card->operations->release(card->device, &edge);
    card->operations->release(card->device, &c->from);
    card->operations->release(card->device, &c->to);
    card->copy_rate = 2 * (double)c->bytes / time.seconds; /* read and written */
    return time;
}

static struct copies copies_of(struct card *card) {
    return (struct copies){
        .card = card, .bytes = (size_t)1 << (card->is_small ? 18 : 30), .count = card->is_small ? 2 : 8};
}

void copy_rate_measure(struct card *card) {
    struct copies c = copies_of(card);
    struct verdict verdict = {.failed = false};
    (void)copies_measure(card, &c, &verdict);
}

void bench_copies(struct card *card) {
    struct copies c = copies_of(card);
    struct verdict verdict = {.failed = false};
    const struct card_time time = copies_measure(card, &c, &verdict);
    card_line(card, "copy within device memory", "GB/s", card->copy_rate * 1e-9, time.spread, 0, &verdict);
}

/* ---- over the link ---- */

struct crossing {
    struct card *card;
    uint64_t target, source;
    size_t bytes, count;
};

/* One copy, waited for: what a single transfer of that size reaches. */
static void crossings_run(void *context) {
    const struct crossing *c = context;
    for (size_t i = 0; i < c->count; i++) {
        cuda_stream_copy(c->card->queue, c->target, c->source, c->bytes);
        if (i + 1 < c->count) card_synchronize(c->card);
    }
}

struct link_rig {
    struct buffer there, back, card; /* pinned, pinned, the card's */
};

static void link_rig_make(struct card *card, struct link_rig *rig, size_t bytes) {
    card_allocate(card, MEMORY_SHARED, bytes, &rig->there);
    card_allocate(card, MEMORY_SHARED, bytes, &rig->back);
    card_allocate(card, MEMORY_DEVICE, bytes, &rig->card);
    uint64_t *words = rig->there.host;
    for (size_t i = 0; i < bytes / sizeof *words; i++) words[i] = i * UINT64_C(0x9e3779b97f4a7c15);
    memset(rig->back.host, 0, bytes);
}

static void link_rig_free(struct card *card, struct link_rig *rig) {
    card->operations->release(card->device, &rig->there);
    card->operations->release(card->device, &rig->back);
    card->operations->release(card->device, &rig->card);
}

static void size_text(size_t bytes, char *text, size_t text_bytes) {
    if (bytes >= (1 << 20))
        snprintf(text, text_bytes, "%zu MiB", bytes >> 20);
    else
        snprintf(text, text_bytes, "%zu KiB", bytes >> 10);
}

/* There, and then back, which shows that it has arrived. */
static void size_bench(struct card *card, const struct link_rig *rig, size_t bytes, bool has_lines) {
    struct crossing c = {.card = card, .bytes = bytes};
    c.count = card->is_small ? 2 : min_size(max_size(((size_t)256 << 20) / bytes, 2), 64);
    for (size_t back = 0; back < 2; back++) {
        char size[32], what[64];
        struct verdict verdict = {.failed = false};
        c.source = back ? rig->card.address : rig->there.address;
        c.target = back ? rig->back.address : rig->card.address;
        const struct cuda_counts before = device_cuda_counts(card->device);
        const struct card_time time = card_time(card, crossings_run, &c, c.count);
        const struct cuda_counts after = device_cuda_counts(card->device);
        verdict_add(&verdict, after.copied_bytes - before.copied_bytes == card_rounds(card) * c.count * bytes,
                    "%llu bytes copied", (unsigned long long)(after.copied_bytes - before.copied_bytes));
        if (!back) {
            card->link_rate = (double)bytes / time.seconds;
            cuda_stream_copy(card->queue, rig->back.address, rig->card.address, bytes);
            card_synchronize(card);
        }
        if (memcmp(rig->back.host, rig->there.host, bytes) != 0)
            verdict_add(&verdict, false, "other bytes have arrived");
        memset(rig->back.host, 0, bytes);
        size_text(bytes, size, sizeof size);
        snprintf(what, sizeof what, "%s %s", back ? "device to host" : "host to device", size);
        if (has_lines)
            card_line(card, what, "GB/s", (double)bytes / time.seconds * 1e-9, time.spread, 0, &verdict);
    }
}

static const size_t SIZES[] = {64 << 10, 1 << 20, 16 << 20, 256 << 20};

void bench_link(struct card *card) {
    const size_t count = card->is_small ? 2 : sizeof SIZES / sizeof *SIZES;
    struct link_rig rig;
    link_rig_make(card, &rig, SIZES[count - 1]);
    for (size_t i = 0; i < count; i++) size_bench(card, &rig, SIZES[i], true);
    link_rig_free(card, &rig);
}

void link_rate_measure(struct card *card) {
    const size_t bytes = SIZES[card->is_small ? 0 : 3];
    struct link_rig rig;
    link_rig_make(card, &rig, bytes);
    size_bench(card, &rig, bytes, false);
    link_rig_free(card, &rig);
}
