/* The device's own kernels over the fake driver: what clang made of each takes the arguments that the host gives it,
 * and one of them runs through a stream and through a recorded step. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda/buffer.h"
#include "device/cuda/graph.h"
#include "device/cuda/kernels.h"
#include "seed.h"

enum { ROWS = 3, COLUMNS = 1500, STRIDE = 1504, SEEDS = 10 };

struct rig {
    struct cuda_driver driver;
    struct cuda_context context;
    struct cuda_modules modules;
};

static void rig_open_with(struct rig *rig, const char *settings, const struct cuda_image *images, size_t image_count) {
    struct error error;
    (void)setenv("FAKE_CUDA", settings, 1);
    assert_ok(cuda_driver_open(&rig->driver, FAKE_LIBRARY, &error), error);
    assert_ok(cuda_context_open(&rig->context, &rig->driver, 0, &(struct cuda_options){0}, &error), error);
    assert_ok(cuda_modules_open(&rig->modules, &rig->context, images, image_count, &error), error);
}
static void rig_open(struct rig *rig, const char *settings) {
    rig_open_with(rig, settings, cuda_images, cuda_image_count);
}

static void rig_close(struct rig *rig) {
    cuda_modules_close(&rig->modules);
    cuda_context_close(&rig->context);
    cuda_driver_close(&rig->driver);
}

/* The fake driver compares the struct's size in the PTX with that of the kernel on the host. */
static void entries_find(struct rig *rig, const struct cuda_image *image, size_t *count) {
    static const char mark[] = ".entry ";
    for (const char *at = strstr(image->ptx, mark); at != NULL; at = strstr(at, mark), ++*count) {
        char name[160];
        struct cuda_kernel kernel;
        struct error error;
        at += sizeof mark - 1;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at, "("), at);
        assert_ok(cuda_kernel_find(&kernel, &rig->modules, name, 0, &error), error);
    }
}

static void test_entries(void **state) {
    (void)state;
    struct rig rig;
    size_t count = 0;
    rig_open(&rig, "capability=90");
    for (size_t i = 0; i < cuda_image_count; i++) entries_find(&rig, &cuda_images[i], &count);
    printf("%zu images, %zu kernels\n", cuda_image_count, count);
    assert_true(count >= cuda_image_count);
    rig_close(&rig);
}

/* Of a kernel that two images have a card gets the one that is for it alone, where there is one; by its whole name,
 * compiled once. */
static void test_list(void **state) {
    (void)state;
    static const char mark[] = ".entry ", longer[] = ".visible .entry %sx(\n.visible .entry alone(\n";
    static const struct {
        const char *settings, *image;
    } cards[] = {{"capability=86", "plain"}, {"capability=90", "tuned"}, {"capability=100", "plain"}};
    const struct cuda_image *real = cuda_images;
    while (real->capability != 80) real++;
    const char *const at = strstr(real->ptx, mark) + sizeof mark - 1;
    char name[160], less[160], others[400];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(at, "("), at);
    snprintf(less, sizeof less, "%.*s", (int)strlen(name) - 1, name);
    snprintf(others, sizeof others, longer, name);
    const struct cuda_image images[] = {{"others", 90, others}, {"plain", 80, real->ptx}, {"tuned", 90, real->ptx}};
    for (size_t i = 0; i < sizeof cards / sizeof cards[0]; i++) {
        struct rig rig;
        struct cuda_kernel kernel;
        struct error error;
        rig_open_with(&rig, cards[i].settings, images, sizeof images / sizeof images[0]);
        for (int turn = 0; turn < 2; turn++)
            assert_ok(cuda_kernel_find(&kernel, &rig.modules, name, 0, &error), error);
        assert_int_equal(rig.modules.loaded_count, 1);
        assert_string_equal(rig.modules.loaded[0].entry->image->name, cards[i].image);
        assert_int_equal(cuda_kernel_find(&kernel, &rig.modules, less, 0, &error), STATUS_UNSUPPORTED);
        if (i != 1) assert_int_equal(cuda_kernel_find(&kernel, &rig.modules, "alone", 0, &error), STATUS_UNSUPPORTED);
        if (i != 1) assert_string_equal(error.message, "cuda: no kernel alone for Fake GPU 0");
        rig_close(&rig);
    }
}

/* ---- what clang made of the words of programmatic dependent launch ---- */

enum { LINE_BYTES = 400 };

/* The next line of an entry's body, from its first word or label on. */
static void line_next(const char **at, char line[LINE_BYTES]) {
    *at += strspn(*at, "\n\t ");
    const size_t bytes = strcspn(*at, "\n");
    snprintf(line, LINE_BYTES, "%.*s", (int)bytes, *at);
    *at += bytes;
}

static size_t count_of(const char *word, const char *begin, const char *end) {
    size_t count = 0;
    for (const char *at = begin; (at = strstr(at, word)) != NULL && at < end; at++) count++;
    return count;
}

/* The body lets the next kernel start once, then waits once for the one before, on every way: no branch in front of the
 * wait leads behind it.  In front of it nothing is read but parameters and weights, nothing is written, nothing ends.
 * What is wrong; NULL: nothing. */
static const char *early_fault(const char *body) {
    static const char *const words[] = {"ld.", "st.", "atom.", "red.", "cp.", "ret;", "exit;", "call", "bar.", "brx"};
    const char *const wait = strstr(body, "griddepcontrol.wait;"), *const end = strstr(body, "\n}\n"),
               *const start = strstr(body, "griddepcontrol.launch_dependents;");
    char line[LINE_BYTES], label[LINE_BYTES + 2];
    if (wait == NULL || start == NULL || wait > end || start > wait || count_of("griddepcontrol.", body, end) != 2)
        return "not one start and one wait, in this order";
    for (const char *at = body; at < wait;) {
        line_next(&at, line);
        const char *word = line[0] == '@' ? line + strcspn(line, " \t") : line;
        word += strspn(word, " \t");
        for (size_t i = 0; i < sizeof words / sizeof *words; i++)
            if (strncmp(word, words[i], strlen(words[i])) == 0 && strncmp(word, "ld.param.", 9) != 0 &&
                strncmp(word, "ld.global.nc.", 13) != 0)
                return "something in front of the wait";
        if (strncmp(word, "bra", 3) != 0) continue;
        word += strcspn(word, " \t");
        word += strspn(word, " \t");
        snprintf(label, sizeof label, "\n%.*s:", (int)strcspn(word, ";"), word);
        const char *to = strstr(body, label);
        if (to == NULL || to > wait) return "a way past the wait";
    }
    return NULL;
}

static void test_early_starts(void **state) {
    (void)state;
    size_t count = 0;
    for (size_t i = 0; i < cuda_image_count; i++)
        for (const char *at = cuda_images[i].ptx; (at = strstr(at, ".entry ")) != NULL; count++) {
            const char *body = strstr(at, "\n{"), *fault = early_fault(body + 2);
            if (fault != NULL) fail_msg("%.*s: %s", (int)strcspn(at + 7, "("), at + 7, fault);
            at = body;
        }
    assert_true(count >= 200);
}

/* The same of a body with a bug. */
static void bugs_of_early_starts_are_seen(void **state) {
    (void)state;
    static const struct {
        const char *in_front, *behind; /* of the wait; NULL: it is not there */
        bool is_right;
    } cases[] = {{"ld.param.u64 %rd1, [p];\n@%p1 bra $L1;\nld.global.nc.u32 %r1, [%rd1];\n$L1:", "", true},
                 {"", NULL, false},
                 {"ld.global.u32 %r1, [%rd1];", "", false},
                 {"ld.volatile.global.u32 %r1, [%rd1];", "", false},
                 {"ld.shared.u32 %r1, [%rd1];", "", false},
                 {"st.global.u32 [%rd1], %r1;", "", false},
                 {"@%p1 st.shared.u32 [%rd1], %r1;", "", false},
                 {"atom.global.add.u32 %r1, [%rd1], 1;", "", false},
                 {"cp.async.cg.shared.global [%r1], [%rd1], 16;", "", false},
                 {"@%p1 ret;", "", false},
                 {"@%p1 bra $L1;", "$L1:", false},
                 {"", "griddepcontrol.wait;", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[600];
        snprintf(body, sizeof body,
                 "\n//griddepcontrol.launch_dependents;\n%s\n//%s\n%s\nst.global.u32 [%%rd1], 1;\nret;\n}\n",
                 cases[i].in_front, cases[i].behind == NULL ? "" : "griddepcontrol.wait;",
                 cases[i].behind == NULL ? "" : cases[i].behind);
        const char *fault = early_fault(body);
        if ((fault == NULL) != cases[i].is_right) fail_msg("case %zu: %s", i, fault != NULL ? fault : "nothing");
    }
}

/* y += x, three times: once on the stream and twice by a recorded step of two kernels, the second of which may start
 * early. */
static void add_run(struct rig *rig, uint64_t seed) {
    struct error error;
    struct cuda_kernel add;
    struct cuda_stream stream;
    struct cuda_graph graph;
    struct cuda_buffer x, y, host;
    const size_t bytes = (size_t)ROWS * STRIDE * sizeof(float);
    assert_ok(cuda_kernel_find(&add, &rig->modules, "add", 0, &error), error);
    assert_ok(cuda_stream_create(&stream, &rig->context, &error), error);
    assert_ok(cuda_buffer_create(&x, &rig->context, bytes, &error), error);
    assert_ok(cuda_buffer_create(&y, &rig->context, bytes, &error), error);
    assert_ok(cuda_buffer_create_host(&host, &rig->context, bytes, &error), error);
    float *values = host.host;
    for (size_t i = 0; i < (size_t)ROWS * STRIDE; i++) values[i] = (float)((i * 7 + seed) % 100);
    const struct cuda_add_args arguments = {.x = x.address,
                                            .y = y.address,
                                            .row_count = ROWS,
                                            .x_stride = STRIDE,
                                            .y_stride = STRIDE,
                                            .count = COLUMNS};
    const struct cuda_launch launch = {.kernel = &add,
                                       .grid = {ROWS, (COLUMNS + 1023) / 1024, 1},
                                       .block = {256, 1, 1},
                                       .arguments = &arguments,
                                       .is_early = true};
    cuda_stream_copy(&stream, x.address, host.address, bytes);
    cuda_stream_copy(&stream, y.address, x.address, bytes);
    cuda_stream_launch(&stream, &launch);
    assert_ok(cuda_graph_begin(&graph, &stream, &error), error);
    cuda_stream_launch(&stream, &launch);
    cuda_stream_launch(&stream, &launch);
    cuda_stream_copy(&stream, host.address, y.address, bytes);
    assert_ok(cuda_graph_end(&graph, &error), error);
    assert_int_equal(graph.early_count, 1);
    cuda_graph_launch(&graph, &stream);
    assert_ok(cuda_ticket_wait(&stream, cuda_stream_mark(&stream), &error), error);
    for (size_t i = 0; i < (size_t)ROWS * STRIDE; i++) {
        const float first = (float)((i * 7 + seed) % 100);
        assert_true(values[i] == (i % STRIDE < COLUMNS ? 4 * first : first));
    }
    assert_int_equal(rig->context.counts.launches, 3);
    cuda_graph_destroy(&graph);
    cuda_stream_destroy(&stream);
    cuda_buffer_destroy(&host);
    cuda_buffer_destroy(&x);
    cuda_buffer_destroy(&y);
}

static void test_add(void **state) {
    (void)state;
    const uint64_t first = test_seed(1);
    for (uint64_t seed = first; seed < first + SEEDS; seed++) {
        struct rig rig;
        char settings[40];
        snprintf(settings, sizeof settings, "seed=%llu,capability=90", (unsigned long long)seed);
        rig_open(&rig, settings);
        add_run(&rig, seed);
        rig_close(&rig);
    }
}

/* A map that the manual does not allow is the driver's error, and breaks the context. */
static void test_tensor_maps(void **state) {
    (void)state;
    static const struct {
        uint32_t columns, rows, box_rows, offset;
        bool is_right;
    } cases[] = {{64, 8, 128, 0, true},  {72, 300, 256, 16, true}, {64, 8, 257, 0, false},
                 {68, 8, 128, 0, false}, {64, 8, 128, 8, false},   {64, 8, 0, 0, false},
                 {64, 0, 128, 0, false}, {64, 4096, 128, 0, false} /* more than there is */};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rig rig;
        struct error error = {0};
        struct cuda_buffer memory;
        struct tensor_map map;
        rig_open(&rig, "capability=90");
        assert_ok(cuda_buffer_create(&memory, &rig.context, (size_t)64 << 10, &error), error);
        assert_int_equal(cuda_tensor_map(&rig.context, &map, memory.address + cases[i].offset,
                                         cases[i].columns, cases[i].rows, cases[i].box_rows),
                         cases[i].is_right);
        assert_int_equal(cuda_context_status(&rig.context, &error) == STATUS_OK, cases[i].is_right);
        if (!cases[i].is_right)
            assert_non_null(strstr(error.message, "a tensor map: CUDA_ERROR_INVALID_VALUE"));
        cuda_buffer_destroy(&memory);
        rig_close(&rig);
    }
}

int main(void) {
    if (cuda_image_count == 0) {
        printf("skipped: %s\n", cuda_images_missing);
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_entries), cmocka_unit_test(test_list),
                                       cmocka_unit_test(test_add), cmocka_unit_test(test_tensor_maps),
                                       cmocka_unit_test(test_early_starts),
                                       cmocka_unit_test(bugs_of_early_starts_are_seen)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
