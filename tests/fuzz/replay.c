/* Runs every file of the given folders through a fuzz harness: the corpus as an ordinary test, with
 * no fuzzer needed.  Exit 77 (skipped) when a folder is missing, 1 when there is nothing in them. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUT_BYTES_MAX = 16 << 20 };

/* Returns false when the file cannot be read. */
static int replay_file(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) return 0;
    uint8_t *buffer = malloc(INPUT_BYTES_MAX);
    size_t size = buffer == NULL ? 0 : fread(buffer, 1, INPUT_BYTES_MAX, file);
    fclose(file);
    uint8_t *data = buffer == NULL ? NULL : malloc(size > 0 ? size : 1); /* exactly as long as the input */
    if (data != NULL) {
        memcpy(data, buffer, size);
        LLVMFuzzerTestOneInput(data, size);
    }
    free(buffer);
    free(data);
    return data != NULL;
}

static int replay_folder(const char *folder, size_t *count) {
    DIR *entries = opendir(folder);
    if (entries == NULL) {
        printf("%s: no such corpus, skipped\n", folder);
        return 77;
    }
    int failed = 0;
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;) {
        char path[4096];
        struct stat info;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (stat(path, &info) != 0 || !S_ISREG(info.st_mode)) continue;
        if (!replay_file(path)) {
            printf("%s: cannot be read\n", path);
            failed = 1;
        }
        ++*count;
    }
    closedir(entries);
    return failed;
}

int main(int argument_count, char **arguments) {
    size_t count = 0;
    for (int i = 1; i < argument_count; i++) {
        int result = replay_folder(arguments[i], &count);
        if (result != 0) return result;
    }
    printf("%zu inputs replayed\n", count);
    return count == 0;
}
