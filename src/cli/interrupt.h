/* interrupt: the first Ctrl-C asks the work to stop, the second leaves at once with 130. */
#ifndef LOAM_CLI_INTERRUPT_H
#define LOAM_CLI_INTERRUPT_H

#include <stdbool.h>

/* From here on SIGINT only sets a mark that interrupt_requested returns.  Without it SIGINT ends the
 * process as usual, which suits commands that have nothing to finish. */
void interrupt_install(void);
/* SIGTERM counts as a Ctrl-C too: for commands that have results to save and never wait for the user. */
void interrupt_install_termination(void);
bool interrupt_requested(void);
void interrupt_clear(void); /* the request was heard; the next Ctrl-C is a first one again */

#endif
