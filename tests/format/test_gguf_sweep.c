/* A file of about 20 KB cut at every byte of its header and at every tensor's edges, and each byte of its
 * header replaced: it opens and every reachable byte can be read, or it is refused.  The bytes end
 * against an unreadable page (draft_open), so that reading one too many is a fault. */
#include "testing.h"

#include <stdio.h>
#include <string.h>

#include "format/gguf_draft.h"

enum { WORDS = 700, TENSORS = 24 };

/* A vocabulary and a few small layers: the shape of a real file's header. */
static void draft_model(struct draft *draft) {
    static const uint64_t matrix[] = {32, 4}, vector[] = {8};
    memset(draft, 0, sizeof *draft);
    draft_header(draft, 3, TENSORS, 8);
    draft_key_string(draft, "general.architecture", "llama");
    draft_key_uint(draft, "general.alignment", GGUF_UINT32, 16);
    draft_key_uint(draft, "llama.block_count", GGUF_UINT32, 2);
    draft_key_uint(draft, "llama.rope.freq_base", GGUF_FLOAT32, 0x461c4000);
    draft_key_uint(draft, "tokenizer.ggml.add_bos_token", GGUF_BOOL, 1);
    draft_key_array(draft, "tokenizer.ggml.tokens", GGUF_STRING, WORDS);
    for (int i = 0; i < WORDS; i++) {
        char word[16];
        snprintf(word, sizeof word, "t%d", i * 7919);
        draft_string(draft, word);
    }
    draft_key_array(draft, "tokenizer.ggml.token_type", GGUF_INT32, WORDS);
    for (int i = 0; i < WORDS; i++) draft_u32(draft, 1);
    draft_key_array(draft, "flags", GGUF_BOOL, 9);
    draft_zeros(draft, 9);
    uint64_t offset = 0;
    for (uint32_t i = 0; i < TENSORS; i++) {
        char name[32];
        snprintf(name, sizeof name, "blk.%u.weight", i);
        if (i % 2 == 0)
            draft_tensor(draft, name, TENSOR_Q4_0, 2, matrix, offset);
        else
            draft_tensor(draft, name, TENSOR_F32, 1, vector, offset);
        offset += i % 2 == 0 ? 80 : 32;
    }
    draft->subject[0] = '\0';
    draft_mark(draft, "header end");
    draft_align(draft, 16);
    draft_mark(draft, "data");
    for (uint64_t i = 0; i < offset; i++) draft_u8(draft, (uint8_t)(i * 37));
}

static struct draft model;

static void cut_anywhere_in_the_header(void **state) {
    (void)state;
    draft_model(&model);
    uint64_t end = draft_offset(&model, "data");
    assert_true(end > 14000 && model.size_bytes < 24000);
    for (uint64_t size = 0; size <= end; size++) {
        struct error error = {0};
        enum status status = draft_open(model.data, size, &error);
        if (status != STATUS_MODEL || strncmp(error.message, "model.gguf: ", 12) != 0)
            fail_msg("cut at %llu: %s: %s", (unsigned long long)size, status_name(status), error.message);
    }
    print_message("%llu lengths refused\n", (unsigned long long)end + 1);
}

static void cut_at_every_edge_of_a_tensor(void **state) {
    (void)state;
    draft_model(&model);
    uint64_t data = draft_offset(&model, "data"), edge = data;
    for (uint32_t i = 0; i < TENSORS; i++) {
        edge += i % 2 == 0 ? 72 : 32; /* the tensor itself; 80 with its padding */
        for (uint64_t size = edge - 1; size <= edge + 1 && size <= model.size_bytes; size++) {
            struct error error = {0};
            bool whole = i == TENSORS - 1 && size >= edge;
            enum status status = draft_open(model.data, size, &error);
            if (status != (whole ? STATUS_OK : STATUS_MODEL))
                fail_msg("cut at %llu: %s: %s", (unsigned long long)size, status_name(status), error.message);
        }
        edge += i % 2 == 0 ? 8 : 0;
    }
    assert_int_equal(edge, model.size_bytes);
}

static void every_byte_of_the_header_replaced(void **state) {
    (void)state;
    draft_model(&model);
    uint64_t end = draft_offset(&model, "header end");
    size_t opened = 0, refused = 0;
    for (uint64_t i = 0; i < end; i++) {
        const uint8_t old = model.data[i];
        const uint8_t values[] = {0x00, 0xff, old ^ 0x80, (uint8_t)(old + 1)};
        for (size_t j = 0; j < sizeof values; j++) {
            struct error error = {0};
            model.data[i] = values[j];
            enum status status = draft_open(model.data, model.size_bytes, &error);
            if (status == STATUS_OK)
                opened++;
            else if (status == STATUS_MODEL && strncmp(error.message, "model.gguf: ", 12) == 0)
                refused++;
            else
                fail_msg("byte %llu = %u: %s: %s", (unsigned long long)i, values[j], status_name(status),
                         error.message);
        }
        model.data[i] = old;
    }
    print_message("%zu opened, %zu refused\n", opened, refused);
    assert_true(opened > 1000 && refused > 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cut_anywhere_in_the_header),
        cmocka_unit_test(cut_at_every_edge_of_a_tensor),
        cmocka_unit_test(every_byte_of_the_header_replaced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
