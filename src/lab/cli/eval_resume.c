#include "lab/cli/eval_resume.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checked.h"
#include "model/calibration.h"
#include "platform/file.h"

static uint64_t fnv1a(uint64_t hash, const char *bytes, size_t length) {
    for (size_t i = 0; i < length; i++) hash = (hash ^ (uint8_t)bytes[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* The closing zero separates one text from the next. */
static uint64_t mix_text(uint64_t hash, const char *text) {
    return text != NULL ? fnv1a(hash, text, strlen(text) + 1) : fnv1a(hash, "\0", 2);
}

void evaluation_run_id(const struct evaluation *evaluation, const struct text *what, char id[EVAL_RUN_ID_BYTES]) {
    char model[CALIBRATION_FINGERPRINT_BYTES];
    calibration_fingerprint(&evaluation->session.model->gguf, &evaluation->session.model->config, model);
    uint64_t hash = mix_text(UINT64_C(0xcbf29ce484222325), model);
    hash = mix_text(hash, option_text(evaluation->options, OPTION_KEEP));
    hash = mix_text(hash, option_text(evaluation->options, OPTION_SET));
    hash = mix_text(hash, evaluation->tiers.used ? option_text(evaluation->options, OPTION_KV_HOST) : NULL);
    hash = mix_text(hash, kv_type_name(evaluation->plans[0].k_type));
    hash = mix_text(hash, kv_type_name(evaluation->plans[0].v_type));
    hash = fnv1a(hash, what->bytes, what->length);
    snprintf(id, EVAL_RUN_ID_BYTES, "%016" PRIx64, hash);
}

/* A file of lines, and what they must be of. */
struct lines {
    const char *path, *text, *id;
    size_t length;
};

static enum status read_line(const struct lines *lines, size_t at, size_t length, size_t number, json_t **object,
                             struct error *error) {
    json_error_t reason;
    *object = json_loadb(lines->text + at, length, 0, &reason);
    if (*object == NULL)
        return error_set(error, STATUS_USAGE, "--resume: %s: line %zu: not a line of JSON: %s", lines->path, number,
                         reason.text);
    const char *found = json_string_value(json_object_get(*object, "run"));
    if (found == NULL || strcmp(found, lines->id) != 0)
        return error_set(error, STATUS_USAGE,
                         "--resume: %s: line %zu is of another run: the model, the text, --seed, "
                         "--shared-text and its tasks, --keep, --set, -ctk and -ctv must be the same",
                         lines->path, number);
    return STATUS_OK;
}

/* The beginning of a line whose writing was cut short. */
static bool is_begun(const char *text, size_t length) {
    static const char start[] = "{\"task\":\"";
    return memcmp(text, start, min_size(length, sizeof start - 1)) == 0;
}

/* Looks at every line before anything is counted or cut. */
static enum status read_lines(const struct lines *lines, evaluation_each_line *each, void *context,
                              struct error *error) {
    for (int pass = 0; pass < 2; pass++) {
        size_t number = 0, at = 0;
        while (at < lines->length) {
            const char *begin = lines->text + at;
            size_t line = (size_t)((const char *)memchr(begin, '\n', lines->length - at) - begin);
            json_t *object;
            enum status status = read_line(lines, at, line, ++number, &object, error);
            if (status == STATUS_OK && pass == 1) each(context, object);
            json_decref(object);
            TRY(status);
            at += line + 1;
        }
    }
    return STATUS_OK;
}

enum status evaluation_resume(struct evaluation *evaluation, const char *id, evaluation_each_line *each, void *context,
                              struct error *error) {
    const size_t bytes_max = (size_t)1 << 30;
    const char *path = evaluation->jsonl.path;
    struct stat info;
    char *text;
    size_t length;
    errno = 0;
    if (fstat(fileno(evaluation->jsonl.stream), &info) != 0 || !S_ISREG(info.st_mode))
        return error_set(error, STATUS_USAGE, "--resume: %s: expected a file that can be read again", path);
    if (info.st_size == 0) return STATUS_OK;
    TRY(file_read_all(path, bytes_max, &text, &length, error));
    size_t whole = length;
    while (whole > 0 && text[whole - 1] != '\n') whole--;
    enum status status = STATUS_OK;
    if (!is_begun(text + whole, length - whole))
        status = error_set(error, STATUS_USAGE, "--resume: %s: its last line is none of an evaluation", path);
    const struct lines lines = {.path = path, .text = text, .id = id, .length = whole};
    if (status == STATUS_OK) status = read_lines(&lines, each, context, error);
    free(text);
    TRY(status);
    if (whole < length && ftruncate(fileno(evaluation->jsonl.stream), (off_t)whole) != 0)
        return error_set_os(error, STATUS_IO, errno, "%s", path);
    return STATUS_OK;
}
