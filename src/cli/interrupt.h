/* interrupt: SIGINT (Ctrl-C), SIGTERM and SIGHUP.  The first asks the work to stop, the second leaves at once; either
 * way no temporary file is left behind. */
#pragma once

#include <stdbool.h>

/* For every command, before it begins: a signal removes the temporary files and ends the process as usual.  An
 * ignored SIGHUP (nohup) stays ignored. */
void interrupt_install_cleanup(void);
/* From here on the first signal only sets what interrupt_requested returns: for work that has something to finish and
 * checks it. */
void interrupt_install(void);
/* The same for Ctrl-C alone: for commands that wait for the user. */
void interrupt_install_ctrl_c(void);
/* The first signal is answered by a line at once, for work whose next check may be a long step away. */
void interrupt_tell(void);
bool interrupt_requested(void);
void interrupt_clear(void); /* the request was handled; the next Ctrl-C counts as a first one */
