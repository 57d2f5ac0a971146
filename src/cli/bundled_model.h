/* bundled_model: which model a command runs: -m, LOAM_ARG_MODEL, or the one that comes with loam. */
#ifndef LOAM_CLI_BUNDLED_MODEL_H
#define LOAM_CLI_BUNDLED_MODEL_H

#include "base/status.h"
#include "cli/option.h"

/* The path of the model, valid until the program ends.  Without -m it is loam-nano.gguf in ../share/loam/models of
 * the program's folder (installed) or in ../../models (built in its source tree); a line on standard error says so
 * once, unless -q.  STATUS_USAGE: neither has it; the line names both. */
enum status model_path(const struct options *options, const char **path, struct error *error) STATUS_CHECKED;
/* The bundled model's path, without a line; NULL: neither folder has it. */
const char *bundled_model_find(void);

#endif
