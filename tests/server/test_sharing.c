/* Prompts that begin alike and come at once: what they share is computed once, whoever of them leaves, and each answer
 * is that of the request alone.  What is compared are counts of tokens and bits of answers, not times. */
#include "testing.h"

#include <semaphore.h>
#include <string.h>

#include "base/random.h"
#include "cli/tiny_model.h"
#include "seed.h"
#include "service_rig.h"

enum { CONTEXT = 1024, DOCUMENT = 270, LONG_DOCUMENT = 8192, TAIL_MAX = 24, ANSWER = 4, CLIENTS_MAX = 64 };

struct asked {
    struct client client;
    struct token_list prompt;
    size_t shared; /* tokens of the document that it begins with */
    size_t token_max;
    bool leaves;
    float alone[ANSWER]; /* log-probabilities */
    struct token_list answer;
};

struct party {
    struct random random;
    struct service_rig rig;
    struct token_list document;
    struct asked asked[CLIENTS_MAX];
    size_t count;
};

/* ---- a service that has not seen any of what comes at once ---- */

struct hold {
    struct service *service;
    sem_t held, goes_on;
    pthread_t thread;
};

static void hold(void *context, struct engine *engine, const struct service_live *live, size_t live_count) {
    struct hold *own = context;
    (void)engine, (void)live, (void)live_count;
    sem_post(&own->held);
    sem_wait(&own->goes_on);
}

static void *hold_service(void *context) {
    struct hold *own = context;
    struct error error;
    assert_ok(service_call(own->service, hold, own, &error), error);
    return NULL;
}

static void hold_begin(struct hold *own, struct service *service) {
    own->service = service;
    sem_init(&own->held, 0, 0);
    sem_init(&own->goes_on, 0, 0);
    assert_int_equal(pthread_create(&own->thread, NULL, hold_service, own), 0);
    sem_wait(&own->held);
}

static void hold_end(struct hold *own) {
    sem_post(&own->goes_on);
    pthread_join(own->thread, NULL);
    sem_destroy(&own->held);
    sem_destroy(&own->goes_on);
}

/* ---- prompts, and what each is answered alone ---- */

static void add_random(struct party *party, struct token_list *list, size_t count) {
    struct error error;
    const uint64_t words = service_vocabulary_size(party->rig.service) - 10;
    for (size_t i = 0; i < count; i++)
        assert_ok(token_list_append(list, (token_id)(10 + random_below(&party->random, words)), &error),
                  error);
}

static void add_asked(struct party *party, size_t shared, size_t tail) {
    struct error error;
    struct asked *asked = &party->asked[party->count++];
    memset(asked, 0, sizeof *asked);
    asked->shared = shared;
    asked->token_max = ANSWER;
    for (size_t i = 0; i < shared; i++)
        assert_ok(token_list_append(&asked->prompt, party->document.ids[i], &error), error);
    add_random(party, &asked->prompt, tail);
    client_init(&asked->client, &party->rig);
}

static struct service_request request_of(const struct asked *asked) {
    struct service_request request = rig_request(&asked->prompt, asked->token_max);
    request.log_probabilities = true;
    return request;
}

/* Who wants every token's probability has the whole prompt computed: one of so many (0: none but the first one, who
 * finds nothing), the others go on behind what both share. */
static void ask_alone(struct party *party, const struct service_rig_options *options, size_t whole) {
    struct service_rig_options alone = *options;
    struct service_rig rig;
    alone.host_bytes = 0;
    alone.parallel = alone.sequences = 1;
    service_rig_open(&rig, &alone);
    for (size_t i = 0; i < party->count; i++) {
        struct asked *asked = &party->asked[i];
        struct client client;
        client_init(&client, &rig);
        struct service_request request = request_of(asked);
        request.token_max = ANSWER;
        request.prompt_log_probabilities = whole > 0 && i % whole == 0;
        client_ask(&client, &request);
        if (i == 0 || request.prompt_log_probabilities) assert_int_equal(client.admission.reused_tokens, 0);
        memcpy(asked->alone, client.log_probabilities, sizeof asked->alone);
        asked->answer = client.tokens;
        client.tokens = (struct token_list){0};
        client_deinit(&client);
    }
    service_rig_close(&rig);
}

static void open_party_of(struct party *party, const struct service_rig_options *options, uint64_t seed,
                          size_t document) {
    random_init(&party->random, seed);
    party->count = 0;
    party->document = (struct token_list){0};
    service_rig_open(&party->rig, options);
    add_random(party, &party->document, document);
}

static void open_party(struct party *party, const struct service_rig_options *options, uint64_t seed) {
    open_party_of(party, options, seed, DOCUMENT);
}

static void close_party(struct party *party) {
    for (size_t i = 0; i < party->count; i++) {
        client_deinit(&party->asked[i].client);
        token_list_deinit(&party->asked[i].prompt);
        token_list_deinit(&party->asked[i].answer);
    }
    token_list_deinit(&party->document);
    service_rig_close(&party->rig);
}

static void ask_at_once(struct party *party) {
    struct hold held;
    hold_begin(&held, party->rig.service);
    for (size_t i = 0; i < party->count; i++) {
        const struct service_request request = request_of(&party->asked[i]);
        client_submit(&party->asked[i].client, &request);
    }
    hold_end(&held);
}

static void assert_as_alone(const struct asked *asked) {
    const struct client *client = &asked->client;
    if (client->done.reason != STOP_LENGTH)
        fail_msg("%s: %s", stop_reason_name(client->done.reason), client->done.error.message);
    assert_int_equal(client->tokens.count, asked->token_max);
    for (size_t i = 0; i < asked->token_max; i++)
        assert_int_equal(client->tokens.ids[i], asked->answer.ids[i]);
    assert_memory_equal(client->log_probabilities, asked->alone, asked->token_max * sizeof(float));
}

static void wait_all(struct party *party) {
    for (size_t i = 0; i < party->count; i++) {
        client_wait(&party->asked[i].client);
        if (!party->asked[i].leaves) assert_as_alone(&party->asked[i]);
    }
    assert_true(service_wait(party->rig.service, 60)); /* nobody reads on for those that are gone */
}

/* What one after another would compute: the longest beginning once, and each its own rest. */
static uint64_t least_tokens(const struct party *party) {
    uint64_t longest = 0, rests = 0;
    for (size_t i = 0; i < party->count; i++) {
        const struct asked *asked = &party->asked[i];
        if (asked->shared > longest) longest = asked->shared;
        rests += asked->prompt.count - asked->shared;
    }
    return longest + rests;
}

/* ---- tests ---- */

/* Bytes of the document's full chunks, and of those behind them for each sequence. */
static uint64_t bytes_once(const struct party *party, size_t sequences) {
    enum { CHUNK = 64, BEHIND = 1 };
    const uint64_t chunks = party->document.count / CHUNK + sequences * BEHIND;
    return chunks * CHUNK * engine_kv_bytes_per_token(service_engine(party->rig.service));
}

/* Three slots, and up to 64 clients over one document. */
static void many_clients(struct service_rig_options options, size_t count, size_t document, size_t whole) {
    static struct party party;
    options.parallel = options.sequences = 3;
    open_party_of(&party, &options, test_seed(11), document);
    for (size_t i = 0; i < count; i++) {
        add_asked(&party, document, 4 + i % 8);
        party.asked[i].prompt.ids[document] = (token_id)(10 + i); /* no two share more */
    }
    ask_alone(&party, &options, whole);
    ask_at_once(&party);
    wait_all(&party);
    const struct service_statistics now = service_settled(party.rig.service);
    assert_in_range(now.tokens.prefill, least_tokens(&party), least_tokens(&party) * 11 / 10);
    if (options.host_bytes == 0) assert_in_range(now.levels.kv_used_bytes, 1, bytes_once(&party, 3));
    close_party(&party);
}

static void test_many_clients(void **state) {
    (void)state;
    many_clients((struct service_rig_options){.context_size = CONTEXT}, CLIENTS_MAX, DOCUMENT, 16);
    many_clients((struct service_rig_options){.context_size = CONTEXT, .host_bytes = 64 << 20}, CLIENTS_MAX / 4,
                 DOCUMENT, 16);
}

/* Of a model that reads it within a second. */
static void test_a_long_document(void **state) {
    (void)state;
    enum { LONG_CONTEXT = LONG_DOCUMENT + 2 * TAIL_MAX };
    struct scratch scratch;
    scratch_create(&scratch, SCRATCH_MEMORY);
    const char *path = scratch_name(&scratch, "small.gguf");
    tiny_model_write(path, &(struct tiny_model){.seed = 1,
                                                .context = LONG_CONTEXT,
                                                .layers = 1,
                                                .heads = 1,
                                                .kv_heads = 1,
                                                .never_ends = true});
    many_clients((struct service_rig_options){.context_size = LONG_CONTEXT, .model = path}, CLIENTS_MAX, LONG_DOCUMENT,
                 0);
    scratch_destroy(&scratch);
}

/* The same prompt several times: its last token, too, is computed once. */
static void test_same_prompt(void **state) {
    static struct party party;
    const struct service_rig_options options = {.parallel = 4, .sequences = 4, .context_size = CONTEXT};
    (void)state;
    open_party(&party, &options, test_seed(12));
    for (size_t i = 0; i < 6; i++) add_asked(&party, DOCUMENT, 0);
    ask_alone(&party, &options, 6);
    ask_at_once(&party);
    wait_all(&party);
    assert_int_equal(service_settled(party.rig.service).tokens.prefill, DOCUMENT);
    close_party(&party);
}

/* Who has another owner, or shares less than a chunk, waits for nobody. */
static void test_strangers(void **state) {
    static struct party party;
    const struct service_rig_options options = {.parallel = 2, .sequences = 2, .context_size = CONTEXT};
    struct hold held;
    (void)state;
    open_party(&party, &options, test_seed(13));
    for (size_t i = 0; i < 2; i++) add_asked(&party, DOCUMENT, TAIL_MAX);
    ask_alone(&party, &options, 1);
    hold_begin(&held, party.rig.service);
    for (size_t i = 0; i < 2; i++) {
        struct service_request request = request_of(&party.asked[i]);
        request.owner = i == 0 ? "one" : "other";
        client_submit(&party.asked[i].client, &request);
    }
    hold_end(&held);
    wait_all(&party);
    for (size_t i = 0; i < 2; i++) assert_int_equal(party.asked[i].client.admission.reused_tokens, 0);
    close_party(&party);
}

/* Between two tokens of an answer there is at most one slice, whoever begins or waits meanwhile. */
struct stream {
    struct client *client;
    struct service *service;
    uint64_t slices;
    size_t steps, late;
};

static enum service_flow watch(void *context, const struct service_token *token) {
    struct stream *stream = context;
    const uint64_t slices = service_get_statistics(stream->service).slices;
    (void)token;
    if (stream->steps++ > 0 && slices > stream->slices + 1) stream->late++;
    stream->slices = slices;
    return SERVICE_CONTINUE;
}

static void streams_go_on(struct service_rig_options options) {
    enum { LONG = 100 };
    static struct party party;
    options.parallel = options.sequences = 4;
    options.service.slice_ms = 1;
    open_party(&party, &options, test_seed(14));
    for (size_t i = 0; i < 8; i++) add_asked(&party, DOCUMENT, 8);
    ask_alone(&party, &options, 4);
    struct client streamer;
    client_init(&streamer, &party.rig);
    struct stream stream = {.service = party.rig.service};
    struct token_list prompt = rig_tokens(&party.rig, "The mill stood still.", 20);
    const struct service_request request = rig_request(&prompt, LONG);
    struct service_listener listener = client_listener(&streamer);
    struct error error;
    listener = (struct service_listener){.context = &stream, .token = watch};
    assert_ok(service_submit(party.rig.service, &request, &listener, &streamer.ticket, &error), error);
    ask_at_once(&party);
    wait_all(&party);
    assert_int_equal(stream.late, 0);
    assert_int_equal(stream.steps, LONG);
    client_deinit(&streamer);
    token_list_deinit(&prompt);
    close_party(&party);
}

static void test_streams_go_on(void **state) {
    (void)state;
    streams_go_on((struct service_rig_options){.context_size = CONTEXT});
    streams_go_on((struct service_rig_options){.context_size = CONTEXT, .host_bytes = 64 << 20});
}

/* Some leave, the first reader above all: nobody who stays computes what another one has begun to read. */
static void leave_at_random(struct service_rig_options options, uint64_t seed) {
    static struct party party;
    open_party(&party, &options, seed);
    struct random *random = &party.random;
    const size_t count = 5 + random_below(random, 4);
    const bool varies = random_below(random, 2) == 0;
    for (size_t i = 0; i < count; i++) {
        const size_t shared = i > 0 && varies && random_below(random, 2) == 0
                                  ? 80 + random_below(random, DOCUMENT - 80)
                                  : DOCUMENT;
        add_asked(&party, shared, 1 + random_below(random, TAIL_MAX));
        struct asked *asked = &party.asked[i];
        if (random_below(random, 4) == 0) asked->token_max = 1;
        asked->leaves = i == 0 || random_below(random, 4) == 0;
        if (asked->leaves && (i == 0 || random_below(random, 2) == 0))
            asked->client.cancel_done = 1 + random_below(random, asked->shared);
    }
    ask_alone(&party, &options, 3);
    ask_at_once(&party);
    for (size_t i = 0; i < count; i++)
        if (party.asked[i].leaves && party.asked[i].client.cancel_done == 0)
            service_cancel(party.rig.service, party.asked[i].client.ticket);
    wait_all(&party);
    size_t readers = 0;
    for (size_t i = 0; i < count; i++) {
        const struct client *client = &party.asked[i].client;
        readers += client->admitted_count == 1 && client->admission.reused_tokens == 0;
        if (!varies && i > 0 && client->admitted_count == 1)
            assert_in_range(client->admission.reused_tokens, DOCUMENT, DOCUMENT + TAIL_MAX);
    }
    assert_int_equal(readers, 1);
    if (!varies) assert_true(service_settled(party.rig.service).tokens.prefill <= least_tokens(&party));
    close_party(&party);
}

static void test_leave_at_random(void **state) {
    enum { ROUNDS = 3 };
    struct random random;
    (void)state;
    random_init(&random, test_seed(15));
    for (size_t round = 0; round < ROUNDS; round++) {
        struct service_rig_options options = {.context_size = CONTEXT};
        options.parallel = options.sequences = 1 + random_below(&random, 6);
        options.service.slice_ms = 1;
        options.batch_size = 32;
        if (round % 2 == 1) options.host_bytes = 64 << 20;
        if (round % 3 == 2) {
            options.preset = "hata";
            options.keep = "96";
        }
        if (random_below(&random, 2) == 0) options.segment_size = 64 << random_below(&random, 3);
        leave_at_random(options, random_next(&random));
    }
}

/* Who leaves within a segment has written pages of layers that were done: what another one computes there instead is
 * what is saved. */
static void test_left_within_a_segment(void **state) {
    static struct party party;
    struct service_rig_options options = {.parallel = 1,
                                          .sequences = 2,
                                          .context_size = CONTEXT,
                                          .host_bytes = 64 << 20,
                                          .segment_size = 128,
                                          .batch_size = 32,
                                          .service.slice_ms = 1};
    (void)state;
    open_party(&party, &options, test_seed(16));
    add_asked(&party, DOCUMENT, 0);
    for (size_t i = 0; i < 2; i++) add_asked(&party, 150, 110);
    for (size_t i = 0; i < 110; i++) party.asked[2].prompt.ids[150 + i] = party.asked[1].prompt.ids[150 + i];
    party.asked[0].leaves = true;
    party.asked[0].client.cancel_done = 240;
    ask_alone(&party, &options, 1);
    for (size_t i = 0; i < 3; i++) {
        const struct service_request request = request_of(&party.asked[i]);
        client_submit(&party.asked[i].client, &request);
        client_wait(&party.asked[i].client);
        if (i == 0) continue;
        assert_int_equal(party.asked[i].client.admission.reused_tokens, i == 1 ? 128 : 259);
        assert_as_alone(&party.asked[i]);
        service_rig_stop(&party.rig);
        service_rig_start(&party.rig, &(struct service_options){.parallel = 1});
    }
    close_party(&party);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_clients),    cmocka_unit_test(test_a_long_document),
        cmocka_unit_test(test_same_prompt),
        cmocka_unit_test(test_strangers),       cmocka_unit_test(test_streams_go_on),
        cmocka_unit_test(test_leave_at_random), cmocka_unit_test(test_left_within_a_segment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
