/* settings: names of --set that nobody should choose for answers: of the lab's methods, of papers' ablations, and of
 * parts that are left out to see what they do. */
#include <stddef.h>

#include "attention/select_method.h"

static const struct select_setting settings[] = {
    {"partitions", NULL, offsetof(struct select_options, partitions), false},
    {"codebook", NULL, offsetof(struct select_options, codebook), false},
    {"candidates", NULL, offsetof(struct select_options, candidates), false},
    {"stays", NULL, offsetof(struct select_options, stays), true},
    {"take", NULL, offsetof(struct select_options, take), false},
    {"mass_bound", NULL, offsetof(struct select_options, mass_bound), true},
    {"heads", "even or importance", 0, false},
    {"scan", NULL, offsetof(struct select_options, scan), true},
    {"similarity", "harmonic or minimum", 0, false},
    {"list_buffer", NULL, offsetof(struct select_options, list_buffers), true},
};
static const struct select_real real_settings[] = {
    {"alpha", offsetof(struct select_options, alpha), 0, 100, "a number from 0 to 100"},
    {"eta", offsetof(struct select_options, reuse.eta), -1, 2, "a number from -1 to 2, above 1: reuses nothing"},
    {"listed", offsetof(struct select_options, listed), 1, 100, "a factor from 1 to 100"},
    {"recent_fraction", offsetof(struct select_options, recent_fraction), 0, 1, "a fraction of keep, 0 to 1"},
    {"power", offsetof(struct select_options, reuse.power), 0, 100, "a number from 0 to 100"},
    {"epsilon", offsetof(struct select_options, reuse.epsilon), -2, 2, "a number from -2 to 2"},
};
static const struct select_word setting_words[] = {
    {"heads", "even", offsetof(struct select_options, heads), SELECT_HEADS_EVEN},
    {"heads", "importance", offsetof(struct select_options, heads), SELECT_HEADS_IMPORTANCE},
    {"similarity", "harmonic", offsetof(struct select_options, reuse.aggregate), LABEL_HARMONIC},
    {"similarity", "minimum", offsetof(struct select_options, reuse.aggregate), LABEL_MINIMUM},
};

__attribute__((constructor)) static void add(void) {
    static const struct select_settings all = {settings,
                                               real_settings,
                                               setting_words,
                                               sizeof settings / sizeof *settings,
                                               sizeof real_settings / sizeof *real_settings,
                                               sizeof setting_words / sizeof *setting_words};
    select_settings_add(&all);
}
