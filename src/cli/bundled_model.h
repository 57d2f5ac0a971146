/* bundled_model: which model a command runs: -m, LOAM_ARG_MODEL, or the one that comes with loam. */
#pragma once

#include "base/status.h"
#include "cli/option.h"

/* The path of the model, valid until the program ends.  -m is a file, or a name of the folder of models
 * (pull/model_folder.h).  Without -m it is loam-nano.gguf in ../share/loam/models of
 * the program's folder (installed) or in ../../models (built in its source tree); a line on standard error says so
 * once, unless -q.  STATUS_USAGE: neither has it; the line names both. */
enum status model_path(const struct options *options, const char **path, struct error *error) STATUS_CHECKED;
/* What -m NAME means: the file of that name, else the pulled model, else NAME again, for whoever opens it to refuse.
 * Valid until the next call.  STATUS_USAGE: a name that loam pull knows and nobody pulled. */
enum status model_named(const char *name, const char **path, struct error *error) STATUS_CHECKED;
/* The bundled model's path, without a line; NULL: neither folder has it. */
const char *bundled_model_find(void);
