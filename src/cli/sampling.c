#include "cli/sampling.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
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
                     "--logit-bias: found \"%s\", expected a token's number and a bias, such as 15043+1",
                     text);
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
    for (size_t i = 0; i < sampling->options.bias_count; i++)
        TRY(parse_bias(texts[i], &sampling->biases[i], error));
    return read_stops(sampling, options, error);
}
