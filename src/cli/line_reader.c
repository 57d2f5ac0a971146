#include "cli/line_reader.h"

#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#include "cli/interrupt.h"

enum { HISTORY_LINES = 1000 };

struct line_reader {
    EditLine *editor; /* NULL: standard input is no terminal */
    History *history;
    char *line; /* owned */
    size_t capacity;
};

static char *prompt(EditLine *editor) {
    (void)editor;
    static char text[] = "> ";
    return text;
}

/* libedit's own reader goes on reading after Ctrl-C; this one gives the line up.  poll, because a read
 * is restarted after the signal and poll never is. */
static int read_character(EditLine *editor, wchar_t *character) {
    (void)editor;
    mbstate_t shift = {0};
    for (;;) {
        struct pollfd input = {STDIN_FILENO, POLLIN, 0};
        char byte;
        if (interrupt_requested()) return -1;
        /* Not without a limit: a Ctrl-C between the check above and this sleep must be seen too. */
        int ready = poll(&input, 1, 100);
        if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
        if (ready < 0) return -1;
        ssize_t count = read(STDIN_FILENO, &byte, 1);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return (int)count;
        size_t length = mbrtowc(character, &byte, 1, &shift);
        if (length == (size_t)-2) continue; /* the beginning of a character */
        if (length == (size_t)-1) *character = L'?';
        return 1;
    }
}

enum status line_reader_create(struct line_reader **reader, struct error *error) {
    struct line_reader *made = calloc(1, sizeof *made);
    *reader = made;
    if (made == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    if (!isatty(STDIN_FILENO)) return STATUS_OK;
    setlocale(LC_CTYPE, "");
    if (MB_CUR_MAX == 1) setlocale(LC_CTYPE, "C.UTF-8"); /* editing whole characters needs the locale */
    /* The prompt goes to standard error: standard output is for answers only. */
    made->editor = el_init("loam", stdin, stderr, stderr);
    made->history = history_init();
    HistEvent event;
    if (made->editor == NULL || made->history == NULL || history(made->history, &event, H_SETSIZE, HISTORY_LINES) < 0)
        return error_set(error, STATUS_FAILED, "chat: the terminal cannot be used for editing");
    el_set(made->editor, EL_PROMPT, prompt);
    el_set(made->editor, EL_EDITOR, "emacs");
    el_set(made->editor, EL_HIST, history, made->history);
    el_set(made->editor, EL_GETCFN, read_character);
    el_set(made->editor, EL_SIGNAL, 1); /* restores the terminal before our own handler runs */
    return STATUS_OK;
}

void line_reader_destroy(struct line_reader *reader) {
    if (reader == NULL) return;
    if (reader->editor != NULL) el_end(reader->editor);
    if (reader->history != NULL) history_end(reader->history);
    free(reader->line);
    free(reader);
}

bool line_reader_is_terminal(const struct line_reader *reader) { return reader->editor != NULL; }

static enum line_result read_edited(struct line_reader *reader, const char **line) {
    int count = 0;
    const char *text = el_gets(reader->editor, &count);
    if (interrupt_requested()) return LINE_INTERRUPTED;
    if (text == NULL || count <= 0) return LINE_END;
    size_t length = strcspn(text, "\n");
    if (length + 1 > reader->capacity) {
        char *bigger = realloc(reader->line, length + 1);
        if (bigger == NULL) return LINE_END;
        reader->line = bigger;
        reader->capacity = length + 1;
    }
    memcpy(reader->line, text, length);
    reader->line[length] = '\0';
    HistEvent event;
    if (length > 0) history(reader->history, &event, H_ENTER, reader->line);
    *line = reader->line;
    return LINE_READ;
}

enum line_result line_reader_read(struct line_reader *reader, const char **line) {
    if (reader->editor != NULL) return read_edited(reader, line);
    ssize_t length = getline(&reader->line, &reader->capacity, stdin);
    if (length < 0) return interrupt_requested() ? LINE_INTERRUPTED : LINE_END;
    if (length > 0 && reader->line[length - 1] == '\n') reader->line[length - 1] = '\0';
    *line = reader->line;
    return LINE_READ;
}
