/* listener: the socket that clients connect to: an address with a port, or a file (--host PATH.sock).
 *
 * The file is made by us and removed by us, as long as it is still ours.  One that is there before is replaced if it is
 * a socket at which nobody listens, as a server that was killed leaves it; anything else is an error and stays.
 */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"

struct listener {
    int socket;       /* -1: closed */
    uint16_t port;    /* 0: a file's */
    const char *path; /* borrowed; NULL: no file, or it is not ours */
    dev_t device;     /* of the file */
    ino_t inode;
};

/* host: a name or an address, borrowed; or, ending in .sock, a file.  port 0: any that is free. */
enum status listener_open(struct listener *listener, const char *host, uint16_t port, struct error *error)
    STATUS_CHECKED;
void listener_close(struct listener *listener); /* safe after a failed open, and twice */
