/* The service alone: answers of requests at the same time are those of each alone, whatever else happens. */
#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "platform/clock.h"
#include "server/service_internal.h"
#include "service_rig.h"

enum { CLIENTS = 8, CONTEXT = 512, ANSWER = 24 };

static const char *const texts[CLIENTS] = {
    "The river ran past the mill.",          "Once upon a time there was a fox.",
    "In the beginning the engine was cold.", "She opened the door and saw",
    "Rain fell on the town for a week.",     "The teacher asked a question, and",
    "A letter came from the far north.",     "Numbers are patient, said the old man."};

static const struct service_rig_options plain = {
    .parallel = CLIENTS, .sequences = CLIENTS, .context_size = CONTEXT};

/* The same eight prompts one after another, each in a service of its own, and all at once over fewer slots; once with
 * slices so short that prompts leave the passes that they share with steps. */
static void test_together_as_alone(void **state) {
    struct service_rig rig;
    struct client alone[CLIENTS], together[CLIENTS];
    struct token_list prompts[CLIENTS];
    (void)state;
    for (size_t slots = 1; slots <= CLIENTS; slots += 3) {
        service_rig_open(&rig, &plain);
        for (size_t i = 0; i < CLIENTS; i++) {
            client_init(&alone[i], &rig);
            prompts[i] = rig_tokens(&rig, texts[i], 20 + 13 * i);
            const struct service_request request = rig_request(&prompts[i], ANSWER);
            client_ask(&alone[i], &request);
            service_rig_stop(&rig); /* nothing stays for the next */
            service_rig_start(&rig,
                              &(struct service_options){.parallel = slots, .slice_ms = slots == 4 ? 1 : 0});
        }
        for (size_t i = 0; i < CLIENTS; i++) {
            client_init(&together[i], &rig);
            const struct service_request request = rig_request(&prompts[i], ANSWER);
            client_submit(&together[i], &request);
        }
        for (size_t i = 0; i < CLIENTS; i++) {
            client_wait(&together[i]);
            assert_int_equal(together[i].done.reason, STOP_LENGTH);
            assert_same_tokens(&alone[i].tokens, &together[i].tokens);
            assert_string_equal(alone[i].text, together[i].text);
            assert_int_equal(together[i].admitted_count, 1);
            assert_int_equal(together[i].progress_done, prompts[i].count);
            token_list_deinit(&prompts[i]);
            client_deinit(&alone[i]);
            client_deinit(&together[i]);
        }
        service_rig_close(&rig);
    }
}

/* ---- whose prompt is read next ---- */

enum { READERS = 3, LENGTH = 300 };

/* Prompts that come at the same moment. */
struct reader {
    struct reader *all;
    size_t progress[READERS]; /* of all, when this one's prompt is read */
    size_t done;
    const struct service_request *request;
    struct service *service;
};

static void reader_progress(void *context, size_t done, size_t total) {
    struct reader *reader = context;
    (void)total;
    reader->done = done;
}

static enum service_flow reader_token(void *context, const struct service_token *token) {
    struct reader *reader = context;
    (void)token;
    for (size_t i = 0; i < READERS; i++) reader->progress[i] = reader->all[i].done;
    return SERVICE_CONTINUE;
}

static void reader_done(void *context, const struct service_done *done) {
    (void)context;
    assert_int_equal(done->reason, STOP_LENGTH);
}

/* In the service's thread: it admits none before all are there. */
static void submit_readers(void *context, struct engine *engine, const struct service_live *live,
                           size_t count) {
    struct reader *readers = context;
    struct error error;
    (void)engine, (void)live, (void)count;
    for (size_t i = 0; i < READERS; i++) {
        const struct service_listener listener = {
            .context = &readers[i], .progress = reader_progress, .token = reader_token, .done = reader_done};
        service_ticket ticket;
        assert_int_equal(service_submit(readers[i].service, readers[i].request, &listener, &ticket, &error),
                         STATUS_OK);
    }
}

/* Of equal length: each is read to its end before the next begins. */
static void test_prompts_are_read_one_after_another(void **state) {
    struct service_rig rig;
    struct service_request requests[READERS];
    struct token_list prompts[READERS];
    struct reader readers[READERS];
    struct error error;
    (void)state;
    service_rig_open(&rig, &(struct service_rig_options){.parallel = READERS,
                                                         .sequences = READERS,
                                                         .context_size = CONTEXT,
                                                         .service = {.slice_ms = 1}});
    for (size_t i = 0; i < READERS; i++) {
        prompts[i] = rig_tokens(&rig, texts[i], LENGTH);
        requests[i] = rig_request(&prompts[i], 1);
        readers[i] = (struct reader){.all = readers, .request = &requests[i], .service = rig.service};
    }
    assert_int_equal(service_call(rig.service, submit_readers, readers, &error), STATUS_OK);
    assert_true(service_wait(rig.service, 600));
    for (size_t i = 0; i < READERS; i++)
        for (size_t j = 0; j < READERS; j++)
            assert_int_equal(readers[i].progress[j], j <= i ? LENGTH : 0);
    for (size_t i = 0; i < READERS; i++) token_list_deinit(&prompts[i]);
    service_rig_close(&rig);
}

/* ---- a client that leaves ---- */

struct leaver {
    struct client *client;
    bool is_cancelled, was_read, is_free; /* was_read: the prompt, at last; is_free: the slot was, before that */
};

static void leaver_progress(void *context, size_t done, size_t total) {
    struct leaver *leaver = context;
    struct service *service = leaver->client->rig->service;
    if (done > 0 && !leaver->is_cancelled) service_cancel(service, leaver->client->ticket);
    if (done > 0) leaver->is_cancelled = true;
    if (done == total || leaver->is_free) return;
    leaver->is_free = leaver->client->done_count == 1 && service_get_statistics(service).levels.paused == 0;
}

static void leaver_done(void *context, const struct service_done *done) {
    struct leaver *leaver = context;
    leaver->was_read = done->reason == STOP_LENGTH;
}

/* Its slot is free, and seen to be, while a long prompt of another client is read, though nothing else ends that
 * slice. */
static void test_a_slot_is_free_within_a_slice(void **state) {
    struct service_rig rig;
    struct client client;
    service_ticket ticket;
    struct error error;
    (void)state;
    service_rig_open(&rig, &(struct service_rig_options){.parallel = 2,
                                                         .sequences = 2,
                                                         .context_size = CONTEXT,
                                                         .batch_size = 32,
                                                         .service = {.slice_ms = 3600000}});
    struct token_list prompt = rig_tokens(&rig, texts[0], 20), longer = rig_tokens(&rig, texts[1], LENGTH);
    const struct service_request request = rig_request(&prompt, ANSWER), reading = rig_request(&longer, 1);
    struct leaver leaver = {.client = &client};
    const struct service_listener listener = {.context = &leaver, .progress = leaver_progress, .done = leaver_done};
    client_init(&client, &rig);
    client.pause_at = 1;
    client_submit(&client, &request);
    client_wait_tokens(&client, 1);
    assert_ok(service_submit(rig.service, &reading, &listener, &ticket, &error), error);
    assert_true(service_wait(rig.service, 600));
    assert_true(leaver.was_read);
    assert_true(leaver.is_free);
    client_deinit(&client);
    token_list_deinit(&prompt);
    token_list_deinit(&longer);
    service_rig_close(&rig);
}

/* ---- passes of steps and prompts ---- */

enum { COMERS = 4 };

/* One that decodes, and others that come with its first token. */
struct decoder {
    struct service *service;
    service_ticket ticket;
    const struct service_request *requests[COMERS];
    struct service_listener listeners[COMERS];
    size_t tokens, slices, slices_most; /* slices, at its last token; the most between two tokens */
    bool is_over;
};

static enum service_flow decoder_token(void *context, const struct service_token *token) {
    struct decoder *decoder = context;
    struct error error;
    const size_t slices = (size_t)decoder->service->statistics.slices;
    (void)token;
    for (size_t i = 0; i < COMERS && decoder->tokens == 0 && decoder->requests[i] != NULL; i++) {
        service_ticket ticket;
        assert_ok(
            service_submit(decoder->service, decoder->requests[i], &decoder->listeners[i], &ticket, &error),
            error);
    }
    if (decoder->tokens > 0 && slices - decoder->slices > decoder->slices_most)
        decoder->slices_most = slices - decoder->slices;
    decoder->slices = slices;
    decoder->tokens++;
    return SERVICE_CONTINUE;
}

static void decoder_done(void *context, const struct service_done *done) {
    struct decoder *decoder = context;
    (void)done;
    decoder->is_over = true;
}

static void decode_beside(struct service_rig *rig, struct decoder *decoder) {
    enum { DECODED = 200 };
    struct token_list prompt = rig_tokens(rig, texts[0], 20);
    const struct service_request request = rig_request(&prompt, DECODED);
    const struct service_listener listener = {
        .context = decoder, .token = decoder_token, .done = decoder_done};
    struct error error;
    decoder->service = rig->service;
    assert_ok(service_submit(rig->service, &request, &listener, &decoder->ticket, &error), error);
    assert_true(service_wait(rig->service, 600));
    token_list_deinit(&prompt);
}

/* A prompt that is read in slices, then one that shares passes with the steps: never two of them between two tokens. */
static void test_one_slice_between_two_tokens(void **state) {
    struct service_rig rig;
    (void)state;
    service_rig_open(&rig, &(struct service_rig_options){.parallel = 3,
                                                         .sequences = 3,
                                                         .context_size = CONTEXT,
                                                         .service = {.slice_ms = 3600000}});
    struct token_list sliced = rig_tokens(&rig, texts[1], 10), shared = rig_tokens(&rig, texts[2], 40);
    struct service_request requests[] = {rig_request(&sliced, 1), rig_request(&shared, 1)};
    requests[0].prompt_log_probabilities = true;
    struct decoder decoder = {.requests = {&requests[0], &requests[1]}};
    decode_beside(&rig, &decoder);
    assert_int_equal(rig.service->statistics.slices, 3); /* its own prompt's, and these */
    assert_int_equal(decoder.slices_most, 1);
    token_list_deinit(&sliced);
    token_list_deinit(&shared);
    service_rig_close(&rig);
}

/* Prompts that come together fill the passes that they share with steps: 31 rows of 20 and 11, 9, 20 and 2, and 18.
 * Their answers are those of each alone. */
static void test_short_prompts_fill_passes(void **state) {
    struct service_rig rig;
    struct client alone[COMERS], together[COMERS];
    struct token_list prompts[COMERS];
    struct service_request requests[COMERS];
    struct decoder decoder = {0};
    (void)state;
    const struct service_options options = {.slice_ms = 3600000};
    service_rig_open(&rig, &(struct service_rig_options){.parallel = COMERS + 1,
                                                         .sequences = COMERS + 1,
                                                         .context_size = CONTEXT,
                                                         .batch_size = 32,
                                                         .service = options});
    for (size_t i = 0; i < COMERS; i++) {
        client_init(&alone[i], &rig);
        client_init(&together[i], &rig);
        prompts[i] = rig_tokens(&rig, texts[i + 1], 20);
        requests[i] = rig_request(&prompts[i], 1);
        client_ask(&alone[i], &requests[i]);
        decoder.requests[i] = &requests[i];
        decoder.listeners[i] = client_listener(&together[i]);
    }
    service_rig_stop(&rig); /* nothing stays for the next */
    service_rig_start(&rig, &options);
    decode_beside(&rig, &decoder);
    assert_int_equal(rig.service->statistics.slices, 4); /* its own prompt's, and these */
    assert_int_equal(decoder.slices_most, 1);
    for (size_t i = 0; i < COMERS; i++) {
        assert_same_tokens(&alone[i].tokens, &together[i].tokens);
        client_deinit(&alone[i]);
        client_deinit(&together[i]);
        token_list_deinit(&prompts[i]);
    }
    service_rig_close(&rig);
}

struct comer {
    struct decoder *decoder;
    bool is_free, was_read;
};

/* Behind this turn's look for clients that have left. */
static void comer_admitted(void *context, const struct service_admission *admission) {
    struct comer *comer = context;
    (void)admission;
    service_cancel(comer->decoder->service, comer->decoder->ticket);
}

static void comer_progress(void *context, size_t done, size_t total) {
    struct comer *comer = context;
    if (done < total && comer->decoder->is_over) comer->is_free = true;
}

static void comer_done(void *context, const struct service_done *done) {
    struct comer *comer = context;
    comer->was_read = done->reason == STOP_LENGTH;
}

/* The slot of a client that leaves is free while another one's prompt is read, though both share a pass that nothing
 * else ends. */
static void test_a_slot_is_free_within_a_pass(void **state) {
    struct service_rig rig;
    struct decoder decoder = {0};
    struct comer comer = {.decoder = &decoder};
    (void)state;
    service_rig_open(
        &rig, &(struct service_rig_options){
                  .parallel = 2, .sequences = 2, .context_size = CONTEXT, .service = {.slice_ms = 3600000}});
    struct token_list prompt = rig_tokens(&rig, texts[1], 40);
    const struct service_request request = rig_request(&prompt, 1);
    decoder.requests[0] = &request;
    decoder.listeners[0] = (struct service_listener){
        .context = &comer, .admitted = comer_admitted, .progress = comer_progress, .done = comer_done};
    decode_beside(&rig, &decoder);
    assert_true(decoder.tokens >= 2 && decoder.tokens < 200); /* its step was in that pass */
    assert_true(comer.is_free);
    assert_true(comer.was_read);
    token_list_deinit(&prompt);
    service_rig_close(&rig);
}

/* ---- a disk that takes its time ---- */

struct slow_disk {
    struct io_faults faults;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    const char *closed; /* the file whose sync waits; NULL: none */
    bool waits;
};

static struct io_fault wait_at_sync(void *context, enum io_call call, const char *path, uint64_t offset,
                                    size_t bytes) {
    struct slow_disk *disk = context;
    (void)offset, (void)bytes;
    pthread_mutex_lock(&disk->mutex);
    while (call == IO_CALL_SYNC && disk->closed != NULL && strstr(path, disk->closed) != NULL) {
        disk->waits = true;
        pthread_cond_broadcast(&disk->changed);
        pthread_cond_wait(&disk->changed, &disk->mutex);
    }
    pthread_mutex_unlock(&disk->mutex);
    return (struct io_fault){0, SIZE_MAX};
}

static void disk_open(struct slow_disk *disk) {
    pthread_mutex_lock(&disk->mutex);
    disk->closed = NULL;
    pthread_cond_broadcast(&disk->changed);
    pthread_mutex_unlock(&disk->mutex);
}

static void disk_wait(struct slow_disk *disk) {
    pthread_mutex_lock(&disk->mutex);
    while (!disk->waits) pthread_cond_wait(&disk->changed, &disk->mutex);
    pthread_mutex_unlock(&disk->mutex);
}

/* false: it has fewer tokens, though it has had far more time than they take on a slow machine. */
static bool gets_tokens(struct client *client, size_t count) {
    enum { PATIENCE_SECONDS = 30 };
    struct timespec until;
    int failed = 0;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_SECONDS;
    pthread_mutex_lock(&client->mutex);
    while (client->tokens.count < count && failed == 0)
        failed = pthread_cond_timedwait(&client->changed, &client->mutex, &until);
    pthread_mutex_unlock(&client->mutex);
    return failed == 0;
}

static size_t done_count(struct client *client) {
    pthread_mutex_lock(&client->mutex);
    const size_t count = client->done_count;
    pthread_mutex_unlock(&client->mutex);
    return count;
}

/* While a document is made durable, a request that runs and one that comes get their tokens, as long as there are
 * buffers for what they write themselves: here up to the next page.  One that begins as the document does waits for it,
 * and reuses it. */
static void test_a_sync_holds_up_nobody(void **state) {
    enum { DOCUMENT = 200, SHORT = 10, ANSWERED = KV_CHUNK_TOKENS - SHORT };
    static const struct service_rig_options saving = {
        .parallel = 4, .sequences = 4, .context_size = CONTEXT, .host_bytes = 128 << 20, .segment_size = 512};
    struct slow_disk disk = {.faults = {&disk, wait_at_sync}, .closed = "/2.pages"};
    struct service_rig rig;
    struct client clients[4], *running = &clients[0], *upload = &clients[1], *late = &clients[2],
                              *related = &clients[3];
    (void)state;
    pthread_mutex_init(&disk.mutex, NULL);
    pthread_cond_init(&disk.changed, NULL);
    service_rig_open_on(&rig, &saving, &disk.faults);
    struct token_list document = rig_tokens(&rig, texts[1], DOCUMENT),
                      other = rig_tokens(&rig, texts[2], SHORT);
    struct service_request saved = rig_request(&document, ANSWER), question = rig_request(&document, ANSWER),
                           asked = rig_request(&other, ANSWER);
    for (size_t i = 0; i < 4; i++) client_init(&clients[i], &rig);
    asked.token_max = ANSWERED + KV_CHUNK_TOKENS;
    client_submit(running, &asked);
    client_wait_tokens(running, 1);

    saved.token_max = 0;
    saved.document_name = "a fox";
    client_submit(upload, &saved);
    disk_wait(&disk);
    asked.owner = "another"; /* nothing of it can be reused */
    client_submit(late, &asked);
    question.token_max = 4;
    client_submit(related, &question);
    const bool goes_on = gets_tokens(late, 4) && gets_tokens(running, ANSWERED);
    const size_t early = done_count(upload) + done_count(related);
    disk_open(&disk);
    assert_true(goes_on);
    assert_int_equal(early, 0);
    for (size_t i = 0; i < 4; i++) {
        client_wait(&clients[i]);
        assert_int_equal(clients[i].done.reason, STOP_LENGTH);
    }
    assert_true(upload->done.document > 0);
    assert_int_equal(related->admission.reused_tokens, DOCUMENT);
    for (size_t i = 0; i < 4; i++) client_deinit(&clients[i]);
    token_list_deinit(&document);
    token_list_deinit(&other);
    service_rig_close(&rig);
    pthread_cond_destroy(&disk.changed);
    pthread_mutex_destroy(&disk.mutex);
}

/* ---- observers ---- */

enum { OBSERVED = 4, PARTS = 3, CALLS = PARTS * (OBSERVED - 1) };

/* Looks at the steps of one client, in parts that take as long as a slice may. */
struct watcher {
    struct client *observed, *other;
    struct service_request requests[2];
    size_t prompt_count, position, part, calls;
    size_t noted[OBSERVED], finished[OBSERVED]; /* by step */
    size_t others[4 * CALLS];                   /* tokens of the other, at each call */
    bool is_held;
};

static void watcher_note(void *context, const struct attention_event *event) {
    struct watcher *watcher = context;
    if (event->layer_index > 0) return;
    assert_int_equal(event->row_count, 1);
    watcher->position = (size_t)event->positions[0];
    assert_true(watcher->position >= watcher->prompt_count);
    assert_true(watcher->position < watcher->prompt_count + OBSERVED);
    watcher->noted[watcher->position - watcher->prompt_count]++;
    watcher->part = 0;
}

static bool watcher_work(void *context, struct sequence *sequence, bool (*pauses)(void *context),
                         void *pauses_context) {
    struct watcher *watcher = context;
    const double began = clock_seconds();
    assert_true(sequence_length(sequence) > watcher->position);
    if (watcher->calls < 4 * CALLS) watcher->others[watcher->calls] = watcher->other->tokens.count;
    watcher->calls++;
    while (watcher->other->done_count == 0 && !pauses(pauses_context) && !watcher->is_held)
        watcher->is_held = clock_seconds() - began > 20;
    if (++watcher->part < PARTS) return true;
    watcher->finished[watcher->position - watcher->prompt_count]++;
    return false;
}

/* In the service's thread: both are there at the same moment. */
static void submit_both(void *context, struct engine *engine, const struct service_live *live, size_t count) {
    struct watcher *watcher = context;
    (void)engine, (void)live, (void)count;
    client_submit(watcher->observed, &watcher->requests[0]);
    client_submit(watcher->other, &watcher->requests[1]);
}

/* What an observer makes of a step comes in slices, between steps of others.  Over one slot its client is preempted in
 * between; then, too, each step is looked at to its end. */
static void watch(const struct service_rig_options *options, struct watcher *watcher) {
    struct service_rig rig;
    struct client alone[2], clients[2];
    struct token_list prompts[2];
    struct error error;
    service_rig_open(&rig, options);
    for (size_t i = 0; i < 2; i++) {
        prompts[i] = rig_tokens(&rig, texts[i], watcher->prompt_count);
        watcher->requests[i] = rig_request(&prompts[i], i == 0 ? OBSERVED : ANSWER);
        client_init(&alone[i], &rig);
        client_ask(&alone[i], &watcher->requests[i]);
        client_init(&clients[i], &rig);
    }
    service_rig_stop(&rig);
    service_rig_start(&rig, &options->service);
    watcher->observed = &clients[0];
    watcher->other = &clients[1];
    watcher->requests[0].observer =
        (struct service_observer){.note = watcher_note, .work = watcher_work, .context = watcher};
    assert_ok(service_call(rig.service, submit_both, watcher, &error), error);
    for (size_t i = 0; i < 2; i++) {
        client_wait(&clients[i]);
        assert_int_equal(clients[i].done.reason, STOP_LENGTH);
        assert_same_tokens(&alone[i].tokens, &clients[i].tokens);
    }
    assert_int_equal(clients[0].done.figures.preemptions > 0, options->parallel == 1);
    assert_false(watcher->is_held);
    for (size_t i = 0; i + 1 < OBSERVED; i++) {
        assert_true(watcher->noted[i] > 0);
        assert_int_equal(watcher->finished[i], 1);
    }
    service_rig_close(&rig);
    for (size_t i = 0; i < 2; i++) {
        client_deinit(&alone[i]);
        client_deinit(&clients[i]);
        token_list_deinit(&prompts[i]);
    }
}

static void test_an_observer_holds_up_nobody(void **state) {
    (void)state;
    struct watcher watcher = {.prompt_count = 12}; /* both are read in one pass */
    watch(&(struct service_rig_options){.parallel = 2,
                                        .sequences = 2,
                                        .context_size = CONTEXT,
                                        .service = {.parallel = 2, .slice_ms = 1}},
          &watcher);
    assert_int_equal(watcher.calls, CALLS);
    for (size_t i = 0; i < CALLS; i++) assert_int_equal(watcher.others[i], i + 2); /* a step each */
}

static void test_who_is_observed_may_be_preempted(void **state) {
    (void)state;
    struct watcher watcher = {.prompt_count = 100};
    watch(&(struct service_rig_options){
              .parallel = 1,
              .sequences = 2,
              .context_size = CONTEXT,
              .host_bytes = 32 << 20,
              .service = {.parallel = 1, .slice_ms = 1, .preempt_wait_ms = 1, .preempt_run_ms = 1}},
          &watcher);
}

/* ---- a queue that is full ---- */

enum { FULL_PROMPT = 200 };

/* By its requests, and by their bytes: what runs has left it, and what is refused tells when to come again. */
static void check_full(const struct service_options *options, size_t waiting_count) {
    struct service_rig rig;
    struct client running, waiting[CLIENTS];
    struct error error;
    service_ticket ticket;
    service_rig_open(&rig, &(struct service_rig_options){
                               .parallel = 1, .sequences = 1, .context_size = CONTEXT, .service = *options});
    struct token_list prompt = rig_tokens(&rig, texts[0], FULL_PROMPT);
    const struct service_request request = rig_request(&prompt, 2);
    client_init(&running, &rig);
    running.pause_at = 1;
    client_submit(&running, &request);
    client_wait_tokens(&running, 1);
    for (size_t i = 0; i < waiting_count; i++) {
        client_init(&waiting[i], &rig);
        client_submit(&waiting[i], &request);
    }
    const struct service_listener listener = client_listener(&running);
    assert_int_equal(service_submit(rig.service, &request, &listener, &ticket, &error), STATUS_FULL);
    assert_in_range(service_wait_estimate(rig.service), 1, 120);
    const struct service_statistics now = service_get_statistics(rig.service);
    assert_int_equal(now.levels.queued, waiting_count);
    assert_int_equal(now.refused, 1);
    service_cancel(rig.service, waiting[0].ticket); /* there is a place again */
    client_wait(&waiting[0]);
    client_deinit(&waiting[0]);
    client_init(&waiting[0], &rig);
    client_submit(&waiting[0], &request);
    service_cancel(rig.service, running.ticket);
    client_wait(&running);
    for (size_t i = 0; i < waiting_count; i++) {
        client_wait(&waiting[i]);
        assert_int_equal(waiting[i].done.reason, STOP_LENGTH);
        client_deinit(&waiting[i]);
    }
    client_deinit(&running);
    assert_int_equal(service_get_statistics(rig.service).levels.queued_bytes, 0);
    token_list_deinit(&prompt);
    service_rig_close(&rig);
}

static void test_a_queue_is_full(void **state) {
    enum { PLACES = 3 };
    const uint64_t bytes = sizeof(struct job) + FULL_PROMPT * sizeof(token_id);
    (void)state;
    check_full(&(struct service_options){.queue_max = PLACES}, PLACES);
    check_full(&(struct service_options){.queue_bytes_max = PLACES * bytes}, PLACES);
    check_full(&(struct service_options){.queue_bytes_max = PLACES * bytes - 1}, PLACES - 1);
}

/* ---- the end ---- */

/* What waits is refused at once; what runs has until the deadline, then it ends with the reason; nothing comes in. */
static void test_draining(void **state) {
    struct service_rig rig;
    struct client running, waiting, quick;
    struct error error;
    service_ticket ticket;
    (void)state;
    service_rig_open(&rig,
                     &(struct service_rig_options){.parallel = 2, .sequences = 2, .context_size = CONTEXT});
    struct token_list prompt = rig_tokens(&rig, texts[0], 20);
    struct service_request request = rig_request(&prompt, ANSWER);
    client_init(&running, &rig);
    client_init(&waiting, &rig);
    client_init(&quick, &rig);
    running.pause_at = quick.pause_at = 1; /* both keep their slots */
    client_submit(&running, &request);
    client_wait_tokens(&running, 1);
    request.token_max = 3;
    client_submit(&quick, &request);
    client_wait_tokens(&quick, 1);
    client_submit(&waiting, &request);

    service_drain(rig.service, 3600);
    client_wait(&waiting);
    assert_int_equal(waiting.done.reason, STOP_INTERRUPTED);
    assert_int_equal(waiting.done.error.status, STATUS_INTERRUPTED);
    assert_int_equal(waiting.admitted_count, 0);
    const struct service_listener listener = client_listener(&waiting);
    assert_int_equal(service_submit(rig.service, &request, &listener, &ticket, &error), STATUS_INTERRUPTED);
    pthread_mutex_lock(&quick.mutex);
    quick.pause_at = 0;
    pthread_mutex_unlock(&quick.mutex);
    service_resume(rig.service, quick.ticket); /* what runs goes on */
    client_wait(&quick);
    assert_int_equal(quick.done.reason, STOP_LENGTH);
    assert_int_equal(quick.tokens.count, 3);

    service_drain(rig.service, 0.01);
    client_wait(&running);
    assert_int_equal(running.done.reason, STOP_INTERRUPTED);
    assert_string_equal(running.done.error.message, "the server is stopping");
    assert_true(service_wait(rig.service, 60));
    client_deinit(&running);
    client_deinit(&waiting);
    client_deinit(&quick);
    token_list_deinit(&prompt);
    service_rig_close(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_together_as_alone),
        cmocka_unit_test(test_prompts_are_read_one_after_another),
        cmocka_unit_test(test_a_slot_is_free_within_a_slice),
        cmocka_unit_test(test_one_slice_between_two_tokens),
        cmocka_unit_test(test_short_prompts_fill_passes),
        cmocka_unit_test(test_a_slot_is_free_within_a_pass),
        cmocka_unit_test(test_a_sync_holds_up_nobody),
        cmocka_unit_test(test_an_observer_holds_up_nobody),
        cmocka_unit_test(test_who_is_observed_may_be_preempted),
        cmocka_unit_test(test_a_queue_is_full),
        cmocka_unit_test(test_draining),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
