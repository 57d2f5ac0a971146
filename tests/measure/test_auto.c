/* --preset auto: exact unless a loss is allowed, by the numbers of a machine, and full where there are none. */
#include "measure/auto.h"

#include "model/calibration.h"
#include "model/model_size.h"
#include "model/tiny_model.h"
#include "plan/choose.h"
#include "plan/sample_machine.h"
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char machine_path[64];
static struct device *device;
static struct model *model;

static double one(void *context) {
    (void)context;
    return 1;
}

static int setup(void **state) {
    (void)state;
    struct error error;
    struct machine machine = sample_machine(one, NULL);
    struct tiny_model tiny = tiny_model_default("llama");
    tiny.layer_count = 8;
    snprintf(machine_path, sizeof machine_path, "test_auto-%ld.json", (long)getpid());
    assert_ok(machine_save(&machine, machine_path, &error), error);
    tiny_model_load(&tiny, "auto", &(struct device_options){.thread_count = 1}, &device, &model);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    unlink(machine_path);
    model_destroy(model);
    device_destroy(device);
    return 0;
}

static struct plan auto_plan(const char *set, bool on_disk) {
    struct error error;
    struct plan plan = {.sequence_capacity = 1};
    if (on_disk) assert_ok(plan_set_disk(&plan, "folder", 6, 0, &error), error);
    assert_ok(plan_set_axes(&plan, "auto", set, NULL, &error), error);
    assert_true(plan.is_auto);
    return plan;
}

static struct auto_request request_of(const char *path) {
    return (struct auto_request){.machine = {.given = path}, .depth = 1 << 17, .sequences = 1};
}

static void nothing_runs_before_the_choice(void **state) {
    (void)state;
    struct error error = {0};
    struct plan plan = auto_plan(NULL, false);
    assert_int_equal(plan_check(&plan, &model->config, &error), STATUS_USAGE);
    assert_non_null(strstr(error.message, "loam plan"));
    assert_int_equal(plan_set_axes(&plan, "auto", "dense=0", NULL, &error), STATUS_USAGE);
    assert_int_equal(plan_set_axes(&plan, "auto", "loss=0.1,dense=0", NULL, &error), STATUS_USAGE);
    assert_int_equal(plan_set_axes(&plan, "auto", NULL, "10%", &error), STATUS_USAGE);
}

/* ... for which no machine is measured, and no file is read. */
static void without_a_loss_it_is_exact(void **state) {
    (void)state;
    struct auto_choice choice;
    struct error error;
    for (int round = 0; round < 2; round++) {
        struct plan plan = auto_plan(NULL, round == 1);
        struct auto_request request = request_of("no such file");
        request.is_default = round == 1;
        plan.select.receipt = true;
        assert_ok(auto_choose(&plan, model, &request, &choice, &error), error);
        assert_string_equal(plan.preset, "full");
        assert_false(plan.is_auto);
        assert_true(plan.select.receipt);
        assert_true(choice.note[0] == '\0');
        plan_deinit(&plan);
    }
    struct plan plan = auto_plan(NULL, true);
    struct auto_request request = request_of(machine_path);
    plan.has_budget = true;
    plan.budget_bytes = 32 << 20;
    assert_ok(auto_choose(&plan, model, &request, &choice, &error), error);
    assert_true(strcmp(plan.preset, "full") == 0 || strcmp(plan.preset, "kvpr") == 0);
    assert_non_null(strstr(choice.note, plan.preset));
    plan_deinit(&plan);
}

static void a_loss_is_used(void **state) {
    (void)state;
    struct auto_choice choice, again_choice;
    struct error error;
    struct plan plan = auto_plan("loss=0.05", false), again = auto_plan("loss=0.05", false);
    const struct auto_request request = request_of(machine_path);
    assert_ok(auto_choose(&plan, model, &request, &choice, &error), error);
    assert_ok(auto_choose(&again, model, &request, &again_choice, &error), error);
    assert_string_equal(choice.note, again_choice.note);
    assert_true(plan.select.method != &select_all && plan.select.loss == 0.05);
    assert_true(plan.select.exact_below > 0 && plan.select.exact_below < 1 << 17);
    assert_non_null(strstr(choice.note, plan.preset));
    assert_non_null(strstr(choice.note, "exact below"));
    plan.context_size = 1 << 17;
    assert_ok(plan_check(&plan, &model->config, &error), error);
    struct auto_request shallow = request;
    shallow.depth = 64; /* where everything is quickest */
    plan = auto_plan("loss=0.05", false);
    assert_ok(auto_choose(&plan, model, &shallow, &choice, &error), error);
    assert_string_equal(plan.preset, "full");
}

static void without_numbers_it_is_full(void **state) {
    (void)state;
    struct auto_choice choice;
    struct error error;
    struct plan plan = auto_plan("loss=0.05", false);
    const struct auto_request request = request_of("no-such-file.json");
    assert_ok(auto_choose(&plan, model, &request, &choice, &error), error);
    assert_string_equal(plan.preset, "full");
    assert_non_null(strstr(choice.note, "no-such-file.json"));
    assert_true(plan.select.loss == 0 && !plan.is_auto);
}

static char *losses_path(void) {
    char *path;
    struct error error;
    assert_ok(model_companion_path(model->gguf.path, ".kld.json", &path, &error), error);
    return path;
}

static void write_losses(const char *fingerprint, double leoam) {
    char *path = losses_path();
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fprintf(file,
            "{\"evaluation\": \"kl\", \"fingerprint\": \"%s\", \"results\": "
            "[{\"preset\": \"leoam\", \"length\": 131072, \"kld\": %g, \"kld_error\": 0}]}",
            fingerprint, leoam);
    assert_int_equal(fclose(file), 0);
    free(path);
}

static struct plan chosen_with(const char *set, struct auto_choice *choice) {
    struct error error;
    struct plan plan = auto_plan(set, false);
    const struct auto_request request = request_of(machine_path);
    assert_ok(auto_choose(&plan, model, &request, choice, &error), error);
    return plan;
}

/* Plans may be chosen that lose no more than that on this model, and none where nothing is known. */
static void a_kld_is_used(void **state) {
    (void)state;
    struct auto_choice choice;
    char fingerprint[CALIBRATION_FINGERPRINT_BYTES], *path = losses_path();
    calibration_fingerprint(&model->gguf, &model->config, fingerprint);
    write_losses(fingerprint, 0.019);
    struct plan plan = chosen_with("kld=0.02", &choice);
    assert_string_equal(plan.preset, "leoam");
    assert_true(plan.select.loss == 0 && plan.select.exact_below > 0);
    write_losses(fingerprint, 0.021);
    assert_string_equal(chosen_with("kld=0.02", &choice).preset, "full");
    write_losses("of another model", 0.019);
    assert_string_equal(chosen_with("kld=0.02", &choice).preset, "full");
    assert_non_null(strstr(choice.note, "fingerprint: found of another model"));
    unlink(path);
    assert_string_equal(chosen_with("kld=0.02", &choice).preset, "full");
    assert_non_null(strstr(choice.note, path));
    free(path);
}

static void what_a_kld_may_be(void **state) {
    (void)state;
    static const char *const bad[] = {
        "kld=0", "kld=-1", "kld=x", "kld=", "kld=nan", "kld=1000", "kld=0.1,dense=0"};
    struct plan plan = {.sequence_capacity = 1};
    struct error error;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(plan_set_axes(&plan, "auto", bad[i], NULL, &error), STATUS_USAGE);
    assert_int_equal(plan_set_axes(&plan, "hata", "kld=0.1", NULL, &error), STATUS_USAGE);
    assert_non_null(strstr(error.message, "--kld: found --preset hata, expected auto"));
    assert_ok(plan_set_axes(&plan, "auto", "loss=0.05,kld=0.1", NULL, &error), error);
    assert_true(plan.kld_max == 0.1 && plan.select.loss == 0.05);
}

/* Threads, sequences and weights come with the choice; what the user gave stays. */
static void what_a_plan_runs_with(void **state) {
    (void)state;
    struct auto_choice choice;
    struct error error;
    struct machine machine = sample_machine(one, NULL);
    char path[80];
    snprintf(path, sizeof path, "%s-threads", machine_path);
    machine.threads[0] = sample_machine_threads(2, 2); /* one thread is the quickest */
    assert_ok(machine_save(&machine, path, &error), error);
    struct plan plan = auto_plan(NULL, false);
    struct auto_request request = request_of(path);
    request.depth = 64;
    request.sequences = 0;
    assert_ok(auto_choose(&plan, model, &request, &choice, &error), error);
    assert_string_equal(plan.preset, "full");
    assert_int_equal(choice.thread_count, 1);
    assert_true(choice.sequences > 1 && choice.weights_host_bytes == 0);
    assert_non_null(strstr(choice.note, "1 of 4 threads"));
    assert_non_null(strstr(choice.note, "sequences together"));
    plan = auto_plan(NULL, false);
    request.thread_count = 2;
    request.sequences = 1;
    assert_ok(auto_choose(&plan, model, &request, &choice, &error), error);
    assert_true(choice.thread_count == 0 && choice.sequences == 0);
    plan = auto_plan(NULL, false);
    request.thread_count = 3; /* of which the file knows nothing */
    assert_ok(auto_choose(&plan, model, &request, &choice, &error), error);
    assert_non_null(strstr(choice.note, "no numbers of 3 threads"));
    unlink(path);
}

/* Of its header: the same model a thousand times as large, or as small again. */
static void scale_header(uint64_t numerator, uint64_t denominator) {
    struct gguf_tensor *tensors = (struct gguf_tensor *)(uintptr_t)model->gguf.tensors;
    for (uint64_t i = 0; i < model->gguf.tensor_count; i++)
        tensors[i].size_bytes = tensors[i].size_bytes * numerator / denominator;
}

/* By sizes alone, nothing measured: of weights that do not fit the memory as many layers stay as fit beside the KV. */
static void weights_larger_than_memory(void **state) {
    (void)state;
    struct auto_choice choice;
    struct error error;
    struct auto_request request = request_of("no such file");
    request.is_default = true;
    request.depth = 64;
    scale_header(1000, 1);
    const struct weight_sizes sizes = weight_sizes_of(&model->gguf, &model->config);
    struct plan plan = auto_plan(NULL, false);
    request.memory_bytes = sizes.all;
    assert_ok(auto_choose(&plan, model, &request, &choice, &error), error);
    assert_true(choice.weights_host_bytes == 0 && choice.note[0] == '\0'); /* they fit, or nearly */
    plan = auto_plan(NULL, false);
    request.memory_bytes = sizes.all - 1;
    assert_ok(auto_choose(&plan, model, &request, &choice, &error), error);
    assert_string_equal(plan.preset, "full");
    assert_true(choice.weights_host_bytes > 0 && choice.weights_host_bytes < request.memory_bytes);
    assert_non_null(strstr(choice.note, "--weights-host"));
    const uint64_t beside_little = choice.weights_host_bytes;
    plan = auto_plan(NULL, true); /* with a budget for KV, which comes first */
    plan.has_budget = true;
    plan.budget_bytes = (sizes.all - sizes.top - 2 * sizes.slot) / 2;
    assert_ok(auto_choose(&plan, model, &request, &choice, &error), error);
    assert_true(choice.weights_host_bytes > 0 &&
                choice.weights_host_bytes + plan.budget_bytes <= request.memory_bytes);
    assert_true(choice.weights_host_bytes < beside_little);
    plan_deinit(&plan);
    plan = auto_plan(NULL, false); /* what the user says stays; so do weights that nobody can move */
    request.weights_host_bytes = sizes.all / 2;
    assert_ok(auto_choose(&plan, model, &request, &choice, &error), error);
    assert_true(choice.weights_host_bytes == 0);
    plan = auto_plan(NULL, false);
    request.weights_host_bytes = 0;
    request.keeps_weights = true;
    assert_ok(auto_choose(&plan, model, &request, &choice, &error), error);
    assert_true(choice.weights_host_bytes == 0);
    scale_header(1, 1000);
}

static void what_is_not_auto_stays(void **state) {
    (void)state;
    struct auto_choice choice;
    struct error error;
    struct plan plan = {.sequence_capacity = 1};
    const struct auto_request request = request_of("no-such-file.json");
    assert_ok(plan_set_axes(&plan, "hata", "dense=1", "77", &error), error);
    assert_ok(auto_choose(&plan, model, &request, &choice, &error), error);
    assert_true(choice.note[0] == '\0' && plan.select.dense_layers == 1 && plan.select.keep.tokens == 77);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_runs_before_the_choice),
        cmocka_unit_test(without_a_loss_it_is_exact),
        cmocka_unit_test(a_loss_is_used),
        cmocka_unit_test(without_numbers_it_is_full),
        cmocka_unit_test(a_kld_is_used),
        cmocka_unit_test(what_a_kld_may_be),
        cmocka_unit_test(what_a_plan_runs_with),
        cmocka_unit_test(weights_larger_than_memory),
        cmocka_unit_test(what_is_not_auto_stays),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
