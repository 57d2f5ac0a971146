/* watch: what the rows of a step attend to, noted for the sequences that somebody looks at (cache/kv_watch.h). */
#pragma once

#include "attention/attention.h"
#include "attention/choice.h"

/* The operation's items attend to everything that its window lets them see, with its KV heads, the layer's from
 * kv_head_first on.  sequences: of the items. */
void watch_everything(const struct attend_operation *operation, struct kv_sequence *const *sequences,
                      size_t layer_index, size_t kv_head_first);
/* The rows that chose by the query attend to their lists, with its operation's KV heads.  Where somebody looks it waits
 * for the lists.  Rows of the choice that see everything are noted by the above. */
enum status watch_choice(struct choice *choice, const struct choice_query *query, struct stream *stream,
                         struct error *error) STATUS_CHECKED;
