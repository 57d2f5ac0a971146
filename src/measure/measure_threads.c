/* What fewer threads reach of the speed of all, by the same parts with each number of them. */
#include <string.h>

#include "measure/measure_internal.h"

enum { DEPTH = 16384, KEPT = 2048 }; /* of the selection whose time is compared */

static const struct machine_selection *find_hata(const struct machine *machine) {
    size_t i = 0;
    while (strcmp(machine->selections[i].name, "hata") != 0) i++;
    return &machine->selections[i];
}

struct machine_use measure_threads_use(void) {
    struct machine names;
    machine_init(&names);
    return (struct machine_use){.types = UINT64_C(1) << TENSOR_Q8_0,
                                .selections = UINT32_C(1) << (find_hata(&names) - names.selections)};
}

/* The parts of a machine with so many threads. */
static enum status with_threads(const struct measurement *all, size_t thread_count, struct machine *machine,
                                struct error *error) {
    struct measurement brief = *all;
    const struct device_options device = {.thread_count = thread_count, .mask = all->options->mask};
    machine_init(machine);
    brief.machine = machine;
    brief.steps = STEPS_BRIEF;
    brief.use = measure_threads_use();
    TRY(device_cpu_create(&brief.device, &device, error));
    enum status status = measure_matrices(&brief, error);
    if (status == STATUS_OK) status = measure_steps(&brief, error);
    device_destroy(brief.device);
    return status;
}

/* Seconds of hata's selection, for a layer and KV head. */
static double select_seconds(const struct machine *machine) {
    const struct machine_selection *hata = find_hata(machine);
    return hata->seconds + DEPTH * hata->score.one + KEPT * hata->rows.one;
}

static struct machine_threads compare(const struct machine *fewer, const struct machine *all) {
    const struct machine_matrix *a = &fewer->matrices[TENSOR_Q8_0], *b = &all->matrices[TENSOR_Q8_0];
    return (struct machine_threads){.narrow = a->narrow / b->narrow,
                                    .wide = a->wide / b->wide,
                                    .block = a->block / b->block,
                                    .layer = all->layer_seconds / fewer->layer_seconds,
                                    .token = all->layer_token_seconds / fewer->layer_token_seconds,
                                    .attend = fewer->attend_f16.one / all->attend_f16.one,
                                    .attend_block = fewer->attend_block / all->attend_block,
                                    .select = select_seconds(all) / select_seconds(fewer)};
}

enum status measure_threads(struct measurement *measurement, struct error *error) {
    struct machine *machine = measurement->machine, fewer;
    if (machine->thread_count < 2) return STATUS_OK;
    TRY(measure_part(measurement, "threads", error));
    for (size_t i = 0; i < MACHINE_THREAD_COUNTS && (size_t)1 << i < machine->thread_count; i++) {
        TRY(with_threads(measurement, (size_t)1 << i, &fewer, error));
        machine->threads[i] = compare(&fewer, machine);
    }
    return STATUS_OK;
}
