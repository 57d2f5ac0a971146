/* patterns: the published pre-tokenizer expressions, as PCRE2 reads them.
 *
 * One row per family, one expression per stage (the pieces of a stage are split again by the next).
 * \s is written out as White_Space, because PCRE2 10.42 counts U+180E too. Falcon's third stage works on
 * bytes written as characters and has no expression here; its test is test_hugging_face.c.
 */
#pragma once

#include <stddef.h>

#define WS                                                                             \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}" \
    "\\x{202f}\\x{205f}\\x{3000}"
#define SPACES      "[" WS "]*[\\r\\n]+|[" WS "]+(?![^" WS "])|[" WS "]+"
#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define GPT2        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" WS "\\p{L}\\p{N}]+|[" WS "]+(?![^" WS "])"
#define HEAD        "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define TAIL        "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(suffix) \
    "[^\\r\\n\\p{L}\\p{N}]?" HEAD "*" TAIL "+" suffix "|[^\\r\\n\\p{L}\\p{N}]?" HEAD "+" TAIL "*" suffix
#define CASED_LETTERS                                                                     \
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯ" \
    "Ա-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅ"  \
    "Ὀ-Ὅὐ-ὗὙὛὝ\\x{1F5F}-\\x{1F7D}ᾀ-ᾴᾶ-ᾼ\\x{1FBE}ῂ-ῄῆ-ῌ"     \
    "\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}Ῠ-Ῥῠ-ῧῲ-ῴῶ-ῼℂℇℊ-ℓℕ"  \
    "ℙ-ℝℤ\\x{2126}ℨ\\x{212A}-\\x{212D}ℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻ"   \
    "Ȿ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚ" \
    "ａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"

static const struct pattern_row {
    const char *pre;
    const char *stages[6];
} pattern_rows[] = {
    {"llama-bpe",
     {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n]*|" SPACES}},
    {"qwen2",
     {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n]*|" SPACES}},
    {"qwen35",
     {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^" WS
                  "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES}},
    {"gpt-2", {GPT2}},
    {"starcoder", {"\\p{N}", GPT2}},
    {"deepseek-llm",
     {"[\\r\\n]", "[" WS "]?[" CASED_LETTERS "]+", "[" WS "]?[!-/:-~！-／：-～‘-‟\\x{3000}-。]+",
      "[" WS "]+$", "[一-龥ࠀ-一가-\\x{D7FF}]+", "\\p{N}+"}},
    {"deepseek-coder",
     {"[\\r\\n]", "[" WS "]?\\p{L}+", "[" WS "]?\\p{P}+", "[一-龥ࠀ-一가-\\x{D7FF}]+", "\\p{N}"}},
    {"deepseek-v3",
     {"\\p{N}{1,3}", "[一-龥\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+",
      "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
      "?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES}},
    {"tekken", {CASED("") "|\\p{N}| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES}},
    {"gpt-4o", {CASED(CONTRACTION "?") "|\\p{N}{1,3}| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES}},
    {"default", {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
};

enum { PATTERN_ROWS = sizeof pattern_rows / sizeof pattern_rows[0] };
