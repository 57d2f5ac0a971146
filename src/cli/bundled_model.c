#include "cli/bundled_model.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "pull/known_model.h"
#include "pull/model_folder.h"

#define MODEL_NAME "loam-nano.gguf"

/* The folder of the program itself; false: the system does not tell. */
static bool program_folder(char *folder, size_t size) {
    ssize_t length = readlink("/proc/self/exe", folder, size - 1);
    if (length <= 0 || (size_t)length >= size - 1) return false;
    folder[length] = '\0';
    char *end = strrchr(folder, '/');
    if (end == NULL) return false;
    *end = '\0';
    return true;
}

static const char *const places[] = {"../share/loam/models", "../../models"};

const char *bundled_model_find(void) {
    static char found[PATH_MAX + 64];
    char folder[PATH_MAX];
    if (found[0] != '\0') return found;
    for (size_t i = 0; i < sizeof places / sizeof places[0] && program_folder(folder, sizeof folder); i++) {
        snprintf(found, sizeof found, "%s/%s/" MODEL_NAME, folder, places[i]);
        if (access(found, R_OK) == 0) return found;
    }
    found[0] = '\0';
    return NULL;
}

static enum status use_bundled(const struct options *options, const char **path, struct error *error) {
    static bool is_told;
    char folder[PATH_MAX];
    *path = bundled_model_find();
    if (*path == NULL && !program_folder(folder, sizeof folder))
        return error_set(error, STATUS_USAGE, "%s: which model?  -m FILE", options->command->name);
    if (*path == NULL)
        return error_set(error, STATUS_USAGE,
                         "%s: which model?  -m FILE (the bundled " MODEL_NAME " is neither in %s nor in %s of %s)",
                         options->command->name, places[0], places[1], folder);
    if (!is_told && !option_flag(options, OPTION_QUIET))
        fprintf(stderr, "loam: note: no -m: the bundled model, %s\n", *path);
    is_told = true;
    return STATUS_OK;
}

/* The pulled model of that name, kept for the program's life. */
static enum status use_pulled(const char *name, const char **path, struct error *error) {
    static char *found;
    free(found);
    TRY(model_folder_find(name, &found, error));
    if (found == NULL && known_model_find(name) != NULL)
        return error_set(error, STATUS_USAGE, "the model %s is not here yet: loam pull %s brings it", name, name);
    if (found == NULL)
        return error_set(error, STATUS_IO, "%.200s: no such file, and no pulled model: loam models lists those", name);
    *path = found;
    return STATUS_OK;
}

enum status model_named(const char *name, const char **path, struct error *error) {
    *path = name;
    if (strncmp(name, "hf:", 3) == 0 || strstr(name, "://") != NULL)
        return error_set(error, STATUS_USAGE,
                         "-m takes a file or the name of a pulled model: loam pull %.200s brings it", name);
    return strchr(name, '/') != NULL || access(name, F_OK) == 0 ? STATUS_OK : use_pulled(name, path, error);
}

enum status model_path(const struct options *options, const char **path, struct error *error) {
    const char *name = option_text(options, OPTION_MODEL);
    return name != NULL ? model_named(name, path, error) : use_bundled(options, path, error);
}
