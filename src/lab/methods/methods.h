/* methods: selections and presets that are there to be compared with.  A file each, which adds its rows to the tables
 * of attention/select.h and plan/presets.h before main, so that a program has them by linking this folder. */
#pragma once

#include "attention/select.h"

extern const struct select_method select_quest, select_h2o, select_lowrank, select_cluster, select_product,
    select_exact;
