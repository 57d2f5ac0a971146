/* A list of I/O slots, first in first out. */
#include "platform/io_queue_internal.h"

void io_slot_list_add(struct io_slot_list *list, struct io_slot *slot) {
    slot->next = NULL;
    if (list->last == NULL)
        list->first = slot;
    else
        list->last->next = slot;
    list->last = slot;
}

struct io_slot *io_slot_list_take(struct io_slot_list *list) {
    struct io_slot *slot = list->first;
    if (slot == NULL) return NULL;
    list->first = slot->next;
    if (list->first == NULL) list->last = NULL;
    slot->next = NULL;
    return slot;
}
