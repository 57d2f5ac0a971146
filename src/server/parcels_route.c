/* /v1/loam/documents/ID/export and /v1/loam/documents/import: a saved document as a file (cache/store/parcel.h).
 *
 * Both have a thread and a store of their own (transfers.h), so that the service goes on.  An export leaves out whose
 * it is, and an import makes it the one's who asks.  An export reads the document twice: what is damaged is told before
 * its first byte is sent.  An import is read once, as it comes.  It is stored where there is room, and nothing is
 * removed for it, as it may turn out to be damaged. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache/inputs.h"
#include "engine/document_terms.h"
#include "server/document_id.h"
#include "server/json_text.h"
#include "server/routes.h"

enum { BLOCK_BYTES = 64 << 10, EXPORT_TRIES = 3 };

struct carriage {
    const char *directory; /* the server's */
    struct document_terms terms;
    uint64_t id; /* of an export */
};

/* NULL: replied. */
static struct carriage *prepare(struct server *server, struct exchange *exchange, bool stores) {
    struct error reason = {0};
    char owner[SERVICE_OWNER_MAX];
    struct carriage *carriage = calloc(1, sizeof *carriage);
    enum status status = carriage == NULL ? error_set(&reason, STATUS_MEMORY, "no memory") : STATUS_OK;
    if (status == STATUS_OK)
        status = service_document_terms(server->model.service, server_owner(server, exchange_key(exchange), owner),
                                        stores, &carriage->terms, &reason);
    if (status == STATUS_OK) {
        carriage->directory = server->model.documents;
        return carriage;
    }
    free(carriage);
    server_reply_disk_failure(exchange, &reason);
    return NULL;
}

/* ---- export ---- */

struct own {
    const struct document_terms *terms;
    bool is_own, is_empty;
};

static void see(void *context, const struct document_info *info) {
    struct own *own = context;
    own->is_own = memcmp(info->fingerprint, own->terms->fingerprint, sizeof own->terms->fingerprint) == 0;
    own->is_empty = info->token_count == 0 && info->damaged == NULL;
}

/* Whether it can be exported; false: replied. */
static bool check_own(const struct carriage *carriage, struct store *store, struct exchange *exchange) {
    struct own own = {.terms = &carriage->terms};
    struct error reason;
    const enum status status = store_show(store, carriage->id, see, &own, &reason);
    if (status != STATUS_OK && status != STATUS_DOCUMENT) {
        server_reply_disk_failure(exchange, &reason);
    } else if (status == STATUS_DOCUMENT || !own.is_own) {
        document_id_reply_none(exchange);
    } else if (own.is_empty) {
        exchange_refuse(exchange, 409, "nothing of the document is saved yet");
    } else {
        return true;
    }
    return false;
}

/* All of it, to the client or to nobody. */
static enum status read_all(struct parcel *parcel, struct exchange *exchange, bool sends, struct error *error) {
    char *memory = malloc(BLOCK_BYTES);
    size_t read = 1;
    enum status status = memory == NULL ? error_set(error, STATUS_MEMORY, "export: out of memory") : STATUS_OK;
    while (status == STATUS_OK && read > 0) {
        status = parcel_read(parcel, memory, BLOCK_BYTES, &read, error);
        const bool is_there =
            sends && status == STATUS_OK ? exchange_write_file(exchange, memory, read) : !exchange_has_left(exchange);
        if (status == STATUS_OK && !is_there)
            status = error_set(error, STATUS_INTERRUPTED, "export: the client is gone");
    }
    free(memory);
    return status;
}

/* A parcel that was found right, opened again, and the checksum of its bytes in hexadecimal digits.  A document that is
 * written meanwhile is read anew. */
static enum status open_checked(const struct carriage *carriage, struct store *store, struct exchange *exchange,
                                struct parcel **parcel, char sum[2 * PARCEL_SUM_BYTES + 1], struct error *error) {
    uint64_t ids[PARCEL_DOCUMENTS_MAX];
    size_t count;
    enum status status = STATUS_OK;
    for (int i = 0; i < EXPORT_TRIES; i++) {
        TRY(kept_inputs_pack(store, carriage->id, ids, &count, error));
        TRY(parcel_open(parcel, store, ids, count, carriage->terms.model_fingerprint, error));
        const uint64_t bytes = parcel_bytes(*parcel);
        status = read_all(*parcel, exchange, false, error);
        for (size_t b = 0; b < PARCEL_SUM_BYTES; b++) sprintf(sum + 2 * b, "%02x", parcel_sum(*parcel)[b]);
        parcel_close(*parcel);
        *parcel = NULL;
        if (status == STATUS_DOCUMENT) continue; /* the next opening tells of damage */
        TRY(status);
        TRY(parcel_open(parcel, store, ids, count, carriage->terms.model_fingerprint, error));
        if (parcel_bytes(*parcel) == bytes) return STATUS_OK;
        parcel_close(*parcel);
        *parcel = NULL;
        status = error_set(error, STATUS_INTERRUPTED, "export: the document is being written");
    }
    return status;
}

static void send_parcel(const struct carriage *carriage, struct parcel *parcel, struct exchange *exchange,
                        const char *sum) {
    char name[EXCHANGE_NAME_MAX];
    struct error reason;
    snprintf(name, sizeof name, "document-%llu.loam", (unsigned long long)carriage->id);
    exchange_file_begin(exchange, parcel_bytes(parcel), sum, name);
    if (exchange_method(exchange) != HTTP_HEAD && read_all(parcel, exchange, true, &reason) != STATUS_OK)
        exchange_cut(exchange);
    else
        exchange_stream_end(exchange);
}

static void export_document(void *context, struct exchange *exchange) {
    struct carriage *carriage = context;
    struct store *store = NULL;
    struct parcel *parcel = NULL;
    struct error reason;
    char sum[2 * PARCEL_SUM_BYTES + 1];
    enum status status = store_open_existing(&store, carriage->directory, STORE_VERIFY, &reason);
    if (status != STATUS_OK) {
        server_reply_disk_failure(exchange, &reason);
    } else if (check_own(carriage, store, exchange)) {
        status = open_checked(carriage, store, exchange, &parcel, sum, &reason);
        if (status == STATUS_OK)
            send_parcel(carriage, parcel, exchange, sum);
        else
            server_reply_disk_failure(exchange, &reason);
    }
    parcel_close(parcel);
    store_close(store);
    free(carriage);
}

void document_export_route(struct server *server, struct exchange *exchange) {
    const uint64_t id = document_id_of_path(exchange, "/export");
    if (id == 0) {
        document_id_reply_none(exchange);
        return;
    }
    struct carriage *carriage = prepare(server, exchange, false);
    if (carriage == NULL) return;
    carriage->id = id;
    if (!transfers_begin(&server->transfers, exchange, export_document, carriage)) free(carriage);
}

/* ---- import ---- */

static enum status read_body(void *context, void *memory, size_t bytes, size_t *read, struct error *error) {
    if (exchange_read_body(context, memory, bytes, read)) return STATUS_OK;
    return error_set(error, STATUS_INTERRUPTED, "import: the client is gone");
}

/* The document; what else the file has belongs to it. */
static json_t *imported_json(const struct parcel_content *content) {
    const struct parcel_document *document = &content->documents[0];
    return JSON({"id", json_uint(document->id)}, {"object", json_string("loam.document")},
                {"name", json_text(document->name, strlen(document->name))},
                {"token_count", json_uint(document->token_count)}, {"was_there", json_boolean(document->was_there)});
}

static enum status take_body(struct carriage *carriage, struct store *store, struct exchange *exchange,
                             struct parcel_content *content, struct error *error) {
    struct parcel_source source = {.name = "the body", .context = exchange, .read = read_body};
    (void)exchange_streams_body(exchange, &source.bytes);
    TRY(store_check_room(store, source.bytes, error));
    exchange_want_body(exchange);
    return parcel_take(store, &source, document_terms_accept, &carriage->terms, content, error);
}

static void import_document(void *context, struct exchange *exchange) {
    struct carriage *carriage = context;
    struct store *store = NULL;
    struct parcel_content content;
    struct error reason;
    const struct store_options options = {
        .directory = carriage->directory, .limit_bytes = carriage->terms.limit_bytes, .keeps_documents = true};
    enum status status = store_open(&store, &options, &reason);
    if (status == STATUS_OK) status = take_body(carriage, store, exchange, &content, &reason);
    store_close(store); /* first: what failed is gone when the client hears of it */
    if (status == STATUS_OK) {
        exchange_reply_json(exchange, 200, imported_json(&content));
    } else if (status == STATUS_DOCUMENT) {
        exchange_refuse(exchange, 400, "%s", reason.message);
    } else {
        server_reply_disk_failure(exchange, &reason);
    }
    free(carriage);
}

void document_import_route(struct server *server, struct exchange *exchange) {
    uint64_t bytes;
    if (!exchange_streams_body(exchange, &bytes)) { /* of this process, without HTTP */
        exchange_refuse(exchange, 400, "a document is imported over HTTP");
        return;
    }
    struct carriage *carriage = prepare(server, exchange, true);
    if (carriage == NULL) return;
    if (!transfers_begin(&server->transfers, exchange, import_document, carriage)) free(carriage);
}
