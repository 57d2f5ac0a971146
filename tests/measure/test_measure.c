/* This machine's numbers are measured when they are first wanted, kept, and measured again where they do not hold.
 * Nothing is said here about what they are, but that each is there. */
#include "measure/machine_file.h"

#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/loam-measure-XXXXXX", path[MACHINE_PATH_BYTES], note[400];
static size_t parts, parts_max;
static char part_names[1000], lines[1000];

static bool count_part(void *context, const char *part, bool is_line) {
    (void)context;
    assert_true(part[0] != '\0');
    char *names = is_line ? lines : part_names;
    const size_t used = strlen(names);
    snprintf(names + used, sizeof lines - used, "%s%c", part, is_line ? '\n' : ' ');
    return !is_line && ++parts > parts_max;
}

enum { MEANSTD, HATA }; /* loam's first two */

static struct machine_use use_of(uint64_t types, uint32_t selections) {
    return (struct machine_use){.types = types, .selections = selections};
}

static uint64_t type_bit(enum tensor_type type) { return UINT64_C(1) << type; }

static struct machine_request request_of(void) {
    return (struct machine_request){
        .measure = {.mask = cpu_features(),
                    .thread_count = 2,
                    .use = {.types = type_bit(TENSOR_Q4_K), .selections = 1U << HATA, .threads = true},
                    .seconds = 1e6,
                    .is_short = true,
                    .progress = count_part}};
}

static enum status open_machine(struct machine *machine, const struct machine_request *request,
                                struct error *error) {
    parts = 0;
    part_names[0] = lines[0] = '\0';
    return machine_open(machine, request, path, note, error);
}

/* In the file, which stays another's of this machine.  0: it is not looked at, for tests beside others. */
static void set_memory(double bytes_per_second) {
    struct machine machine;
    struct error error;
    assert_ok(machine_load(&machine, path, &error), error);
    machine.memory.all = bytes_per_second;
    assert_ok(machine_save(&machine, path, &error), error);
}

/* What can wait waits where it is late, is told, and is added by the next plan. */
static void what_there_is_no_time_for_comes_later(void **state) {
    (void)state;
    struct machine machine;
    struct error error;
    struct machine_request request = request_of();
    parts_max = 1000;
    request.measure.seconds = 1e-9;
    request.measure.use.disk = true;
    assert_ok(open_machine(&machine, &request, &error), error);
    assert_string_equal(part_names, "memory Q8_0 disk attention attention ");
    for (size_t i = 0; i < MACHINE_DISK_SIZES; i++) /* one is read, the others are as quick */
        for (size_t j = 0; j < MACHINE_DISK_DEPTHS; j++)
            assert_true(machine.disk.read[i][j] > 0 && machine.disk.read[i][j] == machine.disk.read[0][0]);
    assert_true(machine.disk.write > 0 && machine.tier.scan_rate == 0);
    if (strstr(lines, "not measured in 0.0 s: Q4_K, hata, fewer threads, the disk; the next plan goes on") == NULL)
        fail_msg("%s", lines);
    assert_true(machine.attend_f16.many > 0 && machine.layer_token_seconds > 0 && machine.attend_q8.one == 0);
    set_memory(0);
    request.measure.seconds = 1e6;
    request.measure.use.q8 = true;
    assert_ok(open_machine(&machine, &request, &error), error);
    assert_string_equal(
        part_names, "Q8_0 threads threads Q4_K pages attention threads attention threads attention attention "
                                    "hata threads threads hata ");
    assert_true(machine.attend_q8.one > 0 && machine.attend_q8.many > 0 && machine.threads[0].select > 0);
    assert_true(machine.tier.scan_rate > 0 && machine.tier.memory_seconds > 0);
    assert_null(strstr(lines, "not measured"));
    assert_ok(open_machine(&machine, &request, &error), error);
    assert_int_equal(parts, 0);
    assert_int_equal(unlink(path), 0);
}

/* First what one model and plan use; then what others use besides, and no more of it than that. */
static void is_measured_once(void **state) {
    (void)state;
    struct machine used, first, second;
    struct error error;
    struct machine_request request = request_of();
    parts_max = 1000;
    request.never_measures = true;
    assert_int_equal(open_machine(&first, &request, &error), STATUS_UNSUPPORTED);
    assert_int_equal(machine_file_read_gap(), 0);
    request.never_measures = false;
    assert_ok(open_machine(&used, &request, &error), error);
    assert_string_equal(part_names, "memory Q8_0 threads Q4_K attention threads attention attention "
                                    "hata threads hata ");
    set_memory(0);
    assert_false(machine_knows_disk(&used));
    assert_int_equal(machine_read_gap(&used), 0);
    assert_non_null(strstr(path, folder));
    assert_non_null(strstr(note, "once"));
    assert_true(used.matrices[TENSOR_Q5_K].wide == 0 && used.selections[MEANSTD].rows.one == 0);
    request.measure.use = use_of(type_bit(TENSOR_Q4_K) | type_bit(TENSOR_IQ2_XXS), 1U << HATA);
    assert_ok(open_machine(&second, &request, &error), error);
    assert_string_equal(part_names, "IQ2_XXS "); /* the other one is known */
    assert_true(second.matrices[TENSOR_IQ2_XXS].wide > 0);
    request.measure.use = (struct machine_use){.disk = true}; /* the first plan that may read it */
    assert_ok(open_machine(&second, &request, &error), error);
    assert_string_equal(part_names, "disk pages ");
    const uint64_t types = type_bit(TENSOR_Q4_K) | type_bit(TENSOR_Q5_K) | type_bit(TENSOR_I32) /* of no weights */;
    request.measure.use = use_of(types, 1U << HATA | 1U << MEANSTD);
    assert_ok(open_machine(&first, &request, &error), error);
    assert_non_null(strstr(note, "has no numbers of yet"));
    assert_null(strstr(part_names, "memory"));
    assert_null(strstr(part_names, "attention"));
    assert_null(strstr(part_names, "hata"));
    assert_null(strstr(part_names, "Q4_K"));
    assert_non_null(strstr(part_names, "Q5_K "));
    assert_string_equal(strstr(part_names, "meanstd "), "meanstd meanstd ");
    assert_true(fabs(first.matrices[TENSOR_Q4_K].wide / used.matrices[TENSOR_Q4_K].wide - 1) < 1e-3);
    assert_true(used.memory.all > 1e8 && first.memory.copy > 1e8);
    for (uint32_t i = 0; i < MACHINE_TYPES; i++) /* all of a type or none */
        assert_true((first.matrices[i].wide > 0) == (first.matrices[i].block > 0));
    assert_true(first.matrices[TENSOR_Q8_0].wide > 0 && first.matrices[TENSOR_Q4_K].wide > 0);
    for (size_t i = 0; i < MACHINE_SELECTIONS_MAX; i++)
        if (i == HATA || i == MEANSTD)
            assert_ptr_equal(machine_find_selection(&first, first.selections[i].name), &first.selections[i]);
    const double tier[] = {first.tier.page_seconds, first.tier.scan_rate, first.tier.request_seconds,
                           first.tier.neighbour_seconds, first.tier.memory_seconds};
    for (size_t i = 0; i < sizeof tier / sizeof *tier; i++) assert_true(tier[i] > 0 && isfinite(tier[i]));
    assert_true(first.tier.layer_seconds >= 0 && isfinite(first.tier.layer_seconds));
    assert_true(first.disk.write > 0 && first.disk.read[0][0] > 0);
    request.never_measures = true;
    assert_ok(open_machine(&second, &request, &error), error);
    assert_int_equal(parts, 0);
    assert_true(note[0] == '\0');
    assert_int_equal(machine_file_read_gap(), machine_read_gap(&second));
    assert_true(fabs(second.memory.copy - first.memory.copy) <= 1e-3 * first.memory.copy);
}

/* One thread's numbers are there, as shares of those of two. */
static void fewer_threads_are_known(void **state) {
    (void)state;
    struct machine machine, one;
    struct error error;
    struct machine_request request = request_of();
    request.never_measures = true;
    request.measure.thread_count = 1;
    assert_ok(open_machine(&machine, &request, &error), error);
    assert_true(machine_with_threads(&one, &machine, 1));
    const struct machine_threads *speed = &machine.threads[0];
    const double speeds[] = {speed->narrow, speed->wide,   speed->block,        speed->layer,
                             speed->token,  speed->attend, speed->attend_block, speed->select};
    for (size_t i = 0; i < sizeof speeds / sizeof *speeds; i++)
        assert_true(speeds[i] > 0 && isfinite(speeds[i]));
    assert_true(machine.threads[1].wide == 0 && machine.memory.bytes > 1e8);
}

static void another_setting_is_measured_again(void **state) {
    (void)state;
    struct machine machine;
    struct error error;
    struct machine_request request = request_of();
    request.never_measures = true;
    request.measure.thread_count = 3;
    assert_int_equal(open_machine(&machine, &request, &error), STATUS_UNSUPPORTED);
    assert_non_null(strstr(error.message, "2 threads"));
    request = request_of();
    request.never_measures = true;
    request.measure.mask = 0;
    assert_int_equal(open_machine(&machine, &request, &error), STATUS_UNSUPPORTED);
}

/* One figure is looked at whenever a plan asks: numbers of a busy minute go, those that a busy one does not reach stay.
 */
static void numbers_that_are_off_are_measured_again(void **state) {
    (void)state;
    struct machine machine;
    struct error error;
    struct machine_request request = request_of();
    parts_max = 1000;
    request.measure.seconds = 1e-9;
    set_memory(1);
    request.never_measures = true;
    assert_ok(open_machine(&machine, &request, &error), error);
    assert_true(parts == 0 && lines[0] == '\0');
    request.never_measures = false;
    assert_ok(open_machine(&machine, &request, &error), error);
    assert_non_null(strstr(lines, "measuring this machine again: memory is read "));
    assert_true(machine.memory.all > 1e6 && machine.selections[MEANSTD].rows.one == 0);
    set_memory(1e18); /* whether others compute is not the test's to say */
    assert_ok(open_machine(&machine, &request, &error), error);
    const bool is_busy = strstr(lines, "others compute, and memory is read ") != NULL;
    if (!is_busy && strstr(lines, "measuring this machine again") == NULL) fail_msg("%s", lines);
    assert_true((machine.memory.all == 1e18) == is_busy);
    request.measure.seconds = 1e6; /* as it was, for those that follow */
    request.measures = true;
    request.measure.use.disk = true;
    assert_ok(open_machine(&machine, &request, &error), error);
    set_memory(0);
}

/* Ctrl-C: what was kept stays. */
static void an_interrupted_measurement_changes_nothing(void **state) {
    (void)state;
    struct machine machine;
    struct error error;
    struct machine_request request = request_of();
    struct stat before, after;
    assert_int_equal(stat(path, &before), 0);
    request.measures = true;
    parts_max = 4;
    assert_int_equal(open_machine(&machine, &request, &error), STATUS_INTERRUPTED);
    assert_int_equal(stat(path, &after), 0);
    assert_true(before.st_ino == after.st_ino && before.st_mtim.tv_nsec == after.st_mtim.tv_nsec);
    char command[MACHINE_PATH_BYTES + 64]; /* and nothing else lies there */
    snprintf(command, sizeof command, "test \"$(ls -A %s/loam)\" = machine.json", folder);
    assert_int_equal(system(command), 0);
}

/* The disk of a folder, at once: for this plan alone, also with a file that was given. */
static void a_disk_is_measured_for_one_plan(void **state) {
    (void)state;
    struct machine kept, own, given;
    struct error error;
    struct machine_request request = request_of();
    struct stat before, after;
    char disk[MACHINE_PATH_BYTES], copy[MACHINE_PATH_BYTES], own_path[MACHINE_PATH_BYTES];
    parts_max = 1000;
    request.never_measures = true;
    assert_int_equal(stat(path, &before), 0);
    assert_ok(open_machine(&kept, &request, &error), error);
    kept.disk.read[0][0] = kept.disk.write = 1; /* not what a disk does */
    kept.tier.scan_rate = kept.tier.request_seconds = 1;
    kept.tier.memory_seconds = 1e-9;
    snprintf(kept.processor, sizeof kept.processor, "another");
    memcpy(own_path, path, sizeof path);
    snprintf(copy, sizeof copy, "%s/given.json", folder);
    assert_ok(machine_save(&kept, copy, &error), error);
    snprintf(disk, sizeof disk, "%s/disk", folder);
    request.disk = disk;
    assert_ok(open_machine(&own, &request, &error), error);
    assert_int_equal(parts, 2);
    /* All else is at one pace, that of now. */
    const double pace = own.attend_block / kept.attend_block;
    assert_true(pace > 0 && isfinite(pace) && own.tier.memory_seconds > kept.tier.memory_seconds);
    assert_true(fabs(kept.layer_seconds / own.layer_seconds / pace - 1) < 1e-9 &&
                fabs(own.matrices[TENSOR_Q8_0].wide / kept.matrices[TENSOR_Q8_0].wide / pace - 1) < 1e-9);
    assert_int_equal(stat(path, &after), 0);
    assert_true(before.st_ino == after.st_ino && before.st_mtim.tv_nsec == after.st_mtim.tv_nsec);
    request.given = copy;
    assert_ok(open_machine(&given, &request, &error), error);
    assert_true(given.disk.read[0][0] > 1e3 && given.disk.write > 1e3);
    assert_true(given.tier.scan_rate > 1e3 && given.tier.request_seconds < 1);
    assert_true(fabs(given.attend_block / kept.attend_block - 1) <
                1e-3); /* another machine has its own pace */
    for (size_t i = 0; i < MACHINE_DISK_SIZES; i++)
        for (size_t j = 0; j < MACHINE_DISK_DEPTHS; j++) assert_true(isfinite(given.disk.read[i][j]));
    assert_int_equal(access(disk, F_OK), -1); /* it was made for this */
    parts_max = 0;
    assert_int_equal(open_machine(&given, &request, &error), STATUS_INTERRUPTED);
    snprintf(disk, sizeof disk, "%s/given.json/disk", folder);
    parts_max = 1000;
    assert_int_equal(open_machine(&given, &request, &error), STATUS_IO);
    assert_non_null(strstr(error.message, disk));
    assert_int_equal(unlink(copy), 0);
    memcpy(path, own_path, sizeof path);
}

static void a_damaged_file_is_measured_again(void **state) {
    (void)state;
    struct machine machine;
    struct error error;
    struct machine_request request = request_of();
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("{\"loam_machine\": 0}\n", file);
    fclose(file);
    request.never_measures = true;
    assert_int_equal(open_machine(&machine, &request, &error), STATUS_UNSUPPORTED);
    assert_non_null(strstr(error.message, "found 0, expected 4"));
    assert_int_equal(machine_file_read_gap(), 0);
    request.never_measures = false;
    char given[MACHINE_PATH_BYTES]; /* a file that was given is not replaced */
    snprintf(given, sizeof given, "%s", path);
    request.given = given;
    assert_int_equal(open_machine(&machine, &request, &error), STATUS_USAGE);
    assert_int_equal(parts, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_there_is_no_time_for_comes_later),
        cmocka_unit_test(is_measured_once),
        cmocka_unit_test(fewer_threads_are_known),
        cmocka_unit_test(another_setting_is_measured_again),
        cmocka_unit_test(numbers_that_are_off_are_measured_again),
        cmocka_unit_test(an_interrupted_measurement_changes_nothing),
        cmocka_unit_test(a_disk_is_measured_for_one_plan),
        cmocka_unit_test(a_damaged_file_is_measured_again),
    };
    char command[64];
    if (mkdtemp(folder) == NULL || setenv("XDG_CACHE_HOME", folder, 1) != 0) return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    snprintf(command, sizeof command, "rm -r %s", folder);
    return failed + system(command);
}
