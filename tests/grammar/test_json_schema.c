/* What a schema accepts and refuses, text by text; what is refused as a schema, and with which words. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/json_matcher.h"
#include "token/vocabularies.h"

static struct tokenizer *tokenizer;
static struct token_trie *trie;
static token_id byte_tokens[256];

static int set_up(void **state) {
    (void)state;
    static const char *const controls[] = {"<|end|>"};
    struct error error;
    tokenizer = byte_vocabulary("gpt-2", controls, 1, "<|end|>", "<|end|>");
    assert_ok(token_trie_create(&trie, tokenizer, &error), error);
    for (size_t id = 0; id < tokenizer_vocabulary_size(tokenizer); id++) {
        char piece[8];
        if (tokenizer_piece(tokenizer, (token_id)id, false, piece, sizeof piece) == 1)
            byte_tokens[(uint8_t)piece[0]] = (token_id)id;
    }
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    token_trie_destroy(trie);
    tokenizer_destroy(tokenizer);
    return 0;
}

static struct json_schema *compile(const char *text) {
    struct json_schema *schema;
    struct error error;
    assert_ok(json_schema_compile(&schema, text, strlen(text), "schema", &error), error);
    return schema;
}

/* By the token of one byte. */
static bool accept_byte(struct json_matcher *matcher, char byte) {
    struct error error;
    return json_matcher_accept(matcher, byte_tokens[(uint8_t)byte], &error) == STATUS_OK;
}

/* Byte by byte; the whole text is a value. */
static bool accepts(struct json_matcher *matcher, const char *text, size_t length) {
    json_matcher_reset(matcher);
    for (size_t i = 0; i < length; i++)
        if (!accept_byte(matcher, text[i])) return false;
    return json_matcher_may_end(matcher);
}

static void check(const char *schema_text, const char *const *good, const char *const *bad) {
    struct json_schema *schema = compile(schema_text);
    struct json_matcher *matcher;
    struct error error;
    assert_ok(json_matcher_create(&matcher, schema, trie, &error), error);
    for (size_t i = 0; good[i] != NULL; i++)
        if (!accepts(matcher, good[i], strlen(good[i]))) fail_msg("%s refuses %s", schema_text, good[i]);
    for (size_t i = 0; bad[i] != NULL; i++)
        if (accepts(matcher, bad[i], strlen(bad[i]))) fail_msg("%s accepts %s", schema_text, bad[i]);
    json_matcher_destroy(matcher);
    json_schema_destroy(schema);
}

static void refuse(const char *text, const char *words) {
    struct json_schema *schema;
    struct error error = {0};
    assert_int_equal(json_schema_compile(&schema, text, strlen(text), "schema", &error), STATUS_USAGE);
    assert_null(schema);
    if (strstr(error.message, words) == NULL) fail_msg("%s: %s lacks %s", text, error.message, words);
}

#define TEXTS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void strings(void **state) {
    (void)state;
    check("{\"type\":\"string\"}",
          TEXTS("\"\"", "\"a b\"", "\"\\n\\\"\\\\\\/\"", "\"\\u00e9\\uD83D\\uDE00\\u0001\"", "\"\xC3\xA9\"",
                "\"\xE0\xA0\x80\xED\x9F\xBF\xF0\x90\x80\x80\xF4\x8F\xBF\xBF\"", "\"\x7F\""),
          TEXTS("\"", "a", "\"a\"b", " \"a\"", "\"\n\"", "\"\\x\"", "\"\\u12\"", "\"\\u0000\"", "\"\\uD800\"",
                "\"\\uDC00\"", "\"\\uD800\\u0041\"", "\"\\uD800\\n\"", "\"\x80\"", "\"\xC0\x80\"", "\"\xC3\"",
                "\"\xE0\x9F\xBF\"", "\"\xED\xA0\x80\"", "\"\xF0\x8F\xBF\xBF\"", "\"\xF4\x90\x80\x80\"",
                "\"\xF5\x80\x80\x80\"", "\"\xE2\x82\"", "1", "\"\t\""));
}

static void numbers(void **state) {
    (void)state;
    check("{\"type\":\"number\"}",
          TEXTS("0", "-0", "10", "-1.5", "0.001", "1e5", "1E-05", "2.5e+10", "1234567890123456"),
          TEXTS("", "-", "01", "+1", ".5", "1.", "1e", "1e+", "1e999", "0x1", "NaN", "12345678901234567",
                "1 ", "--1"));
    check("{\"type\":\"integer\"}", TEXTS("0", "-12", "7"), TEXTS("1.0", "1e2", "00", "\"1\""));
    check("{\"type\":[\"integer\",\"null\"]}", TEXTS("5", "null"), TEXTS("5.5", "nul", "true"));
}

static void literals(void **state) {
    (void)state;
    check("{\"enum\":[\"a\",\"ab\",1,12,null,{\"k\":[1,2.5]},0.1]}",
          TEXTS("\"a\"", "\"ab\"", "1", "12", "null", "{\"k\":[1,2.5]}", "0.1"),
          TEXTS("\"b\"", "2", "123", "\"abc\"", "a", "{\"k\":[1]}", "0.10"));
    check("{\"const\":\"x\\ny\"}", TEXTS("\"x\\ny\""), TEXTS("\"x\"", "\"x\ny\""));
    check("{\"type\":\"string\",\"enum\":[\"a\",1]}", TEXTS("\"a\""), TEXTS("1"));
    check("{\"type\":\"integer\",\"enum\":[1,2.0,2.5]}", TEXTS("1", "2.0"), TEXTS("2.5"));
    check("{\"enum\":[1,2],\"const\":2}", TEXTS("2"), TEXTS("1"));
    check("{\"type\":\"array\",\"items\":{\"enum\":[1,12]}}", TEXTS("[1,12]", "[12, 1]", "[]"),
          TEXTS("[112]", "[1 2]", "[2]"));
    check("{\"type\":\"boolean\"}", TEXTS("true", "false"), TEXTS("True", "null", "tru"));
}

static void objects(void **state) {
    (void)state;
    check("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"},"
          "\"ab\":{\"type\":\"null\"}},\"required\":[\"b\"],\"additionalProperties\":false}",
          TEXTS("{\"a\":1,\"b\":\"\"}", "{\"b\":\"x\"}", "{\"b\":\"x\",\"ab\":null}",
                "{ \"a\" : 1 , \"b\" : \"\" }", "{\n  \"a\": 1,\n  \"b\": \"\"\n}"),
          TEXTS("{}", "{\"a\":1}", "{\"b\":\"\",\"a\":1}", "{\"b\":\"\",}", "{\"c\":1}", "{\"b\":1}",
                "{\"b\":\"\",\"b\":\"\"}", "{,}", "{\"a\":1 \"b\":\"\"}", "{  \"b\":\"\"}", "{\"ab\":null}",
                "{\"a\":1,\"ab\":null,\"b\":\"\"}"));
    check("{\"type\":\"object\",\"additionalProperties\":false}", TEXTS("{}", "{ }"), TEXTS("{\"a\":1}"));
    check("{\"type\":\"object\"}", TEXTS("{}", "{\"a\":[1,{\"b\":null}]}"), TEXTS("[]", "{\"a\"}", "{a:1}"));
    check("{\"additionalProperties\":{\"type\":\"integer\"}}", TEXTS("{}", "{\"x\":1,\"y\":2}"),
          TEXTS("{\"x\":true}"));
    check("{\"required\":[\"z\",\"a\"],\"properties\":{\"a\":{\"const\":1}}}", TEXTS("{\"a\":1,\"z\":[]}"),
          TEXTS("{\"a\":1}", "{\"z\":1}", "{\"z\":1,\"a\":1}"));
    check("{\"type\":\"object\",\"properties\":{\"a\\\"\xC3\xA9\":{\"type\":\"null\"}},\"required\":["
          "\"a\\\"\xC3\xA9\"]}",
          TEXTS("{\"a\\\"\xC3\xA9\":null}"), TEXTS("{}"));
    /* An optional property without a value is left out; a map whose values cannot be stays empty. */
    check("{\"properties\":{\"a\":false,\"b\":true}}", TEXTS("{}", "{\"b\":0}"), TEXTS("{\"a\":0}"));
    check("{\"additionalProperties\":{\"enum\":[]}}", TEXTS("{}"), TEXTS("{\"a\":0}"));
}

static void arrays(void **state) {
    (void)state;
    check("{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1,\"maxItems\":3}",
          TEXTS("[1]", "[1,2]", "[ 1, 2, 3 ]", "[\n1,\n2\n]"),
          TEXTS("[]", "[1,2,3,4]", "[1,]", "[,1]", "[\"a\"]", "[1 2]", "[1"));
    check("{\"items\":{\"type\":\"null\"},\"maxItems\":0}", TEXTS("[]"), TEXTS("[null]"));
    check("{\"type\":\"array\",\"items\":false}", TEXTS("[]", "[ ]"), TEXTS("[1]"));
    check("{\"minItems\":2}", TEXTS("[1,[]]", "[1,2,3]"), TEXTS("[1]", "{}"));
}

static void alternatives(void **state) {
    (void)state;
    check("{\"anyOf\":[{\"properties\":{\"k\":{\"const\":\"a\"},\"x\":{\"type\":\"integer\"}},\"required\":["
          "\"k\",\"x\"]},"
          "{\"properties\":{\"k\":{\"const\":\"b\"},\"y\":{\"type\":\"string\"}},\"required\":[\"k\",\"y\"]},"
          "{\"type\":\"integer\"}]}",
          TEXTS("{\"k\":\"a\",\"x\":1}", "{\"k\":\"b\",\"y\":\"\"}", "5"),
          TEXTS("{\"k\":\"a\",\"y\":\"\"}", "{\"k\":\"b\",\"x\":1}", "\"a\"", "{}"));
    check(
        "{\"anyOf\":[{\"type\":\"number\"},{\"type\":\"integer\"},{\"enum\":[\"a\"]},{\"type\":\"string\"}]}",
        TEXTS("1.5", "\"a\"", "\"b\""), TEXTS("null"));
    check("true", TEXTS("1", "{\"a\":[true,null,\"\"]}", "[]"), TEXTS("", "x"));
    check("{}", TEXTS("1", "{}"), TEXTS("nil"));
}

static void references(void **state) {
    (void)state;
    check(
        "{\"$ref\":\"#/$defs/list\",\"$defs\":{\"list\":{\"anyOf\":[{\"type\":\"null\"},{\"type\":\"object\","
        "\"properties\":{\"v\":{\"type\":\"integer\"},\"next\":{\"$ref\":\"#/$defs/list\"}},"
        "\"required\":[\"v\",\"next\"]}]}}}",
        TEXTS("null", "{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":null}}"),
        TEXTS("{\"v\":1}", "{\"v\":1,\"next\":{}}"));
    check("{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}", TEXTS("[]", "[[],[[]]]"), TEXTS("[1]", "[[]"));
    check("{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}", TEXTS("null"), TEXTS("1"));
    check("{\"properties\":{\"a/b~c\":{\"type\":\"null\"},\"x\":{\"$ref\":\"#/properties/a~1b~0c\"},"
          "\"y\":{\"$ref\":\"#/properties/a%2Fb~0c\"}}}",
          TEXTS("{\"x\":null}"), TEXTS("{\"x\":1}"));
}

static void lengths_and_patterns(void **state) {
    (void)state;
    check(
        "{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
        TEXTS("\"ab\"", "\"\xC3\xA9\xE2\x82\xAC\"", "\"\\n\\u00e9x\"", "\"\xF0\x9F\x98\x80\\uD83D\\uDE00\""),
        TEXTS("\"a\"", "\"abcd\"", "\"\\n\"", "\"\\uD83D\\uDE00\"", "\"\""));
    check("{\"pattern\":\"^[a-c]+(-\\\\d{2})?$\"}", TEXTS("\"abc\"", "\"a-12\""),
          TEXTS("\"\"", "\"d\"", "\"a-1\"", "\"a-123\"", "5"));
    check("{\"pattern\":\"b\"}", TEXTS("\"abc\"", "\"b\"", "\"\xC3\xA9\\nb\""), TEXTS("\"\"", "\"ac\""));
    check("{\"pattern\":\"^(a|b$)\"}", TEXTS("\"ab\"", "\"b\""), TEXTS("\"ba\"", "\"c\""));
    check("{\"pattern\":\"^[^\\\\s\\\\d]$\"}", TEXTS("\"x\"", "\"\xC3\xA9\""),
          TEXTS("\" \"", "\"5\"", "\"\xC2\xA0\"", "\"\xD9\xA1\""));
    check("{\"pattern\":\"^[\\\"\\\\\\\\\\n]{3}$\"}", TEXTS("\"\\\"\\\\\\n\""),
          TEXTS("\"\\\"\\\\\"", "\"abc\""));
    check("{\"pattern\":\"^.$\",\"minLength\":1}", TEXTS("\"\xF0\x9F\x98\x80\"", "\"\xEF\xBF\xBF\""),
          TEXTS("\"\\n\"", "\"\xED\xA0\x80\""));
    check("{\"pattern\":\"^a*$\",\"maxLength\":2}", TEXTS("\"\"", "\"aa\""), TEXTS("\"aaa\""));
    check("{\"pattern\":\"^(?:\\\\u00e9|\\\\x41|x{2,}?)$\"}", TEXTS("\"\xC3\xA9\"", "\"A\"", "\"xxx\""),
          TEXTS("\"x\""));
    check("{\"format\":\"date\"}", TEXTS("\"2024-02-29\"", "\"1999-12-31\"", "\"2000-02-29\""),
          TEXTS("\"2023-02-29\"", "\"1900-02-29\"", "\"2024-13-01\"", "\"2024-04-31\"", "\"24-01-01\""));
    check("{\"format\":\"date-time\"}", TEXTS("\"2024-02-29T23:59:59Z\"", "\"2024-01-01T00:00:00.25+05:30\""),
          TEXTS("\"2024-01-01\"", "\"2024-01-01T24:00:00Z\""));
    check("{\"format\":\"ipv4\"}", TEXTS("\"255.0.10.99\""),
          TEXTS("\"256.0.0.1\"", "\"1.2.3\"", "\"01.2.3.4\""));
    check("{\"format\":\"uuid\",\"pattern\":\"^0\"}", TEXTS("\"01234567-89ab-4cde-8f01-23456789abcd\""),
          TEXTS("\"11234567-89ab-4cde-8f01-23456789abcd\""));
    check("{\"enum\":[\"a\",\"bb\",3],\"minLength\":2}", TEXTS("\"bb\"", "3"), TEXTS("\"a\""));
}

static void bounds(void **state) {
    (void)state;
    check("{\"type\":\"integer\",\"minimum\":-5,\"maximum\":12}", TEXTS("-5", "-1", "0", "-0", "9", "12"),
          TEXTS("-6", "13", "100", "-10", "1.0", "1e1"));
    check("{\"type\":\"integer\",\"minimum\":-9007199254740991,\"maximum\":9007199254740991}",
          TEXTS("9007199254740991", "-9007199254740991", "7"),
          TEXTS("9007199254740992", "-9007199254740992"));
    check("{\"type\":\"integer\",\"exclusiveMinimum\":99,\"exclusiveMaximum\":1000}", TEXTS("100", "999"),
          TEXTS("99", "1000", "5", "-100"));
    check("{\"type\":\"number\",\"minimum\":0,\"maximum\":1}", TEXTS("0", "0.5", "1", "1.0", "0.00"),
          TEXTS("1.01", "-0.1", "2", "1e-3", "1."));
    check("{\"exclusiveMinimum\":-1.25,\"maximum\":-0.5}", TEXTS("-1.2", "-0.5", "-1", "-1.2499"),
          TEXTS("-1.25", "-1.250", "-0.49", "0", "-2", "1"));
    check("{\"minimum\":0.001,\"exclusiveMaximum\":1e2}", TEXTS("0.001", "99.9", "0.0010"),
          TEXTS("0.0009", "100", "0", "100.0"));
    check("{\"minimum\":1,\"exclusiveMinimum\":true,\"type\":\"integer\",\"maximum\":3}", TEXTS("2", "3"),
          TEXTS("1"));
    check("{\"type\":\"number\",\"multipleOf\":0.5}", TEXTS("1.5", "2", "-0.5", "0"), TEXTS("1.25", "0.3"));
    check("{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":1}", TEXTS("7", "14", "7000"),
          TEXTS("0", "8", "-7"));
    check("{\"enum\":[1,5,2.5],\"minimum\":2,\"multipleOf\":2.5}", TEXTS("5", "2.5"), TEXTS("1"));
}

static void combinations(void **state) {
    (void)state;
    check("{\"allOf\":[{\"$ref\":\"#/$defs/"
          "a\"},{\"properties\":{\"y\":{\"type\":\"integer\"}},\"required\":[\"y\"]}],"
          "\"$defs\":{\"a\":{\"properties\":{\"x\":{\"type\":\"null\"},\"y\":{\"minimum\":3}},\"required\":["
          "\"x\"]}}}",
          TEXTS("{\"x\":null,\"y\":3}"),
          TEXTS("{\"x\":null}", "{\"y\":3}", "{\"x\":null,\"y\":2}", "{\"x\":null,\"y\":3.5}"));
    check("{\"type\":\"string\",\"anyOf\":[{\"enum\":[\"x\",1]},{\"maxLength\":0}]}", TEXTS("\"x\"", "\"\""),
          TEXTS("1", "\"y\""));
    check("{\"$ref\":\"#/$defs/s\",\"maxLength\":1,\"$defs\":{\"s\":{\"type\":\"string\"}}}", TEXTS("\"a\""),
          TEXTS("\"ab\"", "1"));
    check("{\"oneOf\":[{\"properties\":{\"k\":{\"const\":1}}},{\"properties\":{\"k\":{\"const\":2},\"z\":{}}}"
          "]}",
          TEXTS("{\"k\":1}", "{\"k\":2,\"z\":0}"), TEXTS("{}", "{\"k\":3}", "{\"z\":0}"));
    check("{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"string\"}]}", TEXTS("1", "\"\""),
          TEXTS("1.5", "null"));
    refuse("{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}",
           "oneOf: alternatives 0 and 1 may hold at once");
    refuse("{\"oneOf\":[{\"properties\":{\"a\":{}}},{\"properties\":{\"b\":{}}}]}",
           "oneOf: alternatives 0 and 1");
    /* An alternative that is the whole again adds nothing. */
    check("{\"type\":\"integer\",\"anyOf\":[{\"$ref\":\"#\"},{\"maximum\":3,\"minimum\":3}]}", TEXTS("3"),
          TEXTS("4", "1"));
    check("{\"anyOf\":[{\"not\":{}},{\"type\":\"null\"}]}", TEXTS("null"), TEXTS("1"));
    check("{\"type\":\"string\",\"nullable\":true,\"x-order\":1,\"discriminator\":{},\"contentEncoding\":"
          "\"base64\"}",
          TEXTS("\"\""), TEXTS("null"));
}

static void containers(void **state) {
    (void)state;
    check("{\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"items\":false,\"minItems\":1}",
          TEXTS("[1]", "[1,\"\"]"), TEXTS("[]", "[\"\"]", "[1,2]", "[1,\"\",1]"));
    check("{\"items\":[{\"type\":\"integer\"}],\"additionalItems\":{\"type\":\"null\"}}",
          TEXTS("[]", "[1,null,null]"), TEXTS("[null]", "[1,1]"));
    check("{\"items\":{\"enum\":[1,12,\"a\"]},\"uniqueItems\":true,\"minItems\":2}",
          TEXTS("[1,12]", "[12,1,\"a\"]", "[\"a\",1]"), TEXTS("[1,1]", "[1]", "[1,12,1]", "[12,1,\"a\",1]"));
    check("{\"propertyNames\":{\"enum\":[\"a\",\"b\"]},\"additionalProperties\":{\"type\":\"null\"}}",
          TEXTS("{}", "{\"b\":null}"), TEXTS("{\"c\":null}", "{\"a\":1}"));
    check("{\"propertyNames\":{\"pattern\":\"^k\"},\"additionalProperties\":{\"type\":\"null\"},"
          "\"maxProperties\":2,\"minProperties\":1}",
          TEXTS("{\"k\":null}", "{\"kx\":null,\"k\":null}"),
          TEXTS("{}", "{\"x\":null}", "{\"k\":null,\"k1\":null,\"k2\":null}"));
    check("{\"patternProperties\":{\"^x\":{\"type\":\"integer\"}},\"properties\":{\"xa\":{\"minimum\":2}},"
          "\"additionalProperties\":false}",
          TEXTS("{\"xa\":2}", "{}"), TEXTS("{\"xa\":1}", "{\"xa\":2.5}", "{\"y\":1}"));
    check("{\"patternProperties\":{\"^x\":{\"type\":\"integer\"}}}", TEXTS("{\"x\":1,\"xy\":2}"),
          TEXTS("{\"y\":1}", "{\"x\":true}"));
    check("{\"properties\":{\"a\":{\"type\":\"null\"}},\"minProperties\":1}", TEXTS("{\"a\":null}"),
          TEXTS("{}"));
    check("{\"properties\":{\"a\":{\"type\":\"null\"}},\"additionalProperties\":{\"type\":\"integer\"}}",
          TEXTS("{\"a\":null}", "{}"), TEXTS("{\"a\":1}"));
    check("{\"properties\":{\"a\":{\"type\":\"null\"}}}", TEXTS("{\"a\": null}", "{\n\t\"a\" : null\n}"),
          TEXTS("{\"a\":  null}", "{\"a\":\nnull}", "{\n                     \"a\":null}"));
}

static void what_of_a_keyword_is_refused(void **state) {
    (void)state;
    static const char *const patterns[][2] = {{"(?=a)", "looking ahead"},
                                              {"(?<!a)b", "looking ahead"},
                                              {"(a)\\\\1", "references back"},
                                              {"\\\\bx", "\\b is not"},
                                              {"\\\\p{L}", "\\p is not"},
                                              {"(", "without its )"},
                                              {"[a", "without its ]"},
                                              {"*", "nothing to repeat"},
                                              {"a{1001}", "too large"},
                                              {"(.{1000}){1000}", "more than 8192 states"},
                                              {"((((){1000}){1000}){1000}){1000}", "repeats too much"},
                                              {"a)", ") without"},
                                              {"(?i)a", "flags"},
                                              {"[b-a]", "backwards"},
                                              {"a++", "give nothing back"}};
    char text[256];
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        snprintf(text, sizeof text, "{\"pattern\":\"%s\"}", patterns[i][0]);
        refuse(text, patterns[i][1]);
    }
    refuse("{\"pattern\":\"(a|b)*a(a|b){14}\"}", "more than 8192 states");
    refuse("{\"pattern\":\"^a{500}$\",\"maxLength\":3}", "no value satisfies it");
    refuse("{\"format\":\"iri\"}", "format: \"iri\" is not supported");
    refuse("{\"minLength\":-1}", "minLength: expected a whole number");
    refuse("{\"minimum\":\"1\"}", "minimum: expected a number");
    refuse("{\"multipleOf\":0}", "multipleOf: expected a number above 0");
    refuse("{\"multipleOf\":12345}", "multipleOf");
    refuse("{\"minimum\":5,\"maximum\":4}", "no value satisfies it");
    refuse("{\"uniqueItems\":true,\"items\":{}}", "uniqueItems: only of at most 32 values");
    refuse("{\"minProperties\":2}", "minProperties: more than 1");
    refuse("{\"patternProperties\":{\"a\":{},\"b\":{}}}", "patternProperties: several");
    refuse("{\"required\":true}", "required: expected a list of names");
    refuse("{\"allOf\":[]}", "allOf: expected a list");
    refuse("{\"type\":\"object\",\"required\":[\"b\"],\"propertyNames\":{\"enum\":[\"a\"]}}",
           "not allowed by propertyNames");
}

/* An array in an array in ...: as deep as it goes, and no deeper. */
static void depth_is_bounded(void **state) {
    (void)state;
    struct json_schema *schema = compile("{\"type\":\"array\"}");
    struct json_matcher *matcher;
    struct error error;
    assert_ok(json_matcher_create(&matcher, schema, trie, &error), error);
    for (size_t i = 0; i < JSON_OUTPUT_DEPTH_MAX; i++)
        assert_true(accept_byte(matcher, '['));
    assert_false(accept_byte(matcher, '['));
    assert_false(accept_byte(matcher, '{'));
    for (size_t i = 0; i < JSON_OUTPUT_DEPTH_MAX; i++) {
        assert_false(json_matcher_may_end(matcher));
        assert_true(accept_byte(matcher, ']'));
    }
    assert_true(json_matcher_may_end(matcher) && json_matcher_is_complete(matcher));
    json_matcher_destroy(matcher);
    json_schema_destroy(schema);
}

static void what_is_refused(void **state) {
    (void)state;
    static const char *const unknown[] = {"not",
                                          "if",
                                          "then",
                                          "contains",
                                          "$dynamicRef",
                                          "dependentRequired",
                                          "dependentSchemas",
                                          "unevaluatedItems",
                                          "nonsense"};
    char text[256], words[256];
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        snprintf(text, sizeof text, "{\"properties\":{\"p\":{\"type\":\"string\",\"%s\":1}}}", unknown[i]);
        snprintf(words, sizeof words, "schema: #/properties/p: \"%s\" is not supported", unknown[i]);
        refuse(text, words);
    }
    refuse("{\"type\":\"text\"}", "type: text: expected object, array");
    refuse("{\"type\":[]}", "type: the list is empty");
    refuse("{\"type\":3}", "type: no string");
    refuse("[]", "#: expected a schema");
    refuse("{\"items\":3}", "#/items: expected a schema");
    refuse("{\"anyOf\":[]}", "anyOf: expected a list");
    refuse("{\"anyOf\":[{},{\"anyOf\":[{},7]}]}", "#/anyOf/1/anyOf/1: expected a schema");
    refuse("{\"enum\":[1],\"properties\":{}}", "enum and const beside \"properties\"");
    refuse("{\"enum\":1}", "enum: expected a list");
    refuse("{\"$ref\":\"http://x\"}", "only places of the same schema");
    refuse("{\"$ref\":\"#/$defs/a\"}", "has no such place");
    refuse("{\"$ref\":\"#/%zz\"}", "has no such place");
    refuse("{\"$ref\":1}", "$ref: expected a string");
    refuse("{\"minItems\":-1}", "minItems: expected a whole number");
    refuse("{\"maxItems\":1.5}", "maxItems: expected a whole number");
    refuse("{\"minItems\":3,\"maxItems\":2}", "minItems 3 is above maxItems 2");
    refuse("{\"required\":[1]}", "required: expected a list of names");
    refuse("{\"required\":\"a\"}", "required: expected a list of names");
    refuse("{\"properties\":[]}", "properties: expected an object");
    refuse("{\"properties\":{\"b\":{}},\"required\":[\"a\"],\"additionalProperties\":false}",
           "\"a\" is not in properties");
    refuse("{\"properties\":{\"a\":{\"$id\":\"x\"}}}", "\"$id\" is not supported");
    refuse("{\"a\":1,\"a\":1}", "JSON");
    refuse("{", "JSON");
    refuse("\"\xFF\"", "JSON");
}

static void what_nothing_satisfies(void **state) {
    (void)state;
    refuse("false", "no value satisfies it");
    refuse("{\"enum\":[]}", "no value satisfies it");
    refuse("{\"$ref\":\"#\"}", "no value satisfies it");
    refuse("{\"type\":\"integer\",\"enum\":[\"a\"]}", "no value satisfies it");
    refuse("{\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", "no value satisfies it");
    refuse("{\"items\":{\"$ref\":\"#\"},\"minItems\":1}", "no value satisfies it");
    refuse("{\"anyOf\":[{\"$ref\":\"#\"},false]}", "no value satisfies it");
}

/* An answer that never ends helps nobody. */
static void what_needs_too_many_bytes(void **state) {
    (void)state;
    refuse("{\"type\":\"array\",\"minItems\":2147483647}", "its shortest value has more than 65536 bytes");
    refuse("{\"type\":\"array\",\"minItems\":32768,\"items\":{\"type\":\"null\"}}", "its shortest value");
    json_schema_destroy(compile("{\"type\":\"array\",\"minItems\":32767,\"items\":{\"type\":\"null\"}}"));
    refuse("{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"minItems\":99,\"items\":{\"$ref\":\"#/$defs/b\"}},"
           "\"b\":{\"minItems\":99,\"items\":{\"properties\":{\"key\":{}},\"required\":[\"key\"]}}}}",
           "its shortest value");
    check("{\"anyOf\":[{\"type\":\"array\",\"minItems\":99999},{\"type\":\"null\"}]}", TEXTS("null"),
          TEXTS("[", "[1]"));
}

static void limits(void **state) {
    (void)state;
    char *text = malloc(JSON_SCHEMA_BYTES_MAX + 16);
    assert_non_null(text);
    memset(text, ' ', JSON_SCHEMA_BYTES_MAX + 1);
    text[JSON_SCHEMA_BYTES_MAX + 1] = '\0';
    memcpy(text, "{}", 2);
    refuse(text, "65537 bytes, expected at most 65536");
    text[JSON_SCHEMA_BYTES_MAX] = '\0';
    json_schema_destroy(compile(text));
    for (size_t depth = JSON_SCHEMA_DEPTH_MAX; depth <= JSON_SCHEMA_DEPTH_MAX + 1; depth++) {
        text[0] = '\0';
        for (size_t i = 0; i + 1 < depth; i++) strcat(text, "{\"items\":");
        strcat(text, "{}");
        for (size_t i = 0; i + 1 < depth; i++) strcat(text, "}");
        if (depth == JSON_SCHEMA_DEPTH_MAX)
            json_schema_destroy(compile(text));
        else
            refuse(text, "nested 33 deep, expected at most 32");
    }
    for (size_t count = JSON_SCHEMA_ALTERNATIVES_MAX; count <= JSON_SCHEMA_ALTERNATIVES_MAX + 1; count++) {
        strcpy(text, "{\"anyOf\":[");
        for (size_t i = 0; i < count; i++)
            sprintf(text + strlen(text), "%s{\"const\":%zu}", i > 0 ? "," : "", i);
        strcat(text, "]}");
        if (count == JSON_SCHEMA_ALTERNATIVES_MAX)
            json_schema_destroy(compile(text));
        else
            refuse(text, "more than 64 alternatives");
    }
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strings),
        cmocka_unit_test(numbers),
        cmocka_unit_test(literals),
        cmocka_unit_test(objects),
        cmocka_unit_test(arrays),
        cmocka_unit_test(alternatives),
        cmocka_unit_test(references),
        cmocka_unit_test(depth_is_bounded),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(what_nothing_satisfies),
        cmocka_unit_test(limits),
        cmocka_unit_test(what_needs_too_many_bytes),
        cmocka_unit_test(lengths_and_patterns),
        cmocka_unit_test(bounds),
        cmocka_unit_test(combinations),
        cmocka_unit_test(containers),
        cmocka_unit_test(what_of_a_keyword_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
