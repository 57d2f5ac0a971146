/* A server whose card fails at the n-th call of its driver, kernel or flag, whatever runs then: a model behind its
 * service, as `loam serve` has it, two requests together and one that goes on.  Each server is a process of its own,
 * which a signal ends where it hangs.  Its folder is whole afterwards, and the processor answers from it.  What each
 * fault owes: docs/cuda.md, "What goes wrong on a card". */
#include "testing.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../platform/scratch.h"
#include "../server/moved_clock.h"
#include "../server/service_rig.h"
#include "cache/store/store.h"
#include "cli/command.h"
#include "cli/served_model.h"
#include "cli/tiny_model.h"
#include "device/cuda/fake/fake_control.h"
#include "device/cuda/images.h"
#include "seed.h"

#define ON_BY_THE_CPU "; answers go on by the cpu\n"
enum { ASKED = 3, ANSWER = 5, END_SECONDS = 90, POINTS = 4 };

struct question {
    const char *text;
    size_t count; /* of tokens */
};
static const struct question questions[ASKED] = {
    {"the boat is small and ", 110}, {"a river ran ", 75}, {"the boat is small and ", 118}};

/* A fault: of whichever of these calls is the n-th.  lacks: it leaves the card as it was. */
struct fault {
    const char *counted, *call;
    int error; /* 0: no call that fails; the setting's own */
    bool lacks;
};
static const char lost_words[] = "cuStreamWriteValue32_v2";
static const struct fault faults[] = {
    {"cuMemAlloc_v2", "fail=cuMemAlloc_v2", 2, true},
    {"cuMemHostAlloc", "fail=cuMemHostAlloc", 2, true},
    {"cuLaunchKernelEx", "fail=cuLaunchKernelEx", 2, true},
    {"cuGraphLaunch", "fail=cuGraphLaunch", 2, true},
    {"cuGraphAddKernelNode_v2", "fail=cuGraphAddKernelNode_v2", 2, true},
    {"cuMemcpyAsync", "fail=cuMemcpyAsync", 2, true},
    {"cuEventRecord", "fail=cuEventRecord", 2, true},
    {"cuLaunchKernelEx", "fail=cuLaunchKernelEx", 719, false},
    {"cuLaunchKernelEx", "fail=kernel", 719, false}, /* counted: about as many */
    {NULL, "fail=any", 999, false},                  /* off the bus */
    {NULL, "fail=any", 709, false},                  /* the driver was reset */
    {"cuLaunchKernelEx", "stuck", 0, false},
    {lost_words, "lose", 0, false}, /* of the start: the host then waits in their place */
};
enum { FAULTS = sizeof faults / sizeof faults[0] };

/* What a server has seen, for the process that started it. */
struct seen {
    bool on_cpu;               /* at the end */
    enum status opened, state; /* state: of the device in whose place there is none */
    struct {
        enum status status;
        size_t count;
        int32_t tokens[ANSWER];
    } answers[ASKED];
    size_t lines;           /* that it complained in */
    size_t taken_over;      /* of these: that the processor goes on */
    uint64_t calls[FAULTS]; /* of the driver, by kind of fault */
    char first[400];        /* line of an error */
    char wrong[400];        /* what is not as it must be */
};

static struct scratch scratch, saved; /* saved: of documents */
static struct seen *seen;             /* shared with the process of the server */

#define WRONG(...) (void)(seen->wrong[0] == '\0' && snprintf(seen->wrong, sizeof seen->wrong, __VA_ARGS__))

/* ---- a server, in its process ---- */

static void one_line(const char *what, const char *message) {
    if (seen->first[0] == '\0') snprintf(seen->first, sizeof seen->first, "%s: %s", what, message);
    const size_t length = strlen(message);
    if (length == 0 || memchr(message, '\n', length) != NULL)
        WRONG("%s: \"%s\" is not one line", what, message);
}

static void note(size_t i, const struct client *client) {
    const bool failed = client->done.reason == STOP_FAILED;
    seen->answers[i].status = failed ? client->done.error.status : STATUS_OK;
    if (failed) one_line("a request", client->done.error.message);
    if (!failed && client->done.reason != STOP_LENGTH)
        WRONG("request %zu: %s", i, stop_reason_name(client->done.reason));
    seen->answers[i].count = client->tokens.count;
    for (size_t t = 0; t < client->tokens.count && t < ANSWER; t++)
        seen->answers[i].tokens[t] = client->tokens.ids[t];
}

/* The first two together, the third one behind them. */
static void ask_all(struct served_model *model) {
    struct service_rig rig = {.service = model->service, .tokenizer = model->session.tokenizer};
    struct client clients[ASKED];
    struct token_list prompts[ASKED];
    for (size_t i = 0; i < ASKED; i++) {
        prompts[i] = rig_tokens(&rig, questions[i].text, questions[i].count);
        client_init(&clients[i], &rig);
        const struct service_request request = rig_request(&prompts[i], ANSWER);
        if (i == 2) client_wait(&clients[0]), client_wait(&clients[1]);
        client_submit(&clients[i], &request);
    }
    client_wait(&clients[2]);
    for (size_t i = 0; i < ASKED; i++) {
        note(i, &clients[i]);
        client_deinit(&clients[i]);
        token_list_deinit(&prompts[i]);
    }
}

static void serve(const char *device, bool saves) {
    const struct program program = {.name = "loam",
                                    .commands = command_table,
                                    .options = option_table,
                                    .option_count = option_table_count};
    char path[80];
    snprintf(path, sizeof path, "%s", scratch_name(&scratch, "tiny.gguf"));
    char *const arguments[] = {"serve",    "-m",        path, "--device", (char *)device, "-c",   "256",
                               "-np",      "2",         "-t", "1",        "--preset",     "full", "--kv-disk",
                               saved.path, "--kv-host", "3M", NULL};
    const int count = (int)(sizeof arguments / sizeof arguments[0]) - (saves ? 1 : 5);
    static struct served_model model;
    struct options options;
    struct error error = {.status = STATUS_OK};
    model = (struct served_model){.options = NULL};
    assert_ok(options_parse(&options, &program, COMMAND_SERVE, count, arguments, &error), error);
    assert_ok(served_model_read(&model, &options, "serve", &error), error);
    seen->opened = served_model_open(&model, &error);
    if (seen->opened == STATUS_OK) {
        ask_all(&model);
        seen->state = served_model_state(&model, &error);
        seen->on_cpu = model.answering == &model.cpu;
        if (seen->state != STATUS_OK) one_line("the server", error.message);
    } else {
        one_line("the start", error.message);
    }
    served_model_close(&model);
    options_deinit(&options);
}

/* 20 s without progress are less than one here. */
static void *hurry(void *context) {
    (void)context;
    for (;;) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        clock_skip(SECOND / 20);
    }
    return NULL;
}

static void count_lines(const char *path) {
    char line[800];
    FILE *file = fopen(path, "r");
    if (file == NULL) WRONG("no %s", path);
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        const size_t length = strlen(line), told = strlen(ON_BY_THE_CPU);
        seen->lines++;
        if (strncmp(line, "loam: ", 6) != 0) WRONG("a line: %s", line);
        if (length > told && strcmp(line + length - told, ON_BY_THE_CPU) == 0) seen->taken_over++;
    }
    if (file != NULL) (void)fclose(file);
}

_Noreturn static void serve_apart(const char *device, bool saves, const char *settings, bool hurries) {
    const char *complaints = scratch_name(&scratch, "complaints");
    const int file = open(complaints, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    pthread_t thread;
    (void)alarm(END_SECONDS);
    (void)setenv("FAKE_CUDA", settings, 1);
    if (file < 0 || dup2(file, STDERR_FILENO) < 0) _exit(2);
    if (hurries && pthread_create(&thread, NULL, hurry, NULL) != 0) _exit(2);
    void *library = dlopen(FAKE_LIBRARY, RTLD_NOW | RTLD_GLOBAL); /* as the machine's own: by its name */
    if (library == NULL) _exit(3);
    serve(device, saves);
    fake_call_count_function *counted = NULL;
    *(void **)&counted = dlsym(library, "fake_call_count");
    if (counted == NULL) _exit(3);
    for (size_t i = 0; i < FAULTS; i++) seen->calls[i] = counted(faults[i].counted);
    count_lines(complaints);
    _exit(0);
}

static void run(const char *device, bool saves, const char *settings, bool hurries) {
    int end = 0;
    *seen = (struct seen){.opened = STATUS_OK};
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) serve_apart(device, saves, settings, hurries);
    assert_int_equal(waitpid(child, &end, 0), child);
    if (!WIFEXITED(end) || WEXITSTATUS(end) != 0) {
        char line[300] = "";
        FILE *file = fopen(scratch_name(&scratch, "complaints"), "r");
        if (file != NULL) (void)!fgets(line, sizeof line, file), (void)fclose(file);
        fail_msg("--device %s, FAKE_CUDA=%s: signal %d, code %d: %s", device, settings,
                 WIFSIGNALED(end) ? WTERMSIG(end) : 0, WIFEXITED(end) ? WEXITSTATUS(end) : 0, line);
    }
    if (seen->wrong[0] != '\0') fail_msg("--device %s, FAKE_CUDA=%s: %s", device, settings, seen->wrong);
}

/* ---- what it has left, and what it owed ---- */

static struct seen expected[2]; /* without a fault; without a folder, and with one */

/* Every document there is can be read, and the processor's answers from them are the same. */
struct ids {
    uint64_t ids[16];
    size_t count;
};
static void keep_id(void *context, const struct document_info *info) {
    struct ids *ids = context;
    if (info->damaged != NULL) fail_msg("document %llu: %s", (unsigned long long)info->id, info->damaged);
    assert_true(ids->count < 16);
    if (info->commits > 0) ids->ids[ids->count++] = info->id; /* else nothing of it was saved */
}

static size_t documents_verify(const char *settings) {
    struct ids ids = {.count = 0};
    struct store *store;
    struct error error;
    const struct store_options options = {.directory = saved.path};
    assert_ok(store_open(&store, &options, &error), error);
    assert_ok(store_list(store, keep_id, &ids, &error), error);
    for (size_t i = 0; i < ids.count; i++)
        if (store_verify(store, ids.ids[i], &error) != STATUS_OK)
            fail_msg("behind %s: %s", settings, error.message);
    store_close(store);
    return ids.count;
}

static void answers_check(const char *device, const char *settings) {
    for (size_t i = 0; i < ASKED; i++) {
        const size_t count = seen->answers[i].count;
        if (seen->answers[i].status == STATUS_OK) assert_int_equal(count, ANSWER);
        for (size_t t = 0; t < count; t++)
            if (seen->answers[i].tokens[t] != expected[0].answers[i].tokens[t])
                fail_msg("--device %s, FAKE_CUDA=%s: answer %zu, token %zu is %d, expected %d", device,
                         settings, i, t, seen->answers[i].tokens[t], expected[0].answers[i].tokens[t]);
    }
}

static size_t failed_count(void) {
    size_t count = 0;
    for (size_t i = 0; i < ASKED; i++) count += seen->answers[i].status != STATUS_OK;
    return count;
}

/* Whether the fault was noticed. */
static bool fault_check(const struct fault *fault, const char *device, const char *settings) {
    const bool any = strcmp(device, "auto") == 0;
    const size_t failed = failed_count();
#define OWED(condition)                                                                                    \
    if (!(condition))                                                                                      \
    fail_msg(                                                                                              \
        "--device %s, FAKE_CUDA=%s: %s does not hold: opened %s, state %s, answers %s, %s, %s, %zu lines: %s", \
        device, settings, #condition, status_name(seen->opened), status_name(seen->state),                 \
        status_name(seen->answers[0].status), status_name(seen->answers[1].status),                        \
        status_name(seen->answers[2].status), seen->lines, seen->first)
    if (seen->opened != STATUS_OK) { /* 5 or 1; of any device there is one that does not break */
        OWED(exit_code(seen->opened) == (fault->lacks ? 5 : 1) && (fault->lacks || !any));
        return true;
    }
    answers_check(device, settings);
    if (fault->lacks) { /* a request has failed, others and the card have not */
        OWED(seen->state == STATUS_OK && seen->taken_over == 0);
        for (size_t i = 0; i < ASKED; i++)
            OWED(seen->answers[i].status == STATUS_OK || seen->answers[i].status == STATUS_MEMORY);
        OWED(failed <= 2);
        return failed > 0;
    }
    OWED(seen->taken_over == seen->on_cpu);
    if (any) { /* the processor has answered them all, and said so */
        OWED(failed == 0 && seen->state == STATUS_OK);
        return seen->taken_over > 0;
    }
    OWED(seen->taken_over == 0);
    OWED(failed == 0 || exit_code(seen->state) == 1);
    return failed > 0 || seen->state != STATUS_OK;
#undef OWED
}

static void run_whole(const char *device, bool saves, const char *settings) {
    run(device, saves, settings, false);
    if (seen->opened != STATUS_OK || failed_count() > 0)
        fail_msg("--device %s behind %s: %s", device, settings, seen->first);
}

static size_t reached[FAULTS], noticed[FAULTS], documents;

static void fault_try(const struct fault *fault, uint64_t n, const char *device, bool saves, uint64_t seed) {
    char settings[120], error[12] = "";
    if (fault->error != 0) snprintf(error, sizeof error, ":%d", fault->error);
    snprintf(settings, sizeof settings, "seed=%llu,capability=90,%s%c%llu%s", (unsigned long long)seed,
             fault->call, fault->error != 0 ? ':' : '=', (unsigned long long)n, error);
    scratch_empty(&saved);
    run(device, saves, settings, fault->error == 0);
    reached[fault - faults] += seen->calls[fault - faults] >= n;
    noticed[fault - faults] += fault_check(fault, device, settings);
    if (!saves) return;
    documents += documents_verify(settings);
    run_whole("cpu", true, settings); /* from what the server has saved */
    answers_check("cpu", settings);
}

/* Each at some calls, as they are spread over a server's life; by turns on that card or on any device, without a folder
 * and with one. */
static void each_fault(void **state) {
    (void)state;
    struct random random;
    random_init(&random, test_seed(3));
    for (size_t saves = 0; saves < 2; saves++) {
        run_whole("cuda", saves, "capability=90");
        expected[saves] = *seen;
        answers_check("cuda", "capability=90");
    }
    for (size_t f = 0; f < FAULTS; f++)
        for (size_t point = 0; point < POINTS; point++) {
            const size_t saves = point / 2 % 2, part = (point + f) % POINTS;
            const uint64_t calls = expected[saves].calls[f], from = calls * part / POINTS,
                           to = calls * (part + 1) / POINTS;
            const uint64_t n = from + 1 + (to > from ? random_below(&random, to - from) : 0);
            if (n <= calls && test_takes_next())
                fault_try(&faults[f], n, point % 2 ? "auto" : "cuda", saves, random_below(&random, 1000));
        }
    for (size_t f = 0; f < FAULTS; f++) { /* where one lacks memory, requests make room as a rule */
        printf("%s:%d: %zu reached, %zu told\n", faults[f].call, faults[f].error, reached[f], noticed[f]);
        assert_met(reached[f] > 0 && (noticed[f] > 0 || faults[f].lacks || faults[f].counted == lost_words));
    }
    assert_met(documents > FAULTS);
}

int main(void) {
    if (cuda_image_count == 0) {
        printf("skipped: %s\n", cuda_images_missing);
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_fault)};
    scratch_create(&scratch, SCRATCH_MEMORY);
    scratch_create(&saved, SCRATCH_MEMORY);
    tiny_model_write(scratch_name(&scratch, "tiny.gguf"),
                     &(struct tiny_model){.seed = 5, .layers = 1, .never_ends = true});
    seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const int failures = seen != MAP_FAILED ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
    scratch_destroy(&saved);
    scratch_destroy(&scratch);
    return failures;
}
