/* The service alone: answers of requests at the same time are those of each alone, whatever else happens. */
#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "service_rig.h"

enum { CLIENTS = 8, CONTEXT = 512, ANSWER = 24 };

static const char *const texts[CLIENTS] = {
    "The river ran past the mill.",          "Once upon a time there was a fox.",
    "In the beginning the engine was cold.", "She opened the door and saw",
    "Rain fell on the town for a week.",     "The teacher asked a question, and",
    "A letter came from the far north.",     "Numbers are patient, said the old man."};

static const struct service_rig_options plain = {
    .parallel = CLIENTS, .sequences = CLIENTS, .context_size = CONTEXT};

static struct service_request request_of(const struct token_list *prompt) {
    return (struct service_request){.prompt = prompt->ids,
                                    .prompt_count = prompt->count,
                                    .greedy = true,
                                    .has_token_max = true,
                                    .token_max = ANSWER,
                                    .ignore_end = true};
}

static void assert_same_tokens(const struct token_list *a, const struct token_list *b) {
    assert_int_equal(a->count, b->count);
    for (size_t i = 0; i < a->count; i++) assert_int_equal(a->ids[i], b->ids[i]);
}

/* The same eight prompts one after another, each in a service of its own, and all at once over fewer slots. */
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
            const struct service_request request = request_of(&prompts[i]);
            client_ask(&alone[i], &request);
            service_rig_stop(&rig); /* nothing stays for the next */
            service_rig_start(&rig, &(struct service_options){.parallel = slots});
        }
        for (size_t i = 0; i < CLIENTS; i++) {
            client_init(&together[i], &rig);
            const struct service_request request = request_of(&prompts[i]);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_together_as_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
