#include "cli/sampling.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "platform/clock.h"

static uint64_t sampling_seed(const struct options *options) {
    int64_t seed = option_integer(options, OPTION_SEED);
    if (seed >= 0) return (uint64_t)seed;
    uint32_t drawn = 0;
    if (getrandom(&drawn, sizeof drawn, GRND_NONBLOCK) != sizeof drawn) drawn = (uint32_t)clock_ns();
    return drawn;
}

/* "15043+1", "15043-2.5", "15043-inf" */
static enum status parse_bias(const char *text, struct token_bias *bias, struct error *error) {
    char *end = NULL;
    errno = 0;
    unsigned long id = text[0] >= '0' && text[0] <= '9' ? strtoul(text, &end, 10) : ULONG_MAX;
    if (id <= INT32_MAX && errno == 0 && (*end == '+' || *end == '-')) {
        *bias = (struct token_bias){.id = (int32_t)id, .bias = strtof(end, &end)};
        if (*end == '\0' && errno == 0) return STATUS_OK;
    }
    return error_set(error, STATUS_USAGE,
                     "--logit-bias: found \"%s\", expected a token's number and a bias, such as 15043+1", text);
}

static enum status read_stops(struct sampling *sampling, const struct options *options, struct error *error) {
    sampling->stop_count = option_texts(options, OPTION_STOP, sampling->stops);
    for (size_t i = 0; i < sampling->stop_count; i++)
        if (sampling->stops[i][0] == '\0')
            return error_set(error, STATUS_USAGE, "--stop: found nothing, expected a text");
    return STATUS_OK;
}

enum status sampling_read(struct sampling *sampling, const struct options *options, struct error *error) {
    const char *texts[OPTION_LIST_MAX];
    sampling->options = (struct sampler_options){
        .temperature = (float)option_number(options, OPTION_TEMPERATURE),
        .top_k = (uint32_t)option_count(options, OPTION_TOP_K),
        .top_p = (float)option_number(options, OPTION_TOP_P),
        .min_p = (float)option_number(options, OPTION_MIN_P),
        .repeat_penalty = (float)option_number(options, OPTION_REPEAT_PENALTY),
        .presence_penalty = (float)option_number(options, OPTION_PRESENCE_PENALTY),
        .frequency_penalty = (float)option_number(options, OPTION_FREQUENCY_PENALTY),
        .repeat_last = (uint32_t)option_count(options, OPTION_REPEAT_LAST),
        .seed = sampling_seed(options),
        .biases = sampling->biases,
        .bias_count = option_texts(options, OPTION_LOGIT_BIAS, texts),
    };
    for (size_t i = 0; i < sampling->options.bias_count; i++) TRY(parse_bias(texts[i], &sampling->biases[i], error));
    return read_stops(sampling, options, error);
}

static enum status take_float(const struct options *options, enum option_id id, const struct gguf *gguf,
                              const char *key, float min, float max, float *value, struct error *error) {
    float found = *value;
    TRY(gguf_get_float(gguf, key, &found, error));
    if (!(found >= min && found <= max))
        return error_set(error, STATUS_MODEL, "%s: found %g, expected %g to %g", key, (double)found, (double)min,
                         (double)max);
    if (!option_given(options, id)) *value = found;
    return STATUS_OK;
}

/* negative: what -1, llama.cpp's word for all or none, stands for. */
static enum status take_count(const struct options *options, enum option_id id, const struct gguf *gguf,
                              const char *key, uint64_t max, uint32_t negative, uint32_t *value, struct error *error) {
    const struct gguf_entry *entry = gguf_find(gguf, key);
    uint64_t found = *value;
    int32_t whole = 0;
    if (entry != NULL && entry->type == GGUF_INT32) memcpy(&whole, entry->data, sizeof whole);
    if (whole < 0)
        found = negative;
    else
        TRY(gguf_get_uint(gguf, key, max, &found, error));
    if (!option_given(options, id)) *value = (uint32_t)found;
    return STATUS_OK;
}

enum status sampling_take_model(struct sampling *sampling, const struct options *options, const struct gguf *gguf,
                                struct error *error) {
    struct sampler_options *s = &sampling->options;
    static const char temperature[] = "general.sampling.temp";
    TRY(take_float(options, OPTION_TEMPERATURE, gguf, temperature, 0, 1000, &s->temperature, error));
    const bool is_said = option_given(options, OPTION_TEMPERATURE) || gguf_find(gguf, temperature) != NULL;
    sampling->about_documents = is_said ? s->temperature : 0.3F;
    if (option_given(options, OPTION_FILE) && !option_flag(options, OPTION_RAW))
        s->temperature = sampling->about_documents;
    TRY(take_float(options, OPTION_TOP_P, gguf, "general.sampling.top_p", 0, 1, &s->top_p, error));
    TRY(take_float(options, OPTION_MIN_P, gguf, "general.sampling.min_p", 0, 1, &s->min_p, error));
    TRY(take_float(options, OPTION_REPEAT_PENALTY, gguf, "general.sampling.penalty_repeat", 0.01F, 100,
                   &s->repeat_penalty, error));
    TRY(take_count(options, OPTION_TOP_K, gguf, "general.sampling.top_k", UINT32_MAX, 0, &s->top_k, error));
    return take_count(options, OPTION_REPEAT_LAST, gguf, "general.sampling.penalty_last_n", 1000000, 1000000,
                      &s->repeat_last, error);
}
