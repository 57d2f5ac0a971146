/* local: requests of this process, by the routes of HTTP. */
#include <string.h>

#include "server/routes.h"

static void stay(void *context) { (void)context; }

/* An exchange without a connection. */
struct server_asked *server_ask(struct server *server, const struct server_question *question) {
    const struct head head = {.method = HTTP_POST, .path = {question->path, strlen(question->path)}};
    struct exchange *exchange = exchange_create(&head, 0, atomic_fetch_add(&server->next_id, 1));
    if (exchange == NULL) return NULL;
    if (!exchange_append_body(exchange, question->body, question->length)) {
        exchange_release(exchange);
        return NULL;
    }
    routes_handle(server, exchange);
    if (exchange_await(exchange, question->context, stay, question->ready) != EXCHANGE_WAITS)
        question->ready(question->context);
    return (struct server_asked *)exchange;
}

struct server_answer server_take_answer(struct server_asked *asked) {
    struct exchange *exchange = (struct exchange *)asked;
    const struct exchange_reply_view reply = exchange_take_reply(exchange);
    return (struct server_answer){
        .http_status = reply.http_status, .id = exchange_id(exchange), .bytes = reply.bytes, .length = reply.length};
}

void server_forget(struct server_asked *asked) {
    struct exchange *exchange = (struct exchange *)asked;
    exchange_leave(exchange);
    exchange_release(exchange);
}
