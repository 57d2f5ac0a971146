/* loam chat: a conversation, turn by turn, about documents if there are any: they begin the first turn.
 *
 * Each turn the whole conversation is laid out by the model's template and compared with the tokens whose
 * KV is there: what they share is kept, the rest is cut off, and only what is new is prefilled.  So a turn
 * costs its own tokens, however the template wraps what came before. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/checked.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/line_reader.h"
#include "cli/listener.h"
#include "cli/output.h"
#include "cli/plan.h"
#include "cli/prompt.h"
#include "cli/sampling.h"
#include "cli/session.h"
#include "cli/sources.h"
#include "cli/trace_file.h"
#include "cli/utf8.h"
#include "platform/file.h"
#include "token/chat_template.h"

struct message {
    enum chat_role role;
    struct text content;
    size_t said;                            /* where in the text begins what was typed: behind documents */
    size_t document_first, document_behind; /* those documents, of the source's */
};

struct chat {
    const struct options *options;
    struct session session;
    struct trace_file trace;
    struct plan plan;
    const struct chat_template *layout;
    struct prompt_source source; /* the documents: of -f, then of /add */
    size_t given_count;          /* those of -f */
    size_t told_count;           /* those that are in the conversation */
    char document_name[512];
    struct listener listener;
    struct sampling sampling;
    struct generation generation;
    struct answer answer;
    struct line_reader *reader;
    struct message *messages; /* owned */
    size_t message_count, message_capacity;
    size_t prompt_count; /* tokens in front of the answer; 0: it has no tokens */
};

enum { SPANS_SHOWN = 5, EXPLAINED_BYTES_MAX = 64 << 20 /* a float of each step and position */ };

/* ---- messages ---- */

static enum status message_append(struct message *message, const char *bytes, size_t length, struct error *error) {
    return text_append(&message->content, bytes, length)
               ? STATUS_OK
               : error_set(error, STATUS_MEMORY, "no memory for the conversation");
}

static enum status message_add(struct chat *chat, enum chat_role role, const char *text, struct error *error) {
    if (!array_reserve(&chat->messages, chat->message_count, &chat->message_capacity, sizeof *chat->messages))
        return error_set(error, STATUS_MEMORY, "no memory for the conversation");
    struct message *message = &chat->messages[chat->message_count++];
    *message = (struct message){.role = role};
    return message_append(message, text, strlen(text), error);
}

/* What the user says, behind the documents that the conversation does not have yet. */
static enum status user_message_add(struct chat *chat, const char *line, struct error *error) {
    struct prompt prompt = chat->source.prompt;
    prompt.documents += chat->told_count;
    prompt.document_count -= chat->told_count;
    if (prompt.document_count == 0) return message_add(chat, CHAT_USER, line, error);
    prompt.question = (struct prompt_part){line, strlen(line)};
    char *text;
    size_t length;
    TRY(prompt_join(&prompt, PROMPT_PARAGRAPH, &text, &length, error));
    enum status status = message_add(chat, CHAT_USER, "", error);
    if (status == STATUS_OK) status = message_append(&chat->messages[chat->message_count - 1], text, length, error);
    free(text);
    if (status != STATUS_OK) return status;
    struct message *message = &chat->messages[chat->message_count - 1];
    message->said = length - strlen(line);
    message->document_first = chat->told_count;
    message->document_behind = chat->told_count = chat->source.prompt.document_count;
    return STATUS_OK;
}

static void messages_cut(struct chat *chat, size_t count) {
    while (chat->message_count > count) text_deinit(&chat->messages[--chat->message_count].content);
}

static enum status chat_reset(struct chat *chat, struct error *error) {
    messages_cut(chat, 0);
    chat->told_count = chat->prompt_count = 0;
    const char *system = chat->source.prompt.system.bytes;
    return system != NULL ? message_add(chat, CHAT_SYSTEM, system, error) : STATUS_OK;
}

static enum status create_engine(struct chat *chat, bool found_damage, struct error *error) {
    const struct engine_options options = {.trace = chat->trace.trace, .found_damage = found_damage};
    const struct model_config *config = &chat->session.model->config;
    chat->plan.context_size = option_count(chat->options, OPTION_CONTEXT);
    chat->plan.document_name = prompt_name(chat->options, chat->document_name, sizeof chat->document_name);
    if (chat->plan.document_name == NULL) chat->plan.document_name = "chat";
    plan_read_sizes(&chat->plan, chat->options);
    TRY(plan_take_auto(&chat->plan, chat->options, &chat->session, plan_context_size(&chat->plan, config), NULL,
                       error));
    plan_bound_device(&chat->plan, chat->session.device);
    TRY(plan_fit_context(&chat->plan, config, error));
    TRY(plan_set_host_bytes(&chat->plan, config, error));
    return session_create_engine(&chat->session, &chat->plan, &options, error);
}

/* In the place of one that found a saved document damaged. */
static enum status make_engine(void *context, struct engine **engine, struct error *error) {
    struct chat *chat = context;
    enum status status = create_engine(chat, true, error);
    *engine = chat->session.engine;
    return status;
}

/* ---- a turn ---- */

static enum status lay_out(const struct chat *chat, struct token_list *tokens, struct chat_ending *ending,
                           struct error *error) {
    struct chat_message *messages = calloc(chat->message_count, sizeof *messages);
    if (messages == NULL) return error_set(error, STATUS_MEMORY, "no memory for the conversation");
    for (size_t i = 0; i < chat->message_count; i++)
        messages[i] = (struct chat_message){chat->messages[i].role, chat->messages[i].content.bytes,
                                            chat->messages[i].content.length};
    const struct chat_conversation conversation = {.messages = messages,
                                                   .count = chat->message_count,
                                                   .add_generation_prompt = true,
                                                   .thinking = chat->source.prompt.thinking};
    enum status status =
        chat_template_lay_out(chat->layout, chat->session.tokenizer, &conversation, tokens, ending, error);
    free(messages);
    return status;
}

/* Answers go to standard output and into the conversation. */
static enum status sink_answer(void *context, const char *bytes, size_t length, struct error *error) {
    struct chat *chat = context;
    output_bytes(bytes, length);
    TRY(output_flush(error));
    return message_append(&chat->messages[chat->message_count - 1], bytes, length, error);
}

static void print_figures(const struct chat *chat, size_t reused) {
    if (chat->listener.quiet) return;
    const struct generation_figures *g = &chat->generation.figures;
    fprintf(stderr, "loam: prompt %llu tokens (%zu more reused) in %.2f s, answer %zu tokens (%.1f t/s)\n",
            (unsigned long long)g->prefill_tokens, reused, g->prefill_seconds, chat->answer.tokens.count,
            generation_decode_rate(g));
    if (!chat->plan.select.receipt) return;
    const struct select_statistics chosen = attention_statistics(engine_attention(chat->session.engine));
    char left_out[RECEIPT_TEXT_BYTES];
    fprintf(stderr, "loam: receipt: %s\n", receipt_text(&chosen, left_out, sizeof left_out));
    attention_reset_statistics(engine_attention(chat->session.engine)); /* each answer has its own */
}

static enum status generate_answer(struct chat *chat, const struct token_list *tokens, struct error *error) {
    struct answer *answer = &chat->answer;
    const bool is_first = answer->stored.count == 0;
    size_t reused = answer_keep_shared(answer, tokens->ids, tokens->count);
    const struct token_list fresh = {.ids = tokens->ids + reused, .count = tokens->count - reused};
    chat->generation.figures = (struct generation_figures){0};
    answer_begin(answer);
    answer->prompt = &fresh;
    const struct sampling *sampling = &chat->sampling; /* of a conversation that has documents now, by /add too */
    sampler_set_temperature(answer->sampler,
                            chat->told_count > 0 ? sampling->about_documents : sampling->options.temperature);
    TRY(message_add(chat, CHAT_ASSISTANT, "", error));
    enum status status = generation_run(&chat->generation, &answer, 1, error);
    answer->prompt = NULL;
    chat->prompt_count = answer->tokens.count > 0 ? tokens->count : 0;
    if (status == STATUS_OK || status == STATUS_INTERRUPTED) {
        output_text("\n");
        struct error ignored;
        TRY(output_flush(status == STATUS_OK ? error : &ignored));
        if (is_first) reused += (size_t)sequence_reused_tokens(answer->sequence); /* that were saved */
        if (answer->stop == STOP_LOOP) fputs("loam: the answer stops because it repeats itself without end\n", stderr);
        print_figures(chat, reused);
    }
    return status;
}

/* As if it had not been said.  Documents of -f are kept for the next question: they fit. */
static void take_back(struct chat *chat, size_t message_count, size_t told_count) {
    messages_cut(chat, message_count);
    chat->told_count = told_count;
}

/* What /add brought and the conversation has no room for. */
static void drop_added(struct chat *chat) {
    const size_t kept = chat->told_count > chat->given_count ? chat->told_count : chat->given_count;
    if (chat->source.prompt.document_count > kept) fputs("loam: what was added is left out\n", stderr);
    prompt_cut(&chat->source, kept);
}

/* Answers what was said last.  *has_answer: of which some is in the conversation. */
static enum status answer_last(struct chat *chat, bool *has_answer, struct error *error) {
    struct token_list tokens = {0};
    struct chat_ending ending = {0};
    enum status status = lay_out(chat, &tokens, &ending, error);
    uint64_t context_size = engine_context_size(chat->session.engine);
    bool too_long = status == STATUS_OK && tokens.count > context_size;
    if (too_long)
        fprintf(stderr, "loam: the conversation has %zu tokens, the context holds %llu: /reset begins anew (or -c)\n",
                tokens.count, (unsigned long long)context_size);
    else if (status == STATUS_OK) {
        sequence_set_turn(chat->answer.sequence, ending.turn_end, chat_template_drops_thoughts(chat->layout));
        status = generate_answer(chat, &tokens, error);
    }
    token_list_deinit(&tokens);
    if (status == STATUS_INTERRUPTED) interrupt_clear();
    *has_answer = !too_long && (status == STATUS_OK || chat->answer.tokens.count > 0);
    return status;
}

/* STATUS_INTERRUPTED: Ctrl-C stopped the answer, the conversation can go on.  An answer that never began leaves no
 * trace; one that was stopped stays as far as it came. */
static enum status turn(struct chat *chat, const char *line, struct error *error) {
    const size_t before = chat->message_count, told = chat->told_count;
    bool has_answer = false;
    TRY(user_message_add(chat, line, error));
    const enum status status = answer_last(chat, &has_answer, error);
    if (has_answer || (status != STATUS_OK && status != STATUS_INTERRUPTED)) return status;
    take_back(chat, before, told);
    if (status == STATUS_OK) drop_added(chat);
    return status;
}

/* ---- commands ---- */

static bool is_answered(const struct chat *chat) {
    return chat->message_count > 0 && chat->messages[chat->message_count - 1].role == CHAT_ASSISTANT;
}

/* Another answer to the last question, drawn anew.  The old one stays where a new one never begins. */
static enum status retry(struct chat *chat, const char *argument, struct error *error) {
    (void)argument;
    if (!is_answered(chat)) {
        fputs("loam: /retry: nothing was answered yet\n", stderr);
        return STATUS_OK;
    }
    struct message old = chat->messages[--chat->message_count];
    const size_t before = chat->message_count;
    bool has_answer = false;
    const enum status status = answer_last(chat, &has_answer, error);
    if (has_answer) {
        text_deinit(&old.content);
        return status;
    }
    messages_cut(chat, before);
    chat->messages[chat->message_count++] = old; /* in the place that it had */
    return status;
}

/* The answer's tokens are stepped once more, behind the same prompt, with an observer. */
static enum status look_back(struct chat *chat, struct explain *explain, const struct token_list *tokens,
                             struct error *error) {
    struct answer *answer = &chat->answer;
    const float *logits;
    enum status status = STATUS_OK;
    answer_truncate(answer, chat->prompt_count);
    engine_set_attention_observer(chat->session.engine, explain_add, explain);
    for (size_t i = 0; status == STATUS_OK && i < tokens->count; i++)
        status = interrupt_requested()
                     ? error_set(error, STATUS_INTERRUPTED, "interrupted")
                     : generation_step(&chat->generation, &answer, &tokens->ids[i], 1, &logits, error);
    engine_set_attention_observer(chat->session.engine, NULL, NULL);
    if (status == STATUS_OK && explain->failed != STATUS_OK) *error = explain->failure;
    return status == STATUS_OK ? explain->failed : status;
}

static enum status show_sources(struct chat *chat, struct explain *explain, struct error *error) {
    const struct explain_texts texts = {
        .tokenizer = chat->session.tokenizer, .prompt = chat->answer.stored.ids, .prompt_count = chat->prompt_count};
    struct explain_span *spans = NULL;
    size_t count = 0;
    enum status status = sources_find(explain, &texts, &chat->source.files, &spans, &count, error);
    for (size_t i = 0; status == STATUS_OK && i < count && i < SPANS_SHOWN; i++)
        sources_print(&chat->source.files, &spans[i]);
    free(spans);
    return status == STATUS_OK ? output_flush(error) : status;
}

/* What the answer's tokens looked for in the documents. */
static enum status sources(struct chat *chat, const char *argument, struct error *error) {
    (void)argument;
    if (chat->prompt_count == 0 || chat->told_count == 0) {
        fprintf(stderr, "loam: /sources: %s\n",
                chat->prompt_count == 0 ? "there is no answer to look at" : "the conversation has no documents");
        return STATUS_OK;
    }
    struct token_list tokens = chat->answer.tokens; /* without what ended it */
    if (tokens.count > 0 && tokenizer_is_end(chat->session.tokenizer, tokens.ids[tokens.count - 1])) tokens.count--;
    const size_t rows = chat->prompt_count + tokens.count,
                 room = (size_t)engine_context_size(chat->session.engine) - chat->prompt_count;
    tokens.count = min_size(min_size(tokens.count, room), EXPLAINED_BYTES_MAX / (rows * sizeof(float)) + 1);
    struct explain explain = {0};
    const bool in_tiers = chat->plan.disk_directory != NULL;
    enum status status =
        explain_create(&explain, chat->session.model, chat->prompt_count, tokens.count, in_tiers, error);
    if (status == STATUS_OK) status = look_back(chat, &explain, &tokens, error);
    if (status == STATUS_OK) status = show_sources(chat, &explain, error);
    explain_destroy(&explain);
    if (status == STATUS_INTERRUPTED) interrupt_clear();
    return status;
}

static const char *name_of(const struct chat *chat, size_t document) { return chat->source.files.files[document].path; }

/* As Markdown, like the page's: what was typed and answered, documents by their names. */
static void write_conversation(const struct chat *chat, FILE *file) {
    fprintf(file, "# A conversation with %s\n", chat->session.model->config.name);
    for (size_t i = 0; i < chat->message_count; i++) {
        const struct message *message = &chat->messages[i];
        static const char *const heads[] = {
            [CHAT_SYSTEM] = "System", [CHAT_USER] = "Question", [CHAT_ASSISTANT] = "Answer"};
        fprintf(file, "\n## %s\n", heads[message->role]);
        for (size_t d = message->document_first; d < message->document_behind; d++)
            fprintf(file, "%s%s", d == message->document_first ? "\nDocuments: " : ", ", name_of(chat, d));
        if (message->document_behind > message->document_first) fputc('\n', file);
        fprintf(file, "\n%s\n", message->content.bytes + message->said);
    }
}

static enum status save(struct chat *chat, const char *path, struct error *error) {
    struct file_writer writer;
    TRY(file_writer_open(&writer, path, error));
    writer.keeps = true;
    write_conversation(chat, writer.stream);
    TRY(file_writer_commit(&writer, error));
    fprintf(stderr, "loam: the conversation is in %s\n", path);
    return STATUS_OK;
}

static enum status add_document(struct chat *chat, const char *path, struct error *error) {
    if (strcmp(path, "-") == 0) return error_set(error, STATUS_USAGE, "/add: standard input is what you type");
    TRY(prompt_add(&chat->source, chat->options, path, error));
    fprintf(stderr, "loam: the next question is about %s, too\n", path);
    return STATUS_OK;
}

static enum status reset(struct chat *chat, const char *argument, struct error *error) {
    (void)argument;
    fputs("loam: a new conversation\n", stderr);
    return chat_reset(chat, error);
}

static enum status help(struct chat *chat, const char *argument, struct error *error);

static const struct line_command {
    const char *name, *argument; /* argument NULL: it has none */
    enum status (*run)(struct chat *chat, const char *argument, struct error *error);
    const char *help;
} line_commands[] = {
    {"/add", "FILE", add_document, "the next question is about this file or folder, too"},
    {"/retry", NULL, retry, "another answer to the last question"},
    {"/sources", NULL, sources, "which sentences of the documents the answer attended to"},
    {"/save", "FILE", save, "write the conversation to a new file, as Markdown"},
    {"/reset", NULL, reset, "begin a new conversation"},
    {"/quit", NULL, NULL, "leave (Ctrl-D too)"},
    {"/exit", NULL, NULL, NULL},
    {"/help", NULL, help, "this"},
};

static enum status help(struct chat *chat, const char *argument, struct error *error) {
    (void)chat, (void)argument, (void)error;
    for (size_t i = 0; i < sizeof line_commands / sizeof *line_commands; i++) {
        const struct line_command *command = &line_commands[i];
        if (command->help == NULL) continue;
        fprintf(stderr, "%s%s%s  %s\n", command->name, command->argument != NULL ? " " : "",
                command->argument != NULL ? command->argument : "", command->help);
    }
    fputs("Ctrl-C stops an answer; twice leaves.\n", stderr);
    return STATUS_OK;
}

/* *argument: behind the name and blanks; NULL: there is none. */
static const struct line_command *find_command(const char *line, const char **argument) {
    const size_t length = strcspn(line, " ");
    *argument = line + length + strspn(line + length, " ");
    if (**argument == '\0') *argument = NULL;
    for (size_t i = 0; i < sizeof line_commands / sizeof *line_commands; i++) {
        const struct line_command *command = &line_commands[i];
        if (strlen(command->name) == length && memcmp(command->name, line, length) == 0 &&
            (*argument != NULL) == (command->argument != NULL))
            return command;
    }
    return NULL;
}

/* What a command cannot do is said, and the conversation goes on. */
static enum status run_line(struct chat *chat, const char *line, bool *quits, struct error *error) {
    const char *argument;
    const struct line_command *command = find_command(line, &argument);
    if (command == NULL) {
        char shown[64];
        fprintf(stderr, "loam: no command '%s'; /help lists them\n",
                utf8_escape(line, strlen(line), shown, sizeof shown));
        return STATUS_OK;
    }
    *quits = command->run == NULL;
    if (*quits) return STATUS_OK;
    const enum status status = command->run(chat, argument, error);
    if (status != STATUS_USAGE && status != STATUS_IO) return status;
    fprintf(stderr, "loam: %s\n", error->message);
    return STATUS_OK;
}

static enum status converse(struct chat *chat, struct error *error) {
    bool was_interrupted = false, quits = false; /* was_interrupted: the last thing typed was Ctrl-C */
    enum status status = STATUS_OK;
    while (status == STATUS_OK && !quits) {
        const char *line = NULL;
        enum line_result result = line_reader_read(chat->reader, &line);
        if (result == LINE_END) break;
        if (result == LINE_INTERRUPTED) {
            if (was_interrupted) return error_set(error, STATUS_INTERRUPTED, "interrupted");
            was_interrupted = true;
            interrupt_clear();
            fputs("\n(Ctrl-C again leaves)\n", stderr);
            continue;
        }
        was_interrupted = false;
        if (line[0] == '\0') continue;
        status = line[0] == '/' ? run_line(chat, line, &quits, error) : turn(chat, line, error);
        if (status == STATUS_INTERRUPTED) { /* heard already: a second one now leaves */
            was_interrupted = true;
            status = STATUS_OK;
            fputs("(Ctrl-C again leaves)\n", stderr);
        }
    }
    return status;
}

/* ---- opening ---- */

static enum status choose_template(struct chat *chat, struct error *error) {
    TRY(prompt_template(chat->options, &chat->session.model->gguf, &chat->layout, error));
    if (chat->layout != NULL) return STATUS_OK;
    return error_set(error, STATUS_UNSUPPORTED, "the model has no chat template; name one with --chat-template NAME");
}

/* A conversation that no question fits into is not begun. */
static enum status check_documents(const struct chat *chat, struct error *error) {
    const struct prompt *prompt = &chat->source.prompt;
    const uint64_t context_size = engine_context_size(chat->session.engine);
    struct token_list tokens = {0};
    if (prompt->document_count == 0) return STATUS_OK;
    enum status status = prompt_encode_chat(prompt, chat->layout, chat->session.tokenizer, &tokens, error);
    if (status == STATUS_OK && option_count(chat->options, OPTION_CONTEXT) == 0 &&
        tokens.count < chat->session.model->config.context_length)
        status = plan_check_budget(&chat->plan, &chat->session.model->config, tokens.count + 1, error);
    if (status == STATUS_OK && tokens.count >= context_size)
        status = error_set(error, STATUS_USAGE,
                           "the documents have %zu tokens, the context holds %llu (the model was trained for %llu)",
                           tokens.count, (unsigned long long)context_size,
                           (unsigned long long)chat->session.model->config.context_length);
    token_list_deinit(&tokens);
    return status;
}

static enum status open_chat(struct chat *chat, struct error *error) {
    const struct options *options = chat->options;
    TRY(plan_read(&chat->plan, options, error));
    TRY(trace_file_open(&chat->trace, options, error));
    TRY(session_open(&chat->session, options, option_count(options, OPTION_THREADS), error));
    TRY(session_open_tokenizer(&chat->session, options, error));
    TRY(choose_template(chat, error));
    TRY(prompt_open(&chat->source, options, error));
    chat->given_count = chat->source.prompt.document_count;
    TRY(create_engine(chat, false, error));
    TRY(check_documents(chat, error));
    chat->listener.quiet = option_flag(options, OPTION_QUIET);
    TRY(sampling_read(&chat->sampling, options, error));
    TRY(sampling_take_model(&chat->sampling, options, &chat->session.model->gguf, error));
    chat->generation = (struct generation){.engine = chat->session.engine,
                                           .tokenizer = chat->session.tokenizer,
                                           .listener = listener_of(&chat->listener),
                                           .make_engine = make_engine,
                                           .make_engine_context = chat,
                                           .stops = chat->sampling.stops,
                                           .stop_count = chat->sampling.stop_count,
                                           .token_max = option_integer(options, OPTION_PREDICT),
                                           .draft_max = option_count(options, OPTION_DRAFT_MAX)};
    TRY(answer_create(&chat->answer, &chat->generation, &chat->sampling.options, error));
    chat->answer.sink = sink_answer;
    chat->answer.sink_context = chat;
    TRY(line_reader_create(&chat->reader, error));
    if (line_reader_is_terminal(chat->reader) && !chat->listener.quiet)
        fprintf(stderr, "%s, template %s, context %llu tokens; /help\n", chat->session.model->config.name,
                chat_template_name(chat->layout), (unsigned long long)engine_context_size(chat->session.engine));
    return chat_reset(chat, error);
}

enum status chat_command(const struct options *options, struct error *error) {
    interrupt_install_ctrl_c();
    struct chat *chat = calloc(1, sizeof *chat);
    if (chat == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    chat->options = options;
    enum status status = open_chat(chat, error);
    if (status == STATUS_OK) status = converse(chat, error);
    if (status == STATUS_INTERRUPTED) error->message[0] = '\0'; /* the user knows */
    struct error why;
    if (chat->answer.sequence != NULL && sequence_flush(chat->answer.sequence, &why) != STATUS_OK &&
        !chat->listener.quiet)
        fprintf(stderr, "loam: note: saving stopped: %s\n", why.message);
    line_reader_destroy(chat->reader);
    answer_destroy(&chat->answer);
    chat_template_destroy(chat->layout);
    session_close(&chat->session);
    status = trace_file_close(&chat->trace, status, error);
    plan_deinit(&chat->plan);
    messages_cut(chat, 0);
    prompt_close(&chat->source);
    free(chat->messages);
    free(chat);
    return status;
}
