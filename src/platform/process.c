#include "platform/process.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>

/* "pid (name) state ...": the name may hold anything, brackets too. */
static bool has_ended(const char *line) {
    const char *end = strrchr(line, ')');
    return end != NULL && end[1] == ' ' && (end[2] == 'Z' || end[2] == 'X');
}

bool process_is_running(uint64_t id) {
    if (id == 0 || id > INT32_MAX) return false;
    if (kill((pid_t)id, 0) != 0) return errno != ESRCH;
    char path[48], line[512];
    snprintf(path, sizeof path, "/proc/%" PRIu64 "/stat", id);
    FILE *file = fopen(path, "re");
    if (file == NULL) return true;
    bool ended = fgets(line, sizeof line, file) != NULL && has_ended(line);
    fclose(file);
    return !ended;
}
