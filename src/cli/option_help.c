#include "cli/option_help.h"

#include <stdio.h>
#include <string.h>

#include "plan/plan.h"
#include "plan/presets.h"

const char *const option_group_titles[GROUP_COUNT] = {
    [GROUP_INPUT] = "Input",          [GROUP_OUTPUT] = "Output",     [GROUP_MACHINE] = "Machine",
    [GROUP_CACHE] = "Context memory", [GROUP_SAMPLING] = "Sampling", [GROUP_TEST] = "Tests",
    [GROUP_GENERAL] = "General",
};

/* Copies help and fills in the tables it refers to.  Returns the length. */
static size_t fill_in(const char *help, char *text, size_t text_bytes) {
    static const struct {
        const char *name;
        const char *(*names)(char *buffer, size_t buffer_bytes);
    } tables[] = {{"{presets}", preset_names}, {"{settings}", plan_setting_names}};
    char names[480];
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        const char *at = strstr(help, tables[i].name);
        if (at == NULL) continue;
        return (size_t)snprintf(text, text_bytes, "%.*s%s%s", (int)(at - help), help,
                                tables[i].names(names, sizeof names), at + strlen(tables[i].name));
    }
    return (size_t)snprintf(text, text_bytes, "%s", help);
}

size_t option_help(const struct option_spec *spec, char *text, size_t text_bytes) {
    size_t used = fill_in(spec->help, text, text_bytes);
    if (spec->choices != NULL) used += (size_t)snprintf(text + used, text_bytes - used, ": %s", spec->choices);
    if (spec->default_text != NULL)
        used += (size_t)snprintf(text + used, text_bytes - used, " [%s]", spec->default_text);
    return used;
}

void option_summary(const struct option_spec *spec, char *text, size_t text_bytes) {
    const size_t clause = strcspn(spec->help, ";:({");
    size_t length = clause < text_bytes ? clause : text_bytes - 1;
    while (length > 0 && strchr(" ,", spec->help[length - 1]) != NULL) length--;
    memcpy(text, spec->help, length);
    text[length] = '\0';
}

const char *option_words(const struct option_spec *spec, char *text, size_t text_bytes) {
    text[0] = '\0';
    if (spec->choices != NULL)
        snprintf(text, text_bytes, "%s", spec->choices);
    else if (strstr(spec->help, "{presets}") != NULL)
        preset_names(text, text_bytes);
    for (char *c = text; *c != '\0'; c++)
        if (*c == '|' || *c == ',') *c = ' ';
    return text;
}
