/* Sequences in memory without a request: those that leave it come back from the disk, and answer as if they had
 * stayed. */
#include "testing.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "server/api_error.h"
#include "service_rig.h"

enum { CONTEXT = 512, PROMPT = 150, QUESTION = 21, ANSWER = 24 };

static void append(struct token_list *to, const struct token_list *from) {
    struct error error;
    for (size_t i = 0; i < from->count; i++) assert_ok(token_list_append(to, from->ids[i], &error), error);
}

/* The answer, appended to the prompt, and its log-probabilities [ANSWER], which may be NULL; how much of the prompt was
 * reused. */
static size_t ask_for(struct service_rig *rig, struct token_list *prompt, float *log_probabilities) {
    struct client client;
    client_init(&client, rig);
    struct service_request request = rig_request(prompt, ANSWER);
    request.log_probabilities = true;
    client_ask(&client, &request);
    if (log_probabilities != NULL)
        memcpy(log_probabilities, client.log_probabilities, ANSWER * sizeof *log_probabilities);
    assert_int_equal(client.done.reason, STOP_LENGTH);
    if (client.notice[0] != '\0' && strstr(client.notice, "damaged at") == NULL)
        fail_msg("%s", client.notice);
    append(prompt, &client.tokens);
    const size_t reused = client.admission.reused_tokens;
    client_deinit(&client);
    return reused;
}

static size_t ask(struct service_rig *rig, struct token_list *prompt) { return ask_for(rig, prompt, NULL); }

enum fate { STAYS, UNLOADED, EVICTED };

static void wait_until_unloaded(struct service *service) {
    const struct timespec nap = {.tv_nsec = 2000000};
    struct service_statistics now = service_get_statistics(service);
    for (; now.unloaded == 0; now = service_get_statistics(service)) nanosleep(&nap, NULL);
    assert_int_equal(now.unloaded, 1);
    assert_int_equal(now.levels.resident, 0);
    assert_int_equal(now.levels.kv_used_bytes, 0);
}

static void suffer(struct service_rig *rig, enum fate fate) {
    struct token_list other = rig_tokens(rig, "Snow lay on the roofs of the harbour.", 90);
    if (fate == UNLOADED) wait_until_unloaded(rig->service);
    if (fate == EVICTED) ask(rig, &other);
    if (fate == STAYS) assert_int_equal(service_settled(rig->service).levels.resident, 1);
    token_list_deinit(&other);
}

/* A conversation of two turns, with something in between. */
static struct token_list conversation(const char *preset, enum fate fate) {
    struct service_rig rig;
    service_rig_open(&rig, &(struct service_rig_options){.parallel = 1,
                                                         .sequences = fate == EVICTED ? 1 : 2,
                                                         .context_size = CONTEXT,
                                                         .host_bytes = 64 << 20,
                                                         .service.idle_ms = fate == UNLOADED ? 1 : 0,
                                                         .preset = preset,
                                                         .keep = preset != NULL ? "64" : NULL,
                                                         .suffix = SUFFIX_SELECTS});
    struct token_list tokens = rig_tokens(&rig, "The river ran past the mill, and nobody saw it.", PROMPT),
                      question = rig_tokens(&rig, "Who saw it then?", QUESTION);
    assert_int_equal(ask(&rig, &tokens), 0);
    const size_t stored = tokens.count - 1; /* the last token was never put in */
    suffer(&rig, fate);
    append(&tokens, &question);
    assert_int_equal(ask(&rig, &tokens), stored);
    token_list_deinit(&question);
    service_rig_close(&rig);
    return tokens;
}

static void test_comes_back(void **state) {
    static const char *const presets[] = {NULL, "quest", "leoam"};
    (void)state;
    for (size_t preset = 0; preset < sizeof presets / sizeof *presets; preset++) {
        struct token_list stays = conversation(presets[preset], STAYS);
        for (enum fate fate = UNLOADED; fate <= EVICTED; fate++) {
            struct token_list back = conversation(presets[preset], fate);
            assert_same_tokens(&stays, &back);
            token_list_deinit(&back);
        }
        token_list_deinit(&stays);
    }
}

static const char leoam[] = "leoam";

/* A server in which questions about a document select. */
static void open_for_documents(struct service_rig *rig, const char *preset, size_t sequences) {
    service_rig_open(rig, &(struct service_rig_options){.parallel = 1,
                                                        .sequences = sequences,
                                                        .context_size = 1024,
                                                        .host_bytes = 64 << 20,
                                                        .preset = preset,
                                                        .set = preset == leoam ? "codec=q4" : NULL,
                                                        .keep = preset != NULL ? "64" : NULL,
                                                        .suffix = SUFFIX_SELECTS});
}

/* Two questions about one document and another turn of the first, in a server with one place; fresh: each in a server
 * of its own over the same folder. */
static void ask_twice(const char *preset, bool fresh, float log_probabilities[2][ANSWER]) {
    struct service_rig rig;
    open_for_documents(&rig, preset, 1);
    struct token_list document = rig_tokens(&rig, "The river ran past the mill, and nobody saw it.", 620),
                      question = rig_tokens(&rig, "Who saw it then?", 60),
                      other = rig_tokens(&rig, "And where did it run to?", 60),
                      third = rig_tokens(&rig, "Why?", 20), first = {0}, second = {0};
    append(&first, &document);
    append(&first, &question);
    append(&second, &document);
    append(&second, &other);
    assert_int_equal(ask(&rig, &first), 0);
    for (size_t turn = 0; turn < 2; turn++) {
        struct token_list *tokens = turn == 0 ? &second : &first;
        if (fresh) {
            service_rig_stop(&rig);
            service_rig_start(&rig, &(struct service_options){.parallel = 1});
        }
        const uint64_t before = service_settled(rig.service).tiers.read_pages;
        const size_t stored = turn == 0 ? document.count : tokens->count - 1;
        if (turn == 1) append(tokens, &third);
        assert_in_range(ask_for(&rig, tokens, log_probabilities[turn]), stored - 64,
                        stored + 1); /* 4 bits: whole chunks */
        const uint64_t read = service_settled(rig.service).tiers.read_pages - before;
        if (!fresh && turn == 0 && preset == NULL) assert_int_equal(read, 0); /* the document stayed */
    }
    token_list_deinit(&document);
    token_list_deinit(&question);
    token_list_deinit(&other);
    token_list_deinit(&third);
    token_list_deinit(&first);
    token_list_deinit(&second);
    service_rig_close(&rig);
}

static void test_one_place(void **state) {
    static const char *const presets[] = {NULL, "quest", leoam};
    (void)state;
    for (size_t preset = 0; preset < sizeof presets / sizeof *presets; preset++) {
        float stays[2][ANSWER], fresh[2][ANSWER];
        ask_twice(presets[preset], false, stays);
        ask_twice(presets[preset], true, fresh);
        assert_memory_equal(stays, fresh, sizeof stays);
    }
}

/* A fresh server over a saved document: while nobody asks it reads what the first question did not, and the next one
 * reads nothing of it.  Answers are those of a server that is asked at once. */
static void test_reads_ahead(void **state) {
    const struct timespec nap = {.tv_nsec = 2000000};
    struct service_rig rig;
    float asked_at_once[ANSWER], asked_later[ANSWER];
    (void)state;
    service_rig_open(&rig, &(struct service_rig_options){.parallel = 1,
                                                         .sequences = 2,
                                                         .context_size = 1024,
                                                         .host_bytes = 64 << 20,
                                                         .preset = "streaming",
                                                         .set = "dense=0",
                                                         .keep = "64",
                                                         .suffix = SUFFIX_SELECTS});
    struct token_list document = rig_tokens(&rig, "The river ran past the mill, and nobody saw it.", 620),
                      question = rig_tokens(&rig, "Who saw it then?", 60),
                      other = rig_tokens(&rig, "And where did it run to?", 60), first = {0}, second = {0},
                      again = {0};
    append(&first, &document);
    append(&first, &question);
    append(&second, &document);
    append(&second, &other);
    append(&again, &second);
    assert_int_equal(ask(&rig, &document), 0);
    service_rig_stop(&rig);
    service_rig_start(&rig, &(struct service_options){.parallel = 1});
    ask_for(&rig, &second, asked_at_once);
    service_rig_stop(&rig);
    service_rig_start(&rig, &(struct service_options){.parallel = 1});
    ask(&rig, &first);
    const uint64_t pages = 620 / 64 * rig.model->config.layer_count * rig.model->config.kv_head_count;
    while (service_get_statistics(rig.service).tiers.read_pages < pages) nanosleep(&nap, NULL);
    const uint64_t before = service_settled(rig.service).tiers.misses;
    ask_for(&rig, &again, asked_later);
    assert_in_range(service_settled(rig.service).tiers.misses - before, 0,
                    rig.model->config.layer_count *
                        rig.model->config.kv_head_count); /* the chunk that grows */
    assert_memory_equal(asked_at_once, asked_later, sizeof asked_later);
    token_list_deinit(&document);
    token_list_deinit(&question);
    token_list_deinit(&other);
    token_list_deinit(&first);
    token_list_deinit(&second);
    token_list_deinit(&again);
    service_rig_close(&rig);
}

enum { DAMAGED_CHUNK = 4 };

/* Of the one document that there is: a page in the middle of each head; or every one. */
static void damage_pages(const struct service_rig *rig, bool all) {
    const struct model_config *config = &rig->model->config;
    const long lanes = (long)(config->layer_count * config->kv_head_count);
    const long page_bytes = (long)((64 * 2 * 2 * config->k_dimension + 4095) / 4096 * 4096);
    DIR *folder = opendir(rig->scratch.path);
    size_t damaged = 0;
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        if (strstr(entry->d_name, ".pages") == NULL) continue;
        char path[512];
        snprintf(path, sizeof path, "%s/%s", rig->scratch.path, entry->d_name);
        FILE *file = fopen(path, "r+b");
        assert_non_null(file);
        for (long page = 0; page < 16 * lanes; page++) {
            uint8_t byte;
            if (!all && page % 16 != DAMAGED_CHUNK) continue;
            fseek(file, (2 * lanes + page) * page_bytes, SEEK_SET);
            if (fread(&byte, 1, 1, file) != 1) break;
            byte ^= 1;
            fseek(file, (2 * lanes + page) * page_bytes, SEEK_SET);
            assert_int_equal(fwrite(&byte, 1, 1, file), 1);
            damaged++;
        }
        fclose(file);
    }
    closedir(folder);
    assert_true(damaged > 0);
}

static const struct service_rig_options damage_options = {.parallel = 1,
                                                          .sequences = 2,
                                                          .context_size = 1024,
                                                          .host_bytes = 64 << 20,
                                                          .preset = "streaming",
                                                          .set = "dense=0",
                                                          .keep = "64",
                                                          .suffix = SUFFIX_SELECTS};

/* The answer where nothing is saved. */
static void ask_fresh(const struct token_list *prompt, float *log_probabilities) {
    struct service_rig rig;
    struct token_list tokens = {0};
    service_rig_open(&rig, &damage_options);
    append(&tokens, prompt);
    assert_int_equal(ask_for(&rig, &tokens, log_probabilities), 0);
    token_list_deinit(&tokens);
    service_rig_close(&rig);
}

/* Damage that a request meets, or that reading ahead meets and no request does: the service goes on, and what needs the
 * document is computed anew, as if it had not been there. */
static void ask_damaged(bool all) {
    const struct timespec nap = {.tv_nsec = 2000000};
    struct service_rig rig;
    float found[ANSWER], expected[ANSWER];
    service_rig_open(&rig, &damage_options);
    struct token_list first = rig_tokens(&rig, "The river ran past the mill, and nobody saw it.", 620),
                      second = {0};
    append(&second, &first);
    assert_int_equal(ask(&rig, &first), 0);
    service_rig_stop(&rig);
    damage_pages(&rig, all);
    service_rig_start(&rig, &(struct service_options){.parallel = 1});
    ask_fresh(all ? &first : &second, expected);
    assert_int_equal(ask_for(&rig, &first, found), 643); /* which reads the last tokens alone */
    while (service_get_statistics(rig.service).recoveries == 0) nanosleep(&nap, NULL);
    if (!all) assert_int_equal(ask_for(&rig, &second, found), 0);
    assert_memory_equal(expected, found, sizeof expected);
    assert_int_equal(service_settled(rig.service).recoveries, 1);
    token_list_deinit(&first);
    token_list_deinit(&second);
    service_rig_close(&rig);
}

static void test_damage(void **state) {
    (void)state;
    ask_damaged(false);
    ask_damaged(true);
}

/* ---- a disk that cannot be read ---- */

struct bad_disk {
    struct io_faults faults;
    pthread_mutex_t mutex;
    const char *file;               /* whose pages cannot be read */
    size_t tails_bytes, page_bytes; /* tails_bytes: of the tails before them */
    bool all;                       /* or the fifth chunk of each head alone */
    size_t left, met;               /* reads that will fail, and that did */
};

static struct io_fault fail_reads(void *context, enum io_call call, const char *path, uint64_t offset,
                                  size_t bytes) {
    struct bad_disk *disk = context;
    pthread_mutex_lock(&disk->mutex);
    bool fails = call == IO_CALL_READ && disk->left > 0 && offset >= disk->tails_bytes &&
                 strstr(path, disk->file) != NULL;
    if (fails && !disk->all) {
        const size_t first = (offset - disk->tails_bytes) / disk->page_bytes,
                     end = first + (bytes + disk->page_bytes - 1) / disk->page_bytes;
        const size_t bad = first + (DAMAGED_CHUNK + 16 - first % 16) % 16;
        fails = bad < end;
    }
    if (fails) disk->left--, disk->met++;
    pthread_mutex_unlock(&disk->mutex);
    return (struct io_fault){fails ? EIO : 0, SIZE_MAX};
}

static void break_disk(struct bad_disk *disk, size_t reads) {
    pthread_mutex_lock(&disk->mutex);
    disk->left = reads;
    disk->met = 0;
    pthread_mutex_unlock(&disk->mutex);
}

/* Two answers that are under way, over KV of which RAM holds a part: all of it is read for each token.  Pages of the
 * first one's document fail `reads` times.  Once: both go on as if nothing had been.  For good: the first one ends with
 * the reason, or is computed anew where its document cannot even be opened; the second goes on, others are answered,
 * and the first's question too once the disk has recovered. */
static void ask_bad_disk(size_t reads, bool all) {
    enum { SOON = 3 };
    static const struct service_rig_options options = {
        .parallel = 2, .sequences = 2, .context_size = 1024, .host_bytes = 5000 << 10};
    static const char *const texts[] = {"The river ran past the mill, and nobody saw it.", "A fox came.",
                                        "It was cold."};
    struct bad_disk disk = {.faults = {&disk, fail_reads}, .file = "/1.pages", .all = all};
    struct service_rig rig;
    struct client alone[3], clients[4];
    struct token_list prompts[3];
    pthread_mutex_init(&disk.mutex, NULL);
    service_rig_open_on(&rig, &options, &disk.faults);
    const struct model_config *config = &rig.model->config;
    disk.page_bytes = (64 * 2 * 2 * config->k_dimension + 4095) / 4096 * 4096;
    disk.tails_bytes = 2 * config->layer_count * config->kv_head_count * disk.page_bytes;
    for (size_t i = 0; i < 3; i++) {
        prompts[i] = rig_tokens(&rig, texts[i], 620);
        client_init(&alone[i], &rig);
        const struct service_request request = rig_request(&prompts[i], ANSWER);
        client_ask(&alone[i], &request);
    }
    for (size_t i = 0; i < 4; i++) client_init(&clients[i], &rig);
    for (size_t i = 0; i < 2; i++) {
        const struct service_request request = rig_request(&prompts[i], ANSWER);
        clients[i].pause_at = SOON;
        client_submit(&clients[i], &request);
    }
    for (size_t i = 0; i < 2; i++) client_wait_tokens(&clients[i], SOON);
    break_disk(&disk, reads);
    for (size_t i = 0; i < 2; i++) {
        pthread_mutex_lock(&clients[i].mutex);
        clients[i].pause_at = 0;
        pthread_mutex_unlock(&clients[i].mutex);
        service_resume(rig.service, clients[i].ticket);
    }
    for (size_t i = 0; i < 2; i++) client_wait(&clients[i]);
    assert_true(disk.met > 0);
    assert_int_equal(clients[1].done.reason, STOP_LENGTH);
    assert_same_tokens(&alone[1].tokens, &clients[1].tokens);
    if (reads == 1 || all) {
        assert_int_equal(clients[0].done.reason, STOP_LENGTH);
        assert_same_tokens(&alone[0].tokens, &clients[0].tokens);
    } else {
        assert_int_equal(clients[0].done.reason, STOP_FAILED);
        assert_int_equal(clients[0].done.error.status, STATUS_IO);
        assert_non_null(strstr(clients[0].done.error.message, "1.pages"));
    }
    struct service_request request = rig_request(&prompts[2], ANSWER); /* later, and the disk is as bad */
    client_ask(&clients[2], &request);
    assert_same_tokens(&alone[2].tokens, &clients[2].tokens);
    break_disk(&disk, 0);
    request = rig_request(&prompts[0], ANSWER);
    client_ask(&clients[3], &request);
    assert_same_tokens(&alone[0].tokens, &clients[3].tokens);
    assert_true(clients[3].admission.reused_tokens >= 512);
    for (size_t i = 0; i < 3; i++) token_list_deinit(&prompts[i]), client_deinit(&alone[i]);
    for (size_t i = 0; i < 4; i++) client_deinit(&clients[i]);
    service_rig_close(&rig);
    pthread_mutex_destroy(&disk.mutex);
}

static void test_bad_disk(void **state) {
    (void)state;
    ask_bad_disk(1, false);
    ask_bad_disk(1, true);
    ask_bad_disk(SIZE_MAX, false);
    ask_bad_disk(SIZE_MAX, true);
}

/* ---- a disk that is full ---- */

struct full_disk {
    struct io_faults faults;
    enum io_call call; /* which fails, of the files of pages */
};

static struct io_fault fail_full(void *context, enum io_call call, const char *path, uint64_t offset,
                                 size_t bytes) {
    const struct full_disk *disk = context;
    (void)offset, (void)bytes;
    const bool fails = call == disk->call && strstr(path, ".pages") != NULL;
    return (struct io_fault){fails ? ENOSPC : 0, SIZE_MAX};
}

/* Where RAM does not hold the KV either, a request ends with the reason, and its client is told that it is the disk:
 * 507. */
static void ask_full_disk(enum io_call call) {
    static const struct service_rig_options options = {
        .parallel = 1, .sequences = 1, .context_size = 1024, .host_bytes = 3400 << 10};
    struct full_disk disk = {.faults = {&disk, fail_full}, .call = call};
    struct service_rig rig;
    struct client client;
    struct api_error told;
    service_rig_open_on(&rig, &options, &disk.faults);
    struct token_list prompt = rig_tokens(&rig, "The river ran past the mill.", 900);
    const struct service_request request = rig_request(&prompt, ANSWER);
    client_init(&client, &rig);
    client_submit(&client, &request);
    client_wait(&client);
    assert_int_equal(client.done.reason, STOP_FAILED);
    assert_non_null(strstr(client.done.error.message, "No space left"));
    (void)api_error_from(&told, &client.done.error);
    assert_int_equal(told.http_status, 507);
    client_deinit(&client);
    token_list_deinit(&prompt);
    service_rig_close(&rig);
}

static void test_full_disk(void **state) {
    (void)state;
    ask_full_disk(IO_CALL_WRITE);
    ask_full_disk(IO_CALL_OPEN);
}

/* Without a folder it would be lost: it stays. */
static void test_unsaved_stays(void **state) {
    struct service_rig rig;
    (void)state;
    service_rig_open(&rig, &(struct service_rig_options){
                               .parallel = 1, .sequences = 2, .context_size = CONTEXT, .service.idle_ms = 1});
    struct token_list tokens = rig_tokens(&rig, "The river ran past the mill.", PROMPT), other;
    ask(&rig, &tokens);
    other = rig_tokens(&rig, "Rain fell on the town.", PROMPT);
    ask(&rig, &other); /* turns of the loop later */
    const struct service_statistics now = service_settled(rig.service);
    assert_int_equal(now.levels.resident, 2);
    assert_int_equal(now.unloaded, 0);
    token_list_deinit(&tokens);
    token_list_deinit(&other);
    service_rig_close(&rig);
}

/* Conversations that begin alike, nothing of which is saved: each keeps what was read of it, as long as there is a
 * place. */
static void test_conversations_that_begin_alike(void **state) {
    enum { BEGINS = 20, EDITED = 120 };
    struct service_rig rig;
    (void)state;
    service_rig_open(&rig,
                     &(struct service_rig_options){.parallel = 1, .sequences = 3, .context_size = 1024});
    struct token_list first = rig_tokens(&rig, "The river ran past the mill, and nobody saw it.", PROMPT),
                      second = {0}, third = {0}, edited = {0},
                      question = rig_tokens(&rig, "Who saw it then?", QUESTION),
                      other = rig_tokens(&rig, "Snow lay on the roofs of the harbour.", PROMPT);
    append(&second, &first);
    append(&edited, &first);
    for (size_t i = BEGINS; i < PROMPT; i++) second.ids[i] = other.ids[i];
    append(&third, &second);
    third.ids[BEGINS]++;
    edited.ids[EDITED]++;
    assert_int_equal(ask(&rig, &first), 0);
    assert_int_equal(ask(&rig, &second), 0);
    const size_t stored = first.count - 1;
    append(&first, &question);
    assert_int_equal(ask(&rig, &first), stored);
    assert_int_equal(ask(&rig, &edited), EDITED); /* of the first, which it replaces: the less is lost */
    assert_int_equal(service_settled(rig.service).levels.resident, 2);
    assert_int_equal(ask(&rig, &third), 0);
    assert_int_equal(service_settled(rig.service).levels.resident, 3);
    third.count = PROMPT; /* asked once more */
    assert_int_equal(ask(&rig, &third), PROMPT);
    first.count = BEGINS; /* no place is left: of the one that goes, what fits is kept */
    append(&first, &question);
    for (size_t i = 0; i < 10; i++) append(&first, &question);
    assert_int_equal(ask(&rig, &first), BEGINS);
    assert_int_equal(service_settled(rig.service).levels.resident, 3);
    token_list_deinit(&first);
    token_list_deinit(&second);
    token_list_deinit(&third);
    token_list_deinit(&edited);
    token_list_deinit(&other);
    token_list_deinit(&question);
    service_rig_close(&rig);
}

/* The same prompt once more: what is stored of it is all of it, and its first token costs no pass.  Of another owner
 * everything is computed. */
static void ask_again(const char *preset, bool saves, enum fate fate) {
    struct service_rig rig;
    service_rig_open(&rig, &(struct service_rig_options){.parallel = 1,
                                                         .sequences = fate == EVICTED ? 1 : 2,
                                                         .context_size = CONTEXT,
                                                         .host_bytes = saves ? 64 << 20 : 0,
                                                         .service.idle_ms = fate == UNLOADED ? 1 : 0,
                                                         .preset = preset,
                                                         .keep = preset != NULL ? "64" : NULL,
                                                         .suffix = SUFFIX_SELECTS});
    struct token_list prompt = rig_tokens(&rig, "The river ran past the mill, and nobody saw it.", PROMPT);
    float log_probabilities[3][ANSWER];
    struct token_list asked[3] = {0};
    struct client stranger;
    struct service_request request = rig_request(&prompt, ANSWER);
    for (size_t i = 0; i < 3; i++) append(&asked[i], &prompt);
    assert_int_equal(ask_for(&rig, &asked[0], log_probabilities[0]), 0);
    suffer(&rig, fate);
    const uint64_t computed = service_settled(rig.service).tokens.prefill;
    for (size_t i = 1; i < 3; i++) {
        assert_int_equal(ask_for(&rig, &asked[i], log_probabilities[i]), PROMPT);
        assert_int_equal(service_settled(rig.service).tokens.prefill, computed);
    }
    request.owner = "another";
    client_init(&stranger, &rig);
    client_ask(&stranger, &request);
    assert_int_equal(stranger.admission.reused_tokens, 0);
    assert_same_tokens(&stranger.tokens, &(struct token_list){.ids = asked[0].ids + PROMPT, .count = ANSWER});
    for (size_t i = 1; i < 3; i++) {
        assert_same_tokens(&asked[i], &asked[0]);
        assert_memory_equal(log_probabilities[i], log_probabilities[0], sizeof log_probabilities[0]);
    }
    for (size_t i = 0; i < 3; i++) token_list_deinit(&asked[i]);
    token_list_deinit(&prompt);
    client_deinit(&stranger);
    service_rig_close(&rig);
}

/* Behind a document that another question went on with, so that the answer is not saved.  cuts: the answer is cut off;
 * else the end of the question is in a page in 4 bits, whose rows are rounded, and is computed again. */
static void ask_again_behind_a_document(const char *preset, size_t question_count, bool cuts) {
    struct service_rig rig;
    open_for_documents(&rig, preset, 3);
    struct token_list document = rig_tokens(&rig, "The river ran past the mill, and nobody saw it.", 620),
                      question = rig_tokens(&rig, "Who saw it then?", question_count),
                      other = rig_tokens(&rig, "And where did it run to?", 60), prompt = {0}, asked[3] = {0};
    float log_probabilities[3][ANSWER];
    append(&prompt, &document);
    append(&document, &other);
    assert_int_equal(ask(&rig, &document), 0);
    append(&prompt, &question);
    for (size_t i = 0; i < 3; i++) append(&asked[i], &prompt);
    (void)ask_for(&rig, &asked[0], log_probabilities[0]);
    const uint64_t computed = service_settled(rig.service).tokens.prefill;
    for (size_t i = 1; i < 3; i++) {
        const size_t reused = ask_for(&rig, &asked[i], log_probabilities[i]);
        if (cuts) assert_int_equal(reused, prompt.count);
        assert_same_tokens(&asked[i], &asked[0]);
        assert_memory_equal(log_probabilities[i], log_probabilities[0], sizeof log_probabilities[0]);
    }
    assert_true(cuts == (service_settled(rig.service).tokens.prefill == computed));
    for (size_t i = 0; i < 3; i++) token_list_deinit(&asked[i]);
    token_list_deinit(&document);
    token_list_deinit(&question);
    token_list_deinit(&other);
    token_list_deinit(&prompt);
    service_rig_close(&rig);
}

static void test_asked_again_behind_a_document(void **state) {
    (void)state;
    ask_again_behind_a_document(NULL, 60, true);
    ask_again_behind_a_document("quest", 70, true);
    ask_again_behind_a_document(leoam, 60, true);
    ask_again_behind_a_document(leoam, 70, false);
}

static void test_asked_again(void **state) {
    static const char *const presets[] = {NULL, "quest", "leoam"};
    (void)state;
    for (size_t preset = 0; preset < sizeof presets / sizeof *presets; preset++) {
        ask_again(presets[preset], false, STAYS);
        for (enum fate fate = STAYS; fate <= EVICTED; fate++) ask_again(presets[preset], true, fate);
    }
}

static void ask_low(struct service_rig *rig, const struct token_list *prompt, struct client *client) {
    struct service_request request = rig_request(prompt, ANSWER);
    request.priority = SERVICE_LOW;
    client_init(client, rig);
    client_submit(client, &request);
}

/* What a chat's client asks for beside it (a title, tags) takes no place of a chat, and no turn. */
static void test_low_priority(void **state) {
    struct service_rig rig;
    struct client low, normal, holder;
    (void)state;
    service_rig_open(&rig,
                     &(struct service_rig_options){.parallel = 1, .sequences = 2, .context_size = CONTEXT});
    struct token_list chat = rig_tokens(&rig, "The river ran past the mill.", PROMPT), title = {0},
                      question = rig_tokens(&rig, "Who saw it then?", QUESTION);
    assert_int_equal(ask(&rig, &chat), 0);
    const size_t stored = chat.count - 1;
    append(&title, &chat);
    for (size_t i = 0; i < 3; i++) { /* most of the chat, and no two alike */
        title.ids[PROMPT - 2 * i]++;
        ask_low(&rig, &title, &low);
        client_wait(&low);
        assert_int_equal(low.done.reason, STOP_LENGTH);
        client_deinit(&low);
        assert_int_equal(service_settled(rig.service).levels.resident, 2);
    }
    ask_low(&rig, &question, &low); /* no place is left: it takes the one that such a request left */
    client_wait(&low);
    client_deinit(&low);
    append(&chat, &question);
    assert_int_equal(ask(&rig, &chat), stored);

    client_init(&holder, &rig);
    client_init(&normal, &rig);
    holder.pause_at = normal.pause_at = 1;
    const struct service_request request = rig_request(&question, ANSWER);
    client_submit(&holder, &request);
    client_wait_tokens(&holder, 1);
    ask_low(&rig, &title, &low);
    client_submit(&normal, &request);
    service_cancel(rig.service, holder.ticket);
    client_wait_tokens(&normal, 1); /* it came later, and has the slot */
    pthread_mutex_lock(&low.mutex);
    assert_int_equal(low.admitted_count, 0);
    pthread_mutex_unlock(&low.mutex);
    service_cancel(rig.service, normal.ticket);
    client_wait(&holder);
    client_wait(&normal);
    client_wait(&low);
    assert_int_equal(low.done.reason, STOP_LENGTH);
    client_deinit(&low);
    client_deinit(&normal);
    client_deinit(&holder);
    token_list_deinit(&chat);
    token_list_deinit(&title);
    token_list_deinit(&question);
    service_rig_close(&rig);
}

enum { MANY = 8, LONG_CONTEXT = 2048, LONG_PROMPT = 620 };

/* Of MANY clients at once, two turns each. */
static void converse(struct token_list *tokens, uint64_t lacking_bytes) {
    static const char *const texts[MANY] = {"The river ran past.", "A fox came.",  "It was cold.",
                                            "She saw the door.",   "Rain fell.",   "He asked a question.",
                                            "A letter came.",      "Numbers wait."};
    struct service_rig rig;
    struct client clients[MANY];
    service_rig_open(&rig, &(struct service_rig_options){.parallel = MANY,
                                                         .sequences = MANY,
                                                         .context_size = LONG_CONTEXT,
                                                         .host_bytes = 64 << 20,
                                                         .preset = "quest",
                                                         .keep = "64",
                                                         .lacking_bytes = lacking_bytes});
    for (size_t i = 0; i < MANY; i++) tokens[i] = rig_tokens(&rig, texts[i], LONG_PROMPT);
    for (size_t turn = 0; turn < 2; turn++) {
        for (size_t i = 0; i < MANY; i++) {
            client_init(&clients[i], &rig);
            const struct service_request request = rig_request(&tokens[i], ANSWER);
            client_submit(&clients[i], &request);
        }
        for (size_t i = 0; i < MANY; i++) {
            client_wait(&clients[i]);
            if (clients[i].done.reason != STOP_LENGTH) fail_msg("%s", clients[i].done.error.message);
            append(&tokens[i], &clients[i].tokens);
            client_deinit(&clients[i]);
        }
    }
    const struct service_statistics now = service_settled(rig.service);
    assert_true(now.tiers.host_bytes <= rig.plan.host_bytes);
    if (lacking_bytes > 0) assert_true(now.preemptions > 0); /* not all fit at once */
    service_rig_close(&rig);
}

/* A budget that does not hold the key index of MANY whole contexts: sequences take of it what they need, and wait. */
static void test_takes_what_it_needs(void **state) {
    struct token_list ample[MANY], scarce[MANY];
    (void)state;
    converse(ample, 0);
    converse(scarce, 3 << 19);
    for (size_t i = 0; i < MANY; i++) {
        assert_same_tokens(&ample[i], &scarce[i]);
        token_list_deinit(&ample[i]);
        token_list_deinit(&scarce[i]);
    }
}

/* ---- a prefill that is cancelled within a segment ---- */

enum retry { AT_ONCE, BEHIND_ANOTHER, LONGER, PARTLY, OF_ANOTHER_OWNER, RETRIES };
enum { CUT_PROMPT = 310, CUT_AT = 150, CUT_BATCH = 32 };

static void cancel(struct service_rig *rig, const struct token_list *prompt, size_t *done) {
    struct client client;
    client_init(&client, rig);
    client.cancel_done = CUT_AT;
    const struct service_request request = rig_request(prompt, ANSWER);
    client_submit(&client, &request);
    client_wait(&client);
    assert_int_equal(client.done.reason, STOP_INTERRUPTED);
    assert_in_range(client.progress_done, CUT_AT, CUT_PROMPT - 1);
    *done = client.progress_done;
    client_deinit(&client);
}

/* The prompt that a retry asks; cut: one that begins as it does was cancelled before. */
static void retry(enum retry retry, bool cut, uint64_t host_bytes, const char *preset,
                  struct client *client) {
    struct service_rig rig;
    service_rig_open(&rig, &(struct service_rig_options){.parallel = 2,
                                                         .sequences = 2,
                                                         .context_size = 1024,
                                                         .host_bytes = host_bytes,
                                                         .batch_size = CUT_BATCH,
                                                         .preset = preset,
                                                         .keep = preset != NULL ? "64" : NULL});
    struct token_list prompt =
                          rig_tokens(&rig, "The river ran past the mill, and nobody saw it.", CUT_PROMPT),
                      other = rig_tokens(&rig, "Snow lay on the roofs of the harbour.", 90),
                      more = rig_tokens(&rig, "Who saw it then?", QUESTION);
    size_t done = 0;
    if (cut) cancel(&rig, &prompt, &done);
    if (cut) assert_int_equal(service_settled(rig.service).levels.resident, 1);
    if (retry == BEHIND_ANOTHER) (void)ask(&rig, &other);
    if (retry == LONGER) append(&prompt, &more);
    if (retry == PARTLY) prompt.ids[CUT_AT / 2]++;
    client_init(client, &rig);
    struct service_request request = rig_request(&prompt, ANSWER);
    if (retry == OF_ANOTHER_OWNER) request.owner = "another";
    request.log_probabilities = true;
    client_ask(client, &request);
    assert_int_equal(client->admission.reused_tokens, 0);
    const bool goes_on = cut && retry != PARTLY && retry != OF_ANOTHER_OWNER;
    if (goes_on) assert_in_range(client->progress_computed, done + 1, CUT_PROMPT);
    if (!goes_on) assert_in_range(client->progress_computed, 1, CUT_BATCH);
    assert_int_equal(service_settled(rig.service).levels.resident, cut && !goes_on           ? 2
                                                                   : retry == BEHIND_ANOTHER ? 2
                                                                                             : 1);
    token_list_deinit(&prompt);
    token_list_deinit(&other);
    token_list_deinit(&more);
    service_rig_close(&rig);
}

/* It goes on where it was, once the same prompt comes: what was read once is not read again. */
static void test_cut_prefills_go_on(void **state) {
    static const struct {
        uint64_t host_bytes;
        const char *preset;
        enum retry ways;
    } kinds[] = {{0, NULL, RETRIES}, {64 << 20, NULL, PARTLY}, {64 << 20, "quest", BEHIND_ANOTHER}};
    (void)state;
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++)
        for (enum retry way = AT_ONCE; way < kinds[kind].ways; way++) {
            struct client whole, cut;
            retry(way, false, kinds[kind].host_bytes, kinds[kind].preset, &whole);
            retry(way, true, kinds[kind].host_bytes, kinds[kind].preset, &cut);
            assert_same_tokens(&whole.tokens, &cut.tokens);
            assert_memory_equal(whole.log_probabilities, cut.log_probabilities,
                                ANSWER * sizeof *cut.log_probabilities);
            client_deinit(&whole);
            client_deinit(&cut);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comes_back),         cmocka_unit_test(test_one_place),
        cmocka_unit_test(test_reads_ahead),        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_bad_disk),           cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_unsaved_stays),      cmocka_unit_test(test_conversations_that_begin_alike),
        cmocka_unit_test(test_asked_again),        cmocka_unit_test(test_asked_again_behind_a_document),
        cmocka_unit_test(test_low_priority),       cmocka_unit_test(test_takes_what_it_needs),
        cmocka_unit_test(test_cut_prefills_go_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
