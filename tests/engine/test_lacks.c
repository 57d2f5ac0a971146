/* A device that lacks memory says so once, to whoever waits for its stream next, and has dropped what was behind it
 * (docs/decisions/device.md, 0084).  So whichever wait of a prompt or a step is told, that call fails: nothing that was
 * not computed is answered with.  Another sequence goes on, with the same bits. */
#include "testing.h"

#include <stdlib.h>
#include <string.h>

#include "../platform/scratch.h"
#include "engine/decode_rig.h"
#include "engine/engine.h"

enum { PROMPT = 230, OTHER = 200, STEPS = 2, CONTEXT = 256, WAITS_MAX = 4000 };

/* The rig's device, of whose waits the n-th is told of a lack. */
static struct {
    struct device_operations table;
    const struct device_operations *own;
    size_t left; /* waits until then; 0: none is */
    size_t told;
} lacking;

static enum status lacking_synchronize(struct stream *stream, struct error *error) {
    TRY(lacking.own->stream_synchronize(stream, error));
    if (lacking.left == 0 || --lacking.left > 0) return STATUS_OK;
    lacking.told++;
    return error_set(error, STATUS_MEMORY, "no memory, as this test has it");
}

static void lack_begin(struct device *device) {
    memset(&lacking, 0, sizeof lacking);
    lacking.own = device->operations;
    lacking.table = *device->operations;
    lacking.table.stream_synchronize = lacking_synchronize;
    device->operations = &lacking.table;
}

static void lack_end(struct device *device) { device->operations = lacking.own; }

/* The status of the call that ended it, or of what it saved: where what is written to the disk lacks memory, the answer
 * goes on without that. */
static enum status live(struct decode_rig *rig, struct engine *engine, bool is_saved, size_t n) {
    struct sequence *sequence;
    struct error error = {.status = STATUS_OK};
    const struct prefill_request request = {.tokens = rig->tokens, .token_count = PROMPT};
    const float *logits;
    assert_ok(sequence_create(&sequence, engine, &rig->error), rig->error);
    lacking.left = n;
    enum status status = engine_prefill(engine, sequence, &request, &logits, &error);
    for (size_t i = 0; i < STEPS && status == STATUS_OK; i++)
        status = engine_step(engine, &sequence, &rig->tokens[PROMPT + i], 1, &logits, &error);
    lacking.left = 0;
    if (status == STATUS_OK && is_saved) status = sequence_flush(sequence, &error);
    sequence_destroy(sequence);
    return status;
}

struct setting {
    const char *preset, *set, *keep;
    bool on_disk;
};

/* Two sequences, the second of which lacks memory at its n-th wait.  The steps of the first one behind that; whether
 * there is such a wait. */
static bool lack_at(struct decode_rig *rig, const struct setting *setting, size_t n, float **steps) {
    struct scratch scratch;
    struct engine *engine;
    if (setting->on_disk) scratch_create(&scratch, SCRATCH_MEMORY);
    struct plan plan = decode_rig_plan(rig, setting->preset, setting->set, setting->keep,
                                       setting->on_disk ? scratch.path : NULL);
    plan.context_size = CONTEXT;
    plan.sequence_capacity = 2;
    plan.batch_size = 96;
    if (setting->on_disk)
        assert_ok(plan_host_bytes_min(&plan, &rig->model->config, &plan.host_bytes, &rig->error), rig->error);
    lack_begin(rig->device);
    assert_ok(engine_create(&engine, rig->model, &plan, NULL, &rig->error), rig->error);
    struct sequence *other = decode_rig_prompt(rig, engine, OTHER);
    const enum status status = live(rig, engine, setting->on_disk, n);
    if (status != (lacking.told > 0 ? STATUS_MEMORY : STATUS_OK))
        fail_msg("%s %s%s: wait %zu of %zu that lack memory: %s", setting->preset,
                 setting->set != NULL ? setting->set : "", setting->on_disk ? ", on disk" : "", n, lacking.told,
                 status_name(status));
    *steps = decode_rig_steps(rig, engine, other, STEPS);
    sequence_destroy(other);
    engine_destroy(engine);
    lack_end(rig->device);
    plan_deinit(&plan);
    if (setting->on_disk) scratch_destroy(&scratch);
    return lacking.told > 0;
}

static void each_wait_is_heard(void **state) {
    (void)state;
    static const struct setting settings[] = {
        {"full", NULL, NULL, false},
        {"quest", "mass_bound=1", "160", false},
        {"hata", "code=sign,receipt=1", "160", false},
        {"hata", "loss=0.05", NULL, false},
        {"infinigen", "alpha=0.5", "200", false},
        {"clo", "dense=0,reused=0,eta=0.3,power=0,age=0,receipt=1", "160", false},
        {"full", NULL, NULL, true},
        {"hata", "code=sign,receipt=1", "160", true},
        {"leoam", "rank=bound,group=max,mass_bound=1,receipt=1", "160", false},
        {"quest", "mass_bound=1", "160", true},
        {"clo", "dense=0,reused=0,eta=0.3,power=0", "160", true},
        {"kvpr", NULL, NULL, true},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        struct decode_rig rig;
        float *expected, *found;
        decode_rig_open(&rig, "lacks", "llama", NULL, PROMPT + STEPS, 21);
        const size_t bytes = STEPS * rig.width * sizeof *found;
        assert_false(lack_at(&rig, &settings[i], 0, &expected));
        size_t n = 1;
        for (; n < WAITS_MAX && lack_at(&rig, &settings[i], n, &found); n++) {
            assert_memory_equal(found, expected, bytes);
            free(found);
        }
        assert_memory_equal(found, expected, bytes);
        free(found), free(expected);
        printf("%s, %s: %zu waits\n", settings[i].preset, settings[i].on_disk ? "on disk" : "in RAM", n - 1);
        assert_in_range(n, 2 + STEPS, WAITS_MAX - 1);
        decode_rig_close(&rig);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_wait_is_heard)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
