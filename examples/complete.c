/* complete: the model goes on with a text.
 *
 *     cc complete.c $(pkg-config --cflags --libs loam) -o complete
 *     ./complete model.gguf "Once upon a time"
 */
#include <loam.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool print(void *context, size_t index, const char *bytes, size_t length) {
    (void)context;
    (void)index;
    fwrite(bytes, 1, length, stdout);
    return fflush(stdout) != 0; /* true stops: nobody reads any more */
}

static void check(enum loam_status status, const struct loam_error *error) {
    if (status == LOAM_OK) return;
    fprintf(stderr, "%s\n", error->message);
    exit((int)status);
}

int main(int argc, char **argv) {
    if (argc != 3) return fprintf(stderr, "usage: %s MODEL TEXT\n", argv[0]), 2;
    struct loam_error error;
    struct loam_model *model;
    struct loam_session *session;
    struct loam_sequence *sequence;

    check(loam_model_open(&model, argv[1], NULL, &error), &error);
    size_t capacity = strlen(argv[2]) + 8, count; /* no more tokens than bytes, and what begins a text */
    int32_t *ids = malloc(capacity * sizeof *ids);
    check(loam_tokenize(model, argv[2], strlen(argv[2]), LOAM_TOKENIZE_BEGIN, ids, capacity, &count, &error),
          &error);

    struct loam_session_options options = {.size = sizeof options, .context_size = 4096};
    check(loam_session_create(&session, model, &options, &error), &error);
    check(loam_sequence_create(&sequence, session, NULL, &error), &error); /* greedy */

    struct loam_prompt prompt = {sequence, ids, count};
    struct loam_generate_options generate = {.size = sizeof generate, .token_max = 32, .text = print};
    check(loam_generate(session, &prompt, 1, &generate, &error), &error);
    putchar('\n');

    loam_sequence_destroy(sequence);
    loam_session_destroy(session);
    loam_model_close(model);
    free(ids);
    return 0;
}
