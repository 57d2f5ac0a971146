#include "platform/filter.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "platform/child.h"
#include "platform/clock.h"

/* A file in memory with the input: a program that leaves early breaks no pipe, and one that seeks can. */
static enum status open_input(const struct filter *filter, int *input, struct error *error) {
    const char *bytes = filter->input;
    *input = memfd_create("input", MFD_CLOEXEC);
    if (*input < 0) return error_set_os(error, STATUS_IO, errno, "%s: input", filter->arguments[0]);
    for (size_t written = 0; written < filter->input_bytes;) {
        const ssize_t count = write(*input, bytes + written, filter->input_bytes - written);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) {
            const int failed = errno;
            close(*input);
            return error_set_os(error, STATUS_MEMORY, failed, "%s: input", filter->arguments[0]);
        }
        written += (size_t)count;
    }
    (void)lseek(*input, 0, SEEK_SET);
    return STATUS_OK;
}

static void bound(pid_t pid, int resource, uint64_t value) {
    (void)prlimit(pid, (enum __rlimit_resource)resource, &(struct rlimit){value, value}, NULL);
}

static bool is_late(void *until) { return clock_seconds() >= *(const double *)until; }

static enum status read_output(const struct filter *filter, struct child *child, struct text *text,
                               struct error *error) {
    double until = clock_seconds() + filter->seconds;
    const size_t begin = text->length;
    char block[65536];
    child->stops = is_late;
    child->stops_context = &until;
    for (;;) {
        size_t count;
        const enum status status = child_read(child, block, sizeof block, &count, error);
        if (status == STATUS_INTERRUPTED)
            return error_set(error, STATUS_FULL, "%s took longer than %u s", filter->arguments[0], filter->seconds);
        if (status != STATUS_OK || count == 0) return status;
        if (text->length - begin + count > filter->output_bytes)
            return error_set(error, STATUS_FULL, "%s wrote more than %zu bytes", filter->arguments[0],
                             filter->output_bytes);
        text_append(text, block, count);
        if (text->failed) return error_set(error, STATUS_MEMORY, "no memory for what %s writes", filter->arguments[0]);
    }
}

/* One that closed its output and goes on has a second to end. */
static bool ends(const struct child *child) {
    enum { PAUSES = 200, PAUSE_US = 5000 };
    siginfo_t ended = {0};
    for (int i = 0; i < PAUSES; i++) {
        if (waitid(P_PID, (id_t)child->id, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid != 0) return true;
        usleep(PAUSE_US);
    }
    return false;
}

enum status filter_run(const struct filter *filter, struct text *output, int *code, struct error *error) {
    int input;
    struct child child;
    TRY(open_input(filter, &input, error));
    enum status status = child_start(&child, filter->arguments, &input, error);
    close(input);
    if (status != STATUS_OK) return status;
    /* They come a moment after its beginning. */
    bound(child.id, RLIMIT_AS, filter->memory_bytes);
    bound(child.id, RLIMIT_CPU, filter->seconds);
    bound(child.id, RLIMIT_CORE, 0);
    status = read_output(filter, &child, output, error);
    if (status != STATUS_OK || !ends(&child)) (void)kill(child.id, SIGKILL);
    *code = child_wait(&child);
    child_close(&child);
    return status;
}
