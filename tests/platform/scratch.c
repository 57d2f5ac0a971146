#include "platform/scratch.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
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

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *place) {
    (void)info, (void)kind, (void)place;
    return remove(path);
}

static void see_remove(const char *path, void *context) {
    enum { FILES_OPEN = 8 };
    (void)context;
    if (nftw(path, remove_one, FILES_OPEN, FTW_DEPTH | FTW_PHYS) != 0) die(path);
}

void scratch_empty(struct scratch *scratch) { visit(scratch, see_remove, NULL); }

void scratch_destroy(struct scratch *scratch) {
    scratch_empty(scratch);
    if (rmdir(scratch->path) != 0) die(scratch->path);
}

static void see_copy(const char *path, void *context) {
    const struct scratch *scratch = context;
    const int source = open(path, O_RDONLY | O_CLOEXEC),
              target = open(scratch_name(scratch, strrchr(path, '/') + 1),
                            O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    struct stat info;
    if (source < 0 || target < 0 || fstat(source, &info) != 0) die(path);
    for (off_t left = info.st_size; left > 0;) {
        const ssize_t count = sendfile(target, source, NULL, (size_t)left);
        if (count <= 0) die(path);
        left -= count;
    }
    close(source);
    close(target);
}

void scratch_copy(const struct scratch *scratch, const struct scratch *from) {
    visit(from, see_copy, (void *)(uintptr_t)scratch);
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
