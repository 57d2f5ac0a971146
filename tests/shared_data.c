#include "shared_data.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

const char *shared_path(const char *name, char path[512]) {
    const char *roots[] = {getenv("LOAM_SHARED"), LOAM_SOURCE_DIR "/../shared",
                           LOAM_SOURCE_DIR "/../../shared"};
    for (size_t i = 0; i < sizeof roots / sizeof roots[0]; i++) {
        if (!roots[i]) continue;
        snprintf(path, 512, "%s/data/%s", roots[i], name);
        if (access(path, R_OK) == 0) return path;
    }
    return NULL;
}
