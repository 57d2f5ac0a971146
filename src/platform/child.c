#include "platform/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { ASK_MS = 100 };

/* files: of the child, 0, 1 and 2; -1: nobody hears it.  posix_spawn and not fork: this process may hold many
 * gigabytes. */
static int spawn(pid_t *id, const char *const *argv, const int files[3]) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    int failed = 0;
    for (int i = 0; i < 3 && failed == 0; i++)
        failed = files[i] >= 0 ? posix_spawn_file_actions_adddup2(&actions, files[i], i)
                               : posix_spawn_file_actions_addopen(&actions, i, "/dev/null", O_RDWR, 0);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all); /* this process ignores SIGPIPE, and the child must not */
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    if (failed == 0) failed = posix_spawnp(id, argv[0], &actions, &attributes, (char *const *)argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    return failed;
}

static void close_file(int *file) {
    if (*file >= 0) close(*file);
    *file = -1;
}

enum status child_start(struct child *child, const char *const *argv, const int *input, struct error *error) {
    int in[] = {-1, -1}, out[] = {-1, -1}, errors[] = {-1, -1}; /* pipes; [0] is read */
    const bool has_pipes =
        pipe2(out, O_CLOEXEC) == 0 && (input != NULL || (pipe2(in, O_CLOEXEC) == 0 && pipe2(errors, O_CLOEXEC) == 0));
    const int files[] = {input != NULL ? *input : in[0], out[1], errors[1]};
    pid_t id = 0;
    const int failed = has_pipes ? spawn(&id, argv, files) : errno;
    close_file(&in[0]);
    close_file(&out[1]);
    close_file(&errors[1]);
    *child = (struct child){.id = id, .input = in[1], .output = out[0], .errors = errors[0]};
    if (failed == 0) return STATUS_OK;
    child->id = 0;
    child_close(child);
    if (!has_pipes) return error_set_os(error, STATUS_IO, failed, "a pipe to %s", argv[0]);
    return error_set_os(error, failed == ENOENT ? STATUS_UNSUPPORTED : STATUS_FAILED, failed, "%s", argv[0]);
}

enum status child_write(struct child *child, const void *bytes, size_t count, struct error *error) {
    const char *next = bytes;
    while (count > 0) {
        ssize_t written = write(child->input, next, count);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return error_set_os(error, STATUS_IO, errno, "a pipe to another program");
        next += written;
        count -= (size_t)written;
    }
    return STATUS_OK;
}

void child_end_input(struct child *child) { close_file(&child->input); }

enum status child_read(struct child *child, void *bytes, size_t size, size_t *count, struct error *error) {
    *count = 0;
    for (;;) {
        if (child->stops != NULL && child->stops(child->stops_context))
            return error_set(error, STATUS_INTERRUPTED, "stopped");
        struct pollfd wanted = {.fd = child->output, .events = POLLIN};
        int ready = poll(&wanted, 1, ASK_MS);
        if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
        ssize_t got = ready > 0 ? read(child->output, bytes, size) : -1;
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return error_set_os(error, STATUS_IO, errno, "a pipe from another program");
        *count = (size_t)got;
        return STATUS_OK;
    }
}

void child_read_errors(struct child *child, char *line, size_t size) {
    size_t used = 0;
    char rest[512];
    for (;;) { /* what does not fit is read too: else the program would wait for a reader */
        bool fits = used + 1 < size;
        ssize_t got = fits ? read(child->errors, line + used, size - 1 - used) : read(child->errors, rest, sizeof rest);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        if (fits) used += (size_t)got;
    }
    line[used] = '\0';
    line[strcspn(line, "\r\n")] = '\0';
}

int child_wait(struct child *child) {
    int state = 0;
    child_end_input(child);
    if (child->id == 0) return 0;
    while (waitpid(child->id, &state, 0) < 0)
        if (errno != EINTR) return -1;
    child->id = 0;
    return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
}

void child_close(struct child *child) {
    if (child->id != 0) kill(child->id, SIGKILL);
    (void)child_wait(child);
    close_file(&child->output);
    close_file(&child->errors);
}
