/* reference_names: the names of HTML's character references, as the standard lists them: "amp;" and "amp". */
#pragma once

#include <stddef.h>

struct reference_name {
    const char *name, *text; /* text: UTF-8 */
};
extern const struct reference_name reference_names[]; /* [reference_name_count], sorted by the bytes of the name */
extern const size_t reference_name_count;
