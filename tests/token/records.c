#include "records.h"

#include <stdio.h>

#include "testing.h"

bool record_next(char **at, struct record *record) {
    if (**at == '\0') return false;
    int used = 0;
    if (sscanf(*at, "@%15s %31s %zu%n", record->kind, record->argument, &record->length, &used) != 3)
        fail_msg("not a record: %.40s", *at);
    record->text = *at + used + 1;
    assert_int_equal(record->text[record->length], '\n');
    record->text[record->length] = '\0';
    *at = record->text + record->length + 1;
    return true;
}
