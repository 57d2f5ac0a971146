#include "plan/machine.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/assert.h"
#include "format/json.h"
#include "plan/presets.h"
#include "platform/file.h"

const uint32_t machine_disk_bytes[MACHINE_DISK_SIZES] = {4096, 16384, 65536, 262144, 1048576};
const uint32_t machine_disk_depths[MACHINE_DISK_DEPTHS] = {1, 8, 64};

void machine_init(struct machine *machine) {
    size_t count = 0;
    *machine = (struct machine){.thread_count = 1, .load = -1};
    for (size_t i = 0; i < preset_count; i++) {
        const struct preset *preset = preset_table[i];
        if (preset->measured == NULL) continue;
        ASSERT(count < MACHINE_SELECTIONS_MAX);
        machine->selections[count++] =
            (struct machine_selection){.name = preset->name, .preset = preset->measured, .set = preset->measured_set};
    }
}

uint32_t machine_use_planned(bool dials) {
    uint32_t selections = 0;
    struct machine machine;
    machine_init(&machine);
    for (size_t i = 0; i < preset_count; i++)
        for (size_t j = 0; j < MACHINE_SELECTIONS_MAX; j++) {
            const char *name = machine.selections[j].name;
            const enum preset_planning planning = preset_table[i]->planning;
            const bool is_used = dials ? planning == PRESET_DIALS : planning != PRESET_IS_NOT_PLANNED;
            if (name != NULL && is_used && strcmp(name, preset_table[i]->name) == 0) selections |= UINT32_C(1) << j;
        }
    return selections;
}

bool machine_knows_disk(const struct machine *machine) { return machine->disk.write > 0; }

struct machine_use machine_lacks(const struct machine *machine, struct machine_use use) {
    for (uint32_t i = 0; i < 64; i++) {
        const struct tensor_type_info *info = tensor_type_find(i);
        if (info == NULL || !info->is_weight || machine->matrices[i].wide > 0) use.types &= ~(UINT64_C(1) << i);
    }
    for (size_t i = 0; i < MACHINE_SELECTIONS_MAX; i++)
        if (machine->selections[i].name == NULL || machine->selections[i].rows.one > 0)
            use.selections &= ~(UINT32_C(1) << i);
    use.q8 &= !(machine->attend_q8.one > 0);
    use.disk &= !(machine_knows_disk(machine) && machine->tier.memory_seconds > 0);
    bool knows_threads = true;
    for (size_t i = 0; i < MACHINE_THREAD_COUNTS && (uint32_t)1 << i < machine->thread_count; i++)
        knows_threads &= machine->threads[i].wide > 0;
    use.threads &= !knows_threads;
    return use;
}

bool machine_use_is_empty(struct machine_use use) {
    return use.types == 0 && use.selections == 0 && !use.q8 && !use.threads && !use.disk;
}

const char *machine_use_text(const struct machine *machine, struct machine_use use, char buffer[MACHINE_USE_BYTES]) {
    size_t used = 0;
    buffer[0] = '\0';
    const char *names[MACHINE_TYPES + MACHINE_SELECTIONS_MAX + 3];
    size_t count = 0;
    for (uint32_t i = 0; i < MACHINE_TYPES; i++)
        if ((use.types >> i & 1) != 0) names[count++] = tensor_type_find(i)->name;
    for (size_t i = 0; i < MACHINE_SELECTIONS_MAX; i++)
        if ((use.selections >> i & 1) != 0) names[count++] = machine->selections[i].name;
    if (use.q8) names[count++] = "K and V in Q8_0";
    if (use.threads) names[count++] = "fewer threads";
    if (use.disk) names[count++] = "the disk";
    for (size_t i = 0; i < count && used < MACHINE_USE_BYTES; i++)
        used += (size_t)snprintf(buffer + used, MACHINE_USE_BYTES - used, "%s%s", i > 0 ? ", " : "", names[i]);
    return buffer;
}

/* ---- what the numbers say ---- */

const char *machine_when(const struct machine *machine, char buffer[MACHINE_WHEN_BYTES]) {
    const time_t when = (time_t)machine->measured;
    struct tm utc;
    char load[32] = "";
    if (machine->load >= 0) snprintf(load, sizeof load, ", beside a load of %.1f", machine->load);
    if (machine->measured <= 0 || gmtime_r(&when, &utc) == NULL ||
        strftime(buffer, MACHINE_WHEN_BYTES - sizeof load, "measured %Y-%m-%d %H:%M UTC", &utc) == 0)
        buffer[0] = load[0] = '\0';
    return strcat(buffer, load);
}

enum machine_check machine_check_memory(const struct machine *machine, double memory_all, double load) {
    static const double off = 1.5;
    const double then = machine->memory.all;
    if (!(then > 0 && memory_all > 0) || (memory_all < then * off && memory_all * off > then)) return MACHINE_HOLDS;
    return memory_all < then && machine_load_is_busy(load) ? MACHINE_IS_BUSY : MACHINE_IS_OFF;
}

static void scale_group(struct machine_by_group *numbers, double factor) {
    numbers->one *= factor;
    numbers->many *= factor;
}

static void take_speeds(struct machine *machine, const struct machine_threads *speed) {
    for (size_t i = 0; i < MACHINE_TYPES; i++) {
        machine->matrices[i].narrow *= speed->narrow;
        machine->matrices[i].wide *= speed->wide;
        machine->matrices[i].block *= speed->block;
    }
    machine->step_seconds /= speed->layer;
    machine->layer_seconds /= speed->layer;
    machine->layer_token_seconds /= speed->token;
    scale_group(&machine->attend_f16, speed->attend);
    scale_group(&machine->attend_q8, speed->attend);
    machine->attend_block *= speed->attend_block;
    for (size_t i = 0; i < MACHINE_SELECTIONS_MAX; i++) {
        machine->selections[i].seconds /= speed->select;
        scale_group(&machine->selections[i].score, 1 / speed->select);
        scale_group(&machine->selections[i].rows, 1 / speed->select);
    }
}

bool machine_with_threads(struct machine *fewer, const struct machine *machine, size_t thread_count) {
    *fewer = *machine;
    if (thread_count == machine->thread_count) return true;
    for (size_t i = 0; i < MACHINE_THREAD_COUNTS; i++) {
        if ((size_t)1 << i != thread_count || !(machine->threads[i].wide > 0)) continue;
        fewer->thread_count = (uint32_t)thread_count;
        take_speeds(fewer, &machine->threads[i]);
        return true;
    }
    return false;
}

void machine_set_pace(struct machine *machine, double pace) {
    const struct machine_threads all = {pace, pace, pace, pace, pace, pace, pace, pace};
    take_speeds(machine, &all);
}

const struct machine_selection *machine_find_selection(const struct machine *machine, const char *name) {
    for (size_t i = 0; i < MACHINE_SELECTIONS_MAX; i++) {
        const struct machine_selection *selection = &machine->selections[i];
        if (selection->name != NULL && strcmp(selection->name, name) == 0 && selection->rows.one > 0) return selection;
    }
    return NULL;
}

double machine_by_group_at(struct machine_by_group numbers, double group) {
    const double slope = (numbers.many - numbers.one) / (MACHINE_GROUP - 1);
    return fmax(numbers.one + slope * (group - 1), fmin(numbers.one, numbers.many) / 8);
}

static double bytes_per_element(size_t type) {
    const struct tensor_type_info *info = tensor_type_find((uint32_t)type);
    return info != NULL ? (double)info->block_bytes / info->block_elements : 0;
}

static const struct machine_matrix *matrix_of(const struct machine *machine, enum tensor_type type) {
    const struct machine_matrix *nearest = &machine->matrices[type];
    double distance = INFINITY;
    if (nearest->wide > 0) return nearest;
    for (size_t i = 0; i < MACHINE_TYPES; i++) {
        const double apart = fabs(bytes_per_element(i) - bytes_per_element(type));
        if (!(machine->matrices[i].wide > 0) || apart >= distance) continue;
        distance = apart;
        nearest = &machine->matrices[i];
    }
    return nearest;
}

double machine_matrix_rate(const struct machine *machine, enum tensor_type type, size_t columns) {
    const struct machine_matrix *matrix = matrix_of(machine, type);
    const double far = 1.0 / MACHINE_NARROW - 1.0 / MACHINE_WIDE;
    const double of_row = fmax((1 / matrix->narrow - 1 / matrix->wide) / far, 0);
    return 1 / (1 / matrix->wide + of_row * (1 / (double)columns - 1.0 / MACHINE_WIDE));
}

double machine_matrix_block(const struct machine *machine, enum tensor_type type) {
    return matrix_of(machine, type)->block;
}

/* Of a request among so many in flight. */
static double request_seconds(const struct machine *machine, double bytes, size_t depth) {
    size_t i = 0;
    while (i + 2 < MACHINE_DISK_SIZES && bytes > machine_disk_bytes[i + 1]) i++;
    const double low = machine_disk_bytes[i], high = machine_disk_bytes[i + 1];
    const double low_seconds = low / machine->disk.read[i][depth],
                 high_seconds = high / machine->disk.read[i + 1][depth];
    const double seconds = low_seconds + (high_seconds - low_seconds) * (bytes - low) / (high - low);
    return fmax(seconds, low_seconds / 8);
}

double machine_disk_rate(const struct machine *machine, double bytes) {
    return bytes / request_seconds(machine, bytes, MACHINE_DISK_DEPTHS - 1);
}

double machine_disk_seconds(const struct machine *machine, double bytes, double requests) {
    double seconds = 0, left = fmax(requests, 0), shallow = request_seconds(machine, bytes, 0);
    uint32_t from = machine_disk_depths[0];
    for (size_t i = 1; i < MACHINE_DISK_DEPTHS; i++) { /* the last of them go with ever fewer others */
        const uint32_t to = machine_disk_depths[i];
        const double deep = request_seconds(machine, bytes, i);
        for (uint32_t depth = from; depth < to && left > 0; depth++, left--)
            seconds += fmin(left, 1) * (shallow + (deep - shallow) * (depth - from) / (to - from));
        shallow = deep;
        from = to;
    }
    return seconds + fmax(left, 0) * shallow;
}

/* By requests of 4 and 16 KiB, many in flight. */
static double byte_seconds(const struct machine *machine) {
    const size_t deep = MACHINE_DISK_DEPTHS - 1;
    const double low = machine_disk_bytes[0], high = machine_disk_bytes[1];
    return (high / machine->disk.read[1][deep] - low / machine->disk.read[0][deep]) / (high - low);
}

double machine_tier_byte_seconds(const struct machine *machine) {
    return fmax(byte_seconds(machine), 0) + 1 / machine->memory.copy;
}

uint64_t machine_read_gap(const struct machine *machine) {
    if (!machine_knows_disk(machine)) return 0;
    const double low = machine_disk_bytes[0], byte = byte_seconds(machine),
                 request_seconds = low / machine->disk.read[0][MACHINE_DISK_DEPTHS - 1] - low * byte;
    const double most = 1 << 20;
    if (!(byte * most > request_seconds)) return 1 << 20;
    return (uint64_t)fmax(request_seconds / byte, 1);
}

/* ---- every number has a name ---- */

/* What a file may leave out is 0 then. */
enum need { NEEDED, OPTIONAL };
typedef enum status number_visitor(void *context, const char *name, enum need need, double *number);

struct visit {
    number_visitor *visitor;
    void *context;
    enum status status; /* the first that is not OK */
};

static void visit(struct visit *visit, enum need need, double *number, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static void visit(struct visit *visit, enum need need, double *number, const char *format, ...) {
    char name[64];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    if (visit->status == STATUS_OK) visit->status = visit->visitor(visit->context, name, need, number);
}

static void visit_by_group(struct visit *v, enum need need, struct machine_by_group *numbers, const char *name) {
    visit(v, need, &numbers->one, "%s.group1", name);
    visit(v, need, &numbers->many, "%s.group%d", name, MACHINE_GROUP);
}

static void visit_matrices(struct visit *v, struct machine *machine) {
    for (uint32_t i = 0; i < MACHINE_TYPES; i++) {
        const struct tensor_type_info *info = tensor_type_find(i);
        if (info == NULL || !info->is_weight) continue;
        visit(v, OPTIONAL, &machine->matrices[i].narrow, "matrix.%s.narrow", info->name);
        visit(v, OPTIONAL, &machine->matrices[i].wide, "matrix.%s.wide", info->name);
        visit(v, OPTIONAL, &machine->matrices[i].block, "matrix.%s.block", info->name);
    }
}

static void visit_selections(struct visit *v, struct machine *machine) {
    char name[48];
    for (size_t i = 0; i < MACHINE_SELECTIONS_MAX; i++) {
        struct machine_selection *selection = &machine->selections[i];
        if (selection->name == NULL) continue;
        visit(v, OPTIONAL, &selection->seconds, "select.%s.seconds", selection->name);
        snprintf(name, sizeof name, "select.%s.score", selection->name);
        visit_by_group(v, OPTIONAL, &selection->score, name);
        snprintf(name, sizeof name, "select.%s.rows", selection->name);
        visit_by_group(v, OPTIONAL, &selection->rows, name);
    }
}

static void visit_threads(struct visit *v, struct machine *machine) {
    for (size_t i = 0; i < MACHINE_THREAD_COUNTS; i++) {
        struct machine_threads *threads = &machine->threads[i];
        const unsigned count = 1U << i;
        visit(v, OPTIONAL, &threads->narrow, "threads.%u.narrow", count);
        visit(v, OPTIONAL, &threads->wide, "threads.%u.wide", count);
        visit(v, OPTIONAL, &threads->block, "threads.%u.block", count);
        visit(v, OPTIONAL, &threads->layer, "threads.%u.layer", count);
        visit(v, OPTIONAL, &threads->token, "threads.%u.token", count);
        visit(v, OPTIONAL, &threads->attend, "threads.%u.attend", count);
        visit(v, OPTIONAL, &threads->attend_block, "threads.%u.attend_block", count);
        visit(v, OPTIONAL, &threads->select, "threads.%u.select", count);
    }
}

static enum status visit_numbers(struct machine *machine, number_visitor *visitor, void *context) {
    struct visit v = {.visitor = visitor, .context = context};
    visit(&v, OPTIONAL, &machine->memory.bytes, "memory.bytes");
    visit(&v, OPTIONAL, &machine->memory.all, "memory.all");
    visit(&v, NEEDED, &machine->memory.copy, "memory.copy");
    visit_matrices(&v, machine);
    visit_threads(&v, machine);
    visit(&v, OPTIONAL, &machine->step_seconds, "step.seconds");
    visit(&v, OPTIONAL, &machine->layer_seconds, "layer.seconds");
    visit(&v, OPTIONAL, &machine->layer_token_seconds, "layer.token_seconds");
    visit_by_group(&v, NEEDED, &machine->attend_f16, "attend.f16");
    visit_by_group(&v, OPTIONAL, &machine->attend_q8, "attend.q8");
    visit(&v, NEEDED, &machine->attend_block, "attend.block");
    visit_selections(&v, machine);
    for (size_t i = 0; i < MACHINE_DISK_SIZES; i++)
        for (size_t j = 0; j < MACHINE_DISK_DEPTHS; j++)
            visit(&v, OPTIONAL, &machine->disk.read[i][j], "disk.read.%u.depth%u", machine_disk_bytes[i],
                  machine_disk_depths[j]);
    visit(&v, OPTIONAL, &machine->disk.write, "disk.write");
    visit(&v, OPTIONAL, &machine->disk.spread, "disk.spread");
    visit(&v, OPTIONAL, &machine->disk.serial, "disk.serial");
    visit(&v, OPTIONAL, &machine->tier.page_seconds, "tier.page_seconds");
    visit(&v, OPTIONAL, &machine->tier.scan_rate, "tier.scan_rate");
    visit(&v, OPTIONAL, &machine->tier.layer_seconds, "tier.layer_seconds");
    visit(&v, OPTIONAL, &machine->tier.request_seconds, "tier.request_seconds");
    visit(&v, OPTIONAL, &machine->tier.neighbour_seconds, "tier.neighbour_seconds");
    visit(&v, OPTIONAL, &machine->tier.memory_seconds, "tier.memory_seconds");
    visit(&v, OPTIONAL, &machine->device_bytes, "device.bytes");
    visit(&v, OPTIONAL, &machine->device_link, "device.link");
    return v.status;
}

/* ---- the file ---- */

enum { FILE_BYTES_MAX = 1 << 20 };

struct reading {
    const char *path;
    json_t *numbers; /* those that nobody has asked for yet */
    struct error *error;
};

static enum status read_number(void *context, const char *name, enum need need, double *number) {
    struct reading *reading = context;
    const json_t *value = json_object_get(reading->numbers, name);
    *number = 0;
    if (value == NULL && need == OPTIONAL) return STATUS_OK;
    if (value == NULL)
        return error_set(reading->error, STATUS_USAGE, "%s: numbers: %s: missing, expected a number above 0",
                         reading->path, name);
    const double found = json_is_number(value) ? json_number_value(value) : NAN;
    if (!(found >= 0) || !(found < 1e30) || (need == NEEDED && found == 0)) {
        char *text = json_dumps(value, JSON_ENCODE_ANY);
        enum status status =
            error_set(reading->error, STATUS_USAGE, "%s: numbers: %s: found %.40s, expected a number %s", reading->path,
                      name, text != NULL ? text : "?", need == NEEDED ? "above 0" : "from 0 on");
        free(text);
        return status;
    }
    *number = found;
    json_object_del(reading->numbers, name);
    return STATUS_OK;
}

static enum status read_name(const json_t *root, const char *key, char text[MACHINE_TEXT_BYTES], const char *path,
                             struct error *error) {
    const char *value = json_string_value(json_object_get(root, key));
    if (value == NULL || strlen(value) >= MACHINE_TEXT_BYTES)
        return error_set(error, STATUS_USAGE, "%s: %s: expected a text of fewer than %d bytes", path, key,
                         MACHINE_TEXT_BYTES);
    memcpy(text, value, strlen(value) + 1);
    return STATUS_OK;
}

static enum status check_threads(const struct machine *machine, const char *path, struct error *error) {
    for (size_t i = 0; i < MACHINE_THREAD_COUNTS; i++) {
        const struct machine_threads *t = &machine->threads[i];
        const int found = (t->narrow > 0) + (t->wide > 0) + (t->block > 0) + (t->layer > 0) + (t->token > 0) +
                          (t->attend > 0) + (t->attend_block > 0) + (t->select > 0);
        if (found % 8 != 0)
            return error_set(error, STATUS_USAGE, "%s: numbers: threads.%u: found %d of its 8 numbers", path, 1U << i,
                             found);
        if (found > 0 && (uint32_t)1 << i >= machine->thread_count)
            return error_set(error, STATUS_USAGE, "%s: numbers: threads.%u: the machine has %u threads, expected fewer",
                             path, 1U << i, machine->thread_count);
    }
    return STATUS_OK;
}

static enum status check_disk(const struct machine *machine, const char *path, struct error *error) {
    int found = machine->disk.write > 0;
    const int expected = 1 + MACHINE_DISK_SIZES * MACHINE_DISK_DEPTHS;
    for (size_t i = 0; i < MACHINE_DISK_SIZES; i++)
        for (size_t j = 0; j < MACHINE_DISK_DEPTHS; j++) found += machine->disk.read[i][j] > 0;
    if (found == 0 || found == expected) return STATUS_OK;
    return error_set(error, STATUS_USAGE, "%s: numbers: disk: found %d of its %d rates", path, found, expected);
}

/* What belongs together is there, or none of it. */
static enum status check_groups(const struct machine *machine, const char *path, struct error *error) {
    bool any = false;
    for (uint32_t i = 0; i < MACHINE_TYPES; i++) {
        const struct machine_matrix *matrix = &machine->matrices[i];
        const int found = (matrix->narrow > 0) + (matrix->wide > 0) + (matrix->block > 0);
        any |= found == 3;
        if (found % 3 != 0)
            return error_set(error, STATUS_USAGE, "%s: numbers: matrix.%s: found %d of narrow, wide and block", path,
                             tensor_type_find(i)->name, found);
    }
    if (!any) return error_set(error, STATUS_USAGE, "%s: numbers: no matrix.TYPE.wide of any type", path);
    if ((machine->attend_q8.one > 0) != (machine->attend_q8.many > 0))
        return error_set(error, STATUS_USAGE, "%s: numbers: attend.q8: found one of group1 and group%d", path,
                         MACHINE_GROUP);
    for (size_t i = 0; i < MACHINE_SELECTIONS_MAX; i++) {
        const struct machine_by_group rows = machine->selections[i].rows;
        if ((rows.one > 0) != (rows.many > 0))
            return error_set(error, STATUS_USAGE, "%s: numbers: select.%s.rows: found one of group1 and group%d", path,
                             machine->selections[i].name, MACHINE_GROUP);
    }
    TRY(check_threads(machine, path, error));
    return check_disk(machine, path, error);
}

/* A number of one of loam-lab's presets, which loam does not read: a machine has one file for both programs. */
static bool is_of_lab(const char *key) {
    static const char *const figures[] = {"seconds", "score.group1", "score.group4", "rows.group1", "rows.group4"};
    static const char prefix[] = "select.";
    _Static_assert(MACHINE_GROUP == 4, "the names of figures");
    if (strncmp(key, prefix, sizeof prefix - 1) != 0) return false;
    const char *preset = key + sizeof prefix - 1, *end = strchr(preset, '.');
    if (end == NULL || !preset_is_of_lab(preset, (size_t)(end - preset))) return false;
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        if (strcmp(end + 1, figures[i]) == 0) return true;
    return false;
}

static enum status read_root(struct machine *machine, const json_t *root, const char *path, struct error *error) {
    const json_t *version = json_object_get(root, "loam_machine"), *threads = json_object_get(root, "threads");
    struct reading reading = {path, json_object_get(root, "numbers"), error};
    if (!json_is_integer(version))
        return error_set(error, STATUS_USAGE, "%s: loam_machine: missing: not a file of loam plan --measure", path);
    if (json_integer_value(version) != MACHINE_VERSION)
        return error_set(error, STATUS_USAGE, "%s: loam_machine: found %lld, expected %d: measure again", path,
                         (long long)json_integer_value(version), MACHINE_VERSION);
    TRY(read_name(root, "processor", machine->processor, path, error));
    TRY(read_name(root, "kernels", machine->kernels, path, error));
    if (!json_is_integer(threads) || json_integer_value(threads) < 1 || json_integer_value(threads) > 4096)
        return error_set(error, STATUS_USAGE, "%s: threads: expected a number from 1 to 4096", path);
    machine->thread_count = (uint32_t)json_integer_value(threads);
    machine->measured = json_integer_value(json_object_get(root, "measured")); /* 0 of older files */
    const json_t *load = json_object_get(root, "load");
    machine->load = json_is_number(load) ? json_number_value(load) : -1;
    if (!json_is_object(reading.numbers))
        return error_set(error, STATUS_USAGE, "%s: numbers: expected an object", path);
    TRY(visit_numbers(machine, read_number, &reading));
    void *unknown = json_object_iter(reading.numbers);
    while (unknown != NULL && is_of_lab(json_object_iter_key(unknown)))
        unknown = json_object_iter_next(reading.numbers, unknown);
    if (unknown != NULL)
        return error_set(error, STATUS_USAGE, "%s: numbers: %.60s: no number of that name", path,
                         json_object_iter_key(unknown));
    return check_groups(machine, path, error);
}

enum status machine_load(struct machine *machine, const char *path, struct error *error) {
    char *text;
    size_t length;
    json_t *root = NULL;
    machine_init(machine);
    TRY(file_read_all(path, FILE_BYTES_MAX, &text, &length, error));
    enum status status = json_parse_bytes(text, length, path, STATUS_USAGE, &root, error);
    if (status == STATUS_OK) status = read_root(machine, root, path, error);
    json_decref(root);
    free(text);
    if (status != STATUS_OK) machine_init(machine);
    return status;
}

static enum status write_number(void *context, const char *name, enum need need, double *number) {
    if (need == OPTIONAL && !(*number > 0)) return STATUS_OK;
    char text[32];
    snprintf(text, sizeof text, "%.4g", *number); /* what was measured has no more digits */
    return json_object_set_new(context, name, json_real(strtod(text, NULL))) == 0 ? STATUS_OK : STATUS_MEMORY;
}

enum status machine_save(const struct machine *machine, const char *path, struct error *error) {
    struct machine copy = *machine;
    struct file_writer writer;
    json_t *numbers = json_object();
    enum status status = visit_numbers(&copy, write_number, numbers);
    json_t *root =
        json_pack("{s:i, s:s, s:s, s:i, s:o}", "loam_machine", MACHINE_VERSION, "processor", machine->processor,
                  "kernels", machine->kernels, "threads", (int)machine->thread_count, "numbers", numbers);
    if (root != NULL && machine->measured > 0)
        (void)json_object_set_new(root, "measured", json_integer(machine->measured));
    if (root != NULL && machine->load >= 0) (void)json_object_set_new(root, "load", json_real(machine->load));
    char *text = status == STATUS_OK ? json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(4)) : NULL;
    json_decref(root);
    if (text == NULL) return error_set(error, STATUS_MEMORY, "%s: out of memory", path);
    status = file_writer_open(&writer, path, error);
    if (status == STATUS_OK) {
        fprintf(writer.stream, "%s\n", text);
        status = file_writer_commit(&writer, error);
        file_writer_abort(&writer);
    }
    free(text);
    return status;
}
