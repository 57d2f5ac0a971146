/* Ids of a request's text: taken where they are a plain array of the outermost object, and left to JSON's reader
 * otherwise. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/fields.h"
#include "server/id_array.h"

/* expected: the ids and the rest; NULL: nothing is taken. */
static void check(const char *text, const char *expected) {
    struct token_list ids = {0};
    struct error error;
    char *rest, found[512];
    size_t rest_length = 0;
    assert_int_equal(token_list_append(&ids, 7, &error), STATUS_OK); /* what was there stays */
    const bool taken = id_array_take(text, strlen(text), "prompt", &ids, &rest, &rest_length);
    assert_int_equal(ids.ids[0], 7);
    if (expected == NULL && taken) fail_msg("%s: taken", text);
    if (expected == NULL) {
        assert_null(rest);
        assert_int_equal(ids.count, 1);
    } else {
        if (!taken) fail_msg("%s: not taken", text);
        int used = 0;
        for (size_t i = 1; i < ids.count; i++)
            used += snprintf(found + used, sizeof found - (size_t)used, "%d ", ids.ids[i]);
        snprintf(found + used, sizeof found - (size_t)used, "%.*s", (int)rest_length, rest);
        assert_string_equal(found, expected);
    }
    free(rest);
    token_list_deinit(&ids);
    if (expected != NULL) return;
    assert_false(id_array_take(text, strlen(text), "prompt", &ids, &rest, &rest_length));
    assert_null(ids.ids); /* nor memory, which nobody would free */
}

static void test_taken(void **state) {
    (void)state;
    check("{\"prompt\":[1,20,300]}", "1 20 300 {\"prompt\":[]}");
    check(" {\"n\": 1,\n \"prompt\" : [ 0 ,\t999999999\n] , \"m\": [2]} ",
          "0 999999999  {\"n\": 1,\n \"prompt\" : [] , \"m\": [2]} ");
    check("{\"a\":\"prompt\",\"b\":{\"prompt\":[1]},\"c\":\"\\\"prompt\\\":[2]\",\"prompt\":[3]}",
          "3 {\"a\":\"prompt\",\"b\":{\"prompt\":[1]},\"c\":\"\\\"prompt\\\":[2]\",\"prompt\":[]}");
    /* What is wrong elsewhere stays wrong. */
    check("{\"prompt\":[1],\"prompt\":[2]}", "1 {\"prompt\":[],\"prompt\":[2]}");
    check("{\"prompt\":[1]", "1 {\"prompt\":[]");
}

static void test_left(void **state) {
    (void)state;
    static const char *const texts[] = {
        "",
        "{",
        "{\"prompt\"",
        "{\"prompt\":",
        "{\"prompt\":[",
        "{\"prompt\":[]}",
        "{\"prompt\":[1",
        "{\"prompt\":[1,",
        "{\"prompt\":[1,]}",
        "{\"prompt\":[,1]}",
        "{\"prompt\":[1 2]}",
        "{\"prompt\":[-1]}",
        "{\"prompt\":[1.0]}",
        "{\"prompt\":[1e3]}",
        "{\"prompt\":[01]}",
        "{\"prompt\":[1000000000]}",
        "{\"prompt\":[1,null]}",
        "{\"prompt\":[1,[2]]}",
        "{\"prompt\":[[1]]}",
        "{\"prompt\":[\"1\"]}",
        "{\"prompt\":\"text\"}",
        "{\"prompts\":[1]}",
        "{\"promp\":[1]}",
        "{\"a\":{\"prompt\":[1]}}",
        "{\"a\\\":\"prompt\":[1]}",
        "{\"\\u0070rompt\":[1]}",
        "\"prompt\":[1]",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) check(texts[i], NULL);
}

static size_t allocations;

static void *counted(size_t bytes) {
    allocations++;
    return malloc(bytes);
}

/* Values of JSON are made of what is left. */
static void test_count(void **state) {
    enum { COUNT = 20000 };
    (void)state;
    char *text = malloc(8 * COUNT + 32), *rest;
    size_t length = (size_t)sprintf(text, "{\"max_tokens\":1,\"prompt\":[1"), rest_length;
    for (size_t i = 1; i < COUNT; i++) length += (size_t)sprintf(text + length, ", %zu", i * 7919 % 128000);
    length += (size_t)sprintf(text + length, "]}");
    struct token_list ids = {0};
    struct api_error error;
    json_t *body;
    assert_true(id_array_take(text, length, "prompt", &ids, &rest, &rest_length));
    json_set_alloc_funcs(counted, free);
    assert_true(fields_parse(rest, rest_length, &body, &error));
    assert_int_equal(json_array_size(json_object_get(body, "prompt")), 0);
    json_decref(body);
    json_set_alloc_funcs(malloc, free);
    assert_int_equal(ids.count, COUNT);
    for (size_t i = 1; i < COUNT; i++) assert_int_equal(ids.ids[i], i * 7919 % 128000);
    if (allocations > 100) fail_msg("%zu allocations for %d ids", allocations, COUNT);
    token_list_deinit(&ids);
    free(rest);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_taken),
        cmocka_unit_test(test_left),
        cmocka_unit_test(test_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
