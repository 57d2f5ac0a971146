/* Finds a command by its name, and the nearest name to a misspelled one. */
#include <string.h>

#include "cli/command.h"

const struct command *command_find(const struct program *program, const char *name) {
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(program->commands[i].name, name) == 0) return &program->commands[i];
    return NULL;
}

const struct command *command_nearest(const struct program *program, const char *name) {
    const struct command *best = NULL;
    size_t length = strlen(name), best_distance = length / 3 + 2;
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        const struct command *candidate = &program->commands[i];
        size_t distance = edit_distance(name, candidate->name);
        if (candidate->run == NULL) continue;
        if (length >= 3 && strncmp(name, candidate->name, length) == 0) distance = 1; /* cut short */
        if (distance < best_distance) {
            best = candidate;
            best_distance = distance;
        }
    }
    return best;
}
