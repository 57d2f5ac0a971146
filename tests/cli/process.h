/* process: the real binary run as a user runs it: arguments in, standard output, standard error and exit
 * code out. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct process_result {
    int code;     /* exit code, or 128 + signal */
    char *output; /* owned, zero-terminated */
    size_t output_bytes;
    char *complaints; /* standard error; owned, zero-terminated */
    double seconds;
};

struct process_request {
    const char *const *arguments; /* after the binary's name, NULL-terminated */
    const char *input;            /* standard input; NULL: /dev/null */
    const char *output_path;      /* standard output goes there instead of into the result */
    int close_output;             /* standard output is closed */
    int break_output;             /* standard output is a pipe that nobody reads */
    const char *environment;      /* one NAME=VALUE more; NULL: none */
    int interrupt_signal;         /* 0: SIGINT */
    const char *interrupt_after; /* it is sent when this text has come on standard output or error; "": any */
    unsigned interrupt_after_ms; /* ... and not before this time has passed */
    int interrupt_count;         /* that many SIGINTs, 100 ms apart */
    unsigned user;               /* it runs as this user and group, where the test is root; 0: as the test */
    int hold_input;              /* standard input stays open after `input` */
};

/* What is run: loam, or what a test sets, LOAM_LAB_BINARY. */
extern const char *process_binary;

/* Fails the test when it does not end in time. */
struct process_result process_run(const struct process_request *request);
void process_deinit(struct process_result *result);

/* process_run with just arguments: LOAM("inspect", "x.gguf"). */
#define LOAM(...) \
    process_run(&(struct process_request){.arguments = (const char *const[]){__VA_ARGS__, NULL}})

/* The same of loam-lab. */
#define LAB(...) process_run_lab((const char *const[]){__VA_ARGS__, NULL})
struct process_result process_run_lab(const char *const *arguments);

/* The documents of a folder, as `loam ls --json` prints them; newly allocated. */
char *process_listing(const char *folder);

/* A path inside a directory of this test run, removed at exit. */
const char *scratch_path(const char *name);
