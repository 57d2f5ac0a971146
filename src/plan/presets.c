#include "plan/presets.h"

#include <stdio.h>
#include <string.h>

#include "attention/select.h"
#include "base/assert.h"

struct axis_info axis_table[AXIS_COUNT] = {
    [AXIS_SELECT] = {"select", NULL},
    [AXIS_REUSE] = {"reuse", "none|similarity"},
    [AXIS_SPECULATE] = {"speculate", "none|next-layer"},
    [AXIS_PLACE] = {"place", "even|persistent"},
    [AXIS_CODEC] = {"codec", "f16|q8|q4|dynamic"},
    [AXIS_REBUILD] = {"rebuild", "none|recompute"},
};

static const struct preset own[] = {
    {.name = "full",
     .summary = "everything, exactly",
     .methods = {"all", "none", "none", "even", "f16", "none"},
     .keep = "100%"},
    {.name = "meanstd",
     .summary = "pages by mean and deviation of their keys",
     .methods = {"meanstd", "none", "none", "even", "f16", "none"},
     .keep = "2048",
     .planning = PRESET_DIALS,
     .measured = "meanstd"},
    {.name = "hata",
     .summary = "tokens by hash codes (HATA)",
     .methods = {"hash", "none", "none", "even", "f16", "none"},
     .keep = "2048",
     .planning = PRESET_DIALS,
     .measured = "hata"},
    /* By what a real language model loses at equal bytes read (decision 0024).  On disk whole chunks are read, in 4
     * bits, by the best token in them: codes of a bit a coordinate find those that abstracts miss (0058); 22% of a
     * short context is too few chunks (0034).  leaf=64 is for --set select=tree. */
    {.name = "leoam",
     .summary = "leaves of a tree; from disk pages by codes of their tokens, without a tree (after LeoAM)",
     .methods = {"tree", "none", "next-layer", "even", "f16", "none"},
     .keep = "10%",
     .settings = "rank=meanstd,dense=0",
     .disk_keep = "22%",
     .disk_settings = "select=hash,planes=1,page=64,leaf=64,units_min=20,group=softmax,codec=dynamic,quantized=16",
     .planning = PRESET_DIALS,
     .measured = "leoam"},
    {.name = "flexgen",
     .summary = "everything, exactly, from slower tiers (FlexGen)",
     .methods = {"all", "none", "none", "even", "f16", "none"},
     .keep = "100%"},
    /* Bits and share are CLO's; codes, thresholds, labels and an age by what a real model loses (decision 0035).
     * Nothing is reused of a measurement's random rows. */
    {.name = "clo",
     .summary = "selections kept while queries stay alike (CLO)",
     .methods = {"hash", "similarity", "next-layer", "even", "f16", "none"},
     .keep = "10%",
     .settings = "bits=256,reused=0.5,labels=exact",
     .planning = PRESET_IS_PLANNED,
     .measured = "hata",
     .measured_set = "bits=256"},
    {.name = "kvpr",
     .summary = "everything, exactly, part of it computed again instead of read (KVPR)",
     .methods = {"all", "none", "none", "even", "f16", "recompute"},
     .keep = "100%"},
    /* Until measure/auto.h has taken another row. */
    {.name = "auto",
     .summary = "full, or what is quickest of what --loss allows",
     .methods = {"all", "none", "none", "even", "f16", "none"},
     .keep = "100%"},
};
const struct preset *preset_table[PRESETS_MAX] = {&own[0], &own[1], &own[2], &own[3],
                                                  &own[4], &own[5], &own[6], &own[7]};
size_t preset_count = sizeof own / sizeof own[0];

void preset_add(const struct preset *preset) {
    ASSERT(preset_count < PRESETS_MAX);
    preset_table[preset_count++] = preset;
}

const char *preset_names(char *buffer, size_t buffer_bytes) {
    size_t used = 0;
    buffer[0] = '\0';
    for (size_t i = 0; i < preset_count && used < buffer_bytes; i++)
        used +=
            (size_t)snprintf(buffer + used, buffer_bytes - used, "%s%s", used > 0 ? ", " : "", preset_table[i]->name);
    return buffer;
}

bool preset_is_of_lab(const char *name, size_t length) {
    static const char *const names[] = {"retroinfer", "h2o",           "infinigen", "infinigen-published", "pqcache",
                                        "quest",      "clo-published", "streaming", "leoam-published"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == length && memcmp(names[i], name, length) == 0) return true;
    return false;
}

enum status preset_find(const struct preset **preset, const char *name, struct error *error) {
    char names[320];
    for (size_t i = 0; i < preset_count; i++) {
        if (strcmp(preset_table[i]->name, name) != 0) continue;
        *preset = preset_table[i];
        return STATUS_OK;
    }
    preset_names(names, sizeof names);
    if (preset_is_of_lab(name, strlen(name)))
        return error_set(error, STATUS_USAGE,
                         "--preset: no preset '%s'; there are %s; %s is in loam-lab, which has every command of loam",
                         name, names, name);
    return error_set(error, STATUS_USAGE, "--preset: no preset '%.40s'; there are %s", name, names);
}

/* The word of "a|b|c" that is text; NULL: none. */
static const char *word_find(const char *words, const char *text, size_t length) {
    for (const char *word = words; *word != '\0';) {
        size_t n = strcspn(word, "|");
        if (n == length && strncmp(word, text, n) == 0) return word;
        word += n + (word[n] == '|');
    }
    return NULL;
}

enum status axis_method_parse(const char *text, size_t length, enum axis *axis, const char **method,
                              size_t *method_length, struct error *error) {
    size_t axis_length = strcspn(text, "="), found = 0;
    while (found < AXIS_COUNT &&
           !(strlen(axis_table[found].name) == axis_length && strncmp(axis_table[found].name, text, axis_length) == 0))
        found++;
    if (found == AXIS_COUNT) {
        char names[160] = "";
        for (size_t i = 0; i < AXIS_COUNT; i++) {
            size_t used = strlen(names);
            snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? ", " : "", axis_table[i].name);
        }
        return error_set(error, STATUS_USAGE,
                         "--set: no setting '%.*s'; there are %s, and those that loam help run lists",
                         (int)(axis_length < 40 ? axis_length : 40), text, names);
    }
    *axis = (enum axis)found;
    *method_length = length - axis_length - 1;
    char names[160];
    const char *methods = axis_table[found].methods;
    if (methods == NULL) {
        for (size_t i = 0; i < select_method_count; i++) {
            *method = select_methods[i]->name;
            if (strlen(*method) == *method_length && memcmp(*method, text + axis_length + 1, *method_length) == 0)
                return STATUS_OK;
        }
        methods = select_method_names(names, sizeof names);
    } else {
        *method = word_find(methods, text + axis_length + 1, *method_length);
        if (*method != NULL) return STATUS_OK;
    }
    return error_set(error, STATUS_USAGE, "--set %s: no method '%.*s'; there are %s", axis_table[found].name,
                     (int)(*method_length < 40 ? *method_length : 40), text + axis_length + 1, methods);
}
