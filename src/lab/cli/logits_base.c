#include "lab/cli/logits_base.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

enum { HEAD_BYTES = 20, TRAILER_BYTES = 16, CODE_MAX = 65535, WINDOW_MIN = 3 };
static const char magic[8] = {'_', 'l', 'o', 'g', 'i', 't', 's', '_'};
static const char trailer_magic[8] = {'L', 'O', 'A', 'M', 'V', 'O', 'C', '1'};
static const float range_max = 24;
static const float clamp_min = 15.99F; /* llama-perplexity clamps at 16; a narrower row holds no clamped token */
static const double rounding = 2e-3;   /* of the sum: half a step in every log-probability, and floats */

static uint64_t fnv1a(uint64_t hash, const void *bytes, size_t length) {
    for (size_t i = 0; i < length; i++) hash = (hash ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static uint64_t checksum_of(const struct logits_base_head *head, uint64_t fingerprint) {
    uint32_t fields[] = {head->window_size, head->vocabulary_size, head->window_count};
    uint64_t hash = fnv1a(UINT64_C(0xcbf29ce484222325), &fingerprint, sizeof fingerprint);
    return fnv1a(hash, fields, sizeof fields);
}

static size_t codes_per_row(uint32_t vocabulary_size) { return ((size_t)vocabulary_size + 1) / 2 * 2; }

/* ---- writing ---- */

static enum status put(struct logits_base_writer *writer, const void *bytes, size_t length, struct error *error) {
    errno = 0;
    if (fwrite(bytes, 1, length, writer->file.stream) != length)
        return error_set_os(error, STATUS_IO, errno, "%s", writer->file.path);
    return STATUS_OK;
}

enum status logits_base_create(struct logits_base_writer *writer, const char *path, const struct logits_base_head *head,
                               uint64_t fingerprint, const int32_t *tokens, struct error *error) {
    *writer = (struct logits_base_writer){.head = *head, .fingerprint = fingerprint};
    writer->codes = calloc(codes_per_row(head->vocabulary_size), sizeof *writer->codes);
    if (writer->codes == NULL) return error_set(error, STATUS_MEMORY, "%s: out of memory", path);
    TRY(file_writer_open(&writer->file, path, error));
    uint32_t fields[] = {head->window_size, head->vocabulary_size, head->window_count};
    TRY(put(writer, magic, sizeof magic, error));
    TRY(put(writer, fields, sizeof fields, error));
    return put(writer, tokens, (size_t)head->window_count * head->window_size * sizeof *tokens, error);
}

enum status logits_base_write(struct logits_base_writer *writer, const float *logits, struct error *error) {
    uint32_t count = writer->head.vocabulary_size;
    float largest = logits[0], smallest = logits[0];
    for (uint32_t i = 1; i < count; i++) {
        largest = logits[i] > largest ? logits[i] : largest;
        smallest = logits[i] < smallest ? logits[i] : smallest;
    }
    if (smallest < largest - range_max) smallest = largest - range_max;
    double sum = 0;
    for (uint32_t i = 0; i < count; i++) sum += (double)expf(logits[i] - largest);
    float step = (largest - smallest) / CODE_MAX;
    float row[2] = {step, smallest - largest - (float)log(sum)};
    for (uint32_t i = 0; i < count; i++)
        writer->codes[i] = logits[i] > smallest ? (uint16_t)((logits[i] - smallest) / step + 0.5F) : 0;
    TRY(put(writer, row, sizeof row, error));
    return put(writer, writer->codes, codes_per_row(count) * sizeof *writer->codes, error);
}

enum status logits_base_commit(struct logits_base_writer *writer, struct error *error) {
    uint64_t checksum = checksum_of(&writer->head, writer->fingerprint);
    TRY(put(writer, trailer_magic, sizeof trailer_magic, error));
    TRY(put(writer, &checksum, sizeof checksum, error));
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
    return 2 * sizeof(float) + codes_per_row(head->vocabulary_size) * sizeof(uint16_t);
}

/* The place of the rows, and of the trailer if the file has one. */
static enum status check_size(struct logits_base *base, const char *path, struct error *error) {
    const struct logits_base_head *head = &base->head;
    const uint8_t *data = base->map.data;
    uint64_t size = base->map.size_bytes, rows_bytes, expected;
    uint64_t tokens_bytes = (uint64_t)head->window_count * head->window_size * sizeof(int32_t);
    uint64_t row_count =
        (uint64_t)head->window_count * (head->window_size - 1 - logits_base_first_scored(head->window_size));
    if (!checked_multiply(row_count, row_bytes(head), &rows_bytes) ||
        !checked_add(rows_bytes, HEAD_BYTES + tokens_bytes, &expected) ||
        (size != expected && size != expected + TRAILER_BYTES))
        return error_set(error, STATUS_DOCUMENT, "%s: damaged: found %llu bytes, expected another size", path,
                         (unsigned long long)size);
    base->rows = data + HEAD_BYTES + tokens_bytes;
    if (size == expected) return STATUS_OK;
    if (memcmp(data + expected, trailer_magic, sizeof trailer_magic) != 0)
        return error_set(error, STATUS_DOCUMENT, "%s: damaged: found other bytes than LOAMVOC1 at the end", path);
    base->checksum = data + expected + sizeof trailer_magic;
    return STATUS_OK;
}

static enum status check_head(struct logits_base *base, const char *path, struct error *error) {
    const uint8_t *data = base->map.data;
    struct logits_base_head *head = &base->head;
    uint32_t fields[3];
    if (base->map.size_bytes < HEAD_BYTES || memcmp(data, magic, sizeof magic) != 0)
        return error_set(error, STATUS_DOCUMENT, "%s: not a base of `loam-lab perplexity` or llama-perplexity", path);
    memcpy(fields, data + sizeof magic, sizeof fields);
    *head =
        (struct logits_base_head){.window_size = fields[0], .vocabulary_size = fields[1], .window_count = fields[2]};
    if (head->vocabulary_size == 0 || head->vocabulary_size > INT32_MAX || head->window_size < WINDOW_MIN ||
        head->window_size > INT32_MAX || head->window_count == 0 || head->window_count > INT32_MAX)
        return error_set(error, STATUS_DOCUMENT, "%s: damaged: window %u, vocabulary %u, windows %u", path, fields[0],
                         fields[1], fields[2]);
    TRY(check_size(base, path, error));
    base->tokens = (const int32_t *)(const void *)(data + HEAD_BYTES); /* 20 is a multiple of 4 */
    uint64_t token_count = (uint64_t)head->window_count * head->window_size;
    for (uint64_t i = 0; i < token_count; i++)
        if (base->tokens[i] < 0 || (uint32_t)base->tokens[i] >= head->vocabulary_size)
            return error_set(error, STATUS_DOCUMENT, "%s: damaged: token %llu is %d of %u", path, (unsigned long long)i,
                             base->tokens[i], head->vocabulary_size);
    return STATUS_OK;
}

enum status logits_base_open(struct logits_base *base, const char *path, struct error *error) {
    *base = (struct logits_base){.path = strdup(path)};
    if (base->path == NULL) return error_set(error, STATUS_MEMORY, "%s: out of memory", path);
    enum status status = file_map_open(&base->map, path, error);
    if (status == STATUS_OK) status = check_head(base, path, error);
    if (status != STATUS_OK) logits_base_close(base);
    return status;
}

void logits_base_close(struct logits_base *base) {
    file_map_close(&base->map);
    free(base->path);
    *base = (struct logits_base){0};
}

bool logits_base_matches(const struct logits_base *base, uint64_t fingerprint) {
    if (base->checksum == NULL) return true;
    uint64_t checksum;
    memcpy(&checksum, base->checksum, sizeof checksum);
    return checksum_of(&base->head, fingerprint) == checksum;
}

/* The probabilities of codes above 0 sum to at most 1; with clamped ones at their bound to at least 1, except for
 * rounding. */
static bool is_distribution(const float *log_probabilities, uint32_t count, float floor) {
    double sum = 0, clamped = 0;
    for (uint32_t i = 0; i < count; i++)
        *(log_probabilities[i] > floor ? &sum : &clamped) += exp((double)log_probabilities[i]);
    return sum <= 1 + rounding && sum + clamped >= 1 - rounding; /* false for NaN */
}

enum status logits_base_read(const struct logits_base *base, uint64_t place, float *log_probabilities, float *floor,
                             struct error *error) {
    uint32_t count = base->head.vocabulary_size;
    const uint8_t *row = base->rows + place * row_bytes(&base->head);
    float head[2]; /* step, least log-probability */
    memcpy(head, row, sizeof head);
    for (uint32_t i = 0; i < count; i++) {
        uint16_t code;
        memcpy(&code, row + sizeof head + i * sizeof code, sizeof code);
        log_probabilities[i] = head[1] + head[0] * (float)code;
    }
    *floor = head[0] * CODE_MAX > clamp_min ? head[1] : -INFINITY;
    if (head[0] >= 0 && is_distribution(log_probabilities, count, *floor)) return STATUS_OK;
    return error_set(error, STATUS_DOCUMENT,
                     "%s: damaged: row %llu: found step %g and least log-probability %g, expected probabilities "
                     "that add to 1",
                     base->path, (unsigned long long)place, (double)head[0], (double)head[1]);
}
