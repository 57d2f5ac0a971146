/* The scanners of each tokenizer.ggml.pre, and the cursor that runs them in stages. */
#include "token/pre_tokenizer_internal.h"

#include <string.h>

#include "base/assert.h"

static const struct pre_tokenizer llama3 = {"llama3", {scan_llama3}};
static const struct pre_tokenizer qwen2 = {"qwen2", {scan_qwen2}};
static const struct pre_tokenizer qwen35 = {"qwen35", {scan_qwen35}};
static const struct pre_tokenizer gpt2 = {"gpt-2", {scan_gpt2}};
static const struct pre_tokenizer starcoder = {"starcoder", {scan_number, scan_gpt2}};
static const struct pre_tokenizer deepseek_llm = {"deepseek-llm",
                                                  {scan_newline, scan_deepseek_cased, scan_deepseek_punctuation,
                                                   scan_space_tail, scan_deepseek_ideographs, scan_numbers}};
static const struct pre_tokenizer deepseek_coder = {
    "deepseek-coder", {scan_newline, scan_letters, scan_punctuation, scan_deepseek_ideographs, scan_number}};
static const struct pre_tokenizer deepseek3 = {"deepseek-v3",
                                               {scan_numbers_by_three, scan_deepseek3_ideographs, scan_deepseek3}};
static const struct pre_tokenizer tekken = {"tekken", {scan_tekken}};
static const struct pre_tokenizer gpt4o = {"gpt-4o", {scan_gpt4o}};
static const struct pre_tokenizer gemma4 = {"gemma4", {scan_lines}};
static const struct pre_tokenizer falcon = {
    "falcon", {scan_falcon_punctuation, scan_gpt2, scan_byte_digits, scan_digits_by_three}};
static const struct pre_tokenizer fallback = {
    "default", {scan_default_punctuation, scan_gpt2, scan_numbers, scan_digits_by_three}};

static const struct pre_tokenizer_name names[] = {
    {"llama-bpe", &llama3, true, true},
    {"llama3", &llama3, true, true},
    {"llama-v3", &llama3, true, true},
    {"pixtral", &llama3, true, true},
    {"lfm2", &llama3, true, true},
    {"falcon3", &llama3, true, true},
    {"falcon-h1", &llama3, true, true},
    {"midm-2.0", &llama3, true, true},
    {"dbrx", &llama3, false, false},
    {"smaug-bpe", &llama3, false, false},
    {"glm4", &llama3, false, false},
    {"chatglm-bpe", &llama3, false, false},
    {"qwen2", &qwen2, false, false},
    {"deepseek-r1-qwen", &qwen2, false, false},
    {"stablelm2", &qwen2, false, false},
    {"megrez", &qwen2, false, false},
    {"hunyuan", &qwen2, false, false},
    {"solar-open", &qwen2, false, false},
    {"grok-2", &qwen2, false, false},
    {"qwen35", &qwen35, false, false},
    {"gpt-2", &gpt2, false, false},
    {"phi-2", &gpt2, false, false},
    {"olmo", &gpt2, false, false},
    {"mpt", &gpt2, false, false},
    {"jais", &gpt2, false, false},
    {"gigachat", &gpt2, false, false},
    {"exaone4", &gpt2, false, false},
    {"modern-bert", &gpt2, false, false},
    {"trillion", &gpt2, false, false},
    {"smollm", &starcoder, false, false},
    {"starcoder", &starcoder, false, false},
    {"refact", &starcoder, false, false},
    {"command-r", &starcoder, false, false},
    {"codeshell", &starcoder, false, false},
    {"exaone", &starcoder, false, false},
    {"minerva-7b", &starcoder, false, false},
    {"deepseek-llm", &deepseek_llm, false, false},
    {"deepseek-coder", &deepseek_coder, false, false},
    {"deepseek-v3", &deepseek3, false, false},
    {"hunyuan-dense", &deepseek3, false, false},
    {"joyai-llm", &deepseek3, false, false},
    {"tekken", &tekken, true, true},
    {"gpt-4o", &gpt4o, false, false},
    {"llama4", &gpt4o, false, false},
    {"kanana2", &gpt4o, false, false},
    {"minimax-m2", &gpt4o, false, false},
    {"falcon", &falcon, false, false},
    {"gemma4", &gemma4, false, true},
    {"default", &fallback, false, false},
};

const struct pre_tokenizer_name *pre_tokenizer_find(const char *name, size_t length) {
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strlen(names[i].name) == length && memcmp(names[i].name, name, length) == 0) return &names[i];
    return NULL;
}

void pre_tokenizer_begin(struct pre_tokenizer_cursor *cursor, const struct pre_tokenizer *pre_tokenizer,
                         const uint8_t *text, size_t length) {
    *cursor = (struct pre_tokenizer_cursor){.pre_tokenizer = pre_tokenizer, .view = {text, length}};
    while (cursor->stage_count < PRE_TOKENIZER_STAGES_MAX && pre_tokenizer->stages[cursor->stage_count])
        cursor->stage_count++;
    cursor->ends[0] = length;
}

/* ends[] descend from the whole text to the innermost piece.  A stage runs again only when its previous piece is used
 * up, and then from the end of that piece. */
bool pre_tokenizer_next(struct pre_tokenizer_cursor *cursor, size_t *start, size_t *end) {
    size_t at = cursor->at;
    if (at >= cursor->ends[0]) return false;
    size_t stage = cursor->stage_count;
    while (stage > 0 && cursor->ends[stage] <= at) stage--;
    for (; stage < cursor->stage_count; stage++) {
        const struct text_view view = {cursor->view.text, cursor->ends[stage]};
        cursor->ends[stage + 1] = cursor->pre_tokenizer->stages[stage](&view, at);
        ASSERT(cursor->ends[stage + 1] > at && cursor->ends[stage + 1] <= view.end);
    }
    *start = at;
    *end = cursor->at = cursor->ends[cursor->stage_count];
    return true;
}
