/* served_model: a model behind a service, for `serve` and `batch`.
 *
 *   served_model_open -> server_begin(served_model_describe) ... server_destroy -> served_model_close
 */
#pragma once

#include <stdatomic.h>

#include "cli/plan.h"
#include "cli/sampling.h"
#include "cli/session.h"
#include "server/server.h"

struct served_model {
    const struct options *options; /* borrowed */
    const char *document_name;     /* borrowed; of what is saved */
    const char *path;              /* borrowed; the model's */
    bool is_batch;    /* its requests are all there: --preset auto chooses how many go together, unless -np is given */
    size_t sequences; /* of a pass, as chosen; 0: -np */
    struct plan plan;
    struct session session;
    /* The same model on the processor, in the place of a device that broke; it has the engine then. */
    struct session cpu;
    struct session *answering; /* session, or cpu: the service's thread's once there is a service */
    struct error lost;         /* why no request is answered any more: the device; read when is_lost */
    atomic_bool is_lost;
    struct sampling sampling;
    const struct chat_template *chat; /* NULL: the model has none */
    char *id;                         /* owned: the model's name */
    struct service *service;
};

/* Reads what needs no model: plan and sampling.  model: zeroed. */
enum status served_model_read(struct served_model *model, const struct options *options, const char *document_name,
                              struct error *error) STATUS_CHECKED;
/* Loads the model and starts its service. */
enum status served_model_open(struct served_model *model, struct error *error) STATUS_CHECKED;
/* The error of a device that broke, in whose place there is none: no request is answered any more.  Any thread. */
enum status served_model_state(const struct served_model *model, struct error *error) STATUS_CHECKED;
struct server_model served_model_describe(const struct served_model *model);
void served_model_close(struct served_model *model); /* after server_destroy; safe after a failed open */
