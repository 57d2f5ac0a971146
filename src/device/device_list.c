#include "device/device_list.h"

#include <stdio.h>
#include <string.h>

#include "device/cuda/context.h"
#include "device/cuda/images.h"
#include "platform/cpu.h"
#include "platform/memory.h"

static void cpu_read(struct device_summary *summary) {
    char features[128];
    *summary = (struct device_summary){
        .name = "cpu", .memory_bytes = memory_total_bytes(), .memory_free_bytes = memory_available_bytes()};
    if (summary->memory_free_bytes == UINT64_MAX) summary->memory_free_bytes = 0;
    snprintf(summary->model, sizeof summary->model, "%s", cpu_model_name());
    snprintf(summary->abilities, sizeof summary->abilities, "%zu threads, %s", cpu_count(),
             cpu_mask_text(cpu_features(), features, sizeof features));
}

static void abilities_write(struct device_summary *summary, const struct cuda_properties *card) {
    snprintf(summary->abilities, sizeof summary->abilities, "compute %u.%u, %u multiprocessors, %u copy engines%s%s",
             card->capability / 10, card->capability % 10, card->multiprocessor_count, card->copy_engine_count,
             card->can_register_host ? ", reads the host's memory in place" : "",
             card->is_integrated ? ", memory shared with the host" : "");
}

static enum status card_read(struct device_summary *summary, const struct cuda_driver *driver, uint32_t index) {
    struct cuda_properties card;
    struct cuda_context context;
    TRY(cuda_properties_read(driver, index, &card, &summary->reason));
    snprintf(summary->model, sizeof summary->model, "%s", card.name);
    summary->memory_bytes = card.memory_bytes;
    abilities_write(summary, &card);
    TRY(cuda_context_open(&context, driver, index, &(struct cuda_options){.wait_limit_ns = 0}, &summary->reason));
    enum status status =
        cuda_memory_read(&context, &summary->memory_free_bytes, &summary->memory_bytes, &summary->reason);
    cuda_context_close(&context);
    TRY(status);
    if (cuda_image_count > 0) return STATUS_OK;
    return error_set(&summary->reason, STATUS_UNSUPPORTED, "cuda: %s",
                     cuda_images_missing == NULL ? "this build has no kernels" : cuda_images_missing);
}

static enum status cards_read(struct device_list *list, const struct cuda_driver *driver) {
    uint32_t count = 0;
    TRY(cuda_device_count(driver, &count, &list->no_cuda));
    for (uint32_t index = 0; index < count && list->count < DEVICE_LIST_MAX; index++) {
        struct device_summary *summary = &list->devices[list->count++];
        *summary = (struct device_summary){.memory_bytes = 0};
        snprintf(summary->name, sizeof summary->name, "cuda:%u", index);
        summary->reason.status = card_read(summary, driver, index);
    }
    return STATUS_OK;
}

void device_list_read(struct device_list *list) {
    struct cuda_driver driver;
    memset(list, 0, sizeof *list);
    cpu_read(&list->devices[list->count++]);
    list->no_cuda.status = cuda_driver_open(&driver, NULL, &list->no_cuda);
    if (list->no_cuda.status != STATUS_OK) return;
    list->no_cuda.status = cards_read(list, &driver);
    cuda_driver_close(&driver);
}
