/* window: the first tokens and the last ones (Xiao et al. 2023, StreamingLLM).  Differs from [streaming]: tokens keep
 * their positions, where the paper renumbers those in its cache; what is out of the window is still stored. */
#include "attention/select_method.h"

const struct select_method select_window = {
    .name = "window", .summary = "the first and the last tokens", .layout = select_layout_none, .recent_fraction = 1};
