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

/* Pipes 0, 1 and 2 of the child; [i][0] is read. */
static bool open_pipes(int pipes[3][2]) {
    for (size_t i = 0; i < 3; i++)
        if (pipe2(pipes[i], O_CLOEXEC) != 0) {
            while (i-- > 0) {
                close(pipes[i][0]);
                close(pipes[i][1]);
            }
            return false;
        }
    return true;
}

static int spawn(pid_t *id, const char *const *argv, int pipes[3][2]) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    for (int i = 0; i < 3; i++) posix_spawn_file_actions_adddup2(&actions, pipes[i][i == 0 ? 0 : 1], i);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes,
                                  &all); /* this process ignores SIGPIPE, and the child must not */
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    int failed = posix_spawnp(id, argv[0], &actions, &attributes, (char *const *)argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    return failed;
}

enum status child_start(struct child *child, const char *const *argv, struct error *error) {
    *child = (struct child){.input = -1, .output = -1, .errors = -1};
    int pipes[3][2];
    if (!open_pipes(pipes)) return error_set_os(error, STATUS_IO, errno, "a pipe to %s", argv[0]);
    pid_t id = 0;
    int failed = spawn(&id, argv, pipes);
    close(pipes[0][0]);
    close(pipes[1][1]);
    close(pipes[2][1]);
    *child = (struct child){.id = id, .input = pipes[0][1], .output = pipes[1][0], .errors = pipes[2][0]};
    if (failed == 0) return STATUS_OK;
    child->id = 0;
    child_close(child);
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

void child_end_input(struct child *child) {
    if (child->input >= 0) close(child->input);
    child->input = -1;
}

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
        ssize_t got =
            fits ? read(child->errors, line + used, size - 1 - used) : read(child->errors, rest, sizeof rest);
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
    if (child->output >= 0) close(child->output);
    if (child->errors >= 0) close(child->errors);
    *child = (struct child){.input = -1, .output = -1, .errors = -1};
}
