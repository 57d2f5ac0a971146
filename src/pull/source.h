/* source: what `loam pull` is asked for, as files at addresses.
 *
 *   NAME                     of known_model.h
 *   hf:ORG/REPO:FILE         a file of a repository of the registry, Hugging Face's or the one that HF_ENDPOINT names
 *   hf:ORG/REPO:Q4_K_M       its only GGUF file with that in its name; hf:ORG/REPO: its only one
 *   http://..., https://...
 * A file of a split model stands for all of them. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct source {
    char *repository;  /* "ORG/REPO"; NULL: an address */
    char *file;        /* its path in the repository, or what its name contains; NULL: not said */
    char *address;     /* of the first file, once it is resolved */
    char *name;        /* of the first file, without folders */
    char *license;     /* as the registry says it; NULL: not known */
    const char *token; /* borrowed; HF_TOKEN, for the registry alone; NULL: none */
};

/* STATUS_USAGE: no such form. */
enum status source_parse(struct source *source, const char *text, struct error *error) STATUS_CHECKED;
/* Asks the registry for its files and its licence.  STATUS_USAGE: none or several files are meant; the line names
 * them. */
enum status source_resolve(struct source *source, bool (*stops)(void *context), void *context, struct error *error)
    STATUS_CHECKED;
void source_deinit(struct source *source);

/* The address and name of file `index` (from 1) of a split model; owned by the caller. */
enum status source_shard(const struct source *source, uint32_t index, char **address, char **name, struct error *error)
    STATUS_CHECKED;

/* What a status other than 200 and 206 means to somebody who asked for `what`.  STATUS_FAILED, or STATUS_USAGE for what
 * is not there. */
enum status source_refused(const struct source *source, unsigned http_status, const char *what, struct error *error)
    STATUS_CHECKED;
