#include "pull/source.h"

#include <ctype.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/text.h"
#include "pull/http.h"
#include "pull/known_model.h"
#include "pull/model_folder.h"

enum { LISTING_BYTES_MAX = 16 << 20, NAMES_BYTES = 240 };

static const char registry[] = "https://huggingface.co";

static enum status no_memory(struct error *error) { return error_set(error, STATUS_MEMORY, "out of memory"); }

static const char *endpoint(void) {
    const char *own = getenv("HF_ENDPOINT");
    return own != NULL && own[0] != '\0' ? own : registry;
}

static bool is_address(const char *text) {
    return strncasecmp(text, "https://", 8) == 0 || strncasecmp(text, "http://", 7) == 0;
}

static bool is_gguf(const char *name) {
    const size_t length = strlen(name);
    return length > 5 && strcasecmp(name + length - 5, ".gguf") == 0;
}

/* Letters of a repository's and a file's names; no folder leads upwards or is hidden. */
static bool is_path(const char *text, size_t slashes_max) {
    size_t slashes = 0;
    if (text[0] == '\0' || text[0] == '.' || text[0] == '/') return false;
    for (const char *c = text; *c != '\0'; c++) {
        const bool ends = *c == '/' && (c[1] == '/' || c[1] == '.' || c[1] == '\0');
        slashes += *c == '/';
        if (ends || (!isalnum((unsigned char)*c) && strchr("/._-+=,@()~ ", *c) == NULL)) return false;
    }
    return slashes <= slashes_max;
}

static enum status parse_repository(struct source *source, const char *text, struct error *error) {
    const char *colon = strchr(text, ':');
    source->repository = strndup(text, colon != NULL ? (size_t)(colon - text) : strlen(text));
    source->file = colon != NULL && colon[1] != '\0' ? strdup(colon + 1) : NULL;
    if (source->repository == NULL || (colon != NULL && colon[1] != '\0' && source->file == NULL))
        return no_memory(error);
    const bool fine = is_path(source->repository, 1) && strchr(source->repository, '/') != NULL &&
                      (source->file == NULL || is_path(source->file, 8));
    return fine ? STATUS_OK : error_set(error, STATUS_USAGE, "found 'hf:%.100s', expected hf:ORG/REPO:FILE", text);
}

/* The last part of an address, without what follows ? or #. */
static enum status name_address(struct source *source, struct error *error) {
    const size_t length = strcspn(source->address, "?#");
    const char *begin = source->address + length;
    while (begin > source->address && begin[-1] != '/') begin--;
    source->name = strndup(begin, (size_t)(source->address + length - begin));
    if (source->name == NULL) return no_memory(error);
    if (is_gguf(source->name) && is_path(source->name, 0)) return STATUS_OK;
    return error_set(error, STATUS_USAGE, "%.200s: its last part is no file name that ends with .gguf",
                     source->address);
}

/* The page of a file at the registry stands for the file. */
static enum status parse_address(struct source *source, const char *text, struct error *error) {
    const size_t length = strlen(endpoint());
    const bool is_registry = strncmp(text, endpoint(), length) == 0 && text[length] == '/';
    const char *page = is_registry ? strstr(text, "/blob/") : NULL;
    const int made = page != NULL ? asprintf(&source->address, "%.*s/resolve/%s", (int)(page - text), text, page + 6)
                                  : asprintf(&source->address, "%s", text);
    if (made < 0) {
        source->address = NULL;
        return no_memory(error);
    }
    if (!is_registry) source->token = NULL;
    return name_address(source, error);
}

enum status source_parse(struct source *source, const char *text, struct error *error) {
    *source = (struct source){.token = getenv("HF_TOKEN")};
    if (source->token != NULL && source->token[0] == '\0') source->token = NULL;
    if (is_address(text)) return parse_address(source, text, error);
    if (strncmp(text, "hf:", 3) == 0) return parse_repository(source, text + 3, error);
    const struct known_model *known = known_model_find(text);
    if (known != NULL) {
        source->repository = strdup(known->repository);
        source->file = strdup(known->file);
        return source->repository != NULL && source->file != NULL ? STATUS_OK : no_memory(error);
    }
    char names[NAMES_BYTES] = "";
    for (size_t i = 0, used = 0; i < known_model_count && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? ", " : "", known_models[i].name);
    return error_set(error, STATUS_USAGE,
                     "no model is called '%.60s': expected one of %s, or hf:ORG/REPO:FILE, or an address", text, names);
}

/* ---- the registry's listing ---- */

struct listing {
    struct text text;
    bool (*stops)(void *context);
    void *context;
};

static enum status listing_begins(void *context, const struct http_response *response, struct error *error) {
    (void)context, (void)response, (void)error;
    return STATUS_OK;
}

static enum status listing_body(void *context, const void *bytes, size_t count, struct error *error) {
    struct listing *listing = context;
    if (count > LISTING_BYTES_MAX - listing->text.length)
        return error_set(error, STATUS_IO, "the registry's answer is longer than %d bytes", LISTING_BYTES_MAX);
    return text_append(&listing->text, bytes, count) ? STATUS_OK : no_memory(error);
}

static bool listing_stops(void *context) {
    const struct listing *listing = context;
    return listing->stops != NULL && listing->stops(listing->context);
}

static enum status fetch_listing(const struct source *source, struct listing *listing, json_t **root,
                                 struct error *error) {
    char *url;
    if (asprintf(&url, "%s/api/models/%s", endpoint(), source->repository) < 0) return no_memory(error);
    const struct http_listener listener = {
        .context = listing, .begins = listing_begins, .body = listing_body, .stops = listing_stops};
    struct http_response response;
    enum status status =
        http_get(&(struct http_request){.url = url, .token = source->token}, &listener, &response, error);
    if (status == STATUS_OK && response.status != 200)
        status = source_refused(source, response.status, source->repository, error);
    if (status == STATUS_OK) {
        *root = json_loadb(listing->text.bytes != NULL ? listing->text.bytes : "", listing->text.length, 0, NULL);
        if (!json_is_object(*root)) status = error_set(error, STATUS_IO, "%.200s: found no JSON object", url);
    }
    free(url);
    return status;
}

static enum status take_license(struct source *source, const json_t *root, struct error *error) {
    const json_t *license = json_object_get(json_object_get(root, "cardData"), "license");
    if (json_is_array(license)) license = json_array_get(license, 0);
    if (!json_is_string(license)) return STATUS_OK;
    source->license = strdup(json_string_value(license));
    return source->license != NULL ? STATUS_OK : no_memory(error);
}

static bool contains(const char *text, const char *part) { return strcasestr(text, part) != NULL; }

/* The file that is meant: the one of that name, else the only one whose name contains it.  A split model is its first
 * file. */
static enum status choose_file(struct source *source, const json_t *root, struct error *error) {
    const json_t *files = json_object_get(root, "siblings"), *file;
    char names[NAMES_BYTES] = "";
    size_t used = 0, count = 0, index, stem;
    uint32_t shard, shards;
    const char *found = NULL;
    json_array_foreach(files, index, file) {
        const char *path = json_string_value(json_object_get(file, "rfilename"));
        if (path == NULL || !is_gguf(path) || !is_path(path, 8)) continue;
        if (source->file != NULL && strcmp(path, source->file) == 0) return STATUS_OK;
        if (source->file != NULL && !contains(path, source->file)) continue;
        if (shard_parse(path, &stem, &shard, &shards) && shard != 1) continue;
        count++;
        found = path;
        if (used < sizeof names)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", count > 1 ? ", " : "", path);
    }
    if (count == 0)
        return error_set(error, STATUS_USAGE, "hf:%.100s has no GGUF file%s%.80s", source->repository,
                         source->file != NULL ? " that is called " : "", source->file != NULL ? source->file : "");
    if (count > 1)
        return error_set(error, STATUS_USAGE, "hf:%.60s has several: add :FILE, of %s%s", source->repository, names,
                         used >= sizeof names ? "..." : "");
    free(source->file);
    source->file = strdup(found);
    return source->file != NULL ? STATUS_OK : no_memory(error);
}

/* A blank is the one letter of is_path that an address cannot have. */
static enum status make_address(struct source *source, struct error *error) {
    const char *begin = strrchr(source->file, '/');
    source->name = strdup(begin != NULL ? begin + 1 : source->file);
    char *path = malloc(3 * strlen(source->file) + 1), *end = path;
    if (path == NULL || source->name == NULL) {
        free(path);
        return no_memory(error);
    }
    for (const char *c = source->file; *c != '\0'; c++) end = *c == ' ' ? stpcpy(end, "%20") : (*end = *c, end + 1);
    *end = '\0';
    const int made = asprintf(&source->address, "%s/%s/resolve/main/%s", endpoint(), source->repository, path);
    free(path);
    if (made >= 0) return STATUS_OK;
    source->address = NULL;
    return no_memory(error);
}

enum status source_resolve(struct source *source, bool (*stops)(void *context), void *context, struct error *error) {
    if (source->repository == NULL) return STATUS_OK;
    struct listing listing = {.stops = stops, .context = context};
    json_t *root = NULL;
    enum status status = fetch_listing(source, &listing, &root, error);
    if (status == STATUS_OK) status = take_license(source, root, error);
    if (status == STATUS_OK) status = choose_file(source, root, error);
    json_decref(root);
    text_deinit(&listing.text);
    return status == STATUS_OK ? make_address(source, error) : status;
}

enum status source_shard(const struct source *source, uint32_t index, char **address, char **name,
                         struct error *error) {
    size_t stem;
    uint32_t first, count;
    *address = strdup(source->address);
    *name = strdup(source->name);
    if (*address == NULL || *name == NULL) return no_memory(error);
    if (!shard_parse(source->name, &stem, &first, &count)) return STATUS_OK;
    char number[16];
    snprintf(number, sizeof number, "%05u", index);
    memcpy(*name + stem + 1, number, 5);
    char *end = *address + strcspn(*address, "?#") - strlen(source->name);
    memcpy(end + stem + 1, number, 5);
    return STATUS_OK;
}

enum status source_refused(const struct source *source, unsigned http_status, const char *what, struct error *error) {
    switch (http_status) {
    case 401:
    case 403:
        if (source->repository == NULL)
            return error_set(error, STATUS_FAILED, "%.200s: %u, the server wants a permission", what, http_status);
        return error_set(error, STATUS_FAILED,
                         source->token == NULL
                             ? "%.100s: %u: there is no such model, or it needs a permission: agree to its terms at "
                               "%s/%s and set HF_TOKEN"
                             : "%.100s: %u: HF_TOKEN does not open it; its terms are at %s/%s",
                         what, http_status, endpoint(), source->repository);
    case 404: return error_set(error, STATUS_USAGE, "%.200s: 404, there is no such file", what);
    case 429: return error_set(error, STATUS_FAILED, "%.200s: 429, the server asks to wait: try again later", what);
    default: return error_set(error, STATUS_FAILED, "%.200s: the server answered %u", what, http_status);
    }
}

void source_deinit(struct source *source) {
    free(source->repository);
    free(source->file);
    free(source->address);
    free(source->name);
    free(source->license);
    *source = (struct source){0};
}
