#include "cache/faulty_vfs.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <sqlite3.h>

static _Atomic(struct fault_plan *) current;
static sqlite3_vfs *real;

struct faulty_file {
    sqlite3_file base;
    sqlite3_file *file; /* the real one, behind this */
};

/* The code for this call, or SQLITE_OK to let it through. */
static int ask(enum io_call call, int bytes, int failed_code) {
    struct fault_plan *plan = current;
    if (plan == NULL) return SQLITE_OK;
    struct io_fault fault = fault_plan_decide(plan, call, (size_t)bytes);
    if (fault.os_error == EINTR) return SQLITE_OK; /* SQLite repeats it below this level */
    if (fault.os_error == ENOSPC && call == IO_CALL_WRITE) return SQLITE_FULL;
    if (fault.os_error == ENOSPC && call != IO_CALL_READ) return failed_code;
    return fault.os_error != 0 ? failed_code : SQLITE_OK;
}

static sqlite3_file *real_of(sqlite3_file *file) { return ((struct faulty_file *)file)->file; }

static int faulty_close(sqlite3_file *file) {
    int code = ask(IO_CALL_CLOSE, 0, SQLITE_IOERR_CLOSE), closed = real_of(file)->pMethods->xClose(real_of(file));
    return code != SQLITE_OK ? code : closed;
}

static int faulty_read(sqlite3_file *file, void *memory, int bytes, sqlite3_int64 offset) {
    int code = ask(IO_CALL_READ, bytes, SQLITE_IOERR_READ);
    return code != SQLITE_OK ? code : real_of(file)->pMethods->xRead(real_of(file), memory, bytes, offset);
}

static int faulty_write(sqlite3_file *file, const void *memory, int bytes, sqlite3_int64 offset) {
    int code = ask(IO_CALL_WRITE, bytes, SQLITE_IOERR_WRITE);
    if (code == SQLITE_OK) return real_of(file)->pMethods->xWrite(real_of(file), memory, bytes, offset);
    (void)real_of(file)->pMethods->xWrite(real_of(file), memory, bytes / 2, offset); /* half of it is there */
    return code;
}

static int faulty_truncate(sqlite3_file *file, sqlite3_int64 size) {
    int code = ask(IO_CALL_TRUNCATE, 0, SQLITE_IOERR_TRUNCATE);
    return code != SQLITE_OK ? code : real_of(file)->pMethods->xTruncate(real_of(file), size);
}

static int faulty_sync(sqlite3_file *file, int flags) {
    int code = ask(IO_CALL_SYNC, 0, SQLITE_IOERR_FSYNC);
    return code != SQLITE_OK ? code : real_of(file)->pMethods->xSync(real_of(file), flags);
}

static int faulty_size(sqlite3_file *file, sqlite3_int64 *size) {
    return real_of(file)->pMethods->xFileSize(real_of(file), size);
}
static int faulty_lock(sqlite3_file *file, int lock) {
    return real_of(file)->pMethods->xLock(real_of(file), lock);
}
static int faulty_unlock(sqlite3_file *file, int lock) {
    return real_of(file)->pMethods->xUnlock(real_of(file), lock);
}
static int faulty_check_lock(sqlite3_file *file, int *result) {
    return real_of(file)->pMethods->xCheckReservedLock(real_of(file), result);
}
static int faulty_control(sqlite3_file *file, int operation, void *argument) {
    return real_of(file)->pMethods->xFileControl(real_of(file), operation, argument);
}
static int faulty_sector(sqlite3_file *file) { return real_of(file)->pMethods->xSectorSize(real_of(file)); }
static int faulty_device(sqlite3_file *file) {
    return real_of(file)->pMethods->xDeviceCharacteristics(real_of(file));
}

static const sqlite3_io_methods methods = {
    .iVersion = 1, /* no shared memory, no mapping: what the store uses */
    .xClose = faulty_close,
    .xRead = faulty_read,
    .xWrite = faulty_write,
    .xTruncate = faulty_truncate,
    .xSync = faulty_sync,
    .xFileSize = faulty_size,
    .xLock = faulty_lock,
    .xUnlock = faulty_unlock,
    .xCheckReservedLock = faulty_check_lock,
    .xFileControl = faulty_control,
    .xSectorSize = faulty_sector,
    .xDeviceCharacteristics = faulty_device,
};

static int faulty_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *file, int flags, int *flags_out) {
    (void)vfs;
    struct faulty_file *faulty = (struct faulty_file *)file;
    faulty->base.pMethods = NULL;
    faulty->file = (sqlite3_file *)(faulty + 1);
    int code = ask(IO_CALL_OPEN, 0, SQLITE_CANTOPEN);
    if (code == SQLITE_OK) code = real->xOpen(real, name, faulty->file, flags, flags_out);
    if (code == SQLITE_OK) faulty->base.pMethods = &methods;
    return code;
}

static int faulty_delete(sqlite3_vfs *vfs, const char *name, int sync_folder) {
    (void)vfs;
    int code = ask(IO_CALL_REMOVE, 0, SQLITE_IOERR_DELETE);
    return code != SQLITE_OK ? code : real->xDelete(real, name, sync_folder);
}

void faulty_vfs_use(struct fault_plan *plan) {
    static sqlite3_vfs faulty;
    current = plan;
    if (real != NULL) return;
    real = sqlite3_vfs_find(NULL);
    faulty = *real;
    faulty.pNext = NULL;
    faulty.zName = FAULTY_VFS;
    faulty.szOsFile = (int)sizeof(struct faulty_file) + real->szOsFile;
    faulty.xOpen = faulty_open;
    faulty.xDelete = faulty_delete;
    if (sqlite3_vfs_register(&faulty, 0) != SQLITE_OK) abort();
}
