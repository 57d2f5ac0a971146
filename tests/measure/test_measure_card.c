/* A card's numbers, over the fake driver (docs/fake_driver.md), which has no speed: that the card was measured is
 * counted. */
#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/cuda/card.h"
#include "device/cuda/cuda_device.h"
#include "measure/auto.h"
#include "model/tiny_model.h"

static char folder[] = "/tmp/loam-card-XXXXXX", path[MACHINE_PATH_BYTES], note[400], part_names[400];

enum { MEANSTD, HATA }; /* loam's first two */

static uint64_t link_bytes; /* copied from that part to the next */

static bool count_part(void *context, const char *part, bool is_line) {
    const size_t used = strlen(part_names);
    if (!is_line && (strcmp(part, "link") == 0 || strcmp(part_names, "memory link ") == 0))
        link_bytes = device_counts(context).copied_bytes - link_bytes;
    if (!is_line) snprintf(part_names + used, sizeof part_names - used, "%s ", part);
    return false;
}

static struct device *card_open(const char *settings, uint32_t index) {
    struct device *device;
    struct error error;
    const struct cuda_device_options options = {
        .driver_file = card_driver(FAKE_LIBRARY), .index = index, .thread_count = 1};
    assert_int_equal(setenv("FAKE_CUDA", settings, 1), 0);
    assert_ok(device_cuda_create(&device, &options, &error), error);
    return device;
}

/* Threads and single tokens are not a card's to choose. */
static struct machine_request request_of(struct device *device) {
    part_names[0] = '\0';
    return (struct machine_request){.measure = {.device = device,
                                                .thread_count = 3,
                                                .use = {.selections = 1U << MEANSTD | 1U << HATA, .threads = true},
                                                .seconds = 1e6,
                                                .is_short = true,
                                                .progress = count_part,
                                                .context = device}};
}

/* By its own kernels and copies, into a file of its own. */
static void a_card_is_measured_once(void **state) {
    (void)state;
    struct machine machine, again;
    struct error error;
    struct device *card = card_open("seed=1,devices=2", 0);
    struct machine_request request = request_of(card);
    assert_ok(machine_open(&machine, &request, path, note, &error), error);
    assert_string_equal(part_names, "memory link Q8_0 attention attention meanstd meanstd ");
    const struct device_counts counts = device_counts(card);
    /* 13 products, 3 prompts and 10 steps of a layer at least; a MiB there and back, and the
     * products' rows */
    assert_true(counts.launches > 13 + 13 * 7 && counts.products > 0);
    assert_int_equal(link_bytes, (2 + 4) << 20);
    assert_string_equal(note, "measuring Fake GPU 0, which takes some 10 s, once");
    assert_string_equal(machine.processor, "Fake GPU 0");
    assert_true(machine.thread_count == 3 && machine.memory.all == 0 && machine.memory.copy > 0);
    assert_true(machine.device_bytes == (double)device_memory_free(card));
    const double rates[] = {machine.device_link, machine.matrices[TENSOR_Q8_0].wide, machine.attend_f16.many,
                            machine.attend_block, machine.selections[MEANSTD].rows.many};
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) assert_true(rates[i] > 0 && isfinite(rates[i]));
    assert_true(machine.selections[HATA].rows.many == 0);
    assert_non_null(strstr(path, "/machine-Fake-GPU-0.json"));
    request = request_of(card);
    assert_ok(machine_open(&again, &request, path, note, &error), error);
    assert_string_equal(part_names, "");
    assert_int_equal(device_counts(card).launches, counts.launches);
    assert_true(fabs(again.device_link / machine.device_link - 1) < 1e-3 && again.device_bytes > 1e6);
    device_destroy(card);
}

/* ... by which a model on it is planned for: --preset auto has no numbers but those. */
static void a_model_on_it_goes_by_them(void **state) {
    (void)state;
    struct error error;
    struct model *model;
    struct auto_choice choice;
    struct device *card = card_open("seed=1,devices=2,memory=6M", 0);
    struct tiny_model tiny = tiny_model_default("llama");
    tiny.layer_count = 32;
    tiny_model_load_on(&tiny, "card", card, &model); /* it takes 4 MB of the 6 */
    const struct auto_request request = {.machine = request_of(card), .depth = 256, .sequences = 1};
    struct plan plan = {.sequence_capacity = 1};
    assert_ok(plan_set_axes(&plan, "auto", NULL, NULL, &error), error);
    assert_ok(auto_choose(&plan, model, &request, &choice, &error), error);
    assert_string_equal(plan.preset, "full");
    if (strstr(choice.note, "--preset auto: full; ") == NULL || strstr(choice.note, "are predicted") == NULL)
        fail_msg("%s", choice.note);
    plan = (struct plan){.sequence_capacity = 1, .has_budget = true, .budget_bytes = 1 << 20};
    plan.device_budget_bytes = plan.budget_bytes - 1; /* the rest is too little for what it does not hold */
    const struct auto_request deep = {.machine = request_of(card), .depth = 1 << 16, .sequences = 1};
    assert_ok(plan_set_axes(&plan, "auto", NULL, NULL, &error), error);
    assert_int_equal(auto_choose(&plan, model, &deep, &choice, &error), STATUS_MEMORY);
    model_destroy(model);
    device_destroy(card);
}

/* They are nobody else's. */
static void others_have_their_own_numbers(void **state) {
    (void)state;
    struct machine machine;
    struct error error;
    struct device *other = card_open("seed=1,devices=2", 1);
    struct machine_request request = request_of(other);
    request.never_measures = true;
    assert_int_equal(machine_open(&machine, &request, path, note, &error), STATUS_UNSUPPORTED);
    assert_non_null(strstr(path, "/machine-Fake-GPU-1.json"));
    request.measure.device = NULL;
    assert_int_equal(machine_open(&machine, &request, path, note, &error), STATUS_UNSUPPORTED);
    assert_non_null(strstr(path, "/machine.json"));
    device_destroy(other);
}

/* One line, nothing on the card (device_destroy), and no file. */
static void a_card_that_breaks_has_no_numbers(void **state) {
    (void)state;
    static const char *const faults[] = {"devices=2,fail=kernel:3:700", "devices=2,fail=kernel:25:719",
                                         "devices=2,fail=cuMemcpyAsync:2:999", "devices=2,memory=2M"};
    struct machine machine;
    char command[200];
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        struct error error = {0};
        struct device *card = card_open(faults[i], 1);
        const struct machine_request request = request_of(card);
        const enum status status = machine_open(&machine, &request, path, note, &error);
        if (status == STATUS_OK || error.message[0] == '\0' || strchr(error.message, '\n') != NULL)
            fail_msg("%s: %d, %s", faults[i], (int)status, error.message);
        assert_int_equal(device_state(card, NULL) != STATUS_OK, strstr(faults[i], "fail") != NULL);
        device_destroy(card);
    }
    snprintf(command, sizeof command, "test \"$(ls -A %s/loam)\" = machine-Fake-GPU-0.json", folder);
    assert_int_equal(system(command), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_card_is_measured_once),
                                       cmocka_unit_test(a_model_on_it_goes_by_them),
                                       cmocka_unit_test(others_have_their_own_numbers),
                                       cmocka_unit_test(a_card_that_breaks_has_no_numbers)};
    char command[64];
    if (mkdtemp(folder) == NULL || setenv("XDG_CACHE_HOME", folder, 1) != 0) return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    snprintf(command, sizeof command, "rm -r %s", folder);
    return failed + system(command);
}
