/* logits_base: the next-token distributions of one model over one text, in a file, for another model (or
 * another setting) to be compared with.
 *
 * Layout, little-endian, without gaps:
 *
 *   8 bytes   "LOAMBASE"
 *   u32       version, 1
 *   u32       vocabulary size V
 *   u32       tokens of a window C (as given with -c)
 *   u32       windows W
 *   u32       first scored place F of a window; places F .. C-2 are scored
 *   u32       1 when a window's first token is replaced by BOS, else 0
 *   u64       checksum of the vocabulary's fingerprint and the fields above (fnv1a-64)
 *   i32[W*C]  the text's tokens
 *   then per scored place, W * (C - 1 - F) of them:
 *     f32     largest log-probability M (for other readers: a row read back here is normalised again)
 *     f32     step S
 *     u16[V]  q: log-probability = M - S * q, at most 24 below M (what is less likely counts as that)
 *
 * A step is at most 24/65535 = 0.0004, and half of that the error of a log-probability.
 */
#ifndef LOAM_CLI_LOGITS_BASE_H
#define LOAM_CLI_LOGITS_BASE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "platform/file.h"

struct logits_base_head {
    uint32_t vocabulary_size, window_size, window_count, first_scored;
    bool adds_bos;
    uint64_t fingerprint; /* of the vocabulary when writing; the stored checksum when read */
};

/* ---- writing ---- */

struct logits_base_writer {
    struct file_writer file;
    uint16_t *codes; /* [vocabulary_size], owned */
    uint32_t vocabulary_size;
};

/* tokens: [window_count * window_size] */
enum status logits_base_create(struct logits_base_writer *writer, const char *path,
                               const struct logits_base_head *head, const int32_t *tokens,
                               struct error *error) STATUS_CHECKED;
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
};

/* STATUS_DOCUMENT, naming the field, when it is no base, damaged, cut short or of another version. */
enum status logits_base_open(struct logits_base *base, const char *path, struct error *error) STATUS_CHECKED;
void logits_base_close(struct logits_base *base);
/* Made with a vocabulary of this fingerprint? */
bool logits_base_matches(const struct logits_base *base, uint64_t fingerprint);
/* Log-probabilities of a scored place, 0 .. window_count * (window_size - 1 - first_scored) - 1. */
void logits_base_read(const struct logits_base *base, uint64_t place,
                      float *log_probabilities /* [vocabulary_size] */);

#endif
