#include "server/sse.h"

#include <stdlib.h>
#include <string.h>

#include "server/json_text.h"

bool sse_send(struct exchange *exchange, const char *event, json_t *value) {
    size_t length;
    char *text = json_line(value, &length);
    json_decref(value);
    if (text == NULL) return false;
    const size_t event_length = event != NULL ? strlen(event) : 0;
    char *frame = malloc(length + event_length + 32), *at = frame;
    bool full = false;
    if (frame != NULL) {
        if (event != NULL) {
            at = stpcpy(at, "event: ");
            at = stpcpy(at, event);
            *at++ = '\n';
        }
        at = stpcpy(at, "data: ");
        memcpy(at, text, length);
        at = stpcpy(at + length, "\n\n");
        full = exchange_write(exchange, frame, (size_t)(at - frame));
    }
    free(frame);
    free(text);
    return full;
}

void sse_send_done(struct exchange *exchange) {
    static const char done[] = "data: [DONE]\n\n";
    (void)exchange_write(exchange, done, sizeof done - 1);
}
