/* Tables of what plans lose: which row is taken, and what is refused. */
#include "plan/kld_table.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/random.h"
#include "seed.h"
#include "testing.h"

static const char text[] =
    "{\"evaluation\": \"kl\", \"model\": \"m\", \"fingerprint\": \"00ff\", \"results\": [\n"
    " {\"preset\": \"quest\", \"length\": 2000, \"kld\": 0.01, \"kld_error\": 0.001},\n"
    " {\"preset\": \"quest\", \"length\": 8000, \"kld\": 0.03, \"kld_error\": 0.002},\n"
    " {\"preset\": \"quest:select=meanstd\", \"length\": 4000, \"kld\": 0.02, \"kld_error\": 0},\n"
    " {\"preset\": \"leoam:codec=f16:dense=1\", \"length\": 4000, \"kld\": 0.5, \"kld_error\": 0}]}";

static char path[200];
static struct kld_table table;

static void write_text(const char *bytes, size_t length) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

static int setup(void **state) {
    (void)state;
    snprintf(path, sizeof path, "table-%ld.kld.json", (long)getpid());
    return 0;
}

static int teardown(void **state) {
    (void)state;
    return unlink(path);
}

static bool is_near(double a, double b) { return fabs(a - b) < 1e-12; }

static void a_plan_has_the_larger_of_its_neighbours(void **state) {
    (void)state;
    struct error error;
    write_text(text, sizeof text - 1);
    assert_ok(kld_table_load(&table, path, "00ff", &error), error);
    assert_int_equal(table.row_count, 4);
    assert_true(is_near(kld_table_at(&table, "quest", 2000), 0.011));
    assert_true(is_near(kld_table_at(&table, "quest", 3000), 0.011)); /* 8000 is more than twice 3000 */
    assert_true(is_near(kld_table_at(&table, "quest", 4000), 0.032));
    assert_true(is_near(kld_table_at(&table, "quest", 8000), 0.032));
    assert_true(is_near(kld_table_at(&table, "quest", 16000), 0.032));
    assert_true(is_near(kld_table_at(&table, "quest select=meanstd", 4000), 0.02));
    assert_true(is_near(kld_table_at(&table, "leoam codec=f16,dense=1", 4000), 0.5));
    assert_true(isnan(kld_table_at(&table, "quest", 16002)) && isnan(kld_table_at(&table, "quest", 999)));
    static const char *const others[] = {"hata",         "ques",           "quest ", "quest select=mean",
                                         "quest:select", "leoam codec=f16"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_true(isnan(kld_table_at(&table, others[i], 4000)));
}

static void what_is_not_such_a_table_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *what, *with, *expected;
    } cases[] = {
        {"\"kl\"", "\"ruler\"", "evaluation: found ruler, expected kl"},
        {"\"00ff\"", "\"00fe\"", "fingerprint: found 00fe, expected 00ff"},
        {"\"fingerprint\"", "\"x\"", "fingerprint: found none"},
        {"\"results\": [", "\"results\": 3, \"x\": [", "results: expected an array"},
        {"\"quest\"", "17", "results[0].preset: expected a text"},
        {"2000", "-1", "results[0].length: expected a number"},
        {"0.03", "\"low\"", "results[1].kld: expected a number"},
        {"0.002", "1e300", "results[1].kld_error: expected a number"},
        {"]}", "]", ".kld.json"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char changed[sizeof text + 64];
        struct error error = {0};
        const char *at = strstr(text, cases[i].what);
        assert_non_null(at);
        snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, cases[i].with,
                 at + strlen(cases[i].what));
        write_text(changed, strlen(changed));
        assert_int_equal(kld_table_load(&table, path, "00ff", &error), STATUS_USAGE);
        if (strstr(error.message, cases[i].expected) == NULL || strchr(error.message, '\n') != NULL)
            fail_msg("\"%s\" does not say \"%s\"", error.message, cases[i].expected);
        assert_int_equal(table.row_count, 0);
    }
    struct error error;
    assert_int_equal(kld_table_load(&table, "no-such-file.kld.json", "00ff", &error), STATUS_IO);
}

static void bytes_may_be_anything(void **state) {
    (void)state;
    enum { ROUNDS = 600 };
    struct random random;
    random_init(&random, test_seed(3));
    for (size_t round = 0; round < ROUNDS; round++) {
        char changed[sizeof text];
        size_t length = sizeof text - 1;
        struct error error = {0};
        memcpy(changed, text, sizeof text);
        if (round % 2 == 0)
            length = (size_t)random_below(&random, length);
        else
            changed[random_below(&random, length)] = (char)random_below(&random, 256);
        write_text(changed, length);
        if (kld_table_load(&table, path, "00ff", &error) != STATUS_OK) {
            assert_int_equal(table.row_count, 0);
            continue;
        }
        for (size_t i = 0; i < table.row_count; i++)
            assert_true(table.rows[i].kld >= 0 && table.rows[i].error >= 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_has_the_larger_of_its_neighbours),
        cmocka_unit_test(what_is_not_such_a_table_is_refused),
        cmocka_unit_test(bytes_may_be_anything),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
