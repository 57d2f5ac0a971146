#include "pull/model_folder.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/array.h"
#include "pull/known_model.h"

static enum status no_memory(struct error *error) { return error_set(error, STATUS_MEMORY, "out of memory"); }

enum status model_folder_path(char **path, struct error *error) {
    const char *own = getenv("LOAM_MODELS"), *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    int made;
    *path = NULL;
    if (own != NULL && own[0] != '\0')
        made = asprintf(path, "%s", own);
    else if (data != NULL && data[0] == '/')
        made = asprintf(path, "%s/loam/models", data);
    else if (home != NULL && home[0] != '\0')
        made = asprintf(path, "%s/.local/share/loam/models", home);
    else
        return error_set(error, STATUS_USAGE, "where are the models?  set LOAM_MODELS to a folder (HOME is not set)");
    return made >= 0 ? STATUS_OK : no_memory(error);
}

static enum status make_folders(char *path, struct error *error) {
    for (char *c = path + 1;; c++) {
        if (*c != '/' && *c != '\0') continue;
        const char kept = *c;
        *c = '\0';
        const int failed = mkdir(path, 0777) != 0 && errno != EEXIST ? errno : 0;
        if (failed != 0) error_set_os(error, STATUS_IO, failed, "%s", path);
        *c = kept;
        if (failed != 0) return STATUS_IO;
        if (kept == '\0') return STATUS_OK;
    }
}

enum status model_folder_make(char **path, struct error *error) {
    TRY(model_folder_path(path, error));
    return make_folders(*path, error);
}

bool shard_parse(const char *name, size_t *stem_bytes, uint32_t *index, uint32_t *count) {
    static const char form[] = "-00000-of-00000.gguf";
    const size_t tail = sizeof form - 1, length = strlen(name);
    if (length <= tail) return false;
    const char *end = name + length - tail;
    for (size_t i = 0; i < tail; i++)
        if (form[i] == '0' ? end[i] < '0' || end[i] > '9' : end[i] != form[i]) return false;
    *stem_bytes = length - tail;
    *index = (uint32_t)strtoul(end + 1, NULL, 10);
    *count = (uint32_t)strtoul(end + 10, NULL, 10);
    return *index >= 1 && *index <= *count;
}

/* ---- by name ---- */

static bool ends_with(const char *name, const char *end) {
    const size_t length = strlen(name), wanted = strlen(end);
    return length > wanted && strcmp(name + length - wanted, end) == 0;
}

/* Whether `file` is what `name` means: "x.gguf" is also "x", and "x-00001-of-0000N.gguf" is also "x" and "x.gguf". */
static bool is_meant(const char *file, const char *name) {
    size_t stem = strlen(file) - strlen(".gguf");
    uint32_t index, count;
    if (strcmp(file, name) == 0) return true;
    size_t wanted = strlen(name) - (ends_with(name, ".gguf") ? strlen(".gguf") : 0);
    if (shard_parse(file, &stem, &index, &count) && index != 1) return false;
    return wanted == stem && strncmp(file, name, stem) == 0;
}

enum status model_folder_find(const char *name, char **path, struct error *error) {
    *path = NULL;
    char *folder;
    struct error none;
    if (model_folder_path(&folder, &none) != STATUS_OK) return STATUS_OK; /* without a home no model is there */
    const struct known_model *known = known_model_find(name);
    const char *wanted = known != NULL ? known->file : name;
    DIR *files = opendir(folder);
    enum status status = STATUS_OK;
    for (const struct dirent *entry; files != NULL && *path == NULL && (entry = readdir(files)) != NULL;)
        if (ends_with(entry->d_name, ".gguf") && entry->d_name[0] != '.' && is_meant(entry->d_name, wanted) &&
            asprintf(path, "%s/%s", folder, entry->d_name) < 0) {
            *path = NULL;
            status = no_memory(error);
            break;
        }
    if (files != NULL) closedir(files);
    free(folder);
    return status;
}

/* ---- the list ---- */

static void read_origin(struct model_entry *entry, const char *folder) {
    char *path;
    if (asprintf(&path, "%s/.%s.json", folder, entry->name) < 0) return;
    json_t *origin = json_load_file(path, 0, NULL);
    const char *license = json_string_value(json_object_get(origin, "license")),
               *url = json_string_value(json_object_get(origin, "url"));
    entry->license = license != NULL ? strdup(license) : NULL;
    entry->url = url != NULL ? strdup(url) : NULL;
    json_decref(origin);
    free(path);
}

/* A further file of a split model belongs to its first. */
static struct model_entry *find_first(struct model_list *list, const char *name) {
    size_t stem, other;
    uint32_t index, count, first;
    if (!shard_parse(name, &stem, &index, &count)) return NULL;
    for (size_t i = 0; i < list->count; i++)
        if (shard_parse(list->entries[i].name, &other, &first, &count) && other == stem &&
            strncmp(list->entries[i].name, name, stem) == 0)
            return &list->entries[i];
    return NULL;
}

static enum status add_file(struct model_list *list, const char *folder, const char *file, struct error *error) {
    const bool is_part = ends_with(file, ".gguf.part");
    if (file[0] == '.' || (!is_part && !ends_with(file, ".gguf"))) return STATUS_OK;
    char *path;
    if (asprintf(&path, "%s/%s", folder, file) < 0) return no_memory(error);
    struct stat info;
    const bool is_file = stat(path, &info) == 0 && S_ISREG(info.st_mode);
    char *name = strndup(file, strlen(file) - (is_part ? strlen(".part") : 0));
    struct model_entry *first = name != NULL && is_file ? find_first(list, name) : NULL;
    if (first != NULL) {
        first->size_bytes += (uint64_t)info.st_size;
        first->file_count += !is_part;
        first->is_part |= is_part;
    }
    if (first != NULL || !is_file) {
        free(path);
        free(name);
        return STATUS_OK;
    }
    if (name == NULL || !array_reserve(&list->entries, list->count, &list->capacity, sizeof *list->entries)) {
        free(path);
        free(name);
        return no_memory(error);
    }
    struct model_entry *entry = &list->entries[list->count++];
    size_t stem;
    uint32_t index, count = 1;
    *entry = (struct model_entry){
        .name = name, .path = path, .size_bytes = (uint64_t)info.st_size, .file_count = !is_part, .is_part = is_part};
    entry->files_wanted = shard_parse(name, &stem, &index, &count) ? count : 1;
    read_origin(entry, folder);
    return STATUS_OK;
}

static int by_name(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static enum status read_names(const char *folder, char ***names, size_t *count, struct error *error) {
    size_t capacity = 0;
    *names = NULL;
    *count = 0;
    DIR *files = opendir(folder);
    if (files == NULL) return errno == ENOENT ? STATUS_OK : error_set_os(error, STATUS_IO, errno, "%s", folder);
    enum status status = STATUS_OK;
    for (const struct dirent *entry; status == STATUS_OK && (entry = readdir(files)) != NULL;) {
        char *name = strdup(entry->d_name);
        if (name != NULL && array_reserve(names, *count, &capacity, sizeof **names))
            (*names)[(*count)++] = name;
        else {
            free(name);
            status = no_memory(error);
        }
    }
    closedir(files);
    if (*count > 0) qsort(*names, *count, sizeof **names, by_name);
    return status;
}

enum status model_list_read(struct model_list *list, struct error *error) {
    *list = (struct model_list){0};
    char *folder, **names = NULL;
    size_t count = 0;
    TRY(model_folder_path(&folder, error));
    enum status status = read_names(folder, &names, &count, error);
    for (size_t i = 0; i < count; i++) {
        if (status == STATUS_OK) status = add_file(list, folder, names[i], error);
        free(names[i]);
    }
    for (size_t i = 0; i < list->count; i++)
        list->entries[i].is_part |= list->entries[i].file_count < list->entries[i].files_wanted;
    free(names);
    free(folder);
    return status;
}

void model_list_deinit(struct model_list *list) {
    for (size_t i = 0; i < list->count; i++) {
        free(list->entries[i].name);
        free(list->entries[i].path);
        free(list->entries[i].license);
        free(list->entries[i].url);
    }
    free(list->entries);
    *list = (struct model_list){0};
}
