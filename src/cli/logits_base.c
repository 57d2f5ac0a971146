#include "cli/logits_base.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "eval/divergence.h"

enum { HEAD_BYTES = 40, VERSION = 1, CODE_MOST = 65535 };
static const char magic[8] = {'L', 'O', 'A', 'M', 'B', 'A', 'S', 'E'};
static const float range_most = 24;

static uint64_t fnv1a(uint64_t hash, const void *bytes, size_t length) {
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static uint64_t head_checksum(const struct logits_base_head *head) {
    uint32_t fields[] = {
        VERSION,       head->vocabulary_size, head->window_size, head->window_count, head->first_scored,
        head->adds_bos};
    uint64_t hash = fnv1a(UINT64_C(0xcbf29ce484222325), &head->fingerprint, sizeof head->fingerprint);
    return fnv1a(hash, fields, sizeof fields);
}

/* ---- writing ---- */

static enum status put(struct logits_base_writer *writer, const void *bytes, size_t length,
                       struct error *error) {
    errno = 0;
    if (fwrite(bytes, 1, length, writer->file.stream) != length)
        return error_set_os(error, STATUS_IO, errno, "%s", writer->file.path);
    return STATUS_OK;
}

enum status logits_base_create(struct logits_base_writer *writer, const char *path,
                               const struct logits_base_head *head, const int32_t *tokens,
                               struct error *error) {
    *writer = (struct logits_base_writer){.vocabulary_size = head->vocabulary_size};
    writer->codes = calloc(head->vocabulary_size, sizeof *writer->codes);
    if (writer->codes == NULL) return error_set(error, STATUS_MEMORY, "%s: out of memory", path);
    TRY(file_writer_open(&writer->file, path, error));
    uint32_t fields[] = {
        VERSION,       head->vocabulary_size, head->window_size, head->window_count, head->first_scored,
        head->adds_bos};
    uint64_t checksum = head_checksum(head);
    TRY(put(writer, magic, sizeof magic, error));
    TRY(put(writer, fields, sizeof fields, error));
    TRY(put(writer, &checksum, sizeof checksum, error));
    return put(writer, tokens, (size_t)head->window_count * head->window_size * sizeof *tokens, error);
}

enum status logits_base_write(struct logits_base_writer *writer, const float *logits, struct error *error) {
    uint32_t count = writer->vocabulary_size;
    float most = logits[0], least = logits[0];
    for (uint32_t i = 1; i < count; i++) {
        most = logits[i] > most ? logits[i] : most;
        least = logits[i] < least ? logits[i] : least;
    }
    double sum = 0;
    for (uint32_t i = 0; i < count; i++) sum += (double)expf(logits[i] - most);
    float range = most - least < range_most ? most - least : range_most;
    float row[2] = {(float)-log(sum), range > 0 ? range / CODE_MOST : 1};
    for (uint32_t i = 0; i < count; i++) {
        float code = (most - logits[i]) / row[1] + 0.5F;
        writer->codes[i] = code < CODE_MOST ? (uint16_t)code : CODE_MOST;
    }
    TRY(put(writer, row, sizeof row, error));
    return put(writer, writer->codes, count * sizeof *writer->codes, error);
}

enum status logits_base_commit(struct logits_base_writer *writer, struct error *error) {
    free(writer->codes);
    writer->codes = NULL;
    return file_writer_commit(&writer->file, error);
}

void logits_base_abort(struct logits_base_writer *writer) {
    free(writer->codes);
    writer->codes = NULL;
    file_writer_abort(&writer->file);
}

/* ---- reading ---- */

static uint64_t row_bytes(const struct logits_base_head *head) {
    return 2 * sizeof(float) + (uint64_t)head->vocabulary_size * sizeof(uint16_t);
}

static enum status check_head(struct logits_base *base, const char *path, struct error *error) {
    const uint8_t *data = base->map.data;
    struct logits_base_head *head = &base->head;
    uint32_t fields[6];
    uint64_t checksum;
    if (base->map.size_bytes < HEAD_BYTES || memcmp(data, magic, sizeof magic) != 0)
        return error_set(error, STATUS_DOCUMENT, "%s: not a base of `loam perplexity`", path);
    memcpy(fields, data + 8, sizeof fields);
    memcpy(&checksum, data + 32, sizeof checksum);
    if (fields[0] != VERSION)
        return error_set(error, STATUS_DOCUMENT, "%s: version: found %u, expected %d", path, fields[0],
                         VERSION);
    *head = (struct logits_base_head){fields[1], fields[2], fields[3], fields[4], fields[5] == 1, checksum};
    if (head->vocabulary_size == 0 || head->window_size < 2 || head->window_count == 0 ||
        head->first_scored > head->window_size - 2 || fields[5] > 1)
        return error_set(error, STATUS_DOCUMENT,
                         "%s: damaged: vocabulary %u, window %u, windows %u, first %u", path, fields[1],
                         fields[2], fields[3], fields[4]);
    uint64_t token_count = (uint64_t)head->window_count * head->window_size, rows_bytes, expected;
    uint64_t row_count = (uint64_t)head->window_count * (head->window_size - 1 - head->first_scored);
    if (!checked_multiply(row_count, row_bytes(head), &rows_bytes) ||
        !checked_add(rows_bytes, HEAD_BYTES + token_count * sizeof(int32_t), &expected) ||
        expected != base->map.size_bytes)
        return error_set(error, STATUS_DOCUMENT, "%s: damaged: found %llu bytes, expected another size", path,
                         (unsigned long long)base->map.size_bytes);
    base->tokens = (const int32_t *)(const void *)(data + HEAD_BYTES); /* 40 is a multiple of 4 */
    base->rows = data + HEAD_BYTES + token_count * sizeof(int32_t);
    for (uint64_t i = 0; i < token_count; i++)
        if (base->tokens[i] < 0 || (uint32_t)base->tokens[i] >= head->vocabulary_size)
            return error_set(error, STATUS_DOCUMENT, "%s: damaged: token %llu is %d of %u", path,
                             (unsigned long long)i, base->tokens[i], head->vocabulary_size);
    return STATUS_OK;
}

enum status logits_base_open(struct logits_base *base, const char *path, struct error *error) {
    *base = (struct logits_base){0};
    TRY(file_map_open(&base->map, path, error));
    enum status status = check_head(base, path, error);
    if (status != STATUS_OK) logits_base_close(base);
    return status;
}

void logits_base_close(struct logits_base *base) {
    file_map_close(&base->map);
    *base = (struct logits_base){0};
}

bool logits_base_matches(const struct logits_base *base, uint64_t fingerprint) {
    struct logits_base_head head = base->head;
    head.fingerprint = fingerprint;
    return head_checksum(&head) == base->head.fingerprint;
}

void logits_base_read(const struct logits_base *base, uint64_t place, float *log_probabilities) {
    uint32_t count = base->head.vocabulary_size;
    const uint8_t *row = base->rows + place * row_bytes(&base->head);
    float step;
    memcpy(&step, row + sizeof(float), sizeof step);
    if (!(step > 0) || !isfinite(step))
        step = range_most / CODE_MOST; /* damaged: a distribution all the same */
    for (uint32_t i = 0; i < count; i++) {
        uint16_t code;
        memcpy(&code, row + 2 * sizeof(float) + i * sizeof code, sizeof code);
        log_probabilities[i] = -step * (float)code;
    }
    log_softmax(log_probabilities, count, log_probabilities);
}
