#include "measure/machine_file.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME_BYTES = MACHINE_TEXT_BYTES + 16 };
/* Of measuring what a plan waits for: five with what is under way then.  A card's driver compiles kernels meanwhile. */
static const double seconds_max = 4.2, seconds_max_device = 10;

/* The folder of the file. */
static enum status cache_folder(char path[MACHINE_PATH_BYTES], struct error *error) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int length;
    if (cache != NULL && cache[0] == '/')
        length = snprintf(path, MACHINE_PATH_BYTES, "%s/loam", cache);
    else if (home != NULL && home[0] == '/')
        length = snprintf(path, MACHINE_PATH_BYTES, "%s/.cache/loam", home);
    else
        return error_set(error, STATUS_USAGE,
                         "the numbers of this machine: neither XDG_CACHE_HOME nor HOME names a folder for them: set "
                         "one, or give --machine FILE");
    if (length < 0 || length >= MACHINE_PATH_BYTES - NAME_BYTES - 1)
        return error_set(error, STATUS_USAGE, "the cache folder's name is longer than %d bytes", MACHINE_PATH_BYTES);
    return STATUS_OK;
}

/* machine.json; of a device with memory of its own machine-NVIDIA-H100.json. */
static enum status file_path(const struct device *device, char path[MACHINE_PATH_BYTES],
                             char folder[MACHINE_PATH_BYTES], struct error *error) {
    char name[NAME_BYTES] = "machine";
    TRY(cache_folder(folder, error));
    if (device != NULL) snprintf(name, sizeof name, "machine-%.*s", MACHINE_TEXT_BYTES, device->model);
    for (char *at = name; *at != '\0'; at++)
        if (!isalnum((unsigned char)*at)) *at = '-';
    snprintf(path, MACHINE_PATH_BYTES, "%.*s/%s.json", MACHINE_PATH_BYTES - NAME_BYTES - 8, folder, name);
    return STATUS_OK;
}

static enum status make_folder(char path[MACHINE_PATH_BYTES], struct error *error) {
    for (char *slash = path + 1;; slash++) {
        const char was = *slash;
        if (was != '/' && was != '\0') continue;
        *slash = '\0';
        if (mkdir(path, 0700) != 0 && errno != EEXIST)
            return error_set_os(error, STATUS_IO, errno, "making the folder %s", path);
        *slash = was;
        if (was == '\0') return STATUS_OK;
    }
}

static bool is_of_this_machine(const struct machine *machine, const struct measure_options *options) {
    char kernels[MACHINE_TEXT_BYTES];
    struct machine fewer;
    if (options->device != NULL)
        return strncmp(machine->processor, options->device->model, MACHINE_TEXT_BYTES - 1) == 0;
    cpu_mask_text(options->mask, kernels, sizeof kernels);
    const size_t threads = options->thread_count != 0 ? options->thread_count : cpu_count();
    return strcmp(machine->processor, cpu_model_name()) == 0 && strcmp(machine->kernels, kernels) == 0 &&
           machine_with_threads(&fewer, machine, threads);
}

static enum status say(const struct measure_options *options, const char *note, struct error *error) {
    if (options->progress == NULL || !options->progress(options->context, note, true)) return STATUS_OK;
    return error_set(error, STATUS_INTERRUPTED, "interrupted");
}

/* One figure is looked at again: the file may be of a busy minute, or the machine another one than it was. */
static bool is_off(const struct machine *machine, const struct measure_options *options, const char *path,
                   char note[400]) {
    double load;
    struct error ignored;
    if (getloadavg(&load, 1) != 1) load = -1;
    const double then = machine->memory.all, now = then > 0 ? machine_measure_memory(machine->thread_count) : 0;
    const enum machine_check check = machine_check_memory(machine, now, load);
    if (check == MACHINE_HOLDS) return false;
    snprintf(note, 400, "%s memory is read %.2g times as fast as %.200s says",
             check == MACHINE_IS_OFF ? "measuring this machine again:" : "others compute, and", now / then, path);
    if (check == MACHINE_IS_BUSY && say(options, note, &ignored) == STATUS_OK) note[0] = '\0';
    return check == MACHINE_IS_OFF;
}

/* Why the file's numbers do not hold; false: they do. */
static bool must_measure(struct machine *machine, const struct machine_request *request, const char *path,
                         char note[400]) {
    struct error why;
    const struct device *card = request->measure.device;
    const char *what = card != NULL ? card->model : "this machine";
    if (request->measures) return snprintf(note, 400, "measuring %s", what) > 0;
    if (access(path, F_OK) != 0)
        return snprintf(note, 400, "measuring %s, which takes some %d s, once", what, card != NULL ? 10 : 5) > 0;
    if (machine_load(machine, path, &why) != STATUS_OK)
        return snprintf(note, 400, "%.200s; measuring %s again", why.message, what) > 0;
    if (is_of_this_machine(machine, &request->measure))
        return !request->never_measures && is_off(machine, &request->measure, path, note);
    return snprintf(note, 400, "measuring this machine: %.120s is of %s, %s, %u threads", path, machine->processor,
                    machine->kernels, machine->thread_count) > 0;
}

/* Whether something that is used was not measured yet; the options become those of measuring it. */
static bool must_add(const struct machine *machine, struct measure_options *options, const char *path, char note[400]) {
    options->use = machine_lacks(machine, options->use);
    options->thread_count = machine->thread_count; /* the others' */
    return !machine_use_is_empty(options->use) &&
           snprintf(note, 400, "measuring what %.300s has no numbers of yet", path) > 0;
}

/* What there was no time for. */
static enum status say_left_out(const struct machine *machine, const struct measure_options *options,
                                struct error *error) {
    const struct machine_use left = machine_lacks(machine, options->use);
    char names[MACHINE_USE_BYTES], note[MACHINE_USE_BYTES + 100];
    if (machine_use_is_empty(left)) return STATUS_OK;
    snprintf(note, sizeof note, "not measured in %.1f s: %s; the next plan goes on, loam plan --measure does all",
             options->seconds, machine_use_text(machine, left, names));
    return say(options, note, error);
}

static enum status open_file(struct machine *machine, const struct machine_request *request,
                             char path[MACHINE_PATH_BYTES], char note[400], struct error *error) {
    struct measure_options options = request->measure;
    char folder[MACHINE_PATH_BYTES];
    options.use = measure_use(&options);
    note[0] = '\0';
    if (request->given != NULL) {
        snprintf(path, MACHINE_PATH_BYTES, "%s", request->given);
        return machine_load(machine, request->given, error);
    }
    TRY(file_path(options.device, path, folder, error));
    const bool is_whole = must_measure(machine, request, path, note);
    if (!is_whole && (request->never_measures || !must_add(machine, &options, path, note))) return STATUS_OK;
    if (request->never_measures) return error_set(error, STATUS_UNSUPPORTED, "%s", note);
    TRY(make_folder(folder, error));
    TRY(say(&options, note, error));
    if (options.directory == NULL) options.directory = folder;
    if (!request->measures && options.seconds == 0)
        options.seconds = options.device != NULL ? seconds_max_device : seconds_max;
    TRY(is_whole ? machine_measure(machine, &options, error) : machine_measure_more(machine, &options, error));
    TRY(machine_save(machine, path, error));
    return say_left_out(machine, &options, error);
}

enum status machine_open(struct machine *machine, const struct machine_request *request, char path[MACHINE_PATH_BYTES],
                         char note[400], struct error *error) {
    struct measure_options options = request->measure;
    TRY(open_file(machine, request, path, note, error));
    if (options.device != NULL && request->given == NULL) {
        machine->device_bytes = (double)device_memory_free(options.device);
        machine->thread_count = (uint32_t)(options.thread_count != 0 ? options.thread_count : cpu_count());
    }
    options.directory = request->disk;
    return request->disk != NULL ? machine_measure_disk(machine, &options, error) : STATUS_OK;
}

uint64_t machine_file_read_gap(void) {
    char path[MACHINE_PATH_BYTES], folder[MACHINE_PATH_BYTES];
    struct machine machine;
    struct error why;
    if (file_path(NULL, path, folder, &why) != STATUS_OK || access(path, F_OK) != 0) return 0;
    return machine_load(&machine, path, &why) == STATUS_OK ? machine_read_gap(&machine) : 0;
}
