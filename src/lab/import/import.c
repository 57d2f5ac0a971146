#include "lab/import/import.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "format/json.h"
#include "lab/import/import_internal.h"
#include "platform/cpu.h"
#include "platform/file.h"

enum { JSON_BYTES_MAX = 200 << 20, TEMPLATE_BYTES_MAX = 4 << 20 };

static enum status path_in(struct import *import, const char *file, char **path) {
    size_t length = strlen(import->folder) + strlen(file) + 2;
    *path = arena_allocate(&import->arena, length);
    if (*path == NULL) return error_set(import->error, STATUS_MEMORY, "out of memory");
    snprintf(*path, length, "%s/%s", import->folder, file);
    return STATUS_OK;
}

static enum status read_json(struct import *import, const char *file, bool required, struct import_source *source) {
    char *path;
    source->file = file;
    TRY(path_in(import, file, &path));
    if (!required && access(path, F_OK) != 0) return STATUS_OK;
    return json_parse_file(path, JSON_BYTES_MAX, &source->object, import->error);
}

static enum status read_template(struct import *import) {
    char *path;
    TRY(path_in(import, "chat_template.jinja", &path));
    if (access(path, F_OK) != 0) return STATUS_OK;
    return file_read_all(path, TEMPLATE_BYTES_MAX, &import->chat_template, &import->chat_template_bytes, import->error);
}

static enum status read_options(struct import *import) {
    static const struct {
        const char *name;
        enum tensor_type type;
        uint32_t file_type;
    } known[] = {{"F32", TENSOR_F32, 0}, {"F16", TENSOR_F16, 1}, {"BF16", TENSOR_BF16, 32}, {"Q8_0", TENSOR_Q8_0, 7}};
    const char *name = import->options->type_name;
    import->keep_type = name == NULL;
    /* The name of the type when types are kept: the type of most weights, which is the embedding's. */
    const struct safetensors_tensor *embedding = NULL;
    static const char *const names[] = {"model.embed_tokens.weight", "model.decoder.embed_tokens.weight",
                                        "decoder.embed_tokens.weight"};
    for (size_t i = 0; i < sizeof names / sizeof names[0] && embedding == NULL; i++)
        embedding = safetensors_find(&import->weights, names[i]);
    if (name == NULL) name = embedding != NULL ? embedding->dtype : "F32";
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcasecmp(known[i].name, name) == 0) {
            import->type = known[i].type;
            import->file_type = known[i].file_type;
            return STATUS_OK;
        }
    if (import->keep_type) return STATUS_OK; /* refused where that tensor is looked at */
    return error_set(import->error, STATUS_USAGE,
                     "type '%.40s': an import writes F32, F16, BF16 or Q8_0; use quantize for others", name);
}

static enum status run(struct import *import) {
    TRY(read_json(import, "config.json", true, &import->config_source));
    TRY(import_read_config(import));
    TRY(read_json(import, "generation_config.json", false, &import->generation));
    TRY(read_json(import, "tokenizer_config.json", false, &import->tokenizer_config));
    TRY(read_json(import, "tokenizer.json", true, &import->tokenizer));
    TRY(read_template(import));
    TRY(safetensors_open(&import->weights, import->folder, import->error));
    TRY(read_options(import));
    convert_kernels_init(&import->convert, cpu_features());
    TRY(gguf_writer_create(&import->writer, import->output, import->error));
    TRY(import_write_config(import));
    TRY(import_write_tokenizer(import));
    TRY(import_write_special(import));
    TRY(import_declare_tensors(import));
    TRY(gguf_writer_begin_data(import->writer, import->error));
    TRY(import_write_tensors(import));
    import->report->architecture = import->config.architecture;
    for (uint32_t i = 0; i < import->weights.file_count; i++)
        TRY(file_map_check(&import->weights.maps[i], import->error));
    return gguf_writer_commit(import->writer, import->error);
}

enum status model_import(const char *folder, const char *output, const struct import_options *options,
                         struct import_report *report, struct error *error) {
    static const struct import_options no_options;
    struct import_report own;
    struct import import = {.folder = folder,
                            .output = output,
                            .options = options == NULL ? &no_options : options,
                            .report = report == NULL ? &own : report,
                            .error = error};
    *import.report = (struct import_report){0};
    arena_init(&import.arena);
    enum status status = run(&import);
    gguf_writer_destroy(import.writer);
    safetensors_close(&import.weights);
    json_decref(import.config_source.object);
    json_decref(import.generation.object);
    json_decref(import.tokenizer_config.object);
    json_decref(import.tokenizer.object);
    free(import.chat_template);
    arena_deinit(&import.arena);
    return status;
}
