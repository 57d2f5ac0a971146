/* client_network: which connections come from the same place, for a limit of them. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

/* A number of an IPv4 address, also as IPv6 writes it, or of the 64 bits of an IPv6 address that name a network: one
 * customer has all addresses in it.  0: a socket file.  *is_local: this machine, where a proxy may bring everybody. */
uint64_t client_network_of(const struct sockaddr_storage *address, bool *is_local);
