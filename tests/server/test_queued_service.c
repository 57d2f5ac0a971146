/* The service on a device with a queue (device/queued_device.h), whose work runs late and in an order that is drawn:
 * requests at the same time are answered as on the cpu device, one after another. */
#include "testing.h"

#include <string.h>

#include "base/random.h"
#include "device/queued_device.h"
#include "seed.h"
#include "service_rig.h"

enum { CLIENTS = 4, CONTEXT = 512, ANSWER = 10 };

static const char *const texts[CLIENTS] = {
    "The river ran past the mill.", "Once upon a time there was a fox.",
    "In the beginning the engine was cold.", "She opened the door and saw"};

/* Prompts of so many tokens. */
static void ask(const struct service_rig_options *options, const size_t *counts, bool together,
                struct token_list *answers) {
    struct service_rig rig;
    struct client clients[CLIENTS];
    struct token_list prompts[CLIENTS];
    service_rig_open(&rig, options);
    for (size_t i = 0; i < CLIENTS; i++) {
        prompts[i] = rig_tokens(&rig, texts[i], counts[i]);
        client_init(&clients[i], &rig);
        const struct service_request request = rig_request(&prompts[i], ANSWER);
        client_submit(&clients[i], &request);
        if (!together) client_wait(&clients[i]);
    }
    for (size_t i = 0; i < CLIENTS; i++) {
        client_wait(&clients[i]);
        assert_int_equal(clients[i].done.reason, STOP_LENGTH);
        answers[i] = clients[i].tokens;
        clients[i].tokens = (struct token_list){0};
        client_deinit(&clients[i]);
        token_list_deinit(&prompts[i]);
    }
    service_rig_close(&rig);
}

static void same_answers(struct random *random, struct service_rig_options options) {
    const struct device_options device = {.thread_count = 1, .mask = cpu_default()};
    struct token_list expected[CLIENTS], found[CLIENTS];
    size_t counts[CLIENTS];
    for (size_t i = 0; i < CLIENTS; i++) counts[i] = 80 + (size_t)random_below(random, 160);
    options.parallel = options.sequences = CLIENTS;
    options.context_size = CONTEXT;
    ask(&options, counts, false, expected);
    options.device = queued_device_create(&device, random_next(random));
    ask(&options, counts, true, found);
    for (size_t i = 0; i < CLIENTS; i++) {
        assert_same_tokens(&expected[i], &found[i]);
        token_list_deinit(&expected[i]);
        token_list_deinit(&found[i]);
    }
}

static void requests(void **state) {
    (void)state;
    struct random random;
    random_init(&random, test_seed(3));
    same_answers(&random, (struct service_rig_options){.service = {.slice_ms = 1}});
    same_answers(&random, (struct service_rig_options){.preset = "hata", .keep = "96"});
    same_answers(&random, (struct service_rig_options){.host_bytes = 6 << 20, .segment_size = 64});
    same_answers(&random,
                 (struct service_rig_options){.host_bytes = 8 << 20, .preset = "leoam", .set = "codec=f16"});
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(requests)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
