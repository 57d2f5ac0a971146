#include "cli/process.h"

#include "testing.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "platform/clock.h"

enum { ARGUMENTS_MAX = 64 };

const char *process_binary = LOAM_BINARY;

struct capture {
    int fd;
    char *text;
    size_t used, capacity;
};

static void capture_read(struct capture *capture) {
    if (capture->used + 4096 >= capture->capacity) {
        capture->capacity = capture->capacity * 2 + 16384;
        capture->text = realloc(capture->text, capture->capacity);
        assert_non_null(capture->text);
        capture->text[capture->used] = '\0';
    }
    ssize_t count = read(capture->fd, capture->text + capture->used, capture->capacity - capture->used - 1);
    if (count < 0 && errno == EINTR) return;
    if (count <= 0) {
        close(capture->fd);
        capture->fd = -1;
        return;
    }
    capture->used += (size_t)count;
    capture->text[capture->used] = '\0';
}

/* Returns the program, opened before the user changes: a folder above it may be closed to that user (mktemp -d). */
static int child_prepare(const struct process_request *request, const int input[2], const int output[2],
                         const int complaints[2]) {
    if (request->input != NULL || request->hold_input) {
        dup2(input[0], 0);
    } else {
        int null = open("/dev/null", O_RDONLY);
        dup2(null, 0);
    }
    if (request->output_path != NULL) {
        int fd = open(request->output_path, O_WRONLY);
        if (fd < 0) _exit(99);
        dup2(fd, 1);
    } else if (request->break_output) {
        int broken[2];
        if (pipe2(broken, O_CLOEXEC) != 0 || close(broken[0]) != 0) _exit(96);
        dup2(broken[1], 1);
    } else {
        dup2(output[1], 1);
    }
    dup2(complaints[1], 2);
    for (int fd = 3; fd < 64; fd++) close(fd);
    int program = open(process_binary, O_RDONLY | O_CLOEXEC);
    if (program < 0) _exit(97);
    if (request->close_output) close(1);
    if (request->user != 0 && geteuid() == 0 &&
        (setgroups(0, NULL) != 0 || setgid(request->user) != 0 || setuid(request->user) != 0))
        _exit(95);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* nothing is left of a test that is ended */
    if (request->environment != NULL && putenv(strdup(request->environment)) != 0) _exit(99);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
    return program;
}

static void child_run(const struct process_request *request, int program) {
    const char *argv[ARGUMENTS_MAX + 2] = {process_binary};
    for (size_t i = 0; request->arguments[i] != NULL; i++) {
        if (i == ARGUMENTS_MAX) _exit(98);
        argv[i + 1] = request->arguments[i];
    }
    fexecve(program, (char *const *)(uintptr_t)argv, environ);
    _exit(97);
}

static void write_input(int fd, const char *text, int hold) {
    for (size_t left = strlen(text); left > 0;) {
        ssize_t count = write(fd, text, left);
        if (count <= 0) break;
        text += count;
        left -= (size_t)count;
    }
    if (!hold) close(fd);
}

/* Time for the next SIGINT? */
static int interrupt_is_due(const struct process_request *request, const struct capture captures[2],
                            uint64_t passed_ns) {
    if (passed_ns < request->interrupt_after_ms * UINT64_C(1000000)) return 0;
    if (request->interrupt_after == NULL) return 1;
    for (size_t i = 0; i < 2; i++)
        if (captures[i].used > 0 && strstr(captures[i].text, request->interrupt_after) != NULL) return 1;
    return 0;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLOWNESS = 10 }; /* as for the tests' own limits (cmake/loam.cmake) */
#else
enum { SLOWNESS = 1 };
#endif

/* What hangs is ended before ctest ends the test and leaves its child. */
enum { SECONDS_MAX = 500 };

/* Reads both pipes until both are closed; interrupts on the way when asked to. */
static void watch(pid_t child, const struct process_request *request, struct capture captures[2]) {
    const uint64_t limit_ns = SECONDS_MAX * SLOWNESS * UINT64_C(1000000000);
    uint64_t begin = clock_ns();
    int interrupts_left = request->interrupt_count;
    while (captures[0].fd >= 0 || captures[1].fd >= 0) {
        struct pollfd polls[2] = {{captures[0].fd, POLLIN, 0}, {captures[1].fd, POLLIN, 0}};
        if (poll(polls, 2, 50) > 0)
            for (size_t i = 0; i < 2; i++)
                if (polls[i].fd >= 0 && polls[i].revents != 0) capture_read(&captures[i]);
        if (interrupts_left > 0 && interrupt_is_due(request, captures, clock_ns() - begin)) {
            kill(child, request->interrupt_signal != 0 ? request->interrupt_signal : SIGINT);
            if (--interrupts_left > 0) usleep(100000);
        }
        if (clock_ns() - begin > limit_ns) {
            kill(child, SIGKILL);
            fail_msg("no end after %u seconds", (unsigned)(limit_ns / 1000000000));
        }
    }
}

struct process_result process_run(const struct process_request *request) {
    int input[2], output[2], complaints[2];
    assert_int_equal(pipe2(input, O_CLOEXEC) | pipe2(output, O_CLOEXEC) | pipe2(complaints, O_CLOEXEC), 0);
    uint64_t begin = clock_ns();
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) { child_run(request, child_prepare(request, input, output, complaints)); }
    close(input[0]);
    close(output[1]);
    close(complaints[1]);
    void (*old)(int) = signal(SIGPIPE, SIG_IGN);
    write_input(input[1], request->input != NULL ? request->input : "", request->hold_input);
    struct capture captures[2] = {{.fd = output[0]}, {.fd = complaints[0]}};
    watch(child, request, captures);
    int wait_status;
    assert_int_equal(waitpid(child, &wait_status, 0), child);
    signal(SIGPIPE, old);
    if (request->hold_input) close(input[1]);
    struct process_result result = {
        .code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status),
        .output = captures[0].text != NULL ? captures[0].text : strdup(""),
        .output_bytes = captures[0].used,
        .complaints = captures[1].text != NULL ? captures[1].text : strdup(""),
        .seconds = (double)(clock_ns() - begin) * 1e-9,
    };
    return result;
}

struct process_result process_run_lab(const char *const *arguments) {
    const char *const before = process_binary;
    process_binary = LOAM_LAB_BINARY;
    struct process_result result = process_run(&(struct process_request){.arguments = arguments});
    process_binary = before;
    return result;
}

void process_deinit(struct process_result *result) {
    free(result->output);
    free(result->complaints);
    *result = (struct process_result){0};
}

static char scratch[64];

static void scratch_remove(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", scratch);
    if (system(command) != 0) perror(command);
}

const char *scratch_path(const char *name) {
    static char paths[8][160];
    static size_t next;
    if (scratch[0] == '\0') {
        snprintf(scratch, sizeof scratch, "/tmp/loam-test-XXXXXX");
        assert_non_null(mkdtemp(scratch));
        atexit(scratch_remove);
    }
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", scratch, name);
    return path;
}

char *process_listing(const char *folder) {
    struct process_result result = LOAM("ls", "--kv-disk", folder, "--json");
    if (result.code != 0) fail_msg("%s", result.complaints);
    char *text = strdup(result.output);
    process_deinit(&result);
    return text;
}
