/* loam.h: text as tokens, and back. */
#include <stdlib.h>

#include "api/api_internal.h"
#include "generate/prompt.h"
#include "token/chat_template.h"

enum loam_status loam_tokenize(const struct loam_model *model, const char *text, size_t length, unsigned flags,
                               int32_t *ids, size_t capacity, size_t *count, struct loam_error *error) {
    API_NEED(model, error);
    API_NEED(count, error);
    if (length > 0) API_NEED(text, error);
    if (capacity > 0) API_NEED(ids, error);
    struct error reason = {0};
    struct token_list list = {0};
    const struct tokenize_options options = {.add_special = (flags & LOAM_TOKENIZE_BEGIN) != 0,
                                             .parse_special = (flags & LOAM_TOKENIZE_CONTROL) != 0};
    enum status status = tokenizer_encode(model->tokenizer, text, length, options, &list, &reason);
    *count = status == STATUS_OK ? list.count : 0;
    api_copy_ids(list.ids, *count, ids, capacity);
    token_list_deinit(&list);
    return api_report(status, &reason, error);
}

/* name NULL: the model's template.  STATUS_UNSUPPORTED: it has none. */
static enum status find_template(const struct loam_model *model, const char *name, const struct chat_template **chat,
                                 struct error *error) {
    if (name == NULL && model->chat == NULL) {
        *error = model->chat_error;
        return error->status;
    }
    *chat = name == NULL ? model->chat : chat_template_find(name);
    if (*chat != NULL) return STATUS_OK;
    return error_set(error, STATUS_USAGE, "no chat template '%.40s'", name);
}

static enum status lay_out(const struct loam_model *model, const struct chat_template *chat,
                           const struct loam_message *messages, size_t message_count, struct token_list *list,
                           struct error *error) {
    static const enum chat_role roles[] = {
        [LOAM_SYSTEM] = CHAT_SYSTEM, [LOAM_USER] = CHAT_USER, [LOAM_ASSISTANT] = CHAT_ASSISTANT};
    struct chat_message *laid = calloc(message_count + 1, sizeof *laid);
    if (laid == NULL) return error_set(error, STATUS_MEMORY, "no memory for the conversation");
    enum status status = STATUS_OK;
    for (size_t i = 0; i < message_count && status == STATUS_OK; i++) {
        if ((size_t)messages[i].role >= sizeof roles / sizeof roles[0])
            status = error_set(error, STATUS_USAGE, "message %zu: no role %d", i, (int)messages[i].role);
        else
            laid[i] = (struct chat_message){roles[messages[i].role], messages[i].text, messages[i].length};
    }
    if (status == STATUS_OK)
        status = chat_template_apply(chat, model->tokenizer, laid, message_count, true, list, error);
    free(laid);
    return status;
}

enum loam_status loam_chat_tokens(const struct loam_model *model, const char *template_name,
                                  const struct loam_message *messages, size_t message_count, int32_t *ids,
                                  size_t capacity, size_t *count, struct loam_error *error) {
    API_NEED(model, error);
    API_NEED(count, error);
    if (message_count > 0) API_NEED(messages, error);
    if (capacity > 0) API_NEED(ids, error);
    struct error reason = {0};
    struct token_list list = {0};
    const struct chat_template *chat;
    enum status status = find_template(model, template_name, &chat, &reason);
    if (status == STATUS_OK) status = lay_out(model, chat, messages, message_count, &list, &reason);
    *count = status == STATUS_OK ? list.count : 0;
    api_copy_ids(list.ids, *count, ids, capacity);
    token_list_deinit(&list);
    return api_report(status, &reason, error);
}

static struct prompt_part part_of(struct loam_text text) {
    return (struct prompt_part){text.bytes, text.bytes != NULL ? text.length : 0};
}

/* A model without a template completes. */
static enum status find_question_template(const struct loam_model *model, const struct loam_question *question,
                                          const struct chat_template **chat, struct error *error) {
    struct gguf_string jinja = {NULL, 0};
    *chat = NULL;
    if (question->raw) return STATUS_OK;
    TRY(gguf_get_string(&model->model->gguf, "tokenizer.chat_template", &jinja, error));
    if (question->template_name == NULL && jinja.text == NULL) return STATUS_OK;
    return find_template(model, question->template_name, chat, error);
}

static enum status encode_question(const struct loam_model *model, const struct loam_question *question,
                                   struct token_list *list, struct error *error) {
    const struct chat_template *chat;
    const struct tokenize_options how = {.add_special = true};
    TRY(find_question_template(model, question, &chat, error));
    struct prompt_part *documents = calloc(question->document_count + 1, sizeof *documents);
    if (documents == NULL) return error_set(error, STATUS_MEMORY, "no memory for the question");
    for (size_t i = 0; i < question->document_count; i++) documents[i] = part_of(question->documents[i]);
    const struct prompt prompt = {.system = part_of(question->system),
                                  .documents = documents,
                                  .document_count = question->document_count,
                                  .question = part_of(question->question)};
    enum status status = chat != NULL ? prompt_encode_chat(&prompt, chat, model->tokenizer, list, error)
                                      : prompt_encode(&prompt, model->tokenizer, how, list, error);
    free(documents);
    return status;
}

enum loam_status loam_question_tokens(const struct loam_model *model, const struct loam_question *question,
                                      int32_t *ids, size_t capacity, size_t *count, struct loam_error *error) {
    API_NEED(model, error);
    API_NEED(question, error);
    API_NEED(count, error);
    if (capacity > 0) API_NEED(ids, error);
    struct loam_question own;
    struct error reason = {0};
    struct token_list list = {0};
    enum status status = api_read_options(&own, sizeof own, question, "loam_question", &reason);
    if (status == STATUS_OK) status = encode_question(model, &own, &list, &reason);
    *count = status == STATUS_OK ? list.count : 0;
    api_copy_ids(list.ids, *count, ids, capacity);
    token_list_deinit(&list);
    return api_report(status, &reason, error);
}

size_t loam_token_text(const struct loam_model *model, int32_t token, char *buffer, size_t capacity) {
    if (model == NULL) return 0;
    if (token < 0 || (size_t)token >= tokenizer_vocabulary_size(model->tokenizer)) return 0;
    return tokenizer_piece(model->tokenizer, token, false, buffer, capacity);
}

bool loam_token_is_end(const struct loam_model *model, int32_t token) {
    if (model == NULL) return false;
    if (token < 0 || (size_t)token >= tokenizer_vocabulary_size(model->tokenizer)) return false;
    return tokenizer_is_end(model->tokenizer, token);
}
