#include "cli/interrupt.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <unistd.h>

#include "platform/file.h"

static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
enum { SIGNAL_COUNT = sizeof signals / sizeof *signals };

static volatile sig_atomic_t requested, tells;

static void leave(int signal_number) {
    file_writer_remove_temporaries();
    /* Sends the same signal after this handler returns, so that the parent process sees it. */
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void on_request(int signal_number) {
    static const char line[] = "\nloam: stopping when this step is done; once more ends it at once\n";
    if (requested) leave(signal_number);
    requested = 1;
    if (!tells) return;
    /* Behind a line that shows progress, if there may be one. */
    const int before = errno, skipped = isatty(STDERR_FILENO) ? 0 : 1;
    const ssize_t ignored = write(STDERR_FILENO, line + skipped, sizeof line - 1 - (size_t)skipped);
    (void)ignored;
    errno = before;
}

static void install(int signal_number, void (*handler)(int)) {
    struct sigaction before, action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    if (signal_number == SIGHUP && sigaction(signal_number, NULL, &before) == 0 && before.sa_handler == SIG_IGN) return;
    sigemptyset(&action.sa_mask);
    sigaction(signal_number, &action, NULL);
}

void interrupt_install_cleanup(void) {
    for (size_t i = 0; i < SIGNAL_COUNT; i++) install(signals[i], leave);
}

void interrupt_install(void) {
    for (size_t i = 0; i < SIGNAL_COUNT; i++) install(signals[i], on_request);
}

void interrupt_tell(void) { tells = 1; }

void interrupt_install_ctrl_c(void) { install(SIGINT, on_request); }

bool interrupt_requested(void) { return requested != 0; }

void interrupt_clear(void) { requested = 0; }
