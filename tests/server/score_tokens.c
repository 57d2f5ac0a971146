/* score_tokens MODEL: what the model's own logits say about prompts, without the server.
 *
 * Each line of standard input is the ids of a prompt.  A line of output for each: of every id but the first, its
 * log-probability behind those before it and 1 if none is likelier, else 0.  Sums in double over the vocabulary. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "device/device.h"
#include "engine/engine.h"
#include "platform/cpu.h"

enum { TOKENS_MAX = 2048 };

struct prompt {
    int32_t ids[TOKENS_MAX];
    size_t count, vocabulary_size;
};

static enum status print_token(void *context, uint64_t index, const float *logits, struct error *error) {
    const struct prompt *prompt = context;
    double maximum = -INFINITY, sum = 0;
    (void)error;
    if (index + 1 == prompt->count) return STATUS_OK;
    for (size_t i = 0; i < prompt->vocabulary_size; i++) maximum = fmax(maximum, (double)logits[i]);
    for (size_t i = 0; i < prompt->vocabulary_size; i++) sum += exp((double)logits[i] - maximum);
    const double own = (double)logits[prompt->ids[index + 1]];
    printf("%.9g %d ", own - maximum - log(sum), own == maximum);
    return STATUS_OK;
}

/* false: there is no further line. */
static bool read_prompt(struct prompt *prompt) {
    char *line = NULL;
    size_t capacity = 0;
    const bool found = getline(&line, &capacity, stdin) > 0;
    prompt->count = 0;
    for (char *at = line, *end; found && prompt->count < TOKENS_MAX; at = end) {
        const long id = strtol(at, &end, 10);
        if (end == at) break;
        prompt->ids[prompt->count++] = (int32_t)id;
    }
    free(line);
    return found;
}

static enum status score(struct engine *engine, struct prompt *prompt, struct error *error) {
    struct sequence *sequence;
    const struct prefill_request request = {
        .tokens = prompt->ids, .token_count = prompt->count, .each = print_token, .each_context = prompt};
    TRY(sequence_create(&sequence, engine, error));
    enum status status = engine_prefill(engine, sequence, &request, NULL, error);
    sequence_destroy(sequence);
    putchar('\n');
    return status;
}

static enum status score_all(const char *path, struct error *error) {
    static struct prompt prompt;
    const struct device_options device_options = {.thread_count = 2, .mask = cpu_default()};
    const struct plan plan = {.context_size = TOKENS_MAX, .sequence_capacity = 1};
    struct device *device;
    struct model *model;
    struct engine *engine;
    TRY(device_cpu_create(&device, &device_options, error));
    TRY(model_load(&model, path, device, error));
    TRY(engine_create(&engine, model, &plan, &(struct engine_options){0}, error));
    prompt.vocabulary_size = model->config.vocabulary_size;
    while (read_prompt(&prompt)) TRY(score(engine, &prompt, error));
    engine_destroy(engine);
    model_destroy(model);
    device_destroy(device);
    return STATUS_OK;
}

int main(int argument_count, char **arguments) {
    struct error error;
    if (argument_count == 2 && score_all(arguments[1], &error) == STATUS_OK) return 0;
    fprintf(stderr, "score_tokens: %s\n", argument_count == 2 ? error.message : "expected a model file");
    return 1;
}
