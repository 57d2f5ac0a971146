/* sample_files: a PDF and an EPUB of a few lines, made when they are needed. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

/* A PDF with a page for each text. */
void sample_pdf(struct text *pdf, const char *const *pages, size_t count);

struct sample_member {
    const char *name, *bytes;
};
/* A ZIP archive, every second file deflated. */
void sample_zip(struct text *zip, const struct sample_member *members, size_t count);
