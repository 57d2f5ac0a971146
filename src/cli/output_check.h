/* output_check: what a command writes is nothing that it reads, and no two outputs are one file.
 *
 * Files are compared by device and inode, so through links too; an output that is not there yet by its folder and
 * name.  Devices and pipes may be named as often as one likes. */
#ifndef LOAM_CLI_OUTPUT_CHECK_H
#define LOAM_CLI_OUTPUT_CHECK_H

#include "base/status.h"
#include "cli/option.h"

/* STATUS_USAGE names the two options, and the file. */
enum status output_check(const struct options *options, struct error *error) STATUS_CHECKED;

#endif
