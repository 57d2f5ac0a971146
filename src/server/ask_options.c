#include "server/ask_options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "server/fields.h"
#include "server/server.h"

static bool read_stops(struct ask_options *options, const json_t *body, struct api_error *error) {
    const json_t *stop = field_get(body, "stop");
    if (stop == NULL) stop = field_get(body, "stop_sequences"); /* Anthropic's name */
    if (stop == NULL) return true;
    const size_t count = json_is_array(stop) ? json_array_size(stop) : 1;
    if (count > ASK_STOPS_MAX)
        return field_refuse(error, "stop", "found %zu strings, expected at most %d", count, ASK_STOPS_MAX);
    for (size_t i = 0; i < count; i++) {
        const json_t *text = json_is_array(stop) ? json_array_get(stop, i) : stop;
        if (!json_is_string(text))
            return field_refuse(error, "stop", "found %s, expected a string or a list of them", json_kind(text));
        const size_t length = json_string_length(text);
        if (length > ASK_STOP_BYTES_MAX || strlen(json_string_value(text)) != length)
            return field_refuse(error, "stop", "expected at most %d bytes and no NUL", ASK_STOP_BYTES_MAX);
        if (length > 0) options->stops[options->stop_count++] = json_string_value(text);
    }
    return true;
}

static bool read_bias(struct ask_options *options, const char *key, const json_t *value, size_t vocabulary_size,
                      struct api_error *error) {
    char *end;
    errno = 0;
    const long long id = strtoll(key, &end, 10);
    if (key[0] < '0' || key[0] > '9' || *end != '\0' || errno != 0 || (uint64_t)id >= vocabulary_size)
        return field_refuse(error, "logit_bias", "found '%.40s', expected a token id below %zu", key, vocabulary_size);
    if (!json_is_number(value) || !(json_number_value(value) >= -100 && json_number_value(value) <= 100))
        return field_refuse(error, "logit_bias", "expected numbers from -100 to 100");
    options->biases[options->sampling.bias_count++] =
        (struct token_bias){.id = (int32_t)id, .bias = (float)json_number_value(value)};
    return true;
}

static bool read_biases(struct ask_options *options, const json_t *body, size_t vocabulary_size,
                        struct api_error *error) {
    const json_t *biases = field_get(body, "logit_bias");
    options->sampling.biases = options->biases;
    options->sampling.bias_count = 0;
    if (biases == NULL || (json_is_array(biases) && json_array_size(biases) == 0)) return true;
    if (!json_is_object(biases))
        return field_refuse(error, "logit_bias", "found %s, expected an object", json_kind(biases));
    if (json_object_size(biases) > ASK_BIASES_MAX)
        return field_refuse(error, "logit_bias", "found %zu tokens, expected at most %d", json_object_size(biases),
                            ASK_BIASES_MAX);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)biases, key,
                        value) if (!read_bias(options, key, value, vocabulary_size, error)) return false;
    return true;
}

/* Any 64 bits: one above 2^63 comes as a real number (fields_parse). */
static bool read_seed(const json_t *body, int64_t *seed, struct api_error *error) {
    const json_t *found = field_get(body, "seed");
    const double number = json_number_value(found);
    if (!json_is_real(found) || number < 9.2e18) return field_integer(body, "seed", INT64_MIN, INT64_MAX, seed, error);
    if (number >= 18446744073709551616.0)
        return field_refuse(error, "seed", "found %g, expected at most 64 bits", number);
    *seed = (int64_t)(uint64_t)number;
    return true;
}

static bool is_off(const json_t *value, double neutral) {
    if (json_is_number(value)) return json_number_value(value) == neutral || json_number_value(value) == -1;
    return json_is_null(value) || json_is_false(value) || (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0) ||
           (json_is_string(value) && json_string_length(value) == 0);
}

/* What changes which tokens come, in other servers. */
static bool refuse_samplers(const json_t *body, struct api_error *error) {
    static const struct {
        const char *name;
        double neutral;
    } samplers[] = {{"min_tokens", 0},
                    {"dry_multiplier", 0},
                    {"xtc_probability", 0},
                    {"typical_p", 1},
                    {"typ_p", 1},
                    {"tfs_z", 1},
                    {"mirostat", 0},
                    {"dynatemp_range", 0},
                    {"top_n_sigma", 0},
                    {"top_a", 0},
                    {"smoothing_factor", 0},
                    {"length_penalty", 1},
                    {"epsilon_cutoff", 0},
                    {"eta_cutoff", 0},
                    {"no_repeat_ngram_size", 0},
                    {"use_beam_search", 0},
                    {"stop_token_ids", 0},
                    {"bad_words", 0},
                    {"allowed_token_ids", 0},
                    {"logits_processors", 0},
                    {"adaptive_target", 0}};
    for (size_t i = 0; i < sizeof samplers / sizeof *samplers; i++) {
        const json_t *value = field_get(body, samplers[i].name);
        if (value != NULL && !is_off(value, samplers[i].neutral))
            return field_refuse(error, samplers[i].name, "not supported");
    }
    return true;
}

static bool read_sampling(struct ask_options *options, const json_t *body, uint64_t fallback_seed,
                          struct api_error *error) {
    struct sampler_options *s = &options->sampling;
    double temperature = (double)s->temperature, top_p = (double)s->top_p, min_p = (double)s->min_p;
    double repeat = (double)s->repeat_penalty, presence = (double)s->presence_penalty;
    double frequency = (double)s->frequency_penalty;
    int64_t top_k = s->top_k, repeat_last = s->repeat_last, seed = -1;
    if (!field_number(body, "temperature", 0, 1000, &temperature, error) ||
        !field_number(body, "top_p", 0, 1, &top_p, error) || !field_number(body, "min_p", 0, 1, &min_p, error) ||
        !field_integer(body, "top_k", -1, INT32_MAX, &top_k, error) ||
        !field_number(body, "repetition_penalty", 0.01, 100, &repeat, error) || /* vLLM's name */
        !field_number(body, "repeat_penalty", 0.01, 100, &repeat, error) ||
        !field_number(body, "presence_penalty", -100, 100, &presence, error) ||
        !field_number(body, "frequency_penalty", -100, 100, &frequency, error) ||
        !field_integer(body, "repeat_last_n", 0, 1000000, &repeat_last, error) || !read_seed(body, &seed, error))
        return false;
    *s = (struct sampler_options){
        .temperature = (float)temperature,
        .top_k = top_k < 0 ? 0 : (uint32_t)top_k,
        .top_p = top_p > 0 ? (float)top_p : 1e-6F, /* 0: the likeliest alone */
        .min_p = (float)min_p,
        .repeat_penalty = (float)repeat,
        .presence_penalty = (float)presence,
        .frequency_penalty = (float)frequency,
        .repeat_last = (uint32_t)repeat_last,
        .seed = field_get(body, "seed") != NULL && seed != -1 ? (uint64_t)seed : fallback_seed,
    };
    return true;
}

bool ask_options_read(struct ask_options *options, const json_t *body, const struct server_model *model,
                      uint64_t fallback_seed, struct api_error *error) {
    int64_t choices = 1;
    const json_t *stream_options;
    const size_t vocabulary_size = service_vocabulary_size(model->service);
    *options = (struct ask_options){.sampling = model->sampling};
    if (json_array_size(field_get(body, "documents")) > 0) options->sampling.temperature = model->about_documents;
    if (!refuse_samplers(body, error) || !read_sampling(options, body, fallback_seed, error) ||
        !read_stops(options, body, error) || !read_biases(options, body, vocabulary_size, error) ||
        !field_integer(body, "n", 1, ASK_CHOICES_MAX, &choices, error) ||
        !field_flag(body, "stream", &options->streams, error) ||
        !field_flag(body, "ignore_eos", &options->ignore_end, error) ||
        !field_flag(body, "return_progress", &options->returns_progress, error) ||
        !field_object(body, "stream_options", &stream_options, error) || !answer_form_find(&options->form, body, error))
        return false;
    if (stream_options != NULL && !field_flag(stream_options, "include_usage", &options->includes_usage, error))
        return false;
    options->choices = (size_t)choices;
    const struct sampler_options *s = &options->sampling;
    options->is_greedy = s->temperature <= 0 && s->repeat_penalty == 1 && s->presence_penalty == 0 &&
                         s->frequency_penalty == 0 && s->bias_count == 0;
    return true;
}

bool ask_options_read_token_max(struct ask_options *options, const json_t *body, const char *const *names, size_t count,
                                struct api_error *error) {
    for (size_t i = 0; i < count; i++) {
        int64_t found = -1;
        if (!field_integer(body, names[i], -1, INT64_MAX, &found, error)) return false;
        if (field_get(body, names[i]) == NULL) continue;
        options->has_token_max = found >= 0; /* -1: as in llama-server, no limit */
        options->token_max = found >= 0 ? (size_t)found : 0;
        return true;
    }
    return true;
}

static bool asks_for_nothing(const json_t *value) {
    return json_is_false(value) || (json_is_string(value) && json_string_length(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

bool ask_options_refuse(const json_t *body, const char *const *names, size_t count, struct api_error *error) {
    for (size_t i = 0; i < count; i++) {
        const json_t *value = field_get(body, names[i]);
        if (value != NULL && !asks_for_nothing(value)) return field_refuse(error, names[i], "not supported");
    }
    return true;
}
