/* match: scores answers by the references they contain, and gives the confidence of mean scores. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Is part[part_length] in text[length]?  ASCII letters match in either case. */
bool match_contains(const char *text, size_t length, const char *part, size_t part_length);

/* RULER's string_match_all: the fraction of the references that the answer contains. */
double match_all(const char *answer, size_t length, const char *const *references, size_t count);
/* RULER's string_match_part: 1 if the answer contains any of them, else 0. */
double match_part(const char *answer, size_t length, const char *const *references, size_t count);

/* Wilson's score interval for a proportion, 95% (z = 1.959964), clipped to [0, 1].  `sum` may be a sum of
 * fractions (string_match_all with several answers): the interval is then wide enough or wider, because a
 * value in [0, 1] of a given mean varies most if it is always 0 or 1. */
struct interval {
    double low, high;
};
struct interval match_wilson(double sum, size_t count);

/* The mean over tasks of their means, and its standard error where no two tasks have samples in common:
 *   sqrt(sum_t s_t^2 / n_t) / T,  s_t^2 the variance of the scores of task t's n_t samples (divided by n_t - 1).
 * Tasks without samples count for nothing.  The error is NaN when a task has one sample only, or none has any; it is
 * 0 when each task's scores are all alike. */
struct task_scores {
    double sum, squares;
    size_t count;
};
struct mean_of_tasks {
    double mean, error;
    size_t count; /* T */
};
struct mean_of_tasks match_mean(const struct task_scores *tasks, size_t stride, size_t count);
