#include "base/size.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool size_parse(const char *text, uint64_t *value) {
    if (!isdigit((unsigned char)text[0])) return false;
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (errno != 0) return false;
    uint64_t bytes = number, step = 1024;
    const char *units = strchr("TGMK", toupper((unsigned char)*end));
    size_t power = 0;
    if (*end != '\0' && units != NULL) {
        power = strlen(units);
        end++;
        if (*end == 'B') step = 1000; /* "512MB", as disks are sold */
        end += *end == 'B' ? 1 : end[0] == 'i' && end[1] == 'B' ? 2 : 0;
    }
    if (*end != '\0') return false;
    for (; power > 0; power--)
        if (__builtin_mul_overflow(bytes, step, &bytes)) return false;
    *value = bytes;
    return true;
}

const char *bytes_text(uint64_t bytes, char *buffer, size_t buffer_bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t unit = 0;
    double value = (double)bytes;
    while (value >= 1024 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1024;
        unit++;
    }
    snprintf(buffer, buffer_bytes, unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
    return buffer;
}
