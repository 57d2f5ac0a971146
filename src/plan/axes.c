/* axes: --preset, --set and --keep, and the fields of the same names in loam.h. */
#include "plan/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"

/* A word of axis_table ends at '|' or the end. */
static bool is_word(const char *method, const char *word) {
    size_t length = strcspn(method, "|");
    return strlen(word) == length && strncmp(method, word, length) == 0;
}

const char *plan_method(const struct plan *plan, enum axis axis, char *buffer, size_t buffer_bytes) {
    const char *method = plan->methods[axis];
    snprintf(buffer, buffer_bytes, "%.*s", (int)strcspn(method, "|"), method);
    return buffer;
}

/* Those that are not of the select axis. */
static const char resident_name[] = "resident", quantized_name[] = "quantized", key_index_name[] = "key_index",
                  key_index_words[] = "fits, ram or disk";

const char *plan_setting_names(char *buffer, size_t buffer_bytes) {
    const char *name, *words;
    size_t used = 0;
    for (size_t i = 0; (name = select_setting_name(i, &words)) != NULL && used < buffer_bytes; i++)
        used += (size_t)snprintf(buffer + used, buffer_bytes - used, words != NULL ? "%s (%s), " : "%s, ", name, words);
    if (used < buffer_bytes)
        snprintf(buffer + used, buffer_bytes - used, "%s, %s, %s (%s)", resident_name, quantized_name, key_index_name,
                 key_index_words);
    return buffer;
}

static enum status read_key_index(struct plan *plan, const char *word, struct error *error) {
    static const char *const words[] = {
        [PLAN_KEY_INDEX_FITS] = "fits", [PLAN_KEY_INDEX_RAM] = "ram", [PLAN_KEY_INDEX_DISK] = "disk"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(words[i], word) == 0) {
            plan->key_index = (enum plan_key_index)i;
            return STATUS_OK;
        }
    return error_set(error, STATUS_USAGE, "--set %s: found '%s', expected %s", key_index_name, word, key_index_words);
}

/* What --preset auto may lose. */
static enum status read_kld(struct plan *plan, const char *number, struct error *error) {
    char *end;
    plan->kld_max = strtod(number, &end);
    if (plan->is_auto && end != number && *end == '\0' && plan->kld_max > 0 && plan->kld_max < 100) return STATUS_OK;
    if (!plan->is_auto)
        return error_set(error, STATUS_USAGE, "--kld: found --preset %s, expected auto: it chooses by the KLD",
                         plan->preset);
    return error_set(error, STATUS_USAGE, "--kld: found '%s', expected nats above 0, as in 0.02", number);
}

/* A number of the select axis, "bits=256", or a word, "rank=bound". */
static enum status read_number(struct plan *plan, const char *text, size_t length, bool *found, struct error *error) {
    char name[24], number[64];
    uint64_t value;
    size_t name_length = strcspn(text, "="), number_length = length - name_length - 1;
    *found = false;
    if (name_length >= sizeof name || number_length >= sizeof number) return STATUS_OK;
    memcpy(name, text, name_length);
    name[name_length] = '\0';
    memcpy(number, text + name_length + 1, number_length);
    number[number_length] = '\0';
    const char *words;
    *found = true;
    if (strcmp(name, key_index_name) == 0) return read_key_index(plan, number, error);
    if (strcmp(name, "kld") == 0) return read_kld(plan, number, error);
    if (select_option_set_word(&plan->select, name, number, &words)) return STATUS_OK;
    if (words != NULL) return error_set(error, STATUS_USAGE, "--set %s: found '%s', expected %s", name, number, words);
    char *end;
    const double real = strtod(number, &end);
    if (end != number && *end == '\0' && select_option_set_real(&plan->select, name, real, &words)) return STATUS_OK;
    if (words == NULL) (void)select_option_set_real(&plan->select, name, NAN, &words);
    if (words != NULL) return error_set(error, STATUS_USAGE, "--set %s: found '%s', expected %s", name, number, words);
    *found = false;
    const bool resident = strcmp(name, resident_name) == 0, quantized = strcmp(name, quantized_name) == 0;
    struct select_options unused = plan->select;
    if (!resident && !quantized && !select_option_set(&unused, name, 0)) return STATUS_OK;
    *found = true;
    if (!size_parse(number, &value) || value > 1 << 20)
        return error_set(error, STATUS_USAGE, "--set %s: found '%s', expected a number up to 1M", name, number);
    if (select_setting_is_flag(name) && value > 1)
        return error_set(error, STATUS_USAGE, "--set %s: found '%s', expected 0 or 1", name, number);
    if (quantized && value > PAGE_FRACTION_WHOLE)
        return error_set(error, STATUS_USAGE, "--set quantized: found '%s', expected 0 to %d, of 16 pages", number,
                         PAGE_FRACTION_WHOLE);
    if (quantized) {
        plan->fixes_fractions = true;
        plan->quantized_of_16 = (uint8_t)value;
    } else if (resident) {
        plan->resident_layers = (size_t)value;
    } else {
        (void)select_option_set(&plan->select, name, value);
    }
    return STATUS_OK;
}

static void set_codec(struct plan *plan, const char *method) {
    plan->methods[AXIS_CODEC] = method;
    plan->k_type = plan->v_type = is_word(method, "q8") ? KV_Q8 : KV_F16;
    plan->mixes_pages = is_word(method, "dynamic");
    plan->quantized_pages = plan->mixes_pages || is_word(method, "q4");
}

/* "AXIS=METHOD,..." and "NAME=NUMBER,..." */
static enum status read_set(struct plan *plan, const char *text, bool *names_codec, struct error *error) {
    for (const char *c = text; *c != '\0';) {
        size_t length = strcspn(c, ","), method_length;
        if (strcspn(c, "=") >= length)
            return error_set(error, STATUS_USAGE, "--set: found '%.*s', expected NAME=VALUE",
                             (int)(length < 40 ? length : 40), c);
        bool is_number;
        TRY(read_number(plan, c, length, &is_number, error));
        enum axis axis;
        const char *method;
        if (!is_number) {
            TRY(axis_method_parse(c, length, &axis, &method, &method_length, error));
            plan->methods[axis] = method;
            if (axis == AXIS_CODEC) {
                set_codec(plan, method);
                *names_codec = true;
            }
        }
        c += length + (c[length] == ',');
    }
    return STATUS_OK;
}

/* What the user sets.  A codec that is named has no fraction of the preset's. */
static enum status read_own_set(struct plan *plan, const char *text, bool *names_codec, bool *names_fraction,
                                struct error *error) {
    const bool fixes_fractions = plan->fixes_fractions;
    plan->fixes_fractions = false;
    TRY(read_set(plan, text, names_codec, error));
    *names_fraction = plan->fixes_fractions;
    if (!*names_codec && fixes_fractions) plan->fixes_fractions = true;
    return STATUS_OK;
}

/* The preset's row.  Its codec is of what KV would be anyway. */
static enum status read_preset(struct plan *plan, const struct preset *preset, struct error *error) {
    bool unused;
    plan->preset = preset->name;
    plan->is_auto = preset_is_auto(preset);
    plan->kld_max = 0;
    memcpy(plan->methods, preset->methods, sizeof plan->methods);
    plan->select = select_options_default();
    plan->select.list_buffers = true;
    plan->quantized_pages = plan->mixes_pages = plan->fixes_fractions = false;
    plan->key_index = PLAN_KEY_INDEX_FITS;
    plan->resident_layers = SIZE_MAX;
    if (preset->settings != NULL) TRY(read_set(plan, preset->settings, &unused, error));
    if (preset->disk_settings != NULL && plan->disk_directory != NULL)
        TRY(read_set(plan, preset->disk_settings, &unused, error));
    return STATUS_OK;
}

/* Pages in 4 bits are of halves, and not for what reads all keys as rows. */
static bool takes_q4(const struct plan *plan, enum kv_type k_type, enum kv_type v_type) {
    return k_type == KV_F16 && v_type == KV_F16 && !plan->select.method->reads_keys && !plan->select.scan;
}

static bool is_only_loss(const char *set) {
    const char *second = strchr(set, ',');
    const bool first_is = strncmp(set, "loss=", 5) == 0 || strncmp(set, "kld=", 4) == 0;
    return first_is && (second == NULL || is_only_loss(second + 1));
}

const char *plan_default_preset(const char *set, const char *keep) {
    return keep == NULL && (set == NULL || is_only_loss(set)) ? "auto" : "full";
}

enum status plan_set_axes(struct plan *plan, const char *preset_name, const char *set, const char *keep,
                          struct error *error) {
    const struct preset *preset;
    const enum kv_type k_type = plan->k_type, v_type = plan->v_type;
    char name[32];
    bool names_codec = false, names_fraction = false, on_disk = plan->disk_directory != NULL;
    TRY(preset_find(&preset, preset_name != NULL ? preset_name : "full", error));
    TRY(read_preset(plan, preset, error));
    if (plan->is_auto && (keep != NULL || (set != NULL && !is_only_loss(set))))
        return error_set(error, STATUS_USAGE,
                         "--preset auto chooses axes, settings and keep itself; of --set it takes loss and kld alone");
    if (set != NULL) TRY(read_own_set(plan, set, &names_codec, &names_fraction, error));
    if (plan->quantized_pages && !on_disk)
        return error_set(error, STATUS_USAGE, "--set codec=%s: 4 bits are for pages on disk, and there is no --kv-disk",
                         plan_method(plan, AXIS_CODEC, name, sizeof name));
    plan->select.method = select_method_find(plan_method(plan, AXIS_SELECT, name, sizeof name));
    if (!names_codec && plan->quantized_pages && !takes_q4(plan, k_type, v_type)) {
        set_codec(plan, "f16");
        plan->fixes_fractions = names_fraction; /* which is refused below */
    }
    if (!names_codec) {
        plan->k_type = k_type;
        plan->v_type = v_type;
    }
    if (plan->fixes_fractions && !plan->mixes_pages)
        return error_set(error, STATUS_USAGE,
                         "--set quantized: a fraction of the pages in 4 bits is of codec=dynamic with --kv-disk");
    plan->prefetches = is_word(plan->methods[AXIS_SPECULATE], "next-layer");
    const bool reuses = is_word(plan->methods[AXIS_REUSE], "similarity");
    plan->select.reuse.kind = reuses ? REUSE_SIMILARITY : REUSE_NONE;
    if (!plan->prefetches) plan->select.reuse.labels = REUSE_EXACT;
    plan->persistent = is_word(plan->methods[AXIS_PLACE], "persistent");
    if (plan->persistent && !reuses)
        return error_set(error, STATUS_USAGE,
                         "--set place=persistent: heads that are hard to reuse are a question with "
                         "reuse=similarity only");
    plan->rebuilds = is_word(plan->methods[AXIS_REBUILD], "recompute") && on_disk;
    const bool lru = is_word(plan->methods[AXIS_REUSE], "lru"), lfu = is_word(plan->methods[AXIS_REUSE], "lfu");
    plan->eviction = lru ? KV_EVICT_LRU : lfu ? KV_EVICT_LFU : KV_EVICT_FREQUENCY_ADMITTED;
    if ((lru || lfu) && !on_disk)
        return error_set(error, STATUS_USAGE,
                         "--set reuse=%s: what goes when RAM is full is a question with --kv-disk only",
                         plan_method(plan, AXIS_REUSE, name, sizeof name));
    if (plan->select.loss > 0) plan->select.receipt = true;
    if (plan->is_auto) return select_keep_parse(&plan->select.keep, "100%", error);
    if (keep == NULL && plan->select.loss > 0) keep = "100%"; /* what is left out decides */
    if (keep == NULL) keep = on_disk && preset->disk_keep != NULL ? preset->disk_keep : preset->keep;
    TRY(select_keep_parse(&plan->select.keep, keep, error));
    if (plan->resident_layers == SIZE_MAX) /* not given: what every step reads whole */
        plan->resident_layers = on_disk && plan->select.method != &select_all ? plan->select.dense_layers : 0;
    if (plan->persistent && on_disk && plan->resident_layers == 0)
        plan->resident_layers = 1; /* nothing prefetches for it */
    bool everything = plan->select.keep.ratio == 0 && plan->select.keep.tokens == UINT64_MAX;
    if (plan->select.method == &select_all && !everything)
        return error_set(error, STATUS_USAGE,
                         "--keep %.40s: select=all keeps 100%%; choose --preset or --set select=METHOD", keep);
    if (plan->select.method == &select_all && plan->select.loss > 0)
        return error_set(error, STATUS_USAGE,
                         "--loss: select=all leaves nothing out; choose --preset or --set select=METHOD");
    return STATUS_OK;
}

const char *plan_text(const struct plan *plan, char *buffer, size_t buffer_bytes) {
    const struct preset *preset = NULL;
    char keep[32], usual[32], method[32];
    struct select_keep usual_keep;
    struct error unused;
    if (preset_find(&preset, plan->preset, &unused) != STATUS_OK) return plan->preset;
    size_t used = (size_t)snprintf(buffer, buffer_bytes, "%s", plan->preset);
    plan_method(plan, AXIS_SELECT, method, sizeof method);
    if (!is_word(preset->methods[AXIS_SELECT], method))
        used += (size_t)snprintf(buffer + used, buffer_bytes - used, " select=%s", method);
    if (select_keep_parse(&usual_keep, preset->keep, &unused) != STATUS_OK) return buffer;
    select_keep_text(plan->select.keep, keep, sizeof keep);
    if (strcmp(keep, select_keep_text(usual_keep, usual, sizeof usual)) != 0)
        snprintf(buffer + used, buffer_bytes - used, " keep %s", keep);
    return buffer;
}

const char *plan_caveat(const struct plan *plan) {
    if (!plan->mixes_pages || plan->fixes_fractions || plan->fractions.layer_count > 0) return NULL;
    return "codec=dynamic: how many pages are in 4 bits follows --kv-host and what is measured here when a document is "
           "made, and answers follow it; --set quantized=N fixes it";
}
