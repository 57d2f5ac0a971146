#include "lab/eval/match.h"

#include <ctype.h>
#include <math.h>

bool match_contains(const char *text, size_t length, const char *part, size_t part_length) {
    for (size_t i = 0; i + part_length <= length; i++) {
        size_t same = 0;
        while (same < part_length && tolower((unsigned char)text[i + same]) == tolower((unsigned char)part[same]))
            same++;
        if (same == part_length) return true;
    }
    return false;
}

static size_t held(const char *answer, size_t length, const char *const *references, size_t count) {
    size_t found = 0;
    for (size_t i = 0; i < count; i++) {
        size_t part_length = 0;
        while (references[i][part_length] != '\0') part_length++;
        found += match_contains(answer, length, references[i], part_length);
    }
    return found;
}

double match_all(const char *answer, size_t length, const char *const *references, size_t count) {
    return (double)held(answer, length, references, count) / (double)count;
}

double match_part(const char *answer, size_t length, const char *const *references, size_t count) {
    return held(answer, length, references, count) > 0 ? 1 : 0;
}

struct interval match_wilson(double sum, size_t count) {
    if (count == 0) return (struct interval){0, 1};
    const double z = 1.959963984540054;
    double n = (double)count, p = sum / n, z2 = z * z / n;
    double centre = (p + z2 / 2) / (1 + z2);
    double half = z / (1 + z2) * sqrt(p * (1 - p) / n + z2 / (4 * n));
    return (struct interval){fmax(0, centre - half), fmin(1, centre + half)};
}

struct mean_of_tasks match_mean(const struct task_scores *tasks, size_t stride, size_t count) {
    struct mean_of_tasks mean = {0};
    double variance = 0;
    for (size_t i = 0; i < count; i++) {
        const struct task_scores *task = &tasks[i * stride];
        const double n = (double)task->count;
        if (task->count == 0) continue;
        mean.mean += task->sum / n;
        variance += task->count > 1 ? fmax(0, task->squares - task->sum * task->sum / n) / (n - 1) / n : NAN;
        mean.count++;
    }
    if (mean.count > 0) mean.mean /= (double)mean.count;
    mean.error = mean.count > 0 ? sqrt(variance) / (double)mean.count : NAN;
    return mean;
}
