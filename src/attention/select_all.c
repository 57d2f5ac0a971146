/* all: everything is attended to; keep is ignored. */
#include "attention/select_method.h"

const struct select_method select_all = {
    .name = "all", .summary = "every token", .layout = select_layout_none, .recent_fraction = 1};
