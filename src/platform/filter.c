#include "platform/filter.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "platform/clock.h"

extern char **environ;

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

/* posix_spawn and not fork: the parent may hold many gigabytes.  So the bounds come a moment after its beginning. */
static int start(const struct filter *filter, int input, int output, pid_t *pid) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, ordinary;
    sigemptyset(&none);
    sigemptyset(&ordinary);
    sigaddset(&ordinary, SIGPIPE);
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    int failed = posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
    if (failed == 0) failed = posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
    if (failed == 0)
        failed = posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    if (failed == 0) failed = posix_spawnattr_setsigmask(&attributes, &none);
    if (failed == 0) failed = posix_spawnattr_setsigdefault(&attributes, &ordinary);
    if (failed == 0)
        failed = posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    if (failed == 0)
        failed = posix_spawnp(pid, filter->arguments[0], &actions, &attributes,
                              (char *const *)filter->arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    if (failed != 0) return failed;
    bound(*pid, RLIMIT_AS, filter->memory_bytes);
    bound(*pid, RLIMIT_CPU, filter->seconds);
    bound(*pid, RLIMIT_CORE, 0);
    return 0;
}

static enum status read_output(const struct filter *filter, int output, struct text *text,
                               struct error *error) {
    const uint64_t until_ns = clock_ns() + (uint64_t)filter->seconds * UINT64_C(1000000000);
    const size_t begin = text->length;
    char block[65536];
    for (;;) {
        const uint64_t now_ns = clock_ns();
        struct pollfd poll_output = {.fd = output, .events = POLLIN};
        if (now_ns >= until_ns)
            return error_set(error, STATUS_FULL, "%s took longer than %u s", filter->arguments[0],
                             filter->seconds);
        const int ready = poll(&poll_output, 1, (int)((until_ns - now_ns) / 1000000 + 1));
        if (ready < 0 && errno != EINTR)
            return error_set_os(error, STATUS_IO, errno, "%s: output", filter->arguments[0]);
        if (ready <= 0) continue;
        const ssize_t count = read(output, block, sizeof block);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return error_set_os(error, STATUS_IO, errno, "%s: output", filter->arguments[0]);
        if (count == 0) return STATUS_OK;
        if (text->length - begin + (size_t)count > filter->output_bytes)
            return error_set(error, STATUS_FULL, "%s wrote more than %zu bytes", filter->arguments[0],
                             filter->output_bytes);
        text_append(text, block, (size_t)count);
        if (text->failed)
            return error_set(error, STATUS_MEMORY, "no memory for what %s writes", filter->arguments[0]);
    }
}

/* Its code.  One that closed its output and goes on has a second to end, if it may. */
static int end(pid_t pid, bool may_end) {
    enum { PAUSES = 200, PAUSE_US = 5000 };
    int state = 0;
    pid_t ended = 0;
    for (int i = 0; i < PAUSES && may_end; i++) {
        ended = waitpid(pid, &state, WNOHANG);
        if (ended != 0) break;
        usleep(PAUSE_US);
    }
    if (ended == 0) (void)kill(pid, SIGKILL);
    while (ended == 0 && waitpid(pid, &state, 0) < 0 && errno == EINTR) {}
    return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
}

enum status filter_run(const struct filter *filter, struct text *output, int *code, struct error *error) {
    int input, ends[2];
    pid_t pid;
    TRY(open_input(filter, &input, error));
    if (pipe2(ends, O_CLOEXEC) != 0) {
        const int failed = errno;
        close(input);
        return error_set_os(error, STATUS_IO, failed, "%s: output", filter->arguments[0]);
    }
    const int failed = start(filter, input, ends[1], &pid);
    close(input);
    close(ends[1]);
    enum status status = STATUS_OK;
    if (failed == ENOENT)
        status = error_set(error, STATUS_UNSUPPORTED, "%s: not found", filter->arguments[0]);
    else if (failed != 0)
        status = error_set_os(error, STATUS_FAILED, failed, "%s", filter->arguments[0]);
    else
        status = read_output(filter, ends[0], output, error);
    close(ends[0]);
    if (failed != 0) return status;
    *code = end(pid, status == STATUS_OK);
    return status;
}
