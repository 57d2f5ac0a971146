/* session: device, model, tokenizer and engine of one command, opened in this order and closed together. */
#pragma once

#include <stdbool.h>

#include "base/status.h"
#include "cli/option.h"
#include "device/device.h"
#include "engine/engine.h"
#include "measure/auto.h"
#include "model/model.h"
#include "token/tokenizer.h"

struct session {
    struct device *device;
    struct model *model;
    struct tokenizer *tokenizer; /* NULL until session_open_tokenizer */
    struct engine *engine;       /* NULL until session_create_engine */
    cpu_mask mask;
    size_t thread_count;
    double load_seconds;
    bool quiet; /* no notices on standard error */
};

/* Loads the file of -m.  thread_count 0: one per processor. */
enum status session_open(struct session *session, const struct options *options, size_t thread_count,
                         struct error *error) STATUS_CHECKED;
/* The same for a model with another name. */
enum status session_open_path(struct session *session, const char *path, const struct options *options,
                              size_t thread_count, struct error *error) STATUS_CHECKED;
/* The same on the processor, whatever the options say of devices: after one that broke. */
enum status session_open_cpu(struct session *session, const char *path, const struct options *options,
                             size_t thread_count, struct error *error) STATUS_CHECKED;
/* The device of the options alone, with session->thread_count and mask; path: a model whose weights an automatic one is
 * to hold, or NULL. */
enum status session_open_device(struct session *session, const char *path, const struct options *options,
                                struct error *error) STATUS_CHECKED;
/* Whether any device will do: --device auto, or layers for a device that nobody named. */
bool session_takes_any_device(const struct options *options);
/* Opens the tokenizer of the file of -m, without its model. */
enum status session_open_vocabulary(struct session *session, const struct options *options, struct error *error)
    STATUS_CHECKED;
enum status session_open_tokenizer(struct session *session, const struct options *options, struct error *error)
    STATUS_CHECKED;
/* Replaces the engine, whose sequences must be gone. */
enum status session_create_engine(struct session *session, const struct plan *plan,
                                  const struct engine_options *engine_options, struct error *error) STATUS_CHECKED;
/* Threads and weights as they were chosen, before there is an engine. */
enum status session_take_choice(struct session *session, const struct auto_choice *choice, struct error *error)
    STATUS_CHECKED;
void session_close(struct session *session);
