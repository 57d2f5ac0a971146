/* chat_document: a conversation about a document, a line each turn.  Its KV stays in a folder: the next turn, and the
 * next run, take it from there.   ./chat_document model.gguf folder book.txt [template: where the model has none] */
#define _GNU_SOURCE
#include <loam.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(enum loam_status status, const struct loam_error *error) {
    if (status == LOAM_OK) return;
    fprintf(stderr, "%s\n", error->message);
    exit((int)status);
}

static bool hear(void *answer, size_t index, const char *bytes, size_t length) {
    (void)index;
    fwrite(bytes, 1, length, answer);
    fwrite(bytes, 1, length, stdout);
    return fflush(stdout) != 0; /* true stops */
}

int main(int argc, char **argv) {
    if (argc < 4) return fprintf(stderr, "usage: %s MODEL FOLDER DOCUMENT [TEMPLATE]\n", argv[0]), 2;
    struct loam_error error;
    struct loam_model *model;
    struct loam_session *session;
    struct loam_sequence *sequence;
    struct loam_session_options options = {.size = sizeof options, .disk_directory = argv[2]};
    options.document_name = argv[3];
    check(loam_model_open(&model, argv[1], NULL, &error), &error);
    check(loam_session_create(&session, model, &options, &error), &error);
    check(loam_sequence_create(&sequence, session, NULL, &error), &error);
    struct loam_message said[200];
    char *line = NULL, *document = NULL, *text;
    size_t capacity = 0, count = 0;
    FILE *file = fopen(argv[3], "r");
    if (file == NULL || getdelim(&document, &capacity, '\0', file) < 0) return perror(argv[3]), 6;
    for (size_t n = 0; n < 200 && getline(&line, &capacity, stdin) > 0; n += 2) {
        if (asprintf(&text, "%s%s", n == 0 ? document : "", line) < 0) return 5;
        said[n] = (struct loam_message){LOAM_USER, text, strlen(text)};
        loam_chat_tokens(model, argv[4], said, n + 1, NULL, 0, &count, NULL); /* how many */
        int32_t *ids = calloc(count + 1, sizeof *ids);
        check(loam_chat_tokens(model, argv[4], said, n + 1, ids, count, &count, &error), &error);
        FILE *heard = open_memstream((char **)&said[n + 1].text, &said[n + 1].length);
        struct loam_prompt prompt = {sequence, ids, count};
        struct loam_generate_options how = {sizeof how, .token_max = 200, .text = hear, .context = heard};
        check(loam_generate(session, &prompt, 1, &how, &error), &error);
        fclose(heard);
        said[n + 1].role = LOAM_ASSISTANT;
        puts("");
        free(ids);
    }
    struct loam_receipt did = {.size = sizeof did};
    check(loam_sequence_save(sequence, &error), &error);
    check(loam_session_receipt(session, &did, &error), &error);
    fprintf(stderr, "%zu tokens read, %zu taken from %s\n", did.prefill_tokens, did.reused_tokens, argv[2]);
    loam_sequence_destroy(sequence);
    loam_session_destroy(session);
    loam_model_close(model);
}
