/* http_client: a client of the tests that sends bytes as it likes. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { HTTP_CLIENT_PATIENCE_MS = 120000 }; /* what a test waits for comes far sooner */

/* A socket connected to the loopback address. */
int http_client_connect(uint16_t port, int receive_buffer); /* 0: the system's */
void http_client_send(int client, const char *text);
/* A whole POST of a JSON body; post: on a new connection. */
void http_client_send_post(int client, const char *path, const char *body);
int http_client_post(uint16_t port, const char *path, const char *body);
/* Appends to text until it has `wanted`, or, with NULL, until the end. */
void http_client_read(int client, char *text, size_t capacity, const char *wanted);
