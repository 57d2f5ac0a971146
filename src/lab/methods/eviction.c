/* eviction: which chunks leave RAM, as caches of other systems have it: the longest unused, the least used. */
#include "plan/presets.h"

__attribute__((constructor)) static void add(void) { axis_table[AXIS_REUSE].methods = "none|similarity|lru|lfu"; }
