#include "base/size.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

bool size_parse(const char *text, uint64_t *value) {
    if (!isdigit((unsigned char)text[0])) return false;
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (errno != 0) return false;
    unsigned shift = 0;
    switch (toupper((unsigned char)*end)) {
    case 'K': shift = 10; break;
    case 'M': shift = 20; break;
    case 'G': shift = 30; break;
    case 'T': shift = 40; break;
    default: break;
    }
    if (shift != 0) end++;
    if (shift != 0 && end[0] == 'i' && end[1] == 'B') end += 2; /* 512MiB is the same thing */
    if (*end != '\0' || number > UINT64_MAX >> shift) return false;
    *value = (uint64_t)number << shift;
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
