/* serve_log: the lines that `loam serve` writes about requests, on standard error. */
#pragma once

#include "server/request_log.h"

/* The forms, as the choices of an option. */
#define SERVE_LOG_FORMS "text|json|none"
enum { SERVE_LOG_TEXT, SERVE_LOG_JSON, SERVE_LOG_NONE };

/* form: an index into SERVE_LOG_FORMS.  Questions about health and metrics that are answered have no line. */
struct request_log serve_log_of(size_t form);
