#include "cli/prompt.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/command.h"
#include "platform/file.h"

static const size_t file_bytes_most = (size_t)1 << 30;

enum status prompt_read_file(const char *path, char **text, size_t *length, struct error *error) {
    return file_read_all(path, file_bytes_most, text, length, error);
}

enum status prompt_text(const struct options *options, char **text, size_t *length, struct error *error) {
    const char *file = option_text(options, OPTION_FILE), *prompt = option_text(options, OPTION_PROMPT);
    if (file == NULL && prompt == NULL)
        return error_set(error, STATUS_USAGE,
                         "%s: a text is needed: -p TEXT or -f FILE (- is standard input)",
                         options->command->name);
    char *head = NULL;
    size_t head_length = 0, prompt_length = prompt != NULL ? strlen(prompt) : 0;
    if (file != NULL) TRY(prompt_read_file(file, &head, &head_length, error));
    char *whole = realloc(head, head_length + prompt_length + 2);
    if (whole == NULL) {
        free(head);
        return error_set(error, STATUS_MEMORY, "no memory for the prompt");
    }
    if (head_length > 0 && prompt != NULL && whole[head_length - 1] != '\n') whole[head_length++] = '\n';
    if (prompt != NULL) memcpy(whole + head_length, prompt, prompt_length);
    *length = head_length + prompt_length;
    whole[*length] = '\0';
    *text = whole;
    return STATUS_OK;
}

enum status prompt_parse_ids(const char *text, struct token_list *list, struct error *error) {
    for (const char *c = text;;) {
        c += strspn(c, " \t\n");
        char *end;
        errno = 0;
        long long id = strtoll(c, &end, 10);
        if (end == c || errno != 0 || id < 0 || id > INT32_MAX)
            return error_set(error, STATUS_USAGE, "--ids: found '%.20s', expected token ids by comma", c);
        TRY(token_list_append(list, (token_id)id, error));
        end += strspn(end, " \t\n");
        if (*end == '\0') return STATUS_OK;
        if (*end != ',') return error_set(error, STATUS_USAGE, "--ids: found '%.20s', expected a comma", end);
        c = end + 1;
    }
}

enum status prompt_check_ids(const struct token_list *list, size_t vocabulary_size, struct error *error) {
    for (size_t i = 0; i < list->count; i++)
        if ((size_t)list->ids[i] >= vocabulary_size)
            return error_set(error, STATUS_USAGE, "token id %d at place %zu: the vocabulary has %zu",
                             list->ids[i], i, vocabulary_size);
    return STATUS_OK;
}

enum status prompt_tokens(const struct options *options, const struct tokenizer *tokenizer,
                          struct token_list *list, struct error *error) {
    const char *ids = option_text(options, OPTION_IDS);
    if (ids != NULL) {
        if (option_given(options, OPTION_FILE) || option_given(options, OPTION_PROMPT))
            return error_set(error, STATUS_USAGE, "%s: --ids stands alone, without -p and -f",
                             options->command->name);
        TRY(prompt_parse_ids(ids, list, error));
    } else {
        char *text;
        size_t length;
        TRY(prompt_text(options, &text, &length, error));
        struct tokenize_options how = {true, option_flag(options, OPTION_SPECIAL)};
        enum status status = tokenizer_encode(tokenizer, text, length, how, list, error);
        free(text);
        TRY(status);
    }
    if (list->count == 0)
        return error_set(error, STATUS_USAGE, "%s: the prompt is empty", options->command->name);
    return prompt_check_ids(list, tokenizer_vocabulary_size(tokenizer), error);
}
