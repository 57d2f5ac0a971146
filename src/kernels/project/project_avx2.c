#include "kernels/project/project_rows.h"
