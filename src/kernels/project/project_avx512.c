#define FLOATS_512
#include "kernels/project/project_rows.h"
