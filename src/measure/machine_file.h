/* machine_file: where the numbers of this machine are kept: $XDG_CACHE_HOME/loam/machine.json, or in ~/.cache; those
 * of a card in machine-NAME.json beside it.  They are measured when they are first wanted, and again on another
 * processor, with other kernels or other threads. */
#pragma once

#include "measure/measure.h"

enum { MACHINE_PATH_BYTES = 4096 };

struct machine_request {
    struct measure_options measure; /* directory is set here: the file's own folder, unless it is given */
    const char *given;              /* a file of --machine, taken as it is; NULL: this machine's own */
    bool measures;                  /* again, whatever there is */
    bool never_measures;            /* STATUS_UNSUPPORTED: it would have to be measured */
    const char *disk; /* a folder: the rates of its disk are measured now, and not kept; NULL: those of the file */
};

/* path: the file that the numbers are from.  *note: why they were measured now; "": they were there. */
enum status machine_open(struct machine *machine, const struct machine_request *request, char path[MACHINE_PATH_BYTES],
                         char note[400], struct error *error) STATUS_CHECKED;

/* machine_read_gap by this machine's own file, whatever its processor; 0: there is none, and nothing is measured. */
uint64_t machine_file_read_gap(void);
