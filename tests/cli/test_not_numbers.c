/* A model whose quantized scales are NaN or infinite: exit code 3 with file and tensor, and no KV that it computed is
 * left for others to find. */
#include "testing.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/process.h"
#include "cli/tiny_model.h"
#include "format/gguf.h"

static char whole_path[160], broken_path[160], folder_path[160];

static int setup(void **state) {
    (void)state;
    char plain[160];
    snprintf(plain, sizeof plain, "%s", scratch_path("plain.gguf"));
    snprintf(whole_path, sizeof whole_path, "%s", scratch_path("whole.gguf"));
    snprintf(broken_path, sizeof broken_path, "%s", scratch_path("broken.gguf"));
    tiny_model_write(plain, &(struct tiny_model){.seed = 1, .context = 2048});
    struct process_result result = LAB("quantize", plain, whole_path, "Q8_0");
    assert_int_equal(result.code, 0);
    process_deinit(&result);
    return 0;
}

/* whole.gguf with the scale of a tensor's third row changed. */
static void break_scale(const char *tensor_name, uint16_t scale) {
    struct gguf gguf;
    struct error error;
    char command[400];
    snprintf(command, sizeof command, "cp '%s' '%s'", whole_path, broken_path);
    assert_int_equal(system(command), 0);
    assert_ok(gguf_open(&gguf, broken_path, &error), error);
    const struct gguf_tensor *tensor = gguf_find_tensor(&gguf, tensor_name);
    assert_non_null(tensor);
    assert_int_equal(tensor->type, TENSOR_Q8_0);
    uint64_t row_bytes;
    assert_true(tensor_row_bytes(tensor->type, tensor->dimensions[0], &row_bytes));
    const off_t offset = (off_t)((uint64_t)(tensor->data - gguf.maps[0].data) + 2 * row_bytes);
    gguf_close(&gguf);
    int file = open(broken_path, O_WRONLY | O_CLOEXEC);
    assert_int_equal(pwrite(file, &scale, sizeof scale, offset), sizeof scale);
    close(file);
}

static void expect_refusal(struct process_result result, const char *tensor_name) {
    char said[128];
    snprintf(said, sizeof said, "broken.gguf: tensor '%s': row 2: found a value that is no number (Q8_0)",
             tensor_name);
    if (result.code != 3 || strstr(result.complaints, said) == NULL)
        fail_msg("%s: exit %d: %s", tensor_name, result.code, result.complaints);
    process_deinit(&result);
}

static void a_scale_that_is_no_number(void **state) {
    (void)state;
    static const struct {
        const char *tensor;
        uint16_t scale;
    } cases[] = {{"blk.0.ffn_up.weight", 0x7e00},   {"blk.0.attn_k.weight", 0x7e00},
                 {"blk.1.attn_k.weight", 0x7e00},   {"blk.1.attn_v.weight", 0x7e00},
                 {"blk.1.ffn_down.weight", 0x7e00}, {"blk.0.attn_q.weight", 0x7c00},
                 {"blk.0.ffn_gate.weight", 0x7c00}};
    char prompt[601];
    for (size_t i = 0; i < sizeof prompt - 1; i++) prompt[i] = (char)('a' + i * i % 23);
    prompt[sizeof prompt - 1] = '\0';
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[16];
        snprintf(name, sizeof name, "kv%zu", i);
        snprintf(folder_path, sizeof folder_path, "%s", scratch_path(name));
        break_scale(cases[i].tensor, cases[i].scale);
        expect_refusal(LOAM("run", "-q", "-m", broken_path, "-p", prompt, "-n", "2"), cases[i].tensor);
        expect_refusal(LOAM("run", "-q", "-m", broken_path, "-p", prompt, "-n", "2", "-ub", "64", "--segment",
                            "128", "--kv-host", "16M", "--kv-disk", folder_path),
                       cases[i].tensor);
        struct process_result listed = LOAM("ls", "--json", "--kv-disk", folder_path);
        assert_int_equal(listed.code, 0);
        if (strstr(listed.output, "ready") != NULL) fail_msg("%s: %s", cases[i].tensor, listed.output);
        process_deinit(&listed);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_scale_that_is_no_number)};
    return cmocka_run_group_tests(tests, setup, NULL);
}
