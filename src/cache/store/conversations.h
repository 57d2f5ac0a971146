/* conversations: what people wrote to a model, kept in the folder of saved documents because they chose so.
 *
 * One database, DIR/conversations.db, beside the documents and apart from their catalog: what is there can be computed
 * again, a conversation cannot.  So it counts within the limit of the folder and is never removed to make room; saved
 * documents are.  A catalog that is lost does not take the conversations along.
 *
 * A conversation is a text that its client alone understands, under an id that the client chose, of one owner.  Its
 * version is a checksum of all of it, which finds damage, too.  It is written whole or not at all (SQLite).
 *
 * STATUS_DOCUMENT: damaged, with one line.  STATUS_FULL: no room within the limit.  Any thread; none of these waits for
 * more than another process's writing.
 */
#pragma once

#include "cache/store/store.h"

enum { CONVERSATION_VERSION_BYTES = 33 }; /* hexadecimal digits, with the zero */

struct conversation_row {
    const char *owner, *id, *title;           /* of any length */
    const char *content;                      /* [length]; NULL in a list of several */
    size_t length;                            /* bytes */
    int64_t changed;                          /* seconds since 1970 */
    char version[CONVERSATION_VERSION_BYTES]; /* "": none */
};

/* The owner's (NULL: everybody's), latest first; with an id that one, with its content, or nothing where there is none.
 * Nothing is made where nothing was ever kept.  Texts are good during the call. */
enum status conversations_see(const char *directory, const char *owner, const char *id,
                              void (*see)(void *context, const struct conversation_row *row), void *context,
                              struct error *error) STATUS_CHECKED;
/* Writes row->owner's row->id where row->version, that the client has read, is what is there; gives the new version.
 * *is_stale: it is not, and nothing has changed; row->version is what is there.  Documents that nobody has open are
 * removed where its bytes find no room. */
enum status conversations_put(struct store *store, struct conversation_row *row, bool *is_stale, struct error *error)
    STATUS_CHECKED;
/* *found false: there is none. */
enum status conversations_remove(const char *directory, const char *owner, const char *id, bool *found,
                                 struct error *error) STATUS_CHECKED;
