/* /: the chat page. */
#include <stdlib.h>
#include <string.h>

#include "server/page/page.h"
#include "server/routes.h"

static const struct exchange_header headers[] = {
    {"Content-Encoding", "gzip"},  {"Content-Security-Policy", page_policy}, {"ETag", page_tag},
    {"Cache-Control", "no-cache"}, {"Referrer-Policy", "no-referrer"},
};

void page_route(struct server *server, struct exchange *exchange) {
    (void)server;
    const size_t count = sizeof headers / sizeof *headers;
    if (strstr(exchange_if_none_match(exchange), page_tag) != NULL) {
        exchange_reply_with(exchange, 304, "text/html; charset=utf-8", NULL, 0, headers + 1, count - 1);
        return;
    }
    char *copy = malloc(page_size);
    if (copy != NULL) memcpy(copy, page_bytes, page_size);
    exchange_reply_with(exchange, copy != NULL ? 200 : 503, "text/html; charset=utf-8", copy,
                        copy != NULL ? page_size : 0, headers, count);
}
