/* bench_card [--small] card|check|limits|launches|matvec|attention|fetch|matmul [I N]: what a card of NVIDIA's does
 * with loam's kernels, through loam's own code, as lines of CSV (card.h).  `./do gpu` runs it.  card: what the card is,
 * for that script.  I N: of check every N-th module from number I on, so that N programs fill the driver's store of
 * what it has compiled. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "card.h"

static void card_print(struct card *card) {
    const struct cuda_properties *p = &card->cuda->context.properties;
    printf("name %s\nfake %d\nfree_mib %llu\n", p->name, card->is_fake,
           (unsigned long long)(device_memory_free(card->device) >> 20));
    printf("more compute %u.%u; %u multiprocessors; %llu MiB; CUDA %d.%d\n", p->capability / 10,
           p->capability % 10, p->multiprocessor_count, (unsigned long long)(p->memory_bytes >> 20),
           card->cuda->driver.version / 1000, card->cuda->driver.version % 1000 / 10);
}

static void limits_run(struct card *card) {
    bench_copies(card);
    bench_link(card);
}

static void matvec_run(struct card *card) {
    copy_rate_measure(card);
    link_rate_measure(card);
    bench_matvec(card);
}

static void attention_run(struct card *card) {
    copy_rate_measure(card);
    bench_attention(card);
}

static void fetch_run(struct card *card) {
    link_rate_measure(card);
    bench_fetch(card);
}

static const struct work {
    const char *name, *part; /* what is asked for; in the first column of its lines */
    void (*run)(struct card *card);
} WORKS[] = {{"card", "card", card_print},      {"check", "check", bench_check},
             {"limits", "limits", limits_run},  {"launches", "kernels", bench_launches},
             {"matvec", "kernels", matvec_run}, {"attention", "kernels", attention_run},
             {"fetch", "kernels", fetch_run},   {"matmul", "kernels", bench_matmul}};

static enum status card_open(struct card *card, struct error *error) {
    const struct cuda_device_options options = {.index = 0};
    TRY(device_cuda_create(&card->device, &options, error));
    card->operations = card->device->operations;
    card->cuda = (struct cuda_device *)card->device;
    card->is_fake = strncmp(card->cuda->context.properties.name, "Fake ", 5) == 0;
    TRY(card->operations->stream_create(card->device, &card->stream, error));
    card->queue = &card->stream->queue;
    return STATUS_OK;
}

int main(int argument_count, char **arguments) {
    struct card card = {.share_count = 1};
    const struct work *work = NULL;
    struct error error;
    int next = 1;
    if (argument_count > 1 && strcmp(arguments[1], "--small") == 0) card.is_small = true, next = 2;
    const bool is_share = argument_count == next + 3;
    if (is_share) {
        card.share = strtoul(arguments[next + 1], NULL, 10);
        card.share_count = strtoul(arguments[next + 2], NULL, 10);
    }
    for (size_t i = 0; i < sizeof WORKS / sizeof *WORKS && (is_share || argument_count == next + 1); i++)
        if (strcmp(WORKS[i].name, arguments[next]) == 0) work = &WORKS[i];
    if (work == NULL || card.share >= card.share_count) {
        fprintf(
            stderr,
            "usage: bench_card [--small] card|check|limits|launches|matvec|attention|fetch|matmul [I N]\n");
        return 2;
    }
    card.part = work->part;
    random_init(&card.random, 1);
    if (card_open(&card, &error) != STATUS_OK) {
        fprintf(stderr, "bench_card: %s\n", error.message);
        device_destroy(card.device);
        return 1;
    }
    work->run(&card);
    card.operations->stream_destroy(card.stream);
    device_destroy(card.device);
    return card.failures == 0 ? 0 : 1;
}
