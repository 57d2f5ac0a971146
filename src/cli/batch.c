/* loam batch: a file of requests, answered together; each pass over the weights is for all that run. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/checked.h"
#include "cli/batch_file.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/served_model.h"
#include "cli/version.h"
#include "platform/clock.h"

enum {
    ASKED_MAX = 128, /* at once; those beyond -np wait in the service, so that no slot is ever empty */
    FAILURES_SHOWN = 5,
    WAIT_MS = 200,         /* until Ctrl-C is looked at */
    PROGRESS_SECONDS = 30, /* between two lines where standard error is no terminal */
    RETRY_SECONDS = 1,
};

struct slot {
    struct batch *batch;
    size_t index;               /* of the request */
    struct server_asked *asked; /* NULL: the slot is free */
    bool is_ready;              /* under the mutex */
};

struct batch {
    struct served_model model;
    struct server *server;
    struct batch_file file;
    struct slot slots[ASKED_MAX];
    size_t slot_count, running, next; /* next: the first request that was not asked */
    size_t answered, refused, failed; /* in this run; refused: of answered, with an error of the request's own */
    double began, shown;
    bool draws;
    pthread_mutex_t mutex;
    pthread_cond_t some_ready;
};

static void ready(void *context) {
    struct slot *slot = context;
    pthread_mutex_lock(&slot->batch->mutex);
    slot->is_ready = true;
    pthread_cond_signal(&slot->batch->some_ready);
    pthread_mutex_unlock(&slot->batch->mutex);
}

/* ---- progress ---- */

static void show_progress(struct batch *batch, bool last) {
    const double now = clock_seconds(), spent = now - batch->began;
    const size_t total = batch->file.count, done = batch->file.answered_before + batch->answered;
    if (option_flag(batch->model.options, OPTION_QUIET)) return;
    if (!last && now < batch->shown + (batch->draws ? 1 : PROGRESS_SECONDS)) return;
    batch->shown = now;
    fprintf(stderr, "%sloam: %zu of %zu answered", batch->draws ? "\r" : "", done, total);
    if (batch->answered > 0 && done < total) {
        const double left = spent / (double)batch->answered * (double)(total - done);
        fprintf(stderr, ", %.1f a minute, %.0f min %02.0f s left", 60 * (double)batch->answered / spent,
                floor(left / 60), fmod(left, 60));
    }
    fputs(batch->draws && !last ? "   " : "\n", stderr);
}

static void say_failure(struct batch *batch, const struct batch_request *request, const struct server_answer *answer) {
    if (batch->failed > FAILURES_SHOWN) return;
    json_error_t why;
    json_t *body = json_loadb(answer->bytes != NULL ? answer->bytes : "", answer->length, 0, &why);
    const char *message = json_string_value(json_object_get(json_object_get(body, "error"), "message"));
    fprintf(stderr, "%sloam: %s:%zu: status %u: %s\n", batch->draws ? "\r" : "", batch->file.input_path, request->line,
            answer->http_status, message != NULL ? message : "no message");
    json_decref(body);
}

/* ---- requests ---- */

static enum status ask(struct batch *batch, struct slot *slot, size_t index, struct error *error) {
    struct batch_line line;
    TRY(batch_file_read(&batch->file, index, &line, error));
    char *body = json_dumps(line.body, JSON_COMPACT);
    *slot = (struct slot){.batch = batch, .index = index};
    const struct server_question question = {.path = line.url,
                                             .body = body != NULL ? body : "",
                                             .length = body != NULL ? strlen(body) : 0,
                                             .ready = ready,
                                             .context = slot};
    if (body != NULL) slot->asked = server_ask(batch->server, &question);
    free(body);
    json_decref(line.object);
    batch->running += slot->asked != NULL;
    if (slot->asked != NULL) return STATUS_OK;
    return error_set(error, STATUS_MEMORY, "%s:%zu: no memory for the request", batch->file.input_path,
                     batch->file.requests[index].line);
}

/* What the service has no place for now is asked again. */
static bool is_busy(const struct server_answer *answer) {
    return answer->http_status == 429 || answer->http_status == 503;
}

static enum status take(struct batch *batch, struct slot *slot, struct error *error) {
    struct server_answer answer = server_take_answer(slot->asked);
    const size_t index = slot->index;
    enum status status = STATUS_OK;
    const bool again = is_busy(&answer) && !interrupt_requested();
    if (answer.http_status < 500 && !is_busy(&answer)) {
        status = batch_file_write(&batch->file, index, &answer, error);
        batch->answered += status == STATUS_OK;
        batch->refused += status == STATUS_OK && answer.http_status >= 400;
    } else if (!again) {
        batch->failed++;
        if (!interrupt_requested()) say_failure(batch, &batch->file.requests[index], &answer);
    }
    free(answer.bytes);
    server_forget(slot->asked);
    slot->asked = NULL;
    batch->running--;
    if (status != STATUS_OK || !again) return status;
    nanosleep(&(struct timespec){.tv_sec = RETRY_SECONDS}, NULL);
    return ask(batch, slot, index, error);
}

/* Waits for an answer, for a while. */
static struct slot *wait_ready(struct batch *batch) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += WAIT_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    struct slot *found = NULL;
    pthread_mutex_lock(&batch->mutex);
    for (int wakes = 0; wakes < 2 && found == NULL; wakes++) {
        for (size_t i = 0; i < batch->slot_count && found == NULL; i++)
            if (batch->slots[i].asked != NULL && batch->slots[i].is_ready) found = &batch->slots[i];
        if (found == NULL && wakes == 0) (void)pthread_cond_timedwait(&batch->some_ready, &batch->mutex, &until);
    }
    pthread_mutex_unlock(&batch->mutex);
    return found;
}

static enum status fill(struct batch *batch, struct error *error) {
    for (size_t i = 0; i < batch->slot_count; i++) {
        if (batch->slots[i].asked != NULL) continue;
        while (batch->next < batch->file.count && batch->file.requests[batch->next].is_answered) batch->next++;
        if (batch->next == batch->file.count) return STATUS_OK;
        TRY(ask(batch, &batch->slots[i], batch->next++, error));
    }
    return STATUS_OK;
}

static enum status answer_all(struct batch *batch, struct error *error) {
    batch->began = clock_seconds();
    for (;;) {
        TRY(fill(batch, error));
        if (batch->running == 0) return STATUS_OK;
        struct slot *slot = wait_ready(batch);
        if (slot != NULL) TRY(take(batch, slot, error));
        if (interrupt_requested()) return STATUS_OK;
        show_progress(batch, false);
    }
}

static void forget_all(struct batch *batch) {
    for (size_t i = 0; i < batch->slot_count; i++)
        if (batch->slots[i].asked != NULL) server_forget(batch->slots[i].asked);
}

/* ---- the command ---- */

static enum status report(struct batch *batch, struct error *error) {
    const size_t left = batch->file.count - batch->file.answered_before - batch->answered;
    show_progress(batch, true);
    if (batch->refused > 0) fprintf(stderr, "loam: of these %zu were refused: their answers say why\n", batch->refused);
    if (left == 0) return STATUS_OK;
    return error_set(error, interrupt_requested() ? STATUS_INTERRUPTED : STATUS_FAILED,
                     "%zu of %zu requests have no answer; the same command asks them again", left, batch->file.count);
}

static enum status run(struct batch *batch, const struct options *options, struct error *error) {
    if (!option_given(options, OPTION_BATCH_INPUT) || !option_given(options, OPTION_BATCH_OUTPUT))
        return error_set(error, STATUS_USAGE, "batch: expected -i REQUESTS and -o ANSWERS");
    TRY(batch_file_open(&batch->file, option_text(options, OPTION_BATCH_INPUT),
                        option_text(options, OPTION_BATCH_OUTPUT), error));
    TRY(served_model_read(&batch->model, options, "batch", error));
    batch->model.is_batch = true;
    if (batch->file.answered_before == batch->file.count) return report(batch, error);
    const struct server_options server = {.version = version_number};
    TRY(server_create(&batch->server, &server, error));
    TRY(served_model_open(&batch->model, error));
    const struct server_model served = served_model_describe(&batch->model);
    server_begin(batch->server, &served);
    batch->draws = output_can_draw();
    batch->slot_count = min_size(2 * service_parallel(batch->model.service), ASKED_MAX);
    enum status status = answer_all(batch, error);
    forget_all(batch);
    server_stop(batch->server, 0);
    struct error unsynced;
    if (batch_file_sync(&batch->file, &unsynced) != STATUS_OK && status == STATUS_OK) {
        *error = unsynced;
        return STATUS_IO;
    }
    TRY(status);
    return report(batch, error);
}

enum status batch_command(const struct options *options, struct error *error) {
    interrupt_install();
    struct batch *batch = calloc(1, sizeof *batch);
    if (batch == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    batch->file.output = -1;
    pthread_mutex_init(&batch->mutex, NULL);
    pthread_cond_init(&batch->some_ready, NULL);
    enum status status = run(batch, options, error);
    server_destroy(batch->server);
    served_model_close(&batch->model);
    batch_file_close(&batch->file);
    pthread_cond_destroy(&batch->some_ready);
    pthread_mutex_destroy(&batch->mutex);
    free(batch);
    return status;
}
