#include "plan/axes.h"

#include <stdio.h>
#include <string.h>

#include "base/size.h"

const char *axis_method_text(const char *method, char *buffer, size_t buffer_bytes) {
    snprintf(buffer, buffer_bytes, "%.*s", (int)strcspn(method, "|"), method);
    return buffer;
}

static const char resident_name[] = "resident"; /* the one that is not of the select axis */

const char *axes_setting_names(char *buffer, size_t buffer_bytes) {
    const char *name, *words;
    size_t used = 0;
    for (size_t i = 0; (name = select_setting_name(i, &words)) != NULL && used < buffer_bytes; i++)
        used += (size_t)snprintf(buffer + used, buffer_bytes - used, words != NULL ? "%s (%s), " : "%s, ",
                                 name, words);
    if (used < buffer_bytes) snprintf(buffer + used, buffer_bytes - used, "%s", resident_name);
    return buffer;
}

/* A number of the select axis, "bits=256", or a word, "rank=bound". */
static enum status read_number(struct axes *axes, const char *text, size_t length, bool *found,
                               struct error *error) {
    char name[16], number[24];
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
    if (select_option_set_word(&axes->select, name, number, &words)) return STATUS_OK;
    if (words != NULL)
        return error_set(error, STATUS_USAGE, "--set %s: found '%s', expected %s", name, number, words);
    *found = false;
    bool resident = strcmp(name, resident_name) == 0;
    struct select_options unused = axes->select;
    if (!resident && !select_option_set(&unused, name, 0)) return STATUS_OK;
    *found = true;
    if (!size_parse(number, &value) || value > 1 << 20)
        return error_set(error, STATUS_USAGE, "--set %s: found '%s', expected a number up to 1M", name,
                         number);
    if (resident)
        axes->resident_layers = (size_t)value;
    else
        (void)select_option_set(&axes->select, name, value);
    return STATUS_OK;
}

static void set_codec(struct axes *axes, const char *method) {
    axes->methods[AXIS_CODEC] = method;
    axes->k_type = axes->v_type = strncmp(method, "q8", 2) == 0 ? KV_Q8 : KV_F16;
    axes->mixes_pages = strncmp(method, "dynamic", 7) == 0;
    axes->q4_pages = axes->mixes_pages || strncmp(method, "q4", 2) == 0;
}

/* "AXIS=METHOD,..." and "NAME=NUMBER,..." */
static enum status read_set(struct axes *axes, const char *text, bool *names_codec, struct error *error) {
    for (const char *c = text; *c != '\0';) {
        size_t length = strcspn(c, ","), method_length;
        if (strcspn(c, "=") >= length)
            return error_set(error, STATUS_USAGE, "--set: found '%.*s', expected AXIS=METHOD",
                             (int)(length < 40 ? length : 40), c);
        bool is_number;
        TRY(read_number(axes, c, length, &is_number, error));
        enum axis axis;
        const char *method;
        if (!is_number) {
            TRY(axis_method_parse(c, length, &axis, &method, &method_length, error));
            axes->methods[axis] = method;
            if (axis == AXIS_CODEC) {
                set_codec(axes, method);
                *names_codec = true;
            }
        }
        c += length + (c[length] == ',');
    }
    return STATUS_OK;
}

enum status axes_read(struct axes *axes, const char *preset_name, const char *set, const char *keep,
                      struct error *error) {
    const struct preset *preset;
    char name[32];
    TRY(preset_find(&preset, preset_name != NULL ? preset_name : "full", error));
    axes->preset = preset->name;
    memcpy(axes->methods, preset->methods, sizeof axes->methods);
    axes->select = select_options_default();
    bool names_codec = false, compresses = false;
    axes->q4_pages = axes->mixes_pages = false;
    if (strcmp(axes->preset, "leoam") == 0) axes->select.heads = SELECT_HEADS_IMPORTANCE;
    if (axes->on_disk && strcmp(axes->preset, "leoam") == 0) {
        /* Whole chunks are what is read, and finer metadata would take the budget; layers that read everything would
         * take the disk. */
        axes->select.leaf = KV_CHUNK_TOKENS;
        axes->select.dense_layers = 0;
        compresses = axes->k_type == KV_F16 && axes->v_type == KV_F16;
        if (compresses) set_codec(axes, "dynamic");
    }
    axes->resident_layers = SIZE_MAX;
    if (set != NULL) TRY(read_set(axes, set, &names_codec, error));
    if (axes->q4_pages && !axes->on_disk)
        return error_set(error, STATUS_USAGE,
                         "--set codec=%s: 4 bits are for pages on disk, and there is no --kv-disk",
                         axis_method_text(axes->methods[AXIS_CODEC], name, sizeof name));
    axes->select.method = select_method_find(axis_method_text(axes->methods[AXIS_SELECT], name, sizeof name));
    if (compresses && !names_codec && (axes->select.method->reads_keys || axes->select.scan))
        set_codec(axes, "f16"); /* all keys are read as rows */
    TRY(select_keep_parse(&axes->select.keep, keep != NULL ? keep : preset->keep, error));
    if (axes->resident_layers == SIZE_MAX) /* not given: what every step reads whole */
        axes->resident_layers =
            axes->on_disk && axes->select.method != &select_all ? axes->select.dense_layers : 0;
    bool everything = axes->select.keep.ratio == 0 && axes->select.keep.tokens == UINT64_MAX;
    if (axes->select.method == &select_all && !everything)
        return error_set(error, STATUS_USAGE,
                         "--keep %.40s: select=all keeps 100%%; choose --preset or --set select=METHOD",
                         keep);
    return STATUS_OK;
}
