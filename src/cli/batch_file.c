#include "cli/batch_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "platform/clock.h"

enum { SYNC_SECONDS = 1, SHOWN_MAX = 80 };

/* What every answer begins with, as batch_file_write writes it. */
static const char line_begin[] = "{\"id\":\"batch_req_";

static const char *kind_of(const json_t *value) {
    if (value == NULL) return "nothing";
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "a list";
    case JSON_STRING: return "a string";
    case JSON_INTEGER:
    case JSON_REAL: return "a number";
    case JSON_TRUE:
    case JSON_FALSE: return "a truth value";
    case JSON_NULL: return "null";
    }
    return "something else";
}

static enum status parse(const char *path, size_t line, const char *text, size_t length, json_t **object,
                         struct error *error) {
    json_error_t why;
    *object = json_loadb(text, length, JSON_REJECT_DUPLICATES, &why);
    if (*object == NULL)
        return error_set(error, STATUS_USAGE, "%s:%zu: column %d: %s", path, line, why.column, why.text);
    if (json_is_object(*object)) return STATUS_OK;
    enum status status =
        error_set(error, STATUS_USAGE, "%s:%zu: found %s, expected an object", path, line, kind_of(*object));
    json_decref(*object);
    *object = NULL;
    return status;
}

static enum status want_string(const char *path, size_t line, const json_t *object, const char *field,
                               const char **text, struct error *error) {
    const json_t *value = json_object_get(object, field);
    *text = json_string_value(value);
    if (*text != NULL) return STATUS_OK;
    return error_set(error, STATUS_USAGE, "%s:%zu: field '%s': found %s, expected a string", path, line, field,
                     kind_of(value));
}

/* ---- the requests ---- */

static enum status check_request(const struct batch_file *file, size_t line, const json_t *object, const char **id,
                                 struct error *error) {
    const char *method, *url, *path = file->input_path;
    TRY(want_string(path, line, object, "custom_id", id, error));
    TRY(want_string(path, line, object, "method", &method, error));
    TRY(want_string(path, line, object, "url", &url, error));
    const json_t *body = json_object_get(object, "body");
    if (strcmp(method, "POST") != 0)
        return error_set(error, STATUS_USAGE, "%s:%zu: field 'method': found \"%.*s\", expected \"POST\"", path, line,
                         SHOWN_MAX, method);
    if (!json_is_object(body))
        return error_set(error, STATUS_USAGE, "%s:%zu: field 'body': found %s, expected an object", path, line,
                         kind_of(body));
    if (json_is_true(json_object_get(body, "stream")))
        return error_set(error, STATUS_USAGE, "%s:%zu: field 'body.stream': found true, expected none in a batch", path,
                         line);
    const json_t *before = json_object_get(file->ids, *id);
    if (before != NULL)
        return error_set(error, STATUS_USAGE, "%s:%zu: field 'custom_id': found \"%.*s\", which line %zu has, too",
                         path, line, SHOWN_MAX, *id, file->requests[json_integer_value(before)].line);
    return STATUS_OK;
}

static enum status add_request(struct batch_file *file, size_t line, uint64_t offset, const char *text, size_t length,
                               struct error *error) {
    json_t *object;
    const char *id = NULL;
    TRY(parse(file->input_path, line, text, length, &object, error));
    enum status status = check_request(file, line, object, &id, error);
    if (status == STATUS_OK && (!array_reserve(&file->requests, file->count, &file->capacity, sizeof *file->requests) ||
                                json_object_set_new(file->ids, id, json_integer((json_int_t)file->count)) != 0))
        status = error_set(error, STATUS_MEMORY, "%s: out of memory", file->input_path);
    if (status == STATUS_OK)
        file->requests[file->count++] = (struct batch_request){.offset = offset, .length = length, .line = line};
    json_decref(object);
    return status;
}

static bool is_blank(const char *text, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (strchr(" \t\r\n", text[i]) == NULL) return false;
    return true;
}

static enum status read_requests(struct batch_file *file, struct error *error) {
    char *text = NULL;
    size_t capacity = 0, line = 0;
    uint64_t offset = 0;
    enum status status = STATUS_OK;
    for (ssize_t length; status == STATUS_OK && (length = getline(&text, &capacity, file->input)) > 0;) {
        line++;
        if (!is_blank(text, (size_t)length)) status = add_request(file, line, offset, text, (size_t)length, error);
        offset += (uint64_t)length;
    }
    if (status == STATUS_OK && ferror(file->input))
        status = error_set_os(error, STATUS_IO, errno, "%s", file->input_path);
    if (status == STATUS_OK && file->count == 0)
        status = error_set(error, STATUS_USAGE, "%s: found no request", file->input_path);
    free(text);
    return status;
}

enum status batch_file_read(struct batch_file *file, size_t index, struct batch_line *line, struct error *error) {
    const struct batch_request *request = &file->requests[index];
    char *text = malloc(request->length + 1);
    if (text == NULL) return error_set(error, STATUS_MEMORY, "%s: out of memory", file->input_path);
    enum status status = STATUS_OK;
    if (fseeko(file->input, (off_t)request->offset, SEEK_SET) != 0 ||
        fread(text, 1, request->length, file->input) != request->length)
        status = error_set(error, STATUS_IO, "%s: changed while it was read", file->input_path);
    if (status == STATUS_OK)
        status = parse(file->input_path, request->line, text, request->length, &line->object, error);
    free(text);
    TRY(status);
    line->id = json_string_value(json_object_get(line->object, "custom_id"));
    line->url = json_string_value(json_object_get(line->object, "url"));
    line->body = json_object_get(line->object, "body");
    const json_t *own = line->id != NULL ? json_object_get(file->ids, line->id) : NULL;
    if (own != NULL && (size_t)json_integer_value(own) == index && line->url != NULL && json_is_object(line->body))
        return STATUS_OK;
    json_decref(line->object);
    return error_set(error, STATUS_IO, "%s: changed while it was read", file->input_path);
}

/* ---- the answers ---- */

static enum status note_answer(struct batch_file *file, size_t line, const char *text, size_t length,
                               struct error *error) {
    json_t *object;
    const char *id;
    enum status status = parse(file->output_path, line, text, length, &object, error);
    if (status == STATUS_OK) {
        status = want_string(file->output_path, line, object, "custom_id", &id, error);
        const json_t *index = status == STATUS_OK ? json_object_get(file->ids, id) : NULL;
        if (status == STATUS_OK && (index == NULL || !json_is_object(json_object_get(object, "response"))))
            status = error_set(error, STATUS_USAGE, "%s:%zu: \"%.*s\" is no answer to a request of %s",
                               file->output_path, line, SHOWN_MAX, id, file->input_path);
        if (status == STATUS_OK) {
            struct batch_request *request = &file->requests[json_integer_value(index)];
            file->answered_before += !request->is_answered;
            request->is_answered = true;
        }
        json_decref(object);
    }
    if (status != STATUS_USAGE) return status;
    struct error reason = *error;
    return error_set(error, STATUS_USAGE, "%s; another file is needed for the answers", reason.message);
}

/* A line that a kill cut short; of other programs' files nothing is removed. */
static enum status drop_tail(struct batch_file *file, size_t line, const char *text, size_t length,
                             struct error *error) {
    const size_t shared = length < strlen(line_begin) ? length : strlen(line_begin);
    if (memcmp(text, line_begin, shared) != 0)
        return error_set(error, STATUS_USAGE, "%s:%zu: no answer of loam batch; another file is needed for the answers",
                         file->output_path, line);
    if (ftruncate(file->output, (off_t)file->output_bytes) == 0) return STATUS_OK;
    return error_set_os(error, STATUS_IO, errno, "%s", file->output_path);
}

static enum status read_answers(struct batch_file *file, struct error *error) {
    int copy = dup(file->output);
    FILE *stream = copy >= 0 ? fdopen(copy, "re") : NULL;
    if (stream == NULL) {
        if (copy >= 0) close(copy);
        return error_set_os(error, STATUS_IO, errno, "%s", file->output_path);
    }
    char *text = NULL;
    size_t capacity = 0, line = 0;
    enum status status = STATUS_OK;
    for (ssize_t length; status == STATUS_OK && (length = getline(&text, &capacity, stream)) > 0;) {
        line++;
        if (text[length - 1] != '\n') {
            status = drop_tail(file, line, text, (size_t)length, error);
            break;
        }
        if (!is_blank(text, (size_t)length)) status = note_answer(file, line, text, (size_t)length, error);
        file->output_bytes += (uint64_t)length;
    }
    if (status == STATUS_OK && ferror(stream)) status = error_set_os(error, STATUS_IO, errno, "%s", file->output_path);
    free(text);
    fclose(stream);
    return status;
}

static enum status open_output(struct batch_file *file, struct error *error) {
    struct stat in, out;
    file->output = open(file->output_path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file->output < 0 || fstat(file->output, &out) != 0 || fstat(fileno(file->input), &in) != 0)
        return error_set_os(error, STATUS_IO, errno, "%s", file->output_path);
    if (!S_ISREG(out.st_mode))
        return error_set(error, STATUS_USAGE, "%s: expected a regular file for the answers", file->output_path);
    if (in.st_dev == out.st_dev && in.st_ino == out.st_ino)
        return error_set(error, STATUS_USAGE, "%s: requests and answers are the same file", file->output_path);
    if (flock(file->output, LOCK_EX | LOCK_NB) != 0)
        return error_set(error, STATUS_USAGE, "%s: another loam batch writes to it", file->output_path);
    return STATUS_OK;
}

static bool write_all(int file, const char *text, size_t length) {
    while (length > 0) {
        ssize_t written = write(file, text, length);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return false;
        text += written;
        length -= (size_t)written;
    }
    return true;
}

/* NULL: no memory, or bytes that are no JSON. */
static char *answer_line(const char *id, const struct server_answer *answer) {
    json_error_t why;
    json_t *body = json_loadb(answer->bytes != NULL ? answer->bytes : "", answer->length, 0, &why);
    if (body == NULL) return NULL;
    char name[64];
    snprintf(name, sizeof name, "batch_%s", answer->id);
    json_t *line = json_pack("{s:s, s:s, s:{s:i, s:s, s:o}, s:n}", "id", name, "custom_id", id, "response",
                             "status_code", (int)answer->http_status, "request_id", answer->id, "body", body, "error");
    char *text = line != NULL ? json_dumps(line, JSON_COMPACT) : NULL;
    json_decref(line);
    return text;
}

enum status batch_file_write(struct batch_file *file, size_t index, const struct server_answer *answer,
                             struct error *error) {
    struct batch_line request;
    TRY(batch_file_read(file, index, &request, error));
    char *text = answer_line(request.id, answer);
    json_decref(request.object);
    if (text == NULL) return error_set(error, STATUS_MEMORY, "%s: out of memory", file->output_path);
    const size_t length = strlen(text);
    text[length] = '\n';
    enum status status = STATUS_OK;
    if (!write_all(file->output, text, length + 1)) {
        status = error_set_os(error, STATUS_IO, errno, "%s", file->output_path);
        (void)!ftruncate(file->output, (off_t)file->output_bytes); /* else the next run removes it */
    }
    free(text);
    TRY(status);
    file->output_bytes += length + 1;
    file->requests[index].is_answered = true;
    return clock_seconds() < file->synced + SYNC_SECONDS ? STATUS_OK : batch_file_sync(file, error);
}

enum status batch_file_sync(struct batch_file *file, struct error *error) {
    file->synced = clock_seconds();
    return fdatasync(file->output) == 0 ? STATUS_OK : error_set_os(error, STATUS_IO, errno, "%s", file->output_path);
}

enum status batch_file_open(struct batch_file *file, const char *input_path, const char *output_path,
                            struct error *error) {
    *file = (struct batch_file){.input_path = input_path, .output_path = output_path, .output = -1};
    file->input = fopen(input_path, "re");
    if (file->input == NULL) return error_set_os(error, STATUS_IO, errno, "%s", input_path);
    struct stat info;
    if (fstat(fileno(file->input), &info) != 0 || !S_ISREG(info.st_mode))
        return error_set(error, STATUS_USAGE, "%s: expected a regular file of requests", input_path);
    file->ids = json_object();
    if (file->ids == NULL) return error_set(error, STATUS_MEMORY, "%s: out of memory", input_path);
    TRY(read_requests(file, error));
    TRY(open_output(file, error));
    return read_answers(file, error);
}

void batch_file_close(struct batch_file *file) {
    if (file->input != NULL) fclose(file->input);
    if (file->output >= 0) close(file->output);
    json_decref(file->ids);
    free(file->requests);
}
