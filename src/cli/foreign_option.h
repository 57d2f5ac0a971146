/* foreign_option: options of llama.cpp that loam does not have, and what to do instead. */
#pragma once

/* word: as on a command line, dashes included.  NULL: none that is known. */
const char *foreign_option_hint(const char *word);
