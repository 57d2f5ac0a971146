/* service_rig: a service over the bundled model or another one, and clients that record what they are told. */
#pragma once

#include <pthread.h>

#include "platform/io_file.h"
#include "platform/scratch.h"
#include "server/service.h"

struct service_rig {
    struct device *device;
    struct model *model;
    struct gguf vocabulary;
    struct tokenizer *tokenizer;
    struct engine *engine;
    struct plan plan;
    struct engine_options engine_options;
    struct service *service;
    struct scratch scratch; /* the folder of documents, if has_disk */
    bool has_disk;
    size_t engines_made;
};

/* What one request was told. */
struct client {
    struct service_rig *rig;
    service_ticket ticket;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct token_list tokens;
    char text[4096];
    size_t text_length, admitted_count, progress_count, progress_done, prompt_tokens, done_count;
    size_t progress_computed; /* the first one behind that of the admission */
    float log_probabilities[512], prompt_log_probabilities[2048];
    struct service_admission admission;
    struct service_done done;
    char notice[400];
    /* What it answers. */
    size_t pause_at;               /* token after which it pauses; 0: never */
    size_t cancel_at, cancel_done; /* cancels itself at this token, or once the prefill has so many */
};

struct service_rig_options {
    struct device *device; /* taken over; NULL: the cpu device */
    const char *model;     /* its path; NULL: the bundled one, whose vocabulary one without has, too */
    size_t parallel, sequences;
    uint64_t context_size, host_bytes; /* host_bytes: with a folder of documents */
    size_t segment_size, batch_size;
    struct service_options service;
    const char *preset, *set, *keep;
    enum plan_suffix suffix;
    /* Host_bytes is so much less than what every sequence's whole context needs; 0: as given */
    uint64_t lacking_bytes;
};
void service_rig_open(struct service_rig *rig, const struct service_rig_options *options);
/* The same over a folder whose files do as faults says; NULL: no faults. */
void service_rig_open_on(struct service_rig *rig, const struct service_rig_options *options,
                         const struct io_faults *faults);
void service_rig_stop(struct service_rig *rig); /* the service alone */
void service_rig_start(struct service_rig *rig, const struct service_options *options);
void service_rig_close(struct service_rig *rig);

/* After the turn in which the last answer ended. */
struct service_statistics service_settled(struct service *service);

/* Token ids of a text, repeated until there are so many of them; owned by the caller. */
struct token_list rig_tokens(const struct service_rig *rig, const char *text, size_t count);

/* Greedy, of exactly token_max tokens. */
struct service_request rig_request(const struct token_list *prompt, size_t token_max);
void assert_same_tokens(const struct token_list *a, const struct token_list *b);

void client_init(struct client *client, struct service_rig *rig);
void client_deinit(struct client *client);
struct service_listener client_listener(struct client *client);
void client_submit(struct client *client, const struct service_request *request);
void client_wait(struct client *client);                      /* until done */
void client_wait_tokens(struct client *client, size_t count); /* or done */
/* Submits and waits; asserts that the answer ended by itself. */
void client_ask(struct client *client, const struct service_request *request);
