/* Any bytes as config.json and tokenizer.json of a model folder (a zero byte between them), with the weights of a tiny
 * llama: rejected with a reason and nothing left behind, or a GGUF file that opens. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/assert.h"
#include "format/gguf.h"
#include "lab/import/import.h"
#include "model/model.h"
#include "token/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HIDDEN = 8, FFN = 12, VOCABULARY = 288 }; /* as tools/make_fuzz_seeds.py has them */

static char folder[64], config_path[96], tokenizer_path[96], weights_path[96], output_path[96];

static void write_file(const char *path, const void *data, size_t size) {
    FILE *file = fopen(path, "wb");
    ASSERT(file != NULL && fwrite(data, 1, size, file) == size);
    ASSERT(fclose(file) == 0);
}

static void write_weights(void) {
    static const struct {
        const char *name;
        unsigned rows, columns; /* columns 0: a vector */
    } tensors[] = {{"model.embed_tokens.weight", VOCABULARY, HIDDEN},
                   {"model.norm.weight", HIDDEN, 0},
                   {"model.layers.0.input_layernorm.weight", HIDDEN, 0},
                   {"model.layers.0.self_attn.q_proj.weight", HIDDEN, HIDDEN},
                   {"model.layers.0.self_attn.k_proj.weight", HIDDEN / 2, HIDDEN},
                   {"model.layers.0.self_attn.v_proj.weight", HIDDEN / 2, HIDDEN},
                   {"model.layers.0.self_attn.o_proj.weight", HIDDEN, HIDDEN},
                   {"model.layers.0.post_attention_layernorm.weight", HIDDEN, 0},
                   {"model.layers.0.mlp.gate_proj.weight", FFN, HIDDEN},
                   {"model.layers.0.mlp.up_proj.weight", FFN, HIDDEN},
                   {"model.layers.0.mlp.down_proj.weight", HIDDEN, FFN}};
    static char file[8 + 4096 + 4 * HIDDEN * (VOCABULARY + 64 + 4 * FFN)];
    char *header = file + 8;
    size_t used = 0, offset = 0;
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        unsigned rows = tensors[i].rows, columns = tensors[i].columns;
        size_t end = offset + sizeof(float) * rows * (columns ? columns : 1);
        used += (size_t)sprintf(header + used, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%u", i ? "," : "{",
                                tensors[i].name, rows);
        if (columns) used += (size_t)sprintf(header + used, ",%u", columns);
        used += (size_t)sprintf(header + used, "],\"data_offsets\":[%zu,%zu]}", offset, end);
        offset = end;
    }
    header[used++] = '}';
    while (used % 8 != 0) header[used++] = ' ';
    ASSERT(used <= 4096 && 8 + used + offset <= sizeof file);
    memset(header + used, 0, offset);
    uint64_t length = used;
    memcpy(file, &length, sizeof length);
    write_file(weights_path, file, 8 + used + offset);
}

static void remove_folder(void) {
    unlink(config_path);
    unlink(tokenizer_path);
    unlink(weights_path);
    unlink(output_path);
    rmdir(folder);
}

static void make_folder(void) {
    const char *parent = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%.40s/loam-fuzz-XXXXXX", parent != NULL ? parent : "/tmp");
    ASSERT(mkdtemp(folder) != NULL);
    snprintf(config_path, sizeof config_path, "%s/config.json", folder);
    snprintf(tokenizer_path, sizeof tokenizer_path, "%s/tokenizer.json", folder);
    snprintf(weights_path, sizeof weights_path, "%s/model.safetensors", folder);
    snprintf(output_path, sizeof output_path, "%s/out.gguf", folder);
    write_weights();
    atexit(remove_folder);
}

/* What was written is a model file; whether a tokenizer can be made of it is another matter. */
static void check_output(void) {
    struct gguf gguf;
    struct error error = {0};
    struct arena arena;
    struct model_config config;
    struct tokenizer *tokenizer = NULL;
    ASSERT(gguf_open(&gguf, output_path, &error) == STATUS_OK);
    arena_init(&arena);
    if (model_config_read(&config, &gguf, &arena, &error) != STATUS_OK) ASSERT(error.message[0] != '\0');
    if (tokenizer_create(&tokenizer, &gguf, true, &error) == STATUS_OK)
        tokenizer_destroy(tokenizer);
    else
        ASSERT(error.message[0] != '\0' && strchr(error.message, '\n') == NULL);
    arena_deinit(&arena);
    gguf_close(&gguf);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (folder[0] == '\0') make_folder();
    const uint8_t *cut = size > 0 ? memchr(data, 0, size) : NULL;
    size_t config_size = cut != NULL ? (size_t)(cut - data) : size;
    write_file(config_path, data, config_size);
    write_file(tokenizer_path, cut != NULL ? cut + 1 : data, cut != NULL ? size - config_size - 1 : 0);
    struct error error = {0};
    enum status status = model_import(folder, output_path, NULL, NULL, &error);
    if (status == STATUS_OK) {
        check_output();
        unlink(output_path);
    } else {
        ASSERT(status == STATUS_MODEL || status == STATUS_UNSUPPORTED || status == STATUS_IO);
        ASSERT(error.message[0] != '\0' && strchr(error.message, '\n') == NULL);
        ASSERT(access(output_path, F_OK) != 0);
    }
    return 0;
}
