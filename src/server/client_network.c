#include "server/client_network.h"

#include <netinet/in.h>
#include <string.h>

/* No network of clients begins like that: ff00::/8 is multicast. */
static const uint64_t of_ipv4 = UINT64_C(0xffff) << 48;

static uint64_t network_of_ipv4(uint32_t address, bool *is_local) {
    *is_local = address >> 24 == 127;
    return of_ipv4 | address;
}

uint64_t client_network_of(const struct sockaddr_storage *address, bool *is_local) {
    *is_local = true;
    if (address->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)address;
        return network_of_ipv4(ntohl(in->sin_addr.s_addr), is_local);
    }
    if (address->ss_family != AF_INET6) return 0;
    const struct in6_addr *in6 = &((const struct sockaddr_in6 *)address)->sin6_addr;
    if (IN6_IS_ADDR_LOOPBACK(in6)) return network_of_ipv4(INADDR_LOOPBACK, is_local);
    if (IN6_IS_ADDR_V4MAPPED(in6)) {
        uint32_t mapped;
        memcpy(&mapped, in6->s6_addr + 12, sizeof mapped);
        return network_of_ipv4(ntohl(mapped), is_local);
    }
    uint64_t network = 0;
    for (int i = 0; i < 8; i++) network = network << 8 | in6->s6_addr[i];
    *is_local = false;
    return network;
}
