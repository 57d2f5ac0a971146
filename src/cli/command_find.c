/* Finds a command by its name, and the nearest name to a misspelled one. */
#include <string.h>

#include "cli/command.h"

const struct command *command_find(const struct command *commands, const char *name) {
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (commands[i].name != NULL && strcmp(commands[i].name, name) == 0) return &commands[i];
    return NULL;
}

const char *command_nearest(const struct command *commands, const char *name) {
    const char *best = NULL;
    size_t length = strlen(name), best_distance = length / 3 + 2;
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        const char *candidate = commands[i].name;
        if (candidate == NULL) continue;
        size_t distance = edit_distance(name, candidate);
        if (length >= 3 && strncmp(name, candidate, length) == 0) distance = 1; /* cut short */
        if (distance < best_distance) {
            best = candidate;
            best_distance = distance;
        }
    }
    return best;
}
