#include "base/size.h"

#include <ctype.h>
#include <errno.h>
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
