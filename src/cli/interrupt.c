#include "cli/interrupt.h"

#include <signal.h>
#include <stddef.h>
#include <unistd.h>

static volatile sig_atomic_t requested;

static void on_interrupt(int signal_number) {
    (void)signal_number;
    if (requested) _exit(130);
    requested = 1;
}

static void install(int signal_number) {
    /* SA_RESTART: a read of standard input goes on; the second Ctrl-C ends it. */
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(signal_number, &action, NULL);
}

void interrupt_install(void) { install(SIGINT); }

void interrupt_install_termination(void) { install(SIGTERM); }

bool interrupt_requested(void) { return requested != 0; }

void interrupt_clear(void) { requested = 0; }
