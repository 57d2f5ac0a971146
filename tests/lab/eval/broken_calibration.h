/* broken_calibration: the bundled model with a calibration of which one kind of tensor has no effect, so that a test
 * of a selection by it can be seen to fail. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* data: a tensor's halves, [rows][columns], rows being all but the first dimension. */
typedef void calibration_breaker(uint8_t *data, size_t rows, size_t columns);

/* Breaks every tensor "blk.N.<kind>..." ("hash_", "skew") and writes the model's path, a link to the bundled one. */
void broken_calibration_write(const char *kind, calibration_breaker *breaker, char model_path[200]);
