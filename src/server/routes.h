/* routes: which path is whose.  Each function replies to the exchange, or hands it to an ask that will. */
#pragma once

#include "server/server_internal.h"

/* For the front: whether there is such a route. */
bool routes_have(const struct head *head, struct api_error *error);
/* For the front and the guard: whether the route of this head takes a file. */
bool routes_take_file(const struct head *head);
/* For a worker: context is the server. */
void routes_handle(void *context, struct exchange *exchange);

void page_route(struct server *server, struct exchange *exchange);
void health_route(struct server *server, struct exchange *exchange);
void models_route(struct server *server, struct exchange *exchange);
void model_route(struct server *server, struct exchange *exchange);
void props_route(struct server *server, struct exchange *exchange);
void metrics_route(struct server *server, struct exchange *exchange);
void completions_route(struct server *server, struct exchange *exchange);
void chat_route(struct server *server, struct exchange *exchange);
void responses_route(struct server *server, struct exchange *exchange);
void messages_route(struct server *server, struct exchange *exchange);
void count_tokens_route(struct server *server, struct exchange *exchange);
void apply_template_route(struct server *server, struct exchange *exchange);
void document_upload_route(struct server *server, struct exchange *exchange);
void document_list_route(struct server *server, struct exchange *exchange);
void document_show_route(struct server *server, struct exchange *exchange);
void document_text_route(struct server *server, struct exchange *exchange);
void document_export_route(struct server *server, struct exchange *exchange);
void document_import_route(struct server *server, struct exchange *exchange);
void document_remove_route(struct server *server, struct exchange *exchange);
void conversation_list_route(struct server *server, struct exchange *exchange);
void conversation_show_route(struct server *server, struct exchange *exchange);
void conversation_put_route(struct server *server, struct exchange *exchange);
void conversation_remove_route(struct server *server, struct exchange *exchange);
void explain_route(struct server *server, struct exchange *exchange);
void map_route(struct server *server, struct exchange *exchange);
void text_route(struct server *server, struct exchange *exchange);
void tokenize_route(struct server *server, struct exchange *exchange);
void detokenize_route(struct server *server, struct exchange *exchange);
void tokenizer_info_route(struct server *server, struct exchange *exchange);
