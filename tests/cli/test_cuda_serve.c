/* A server whose card fails at the n-th call of its driver, kernel or flag from some moment of its life on, whatever
 * runs then: a model behind its service, as `loam serve` has it.  Each server is a process of its own, which a signal
 * ends where it hangs.  Its folder is whole afterwards, and the processor answers from it.  What each fault owes:
 * docs/cuda.md, "What goes wrong on a card".  LOAM_TEST_FUZZ=1: a card that is gone, at every call. */
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
enum { ANSWER = 5, END_SECONDS = 90, UNREAD_SECONDS = 4, POINTS = 2 };

/* A life.  Nothing runs where a moment begins, so what is counted from there is the same in each. */
enum moment { START, TOGETHER, PREEMPTION, RETURN, LEAVING, OPENING, END, MOMENTS };
static const char *const moments[MOMENTS] = {"the start",      "two requests", "a preemption", "its return",
                                             "one that leaves", "an opening",   "the end"};

/* The first two are not read on, so that the third one takes a slot of theirs; the fourth begins like it. */
enum { FIRST, LEAVER, TAKER, READER, ASKED };
struct question {
    const char *text;
    size_t count, pause_at; /* of tokens; of the answer, 0: nowhere */
};
static const struct question questions[ASKED] = {
    {"the boat is small and ", 110, 1}, {"a river ran ", 75, 4}, {"the boat is small and ", 118, 0},
    {"the boat is small and ", 70, 0}};

/* A fault: of whichever of these calls is the n-th.  lacks: it leaves the card as it was. */
struct fault {
    const char *counted, *call;
    int error; /* 0: no call that fails; the setting's own */
    bool lacks;
};
enum { GONE = 9 };
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
    [GONE] = {NULL, "fail=any", 999, false},         /* off the bus */
    {NULL, "fail=any", 709, false},                  /* the driver was reset */
    {"cuLaunchKernelEx", "stuck", 0, false},
    {lost_words, "lose", 0, false}, /* of the start: the host then waits in their place */
    {"cuGraphCreate", "fail=cuGraphCreate", 2, true},
    {"cuGraphInstantiateWithFlags", "fail=cuGraphInstantiateWithFlags", 2, true},
    {"cuGraphInstantiateWithFlags", "fail=cuGraphInstantiateWithFlags", 719, false},
    {"cuGraphExecKernelNodeSetParams_v2", "fail=cuGraphExecKernelNodeSetParams_v2", 2, true},
    {NULL, "fail=any", 2, true},
    {NULL, "fail=any", 719, false},
};
enum { FAULTS = sizeof faults / sizeof faults[0], OF_CHOICES = FAULTS - 3 /* these, of lives that choose alone */ };

/* What a server has seen, for the process that started it. */
struct seen {
    bool on_cpu;               /* at the end */
    enum status opened, state; /* state: of the device in whose place there is none */
    struct {
        enum status status;
        size_t count;
        int32_t tokens[ANSWER];
    } answers[ASKED];
    uint64_t preemptions, reused[ASKED];
    struct device_counts device; /* before the end, as the next */
    struct fetch_counts fetched;
    size_t lines;                    /* that it complained in */
    size_t taken_over;               /* of these: that the processor goes on */
    uint64_t calls[MOMENTS][FAULTS]; /* of the driver, by kind of fault */
    char first[400];                 /* line of an error */
    char wrong[400];                 /* what is not as it must be */
};

/* A life to try, and what happens in it. */
struct trial {
    const char *device;
    bool saves, hurries;
    bool chooses; /* with a folder: by codes, in graphs in which the host has turns, with slots on the card */
    enum moment moment;
    uint64_t seed;
    char fault[80]; /* FAKE_CUDA's; "": none */
};

static const char *name_of(const struct trial *trial) {
    static char name[200];
    snprintf(name, sizeof name, "--device %s%s%s, seed %llu, %s from %s on", trial->device,
             trial->saves ? ", saved" : "", trial->chooses ? ", chosen" : "", (unsigned long long)trial->seed,
             trial->fault, moments[trial->moment]);
    return name;
}

static struct scratch scratch, saved; /* saved: of documents */
static struct seen *seen;             /* shared with the process of the server */

#define WRONG(...) (void)(seen->wrong[0] == '\0' && snprintf(seen->wrong, sizeof seen->wrong, __VA_ARGS__))

/* ---- a server, in its process ---- */

static const struct trial *living;
static enum moment now;
static fake_call_count_function *counted;
static fake_count_from_here_function *count_from_here;

static void nothing(void *context, struct engine *engine, const struct service_live *live, size_t live_count) {
    (void)context, (void)engine, (void)live, (void)live_count;
}

/* Behind the turn in which the last answer ended, or was not read on. */
static void begin(enum moment moment, struct service *service) {
    struct error ignored; /* there may be no engine any more */
    for (int turns = 0; turns < 2 && service != NULL; turns++) (void)!service_call(service, nothing, NULL, &ignored);
    for (size_t i = 0; i < FAULTS; i++) seen->calls[now][i] = counted(faults[i].counted);
    count_from_here(moment == living->moment ? living->fault : "");
    now = moment;
}

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
    if (!failed && client->done.reason != (i == LEAVER ? STOP_INTERRUPTED : STOP_LENGTH))
        WRONG("request %zu: %s", i, stop_reason_name(client->done.reason));
    seen->reused[i] = client->admission.reused_tokens;
    seen->answers[i].count = client->tokens.count;
    for (size_t t = 0; t < client->tokens.count && t < ANSWER; t++)
        seen->answers[i].tokens[t] = client->tokens.ids[t];
}

static void read_on(struct client *client) {
    pthread_mutex_lock(&client->mutex);
    client->pause_at = 0;
    pthread_mutex_unlock(&client->mutex);
    service_resume(client->rig->service, client->ticket);
    client_wait(client);
}

/* Within a turn, so that both are admitted by the next one, however quick the machine is. */
struct asking {
    struct client *clients;
    const struct service_request *requests;
};
static void ask_two(void *context, struct engine *engine, const struct service_live *live, size_t live_count) {
    (void)engine, (void)live, (void)live_count;
    const struct asking *asking = context;
    client_submit(&asking->clients[FIRST], &asking->requests[FIRST]);
    client_submit(&asking->clients[LEAVER], &asking->requests[LEAVER]);
}

/* Until it has so many tokens.  Where memory was lacking the service has a slot less: time goes on then, so that who is
 * queued takes the slot of an answer that is not read on. */
static void wait_tokens(struct service *service, struct client *client, size_t count) {
    for (;;) {
        pthread_mutex_lock(&client->mutex);
        const bool enough = client->done_count > 0 || client->tokens.count >= count;
        pthread_mutex_unlock(&client->mutex);
        if (enough) return;
        const struct service_levels levels = service_get_statistics(service).levels;
        if (levels.queued > 0 && levels.paused > 0) clock_skip(UNREAD_SECONDS * SECOND);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

static void ask_all(struct service *service, struct client *clients, const struct service_request *requests) {
    struct asking two = {clients, requests};
    struct error ignored; /* there may be no engine any more */
    begin(TOGETHER, service);
    if (service_call(service, ask_two, &two, &ignored) != STATUS_OK) ask_two(&two, NULL, NULL, 0);
    wait_tokens(service, &clients[FIRST], questions[FIRST].pause_at);
    wait_tokens(service, &clients[LEAVER], questions[LEAVER].pause_at);
    begin(PREEMPTION, service);
    clock_skip(UNREAD_SECONDS * SECOND);
    client_submit(&clients[TAKER], &requests[TAKER]), client_wait(&clients[TAKER]);
    begin(RETURN, service);
    seen->preemptions = service_get_statistics(service).preemptions;
    read_on(&clients[FIRST]);
    begin(LEAVING, service);
    service_cancel(service, clients[LEAVER].ticket), client_wait(&clients[LEAVER]);
    begin(OPENING, service);
    client_submit(&clients[READER], &requests[READER]), client_wait(&clients[READER]);
    seen->device = service_get_statistics(service).device;
    seen->fetched = service_get_statistics(service).fetched;
}

static void live(struct served_model *model) {
    struct service_rig rig = {.service = model->service, .tokenizer = model->session.tokenizer};
    struct client clients[ASKED];
    struct token_list prompts[ASKED];
    struct service_request requests[ASKED];
    for (size_t i = 0; i < ASKED; i++) {
        prompts[i] = rig_tokens(&rig, questions[i].text, questions[i].count);
        requests[i] = rig_request(&prompts[i], ANSWER);
        client_init(&clients[i], &rig);
        clients[i].pause_at = questions[i].pause_at;
    }
    ask_all(model->service, clients, requests);
    for (size_t i = 0; i < ASKED; i++) {
        note(i, &clients[i]);
        client_deinit(&clients[i]);
        token_list_deinit(&prompts[i]);
    }
}

static void serve(void) {
    const struct program program = {.name = "loam",
                                    .commands = command_table,
                                    .options = option_table,
                                    .option_count = option_table_count};
    char path[80];
    snprintf(path, sizeof path, "%s", scratch_name(&scratch, "tiny.gguf"));
    char *const arguments[] = {"serve", "-m", path, "--device", (char *)living->device, "-c", "256", "-np", "2", "-t",
                               "1", "--preset", living->chooses ? "hata" : "full", "--kv-disk", saved.path, "--kv-host",
                               "3M", "--set", "planes=1,page=8,sinks=8,recent=16,dense=0", "--keep", "64",
                               "--kv-device", "400K", NULL};
    const int all = (int)(sizeof arguments / sizeof arguments[0]) - 1,
              count = living->chooses ? strcmp(living->device, "cpu") == 0 ? all - 2 : all
                                      : all - (living->saves ? 6 : 10);
    static struct served_model model;
    struct options options;
    struct error error = {.status = STATUS_OK};
    model = (struct served_model){.options = NULL};
    assert_ok(options_parse(&options, &program, COMMAND_SERVE, count, arguments, &error), error);
    assert_ok(served_model_read(&model, &options, "serve", &error), error);
    seen->opened = served_model_open(&model, &error);
    if (seen->opened == STATUS_OK) {
        live(&model);
        seen->state = served_model_state(&model, &error);
        seen->on_cpu = model.answering == &model.cpu;
        if (seen->state != STATUS_OK) one_line("the server", error.message);
    } else {
        one_line("the start", error.message);
    }
    begin(END, model.service);
    served_model_close(&model);
    begin(MOMENTS, NULL);
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

_Noreturn static void serve_apart(void) {
    const char *complaints = scratch_name(&scratch, "complaints");
    const int file = open(complaints, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    pthread_t thread;
    char settings[120];
    snprintf(settings, sizeof settings, "seed=%llu,capability=90,%s", (unsigned long long)living->seed,
             living->moment == START ? living->fault : "");
    (void)alarm(END_SECONDS);
    end_at_failure();
    (void)setenv("FAKE_CUDA", settings, 1);
    if (file < 0 || dup2(file, STDERR_FILENO) < 0) _exit(2);
    stop_clock(); /* what a pass takes depends on the rates of late, and the calls to come on what passes took */
    if (living->hurries && pthread_create(&thread, NULL, hurry, NULL) != 0) _exit(2);
    void *library = dlopen(FAKE_LIBRARY, RTLD_NOW | RTLD_GLOBAL); /* as the machine's own: by its name */
    if (library == NULL) _exit(3);
    *(void **)&counted = dlsym(library, "fake_call_count");
    *(void **)&count_from_here = dlsym(library, "fake_count_from_here");
    if (counted == NULL || count_from_here == NULL) _exit(3);
    serve();
    count_lines(complaints);
    _exit(0);
}

static void run(const struct trial *trial) {
    int end = 0;
    *seen = (struct seen){.opened = STATUS_OK};
    living = trial;
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) serve_apart();
    assert_int_equal(waitpid(child, &end, 0), child);
    if (!WIFEXITED(end) || WEXITSTATUS(end) != 0) {
        char line[300] = "";
        FILE *file = fopen(scratch_name(&scratch, "complaints"), "r");
        if (file != NULL) (void)!fgets(line, sizeof line, file), (void)fclose(file);
        fail_msg("%s: signal %d, code %d: %s", name_of(trial), WIFSIGNALED(end) ? WTERMSIG(end) : 0,
                 WIFEXITED(end) ? WEXITSTATUS(end) : 0, line);
    }
    if (seen->wrong[0] != '\0') fail_msg("%s: %s", name_of(trial), seen->wrong);
}

/* ---- what it has left, and what it owed ---- */

/* Without a fault: without a folder, with one, and where it chooses; and what the processor answers where everything is
 * attended to, and where it chooses. */
enum { BARE, SAVED, CHOSEN, LIVES };
static struct seen expected[LIVES], by_cpu[2];
static const struct seen *expected_of(const struct trial *trial) {
    return &expected[trial->chooses ? CHOSEN : trial->saves ? SAVED : BARE];
}

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

static size_t documents_verify(const struct trial *trial) {
    struct ids ids = {.count = 0};
    struct store *store;
    struct error error;
    const struct store_options options = {.directory = saved.path};
    assert_ok(store_open(&store, &options, &error), error);
    assert_ok(store_list(store, keep_id, &ids, &error), error);
    for (size_t i = 0; i < ids.count; i++)
        if (store_verify(store, ids.ids[i], &error) != STATUS_OK)
            fail_msg("behind %s: %s", name_of(trial), error.message);
    store_close(store);
    return ids.count;
}

static void answers_check(const struct trial *trial) {
    const struct seen *cpu = &by_cpu[trial->chooses];
    for (size_t i = 0; i < ASKED; i++) {
        const size_t count = seen->answers[i].count;
        if (seen->answers[i].status == STATUS_OK)
            assert_int_equal(count, i == LEAVER ? questions[i].pause_at : ANSWER);
        for (size_t t = 0; t < count; t++)
            if (seen->answers[i].tokens[t] != cpu->answers[i].tokens[t])
                fail_msg("%s: answer %zu, token %zu is %d, expected %d", name_of(trial), i, t,
                         seen->answers[i].tokens[t], cpu->answers[i].tokens[t]);
    }
}

static size_t failed_count(void) {
    size_t count = 0;
    for (size_t i = 0; i < ASKED; i++) count += seen->answers[i].status != STATUS_OK;
    return count;
}

/* Whether the fault was noticed.  must: it was met by whoever asked for a card's work, and others ask behind it. */
static bool fault_check(const struct fault *fault, const struct trial *trial, bool must) {
    const bool any = strcmp(trial->device, "auto") == 0;
    const size_t failed = failed_count();
#define OWED(condition)                                                                                          \
    if (!(condition))                                                                                            \
    fail_msg("%s: %s does not hold: opened %s, state %s, answers %s, %s, %s, %s, %zu lines: %s", name_of(trial), \
             #condition, status_name(seen->opened), status_name(seen->state),                                    \
             status_name(seen->answers[0].status), status_name(seen->answers[1].status),                         \
             status_name(seen->answers[2].status), status_name(seen->answers[3].status), seen->lines, seen->first)
    if (seen->opened != STATUS_OK) { /* 5 or 1; of any device there is one that does not break */
        OWED(exit_code(seen->opened) == (fault->lacks ? 5 : 1) && (fault->lacks || !any));
        return true;
    }
    answers_check(trial);
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
        OWED(!must || seen->on_cpu);
        return seen->taken_over > 0;
    }
    OWED(seen->taken_over == 0);
    OWED((failed == 0 && !must) || exit_code(seen->state) == 1);
    return failed > 0 || seen->state != STATUS_OK;
#undef OWED
}

static void run_whole(const struct trial *trial, const char *behind) {
    run(trial);
    if (seen->opened != STATUS_OK || failed_count() > 0)
        fail_msg("%s, behind %s: %s", name_of(trial), behind, seen->first);
    answers_check(trial);
}

static size_t reached[FAULTS], noticed[FAULTS], documents;

static void fault_try(const struct fault *fault, uint64_t n, const struct trial *given) {
    struct trial trial = *given;
    char behind[200], error[12] = "";
    const size_t f = (size_t)(fault - faults);
    if (fault->error != 0) snprintf(error, sizeof error, ":%d", fault->error);
    snprintf(trial.fault, sizeof trial.fault, "%s%c%llu%s", fault->call, fault->error != 0 ? ':' : '=',
             (unsigned long long)n, error);
    trial.hurries = fault->error == 0;
    scratch_empty(&saved);
    run(&trial);
    const bool is_reached = seen->calls[trial.moment][f] >= n;
    reached[f] += is_reached;
    const bool must = is_reached && fault->counted == NULL && trial.moment > START && trial.moment < OPENING;
    noticed[f] += fault_check(fault, &trial, must);
    if (!trial.saves) return;
    snprintf(behind, sizeof behind, "%s", name_of(&trial));
    documents += documents_verify(&trial);
    const struct trial by_processor = {.device = "cpu", .saves = true, .chooses = trial.chooses};
    run_whole(&by_processor, behind); /* from what the server has saved */
}

/* By turns on that card or on any device, without a folder and with one. */
static struct trial next_trial(struct random *random, enum moment moment) {
    static size_t turn;
    const size_t at = turn++;
    return (struct trial){.device = at % 2 ? "auto" : "cuda",
                          .saves = at / 2 % 2,
                          .moment = moment,
                          .seed = random_below(random, 1000)};
}

/* Both kinds of lives without a fault; what they answer is the processor's. */
static void no_fault(void **state) {
    (void)state;
    for (size_t life = 0; life < LIVES; life++) {
        const bool chooses = life == CHOSEN;
        const struct trial trial = {.device = "cuda", .saves = life != BARE, .chooses = chooses, .seed = 1};
        if (life != SAVED) run(&(struct trial){.device = "cpu", .saves = chooses, .chooses = chooses});
        if (life != SAVED) by_cpu[chooses] = *seen;
        scratch_empty(&saved);
        run_whole(&trial, "nothing");
        expected[life] = *seen;
        assert_int_equal(seen->preemptions, 1);
        assert_true(seen->reused[READER] > 60 && (life == BARE || seen->reused[TAKER] > 60));
        if (!chooses) continue;
        assert_true(seen->device.changes > 0 && seen->device.replays > seen->device.changes);
        assert_true(seen->fetched.hits > 0 && seen->fetched.misses > 0);
    }
}

/* Each at some calls of some moments: the first one of a preemption, where all of them are met, and others. */
static void each_fault(void **state) {
    (void)state;
    struct random random;
    random_init(&random, test_seed(3));
    for (size_t f = 0; f < OF_CHOICES; f++)
        for (size_t point = 0; point < POINTS; point++) {
            struct trial trial = next_trial(&random, point > 0 ? (enum moment)(f % MOMENTS) : PREEMPTION);
            trial.saves = trial.saves && expected[1].calls[PREEMPTION][f] > 0; /* without a graph it has no launches */
            const struct seen *whole = expected_of(&trial);
            for (size_t moment = 0; whole->calls[trial.moment][f] == 0; moment++) {
                if (moment == MOMENTS) fail_msg("%s: no life has such a call", faults[f].call);
                trial.moment = (trial.moment + 1) % MOMENTS;
            }
            const uint64_t n = point > 0 ? random_below(&random, whole->calls[trial.moment][f]) : 0;
            if (test_takes_next()) fault_try(&faults[f], n + 1, &trial);
        }
    for (size_t f = 0; f < OF_CHOICES; f++) { /* where one lacks memory, requests make room as a rule */
        printf("%s:%d: %zu reached, %zu told\n", faults[f].call, faults[f].error, reached[f], noticed[f]);
        assert_met(reached[f] > 0 && (noticed[f] > 0 || faults[f].lacks || faults[f].counted == lost_words));
    }
    assert_met(documents > 0);
}

/* Where answers choose above a disk, and graphs go from one of them to the next: any call of the driver, of which most
 * are of some operation, and what changes a graph. */
static void each_choice(void **state) {
    (void)state;
    enum { LIVES_OF_ANY = 6, LIVES_OF_CHANGES = 4 };
    struct random random;
    random_init(&random, test_seed(13));
    const size_t times = (size_t)test_number("LOAM_TEST_FUZZ", 1);
    for (size_t f = OF_CHOICES; f < FAULTS; f++)
        for (size_t point = 0; point < times * (faults[f].counted == NULL ? LIVES_OF_ANY : LIVES_OF_CHANGES); point++) {
            struct trial trial = next_trial(&random, (enum moment)random_below(&random, END));
            trial.device = "cuda"; /* any device would be the processor, where a setting is given */
            trial.saves = trial.chooses = true;
            while (expected[CHOSEN].calls[trial.moment][f] == 0) trial.moment = (trial.moment + 1) % MOMENTS;
            const uint64_t n = 1 + random_below(&random, expected[CHOSEN].calls[trial.moment][f]);
            if (test_takes_next()) fault_try(&faults[f], n, &trial);
        }
    for (size_t f = OF_CHOICES; f < FAULTS; f++) {
        printf("%s:%d: %zu reached, %zu told\n", faults[f].call, faults[f].error, reached[f], noticed[f]);
        assert_met(reached[f] > 0 && (noticed[f] > 0 || faults[f].lacks));
    }
}

/* A card that is gone, from the first call of a moment on, and from some or all others. */
static void each_moment(void **state) {
    (void)state;
    struct random random;
    random_init(&random, test_seed(4));
    const bool takes_all = test_number("LOAM_TEST_FUZZ", 0) > 0;
    for (size_t moment = 0; moment < MOMENTS; moment++) {
        const uint64_t calls = expected[1].calls[moment][GONE];
        printf("%s: %llu calls\n", moments[moment], (unsigned long long)calls);
        for (uint64_t point = 0; point < (takes_all || calls == 0 ? calls : POINTS); point++) {
            struct trial trial = next_trial(&random, (enum moment)moment);
            const uint64_t n = takes_all || point == 0 ? point + 1 : 1 + random_below(&random, calls);
            if (point == 0) trial.device = "auto", trial.saves = true; /* where most is left to lose */
            if (takes_all || test_takes_next()) fault_try(&faults[GONE], n, &trial);
        }
    }
}

int main(void) {
    if (cuda_image_count == 0) {
        printf("skipped: %s\n", cuda_images_missing);
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_fault), cmocka_unit_test(each_fault),
                                       cmocka_unit_test(each_choice), cmocka_unit_test(each_moment)};
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
