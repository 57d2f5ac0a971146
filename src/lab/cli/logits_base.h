/* logits_base: the next-token distributions of one model over one text, in a file, for another model (or
 * another setting) to be compared with.
 *
 * The layout is that of llama-perplexity's --kl-divergence-base, so that each program reads what the other
 * wrote.  Little-endian, without gaps:
 *
 *   8 bytes   "_logits_"
 *   u32       tokens of a window C (as given with -c)
 *   i32       vocabulary size V
 *   i32       windows W
 *   i32[W*C]  the text's tokens
 *   then for each place C/2 .. C-2 of each window:
 *     f32     step S
 *     f32     least log-probability L
 *     u16[V]  q: log-probability = L + S * q.  L is at most 16 below the largest (24 where loam writes), so a step is
 *             at most 24/65535 = 0.0004, and half of that the error of a log-probability.  q = 0 where the span is as
 *             wide as that: clamped, the log-probability is L or anything less.  49,152 such tokens would add 0.0055
 *             to the sum of probabilities at 16 nats, so L is what the writer's own sum gave and a reader must not
 *             normalise again, nor count clamped tokens in a KLD
 *     u16     0, where V is odd
 *
 * loam alone adds, behind what llama-perplexity reads, and checks where it is there:
 *
 *   8 bytes   "LOAMVOC1"
 *   u64       checksum of the vocabulary's fingerprint and C, V, W (fnv1a-64)
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "platform/file.h"

struct logits_base_head {
    uint32_t vocabulary_size, window_size, window_count;
};

/* Places C/2 .. C-2 of a window are scored: each has at least half a window before it. */
static inline uint32_t logits_base_first_scored(uint32_t window_size) { return window_size / 2; }

/* ---- writing ---- */

struct logits_base_writer {
    struct file_writer file;
    struct logits_base_head head;
    uint64_t fingerprint;
    uint16_t *codes; /* [vocabulary_size, rounded up to even], owned */
};

/* tokens: [window_count * window_size]; fingerprint: of the vocabulary */
enum status logits_base_create(struct logits_base_writer *writer, const char *path, const struct logits_base_head *head,
                               uint64_t fingerprint, const int32_t *tokens, struct error *error) STATUS_CHECKED;
/* The next place's logits (any offset: they are normalised here). */
enum status logits_base_write(struct logits_base_writer *writer, const float *logits, struct error *error)
    STATUS_CHECKED;
enum status logits_base_commit(struct logits_base_writer *writer, struct error *error) STATUS_CHECKED;
void logits_base_abort(struct logits_base_writer *writer); /* safe after commit and a failed create */

/* ---- reading ---- */

struct logits_base {
    struct logits_base_head head;
    struct file_map map;
    const int32_t *tokens; /* [window_count * window_size], borrowed from the map */
    const uint8_t *rows;
    const uint8_t *checksum; /* NULL in a file of llama-perplexity */
    char *path;              /* owned */
};

/* STATUS_DOCUMENT names the field: it is not a base, or damaged, or cut short. */
enum status logits_base_open(struct logits_base *base, const char *path, struct error *error) STATUS_CHECKED;
void logits_base_close(struct logits_base *base);
/* Whether it was made with a vocabulary of this fingerprint.  True if the file does not say. */
bool logits_base_matches(const struct logits_base *base, uint64_t fingerprint);
/* Log-probabilities of a scored place, 0 .. window_count * (window_size - 1 - first_scored) - 1.  *floor: those of at
 * most this were clamped; -INFINITY: none was.  STATUS_DOCUMENT, naming the place: the row's numbers are no
 * probabilities. */
enum status logits_base_read(const struct logits_base *base, uint64_t place,
                             float *log_probabilities /* [vocabulary_size] */, float *floor, struct error *error)
    STATUS_CHECKED;
