#include "http_client.h"

#include "testing.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int http_client_connect(uint16_t port, int receive_buffer) {
    const struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(client >= 0);
    if (receive_buffer > 0)
        assert_int_equal(
            setsockopt(client, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer), 0);
    assert_int_equal(connect(client, (const struct sockaddr *)&address, sizeof address), 0);
    return client;
}

void http_client_send(int client, const char *text) {
    const size_t length = strlen(text);
    assert_int_equal(send(client, text, length, MSG_NOSIGNAL), (ssize_t)length);
}

void http_client_send_post(int client, const char *path, const char *body) {
    char request[600];
    const int length = snprintf(request, sizeof request,
                                "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                                "Content-Length: %zu\r\n\r\n%s",
                                path, strlen(body), body);
    assert_true(length > 0 && (size_t)length < sizeof request);
    http_client_send(client, request);
}

int http_client_post(uint16_t port, const char *path, const char *body) {
    const int client = http_client_connect(port, 0);
    http_client_send_post(client, path, body);
    return client;
}

void http_client_read(int client, char *text, size_t capacity, const char *wanted) {
    size_t length = strlen(text);
    while (wanted == NULL || strstr(text, wanted) == NULL) {
        struct pollfd readable = {.fd = client, .events = POLLIN};
        assert_int_equal(poll(&readable, 1, HTTP_CLIENT_PATIENCE_MS), 1);
        assert_true(length + 1 < capacity);
        const ssize_t count = recv(client, text + length, capacity - 1 - length, 0);
        assert_true(count >= 0);
        if (count == 0) break;
        length += (size_t)count;
        text[length] = '\0';
    }
    if (wanted != NULL) assert_non_null(strstr(text, wanted));
}
