/* Which addresses count as one place, and which are this machine. */
#include "testing.h"

#include <arpa/inet.h>
#include <string.h>

#include "server/client_network.h"

static uint64_t network_of(const char *text, bool *is_local) {
    struct sockaddr_storage address = {0};
    struct sockaddr_in *in = (struct sockaddr_in *)&address;
    struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&address;
    if (inet_pton(AF_INET, text, &in->sin_addr) == 1) {
        address.ss_family = AF_INET;
        in->sin_port = htons(40000);
    } else {
        assert_int_equal(inet_pton(AF_INET6, text, &in6->sin6_addr), 1);
        address.ss_family = AF_INET6;
        in6->sin6_port = htons(40000);
    }
    return client_network_of(&address, is_local);
}

static uint64_t of(const char *text) {
    bool is_local;
    const uint64_t network = network_of(text, &is_local);
    assert_true(network != 0);
    return network;
}

static void test_what_is_one_place(void **state) {
    (void)state;
    assert_true(of("192.0.2.1") == of("192.0.2.1"));
    assert_true(of("192.0.2.1") == of("::ffff:192.0.2.1"));
    assert_true(of("127.0.0.1") == of("::1"));
    assert_true(of("2001:db8:1:2::1") == of("2001:db8:1:2:ffff:ffff:ffff:ffff"));
    static const char *const different[] = {"192.0.2.1",     "192.0.2.2",   "193.0.2.1",     "0.0.0.0",
                                            "127.0.0.1",     "127.0.0.2",   "2001:db8:1:2::", "2001:db8:1:3::",
                                            "2002:db8:1:2::", "::192.0.2.1:1"};
    enum { COUNT = sizeof different / sizeof *different - 1 }; /* the last is of the network 0 */
    for (size_t i = 0; i < COUNT; i++)
        for (size_t j = 0; j < i; j++) assert_true(of(different[i]) != of(different[j]));
}

static void test_what_is_this_machine(void **state) {
    (void)state;
    static const char *const local[] = {"127.0.0.1", "127.255.255.255", "::1", "::ffff:127.0.0.1"};
    static const char *const elsewhere[] = {"126.0.0.1", "128.0.0.1", "0.0.0.127", "::2", "fe80::1", "::ffff:10.0.0.1"};
    bool is_local;
    for (size_t i = 0; i < sizeof local / sizeof *local; i++) {
        (void)network_of(local[i], &is_local);
        assert_true(is_local);
    }
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++) {
        is_local = true;
        (void)network_of(elsewhere[i], &is_local);
        assert_false(is_local);
    }
    const struct sockaddr_storage file = {.ss_family = AF_UNIX};
    assert_true(client_network_of(&file, &is_local) == 0 && is_local);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_is_one_place),
                                       cmocka_unit_test(test_what_is_this_machine)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
