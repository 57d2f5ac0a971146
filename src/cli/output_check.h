/* output_check: rejects an output that is also an input, and two outputs to one file.
 *
 * Files are compared by device and inode, so links are followed.  An output that does not exist yet is compared by
 * folder and name.  Devices and pipes may be named repeatedly. */
#pragma once

#include "base/status.h"
#include "cli/option.h"

/* STATUS_USAGE names the two options, and the file. */
enum status output_check(const struct options *options, struct error *error) STATUS_CHECKED;
