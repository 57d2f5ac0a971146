/* FAKE_CUDA="seed=7,memory=64M,fail=cuMemAlloc_v2:3:2": what card it is, and what goes wrong. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda/fake/fake_control.h"
#include "device/cuda/fake/fake_internal.h"

enum { SYMBOLS_MAX = 80 };

struct fake_settings fake_settings;

static struct {
    const char *symbol; /* of the library's text */
    uint64_t count;
} calls[SYMBOLS_MAX];
static uint64_t call_count, kernel_count;

void fake_complain(const char *format, ...) {
    va_list list;
    va_start(list, format);
    fputs("fake driver: ", stderr);
    vfprintf(stderr, format, list);
    fputs("\n", stderr);
    fflush(stderr);
    va_end(list);
}

static uint64_t number_read(const char *text) {
    char *end = NULL;
    uint64_t value = strtoull(text, &end, 0);
    const uint64_t unit = *end == 'K' ? 1 << 10 : *end == 'M' ? 1 << 20 : *end == 'G' ? 1 << 30 : 1;
    if (end == text || end[unit > 1 ? 1 : 0] != '\0') {
        fake_complain("FAKE_CUDA: %s is no number", text);
        abort();
    }
    return value * unit;
}

static void fault_read(char *text) { /* SYMBOL:NUMBER:RESULT */
    char *number = strchr(text, ':'), *result = number == NULL ? NULL : strchr(number + 1, ':');
    struct fake_fault *fault = &fake_settings.faults[fake_settings.fault_count];
    if (result == NULL || (size_t)(number - text) >= sizeof fault->symbol ||
        fake_settings.fault_count == FAKE_FAULTS_MAX) {
        fake_complain("FAKE_CUDA: fail=%s, expected fail=SYMBOL:NUMBER:RESULT", text);
        abort();
    }
    *number++ = *result++ = '\0';
    strcpy(fault->symbol, text);
    fault->number = number_read(number);
    fault->result = (enum cu_result)number_read(result);
    fake_settings.fault_count++;
}

static void drop_read(const char *name) {
    char *drop = fake_settings.drops[fake_settings.drop_count];
    if (fake_settings.drop_count == FAKE_DROPS_MAX || strlen(name) >= sizeof fake_settings.drops[0]) {
        fake_complain("FAKE_CUDA: drop=%s, expected at most %d names", name, FAKE_DROPS_MAX);
        abort();
    }
    strcpy(drop, name);
    fake_settings.drop_count++;
}

static void setting_read(char *name) {
    char *value = strchr(name, '=');
    if (value == NULL) {
        fake_complain("FAKE_CUDA: %s has no value", name);
        abort();
    }
    *value++ = '\0';
    struct fake_settings *settings = &fake_settings;
    if (strcmp(name, "fail") == 0)
        fault_read(value);
    else if (strcmp(name, "drop") == 0)
        drop_read(value);
    else if (strcmp(name, "seed") == 0)
        settings->seed = number_read(value);
    else if (strcmp(name, "memory") == 0)
        settings->memory_bytes = number_read(value);
    else if (strcmp(name, "version") == 0)
        settings->version = (int32_t)number_read(value);
    else if (strcmp(name, "devices") == 0)
        settings->device_count = (int32_t)number_read(value);
    else if (strcmp(name, "capability") == 0)
        settings->capability = (int32_t)number_read(value);
    else if (strcmp(name, "waits") == 0)
        settings->has_waits = number_read(value) != 0;
    else if (strcmp(name, "register") == 0)
        settings->can_register = number_read(value);
    else if (strcmp(name, "integrated") == 0)
        settings->is_integrated = number_read(value) != 0;
    else if (strcmp(name, "stuck") == 0)
        settings->stuck = number_read(value);
    else if (strcmp(name, "lose") == 0)
        settings->lose = number_read(value);
    else if (strcmp(name, "held") == 0 && strlen(value) < sizeof settings->held)
        strcpy(settings->held, value);
    else {
        fake_complain("FAKE_CUDA: there is no setting %s", name);
        abort();
    }
}

void fake_settings_read(void) {
    fake_settings = (struct fake_settings){.seed = 1,
                                           .memory_bytes = (uint64_t)1 << 30,
                                           .version = 12040,
                                           .device_count = 1,
                                           .capability = 80,
                                           .has_waits = true,
                                           .can_register = 1};
    const char *given = getenv("FAKE_CUDA");
    fake_settings_add(given != NULL ? given : "");
}

void fake_settings_heal(void) {
    fake_settings.fault_count = 0;
    fake_settings.stuck = fake_settings.lose = 0;
}

void fake_settings_add(const char *given) {
    char text[512], *rest = NULL;
    memset(calls, 0, sizeof calls);
    call_count = kernel_count = 0;
    snprintf(text, sizeof text, "%s", given);
    for (char *part = strtok_r(text, ",", &rest); part != NULL; part = strtok_r(NULL, ",", &rest))
        setting_read(part);
}

static enum cu_result fault_find(const char *symbol, uint64_t number) {
    for (size_t i = 0; i < fake_settings.fault_count; i++) {
        const struct fake_fault *fault = &fake_settings.faults[i];
        if (fault->number == number && strcmp(fault->symbol, symbol) == 0) return fault->result;
    }
    return CU_SUCCESS;
}

enum cu_result fake_fault_of(const char *symbol) {
    size_t i = 0;
    while (i < SYMBOLS_MAX - 1 && calls[i].symbol != NULL && strcmp(calls[i].symbol, symbol) != 0) i++;
    calls[i].symbol = symbol;
    const enum cu_result result = fault_find(symbol, ++calls[i].count);
    const enum cu_result any = fault_find("any", ++call_count);
    return result != CU_SUCCESS ? result : any;
}

enum cu_result fake_fault_of_kernel(void) { return fault_find("kernel", ++kernel_count); }

bool fake_is_dropped(const char *kernel) {
    for (size_t i = 0; i < fake_settings.drop_count; i++)
        if (strcmp(fake_settings.drops[i], kernel) == 0) return true;
    return false;
}

bool fake_is_fatal(enum cu_result result) {
    return result == 214 || (result >= 700 && result <= 702) || result == 709 || result == 710 ||
           (result >= 714 && result <= 719) || result == CU_UNKNOWN;
}

__attribute__((visibility("default"))) fake_call_count_function fake_call_count;
uint64_t fake_call_count(const char *symbol) {
    if (symbol == NULL) return call_count;
    for (size_t i = 0; i < SYMBOLS_MAX && calls[i].symbol != NULL; i++)
        if (strcmp(calls[i].symbol, symbol) == 0) return calls[i].count;
    return 0;
}
