#include "cli/command.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/output_check.h"

int exit_code(enum status status) {
    switch (status) {
    case STATUS_OK: return 0;
    case STATUS_FAILED: return 1;
    case STATUS_USAGE: return 2;
    case STATUS_MODEL: return 3;
    case STATUS_DOCUMENT: return 4;
    case STATUS_MEMORY: return 5;
    case STATUS_IO: return 6;
    case STATUS_INTERRUPTED: return 130;
    case STATUS_FULL: return 5;
    case STATUS_UNSUPPORTED: return 1;
    }
    return 1;
}

/* Opens something for each closed standard descriptor: else the model file could get its number.  It fails as the
 * closed one would: standard output cannot be written. */
static void fill_standard_descriptors(void) {
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) (void)!open("/dev/null", fd == 1 ? O_RDONLY : O_WRONLY);
}

/* The command that word names, and that this program has. */
static enum status choose(const struct program *program, const char *word, const struct command **command,
                          struct error *error) {
    *command = command_find(program, word);
    if (*command != NULL && (*command)->run != NULL) return STATUS_OK;
    if (*command != NULL)
        return error_set(error, STATUS_USAGE, "%s %s: in loam-lab, which is built beside %s", program->name, word,
                         program->name);
    const struct command *near = command_nearest(program, word);
    if (near != NULL)
        return error_set(error, STATUS_USAGE, "unknown command '%.60s'; did you mean '%s'?", word, near->name);
    return error_set(error, STATUS_USAGE, "unknown command '%.60s'; '%s help' lists them", word, program->name);
}

static enum status dispatch(const struct program *program, int argc, char **argv, struct error *error) {
    if (argc < 2)
        return error_set(error, STATUS_USAGE, "which command?  '%s help' lists them, for example: %s run",
                         program->name, program->name);
    const char *word = argv[1];
    if (strcmp(word, "-h") == 0 || strcmp(word, "--help") == 0) word = "help";
    if (strcmp(word, "--version") == 0) word = "version";
    const struct command *command;
    TRY(choose(program, word, &command, error));
    struct options options;
    enum status status = options_parse(&options, program, command->id, argc - 1, argv + 1, error);
    if (status == STATUS_OK && option_flag(&options, OPTION_HELP)) {
        status = help_print_command(program, command, error);
    } else if (status == STATUS_OK) {
        status = output_check(&options, error);
        if (status == STATUS_OK) status = command->run(&options, error);
    }
    options_deinit(&options);
    return status;
}

int command_main(const struct program *program, int argc, char **argv) {
    fill_standard_descriptors();
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is a failed write, reported like any other */
    signal(SIGXFSZ, SIG_IGN); /* so is a file beyond ulimit -f */
    interrupt_install_cleanup();
    struct error error = {0};
    enum status status = dispatch(program, argc, argv, &error);
    struct error output_error;
    enum status written = output_flush(&output_error); /* the answer so far, also before a failure */
    if (status == STATUS_OK && written != STATUS_OK) {
        status = written;
        error = output_error;
    }
    if (status != STATUS_OK && error.message[0] != '\0') fprintf(stderr, "%s: %s\n", program->name, error.message);
    return exit_code(status);
}
