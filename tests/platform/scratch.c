#include "platform/scratch.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void die(const char *what) {
    perror(what);
    exit(1);
}

void scratch_create(struct scratch *scratch, enum scratch_place place) {
    snprintf(scratch->path, sizeof scratch->path, "/dev/shm/loam-test.XXXXXX");
    if (place == SCRATCH_MEMORY && mkdtemp(scratch->path) != NULL) return;
    snprintf(scratch->path, sizeof scratch->path, "scratch.XXXXXX");
    if (mkdtemp(scratch->path) == NULL) die("scratch folder");
}

const char *scratch_name(const struct scratch *scratch, const char *name) {
    static char texts[4][400];
    static unsigned next;
    char *text = texts[next++ % 4];
    snprintf(text, sizeof texts[0], "%s/%s", scratch->path, name);
    return text;
}

static void visit(const struct scratch *scratch, void (*see)(const char *path, void *context),
                  void *context) {
    DIR *folder = opendir(scratch->path);
    if (folder == NULL) die(scratch->path);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            see(scratch_name(scratch, entry->d_name), context);
    closedir(folder);
}

static void see_remove(const char *path, void *context) {
    (void)context;
    if (remove(path) != 0) die(path);
}

void scratch_empty(struct scratch *scratch) { visit(scratch, see_remove, NULL); }

void scratch_destroy(struct scratch *scratch) {
    scratch_empty(scratch);
    if (rmdir(scratch->path) != 0) die(scratch->path);
}

static void see_count(const char *path, void *context) {
    (void)path;
    *(size_t *)context += 1;
}

size_t scratch_count(const struct scratch *scratch) {
    size_t count = 0;
    visit(scratch, see_count, &count);
    return count;
}

static void see_blocks(const char *path, void *context) {
    struct stat info;
    if (lstat(path, &info) == 0) *(uint64_t *)context += (uint64_t)info.st_blocks * 512;
}

uint64_t scratch_disk_bytes(const struct scratch *scratch) {
    uint64_t bytes = 0;
    visit(scratch, see_blocks, &bytes);
    return bytes;
}
