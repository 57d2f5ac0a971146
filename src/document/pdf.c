#include "document/pdf.h"

#include <string.h>

#include "platform/filter.h"

enum { SECONDS_MAX = 60 };
static const uint64_t memory_bytes_max = UINT64_C(2) << 30;

static enum status judge(int code, const struct text *text, struct error *error) {
    if (code == 3) return error_set(error, STATUS_USAGE, "is a PDF that may not be copied from");
    if (code >= 128)
        return error_set(error, STATUS_USAGE,
                         "is a PDF, and pdftotext took more time or memory than it may (signal %d)", code - 128);
    if (code != 0)
        return error_set(error, STATUS_USAGE, "is a PDF that pdftotext cannot read: damaged, or locked by a password");
    for (size_t i = 0; i < text->length; i++)
        if (strchr(" \t\r\n\f", text->bytes[i]) == NULL) return STATUS_OK;
    return error_set(error, STATUS_USAGE, "is a PDF without text, perhaps scanned: recognize it first (ocrmypdf)");
}

enum status pdf_read(const char *bytes, size_t length, size_t text_bytes_max, struct text *text, struct error *error) {
    static const char *const arguments[] = {"pdftotext", "-q", "-enc", "UTF-8", "-eol", "unix", "-", "-", NULL};
    const struct filter filter = {.arguments = arguments,
                                  .input = bytes,
                                  .input_bytes = length,
                                  .seconds = SECONDS_MAX,
                                  .memory_bytes = memory_bytes_max,
                                  .output_bytes = text_bytes_max};
    int code = 0;
    const enum status status = filter_run(&filter, text, &code, error);
    if (status == STATUS_OK) return judge(code, text, error);
    if (status == STATUS_UNSUPPORTED)
        return error_set(error, STATUS_USAGE, "is a PDF; install poppler-utils (pdftotext), or give its text");
    if (status == STATUS_FULL) {
        const struct error why = *error;
        return error_set(error, STATUS_USAGE, "is a PDF, and %s", why.message);
    }
    return status;
}
