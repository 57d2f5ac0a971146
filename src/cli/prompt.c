#include "cli/prompt.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/command.h"
#include "document/encoding.h"
#include "platform/file.h"

static const size_t file_bytes_max = (size_t)1 << 30;

enum status prompt_read_file(const char *path, char **text, size_t *length, struct error *error) {
    return file_read_all(path, file_bytes_max, text, length, error);
}

/* The prompt's documents are those of its files. */
static enum status set_documents(struct prompt_source *source, struct error *error) {
    const size_t count = source->files.count;
    struct prompt_part *documents = realloc(source->documents, (count + 1) * sizeof *documents);
    if (documents == NULL) return error_set(error, STATUS_MEMORY, "no memory for the documents");
    source->documents = documents;
    for (size_t i = 0; i < count; i++)
        source->documents[i] = (struct prompt_part){source->files.files[i].bytes, source->files.files[i].length};
    source->prompt.documents = source->documents;
    source->prompt.document_count = count;
    return STATUS_OK;
}

enum status prompt_read_text(const struct options *options, const char *path, char **text, size_t *length,
                             struct error *error) {
    struct prompt_source source = {0};
    enum status status = prompt_files_add(&source.files, options, path, error);
    if (status == STATUS_OK) status = set_documents(&source, error);
    if (status == STATUS_OK) status = prompt_join(&source.prompt, PROMPT_PARAGRAPH, text, length, error);
    prompt_close(&source);
    return status;
}

/* The text of an option.  A terminal whose characters are not UTF-8 gives bytes that the model takes for others. */
static struct prompt_part part_of(const struct options *options, enum option_id id, const char *name) {
    const char *text = option_text(options, id);
    const struct prompt_part part = {text, text != NULL ? strlen(text) : 0};
    const size_t valid = text != NULL ? encoding_utf8_length(text, part.length) : 0;
    if (valid < part.length && !option_flag(options, OPTION_QUIET))
        fprintf(stderr, "loam: note: %s: is no UTF-8: byte %zu, 0x%02X\n", name, valid + 1,
                (unsigned)(unsigned char)text[valid]);
    return part;
}

static enum status read_thinking(const struct options *options, enum chat_thinking *thinking, struct error *error) {
    static const char *const words[] = {
        [CHAT_THINKING_AUTO] = "auto", [CHAT_THINKING_ON] = "on", [CHAT_THINKING_OFF] = "off"};
    const char *word = option_text(options, OPTION_REASONING);
    *thinking = CHAT_THINKING_AUTO;
    for (size_t i = 0; i < 3 && word != NULL; i++)
        if (strcmp(word, words[i]) == 0) {
            *thinking = (enum chat_thinking)i;
            return STATUS_OK;
        }
    if (word == NULL) return STATUS_OK;
    return error_set(error, STATUS_USAGE, "--reasoning: found '%.40s', expected on, off or auto", word);
}

enum status prompt_open(struct prompt_source *source, const struct options *options, struct error *error) {
    const char *paths[OPTION_LIST_MAX];
    size_t inputs = 0;
    *source = (struct prompt_source){.prompt = {.system = part_of(options, OPTION_SYSTEM, "-sys"),
                                                .question = part_of(options, OPTION_PROMPT, "-p")}};
    TRY(read_thinking(options, &source->prompt.thinking, error));
    const size_t count = option_texts(options, OPTION_FILE, paths);
    for (size_t i = 0; i < count; i++) inputs += strcmp(paths[i], "-") == 0;
    if (inputs > 1)
        return error_set(error, STATUS_USAGE, "%s: -f - twice: standard input can be read once",
                         options->command->name);
    for (size_t i = 0; i < count; i++) TRY(prompt_files_add(&source->files, options, paths[i], error));
    return set_documents(source, error);
}

enum status prompt_add(struct prompt_source *source, const struct options *options, const char *path,
                       struct error *error) {
    const size_t before = source->files.count;
    enum status status = prompt_files_add(&source->files, options, path, error);
    if (status == STATUS_OK) status = set_documents(source, error);
    if (status != STATUS_OK) prompt_cut(source, before);
    return status;
}

void prompt_cut(struct prompt_source *source, size_t count) {
    prompt_files_cut(&source->files, count);
    if (source->prompt.document_count > count) source->prompt.document_count = count;
}

void prompt_close(struct prompt_source *source) {
    prompt_files_deinit(&source->files);
    free(source->documents);
    *source = (struct prompt_source){0};
}

const char *prompt_name(const struct options *options, char *buffer, size_t buffer_bytes) {
    const char *paths[OPTION_LIST_MAX];
    const size_t count = option_texts(options, OPTION_FILE, paths);
    if (count == 0) return NULL;
    if (count == 1) return paths[0];
    snprintf(buffer, buffer_bytes, "%s and %zu more", paths[0], count - 1);
    return buffer;
}

static bool has_text(const struct options *options) {
    return option_given(options, OPTION_FILE) || option_given(options, OPTION_PROMPT);
}

enum status prompt_text(const struct options *options, char **text, size_t *length, struct error *error) {
    if (!has_text(options))
        return error_set(error, STATUS_USAGE, "%s: a text is needed: -p TEXT or -f FILE (- is standard input)",
                         options->command->name);
    struct prompt_source source;
    enum status status = prompt_open(&source, options, error);
    if (status == STATUS_OK) status = prompt_join(&source.prompt, PROMPT_LINE, text, length, error);
    prompt_close(&source);
    return status;
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
            return error_set(error, STATUS_USAGE, "token id %d at place %zu: the vocabulary has %zu", list->ids[i], i,
                             vocabulary_size);
    return STATUS_OK;
}

enum status prompt_source_tokens(const struct prompt_source *source, const struct options *options,
                                 const struct chat_template *chat, const struct tokenizer *tokenizer,
                                 struct token_list *list, struct error *error) {
    const struct tokenize_options how = {true, option_flag(options, OPTION_SPECIAL)};
    TRY(chat != NULL ? prompt_encode_chat(&source->prompt, chat, tokenizer, list, error)
                     : prompt_encode(&source->prompt, tokenizer, how, list, error));
    if (list->count > 0) return STATUS_OK;
    return error_set(error, STATUS_USAGE, "%s: the prompt is empty", options->command->name);
}

static enum status encode_text(const struct options *options, const struct chat_template *chat,
                               const struct tokenizer *tokenizer, struct token_list *list, struct error *error) {
    struct prompt_source source;
    enum status status = prompt_open(&source, options, error);
    if (status == STATUS_OK) status = prompt_source_tokens(&source, options, chat, tokenizer, list, error);
    prompt_close(&source);
    return status;
}

enum status prompt_tokens(const struct options *options, const struct chat_template *chat,
                          const struct tokenizer *tokenizer, struct token_list *list, struct error *error) {
    const char *ids = option_text(options, OPTION_IDS);
    if (ids != NULL && has_text(options))
        return error_set(error, STATUS_USAGE, "%s: --ids stands alone, without -p and -f", options->command->name);
    if (ids != NULL)
        TRY(prompt_parse_ids(ids, list, error));
    else
        TRY(encode_text(options, chat, tokenizer, list, error));
    if (list->count == 0) return error_set(error, STATUS_USAGE, "%s: the prompt is empty", options->command->name);
    return prompt_check_ids(list, tokenizer_vocabulary_size(tokenizer), error);
}

/* Thoughts that the template has no switch for come all the same: said, not refused. */
static enum status check_switch(const struct options *options, const struct chat_template *chat, struct error *error) {
    enum chat_thinking thinking;
    TRY(read_thinking(options, &thinking, error)); /* before a note about it */
    if (option_given(options, OPTION_REASONING) && !option_flag(options, OPTION_QUIET) &&
        !chat_template_reads(chat, "enable_thinking") && !chat_template_reads(chat, "thinking"))
        fputs("loam: note: the model's chat template has no switch for --reasoning\n", stderr);
    return STATUS_OK;
}

enum status prompt_template(const struct options *options, const struct gguf *gguf, const struct chat_template **chat,
                            struct error *error) {
    const char *name = option_text(options, OPTION_CHAT_TEMPLATE);
    *chat = NULL;
    if (name == NULL) {
        struct gguf_string text = {NULL, 0};
        TRY(gguf_get_string(gguf, "tokenizer.chat_template", &text, error));
        if (text.text == NULL) return STATUS_OK;
        TRY(chat_template_create(text.text, text.length, chat, error));
        const char *note = chat_template_note(*chat);
        if (note != NULL && !option_flag(options, OPTION_QUIET)) fprintf(stderr, "loam: note: %s\n", note);
        return check_switch(options, *chat, error);
    }
    *chat = chat_template_find(name);
    if (*chat != NULL) return check_switch(options, *chat, error);
    char names[300] = "";
    const struct chat_template *known;
    for (size_t i = 0; (known = chat_template_at(i)) != NULL; i++) {
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", chat_template_name(known));
    }
    return error_set(error, STATUS_USAGE, "--chat-template: found '%.40s', expected one of %s", name, names);
}

/* Prompts shorter than this take seconds at most. */
enum { HINT_TOKENS_MIN = 2048 };

void prompt_print_hint(const struct options *options, size_t token_count) {
    if (token_count < HINT_TOKENS_MIN || option_flag(options, OPTION_QUIET) || !option_given(options, OPTION_FILE) ||
        option_given(options, OPTION_KV_DISK))
        return;
    fputs("loam: hint: --kv-disk DIR keeps what was read, and the next question does not read it again\n", stderr);
}
