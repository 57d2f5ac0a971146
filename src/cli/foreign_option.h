/* foreign_option: options of llama.cpp that loam does not have, and what to do instead. */
#ifndef LOAM_CLI_FOREIGN_OPTION_H
#define LOAM_CLI_FOREIGN_OPTION_H

/* word: as on a command line, dashes included.  NULL: none that is known. */
const char *foreign_option_hint(const char *word);

#endif
