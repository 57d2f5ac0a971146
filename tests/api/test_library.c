/* The public header beyond single tokens: whole answers, batches, budgets, saved documents, damage, receipts and
 * cancellation, as a program outside of loam would use them. */
#include "testing.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loam.h"
#include "plan/sample_machine.h"
#include "platform/cpu.h"
#include "platform/scratch.h"

enum { PROMPT = 300, TAIL = 20, ANSWER = 12, SEQUENCES = 3 };

static char path[64];
static struct loam_model *model;
static int32_t prompt[PROMPT + TAIL];

static struct loam_error error;

#define OK(call)                                                         \
    do {                                                                 \
        if ((call) != LOAM_OK) fail_msg("%s: %s", #call, error.message); \
    } while (0)

static struct loam_session *session_with(struct loam_session_options options) {
    struct loam_session *session;
    options.size = sizeof options;
    OK(loam_session_create(&session, model, &options, &error));
    return session;
}

static struct loam_sequence *sequence_in(struct loam_session *session, const struct loam_sampling *sampling) {
    struct loam_sequence *sequence;
    OK(loam_sequence_create(&sequence, session, sampling, &error));
    return sequence;
}

static const struct loam_generate_options short_answer = {
    .size = sizeof short_answer, .token_max = ANSWER, .ignore_end = true};

static struct loam_answer answer_of(const struct loam_sequence *sequence) {
    struct loam_answer answer = {.size = sizeof answer};
    OK(loam_sequence_answer(sequence, &answer, &error));
    return answer;
}

static struct loam_receipt receipt_of(const struct loam_session *session) {
    struct loam_receipt receipt = {.size = sizeof receipt};
    OK(loam_session_receipt(session, &receipt, &error));
    return receipt;
}

static void expect_tokens(const int32_t *expected, const struct loam_sequence *sequence) {
    const struct loam_answer answer = answer_of(sequence);
    assert_int_equal(answer.token_count, ANSWER);
    assert_int_equal(answer.stop, LOAM_STOP_LENGTH);
    assert_memory_equal(answer.tokens, expected, ANSWER * sizeof *expected);
}

/* The answer to the first `count` tokens of the prompt, in a session of its own, all in RAM. */
static void fresh(size_t count, const struct loam_sampling *sampling, int32_t *tokens) {
    struct loam_session *session = session_with((struct loam_session_options){.context_size = 512});
    struct loam_sequence *sequence = sequence_in(session, sampling);
    OK(loam_generate(session, &(struct loam_prompt){sequence, prompt, count}, 1, &short_answer, &error));
    memcpy(tokens, answer_of(sequence).tokens, ANSWER * sizeof *tokens);
    loam_sequence_destroy(sequence);
    loam_session_destroy(session);
}

/* ---- answers ---- */

struct heard {
    char text[SEQUENCES][1024];
    size_t length[SEQUENCES], calls, stop_after;
};

static bool hear(void *context, size_t index, const char *bytes, size_t length) {
    struct heard *heard = context;
    assert_true(index < SEQUENCES && heard->length[index] + length <= sizeof heard->text[0]);
    memcpy(heard->text[index] + heard->length[index], bytes, length);
    heard->length[index] += length;
    return ++heard->calls == heard->stop_after;
}

/* Several prompts of several lengths at once give what each gives alone; the text is that of the tokens. */
static void a_batch_is_its_answers(void **state) {
    (void)state;
    static const size_t counts[SEQUENCES] = {PROMPT, 70, 5};
    const struct loam_sampling samplings[SEQUENCES] = {
        {0}, {.temperature = 2, .seed = 7}, {.temperature = 1, .top_k = 40, .seed = 8}};
    struct loam_session *session =
        session_with((struct loam_session_options){.context_size = 512, .sequence_capacity = SEQUENCES});
    struct loam_prompt prompts[SEQUENCES];
    struct heard heard = {.calls = 0};
    struct loam_generate_options options = short_answer;
    options.text = hear;
    options.context = &heard;
    options.top_count = 3;
    for (size_t i = 0; i < SEQUENCES; i++)
        prompts[i] = (struct loam_prompt){sequence_in(session, &samplings[i]), prompt, counts[i]};
    OK(loam_generate(session, prompts, SEQUENCES, &options, &error));
    for (size_t i = 0; i < SEQUENCES; i++) {
        int32_t expected[ANSWER];
        char text[1024];
        size_t length = 0;
        fresh(counts[i], &samplings[i], expected);
        expect_tokens(expected, prompts[i].sequence);
        const struct loam_answer answer = answer_of(prompts[i].sequence);
        for (size_t t = 0; t < ANSWER; t++) {
            length += loam_token_text(model, expected[t], text + length, sizeof text - length);
            assert_true(answer.top[3 * t].log_probability >= answer.top[3 * t + 1].log_probability);
            if (i == 0) assert_int_equal(answer.top[3 * t].id, expected[t]); /* greedy */
        }
        assert_int_equal(heard.length[i], length);
        assert_memory_equal(heard.text[i], text, length);
        assert_int_equal(loam_sequence_length(prompts[i].sequence), counts[i] + ANSWER - 1);
    }
    const struct loam_receipt receipt = receipt_of(session);
    assert_int_equal(receipt.prefill_tokens, PROMPT + 70 + 5);
    assert_int_equal(receipt.decode_tokens, SEQUENCES * (ANSWER - 1));
    assert_true(receipt.kept_ratio == 1 && receipt.prefill_seconds > 0 && receipt.host_bytes > 0);
    for (size_t i = 0; i < SEQUENCES; i++) loam_sequence_destroy(prompts[i].sequence);
    loam_session_destroy(session);
}

/* The answer's text ends before a stop string; its tokens include those that spell it. */
static void stop_strings_end_answers(void **state) {
    (void)state;
    int32_t expected[ANSWER];
    char text[1024];
    size_t length = 0;
    fresh(PROMPT, NULL, expected);
    for (size_t t = 0; t < ANSWER; t++)
        length += loam_token_text(model, expected[t], text + length, sizeof text - length);
    text[length] = '\0';
    char stop[3] = {text[length - 4], text[length - 3]};
    const char *const stops[] = {"no such text", stop};
    struct loam_session *session = session_with((struct loam_session_options){.context_size = 512});
    struct loam_prompt asked = {sequence_in(session, NULL), prompt, PROMPT};
    struct heard heard = {.calls = 0};
    struct loam_generate_options options = short_answer;
    options.text = hear;
    options.context = &heard;
    options.stops = stops;
    options.stop_count = 2;
    OK(loam_generate(session, &asked, 1, &options, &error));
    assert_int_equal(answer_of(asked.sequence).stop, LOAM_STOP_STRING);
    assert_int_equal(heard.length[0], (size_t)(strstr(text, stop) - text));
    assert_memory_equal(heard.text[0], text, heard.length[0]);
    options.stops = (const char *const[]){""};
    options.stop_count = 1;
    assert_int_equal(loam_generate(session, &asked, 1, &options, &error), LOAM_USAGE);
    assert_non_null(strstr(error.message, "stops[0]"));
    OK(loam_generate(session, &asked, 1, &short_answer, &error)); /* the last one's are forgotten */
    expect_tokens(expected, asked.sequence);
    loam_sequence_destroy(asked.sequence);
    loam_session_destroy(session);
}

/* Every answer is of the schema's form; the next ones are any text again. */
static void answers_of_a_form(void **state) {
    (void)state;
    const struct loam_sampling sampling = {.temperature = 1, .seed = 3};
    int32_t expected[ANSWER];
    struct loam_session *session =
        session_with((struct loam_session_options){.context_size = 512, .sequence_capacity = SEQUENCES});
    struct loam_prompt prompts[SEQUENCES];
    struct heard heard = {.calls = 0};
    struct loam_generate_options options = {.size = sizeof options, .token_max = 64};
    options.text = hear;
    options.context = &heard;
    options.json_schema = "{\"enum\": [\"yes\", \"no\"]}";
    for (size_t i = 0; i < SEQUENCES; i++)
        prompts[i] = (struct loam_prompt){sequence_in(session, &sampling), prompt, PROMPT};
    OK(loam_generate(session, prompts, SEQUENCES, &options, &error));
    for (size_t i = 0; i < SEQUENCES; i++) {
        assert_int_equal(answer_of(prompts[i].sequence).stop, LOAM_STOP_END);
        const bool yes = strncmp(heard.text[i], "\"yes\"", heard.length[i]) == 0;
        assert_true(heard.length[i] >= 4 && (yes || strncmp(heard.text[i], "\"no\"", heard.length[i]) == 0));
    }
    options.json_schema = "{\"pattern\": \"(?=a)\"}";
    assert_int_equal(loam_generate(session, prompts, 1, &options, &error), LOAM_USAGE);
    assert_non_null(strstr(error.message, "pattern"));
    fresh(PROMPT, NULL, expected);
    options.json_schema = "{}";
    options.text = NULL;
    for (size_t i = 0; i < SEQUENCES; i++) loam_sequence_destroy(prompts[i].sequence);
    struct loam_prompt greedy = {sequence_in(session, NULL), prompt, PROMPT};
    OK(loam_generate(session, &greedy, 1, &options, &error));
    OK(loam_generate(session, &greedy, 1, &short_answer, &error));
    expect_tokens(expected, greedy.sequence);
    loam_sequence_destroy(greedy.sequence);
    loam_session_destroy(session);
}

/* A prompt that continues costs its new tokens; one that departs keeps the shared ones. */
static void what_a_sequence_holds_is_kept(void **state) {
    (void)state;
    int32_t longer[ANSWER], shorter[ANSWER];
    fresh(PROMPT + TAIL, NULL, longer);
    fresh(PROMPT - 10, NULL, shorter);
    struct loam_session *session = session_with((struct loam_session_options){.context_size = 512});
    struct loam_sequence *sequence = sequence_in(session, NULL);
    static const struct {
        size_t count, computed;
    } turns[] = {{PROMPT, PROMPT}, {PROMPT + TAIL, TAIL}, {PROMPT - 10, 1}};
    for (size_t i = 0; i < sizeof turns / sizeof turns[0]; i++) {
        uint64_t before = receipt_of(session).prefill_tokens;
        OK(loam_generate(session, &(struct loam_prompt){sequence, prompt, turns[i].count}, 1, &short_answer,
                         &error));
        assert_int_equal(receipt_of(session).prefill_tokens - before, turns[i].computed);
        if (i > 0) expect_tokens(i == 1 ? longer : shorter, sequence);
    }
    /* Token by token it goes on from there. */
    int32_t token;
    assert_int_equal(loam_session_next(session, &sequence, 1, &token, NULL), LOAM_USAGE);
    OK(loam_sequence_feed(sequence, prompt, 3, &error));
    OK(loam_session_next(session, &sequence, 1, &token, &error));
    assert_int_equal(loam_sequence_length(sequence), PROMPT - 10 + ANSWER - 1 + 3 + 1);
    loam_sequence_destroy(sequence);
    loam_session_destroy(session);
}

/* Steps of several sequences with prompts of their own give the tokens of whole answers. */
static void steps_are_answers(void **state) {
    (void)state;
    static const size_t counts[2] = {PROMPT, 40};
    struct loam_session *session =
        session_with((struct loam_session_options){.context_size = 512, .sequence_capacity = 2});
    struct loam_sequence *sequences[2];
    int32_t expected[2][ANSWER], tokens[2];
    for (size_t i = 0; i < 2; i++) {
        fresh(counts[i], NULL, expected[i]);
        sequences[i] = sequence_in(session, NULL);
        OK(loam_sequence_feed(sequences[i], prompt, counts[i], &error));
    }
    for (size_t t = 0; t < ANSWER; t++) {
        OK(loam_session_next(session, sequences, 2, tokens, &error));
        assert_true(tokens[0] == expected[0][t] && tokens[1] == expected[1][t]);
    }
    struct loam_sequence *twice[2] = {sequences[0], sequences[0]};
    assert_int_equal(loam_session_next(session, twice, 2, tokens, &error), LOAM_USAGE);
    assert_non_null(strstr(error.message, "are the same"));
    struct loam_sequence *third;
    assert_int_equal(loam_sequence_create(&third, session, NULL, &error), LOAM_MEMORY);
    assert_null(third);
    for (size_t i = 0; i < 2; i++) loam_sequence_destroy(sequences[i]);
    loam_session_destroy(session);
}

/* ---- stopping ---- */

struct watch {
    struct loam_session *session;
    size_t asked, stop_after;
    uint64_t done, total;
    bool stops_prefill, cancels;
};

static bool watch_steps(void *context) {
    struct watch *watch = context;
    if (++watch->asked != watch->stop_after) return false;
    if (watch->cancels) loam_session_cancel(watch->session);
    return !watch->cancels;
}

static bool watch_prefill(void *context, uint64_t done, uint64_t total) {
    struct watch *watch = context;
    assert_true(done >= watch->done && done <= total);
    watch->done = done;
    watch->total = total;
    return watch->stops_prefill && done > 0;
}

static void answers_can_be_stopped(void **state) {
    (void)state;
    struct watch watch = {.stop_after = 5};
    struct heard heard = {.stop_after = 4};
    struct loam_session *session = session_with((struct loam_session_options){.context_size = 512,
                                                                              .batch_size = 64,
                                                                              .segment_size = 64,
                                                                              .context = &watch,
                                                                              .progress = watch_prefill,
                                                                              .cancels = watch_steps});
    struct loam_sequence *sequence = sequence_in(session, NULL);
    const struct loam_prompt asked = {sequence, prompt, PROMPT};
    int32_t expected[ANSWER];
    fresh(PROMPT, NULL, expected);
    watch.session = session;
    for (int round = 0; round < 2; round++) { /* by the answer to a question, and as another thread would */
        watch.cancels = round == 1;
        watch.asked = 0;
        watch.done = 0;
        assert_int_equal(loam_generate(session, &asked, 1, &short_answer, &error), LOAM_INTERRUPTED);
        const struct loam_answer answer = answer_of(sequence);
        assert_int_equal(answer.stop, LOAM_STOP_INTERRUPTED);
        /* Asked after the prefill and before each step; a cancellation is seen when it is asked next. */
        assert_int_equal(answer.token_count, round == 0 ? 4 : 5);
        assert_memory_equal(answer.tokens, expected, answer.token_count * sizeof *expected);
    }
    assert_true(watch.done == watch.total);
    watch.stop_after = watch.done = 0;
    struct loam_generate_options options = short_answer;
    options.text = hear;
    options.context = &heard;
    assert_int_equal(loam_generate(session, &asked, 1, &options, &error), LOAM_INTERRUPTED);
    assert_int_equal(heard.calls, 4);
    loam_sequence_truncate(sequence, 0);
    watch.stops_prefill = true;
    watch.done = 0;
    assert_int_equal(loam_generate(session, &asked, 1, &short_answer, &error), LOAM_INTERRUPTED);
    uint64_t stayed = loam_sequence_length(sequence);
    assert_true(stayed < PROMPT && stayed % 64 == 0);
    assert_int_equal(answer_of(sequence).token_count, 0);
    watch.stops_prefill = false; /* and it goes on from there */
    watch.done = 0;
    OK(loam_generate(session, &asked, 1, &short_answer, &error));
    expect_tokens(expected, sequence);
    loam_sequence_destroy(sequence);
    loam_session_destroy(session);
}

/* ---- documents ---- */

struct seen {
    size_t count;
    struct loam_document last;
    char name[64], notes[2048];
};

static bool see(void *context, const struct loam_document *document) {
    struct seen *seen = context;
    seen->count++;
    seen->last = *document;
    snprintf(seen->name, sizeof seen->name, "%s", document->name);
    return false;
}

static void take_note(void *context, const char *line) {
    struct seen *seen = context;
    size_t used = strlen(seen->notes);
    snprintf(seen->notes + used, sizeof seen->notes - used, "%s\n", line);
}

static struct loam_session *on_disk(const struct scratch *folder, struct seen *seen) {
    return session_with((struct loam_session_options){.context_size = 512,
                                                      .sequence_capacity = 2,
                                                      .kv_host_bytes = 32 << 20,
                                                      .disk_directory = folder->path,
                                                      .document_name = "a story",
                                                      .context = seen,
                                                      .note = take_note});
}

/* Saved by one session, listed, opened by another without computing, removed. */
static void documents_come_back(void **state) {
    (void)state;
    struct scratch folder;
    struct seen seen = {0};
    int32_t expected[ANSWER], ids[PROMPT + TAIL];
    size_t count;
    fresh(PROMPT + TAIL, NULL, expected);
    scratch_create(&folder, SCRATCH_MEMORY);
    assert_int_equal(loam_documents_list(folder.path, see, &seen, &error), LOAM_IO);
    struct loam_session *session = on_disk(&folder, &seen);
    struct loam_sequence *sequence = sequence_in(session, NULL);
    OK(loam_sequence_feed(sequence, prompt, PROMPT, &error));
    OK(loam_sequence_save(sequence, &error));
    OK(loam_documents_list(folder.path, see, &seen, &error));
    assert_true(seen.count == 1 && seen.last.in_use && seen.last.token_count == PROMPT);
    assert_int_equal(loam_document_remove(folder.path, seen.last.id, &error), LOAM_FAILED);
    assert_true(receipt_of(session).write_bytes > 0);
    loam_sequence_destroy(sequence);
    loam_session_destroy(session);

    seen.count = 0;
    OK(loam_documents_list(folder.path, see, &seen, &error));
    assert_true(seen.count == 1 && !seen.last.in_use && !seen.last.is_other && seen.last.damage == NULL);
    assert_string_equal(seen.name, "a story");
    OK(loam_document_verify(folder.path, seen.last.id, &error));
    OK(loam_document_tokens(folder.path, seen.last.id, ids, PROMPT, &count, &error));
    assert_int_equal(count, PROMPT);
    assert_memory_equal(ids, prompt, PROMPT * sizeof *ids);
    memcpy(ids + PROMPT, prompt + PROMPT, TAIL * sizeof *ids);
    session = on_disk(&folder, &seen);
    sequence = sequence_in(session, NULL);
    OK(loam_generate(session, &(struct loam_prompt){sequence, ids, PROMPT + TAIL}, 1, &short_answer, &error));
    assert_int_equal(answer_of(sequence).reused_tokens, PROMPT);
    const struct loam_receipt receipt = receipt_of(session);
    assert_true(receipt.prefill_tokens == TAIL && receipt.reused_tokens == PROMPT && receipt.read_bytes > 0);
    assert_true(receipt.host_bytes > 0 && receipt.host_bytes <= 32 << 20);
    loam_sequence_destroy(sequence);
    loam_session_destroy(session);

    OK(loam_document_remove(folder.path, seen.last.id, &error));
    seen.count = 0;
    OK(loam_documents_list(folder.path, see, &seen, &error));
    assert_int_equal(loam_document_tokens(folder.path, seen.last.id, ids, PROMPT, &count, &error),
                     LOAM_DOCUMENT);
    assert_true(count == 0 && seen.count <= 1); /* the second answer may have been saved as another one */
    scratch_destroy(&folder);
}

static void damage_pages(const struct scratch *folder, uint64_t id) {
    char name[128];
    unsigned char byte;
    snprintf(name, sizeof name, "%s/%llu.pages", folder->path, (unsigned long long)id);
    int file = open(name, O_RDWR);
    assert_true(file >= 0);
    for (off_t at = 100; pread(file, &byte, 1, at) == 1; at += 4096) {
        byte ^= 1;
        assert_int_equal(pwrite(file, &byte, 1, at), 1);
    }
    close(file);
}

/* Damage costs time only: the answers are the same, a note gives the reason, and sequences that were not asked are
 * empty. */
static void damage_costs_time(void **state) {
    (void)state;
    struct scratch folder;
    struct seen seen = {0};
    scratch_create(&folder, SCRATCH_MEMORY);
    struct loam_session *session = on_disk(&folder, &seen);
    struct loam_sequence *sequence = sequence_in(session, NULL), *other;
    int32_t expected[ANSWER];
    OK(loam_sequence_feed(sequence, prompt, 256, &error)); /* whole pages: they are read after the opening */
    OK(loam_sequence_save(sequence, &error));
    loam_sequence_destroy(sequence);
    loam_session_destroy(session);
    OK(loam_documents_list(folder.path, see, &seen, &error));
    damage_pages(&folder, seen.last.id);

    session = on_disk(&folder, &seen);
    sequence = sequence_in(session, NULL);
    other = sequence_in(session, NULL);
    OK(loam_sequence_feed(other, prompt + 7, 100, &error));
    fresh(PROMPT + TAIL, NULL, expected);
    OK(loam_generate(session, &(struct loam_prompt){sequence, prompt, PROMPT + TAIL}, 1, &short_answer,
                     &error));
    expect_tokens(expected, sequence);
    if (strstr(seen.notes, "computed anew") == NULL) fail_msg("notes: %s", seen.notes);
    assert_int_equal(loam_sequence_length(other), 0);
    OK(loam_generate(session, &(struct loam_prompt){other, prompt, PROMPT + TAIL}, 1, &short_answer, &error));
    expect_tokens(expected, other);
    loam_sequence_destroy(other);
    loam_sequence_destroy(sequence);
    loam_session_destroy(session);
    seen.count = 0;
    OK(loam_documents_list(folder.path, see, &seen, &error));
    assert_true(seen.count >= 1);
    scratch_destroy(&folder);
}

/* ---- options ---- */

static void budgets_hold(void **state) {
    (void)state;
    struct loam_session *session =
        session_with((struct loam_session_options){.kv_host_bytes = 1 << 20, .kv_device_bytes = 1 << 20});
    uint64_t fits = loam_session_context_size(session);
    assert_true(fits > 0 && fits < loam_model_context_length(model));
    loam_session_destroy(session);
    const struct loam_session_options more = {
        .size = sizeof more, .kv_host_bytes = 2 << 20, .context_size = fits + 1};
    assert_int_equal(loam_session_create(&session, model, &more, &error), LOAM_MEMORY);
    assert_non_null(strstr(error.message, "the budget is 2.00 MiB"));
    const struct loam_session_options many = {.size = sizeof many, .sequence_capacity = 65};
    assert_int_equal(loam_session_create(&session, model, &many, &error), LOAM_USAGE);
}

/* A struct of an older program is shorter, one of a newer program longer. */
static void option_structs_may_grow(void **state) {
    (void)state;
    struct loam_session *session;
    struct {
        struct loam_session_options options;
        uint64_t later;
    } newer = {.options = {.size = sizeof newer, .context_size = 128}};
    OK(loam_session_create(&session, model, &newer.options, &error));
    loam_session_destroy(session);
    newer.later = 1;
    assert_int_equal(loam_session_create(&session, model, &newer.options, &error), LOAM_USAGE);
    assert_non_null(strstr(error.message, "loam_session_options"));
    assert_null(session);
    newer.options.size = offsetof(struct loam_session_options, sequence_capacity);
    newer.options.sequence_capacity = 1000; /* not read */
    OK(loam_session_create(&session, model, &newer.options, &error));
    assert_int_equal(loam_session_context_size(session), 128);
    struct loam_receipt receipt = {.size = offsetof(struct loam_receipt, decode_tokens), .decode_tokens = 99};
    OK(loam_session_receipt(session, &receipt, &error));
    assert_int_equal(receipt.decode_tokens, 99);
    loam_session_destroy(session);
    newer.options.size = 0;
    assert_int_equal(loam_session_create(&session, model, &newer.options, &error), LOAM_USAGE);
    assert_non_null(strstr(error.message, "found size 0"));
}

/* What one run of the program would show of itself: a timeline, and notes. */
static void a_session_tells_of_itself(void **state) {
    (void)state;
    struct seen seen = {0};
    char name[80], text[4096] = "";
    snprintf(name, sizeof name, "%s.trace", path);
    struct loam_session *session =
        session_with((struct loam_session_options){.context_size = loam_model_context_length(model) + 1,
                                                   .trace_path = name,
                                                   .context = &seen,
                                                   .note = take_note});
    assert_non_null(strstr(seen.notes, "the model was trained for 4096"));
    struct loam_sequence *sequence = sequence_in(session, NULL);
    OK(loam_generate(session, &(struct loam_prompt){sequence, prompt, 40}, 1, &short_answer, &error));
    loam_sequence_destroy(sequence);
    loam_session_destroy(session);
    FILE *file = fopen(name, "r");
    assert_non_null(file);
    assert_true(fread(text, 1, sizeof text - 1, file) == sizeof text - 1);
    assert_non_null(strstr(text, "traceEvents"));
    assert_int_equal(fseek(file, -4, SEEK_END), 0);
    assert_true(fread(text, 1, 4, file) == 4);
    assert_memory_equal(text, "\n]}\n", 4);
    fclose(file);
    unlink(name);
    const struct loam_session_options nowhere = {.size = sizeof nowhere, .trace_path = "no/such/folder/x"};
    assert_int_equal(loam_session_create(&session, model, &nowhere, &error), LOAM_IO);
    const char control[] = "<|end|>";
    int32_t ids[8];
    size_t as_text, as_token;
    OK(loam_tokenize(model, control, 7, 0, ids, 8, &as_text, &error));
    OK(loam_tokenize(model, control, 7, LOAM_TOKENIZE_CONTROL, ids, 8, &as_token, &error));
    assert_true(as_text == 7 && as_token == 1 && loam_token_is_end(model, ids[0]));
}

static void conversations_are_laid_out(void **state) {
    (void)state;
    const struct loam_message message = {LOAM_USER, "a path", 6}, strange = {(enum loam_role)7, "", 0};
    int32_t ids[64];
    size_t count;
    enum loam_status status = loam_chat_tokens(model, NULL, &message, 1, ids, 64, &count, &error);
    assert_true(status == LOAM_FAILED && count == 0); /* this one has no template */
    assert_int_equal(loam_chat_tokens(model, "nonsense", &message, 1, ids, 64, &count, &error), LOAM_USAGE);
    assert_int_equal(loam_chat_tokens(model, "mistral-v1", &strange, 1, ids, 64, &count, &error), LOAM_USAGE);
    assert_non_null(strstr(error.message, "no role 7"));
    size_t all;
    OK(loam_chat_tokens(model, "mistral-v1", &message, 1, ids, 64, &all, &error));
    ids[3] = -9;
    OK(loam_chat_tokens(model, "mistral-v1", &message, 1, ids, 3, &count, &error));
    assert_true(count == all && all > 3 && ids[3] == -9);
}

/* As the program asks: documents first, a line or an empty line between, raw where there is no template. */
static void a_question_is_asked_as_the_program_asks(void **state) {
    (void)state;
    const struct loam_text documents[2] = {{"the path\n", 9}, {"a way", 5}};
    struct loam_question question = {
        .size = sizeof question, .documents = documents, .document_count = 2, .question = {"which?", 6}};
    static const char raw[] = "the path\na way\nwhich?", turn[] = "the path\n\na way\n\nwhich?";
    const struct loam_message message = {LOAM_USER, turn, sizeof turn - 1};
    int32_t ids[128], expected[128];
    size_t count, all;
    OK(loam_question_tokens(model, &question, ids, 128, &count, &error));
    OK(loam_tokenize(model, raw, sizeof raw - 1, LOAM_TOKENIZE_BEGIN, expected, 128, &all, &error));
    assert_true(count == all && memcmp(ids, expected, all * sizeof *ids) == 0);
    question.template_name = "mistral-v1";
    OK(loam_question_tokens(model, &question, ids, 128, &count, &error));
    OK(loam_chat_tokens(model, "mistral-v1", &message, 1, expected, 128, &all, &error));
    assert_true(count == all && memcmp(ids, expected, all * sizeof *ids) == 0);
    question.raw = true;
    OK(loam_question_tokens(model, &question, ids, 128, &count, &error));
    assert_true(count < all);
    question.raw = false;
    question.template_name = "nonsense";
    assert_int_equal(loam_question_tokens(model, &question, ids, 128, &count, &error), LOAM_USAGE);
}

/* ---- what the planner chooses ---- */

static double one(void *context) {
    (void)context;
    return 1;
}

/* A cache folder with numbers of this machine, as if they had been measured: one thread is twice as quick as two. */
static void keep_machine(struct scratch *folder) {
    struct error why;
    struct machine machine = sample_machine(one, NULL);
    char *absolute, file[300];
    scratch_create(folder, SCRATCH_DISK);
    absolute = realpath(folder->path, NULL);
    assert_non_null(absolute);
    snprintf(machine.processor, sizeof machine.processor, "%s", cpu_model_name());
    cpu_mask_text(cpu_default(), machine.kernels, sizeof machine.kernels);
    machine.thread_count = (uint32_t)cpu_count();
    machine.memory.all = 0; /* by which the others would be found wrong */
    for (size_t i = 0; i < MACHINE_THREAD_COUNTS; i++)
        machine.threads[i] = 1U << i < machine.thread_count ? sample_machine_threads(i == 0 ? 2 : 0.5, i == 0 ? 2 : 0.5)
                                                            : (struct machine_threads){0};
    snprintf(file, sizeof file, "%s/loam", folder->path);
    assert_int_equal(mkdir(file, 0700), 0);
    snprintf(file, sizeof file, "%s/loam/machine.json", folder->path);
    assert_ok(machine_save(&machine, file, &why), why);
    assert_int_equal(setenv("XDG_CACHE_HOME", absolute, 1), 0);
    free(absolute);
}

static void forget_machine(struct scratch *folder) {
    char file[300];
    snprintf(file, sizeof file, "%s/loam/machine.json", folder->path);
    assert_int_equal(unlink(file), 0);
    assert_int_equal(unsetenv("XDG_CACHE_HOME"), 0);
    scratch_destroy(folder);
}

/* A session of the model, its answer to the prompt, and what it noted. */
static struct loam_session *answer_in(struct loam_model *own, struct loam_session_options options,
                                      struct seen *seen, int32_t *tokens) {
    struct loam_session *session;
    options.size = sizeof options;
    options.context_size = 512;
    options.context = seen;
    options.note = take_note;
    OK(loam_session_create(&session, own, &options, &error));
    struct loam_sequence *sequence = sequence_in(session, NULL);
    OK(loam_generate(session, &(struct loam_prompt){sequence, prompt, PROMPT}, 1, &short_answer, &error));
    memcpy(tokens, answer_of(sequence).tokens, ANSWER * sizeof *tokens);
    loam_sequence_destroy(sequence);
    return session;
}

/* What is not given is chosen by preset "auto": threads and weights by the first session, for the model; how many
 * sequences, where that is asked for.  The answer is the same. */
static void what_is_not_given_is_chosen(void **state) {
    (void)state;
    struct scratch folder;
    struct loam_model *own;
    struct seen seen = {.count = 0};
    int32_t full[ANSWER], tokens[ANSWER];
    if (cpu_count() < 2) skip();
    keep_machine(&folder);
    fresh(PROMPT, NULL, full);
    OK(loam_model_open(&own, path, NULL, &error));
    struct loam_session *session =
        answer_in(own, (struct loam_session_options){.preset = "auto", .sequence_capacity = LOAM_SEQUENCES_AUTO},
                  &seen, tokens);
    assert_memory_equal(tokens, full, sizeof full);
    if (strstr(seen.notes, "1 of ") == NULL || strstr(seen.notes, "sequences together") == NULL)
        fail_msg("%s", seen.notes);
    assert_int_equal(loam_session_thread_count(session), 1);
    assert_true(loam_session_sequence_capacity(session) > 1);
    loam_session_destroy(session);
    /* A later session finds the model as it is, and so does one that chooses nothing. */
    seen.notes[0] = '\0';
    session = answer_in(own, (struct loam_session_options){.preset = "auto"}, &seen, tokens);
    assert_null(strstr(seen.notes, "thread"));
    assert_int_equal(loam_session_thread_count(session), 1);
    assert_int_equal(loam_session_sequence_capacity(session), 1);
    loam_session_destroy(session);
    loam_model_close(own);

    struct loam_model_options given = {.size = sizeof given, .thread_count = 2};
    seen.notes[0] = '\0';
    OK(loam_model_open(&own, path, &given, &error));
    session = answer_in(own, (struct loam_session_options){.preset = "auto", .sequence_capacity = 3}, &seen, tokens);
    assert_null(strstr(seen.notes, "threads"));
    assert_null(strstr(seen.notes, "together"));
    assert_int_equal(loam_session_thread_count(session), 2);
    assert_int_equal(loam_session_sequence_capacity(session), 3);
    assert_memory_equal(tokens, full, sizeof full);
    loam_session_destroy(session);
    loam_model_close(own);
    forget_machine(&folder);
}

/* Weights that memory does not hold are read for each pass: by default, and by "auto", but not where the model's
 * options say how many stay.  A loss is allowed without naming a preset. */
static void weights_are_divided_with_kv(void **state) {
    (void)state;
    enum { MEMORY = 32 << 20 }; /* 59 MiB of weights, and 16 MiB of KV */
    static const struct {
        const char *preset, *set, *says;
        uint64_t weights;
    } cases[] = {
        {"full", NULL, NULL, 0}, /* what the others are compared with */
        {NULL, NULL, "--weights-host", 0},
        {"auto", NULL, "for weights, ", 0},
        {NULL, "loss=0.05", "--preset auto: ", 0},
        {NULL, NULL, NULL, UINT64_MAX},
        {"auto", NULL, NULL, UINT64_MAX},
    };
    struct scratch folder;
    char large[80], command[512];
    int32_t full[ANSWER], tokens[ANSWER];
    snprintf(large, sizeof large, "large-%s", path);
    snprintf(command, sizeof command, "'%s' kv-1b F16 %s 2>/dev/null", LOAM_MAKE_MODEL, large);
    assert_int_equal(system(command), 0);
    keep_machine(&folder);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct seen seen = {.count = 0};
        struct loam_model *own;
        struct loam_model_options options = {.size = sizeof options, .weights_host_bytes = cases[i].weights};
        OK(loam_model_open(&own, large, &options, &error));
        struct loam_session *session = answer_in(
            own,
            (struct loam_session_options){
                .preset = cases[i].preset, .set = cases[i].set, .memory_bytes = MEMORY},
            &seen, tokens);
        if (cases[i].says != NULL && strstr(seen.notes, cases[i].says) == NULL)
            fail_msg("no '%s' in: %s", cases[i].says, seen.notes);
        if (cases[i].says == NULL && strstr(seen.notes, "weights") != NULL) fail_msg("%s", seen.notes);
        assert_true((loam_model_pass_bytes(own) > 0) == (cases[i].says != NULL));
        if (i == 0) memcpy(full, tokens, sizeof full);
        if (cases[i].set == NULL) assert_memory_equal(tokens, full, sizeof full);
        loam_session_destroy(session);
        loam_model_close(own);
    }
    forget_machine(&folder);
    assert_int_equal(unlink(large), 0);
}

static int set_up(void **state) {
    (void)state;
    char command[512];
    snprintf(path, sizeof path, "loam-library-%ld.gguf", (long)getpid());
    snprintf(command, sizeof command, "'%s' tiny Q4_K_M %s 2>/dev/null", LOAM_MAKE_MODEL, path);
    for (size_t i = 0; i < PROMPT + TAIL; i++) prompt[i] = (int32_t)(i * 7919 % 509 + i % 2);
    return system(command) != 0 || loam_model_open(&model, path, NULL, NULL) != LOAM_OK;
}

static int tear_down(void **state) {
    (void)state;
    loam_model_close(model);
    return unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_batch_is_its_answers),
        cmocka_unit_test(stop_strings_end_answers),
        cmocka_unit_test(answers_of_a_form),
        cmocka_unit_test(what_a_sequence_holds_is_kept),
        cmocka_unit_test(steps_are_answers),
        cmocka_unit_test(answers_can_be_stopped),
        cmocka_unit_test(documents_come_back),
        cmocka_unit_test(damage_costs_time),
        cmocka_unit_test(budgets_hold),
        cmocka_unit_test(option_structs_may_grow),
        cmocka_unit_test(conversations_are_laid_out),
        cmocka_unit_test(a_session_tells_of_itself),
        cmocka_unit_test(a_question_is_asked_as_the_program_asks),
        cmocka_unit_test(what_is_not_given_is_chosen),
        cmocka_unit_test(weights_are_divided_with_kv),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
