/* A library that is no driver: it lacks most calls. */
#include <stdint.h>

int cuInit(unsigned flags);
int cuDriverGetVersion(int32_t *version);

int cuInit(unsigned flags) { return (int)flags; }

int cuDriverGetVersion(int32_t *version) {
    *version = 12040;
    return 0;
}
