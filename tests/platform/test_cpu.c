/* Which instruction sets are used: the words of --cpu-mask, and that tiles must be asked for. */
#include <string.h>

#include "platform/cpu.h"
#include "testing.h"

static cpu_mask parsed(const char *word) {
    struct error error;
    cpu_mask mask = 0;
    assert_ok(cpu_mask_parse(word, &mask, &error), error);
    return mask;
}

/* docs/agreement.md, "With itself": an answer does not depend on what is computed beside it. */
static void tiles_are_asked_for(void **state) {
    (void)state;
    assert_int_equal(cpu_default(), cpu_features() & ~(cpu_mask)CPU_AMX);
    assert_int_equal(parsed("default"), cpu_default());
    assert_int_equal(parsed("all"), cpu_features());
    assert_int_equal(parsed("amx") & CPU_AMX, cpu_features() & CPU_AMX);
    assert_int_equal(parsed("avx512") & CPU_AMX, 0);
}

static void words(void **state) {
    (void)state;
    static const char *const levels[] = {"ref", "avx2", "avx512", "amx", "neon"};
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++)
        assert_int_equal(parsed(levels[i]) & ~cpu_features(), 0);
    assert_int_equal(parsed("ref"), 0);
    struct error error;
    cpu_mask mask = 5;
    assert_int_equal(cpu_mask_parse("amx-int8", &mask, &error), STATUS_USAGE);
    assert_non_null(strstr(error.message, "'amx-int8'"));
    assert_int_equal(mask, 5);
    char text[64];
    assert_string_equal(cpu_mask_text(CPU_AVX2 | CPU_AMX, text, sizeof text), "avx2 amx");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(tiles_are_asked_for), cmocka_unit_test(words)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
