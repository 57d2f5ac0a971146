/* loam tokenize and loam detokenize. */
#include <stdlib.h>
#include <string.h>

#include "cli/command.h"
#include "cli/output.h"
#include "cli/prompt.h"
#include "cli/session.h"
#include "cli/utf8.h"

static enum status print_ids_json(const struct token_list *list, struct error *error) {
    output_text("{\"ids\":[");
    for (size_t i = 0; i < list->count; i++) output_text("%s%d", i > 0 ? "," : "", list->ids[i]);
    output_text("]}\n");
    return output_flush(error);
}

static enum status print_ids(const struct tokenizer *tokenizer, const struct token_list *list, struct error *error) {
    for (size_t i = 0; i < list->count; i++) {
        char piece[256], shown[512];
        size_t length = tokenizer_piece(tokenizer, list->ids[i], true, piece, sizeof piece);
        if (length > sizeof piece) length = sizeof piece;
        output_text("%8d  '%s'\n", list->ids[i], utf8_escape(piece, length, shown, sizeof shown));
    }
    return output_flush(error);
}

enum status tokenize_command(const struct options *options, struct error *error) {
    struct session session = {0};
    char *text = NULL;
    size_t length;
    struct token_list list = {0};
    struct tokenize_options how = {option_flag(options, OPTION_BOS), option_flag(options, OPTION_SPECIAL)};
    enum status status = prompt_text(options, &text, &length, error);
    if (status == STATUS_OK) status = session_open_vocabulary(&session, options, error);
    if (status == STATUS_OK) status = tokenizer_encode(session.tokenizer, text, length, how, &list, error);
    if (status == STATUS_OK)
        status = option_flag(options, OPTION_JSON) ? print_ids_json(&list, error)
                                                   : print_ids(session.tokenizer, &list, error);
    token_list_deinit(&list);
    session_close(&session);
    free(text);
    return status;
}

/* Numbers between anything else, so that {"ids":[1,2]} is read as well. */
static enum status read_ids_of(const char *path, struct token_list *list, struct error *error) {
    char *text;
    size_t length;
    TRY(prompt_read_file(path, &text, &length, error));
    enum status status = STATUS_OK;
    char *c = text;
    while (status == STATUS_OK && *(c += strcspn(c, "0123456789")) != '\0') {
        char *end;
        long long id = strtoll(c, &end, 10);
        if (id > INT32_MAX || (size_t)(end - c) > 10)
            status = error_set(error, STATUS_USAGE, "%s: %.20s is no token id", path, c);
        else
            status = token_list_append(list, (token_id)id, error);
        c = end;
    }
    free(text);
    return status;
}

/* From --ids, or from files. */
static enum status read_ids(const struct options *options, struct token_list *list, struct error *error) {
    const char *ids = option_text(options, OPTION_IDS), *paths[OPTION_LIST_MAX];
    const size_t count = option_texts(options, OPTION_FILE, paths);
    if ((ids == NULL) == (count == 0))
        return error_set(error, STATUS_USAGE, "detokenize: --ids LIST or -f FILE is needed");
    if (ids != NULL) return prompt_parse_ids(ids, list, error);
    for (size_t i = 0; i < count; i++) TRY(read_ids_of(paths[i], list, error));
    return STATUS_OK;
}

enum status detokenize_command(const struct options *options, struct error *error) {
    struct session session = {0};
    struct token_list list = {0};
    char *text = NULL;
    size_t length = 0;
    enum status status = read_ids(options, &list, error);
    if (status == STATUS_OK) status = session_open_vocabulary(&session, options, error);
    if (status == STATUS_OK) status = prompt_check_ids(&list, tokenizer_vocabulary_size(session.tokenizer), error);
    if (status == STATUS_OK)
        status = tokenizer_decode(session.tokenizer, list.ids, list.count, option_flag(options, OPTION_SPECIAL), &text,
                                  &length, error);
    if (status == STATUS_OK) {
        output_bytes(text, length);
        status = output_flush(error);
    }
    free(text);
    token_list_deinit(&list);
    session_close(&session);
    return status;
}
