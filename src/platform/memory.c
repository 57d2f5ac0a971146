#include "platform/memory.h"

#include <stdio.h>

uint64_t memory_available_bytes(void) {
    FILE *file = fopen("/proc/meminfo", "re");
    if (file == NULL) return UINT64_MAX;
    char line[128];
    unsigned long long kib;
    uint64_t bytes = UINT64_MAX;
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) bytes = kib * 1024;
    fclose(file);
    return bytes;
}
