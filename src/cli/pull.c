/* loam pull: a model from the registry, or from an address, into the folder of models. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/utf8.h"
#include "pull/digest.h"
#include "pull/download.h"
#include "pull/known_model.h"
#include "pull/model_folder.h"

enum { SHOWN_BYTES = 200 };

struct pulling {
    struct progress progress;
    struct source source;
    char *folder;
    const char *name; /* of the file that is on its way */
    bool quiet;
};

static void begins(void *context, uint64_t size_bytes, uint64_t here_bytes) {
    struct pulling *pulling = context;
    char size[32], here[32], license[SHOWN_BYTES];
    progress_begin(&pulling->progress, "pull", pulling->quiet);
    pulling->progress.unit = PROGRESS_BYTES;
    pulling->progress.before = here_bytes;
    if (pulling->quiet) return;
    const char *terms = pulling->source.license;
    fprintf(stderr, "loam: %s, %s%s%s%s%s\n", pulling->name,
            size_bytes != UINT64_MAX ? bytes_text(size_bytes, size, sizeof size) : "of unknown size",
            here_bytes > 0 ? ", going on after " : "", here_bytes > 0 ? bytes_text(here_bytes, here, sizeof here) : "",
            terms != NULL ? ", licence " : "",
            terms != NULL ? utf8_escape(terms, strlen(terms), license, sizeof license) : "");
}

static void progress(void *context, uint64_t done_bytes, uint64_t size_bytes) {
    struct pulling *pulling = context;
    if (size_bytes != UINT64_MAX) progress_update(&pulling->progress, done_bytes, size_bytes);
}

static void note(void *context, const char *line) {
    struct pulling *pulling = context;
    progress_end(&pulling->progress);
    if (!pulling->quiet) fprintf(stderr, "loam: note: %s; asking again\n", line);
}

static bool stops(void *context) {
    (void)context;
    return interrupt_requested();
}

static enum status pull_file(struct pulling *pulling, uint32_t index, const char *sha256, struct error *error) {
    char *address = NULL, *name = NULL;
    bool was_there = false;
    enum status status = source_shard(&pulling->source, index, &address, &name, error);
    if (status == STATUS_OK) {
        const struct download download = {
            .source = &pulling->source, .address = address, .folder = pulling->folder, .name = name, .sha256 = sha256};
        const struct download_listener listener = {
            .context = pulling, .begins = begins, .progress = progress, .note = note, .stops = stops};
        pulling->name = name;
        status = download_file(&download, &listener, &was_there, error);
        progress_end(&pulling->progress);
        if (status == STATUS_INTERRUPTED && !pulling->quiet)
            fprintf(stderr, "loam: stopped; the same command goes on from here\n");
        if (was_there && status == STATUS_OK && !pulling->quiet) fprintf(stderr, "loam: %s is there already\n", name);
    }
    free(address);
    free(name);
    return status;
}

/* The last lines: the path on standard output, and what to do with it. */
static enum status tell(const struct pulling *pulling, const char *asked, struct error *error) {
    const struct known_model *known = known_model_find(asked);
    size_t stem = strlen(pulling->source.name) - strlen(".gguf");
    uint32_t index, count;
    char *first = NULL, *address = NULL;
    (void)shard_parse(pulling->source.name, &stem, &index, &count);
    enum status status = source_shard(&pulling->source, 1, &address, &first, error);
    if (status == STATUS_OK) output_text("%s/%s\n", pulling->folder, first);
    if (status == STATUS_OK && !pulling->quiet)
        fprintf(stderr, "loam: try: loam run -m %.*s -f FILE -p \"...\"\n",
                known != NULL ? (int)strlen(asked) : (int)stem, known != NULL ? asked : first);
    free(address);
    free(first);
    return status == STATUS_OK ? output_flush(error) : status;
}

static enum status pull_all(struct pulling *pulling, const struct options *options, struct error *error) {
    const char *asked = options->positionals[0], *sha256 = option_text(options, OPTION_SHA256);
    if (sha256 != NULL && !digest_is_text(sha256))
        return error_set(error, STATUS_USAGE, "--sha256: found '%.80s', expected 64 hexadecimal digits", sha256);
    TRY(source_parse(&pulling->source, asked, error));
    TRY(source_resolve(&pulling->source, stops, NULL, error));
    TRY(model_folder_make(&pulling->folder, error));
    size_t stem;
    uint32_t index, count = 1;
    if (!shard_parse(pulling->source.name, &stem, &index, &count)) count = 1;
    if (sha256 != NULL && count > 1)
        return error_set(error, STATUS_USAGE, "--sha256: %s is one of %u files", pulling->source.name, count);
    for (uint32_t i = 1; i <= count; i++) TRY(pull_file(pulling, i, sha256, error));
    return tell(pulling, asked, error);
}

enum status pull_command(const struct options *options, struct error *error) {
    struct pulling pulling = {.quiet = option_flag(options, OPTION_QUIET)};
    interrupt_install();
    enum status status = pull_all(&pulling, options, error);
    if (status == STATUS_INTERRUPTED) error->message[0] = '\0';
    if (status != STATUS_OK && error->message[0] != '\0') error_prefix(error, "pull");
    source_deinit(&pulling.source);
    free(pulling.folder);
    return status;
}
