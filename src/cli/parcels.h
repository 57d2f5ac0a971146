/* parcels: saved documents as files (loam export, loam import FILE). */
#ifndef LOAM_CLI_PARCELS_H
#define LOAM_CLI_PARCELS_H

#include "cli/option.h"

/* positionals[0] into --kv-disk. */
enum status parcels_import(const struct options *options, struct error *error) STATUS_CHECKED;

#endif
