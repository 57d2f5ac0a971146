/* card: what the measurements of bench_card share: the device, times, and lines that say what was asserted.
 *
 * A line is "part,what,unit,value,spread,limit,asserted": the median of the rounds; (most - least) / median; what
 * bounds the value, in its unit; "ok: ..." or "FAILED: ...".  Over the fake driver value, spread and limit stay
 * empty. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/random.h"
#include "device/cuda/cuda_device_internal.h"
#include "device/cuda/graph.h"

struct card {
    struct device *device;
    struct cuda_device *cuda; /* the same */
    struct stream *stream;
    struct cuda_stream *queue; /* the stream's */
    const struct device_operations *operations;
    const char *part;
    bool is_small, is_fake;
    double copy_rate, link_rate; /* bytes a second; 0: not measured yet */
    size_t share, share_count;   /* of check: every share_count-th module, from that number on */
    struct random random;
    size_t failures;
};

/* Ends the program, with a FAILED line, where the device is broken or there is no memory. */
void card_require(struct card *card, enum status status, const struct error *error);
void card_synchronize(struct card *card);
void card_allocate(struct card *card, enum memory_kind kind, size_t bytes, struct buffer *buffer);
/* Floats [count] of a normal distribution in device memory; values (may be NULL) has them too. */
void card_fill_normal(struct card *card, struct buffer *buffer, size_t count, float deviation, float *values);
/* Bytes of 0xff, which are no numbers: what a kernel does not write shows. */
void card_fill_nan(struct card *card, const struct buffer *buffer);
void *card_memory(struct card *card, size_t bytes); /* of the host; never NULL */

/* ---- times ---- */

struct card_time {
    double seconds, spread; /* of one of `count` */
};
/* Of `count` things that a call of work does: a round to get warm, then five; each ends with a synchronisation. */
struct card_time card_time(struct card *card, void (*work)(void *context), void *context, size_t count);
/* The same for a recorded graph, launched `times` in a round. */
struct card_time card_time_graph(struct card *card, struct cuda_graph *graph, size_t times, size_t count);
/* Rounds of card_time, the first one included. */
size_t card_rounds(const struct card *card);

/* ---- lines ---- */

struct verdict {
    bool failed;
    char text[240]; /* what was asserted; where that failed, what was found first */
};
/* Adds to the text; once failed it stays as it is. */
void verdict_add(struct verdict *verdict, bool holds, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Launches since `before`, of which there must be as many as expected. */
void verdict_launches(struct verdict *verdict, const struct card *card, struct cuda_counts before,
                      uint64_t expected);
/* And products and attention by wgmma: as many on a card that has it, else none. */
void verdict_wgmma(struct verdict *verdict, const struct card *card, struct cuda_counts before, uint64_t expected);
/* |found - want| <= bound; only failures are told. */
void verdict_near(struct verdict *verdict, double found, double want, double bound, const char *what,
                  size_t at);

/* rate: of seconds; limit 0: none. */
void card_line(struct card *card, const char *what, const char *unit, double value, double spread,
               double limit, const struct verdict *verdict);
void card_left_out(const struct card *card, const char *what, const char *why);

/* ---- measurements, a file each ---- */

void bench_check(struct card *card);
void bench_copies(struct card *card);
void bench_link(struct card *card);
/* Without a line, for the limit of other lines. */
void copy_rate_measure(struct card *card);
void link_rate_measure(struct card *card);
void bench_launches(struct card *card);
void bench_matvec(struct card *card);
void bench_matmul(struct card *card);
void bench_attention(struct card *card);
void bench_fetch(struct card *card);
