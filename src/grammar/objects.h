/* objects: the form of an object by all the schemas that it must meet. */
#ifndef LOAM_GRAMMAR_OBJECTS_H
#define LOAM_GRAMMAR_OBJECTS_H

#include "grammar/reader.h"

enum status object_read(const struct reader *reader, struct form *form, struct error *error) STATUS_CHECKED;

#endif
