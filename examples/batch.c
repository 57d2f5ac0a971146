/* batch: several texts go on at once; the weights are read once for all of them.
 *
 *     ./batch model.gguf "One text" "Another text" ...
 */
#include <loam.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(enum loam_status status, const struct loam_error *error) {
    if (status == LOAM_OK) return;
    fprintf(stderr, "%s\n", error->message);
    exit((int)status);
}

int main(int argc, char **argv) {
    if (argc < 3) return fprintf(stderr, "usage: %s MODEL TEXT...\n", argv[0]), 2;
    size_t count = (size_t)argc - 2;
    struct loam_error error;
    struct loam_model *model;
    struct loam_session *session;
    struct loam_session_options options = {
        .size = sizeof options, .context_size = 4096, .sequence_capacity = count};
    struct loam_prompt *prompts = calloc(count, sizeof *prompts);

    check(loam_model_open(&model, argv[1], NULL, &error), &error);
    check(loam_session_create(&session, model, &options, &error), &error);
    for (size_t i = 0; i < count; i++) {
        const char *text = argv[i + 2];
        size_t capacity = strlen(text) + 8;
        int32_t *ids = malloc(capacity * sizeof *ids);
        struct loam_sequence *sequence;
        check(loam_tokenize(model, text, strlen(text), LOAM_TOKENIZE_BEGIN, ids, capacity, &capacity, &error),
              &error);
        check(loam_sequence_create(&sequence, session, NULL, &error), &error);
        prompts[i] = (struct loam_prompt){sequence, ids, capacity};
    }
    struct loam_generate_options generate = {.size = sizeof generate, .token_max = 32};
    check(loam_generate(session, prompts, count, &generate, &error), &error);

    for (size_t i = 0; i < count; i++) {
        struct loam_answer answer = {.size = sizeof answer};
        check(loam_sequence_answer(prompts[i].sequence, &answer, &error), &error);
        for (size_t t = 0; t < answer.token_count; t++) {
            char piece[256];
            if (loam_token_is_end(model, answer.tokens[t])) continue;
            fwrite(piece, 1, loam_token_text(model, answer.tokens[t], piece, sizeof piece), stdout);
        }
        putchar('\n');
        loam_sequence_destroy(prompts[i].sequence);
        free((void *)prompts[i].tokens);
    }
    loam_session_destroy(session);
    loam_model_close(model);
    free(prompts);
    return 0;
}
