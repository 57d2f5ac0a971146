#include "plan/presets.h"

#include <stdio.h>
#include <string.h>

const struct axis_info axis_table[AXIS_COUNT] = {
    [AXIS_SELECT] = {"select", "all|window|quest|meanstd|hash|h2o|lowrank|tree|cluster|pq|exact", ""},
    [AXIS_REUSE] = {"reuse", "none|similarity|lru|lfu", ""},
    [AXIS_SPECULATE] = {"speculate", "none|next-layer", ""},
    [AXIS_PLACE] = {"place", "even|persistent", "hot"},
    [AXIS_MOVE] = {"move", "direct", "staged"},
    [AXIS_CODEC] = {"codec", "f16|q8|q4|dynamic", ""},
    [AXIS_REBUILD] = {"rebuild", "none|recompute", ""},
    [AXIS_SCHEDULE] = {"schedule", "row", "column"},
};

/* The axes after select are the same in every row that is built. */
#define FIXED_AXES "none", "none", "even", "direct", "f16", "none", "row"

const struct preset preset_table[] = {
    {.name = "full", .summary = "everything, exactly", .methods = {"all", FIXED_AXES}, .keep = "100%"},
    {.name = "streaming",
     .summary = "the first and the last tokens (StreamingLLM)",
     .methods = {"window", FIXED_AXES},
     .keep = "2048"},
    {.name = "quest",
     .summary = "pages by the bound of their keys (Quest)",
     .methods = {"quest", FIXED_AXES},
     .keep = "2048"},
    {.name = "hata",
     .summary = "tokens by hash codes (HATA)",
     .methods = {"hash", FIXED_AXES},
     .keep = "2048"},
    {.name = "h2o",
     .summary = "tokens by the attention they received (H2O)",
     .methods = {"h2o", FIXED_AXES},
     .keep = "20%"},
    {.name = "infinigen",
     .summary = "tokens by skewed partial keys (InfiniGen)",
     .methods = {"lowrank", FIXED_AXES},
     .keep = "20%"},
    /* As published: chosen by the queries that the layer before expects (lists are kept while these are the same, so
     * never), as many as weigh within e^-alpha of the best. */
    {.name = "infinigen-published",
     .summary = "the same by expected queries, as many as weigh enough",
     .methods = {"lowrank", "similarity", "next-layer", "even", "direct", "f16", "none", "row"},
     .keep = "20%",
     .settings = "alpha=5,eta=1,power=0"},
    /* By what a real language model loses at equal bytes read (decision 0024).  On disk whole chunks are read, in 4
     * bits, by the best token in them: codes of a bit a coordinate find those that abstracts miss (0058); 22% of a
     * short context is too few chunks (0034).  leaf=64 is for --set select=tree. */
    {.name = "leoam",
     .summary = "leaves of a tree; from disk pages by codes of their tokens, without a tree (after LeoAM)",
     .methods = {"tree", "none", "next-layer", "even", "direct", "f16", "none", "row"},
     .keep = "10%",
     .settings = "rank=meanstd,dense=0",
     .disk_keep = "22%",
     .disk_settings = "select=hash,planes=1,page=64,leaf=64,units_min=20,group=softmax,codec=dynamic,quantized=16"},
    /* LeoAM's own options: chunks by the upper bound of their keys, which from disk are whole chunks of 64 (abstracts
     * on disk are not split, 4.3: a tree of one level), the first two layers dense and in RAM, a tenth kept, 4.4's
     * fraction in 4 bits, the next layer read ahead.  What differs: docs/papers.md. */
    {.name = "leoam-published",
     .summary = "chunks by the bound of their keys, in a tree where they are in RAM (LeoAM)",
     .methods = {"tree", "none", "next-layer", "even", "direct", "f16", "none", "row"},
     .keep = "10%",
     .settings = "rank=bound,group=max,leaf=8,dense=2,units_min=0",
     .disk_settings = "leaf=64,codec=dynamic"},
    {.name = "flexgen",
     .summary = "everything, exactly, from slower tiers (FlexGen)",
     .methods = {"all", FIXED_AXES},
     .keep = "100%"},
    /* Bits and share are CLO's; codes, thresholds, labels and an age by what a real model loses (decision 0035). */
    {.name = "clo",
     .summary = "selections kept while queries stay alike (CLO)",
     .methods = {"hash", "similarity", "next-layer", "even", "direct", "f16", "none", "row"},
     .keep = "10%",
     .settings = "bits=256,reused=0.5,labels=exact"},
    /* CLO's own options (3.1 to 3.3, 4.2, 6.1): HATA's signs of 256 bits, summed over the group; eta and p; no age;
     * every layer chooses, and the first one stays.  epsilon is that of Llama-3-8B. */
    {.name = "clo-published",
     .summary = "the same by thresholds and labels of the paper",
     .methods = {"hash", "similarity", "next-layer", "persistent", "direct", "f16", "none", "row"},
     .keep = "10%",
     .settings =
         "code=sign,bits=256,group=sum,dense=0,units_min=0,reused=0,eta=0.8,power=3,epsilon=0.1,age=0,"
         "similarity=harmonic,labels=speculated"},
    /* As published, but for the segments that are clustered, which are chunks. */
    {.name = "retroinfer",
     .summary = "clusters of keys, and an estimate of the rest (RetroInfer)",
     .methods = {"cluster", FIXED_AXES},
     .keep = "1.8%"},
    /* As published, but for the codebook, which is of the 1,024 tokens before a token. */
    {.name = "pqcache",
     .summary = "tokens by product codes of their keys (PQCache)",
     .methods = {"pq", FIXED_AXES},
     .keep = "10%",
     .settings = "sinks=32,recent_fraction=0.5",
     .disk_settings = "reuse=lfu"},
    {.name = "kvpr",
     .summary = "everything, exactly, part of it computed again instead of read (KVPR)",
     .methods = {"all", "none", "none", "even", "direct", "f16", "recompute", "row"},
     .keep = "100%"},
    /* Until measure/auto.h has taken another row. */
    {.name = "auto",
     .summary = "full, or what is quickest of what --loss allows",
     .methods = {"all", FIXED_AXES},
     .keep = "100%"},
};
const size_t preset_count = sizeof preset_table / sizeof preset_table[0];

const char *preset_names(char *buffer, size_t buffer_bytes) {
    size_t used = 0;
    buffer[0] = '\0';
    for (size_t i = 0; i < preset_count && used < buffer_bytes; i++)
        if (preset_is_built(&preset_table[i]))
            used += (size_t)snprintf(buffer + used, buffer_bytes - used, "%s%s", used > 0 ? ", " : "",
                                     preset_table[i].name);
    return buffer;
}

enum status preset_find(const struct preset **preset, const char *name, struct error *error) {
    char names[200];
    for (size_t i = 0; i < preset_count; i++) {
        if (strcmp(preset_table[i].name, name) != 0) continue;
        *preset = &preset_table[i];
        if (preset_is_built(*preset)) return STATUS_OK;
        return error_set(error, STATUS_USAGE, "--preset %s (%s) is not built yet; this build has %s", name,
                         (*preset)->summary, preset_names(names, sizeof names));
    }
    return error_set(error, STATUS_USAGE, "--preset: no preset '%.40s'; this build has %s", name,
                     preset_names(names, sizeof names));
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
    while (found < AXIS_COUNT && !(strlen(axis_table[found].name) == axis_length &&
                                   strncmp(axis_table[found].name, text, axis_length) == 0))
        found++;
    if (found == AXIS_COUNT) {
        char names[160] = "";
        for (size_t i = 0; i < AXIS_COUNT; i++) {
            size_t used = strlen(names);
            snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? ", " : "", axis_table[i].name);
        }
        return error_set(error, STATUS_USAGE,
                         "--set: no axis '%.*s'; the axes are %s; loam help run lists the numbers",
                         (int)(axis_length < 40 ? axis_length : 40), text, names);
    }
    *axis = (enum axis)found;
    *method_length = length - axis_length - 1;
    *method = word_find(axis_table[found].methods, text + axis_length + 1, *method_length);
    if (*method != NULL) return STATUS_OK;
    bool later = word_find(axis_table[found].later, text + axis_length + 1, *method_length) != NULL;
    return error_set(error, STATUS_USAGE, "--set %s: %s '%.*s'%s; this build has %s", axis_table[found].name,
                     later ? "method" : "no method", (int)(*method_length < 40 ? *method_length : 40),
                     text + axis_length + 1, later ? " is not built yet" : "", axis_table[found].methods);
}
