/* loam devices: what there is to compute with. */
#include <jansson.h>
#include <string.h>

#include "cli/command.h"
#include "cli/json_file.h"
#include "cli/output.h"
#include "device/device_list.h"
#include "server/json_text.h"

static void device_print(const struct device_summary *device) {
    char all[32], available[32];
    output_text("%-8s %s\n", device->name, device->model[0] != '\0' ? device->model : "-");
    if (device->memory_bytes > 0)
        output_text("         %s free of %s\n",
                    device->memory_free_bytes > 0 ? bytes_text(device->memory_free_bytes, available, sizeof available)
                                                  : "?",
                    bytes_text(device->memory_bytes, all, sizeof all));
    if (device->abilities[0] != '\0') output_text("         %s\n", device->abilities);
    if (device->reason.status != STATUS_OK) output_text("         not usable: %s\n", device->reason.message);
}

static json_t *device_json(const struct device_summary *device) {
    json_t *item = json_object();
    json_put(item, "name", json_string(device->name));
    json_put(item, "model", json_text(device->model, strlen(device->model)));
    json_put_uint(item, "memory_bytes", device->memory_bytes);
    json_put_uint(item, "memory_free_bytes", device->memory_free_bytes);
    json_put(item, "abilities", json_string(device->abilities));
    if (device->reason.status != STATUS_OK) json_put(item, "not_usable", json_string(device->reason.message));
    return item;
}

static enum status devices_print_json(const struct device_list *list, struct error *error) {
    json_t *root = json_object(), *devices = json_array();
    for (size_t i = 0; i < list->count; i++) json_array_append_new(devices, device_json(&list->devices[i]));
    json_put(root, "devices", devices);
    if (list->no_cuda.status != STATUS_OK) json_put(root, "no_cuda", json_string(list->no_cuda.message));
    enum status status = json_print(root, JSON_INDENT(1), error);
    json_decref(root);
    return status;
}

enum status devices_command(const struct options *options, struct error *error) {
    struct device_list list;
    device_list_read(&list);
    if (option_flag(options, OPTION_JSON)) return devices_print_json(&list, error);
    for (size_t i = 0; i < list.count; i++) device_print(&list.devices[i]);
    if (list.no_cuda.status != STATUS_OK) output_text("no cuda  %s\n", list.no_cuda.message);
    return output_flush(error);
}
