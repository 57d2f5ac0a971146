/* The file of a machine's numbers: what is written is read again; what is damaged is refused in one line that names the
 * file and the number.  And what is said between two measured numbers. */
#include "plan/machine.h"

#include "sample_machine.h"
#include "seed.h"
#include "testing.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/random.h"
#include "platform/file.h"

static double any_factor(void *context) { return exp(4 * random_double(context) - 2); }

static char path[64];

static void write_text(const char *text, size_t length) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

static char *saved_text(const struct machine *machine, size_t *length) {
    struct error error;
    char *text;
    assert_ok(machine_save(machine, path, &error), error);
    assert_ok(file_read_all(path, 1 << 20, &text, length, &error), error);
    return text;
}

static bool is_near(double a, double b) { return fabs(a - b) <= 1e-3 * fabs(b); }

static void what_is_saved_is_loaded(void **state) {
    (void)state;
    struct random random;
    struct error error;
    struct machine loaded;
    random_init(&random, test_seed(1));
    struct machine machine = sample_machine(any_factor, &random);
    size_t length, again_length;
    char *text = saved_text(&machine, &length);
    assert_ok(machine_load(&loaded, path, &error), error);
    assert_string_equal(loaded.processor, "sample");
    assert_string_equal(loaded.kernels, "avx2");
    assert_int_equal(loaded.thread_count, 4);
    assert_true(is_near(loaded.memory.all, machine.memory.all));
    assert_true(is_near(loaded.matrices[TENSOR_Q4_K].narrow, machine.matrices[TENSOR_Q4_K].narrow));
    assert_true(is_near(loaded.matrices[TENSOR_Q8_0].block, machine.matrices[TENSOR_Q8_0].block));
    assert_true(is_near(loaded.attend_q8.many, machine.attend_q8.many));
    assert_true(is_near(loaded.disk.read[2][1], machine.disk.read[2][1]));
    assert_true(is_near(loaded.threads[1].attend_block, machine.threads[1].attend_block));
    assert_true(loaded.threads[2].wide == 0);
    const struct machine_selection *hata = machine_find_selection(&loaded, "hata");
    assert_non_null(hata);
    assert_true(is_near(hata->rows.many, machine_find_selection(&machine, "hata")->rows.many));
    char *again = saved_text(&loaded, &again_length); /* four digits stay four digits */
    assert_int_equal(again_length, length);
    assert_memory_equal(again, text, length);
    free(again);
    free(text);
}

/* Replaces `what`, which is in the text, by `with`, loads that, and looks for `expected` in the one line. */
static void refused(const char *text, const char *what, const char *with, const char *expected) {
    struct error error = {0};
    struct machine machine;
    const char *at = strstr(text, what);
    if (at == NULL) fail_msg("%s: not in the file", what);
    const size_t before = (size_t)(at - text), length = strlen(text) + strlen(with) - strlen(what);
    char *changed = malloc(length + 1);
    assert_non_null(changed);
    memcpy(changed, text, before);
    memcpy(changed + before, with, strlen(with));
    memcpy(changed + before + strlen(with), at + strlen(what), strlen(at + strlen(what)) + 1);
    write_text(changed, length);
    free(changed);
    assert_int_equal(machine_load(&machine, path, &error), STATUS_USAGE);
    assert_null(strchr(error.message, '\n'));
    if (strstr(error.message, path) == NULL || strstr(error.message, expected) == NULL)
        fail_msg("%s -> %s: \"%s\" does not say \"%s\"", what, with, error.message, expected);
    assert_true(machine.memory.all == 0); /* nothing of it is kept */
}

static void one_figure_says_whether_a_file_holds(void **state) {
    (void)state;
    static const struct {
        double then, now, load;
        enum machine_check check;
    } cases[] = {
        {3e10, 3e10, 0, MACHINE_HOLDS},      {3e10, 4.4e10, 9, MACHINE_HOLDS},
        {3e10, 2.1e10, 9, MACHINE_HOLDS},    {3e10, 4.6e10, 0, MACHINE_IS_OFF},
        {3e10, 4.6e10, 9, MACHINE_IS_OFF}, /* the file is of a busy minute */
        {3e10, 1.9e10, 0.2, MACHINE_IS_OFF}, {3e10, 1.9e10, 0.5, MACHINE_IS_BUSY},
        {3e10, 1.9e10, -1, MACHINE_IS_OFF},  {0, 1e10, 0, MACHINE_HOLDS},
        {3e10, 0, 0, MACHINE_HOLDS},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct machine machine = {.memory.all = cases[i].then};
        if (machine_check_memory(&machine, cases[i].now, cases[i].load) != cases[i].check)
            fail_msg("case %zu", i);
    }
}

static double one(void *context) {
    (void)context;
    return 1;
}

static void damaged_files_are_refused(void **state) {
    (void)state;
    struct machine machine = sample_machine(one, NULL);
    size_t length;
    char *text = saved_text(&machine, &length);
    static const struct {
        const char *what, *with, *expected;
    } cases[] = {
        {"\"loam_machine\": 4", "\"loam_machine\": 3", "found 3, expected 4"},
        {"\"loam_machine\"", "\"other\"", "loam_machine: missing"},
        {"\"threads\": 4", "\"threads\": 0", "threads: expected"},
        {"\"processor\": \"sample\"", "\"processor\": 7", "processor: expected a text"},
        {"\"memory.copy\"", "\"memory.cop\"", "memory.copy: missing"},
        {"\"disk.read.65536.depth8\"", "\"disk.read.65536.depth9\"", "depth9: no number of that name"},
        {"\"disk.write\": 8e8,", "", "disk: found 15 of its 16 rates"},
        {"\"memory.copy\": 8e9", "\"memory.copy\": \"fast\"", "memory.copy: found \"fast\""},
        {"\"memory.copy\": 8e9", "\"memory.copy\": -1", "memory.copy: found -1"},
        {"\"memory.copy\": 8e9", "\"memory.copy\": 0", "expected a number above 0"},
        {"\"memory.copy\": 8e9", "\"memory.copy\": 1e300", "memory.copy: found"},
        {"\"matrix.Q8_0.wide\"", "\"matrix.Q9_0.wide\"", "matrix.Q9_0.wide"},
        {"\"matrix.Q8_0.wide\": 2e10,", "", "matrix.Q8_0: found 2 of"},
        {"\"select.hata.rows.group1\"", "\"device.speed\"", "device.speed"},
        {"\"select.hata.rows.group1\"", "\"select.hata.row.group1\"", "select.hata.row.group1: no number"},
        {"\"select.hata.rows.group1\"", "\"select.quest.lines\": 1, \"select.hata.rows.group1\"",
         "select.quest.lines"},
        {"\"select.hata.rows.group1\"", "\"select.other.seconds\": 1, \"select.hata.rows.group1\"",
         "select.other.seconds: no number"},
        {"\"threads.2.attend\"", "\"threads.8.attend\"", "threads.2: found 7 of its 8"},
        {"\"threads\": 4", "\"threads\": 2", "threads.2: the machine has 2 threads"},
        {"{", "[", path},
        {"\"numbers\": {", "\"numbers\": 3, \"unread\": {", "numbers: expected an object"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refused(text, cases[i].what, cases[i].with, cases[i].expected);
    free(text);
}

/* One file serves loam and loam-lab: loam reads past the numbers of presets that it does not have. */
static void numbers_of_the_lab_are_passed_over(void **state) {
    (void)state;
    static const char mark[] = "\"select.hata.rows.group1\"",
                      more[] = "\"select.h2o.seconds\": 1, \"select.h2o.score.group4\": 2, ";
    struct machine machine = sample_machine(one, NULL);
    struct error error;
    size_t length;
    char *text = saved_text(&machine, &length), *changed;
    const char *at = strstr(text, mark);
    assert_non_null(at);
    const int written = asprintf(&changed, "%.*s%s%s", (int)(at - text), text, more, at);
    assert_true(written > 0);
    write_text(changed, (size_t)written);
    assert_ok(machine_load(&machine, path, &error), error);
    free(changed);
    free(text);
}

/* Fewer threads: each rate is its share of that of all; counts that nobody measured are not to be had. */
static void fewer_threads_are_slower(void **state) {
    (void)state;
    const struct machine machine = sample_machine(one, NULL);
    struct machine fewer;
    assert_true(machine_with_threads(&fewer, &machine, 4));
    assert_true(fewer.attend_block == machine.attend_block && fewer.thread_count == 4);
    assert_false(machine_with_threads(&fewer, &machine, 3));
    assert_false(machine_with_threads(&fewer, &machine, 8));
    assert_true(machine_with_threads(&fewer, &machine, 2));
    assert_int_equal(fewer.thread_count, 2);
    assert_true(machine_matrix_rate(&fewer, TENSOR_Q4_K, 1024) ==
                machine_matrix_rate(&machine, TENSOR_Q4_K, 1024) / 2);
    assert_true(machine_matrix_block(&fewer, TENSOR_Q8_0) == machine_matrix_block(&machine, TENSOR_Q8_0) / 2);
    assert_true(fewer.attend_f16.one == machine.attend_f16.one / 2);
    assert_true(fewer.attend_q8.many == machine.attend_q8.many / 2);
    assert_true(fewer.attend_block == machine.attend_block / 2);
    assert_true(fewer.layer_seconds == machine.layer_seconds * 2);
    assert_true(fewer.layer_token_seconds == machine.layer_token_seconds * 2);
    const struct machine_selection *hata = machine_find_selection(&machine, "hata"),
                                   *slower = machine_find_selection(&fewer, "hata");
    assert_true(slower->seconds == hata->seconds * 2 && slower->rows.many == hata->rows.many * 2 &&
                slower->score.one == hata->score.one * 2);
    assert_true(fewer.disk.read[0][0] == machine.disk.read[0][0]); /* nobody computes there */
}

/* A processor that another program, heat or a battery slows; its disk does not know. */
static void all_but_the_disk_has_a_pace(void **state) {
    (void)state;
    struct machine machine = sample_machine(one, NULL);
    const struct machine was = machine;
    machine_set_pace(&machine, 0.5);
    assert_true(machine_matrix_rate(&machine, TENSOR_Q4_K, 1024) ==
                machine_matrix_rate(&was, TENSOR_Q4_K, 1024) / 2);
    assert_true(machine.attend_f16.many == was.attend_f16.many / 2 &&
                machine.attend_block == was.attend_block / 2);
    assert_true(machine.layer_seconds == was.layer_seconds * 2);
    const struct machine_selection *hata = machine_find_selection(&was, "hata"),
                                   *slower = machine_find_selection(&machine, "hata");
    assert_true(slower->rows.one == hata->rows.one * 2 && slower->score.many == hata->score.many * 2);
    assert_memory_equal(machine.disk.read, was.disk.read, sizeof was.disk.read);
    assert_memory_equal(&machine.tier, &was.tier, sizeof was.tier);
}

/* Cut or changed anywhere: loaded with numbers that can be planned by, or refused in one line. */
static void bytes_may_be_anything(void **state) {
    (void)state;
    struct random random;
    struct machine sample = sample_machine(one, NULL), machine;
    size_t length, refused_count = 0;
    char *text = saved_text(&sample, &length);
    enum { ROUNDS = 600 };
    random_init(&random, test_seed(2));
    for (size_t round = 0; round < ROUNDS; round++) {
        char *changed = malloc(length);
        struct error error = {0};
        assert_non_null(changed);
        memcpy(changed, text, length);
        size_t kept = length;
        if (round % 2 == 0)
            kept = (size_t)random_below(&random, length);
        else
            changed[random_below(&random, length)] = (char)random_below(&random, 256);
        write_text(changed, kept);
        free(changed);
        if (machine_load(&machine, path, &error) == STATUS_OK) {
            assert_true(machine.memory.all > 0 && machine.disk.write > 0 && machine.attend_f16.one > 0);
            continue;
        }
        refused_count++;
        assert_int_equal(error.status, STATUS_USAGE);
        assert_non_null(strstr(error.message, path));
        assert_null(strchr(error.message, '\n'));
    }
    assert_true(refused_count >= ROUNDS / 2);
    free(text);
}

static void a_missing_file_is_said(void **state) {
    (void)state;
    struct error error = {0};
    struct machine machine;
    unlink(path);
    assert_int_equal(machine_load(&machine, path, &error), STATUS_IO);
    assert_non_null(strstr(error.message, path));
}

/* At what was measured, what was measured; between, between. */
static void numbers_between_numbers(void **state) {
    (void)state;
    struct machine machine = sample_machine(one, NULL);
    assert_true(is_near(machine_matrix_rate(&machine, TENSOR_Q8_0, MACHINE_NARROW), 1e10));
    assert_true(is_near(machine_matrix_rate(&machine, TENSOR_Q8_0, MACHINE_WIDE), 2e10));
    const double rate = machine_matrix_rate(&machine, TENSOR_Q8_0, 2048);
    assert_true(rate > 1e10 && rate < 2e10);
    for (size_t i = 0; i < MACHINE_DISK_SIZES; i++) {
        const double bytes = machine_disk_bytes[i];
        assert_true(is_near(machine_disk_seconds(&machine, bytes, 1), bytes / machine.disk.read[i][0]));
        assert_true(is_near(machine_disk_rate(&machine, bytes), machine.disk.read[i][2]));
        double before = 0;
        for (double requests = 0.25; requests <= 100;
             requests += 0.25) { /* each adds its own, of its depth */
            const double seconds = machine_disk_seconds(&machine, bytes, requests);
            assert_true(seconds > before);
            before = seconds;
        }
        const double eight =
            machine_disk_seconds(&machine, bytes, 8) - machine_disk_seconds(&machine, bytes, 7);
        const double four =
                         machine_disk_seconds(&machine, bytes, 4) - machine_disk_seconds(&machine, bytes, 3),
                     last = machine_disk_seconds(&machine, bytes, 101) - before;
        assert_true(is_near(eight, bytes / machine.disk.read[i][1]));
        assert_true(is_near(last, bytes / machine.disk.read[i][2]));
        assert_true(eight < four && four < bytes / machine.disk.read[i][0]);
    }
    const double between = machine_disk_rate(&machine, 40000);
    assert_true(between > machine.disk.read[1][2] && between < machine.disk.read[2][2]);
    assert_true(is_near(machine_by_group_at((struct machine_by_group){1, 4}, 1), 1));
    assert_true(is_near(machine_by_group_at((struct machine_by_group){1, 4}, MACHINE_GROUP), 4));
    assert_true(is_near(machine_by_group_at((struct machine_by_group){1, 4}, 7), 7));
    assert_true(machine_by_group_at((struct machine_by_group){4, 1}, 16) > 0); /* never below 0 */
    machine.matrices[TENSOR_Q8_0] = (struct machine_matrix){0, 0, 0}; /* that of a type of as many bytes */
    machine.matrices[TENSOR_F32].wide = 7e9;
    assert_true(is_near(machine_matrix_rate(&machine, TENSOR_Q8_0, MACHINE_WIDE), 2e10));
}

/* ... as a request takes, of the disk in decision 0030: 9.5 us a request and 0.95 us a KiB. */
static void bytes_in_the_time_of_a_request(void **state) {
    (void)state;
    struct machine machine = sample_machine(one, NULL);
    double *const small = &machine.disk.read[0][MACHINE_DISK_DEPTHS - 1],
                  *const large = &machine.disk.read[1][MACHINE_DISK_DEPTHS - 1];
    *small = 4096 / 13.3e-6;
    *large = 16384 / 24.7e-6;
    assert_true(machine_read_gap(&machine) > 10000 && machine_read_gap(&machine) < 10400);
    *large = *small; /* a request for itself takes nothing */
    assert_int_equal(machine_read_gap(&machine), 1);
    *large = *small / 2; /* less than nothing */
    assert_int_equal(machine_read_gap(&machine), 1);
    *large = *small * 4; /* bytes take nothing */
    assert_int_equal(machine_read_gap(&machine), 1 << 20);
    *large = *small * 5;
    assert_int_equal(machine_read_gap(&machine), 1 << 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_saved_is_loaded),
        cmocka_unit_test(numbers_of_the_lab_are_passed_over),
        cmocka_unit_test(one_figure_says_whether_a_file_holds),
        cmocka_unit_test(damaged_files_are_refused),
        cmocka_unit_test(fewer_threads_are_slower),
        cmocka_unit_test(all_but_the_disk_has_a_pace),
        cmocka_unit_test(bytes_may_be_anything),
        cmocka_unit_test(a_missing_file_is_said),
        cmocka_unit_test(numbers_between_numbers),
        cmocka_unit_test(bytes_in_the_time_of_a_request),
    };
    snprintf(path, sizeof path, "test_machine-%ld.json", (long)getpid());
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
