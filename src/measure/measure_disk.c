/* Random reads of a file by size and depth, and writing it.  A disk is shared with others for longer than a measurement
 * takes, so its usual rate is what steps get, not its best one. */
#include <math.h>

#include "measure/measure_internal.h"
#include "rates/rates.h"

enum { READS_MIN = 8 };
static const uint64_t FILE_BYTES = (uint64_t)96 << 20, FILE_BYTES_SHORT = (uint64_t)16 << 20, READ_NS = 4000000,
                      WRITE_NS = 500000000;

/* In turns, so that what else the disk does is not in one of the numbers alone.  What it is too late for is as quick as
 * the nearest that is less: fewer in flight, or smaller ones. */
static enum status read_rates(struct disk_probe *probe, const struct measurement *measurement, struct error *error) {
    struct machine *machine = measurement->machine;
    struct rate rates[MACHINE_DISK_SIZES][MACHINE_DISK_DEPTHS] = {{{.count = 0}}};
    for (size_t round = 0; round < RATE_SAMPLES; round++)
        for (size_t i = 0; i < MACHINE_DISK_SIZES; i++)
            for (size_t j = 0; j < MACHINE_DISK_DEPTHS; j++) {
                if (round >= USUAL_ROUNDS_MIN && rate_spread(&rates[i][j]) < USUAL_SPREAD_MAX) continue;
                if (round + i + j > 0 && measure_is_late(measurement)) continue;
                TRY(disk_probe_read(probe,
                                    &(struct disk_probe_round){.bytes = machine_disk_bytes[i],
                                                               .depth = machine_disk_depths[j],
                                                               .reads_min = READS_MIN,
                                                               .ns_min = READ_NS},
                                    &rates[i][j], error));
            }
    machine->disk.spread = 0;
    for (size_t i = 0; i < MACHINE_DISK_SIZES; i++)
        for (size_t j = 0; j < MACHINE_DISK_DEPTHS; j++) {
            machine->disk.read[i][j] = rates[i][j].count > 0 ? machine_disk_bytes[i] * rate_per_second(&rates[i][j])
                                                             : machine->disk.read[j > 0 ? i : i - 1][j > 0 ? j - 1 : j];
            machine->disk.spread = fmax(machine->disk.spread, rate_spread(&rates[i][j]));
        }
    return STATUS_OK;
}

enum status measure_disk(struct measurement *measurement, struct error *error) {
    struct io_folder folder = {.fd = -1};
    struct disk_probe *probe = NULL;
    const struct disk_probe_options options = {.folder = &folder,
                                               .bytes = measurement->is_short ? FILE_BYTES_SHORT : FILE_BYTES,
                                               .place_bytes = machine_disk_bytes[MACHINE_DISK_SIZES - 1],
                                               .write_ns = measurement->options->seconds > 0 ? WRITE_NS : 0};
    double write_seconds = 0;
    TRY(measure_part(measurement, "disk", error));
    enum status status = io_folder_open(&folder, measurement->folder.path, IO_FOLDER_CREATE, NULL, error);
    if (status == STATUS_OK) status = disk_probe_open(&probe, &options, &write_seconds, error);
    if (status == STATUS_OK) {
        measurement->machine->disk.write = 1 / write_seconds;
        status = read_rates(probe, measurement, error);
    }
    disk_probe_close(probe);
    io_folder_close(&folder);
    return status;
}
