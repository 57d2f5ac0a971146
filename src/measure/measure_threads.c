/* What fewer threads reach of the speed of all, by the same parts with each number of them. */
#include <string.h>

#include "measure/measure_internal.h"

static const double SELECTIONS_SHARE = 0.4; /* of the time, which numbers of threads leave to what may be chosen */

enum { DEPTH = 16384, KEPT = 2048 }; /* of the selection whose time is compared */

static const struct machine_selection *find_hata(const struct machine *machine) {
    size_t i = 0;
    while (strcmp(machine->selections[i].name, "hata") != 0) i++;
    return &machine->selections[i];
}

size_t measure_threads_selection(void) {
    struct machine names;
    machine_init(&names);
    return (size_t)(find_hata(&names) - names.selections);
}

enum status measure_each_count(struct measurement *measurement, measure_count_part *part, void *context,
                               struct error *error) {
    struct machine *machine = measurement->machine;
    enum status status = STATUS_OK;
    if (measurement->threads == NULL) return STATUS_OK;
    const double kept_ns = measurement->options->seconds * 1e9 * SELECTIONS_SHARE;
    for (size_t i = MACHINE_THREAD_COUNTS + 1; status == STATUS_OK && i-- > 0;) {
        const bool is_all = i == MACHINE_THREAD_COUNTS;
        const size_t count = is_all ? machine->thread_count : (size_t)1 << i;
        if (is_all ? !measurement->adds : count >= machine->thread_count) continue;
        if (clock_ns() > measurement->ends - (uint64_t)kept_ns) break;
        struct thread_numbers *numbers = &measurement->threads[i];
        measurement->machine = &numbers->machine;
        status = measure_part(measurement, "threads", error);
        if (status == STATUS_OK) status = device_set_threads(measurement->device, count, error);
        if (status == STATUS_OK) status = part(context, numbers, error);
    }
    measurement->machine = machine;
    return status == STATUS_OK ? device_set_threads(measurement->device, machine->thread_count, error) : status;
}

/* Seconds of hata's selection, for a layer and KV head. */
static double select_seconds(const struct machine *machine) {
    const struct machine_selection *hata = find_hata(machine);
    return hata->seconds + DEPTH * hata->score.one + KEPT * hata->rows.one;
}

static struct machine_threads compare(const struct machine *fewer, const struct machine *all) {
    const struct machine_matrix *a = &fewer->matrices[measure_threads_type], *b = &all->matrices[measure_threads_type];
    return (struct machine_threads){.narrow = a->narrow / b->narrow,
                                    .wide = a->wide / b->wide,
                                    .block = a->block / b->block,
                                    .layer = all->layer_seconds / fewer->layer_seconds,
                                    .token = all->layer_token_seconds / fewer->layer_token_seconds,
                                    .attend = fewer->attend_f16.one / all->attend_f16.one,
                                    .attend_block = fewer->attend_block / all->attend_block,
                                    .select = select_seconds(all) / select_seconds(fewer)};
}

static bool is_whole(const struct machine *machine) {
    return machine->matrices[measure_threads_type].block > 0 && machine->attend_f16.one > 0 &&
           find_hata(machine)->rows.one > 0;
}

void measure_threads(struct measurement *measurement) {
    struct machine *machine = measurement->machine;
    if (measurement->threads == NULL) return;
    const struct machine *all = measurement->adds ? &measurement->threads[MACHINE_THREAD_COUNTS].machine : machine;
    for (size_t i = 0; i < MACHINE_THREAD_COUNTS; i++)
        if (is_whole(all) && is_whole(&measurement->threads[i].machine))
            machine->threads[i] = compare(&measurement->threads[i].machine, all);
}
