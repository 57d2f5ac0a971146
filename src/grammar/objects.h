/* objects: the form of an object by all the schemas that it must meet. */
#pragma once

#include "grammar/reader.h"

enum status object_read(const struct reader *reader, struct form *form, struct error *error) STATUS_CHECKED;
