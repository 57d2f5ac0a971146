#include "cli/interrupt.h"

#include <signal.h>
#include <stddef.h>

#include "platform/file.h"

static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
enum { SIGNAL_COUNT = sizeof signals / sizeof *signals };

static volatile sig_atomic_t requested;

static void leave(int signal_number) {
    file_writer_remove_temporaries();
    /* Sends the same signal after this handler returns, so that the parent process sees it. */
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void on_request(int signal_number) {
    if (requested) leave(signal_number);
    requested = 1;
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

void interrupt_install_ctrl_c(void) { install(SIGINT, on_request); }

bool interrupt_requested(void) { return requested != 0; }

void interrupt_clear(void) { requested = 0; }
