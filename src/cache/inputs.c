#include "cache/inputs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/layout.h"
#include "kernels/attention/kv_layout.h"
#include "platform/memory.h"
#include "tensor/half.h"

enum {
    BLOCK = 32,
    BLOCK_BYTES = BLOCK + sizeof(float),
    PAGE_BYTES_MAX = 256 << 10,
    GROUP = 4,
    COMPLETIONS = 16,
    DEPTH = 256
};

struct inputs_reading {
    struct io_queue *queue;  /* owned; NULL: it is never read */
    uint8_t *pages;          /* owned; [capacity * slices] pages: a ring of groups of chunks */
    struct page_read *reads; /* [reads_max * slices], in the order of the disk */
    bool *arrived;           /* of each, whether it is in memory */
    size_t capacity, reads_max, count, chunks, submitted, begun; /* begun: at once */
    /* Of what is being read; taken: whose memory is free again. */
    size_t group_chunks, ring_groups, groups_taken;
};

struct inputs {
    struct inputs_shape shape;
    struct store_layout layout;
    struct document *document; /* owned */
    size_t slices;             /* pages of a chunk */
    bool keeps;
    struct error failure;      /* why it does not any more; empty: nothing failed */
    uint64_t valid_tokens;     /* of the document, that are the sequence's: UINT64_MAX while it keeps */
    uint64_t committed_tokens; /* asked for */
    uint64_t *rows;            /* owned, as what lies behind it (place); [kept layers]: that have come */
    uint8_t *growing;          /* [kept layer][slice][64 rows]: the chunk that is not full */
    struct inputs_reading reading;
};

static size_t kept_layers(const struct inputs_shape *shape) { return shape->layer_count - 1; }

static size_t bytes_of(enum inputs_form form, size_t columns) {
    if (form == INPUTS_F16) return sizeof(float) + columns * sizeof(uint16_t);
    return form == INPUTS_Q8 ? columns / BLOCK * BLOCK_BYTES : columns * sizeof(float);
}

/* Whole blocks of columns in each, as few slices as make pages small enough. */
static size_t slices_of(const struct inputs_shape *shape) {
    const size_t unit = shape->hidden_size % BLOCK == 0 ? BLOCK : 1, units = shape->hidden_size / unit;
    size_t slices = 1;
    while (slices < units && (units % slices != 0 ||
                              KV_CHUNK_TOKENS * bytes_of(shape->form, shape->hidden_size / slices) > PAGE_BYTES_MAX))
        slices++;
    return slices;
}

static const char codec_prefix[] = "inputs.";
static const char *const form_names[] = {[INPUTS_F32] = "f32", [INPUTS_Q8] = "q8", [INPUTS_F16] = "f16"};

static struct store_layout layout_of(const struct inputs_shape *shape) {
    struct store_layout layout = {.layer_count = (uint32_t)kept_layers(shape),
                                  .kv_head_count = (uint32_t)slices_of(shape),
                                  .key_index_kind = "none"};
    layout.chunk_bytes = (uint32_t)(KV_CHUNK_TOKENS * inputs_row_bytes(shape) / layout.kv_head_count);
    snprintf(layout.codec, sizeof layout.codec, "%s%s.%zu", codec_prefix, form_names[shape->form], shape->hidden_size);
    return layout;
}

size_t inputs_row_bytes(const struct inputs_shape *shape) {
    const size_t slices = slices_of(shape);
    return slices * bytes_of(shape->form, shape->hidden_size / slices);
}

size_t inputs_chunk_bytes(const struct inputs_shape *shape) {
    const struct store_layout layout = layout_of(shape);
    return layout.kv_head_count * store_page_bytes(&layout);
}

bool inputs_is_layout(const char *layout) {
    const char *codec = strncmp(layout, "codec=", 6) == 0 ? layout + 6 : layout;
    return strncmp(codec, codec_prefix, sizeof codec_prefix - 1) == 0;
}

/* ---- rows ---- */

/* As kernels/quantize_32.h rounds, of which the largest magnitude is kept instead of the scale: from it the scale comes
 * out the same.  A block with a value that is not finite comes back as NaN. */
static void encode_block(const float *x, uint8_t *kept) {
    float largest = 0;
    bool finite = true;
    for (size_t i = 0; i < BLOCK; i++) {
        const float magnitude = fabsf(x[i]);
        finite = finite && isfinite(magnitude);
        if (magnitude > largest) largest = magnitude;
    }
    if (!finite) largest = NAN;
    if (largest < 1e-30f) largest = 0;
    const float inverse = largest > 0 ? 127 / largest : 0;
    memcpy(kept, &largest, sizeof largest);
    for (size_t i = 0; i < BLOCK; i++)
        kept[sizeof largest + i] = (uint8_t)(int8_t)(largest > 0 ? lrintf(x[i] * inverse) : 0);
}

/* Codes of 127 are the largest magnitude itself: 127 steps of a scale may miss it by a bit.  Of a block that is NaN all
 * values are, as the scale is.  One loop for each operation: compilers make vectors of these, not of one with branches,
 * and one thread does this while the others have nothing to do. */
static void decode_block(const uint8_t *restrict kept, float *restrict x) {
    const int8_t *restrict codes = (const int8_t *)kept + sizeof(float);
    float largest;
    memcpy(&largest, kept, sizeof largest);
    const float scale = largest / 127, highest = scale > 0 ? 127 * scale : 1; /* else no value is */
    for (size_t i = 0; i < BLOCK; i++) x[i] = (float)codes[i] * scale;
    for (size_t i = 0; i < BLOCK; i++) x[i] = x[i] == highest ? largest : x[i];
    for (size_t i = 0; i < BLOCK; i++) x[i] = x[i] == -highest ? -largest : x[i];
}

/* The largest magnitude is below twice the power, as device/cuda/kernels/halve.cu has it.  Of a row with a value that
 * is not finite it is NaN, and so is all that comes back. */
float inputs_power(enum inputs_form form, const float *row, size_t columns) {
    const uint32_t infinite = 0x7f800000u;
    uint32_t largest = 0;
    if (form != INPUTS_F16) return 1;
    for (size_t i = 0; i < columns; i++) {
        const uint32_t magnitude = float_to_bits(row[i]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
    }
    if (largest >= infinite) return NAN;
    return largest < 0x01000000u ? 1 : bits_to_float(largest & infinite);
}

static void encode_halves(float power, const float *restrict row, size_t columns, uint8_t *restrict kept) {
    const float inverse = 1 / power;
    uint16_t *halves = (uint16_t *)(void *)(kept + sizeof power);
    memcpy(kept, &power, sizeof power);
    for (size_t i = 0; i < columns; i++) halves[i] = float_to_half(row[i] * inverse);
}

/* A magnitude that was rounded up to twice the power comes back a bit below it: else the row would have another power,
 * and small halves one bit less. */
static void decode_halves(const uint8_t *restrict kept, size_t columns, float *restrict row) {
    const uint16_t *halves = (const uint16_t *)(const void *)(kept + sizeof(float));
    float power;
    memcpy(&power, kept, sizeof power);
    for (size_t i = 0; i < columns; i++) {
        const float half = half_to_float(halves[i]), below = 0x1.fffffep0f;
        row[i] = power * (half == 2 ? below : half == -2 ? -below : half);
    }
}

void inputs_encode(enum inputs_form form, float power, const float *row, size_t columns, uint8_t *kept) {
    if (form == INPUTS_F32) {
        memcpy(kept, row, columns * sizeof *row);
        return;
    }
    if (form == INPUTS_F16) {
        encode_halves(power, row, columns, kept);
        return;
    }
    ASSERT(columns % BLOCK == 0);
    for (size_t i = 0; i < columns; i += BLOCK) encode_block(row + i, kept + i / BLOCK * BLOCK_BYTES);
}

void inputs_decode(enum inputs_form form, const uint8_t *kept, size_t columns, float *row) {
    if (form == INPUTS_F32) {
        memcpy(row, kept, columns * sizeof *row);
        return;
    }
    if (form == INPUTS_F16) {
        decode_halves(kept, columns, row);
        return;
    }
    for (size_t i = 0; i < columns; i += BLOCK) decode_block(kept + i / BLOCK * BLOCK_BYTES, row + i);
}

/* ---- life ---- */

/* Chunks that one reading may have: more than there is memory for where its groups are taken in order. */
static size_t reads_max_of(uint64_t token_capacity, size_t read_chunks) {
    const uint64_t chunks = (token_capacity + KV_CHUNK_TOKENS - 1) / KV_CHUNK_TOKENS;
    return read_chunks < 2 ? read_chunks : max_size((size_t)chunks, read_chunks);
}

static size_t pages_bytes(const struct inputs *inputs) {
    return inputs->reading.capacity * inputs->slices * store_page_bytes(&inputs->layout);
}

static void place(struct inputs *inputs, struct layout *layout) {
    const size_t layers = kept_layers(&inputs->shape), reads = inputs->reading.reads_max * inputs->slices;
    inputs->rows = layout_take(layout, layers, sizeof *inputs->rows);
    inputs->growing = layout_take(layout, layers * inputs->slices, inputs->layout.chunk_bytes);
    inputs->reading.reads = layout_take(layout, reads, sizeof *inputs->reading.reads);
    inputs->reading.arrived = layout_take(layout, reads, sizeof *inputs->reading.arrived);
}

/* Without memory. */
static struct inputs of(const struct inputs_shape *shape, uint64_t token_capacity, size_t read_chunks) {
    ASSERT(shape->layer_count > 1);
    return (struct inputs){
        .shape = *shape,
        .layout = layout_of(shape),
        .slices = slices_of(shape),
        .valid_tokens = UINT64_MAX,
        .reading = {.capacity = read_chunks, .reads_max = reads_max_of(token_capacity, read_chunks)}};
}

uint64_t inputs_bytes(const struct inputs_shape *shape, uint64_t token_capacity, size_t read_chunks) {
    struct inputs inputs = of(shape, token_capacity, read_chunks);
    struct layout layout = {0};
    place(&inputs, &layout);
    return sizeof inputs + layout.used + pages_bytes(&inputs) + document_memory_bytes(&inputs.layout, token_capacity);
}

static enum status make(struct inputs **result, const struct inputs_options *options, struct error *error) {
    struct inputs *inputs = calloc(1, sizeof *inputs);
    struct layout layout = {0};
    *result = inputs;
    if (inputs == NULL) return error_set(error, STATUS_MEMORY, "inputs: out of memory");
    *inputs = of(&options->shape, options->token_capacity, options->read_chunks);
    place(inputs, &layout);
    layout = (struct layout){.memory = calloc(1, layout.used)};
    if (layout.memory != NULL) place(inputs, &layout);
    if (layout.memory != NULL && options->read_chunks > 0)
        inputs->reading.pages = memory_area_create(pages_bytes(inputs));
    if (layout.memory == NULL || (options->read_chunks > 0 && inputs->reading.pages == NULL))
        return error_set(error, STATUS_MEMORY, "inputs: out of memory");
    if (options->read_chunks == 0) return STATUS_OK;
    return io_queue_create(&inputs->reading.queue,
                           &(struct io_queue_options){.backend = options->backend, .depth = DEPTH}, error);
}

static enum status finish(struct inputs **result, enum status status) {
    if (status == STATUS_OK) return status;
    inputs_close(*result);
    *result = NULL;
    return status;
}

static enum status create(struct inputs *inputs, const struct inputs_options *options, struct error *error) {
    inputs->keeps = true;
    return document_create(&inputs->document, options->store,
                           &(struct document_description){.model = &options->model,
                                                          .layout = &inputs->layout,
                                                          .name = options->name,
                                                          .token_capacity = options->token_capacity},
                           error);
}

enum status inputs_create(struct inputs **result, const struct inputs_options *options, struct error *error) {
    enum status status = make(result, options, error);
    if (status == STATUS_OK) status = create(*result, options, error);
    return finish(result, status);
}

void inputs_close(struct inputs *inputs) {
    if (inputs == NULL) return;
    inputs_read_end(inputs);
    io_queue_destroy(inputs->reading.queue);
    document_close(inputs->document);
    free(inputs->rows);
    memory_area_destroy(inputs->reading.pages, pages_bytes(inputs));
    free(inputs);
}

const struct inputs_shape *inputs_get_shape(const struct inputs *inputs) { return &inputs->shape; }

static uint8_t *growing_slice(const struct inputs *inputs, size_t kept_layer, size_t slice) {
    return inputs->growing + (kept_layer * inputs->slices + slice) * inputs->layout.chunk_bytes;
}

/* The rows behind the last full chunk, as the document's tail has them. */
static enum status read_tail(struct inputs *inputs, struct error *error) {
    const uint64_t tokens = document_token_count(inputs->document), chunk = tokens / KV_CHUNK_TOKENS;
    for (size_t layer = 0; layer < kept_layers(&inputs->shape); layer++) inputs->rows[layer] = tokens;
    inputs->committed_tokens = tokens;
    for (size_t i = 0; i < kept_layers(&inputs->shape) * inputs->slices; i++) {
        if (tokens % KV_CHUNK_TOKENS == 0) return STATUS_OK;
        const struct page_read read = {.layer = (uint32_t)(i / inputs->slices),
                                       .kv_head = (uint32_t)(i % inputs->slices),
                                       .chunk = chunk,
                                       .memory = inputs->reading.pages};
        struct io_completion done = {0};
        size_t next = 0;
        enum status ignored = document_read_pages(inputs->document, inputs->reading.queue, &read, 1, &next, 0);
        ASSERT(ignored == STATUS_OK && next == 1);
        while (io_queue_wait(inputs->reading.queue, &done, 1, 1) == 0) continue;
        if (done.status != STATUS_OK) return document_read_failed(inputs->document, &done, error);
        TRY(document_check_page(inputs->document, &read, error));
        memcpy(growing_slice(inputs, read.layer, read.kv_head), inputs->reading.pages,
               inputs->layout.chunk_bytes / KV_CHUNK_BLOCKS *
                   ((tokens % KV_CHUNK_TOKENS + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS));
    }
    return STATUS_OK;
}

static enum status open_found(struct inputs *inputs, const struct inputs_options *options,
                              const struct store_match *match, uint64_t reused, bool writable, struct error *error) {
    const bool goes_on = writable && match->prefix_tokens == match->token_count && match->token_count == reused;
    enum status status =
        document_open(&inputs->document, options->store, match->document, &options->model, &inputs->layout,
                      goes_on ? DOCUMENT_APPEND : DOCUMENT_READ, goes_on ? options->token_capacity : 0, error);
    if (goes_on && (status == STATUS_FULL || status == STATUS_IO)) /* somebody else writes it, or there is no room */
        status = document_open(&inputs->document, options->store, match->document, &options->model, &inputs->layout,
                               DOCUMENT_READ, 0, error);
    else
        inputs->keeps = goes_on;
    TRY(status);
    if (document_token_count(inputs->document) != match->token_count) inputs->keeps = false; /* it has grown */
    inputs->valid_tokens = match->prefix_tokens;
    if (!inputs->keeps) return STATUS_OK;
    inputs->valid_tokens = UINT64_MAX;
    return read_tail(inputs, error);
}

enum status inputs_open(struct inputs **result, const struct inputs_options *options, const int32_t *tokens,
                        uint64_t reused, bool writable, struct error *error) {
    const struct store_layout layout = layout_of(&options->shape);
    struct store_match match;
    *result = NULL;
    ASSERT(options->read_chunks > 0);
    TRY(store_find(options->store, &(struct store_query){&options->model, &layout, tokens, reused, STORE_LIKE_KIND},
                   &match, error));
    if (match.document == 0) return STATUS_OK;
    enum status status = make(result, options, error);
    if (status == STATUS_OK) status = open_found(*result, options, &match, reused, writable, error);
    return finish(result, status);
}

/* ---- keeping ---- */

bool inputs_keeps(const struct inputs *inputs) { return inputs->keeps; }

/* why NULL: nothing failed. */
static void stop(struct inputs *inputs, uint64_t valid_tokens, const struct error *why) {
    if (!inputs->keeps) return;
    inputs->keeps = false;
    inputs->valid_tokens = valid_tokens;
    if (why != NULL) inputs->failure = *why;
}

static enum status write_chunk(struct inputs *inputs, size_t kept_layer, uint64_t chunk, struct error *error) {
    for (size_t slice = 0; slice < inputs->slices; slice++) {
        const void *page = growing_slice(inputs, kept_layer, slice);
        DOCUMENT_WRITE(inputs->document,
                       document_write_pages(inputs->document, kept_layer, slice, chunk, 1, &page, error));
    }
    return STATUS_OK;
}

static enum status write_tails(struct inputs *inputs, uint64_t token_count, struct error *error) {
    for (size_t i = 0; i < kept_layers(&inputs->shape) * inputs->slices; i++) {
        const size_t layer = i / inputs->slices, slice = i % inputs->slices;
        DOCUMENT_WRITE(inputs->document, document_write_tail(inputs->document, layer, slice, token_count,
                                                             growing_slice(inputs, layer, slice), error));
    }
    return STATUS_OK;
}

void inputs_append(struct inputs *inputs, size_t layer, uint64_t position, size_t count, const float *rows) {
    if (layer == 0 || !inputs->keeps) return;
    uint64_t *have = &inputs->rows[layer - 1];
    const size_t columns = inputs->shape.hidden_size / inputs->slices;
    const size_t bytes = bytes_of(inputs->shape.form, columns);
    if (position != *have) { /* a gap */
        stop(inputs, inputs->committed_tokens, NULL);
        return;
    }
    for (size_t i = 0; i < count && inputs->keeps; i++) {
        struct error error;
        const float *row = rows + i * inputs->shape.hidden_size,
                    power = inputs_power(inputs->shape.form, row, inputs->shape.hidden_size);
        for (size_t slice = 0; slice < inputs->slices; slice++)
            inputs_encode(inputs->shape.form, power, row + slice * columns, columns,
                          growing_slice(inputs, layer - 1, slice) + *have % KV_CHUNK_TOKENS * bytes);
        if (++*have % KV_CHUNK_TOKENS == 0 &&
            write_chunk(inputs, layer - 1, *have / KV_CHUNK_TOKENS - 1, &error) != STATUS_OK)
            stop(inputs, inputs->committed_tokens, &error);
    }
}

/* Rows of a chunk that is not full may go; a page that is written is not written again. */
void inputs_truncate(struct inputs *inputs, uint64_t token_count) {
    for (size_t layer = 0; layer < kept_layers(&inputs->shape) && inputs->keeps; layer++) {
        if (inputs->rows[layer] <= token_count) continue;
        if (token_count < inputs->rows[layer] / KV_CHUNK_TOKENS * KV_CHUNK_TOKENS ||
            token_count < inputs->committed_tokens) {
            stop(inputs, token_count, NULL);
            break;
        }
        inputs->rows[layer] = token_count;
    }
    if (!inputs->keeps && inputs->valid_tokens > token_count) inputs->valid_tokens = token_count;
}

static enum status commit(struct inputs *inputs, const int32_t *tokens, uint64_t token_count, struct error *error) {
    if (token_count % KV_CHUNK_TOKENS != 0) TRY(write_tails(inputs, token_count, error));
    return document_commit(inputs->document, tokens, token_count, error);
}

void inputs_commit(struct inputs *inputs, const int32_t *tokens, uint64_t token_count) {
    struct error error;
    if (!inputs->keeps) return;
    for (size_t layer = 0; layer < kept_layers(&inputs->shape); layer++)
        token_count = inputs->rows[layer] < token_count ? inputs->rows[layer] : token_count;
    for (size_t layer = 0; layer < kept_layers(&inputs->shape); layer++)
        if (inputs->rows[layer] != token_count) {
            stop(inputs, inputs->committed_tokens, NULL);
            return;
        }
    if (token_count <= inputs->committed_tokens) return;
    if (commit(inputs, tokens, token_count, &error) != STATUS_OK)
        stop(inputs, inputs->committed_tokens, &error);
    else
        inputs->committed_tokens = token_count;
}

enum status inputs_flush(struct inputs *inputs, struct error *error) {
    if (inputs->failure.message[0] != '\0') {
        if (error != NULL) *error = inputs->failure;
        return inputs->failure.status;
    }
    return inputs->committed_tokens > 0 && inputs->keeps ? document_flush(inputs->document, error) : STATUS_OK;
}

bool inputs_is_flushed(const struct inputs *inputs) {
    return inputs->failure.message[0] != '\0' || inputs->committed_tokens == 0 || !inputs->keeps ||
           document_is_flushed(inputs->document);
}

/* ---- reading ---- */

uint64_t inputs_chunks(const struct inputs *inputs) {
    if (inputs->reading.capacity == 0) return 0;
    const uint64_t tokens = document_token_count(inputs->document), valid = inputs->valid_tokens;
    return (valid < tokens ? valid : tokens) / KV_CHUNK_TOKENS;
}

size_t inputs_read_max(const struct inputs *inputs) { return inputs->reading.reads_max; }

const int32_t *inputs_tokens(const struct inputs *inputs) { return document_tokens(inputs->document); }

static void take_completions(struct inputs *inputs, const struct io_completion *done, size_t count) {
    const size_t page = store_page_bytes(&inputs->layout);
    for (size_t i = 0; i < count; i++) {
        const size_t first = (size_t)done[i].request.tag, pages = (done[i].request.bytes + page - 1) / page;
        for (size_t j = 0; j < pages; j++) inputs->reading.arrived[first + j] = true;
    }
}

/* Hands the queue what it takes, and waits for at least `wait` of what it has. */
static enum status go_on(struct inputs *inputs, size_t wait, struct error *error) {
    struct io_completion done[COMPLETIONS];
    enum status status = STATUS_OK;
    const size_t group = inputs->reading.group_chunks * inputs->slices,
                 end = min_size(inputs->reading.count,
                                (inputs->reading.groups_taken + inputs->reading.ring_groups) * group);
    while (inputs->reading.submitted < end &&
           status == STATUS_OK) { /* a group is not to wait for the next one's pages */
        const size_t next = min_size(end, (inputs->reading.submitted / group + 1) * group);
        status = document_read_pages(inputs->document, inputs->reading.queue, inputs->reading.reads, next,
                                     &inputs->reading.submitted, 0);
    }
    ASSERT(status == STATUS_OK || status == STATUS_FULL);
    io_queue_flush(inputs->reading.queue);
    const size_t count = io_queue_wait(inputs->reading.queue, done, COMPLETIONS, wait);
    take_completions(inputs, done, count);
    for (size_t i = 0; i < count; i++)
        if (done[i].status != STATUS_OK) return document_read_failed(inputs->document, &done[i], error);
    return STATUS_OK;
}

enum status inputs_read_begin(struct inputs *inputs, size_t layer, uint64_t chunk_first, size_t chunk_count,
                              struct error *error) {
    const size_t page = store_page_bytes(&inputs->layout);
    ASSERT(inputs->reading.count == 0 && layer > 0 && chunk_count <= inputs->reading.reads_max);
    ASSERT(chunk_first + chunk_count <= inputs_chunks(inputs));
    const bool fits = chunk_count <= inputs->reading.capacity;
    const size_t width = fits ? GROUP : min_size(GROUP, inputs->reading.capacity / 2),
                 ring = fits ? (chunk_count + width - 1) / width : inputs->reading.capacity / width;
    inputs->reading.group_chunks = width;
    inputs->reading.ring_groups = ring;
    inputs->reading.groups_taken = 0;
    for (size_t group = 0; group < chunk_count; group += width)
        for (size_t slice = 0; slice < inputs->slices; slice++)
            for (size_t i = group; i < chunk_count && i < group + width; i++, inputs->reading.count++) {
                const size_t place = inputs->reading.count % (ring * width * inputs->slices);
                inputs->reading.arrived[inputs->reading.count] = false;
                inputs->reading.reads[inputs->reading.count] =
                    (struct page_read){.layer = (uint32_t)(layer - 1),
                                       .kv_head = (uint32_t)slice,
                                       .chunk = chunk_first + i,
                                       .memory = inputs->reading.pages + place * page};
            }
    inputs->reading.chunks = chunk_count;
    inputs->reading.submitted = 0;
    const enum status status = go_on(inputs, 0, error);
    inputs->reading.begun = inputs->reading.submitted;
    return status;
}

uint64_t inputs_begun_bytes(const struct inputs *inputs) {
    return (uint64_t)inputs->reading.begun * store_page_bytes(&inputs->layout);
}

bool inputs_has_begun(const struct inputs *inputs, size_t index) {
    const size_t groups = index / inputs->reading.group_chunks + 1;
    return min_size(groups * inputs->reading.group_chunks * inputs->slices, inputs->reading.count) <=
           inputs->reading.begun;
}

enum status inputs_begun_look(struct inputs *inputs, bool *arrived, struct error *error) {
    TRY(go_on(inputs, 0, error));
    *arrived = true;
    for (size_t i = 0; i < inputs->reading.begun && *arrived; i++) *arrived = inputs->reading.arrived[i];
    return STATUS_OK;
}

/* Where the index-th chunk's first slice lies among the reads, and how many reads further the next one. */
static size_t read_of(const struct inputs *inputs, size_t index, size_t *width) {
    const size_t group = index / inputs->reading.group_chunks * inputs->reading.group_chunks;
    ASSERT(index < inputs->reading.chunks && index >= inputs->reading.groups_taken * inputs->reading.group_chunks);
    *width = min_size(inputs->reading.chunks - group, inputs->reading.group_chunks);
    return group * inputs->slices + (index - group);
}

size_t inputs_read_ahead(const struct inputs *inputs, size_t index) {
    const size_t end = (inputs->reading.groups_taken + inputs->reading.ring_groups) * inputs->reading.group_chunks;
    return min_size(end, inputs->reading.chunks) - index;
}

enum status inputs_read_wait(struct inputs *inputs, size_t index, struct error *error) {
    size_t width;
    const size_t first = read_of(inputs, index, &width);
    for (size_t slice = 0; slice < inputs->slices; slice++)
        while (!inputs->reading.arrived[first + slice * width]) TRY(go_on(inputs, 1, error));
    return STATUS_OK;
}

enum status inputs_read_rows(struct inputs *inputs, size_t index, float *rows, struct error *error) {
    size_t width;
    const size_t first = read_of(inputs, index, &width);
    const size_t columns = inputs->shape.hidden_size / inputs->slices;
    const size_t bytes = bytes_of(inputs->shape.form, columns);
    TRY(inputs_read_wait(inputs, index, error));
    for (size_t slice = 0; slice < inputs->slices; slice++) {
        const size_t read = first + slice * width;
        TRY(document_check_page(inputs->document, &inputs->reading.reads[read], error));
        const uint8_t *kept = inputs->reading.reads[read].memory;
        for (size_t row = 0; row < KV_CHUNK_TOKENS; row++)
            inputs_decode(inputs->shape.form, kept + row * bytes, columns,
                          rows + row * inputs->shape.hidden_size + slice * columns);
    }
    if (inputs->reading.submitted == inputs->reading.count || (index + 1) % inputs->reading.group_chunks != 0)
        return STATUS_OK;
    inputs->reading.groups_taken++; /* in order */
    return go_on(inputs, 0, error);
}

void inputs_read_end(struct inputs *inputs) {
    struct io_completion lost[COMPLETIONS];
    while (inputs->reading.queue != NULL && io_queue_in_flight(inputs->reading.queue) > 0)
        (void)io_queue_wait(inputs->reading.queue, lost, COMPLETIONS, 1);
    inputs->reading.count = inputs->reading.chunks = inputs->reading.submitted = 0;
}

void inputs_refuse(struct inputs *inputs) {
    inputs_read_end(inputs);
    inputs->keeps = false;
    inputs->valid_tokens = 0;
}
