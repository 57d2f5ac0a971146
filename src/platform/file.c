#include "platform/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* The handler of SIGBUS must find which file a fault belongs to: a fixed table of mappings, entries published by their
 * address. */
enum { MAPS_MAX = 1024 };

static struct guarded_map {
    _Atomic uintptr_t begin; /* 0: free; released last, pairs with the handler's load */
    _Atomic uintptr_t end;   /* of its pages */
    atomic_bool is_lost;     /* a page was not there */
} guarded[MAPS_MAX];

static pthread_mutex_t guard_mutex = PTHREAD_MUTEX_INITIALIZER; /* of former, and who installs */
static struct sigaction former;

/* Maps zeros over all pages from the first missing one on, so that the process goes on to where it looks
 * (file_map_check).  mmap is a bare system call, so it may be called here. */
static bool replace_pages(uintptr_t address) {
    const uintptr_t page = address & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
    for (size_t i = 0; i < MAPS_MAX; i++) {
        const uintptr_t begin = atomic_load(&guarded[i].begin), end = atomic_load(&guarded[i].end);
        if (begin == 0 || address < begin || address >= end) continue;
        atomic_store(&guarded[i].is_lost, true);
        return mmap((void *)page, end - page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1,
                    0) != MAP_FAILED;
    }
    return false;
}

static void on_bus_error(int signal_number, siginfo_t *info, void *context) {
    const int before = errno;
    const bool is_ours = replace_pages((uintptr_t)info->si_addr);
    errno = before;
    if (is_ours) return;
    if ((former.sa_flags & SA_SIGINFO) != 0)
        former.sa_sigaction(signal_number, info, context);
    else if (former.sa_handler != SIG_DFL && former.sa_handler != SIG_IGN)
        former.sa_handler(signal_number);
    else
        signal(signal_number, SIG_DFL); /* the access is repeated, and seen */
}

/* Also after somebody else has installed one.  SA_ONSTACK: a program may have small stacks of its own, and one for
 * signals. */
static void guard_install(void) {
    struct sigaction now, ours = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    sigemptyset(&ours.sa_mask);
    pthread_mutex_lock(&guard_mutex);
    if (sigaction(SIGBUS, NULL, &now) == 0 && !((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_bus_error)) {
        former = now;
        (void)sigaction(SIGBUS, &ours, NULL);
    }
    pthread_mutex_unlock(&guard_mutex);
}

static struct guarded_map *guard_add(const uint8_t *data, uint64_t size) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t end = ((uintptr_t)data + size + page - 1) & ~(page - 1);
    for (size_t i = 0; i < MAPS_MAX; i++) {
        uintptr_t expected = 0;
        if (!atomic_compare_exchange_strong(&guarded[i].end, &expected, end)) continue;
        atomic_store(&guarded[i].is_lost, false);
        atomic_store(&guarded[i].begin, (uintptr_t)data);
        guard_install();
        return &guarded[i];
    }
    return NULL;
}

static enum status map_file(struct file_map *map, struct error *error) {
    if (fstat(map->file, &map->before) != 0) return error_set_os(error, STATUS_IO, errno, "%s", map->path);
    const off_t size = map->before.st_size;
    if (!S_ISREG(map->before.st_mode)) return error_set(error, STATUS_IO, "%s: not a regular file", map->path);
    if (size == 0) return error_set(error, STATUS_IO, "%s: the file is empty", map->path);
    void *data = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, map->file, 0);
    if (data == MAP_FAILED)
        return error_set_os(error, STATUS_IO, errno, "%s: mapping %lld bytes", map->path, (long long)size);
    /* Pages that are not in memory yet become huge pages, if the file system has them: decoding streams through the
     * whole file and would miss the TLB every 4 KiB. */
    (void)madvise(data, (size_t)size, MADV_HUGEPAGE);
    map->guard = guard_add(data, (uint64_t)size);
    if (map->guard == NULL) {
        munmap(data, (size_t)size);
        return error_set(error, STATUS_MEMORY, "%s: %d files are mapped already", map->path, MAPS_MAX);
    }
    map->data = data;
    map->size_bytes = (uint64_t)size;
    return STATUS_OK;
}

enum status file_map_open(struct file_map *map, const char *path, struct error *error) {
    *map = (struct file_map){0};
    /* O_NONBLOCK: a fifo must be rejected, not waited for. */
    map->file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (map->file < 0) return error_set_os(error, STATUS_IO, errno, "%s", path);
    map->path = strdup(path);
    enum status status =
        map->path != NULL ? map_file(map, error) : error_set(error, STATUS_MEMORY, "%s: out of memory", path);
    if (status == STATUS_OK) return status;
    close(map->file);
    free(map->path);
    *map = (struct file_map){0};
    return status;
}

void file_map_close(struct file_map *map) {
    if (map->data == NULL) return;
    atomic_store(&map->guard->begin, 0);
    munmap((void *)(uintptr_t)map->data, map->size_bytes);
    atomic_store(&map->guard->end, 0);
    close(map->file);
    free(map->path);
    *map = (struct file_map){0};
}

static bool same_time(struct timespec a, struct timespec b) { return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec; }

enum status file_map_check(const struct file_map *map, struct error *error) {
    const struct stat *before = &map->before;
    struct stat now;
    if (fstat(map->file, &now) != 0) return error_set_os(error, STATUS_MODEL, errno, "%s", map->path);
    /* A time of modification can be set back, that of a change of the file's state cannot.  It moves, too, when a name
     * is added or goes (a backup by links), or rights change. */
    const bool is_named_otherwise = now.st_nlink != before->st_nlink || now.st_mode != before->st_mode ||
                                    now.st_uid != before->st_uid || now.st_gid != before->st_gid;
    const bool is_same = now.st_size == before->st_size && same_time(now.st_mtim, before->st_mtim) &&
                         (same_time(now.st_ctim, before->st_ctim) || is_named_otherwise);
    if (!is_same)
        return error_set(error, STATUS_MODEL, "%s: the file changed on disk while it was in use: start again",
                         map->path);
    if (atomic_load(&map->guard->is_lost))
        return error_set(error, STATUS_MODEL, "%s: a part of the file could not be read from its disk", map->path);
    return STATUS_OK;
}

static void advise(const struct file_map *map, uint64_t offset, uint64_t bytes, int advice) {
    uintptr_t begin = ((uintptr_t)map->data + offset) & ~(uintptr_t)4095;
    uintptr_t end = (uintptr_t)map->data + offset + bytes;
    (void)madvise((void *)begin, end - begin, advice); /* a hint */
}

void file_map_scatter(const struct file_map *map, uint64_t offset, uint64_t bytes) {
    advise(map, offset, bytes, MADV_RANDOM);
}

void file_map_drop(const struct file_map *map, uint64_t offset, uint64_t bytes) {
    advise(map, offset, bytes, MADV_DONTNEED);
}

enum status file_read_all(const char *path, size_t limit_bytes, char **text, size_t *size_bytes, struct error *error) {
    bool standard_input = strcmp(path, "-") == 0;
    int fd = standard_input ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return error_set_os(error, STATUS_IO, errno, "%s", path);
    char *memory = NULL;
    size_t used = 0, capacity = 0;
    enum status status = STATUS_OK;
    for (;;) {
        if (used + 1 >= capacity) {
            capacity = capacity == 0 ? 65536 : capacity * 2;
            char *bigger = realloc(memory, capacity);
            if (bigger == NULL) {
                status = error_set(error, STATUS_MEMORY, "%s: out of memory at %zu bytes", path, used);
                break;
            }
            memory = bigger;
        }
        ssize_t count = read(fd, memory + used, capacity - used - 1);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) status = error_set_os(error, STATUS_IO, errno, "%s", path);
        if (count <= 0) break;
        used += (size_t)count;
        if (used > limit_bytes) {
            status = error_set(error, STATUS_IO, "%s: larger than the limit of %zu bytes", path, limit_bytes);
            break;
        }
    }
    if (!standard_input) close(fd);
    if (status != STATUS_OK) {
        free(memory);
        return status;
    }
    memory[used] = '\0';
    *text = memory;
    *size_bytes = used;
    return STATUS_OK;
}

/* The temporary files that a signal handler must remove: entries of a fixed table, since it may neither lock nor
 * follow memory that another thread frees.  A name is published before its file is made; is_named is released by
 * temporary_add and acquired by file_writer_remove_temporaries. */
enum { TEMPORARIES_MAX = 32 };

static struct temporary {
    atomic_bool is_taken, is_named;
    char path[PATH_MAX];
} temporaries[TEMPORARIES_MAX];

static void temporary_add(const char *path) {
    for (size_t i = 0; i < TEMPORARIES_MAX; i++) {
        struct temporary *slot = &temporaries[i];
        if (atomic_exchange(&slot->is_taken, true)) continue;
        snprintf(slot->path, sizeof slot->path, "%s", path);
        atomic_store_explicit(&slot->is_named, true, memory_order_release);
        return;
    }
}

static void temporary_drop(const char *path) {
    for (size_t i = 0; i < TEMPORARIES_MAX; i++) {
        struct temporary *slot = &temporaries[i];
        if (!atomic_load(&slot->is_named) || strcmp(slot->path, path) != 0) continue;
        atomic_store(&slot->is_named, false);
        atomic_store(&slot->is_taken, false);
        return;
    }
}

void file_writer_remove_temporaries(void) {
    for (size_t i = 0; i < TEMPORARIES_MAX; i++)
        if (atomic_load_explicit(&temporaries[i].is_named, memory_order_acquire)) (void)unlink(temporaries[i].path);
}

/* mkostemp, but for a name that the table has before the file is there; path ends in six X. */
static int temporary_open(char *path) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    char *end = path + strlen(path) - 6;
    for (int tries = 0; tries < 100; tries++) {
        uint8_t drawn[6];
        if (getrandom(drawn, sizeof drawn, 0) != (ssize_t)sizeof drawn) return -1;
        for (size_t i = 0; i < sizeof drawn; i++) end[i] = letters[drawn[i] % (sizeof letters - 1)];
        if (access(path, F_OK) == 0) continue; /* another's */
        temporary_add(path);
        int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd >= 0) return fd;
        int failed = errno;
        temporary_drop(path);
        errno = failed;
        if (failed != EEXIST) return -1;
    }
    return -1;
}

/* The process's own output if path leads to it (/dev/stdout, /dev/fd/2): replacing the file or opening it again would
 * lose what was printed. */
static int own_output(const struct stat *target) {
    struct stat info;
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++)
        if (fstat(fd, &info) == 0 && info.st_dev == target->st_dev && info.st_ino == target->st_ino)
            return fcntl(fd, F_DUPFD_CLOEXEC, 0);
    return -1;
}

/* A temporary file in path's folder, with the rights of the file that it replaces, or the usual rights for a new one.
 */
static int open_temporary(struct file_writer *writer, const struct stat *replaced) {
    const size_t length = strlen(writer->target);
    writer->temporary = malloc(length + 8);
    if (writer->temporary == NULL) return -1;
    memcpy(writer->temporary, writer->target, length);
    memcpy(writer->temporary + length, ".XXXXXX", 8);
    int fd = temporary_open(writer->temporary);
    if (fd < 0) {
        const int failed = errno;
        free(writer->temporary);
        writer->temporary = NULL; /* nothing of ours to remove */
        errno = failed;
        return -1;
    }
    mode_t mask = umask(0);
    umask(mask);
    (void)fchmod(fd, replaced != NULL ? replaced->st_mode & 0777 : 0666 & ~mask);
    return fd;
}

static int open_output(struct file_writer *writer, const char *path) {
    struct stat info;
    const bool is_there = stat(path, &info) == 0;
    const int own = is_there ? own_output(&info) : -1;
    if (own >= 0) return own;
    if (is_there && !S_ISREG(info.st_mode)) return open(path, O_WRONLY | O_CLOEXEC); /* of a folder EISDIR */
    struct stat named;
    if (is_there && lstat(path, &named) == 0 && S_ISLNK(named.st_mode) && info.st_uid != geteuid()) {
        errno = EPERM; /* a link does not lead to what somebody else has */
        return -1;
    }
    writer->target = is_there ? realpath(path, NULL) : strdup(path);
    return writer->target != NULL ? open_temporary(writer, is_there ? &info : NULL) : -1;
}

enum status file_writer_open(struct file_writer *writer, const char *path, struct error *error) {
    *writer = (struct file_writer){.path = strdup(path)};
    if (path[0] == '\0') errno = ENOENT;
    int fd = writer->path != NULL && path[0] != '\0' ? open_output(writer, path) : -1;
    if (fd >= 0) writer->stream = fdopen(fd, "wb");
    if (writer->stream == NULL) {
        const int failed = errno;
        if (fd >= 0) close(fd);
        file_writer_abort(writer);
        return error_set_os(error, STATUS_IO, failed, "%s", path[0] != '\0' ? path : "''");
    }
    return STATUS_OK;
}

enum status file_writer_check(const char *path, struct error *error) {
    struct stat info;
    struct file_writer writer;
    if (stat(path, &info) == 0 && S_ISFIFO(info.st_mode)) return STATUS_OK; /* opening waits for who reads it */
    TRY(file_writer_open(&writer, path, error));
    file_writer_abort(&writer);
    return STATUS_OK;
}

/* Not all file systems can say in one call that nothing shall be replaced. */
static int put_in_place(const struct file_writer *writer) {
    if (!writer->keeps) return rename(writer->temporary, writer->target);
    if (renameat2(AT_FDCWD, writer->temporary, AT_FDCWD, writer->target, RENAME_NOREPLACE) == 0) return 0;
    if (errno != EINVAL && errno != ENOSYS) return -1;
    return link(writer->temporary, writer->target) == 0 ? unlink(writer->temporary) : -1;
}

enum status file_writer_commit(struct file_writer *writer, struct error *error) {
    FILE *stream = writer->stream;
    writer->stream = NULL;
    int failed = 0;
    if (fflush(stream) != 0 || (writer->temporary != NULL && fsync(fileno(stream)) != 0)) failed = errno;
    if (fclose(stream) != 0 && failed == 0) failed = errno;
    if (failed == 0 && writer->temporary != NULL && put_in_place(writer) != 0) failed = errno;
    if (failed != 0) {
        enum status status = error_set_os(error, STATUS_IO, failed, "%s", writer->path);
        file_writer_abort(writer);
        return status;
    }
    if (writer->temporary != NULL) temporary_drop(writer->temporary);
    free(writer->temporary);
    writer->temporary = NULL;
    file_writer_abort(writer);
    return STATUS_OK;
}

void file_writer_abort(struct file_writer *writer) {
    if (writer->stream != NULL) fclose(writer->stream);
    if (writer->temporary != NULL) {
        unlink(writer->temporary);
        temporary_drop(writer->temporary);
    }
    free(writer->temporary);
    free(writer->target);
    free(writer->path);
    *writer = (struct file_writer){0};
}
