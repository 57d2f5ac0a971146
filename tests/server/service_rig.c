#include "service_rig.h"

#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum status make_engine(void *context, struct engine **engine, struct error *error) {
    struct service_rig *rig = context;
    if (rig->engine != NULL) engine_destroy(rig->engine);
    rig->engine = *engine = NULL;
    enum status status = engine_create(&rig->engine, rig->model, &rig->plan, &rig->engine_options, error);
    *engine = rig->engine;
    rig->engines_made++;
    return status;
}

void service_rig_open(struct service_rig *rig, const struct service_rig_options *options) {
    service_rig_open_on(rig, options, NULL);
}

void service_rig_open_on(struct service_rig *rig, const struct service_rig_options *options,
                         const struct io_faults *faults) {
    struct error error;
    *rig = (struct service_rig){.engine_options = {.io_faults = faults}};
    /* Beside another program a second one that computes waits for its turn in every operation. */
    const struct device_options device = {.thread_count = 1, .mask = cpu_default()};
    rig->device = options->device;
    if (rig->device == NULL) assert_ok(device_cpu_create(&rig->device, &device, &error), error);
    const char *nano = LOAM_SOURCE_DIR "/models/loam-nano.gguf";
    const char *path = options->model != NULL ? options->model : nano;
    assert_ok(model_load(&rig->model, path, rig->device, &error), error);
    const bool has_words = gguf_find(&rig->model->gguf, "tokenizer.ggml.model") != NULL;
    if (!has_words) assert_ok(gguf_open(&rig->vocabulary, nano, &error), error);
    assert_ok(tokenizer_create(&rig->tokenizer, has_words ? &rig->model->gguf : &rig->vocabulary, false, &error),
              error);
    rig->plan = (struct plan){.context_size = options->context_size,
                              .sequence_capacity = options->sequences,
                              .segment_size = options->segment_size,
                              .batch_size = options->batch_size,
                              .suffix = options->suffix,
                              .prefetches = true};
    rig->has_disk = options->host_bytes > 0;
    if (rig->has_disk) {
        scratch_create(&rig->scratch, SCRATCH_MEMORY);
        rig->plan.host_bytes = options->host_bytes;
        assert_ok(plan_set_disk(&rig->plan, rig->scratch.path, strlen(rig->scratch.path), 0, &error), error);
    }
    if (options->preset != NULL)
        assert_ok(plan_set_axes(&rig->plan, options->preset, options->set, options->keep, &error), error);
    if (options->lacking_bytes > 0) {
        rig->plan.pools_key_index = true;
        rig->plan.host_bytes = 0;
        assert_ok(plan_host_bytes_min(&rig->plan, &rig->model->config, &rig->plan.host_bytes, &error), error);
        rig->plan.host_bytes -= options->lacking_bytes;
    }
    struct engine *engine = NULL;
    assert_ok(make_engine(rig, &engine, &error), error);
    rig->engines_made = 0;
    struct service_options service = options->service;
    service.parallel = options->parallel;
    service_rig_start(rig, &service);
}

void service_rig_start(struct service_rig *rig, const struct service_options *options) {
    struct error error;
    struct service_options service = *options;
    service.engine = rig->engine;
    service.tokenizer = rig->tokenizer;
    service.make_engine = make_engine;
    service.make_engine_context = rig;
    assert_ok(service_create(&rig->service, &service, &error), error);
}

void service_rig_stop(struct service_rig *rig) {
    service_destroy(rig->service);
    rig->service = NULL;
}

void service_rig_close(struct service_rig *rig) {
    service_rig_stop(rig);
    if (rig->engine != NULL) engine_destroy(rig->engine);
    if (rig->has_disk) scratch_destroy(&rig->scratch);
    plan_deinit(&rig->plan);
    tokenizer_destroy(rig->tokenizer);
    gguf_close(&rig->vocabulary);
    model_destroy(rig->model);
    device_destroy(rig->device);
}

struct token_list rig_tokens(const struct service_rig *rig, const char *text, size_t count) {
    struct token_list list = {0};
    struct error error;
    while (list.count < count)
        assert_ok(
            tokenizer_encode(rig->tokenizer, text, strlen(text), (struct tokenize_options){0}, &list, &error),
            error);
    list.count = count;
    return list;
}

static void admitted(void *context, const struct service_admission *admission) {
    struct client *client = context;
    pthread_mutex_lock(&client->mutex);
    client->admitted_count++;
    client->admission = *admission;
    pthread_cond_broadcast(&client->changed);
    pthread_mutex_unlock(&client->mutex);
}

static void progress(void *context, size_t done, size_t total) {
    struct client *client = context;
    pthread_mutex_lock(&client->mutex);
    assert_true(done >= client->progress_done && done <= total);
    if (++client->progress_count == 2) client->progress_computed = done;
    client->progress_done = done;
    bool cancels = client->cancel_done > 0 && done >= client->cancel_done;
    pthread_cond_broadcast(&client->changed);
    pthread_mutex_unlock(&client->mutex);
    if (cancels) service_cancel(client->rig->service, client->ticket);
}

static void prompt_token(void *context, const struct service_prompt_token *token) {
    struct client *client = context;
    assert_int_equal(token->index, client->prompt_tokens);
    client->prompt_log_probabilities[client->prompt_tokens++] = token->log_probability;
}

static enum service_flow take_token(void *context, const struct service_token *token) {
    struct client *client = context;
    struct error error;
    pthread_mutex_lock(&client->mutex);
    assert_int_equal(client->done_count, 0);
    if (token->id != TOKEN_NONE) {
        if (client->tokens.count < 512)
            client->log_probabilities[client->tokens.count] = token->log_probability;
        assert_ok(token_list_append(&client->tokens, token->id, &error), error);
    }
    assert_true(client->text_length + token->length < sizeof client->text);
    memcpy(client->text + client->text_length, token->bytes, token->length);
    client->text_length += token->length;
    bool pauses = client->pause_at > 0 && client->tokens.count >= client->pause_at;
    bool cancels = client->cancel_at > 0 && client->tokens.count >= client->cancel_at;
    pthread_cond_broadcast(&client->changed);
    pthread_mutex_unlock(&client->mutex);
    if (cancels) service_cancel(client->rig->service, client->ticket);
    return pauses ? SERVICE_PAUSE : SERVICE_CONTINUE;
}

static void take_done(void *context, const struct service_done *done) {
    struct client *client = context;
    pthread_mutex_lock(&client->mutex);
    client->done = *done;
    snprintf(client->notice, sizeof client->notice, "%s", done->notice);
    client->done.notice = client->notice;
    client->done_count++;
    pthread_cond_broadcast(&client->changed);
    pthread_mutex_unlock(&client->mutex);
}

struct service_listener client_listener(struct client *client) {
    return (struct service_listener){client, admitted, progress, prompt_token, take_token, take_done};
}

struct service_request rig_request(const struct token_list *prompt, size_t token_max) {
    return (struct service_request){.prompt = prompt->ids,
                                    .prompt_count = prompt->count,
                                    .greedy = true,
                                    .has_token_max = true,
                                    .token_max = token_max,
                                    .ignore_end = true};
}

void assert_same_tokens(const struct token_list *a, const struct token_list *b) {
    assert_int_equal(a->count, b->count);
    for (size_t i = 0; i < a->count; i++) assert_int_equal(a->ids[i], b->ids[i]);
}

void client_init(struct client *client, struct service_rig *rig) {
    memset(client, 0, sizeof *client);
    client->rig = rig;
    pthread_mutex_init(&client->mutex, NULL);
    pthread_cond_init(&client->changed, NULL);
}

void client_deinit(struct client *client) {
    token_list_deinit(&client->tokens);
    pthread_mutex_destroy(&client->mutex);
    pthread_cond_destroy(&client->changed);
}

void client_submit(struct client *client, const struct service_request *request) {
    struct error error;
    const struct service_listener listener = client_listener(client);
    service_ticket ticket;
    pthread_mutex_lock(&client->mutex); /* callbacks find the ticket */
    assert_ok(service_submit(client->rig->service, request, &listener, &ticket, &error), error);
    client->ticket = ticket;
    pthread_mutex_unlock(&client->mutex);
}

void client_wait(struct client *client) {
    pthread_mutex_lock(&client->mutex);
    while (client->done_count == 0) pthread_cond_wait(&client->changed, &client->mutex);
    assert_int_equal(client->done_count, 1);
    pthread_mutex_unlock(&client->mutex);
}

void client_wait_tokens(struct client *client, size_t count) {
    pthread_mutex_lock(&client->mutex);
    while (client->done_count == 0 && client->tokens.count < count)
        pthread_cond_wait(&client->changed, &client->mutex);
    pthread_mutex_unlock(&client->mutex);
}

void client_ask(struct client *client, const struct service_request *request) {
    client_submit(client, request);
    client_wait(client);
    if (client->done.reason == STOP_FAILED || client->done.reason == STOP_INTERRUPTED)
        fail_msg("%s: %s", stop_reason_name(client->done.reason), client->done.error.message);
}

static void do_nothing(void *context, struct engine *engine, const struct service_live *live,
                       size_t live_count) {
    (void)context, (void)engine, (void)live, (void)live_count;
}

struct service_statistics service_settled(struct service *service) {
    struct error error;
    assert_ok(service_call(service, do_nothing, NULL, &error), error);
    return service_get_statistics(service);
}
