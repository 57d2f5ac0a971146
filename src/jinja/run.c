/* The memory and the limits of one rendering. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "jinja/jinja_internal.h"

enum { BLOCK_BYTES = 64 << 10, STEP_BYTES = 64 };

struct jinja_block {
    struct jinja_block *next;
    size_t size, used;
    _Alignas(16) unsigned char bytes[];
};

struct jinja_limits jinja_limits_for(size_t input_bytes) {
    const size_t bytes = input_bytes < SIZE_MAX / 128 ? 48 * input_bytes : SIZE_MAX / 2;
    return (struct jinja_limits){.steps = 4000000 + (uint64_t)input_bytes * 2, .bytes = (32U << 20) + bytes};
}

void jinja_run_init(struct jinja_run *run, const struct jinja_limits *limits, struct error *error) {
    *run = (struct jinja_run){.bytes_max = limits->bytes, .steps_max = limits->steps, .error = error};
}

void jinja_run_deinit(struct jinja_run *run) {
    while (run->blocks != NULL) {
        struct jinja_block *block = run->blocks;
        run->blocks = block->next;
        free(block);
    }
}

bool jinja_failed(const struct jinja_run *run) { return run->status != STATUS_OK; }

struct jinja_value jinja_fail(struct jinja_run *run, enum status status, const char *format, ...) {
    const struct jinja_value nothing = {.kind = JINJA_UNDEFINED};
    if (run->status != STATUS_OK) return nothing;
    char message[300];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    for (char *c = message; *c != '\0'; c++)
        if ((unsigned char)*c < ' ') *c = ' '; /* one line */
    if (status == STATUS_UNSUPPORTED)
        run->status = error_set(run->error, status, "tokenizer.chat_template, line %u: %s", run->line, message);
    else
        run->status = error_set(run->error, status, "%s", message);
    return nothing;
}

bool jinja_charge(struct jinja_run *run, uint64_t steps) {
    run->steps += steps;
    if (run->steps > run->steps_max)
        jinja_fail(run, STATUS_USAGE, "tokenizer.chat_template takes more than %llu steps for this conversation",
                   (unsigned long long)run->steps_max);
    return run->status == STATUS_OK;
}

bool jinja_charge_bytes(struct jinja_run *run, size_t bytes) { return jinja_charge(run, bytes / STEP_BYTES); }

static struct jinja_block *block_create(struct jinja_run *run, size_t bytes) {
    const size_t size = bytes > BLOCK_BYTES / 4 ? bytes : BLOCK_BYTES;
    struct jinja_block *block = calloc(1, sizeof *block + size);
    if (block == NULL) {
        jinja_fail(run, STATUS_MEMORY, "no memory for a conversation");
        return NULL;
    }
    block->size = size;
    /* A large one stands behind the one that is being filled. */
    if (size > BLOCK_BYTES && run->blocks != NULL) {
        block->next = run->blocks->next;
        run->blocks->next = block;
    } else {
        block->next = run->blocks;
        run->blocks = block;
    }
    return block;
}

void *jinja_allocate(struct jinja_run *run, size_t bytes) {
    if (run->status != STATUS_OK) return NULL;
    if (bytes > run->bytes_max - run->used_bytes) {
        jinja_fail(run, STATUS_USAGE, "tokenizer.chat_template takes more than %zu bytes for this conversation",
                   run->bytes_max);
        return NULL;
    }
    bytes = (bytes + 15) / 16 * 16;
    run->used_bytes += bytes < run->bytes_max - run->used_bytes ? bytes : run->bytes_max - run->used_bytes;
    struct jinja_block *block = run->blocks;
    if (block == NULL || block->size - block->used < bytes) block = block_create(run, bytes);
    if (block == NULL) return NULL;
    void *memory = block->bytes + block->used;
    block->used += bytes;
    return memory;
}
