#include "cli/output_check.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/bundled_model.h"
#include "cli/command.h"
#include "cli/kv_disk.h"
#include "cli/option_help.h"
#include "document/folder.h"
#include "format/gguf.h"
#include "model/calibration.h"

enum { OUTPUTS_MAX = 8, SUFFIX_BYTES = 20 }; /* "-00001-of-00003.gguf" */

struct identity {
    dev_t device;
    ino_t inode;      /* of the file, or of the folder that it will be in */
    const char *name; /* NULL: the file is there */
    bool is_special;  /* a device or a pipe, or a folder that does not exist */
};

struct output {
    const char *option, *path; /* as the user wrote them */
    struct identity identity;
};

struct output_list {
    struct output outputs[OUTPUTS_MAX];
    size_t count;
    struct error *error;
};

static struct identity identity_of(const struct stat *info) {
    return (struct identity){.device = info->st_dev, .inode = info->st_ino, .is_special = !S_ISREG(info->st_mode)};
}

static struct identity identify(const char *path) {
    struct stat info;
    if (stat(path, &info) == 0) return identity_of(&info);
    char folder[PATH_MAX] = ".";
    const char *slash = strrchr(path, '/');
    const size_t length = slash != NULL ? (size_t)(slash - path) + 1 : 0;
    struct identity identity = {.is_special = true};
    if (length >= sizeof folder) return identity;
    if (slash != NULL) snprintf(folder, sizeof folder, "%.*s", (int)length, path);
    if (stat(folder, &info) != 0) return identity;
    return (struct identity){info.st_dev, info.st_ino, slash != NULL ? slash + 1 : path, false};
}

static bool is_same(const struct identity *a, const struct identity *b) {
    if (a->is_special || b->is_special || a->device != b->device || a->inode != b->inode) return false;
    if (a->name == NULL || b->name == NULL) return a->name == b->name;
    return strcmp(a->name, b->name) == 0;
}

static enum status add_output(struct output_list *list, const char *option, const char *path) {
    if (path == NULL) return STATUS_OK;
    if (strcmp(path, "-") == 0)
        return error_set(list->error, STATUS_USAGE, "%s: '-' is no file: /dev/stdout is standard output", option);
    struct output output = {option, path, identify(path)};
    for (size_t i = 0; i < list->count; i++)
        if (is_same(&list->outputs[i].identity, &output.identity))
            return error_set(list->error, STATUS_USAGE, "%s: '%.200s' is the file of %s, too", option, path,
                             list->outputs[i].option);
    list->outputs[list->count++] = output;
    return STATUS_OK;
}

static enum status check_identity(const struct output_list *list, const char *input, const struct identity *identity) {
    for (size_t i = 0; i < list->count; i++)
        if (is_same(&list->outputs[i].identity, identity))
            return error_set(list->error, STATUS_USAGE, "%s: '%.200s' would overwrite %s", list->outputs[i].option,
                             list->outputs[i].path, input);
    return STATUS_OK;
}

static enum status check_input(const struct output_list *list, const char *input, const char *path) {
    struct stat info;
    if (path == NULL) return STATUS_OK;
    const bool is_standard = strcmp(path, "-") == 0;
    if ((is_standard ? fstat(STDIN_FILENO, &info) : stat(path, &info)) != 0) return STATUS_OK;
    const struct identity identity = identity_of(&info);
    return check_identity(list, input, &identity);
}

/* The files that lie in a folder. */
static enum status check_folder(const struct output_list *list, const char *input, const char *path) {
    DIR *folder = opendir(path);
    if (folder == NULL) return STATUS_OK; /* said by who reads it */
    enum status status = STATUS_OK;
    struct stat info;
    for (struct dirent *entry; status == STATUS_OK && (entry = readdir(folder)) != NULL;) {
        if (fstatat(dirfd(folder), entry->d_name, &info, 0) != 0) continue;
        const struct identity identity = identity_of(&info);
        status = check_identity(list, input, &identity);
    }
    closedir(folder);
    return status;
}

/* The parts of a split model, from the name of one part. */
static enum status check_parts(const struct output_list *list, const char *input, const char *path) {
    const size_t length = strlen(path);
    unsigned number, count;
    char ending[8] = "", part[PATH_MAX];
    if (length < SUFFIX_BYTES || length >= sizeof part ||
        sscanf(path + length - SUFFIX_BYTES, "-%5u-of-%5u%7s", &number, &count, ending) != 3 ||
        strcmp(ending, ".gguf") != 0 || count > GGUF_FILES_MAX)
        return STATUS_OK;
    for (unsigned i = 1; i <= count; i++) {
        snprintf(part, sizeof part, "%.*s-%05u-of-%05u.gguf", (int)(length - SUFFIX_BYTES), path, i, count);
        TRY(check_input(list, input, part));
    }
    return STATUS_OK;
}

/* A text, or the files of a folder of them. */
static enum status check_text(const struct output_list *list, const char *path) {
    static const char input[] = "the text of -f";
    struct folder folder;
    struct error later; /* the command says it */
    if (strcmp(path, "-") == 0 || !folder_is(path)) return check_input(list, input, path);
    enum status status = STATUS_OK;
    if (folder_open(&folder, path, &later) != STATUS_OK) folder_close(&folder);
    for (size_t i = 0; i < folder.count && status == STATUS_OK; i++) {
        char whole[PATH_MAX];
        snprintf(whole, sizeof whole, "%s/%s", path, folder.names[i]);
        status = check_input(list, input, whole);
    }
    folder_close(&folder);
    return status;
}

static enum status check_model(const struct output_list *list, const char *input, const char *path) {
    if (path == NULL) return STATUS_OK;
    TRY(check_input(list, input, path));
    return check_parts(list, input, path);
}

/* The sidecar that a command reads from the model's folder. */
static enum status check_calibration(const struct output_list *list, const char *model) {
    char *path;
    if (model == NULL) return STATUS_OK;
    TRY(calibration_path(model, &path, list->error));
    enum status status = check_input(list, "the model's calibration", path);
    free(path);
    return status;
}

static enum status check_documents(const struct output_list *list, const char *text) {
    struct kv_disk disk;
    struct error later; /* the command says it */
    if (text == NULL || kv_disk_parse(&disk, text, &later) != STATUS_OK) return STATUS_OK;
    enum status status = check_folder(list, "a file of --kv-disk", disk.directory);
    kv_disk_deinit(&disk);
    return status;
}

static enum positional positional_of(const struct options *options, size_t index) {
    const enum positional *positionals = options->command->positionals;
    const size_t last = sizeof options->command->positionals / sizeof *positionals - 1;
    return positionals[index < last ? index : last];
}

static enum status check_positionals(const struct output_list *list, const struct options *options) {
    for (size_t i = 0; i < options->positional_count; i++) {
        const char *path = options->positionals[i];
        switch (positional_of(options, i)) {
        case POSITIONAL_WORD:
        case POSITIONAL_OUTPUT: break;
        case POSITIONAL_MODEL: TRY(check_model(list, "the model", path)); break;
        case POSITIONAL_FOLDER: TRY(check_folder(list, "a file of HF_DIR", path)); break;
        case POSITIONAL_TEXT: TRY(check_input(list, "a text to learn from", path)); break;
        }
    }
    return STATUS_OK;
}

/* *own_model: the command does not read the model of -m, nor the bundled one. */
static enum status add_outputs(struct output_list *list, const struct options *options, bool *own_model, char **owned) {
    const struct command *command = options->command;
    const struct option_spec *spec;
    for (size_t i = 0; (spec = program_option(options->program, i)) != NULL; i++)
        if (spec->writes != NULL && option_belongs(spec, command))
            TRY(add_output(list, spec->writes, option_text(options, spec->id)));
    *own_model = false;
    for (size_t i = 0; i < options->positional_count; i++) {
        const enum positional positional = positional_of(options, i);
        *own_model = *own_model || positional != POSITIONAL_WORD;
        if (positional == POSITIONAL_OUTPUT) TRY(add_output(list, command->name, options->positionals[i]));
    }
    if (command->output == NULL) return STATUS_OK;
    const char *name;
    TRY(command->output(options, &name, owned, list->error));
    return *owned != NULL ? add_output(list, name, *owned) : STATUS_OK;
}

static enum status check_all(struct output_list *list, const struct options *options, char **owned) {
    const struct option_spec *spec;
    bool own_model;
    TRY(add_outputs(list, options, &own_model, owned));
    if (list->count == 0) return STATUS_OK;
    TRY(check_positionals(list, options));
    const char *model = option_text(options, OPTION_MODEL);
    if (model != NULL) TRY(model_named(model, &model, list->error));
    if (model == NULL && !own_model) model = bundled_model_find();
    TRY(check_model(list, "the model of -m", model));
    TRY(check_calibration(list, model));
    const char *files[OPTION_LIST_MAX];
    const size_t file_count = option_texts(options, OPTION_FILE, files);
    for (size_t i = 0; i < file_count; i++) TRY(check_text(list, files[i]));
    for (size_t i = 0; (spec = program_option(options->program, i)) != NULL; i++)
        if (spec->reads != NULL && option_belongs(spec, options->command))
            TRY(check_input(list, spec->reads, option_text(options, spec->id)));
    return check_documents(list, option_text(options, OPTION_KV_DISK));
}

enum status output_check(const struct options *options, struct error *error) {
    struct output_list list = {.error = error};
    char *owned = NULL;
    enum status status = check_all(&list, options, &owned);
    free(owned);
    return status;
}
