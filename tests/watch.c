/* A test that hangs says where.  Linked into every test; ctest gives LOAM_TEST_WATCH=SECONDS, somewhat less than the
 * test's timeout.  A process that is nobody's child (a test may count its own) waits for the test's end; if that does
 * not come in time, it prints what each thread of the test and of its descendants waits for. */
#include <dirent.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DESCENDANTS_MAX = 64, LINE_BYTES = 256 };

/* The first line of a file of /proc; empty where there is none. */
static const char *first_line(char line[LINE_BYTES], const char *path) {
    FILE *file = fopen(path, "re");
    line[0] = '\0';
    if (file == NULL) return line;
    if (fgets(line, LINE_BYTES, file) == NULL) line[0] = '\0';
    fclose(file);
    line[strcspn(line, "\n")] = '\0';
    return line;
}

static void print_thread(long process, const char *thread) {
    char path[LINE_BYTES], state[LINE_BYTES], place[LINE_BYTES], call[LINE_BYTES];
    snprintf(path, sizeof path, "/proc/%ld/task/%.20s/stat", process, thread);
    const char *end = strrchr(first_line(state, path), ')'); /* behind the name, which may hold anything */
    snprintf(path, sizeof path, "/proc/%ld/task/%.20s/wchan", process, thread);
    first_line(place, path);
    snprintf(path, sizeof path, "/proc/%ld/task/%.20s/syscall", process, thread);
    first_line(call, path);
    printf("  thread %s%.3s %s, system call %s\n", thread, end != NULL ? end + 1 : "", place, call);
}

static void see_numbers(const char *folder, void (*see)(void *context, const char *number), void *context) {
    DIR *entries = opendir(folder);
    if (entries == NULL) return;
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;)
        if (entry->d_name[0] >= '0' && entry->d_name[0] <= '9') see(context, entry->d_name);
    closedir(entries);
}

static void see_thread(void *context, const char *number) { print_thread(*(const long *)context, number); }

struct family {
    long members[DESCENDANTS_MAX];
    size_t count;
};

static void see_process(void *context, const char *number) {
    struct family *family = context;
    char path[LINE_BYTES], line[LINE_BYTES];
    long parent = 0;
    char state;
    snprintf(path, sizeof path, "/proc/%.20s/stat", number);
    const char *end = strrchr(first_line(line, path), ')');
    if (end == NULL || sscanf(end + 1, " %c %ld", &state, &parent) != 2) return;
    const long process = strtol(number, NULL, 10);
    bool is_member = false, is_new = true;
    for (size_t i = 0; i < family->count; i++) {
        is_member = is_member || family->members[i] == parent;
        is_new = is_new && family->members[i] != process;
    }
    if (is_member && is_new && family->count < DESCENDANTS_MAX) family->members[family->count++] = process;
}

static void print_family(long test) {
    struct family family = {.members = {test}, .count = 1};
    for (size_t before = 0; before < family.count;) { /* a child may have a smaller number than its parent */
        before = family.count;
        see_numbers("/proc", see_process, &family);
    }
    for (size_t i = 0; i < family.count; i++) {
        char path[LINE_BYTES];
        printf("watch: process %ld%s\n", family.members[i], i == 0 ? ", the test, is not done" : "");
        snprintf(path, sizeof path, "/proc/%ld/task", family.members[i]);
        see_numbers(path, see_thread, &family.members[i]);
    }
    fflush(stdout);
}

__attribute__((constructor)) static void watch(void) {
    const char *text = getenv("LOAM_TEST_WATCH");
    const long seconds = text != NULL ? strtol(text, NULL, 10) : 0;
    if (seconds <= 0) return;
    unsetenv("LOAM_TEST_WATCH"); /* programs that the test starts are its own business */
    const long test = getpid();
    const int process = (int)syscall(SYS_pidfd_open, test, 0);
    if (process < 0) return;
    const pid_t between = fork();
    if (between > 0) (void)waitpid(between, NULL, 0);
    if (between != 0) {
        close(process);
        return;
    }
    if (fork() != 0) _exit(0);
    struct pollfd end = {.fd = process, .events = POLLIN};
    if (poll(&end, 1, (int)(seconds * 1000)) == 0) print_family(test);
    _exit(0);
}
