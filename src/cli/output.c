#include "cli/output.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

static int failed; /* errno of the first failed write, kept for good: stdio forgets it */

static void note(bool worked) {
    if (!worked && failed == 0) failed = errno != 0 ? errno : EIO;
}

void output_text(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    errno = 0;
    note(vfprintf(stdout, format, arguments) >= 0);
    va_end(arguments);
}

void output_bytes(const char *bytes, size_t length) {
    errno = 0;
    note(fwrite(bytes, 1, length, stdout) == length);
}

enum status output_flush(struct error *error) {
    errno = 0;
    note(fflush(stdout) == 0);
    if (failed == 0) return STATUS_OK;
    error_set_os(error, STATUS_IO, failed, "standard output");
    /* The reader of the pipe has seen enough, as `head` has: no error. */
    if (failed == EPIPE && error != NULL) error->message[0] = '\0';
    return STATUS_IO;
}

bool output_can_draw(void) {
    const char *terminal = getenv("TERM");
    return isatty(STDERR_FILENO) && terminal != NULL && strcmp(terminal, "dumb") != 0;
}

size_t output_columns(void) {
    struct winsize window;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0) return window.ws_col;
    const char *columns = getenv("COLUMNS");
    const unsigned long given = columns != NULL ? strtoul(columns, NULL, 10) : 0;
    return given > 0 && given < 10000 ? given : 80;
}

uint64_t peak_rss_bytes(void) {
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
    return (uint64_t)usage.ru_maxrss * 1024; /* Linux counts in KiB */
}
