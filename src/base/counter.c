#include "base/counter.h"

static uint64_t *integer_of(const struct counter *counter, void *values) {
    return (uint64_t *)(void *)((char *)values + counter->offset);
}

static double *real_of(const struct counter *counter, void *values) {
    return (double *)(void *)((char *)values + counter->offset);
}

double counter_value(const struct counter *counter, const void *values) {
    const char *member = (const char *)values + counter->offset;
    switch (counter->member) {
    case COUNTER_REAL: return *(const double *)(const void *)member;
    case COUNTER_FLAG: return *(const bool *)member ? 1 : 0;
    case COUNTER_INTEGER: break;
    }
    const double count = (double)*(const uint64_t *)(const void *)member;
    return counter->unit == COUNTER_SECONDS ? count * 1e-9 : count;
}

void counters_add(const struct counter_table *table, void *sum, const void *more) {
    for (size_t i = 0; i < table->count; i++) {
        const struct counter *row = &table->rows[i];
        void *other = (void *)(uintptr_t)more; /* only read */
        const bool grows = row->kind == COUNTER_TOTAL;
        if (row->member == COUNTER_INTEGER)
            *integer_of(row, sum) = *integer_of(row, other) + (grows ? *integer_of(row, sum) : 0);
        else if (row->member == COUNTER_REAL)
            *real_of(row, sum) = *real_of(row, other) + (grows ? *real_of(row, sum) : 0);
        else
            ((bool *)sum)[row->offset] = ((const bool *)more)[row->offset];
    }
}

void counters_subtract(const struct counter_table *table, void *values, const void *before) {
    for (size_t i = 0; i < table->count; i++) {
        const struct counter *row = &table->rows[i];
        void *other = (void *)(uintptr_t)before; /* only read */
        if (row->kind != COUNTER_TOTAL) continue;
        if (row->member == COUNTER_INTEGER)
            *integer_of(row, values) -= *integer_of(row, other);
        else
            *real_of(row, values) -= *real_of(row, other);
    }
}
