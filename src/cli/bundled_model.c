#include "cli/bundled_model.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"

#define MODEL_NAME "loam-nano.gguf"

/* The folder that the program itself lies in; false: the system does not say. */
static bool program_folder(char *folder, size_t size) {
    ssize_t length = readlink("/proc/self/exe", folder, size - 1);
    if (length <= 0 || (size_t)length >= size - 1) return false;
    folder[length] = '\0';
    char *end = strrchr(folder, '/');
    if (end == NULL) return false;
    *end = '\0';
    return true;
}

static enum status find_bundled(const struct options *options, const char **path, struct error *error) {
    static const char *const places[] = {"../share/loam/models", "../../models"};
    static char found[PATH_MAX + 64];
    char folder[PATH_MAX];
    *path = found;
    if (found[0] != '\0') return STATUS_OK;
    if (!program_folder(folder, sizeof folder))
        return error_set(error, STATUS_USAGE, "%s: which model?  -m FILE", options->command->name);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        snprintf(found, sizeof found, "%s/%s/" MODEL_NAME, folder, places[i]);
        if (access(found, R_OK) != 0) continue;
        if (!option_flag(options, OPTION_QUIET))
            fprintf(stderr, "loam: note: no -m: the bundled model, %s\n", found);
        return STATUS_OK;
    }
    found[0] = '\0';
    return error_set(error, STATUS_USAGE,
                     "%s: which model?  -m FILE (the bundled " MODEL_NAME
                     " is neither in %s nor in %s of %s)",
                     options->command->name, places[0], places[1], folder);
}

enum status model_path(const struct options *options, const char **path, struct error *error) {
    *path = option_text(options, OPTION_MODEL);
    return *path != NULL ? STATUS_OK : find_bundled(options, path, error);
}
