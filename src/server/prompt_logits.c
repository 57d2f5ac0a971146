#include "server/prompt_logits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void entry_deinit(struct prompt_logits_entry *entry) {
    free(entry->tokens);
    free(entry->logits);
    *entry = (struct prompt_logits_entry){.tokens = NULL};
}

void prompt_logits_deinit(struct prompt_logits *prompts) {
    for (size_t i = 0; i < PROMPT_LOGITS_MAX; i++) entry_deinit(&prompts->entries[i]);
}

static struct prompt_logits_entry *find(struct prompt_logits *prompts, const char *owner, const token_id *tokens,
                                        size_t token_count) {
    for (size_t i = 0; i < PROMPT_LOGITS_MAX; i++) {
        struct prompt_logits_entry *entry = &prompts->entries[i];
        if (entry->tokens == NULL || entry->token_count != token_count || strcmp(entry->owner, owner) != 0) continue;
        if (memcmp(entry->tokens, tokens, token_count * sizeof *tokens) == 0) return entry;
    }
    return NULL;
}

static struct prompt_logits_entry *oldest(struct prompt_logits *prompts) {
    struct prompt_logits_entry *oldest = &prompts->entries[0]; /* a free one was never used */
    for (size_t i = 1; i < PROMPT_LOGITS_MAX; i++)
        if (prompts->entries[i].used < oldest->used) oldest = &prompts->entries[i];
    return oldest;
}

void prompt_logits_note(struct prompt_logits *prompts, const char *owner, const token_id *tokens, size_t token_count,
                        const float *logits, size_t vocabulary_size) {
    struct prompt_logits_entry *entry = find(prompts, owner, tokens, token_count);
    if (entry == NULL) entry = oldest(prompts);
    entry_deinit(entry);
    entry->tokens = malloc(token_count * sizeof *tokens);
    entry->logits = malloc(vocabulary_size * sizeof *logits);
    if (entry->tokens == NULL || entry->logits == NULL) {
        entry_deinit(entry);
        return;
    }
    memcpy(entry->tokens, tokens, token_count * sizeof *tokens);
    memcpy(entry->logits, logits, vocabulary_size * sizeof *logits);
    snprintf(entry->owner, sizeof entry->owner, "%s", owner);
    entry->token_count = token_count;
    entry->used = ++prompts->clock;
}

const float *prompt_logits_find(struct prompt_logits *prompts, const char *owner, const token_id *tokens,
                                size_t token_count) {
    struct prompt_logits_entry *entry = find(prompts, owner, tokens, token_count);
    if (entry == NULL) return NULL;
    entry->used = ++prompts->clock;
    return entry->logits;
}
