#include "server/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "server/guard.h"

enum {
    BACKLOG = 512,
    FILE_MODE = 0660 /* others never connect, the group where the umask lets it */
};

/* ---- an address ---- */

static enum status open_address(struct listener *listener, const char *host, uint16_t port,
                                const struct addrinfo *address, struct error *error) {
    const int on = 1;
    listener->socket = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (listener->socket < 0) return error_set_os(error, STATUS_IO, errno, "--host %s", host);
    (void)setsockopt(listener->socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener->socket, address->ai_addr, address->ai_addrlen) != 0 || listen(listener->socket, BACKLOG) != 0)
        return error_set_os(error, STATUS_IO, errno, "cannot listen on %s port %u", host, port);
    struct sockaddr_storage bound;
    socklen_t length = sizeof bound;
    if (getsockname(listener->socket, (struct sockaddr *)&bound, &length) != 0)
        return error_set_os(error, STATUS_IO, errno, "--host %s", host);
    listener->port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                                       : ((struct sockaddr_in *)&bound)->sin_port);
    return STATUS_OK;
}

static enum status open_name(struct listener *listener, const char *host, uint16_t port, struct error *error) {
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *found = NULL;
    char text[8];
    snprintf(text, sizeof text, "%u", port);
    const int failed = getaddrinfo(host, text, &hints, &found);
    if (failed != 0) return error_set(error, STATUS_USAGE, "--host %s: %s", host, gai_strerror(failed));
    const struct addrinfo *chosen = found;
    for (const struct addrinfo *a = found; a != NULL; a = a->ai_next)
        if (a->ai_family == AF_INET && chosen->ai_family != AF_INET) chosen = a; /* localhost: both */
    enum status status = open_address(listener, host, port, chosen, error);
    freeaddrinfo(found);
    return status;
}

/* ---- a file ---- */

/* Nobody listens at it: a server that was killed left it.  A file that is no socket is never touched. */
static enum status remove_dead_file(const struct sockaddr_un *address, struct error *error) {
    const char *path = address->sun_path;
    struct stat found;
    if (lstat(path, &found) != 0) return error_set_os(error, STATUS_IO, errno, "--host %s", path);
    if (!S_ISSOCK(found.st_mode))
        return error_set(error, STATUS_USAGE, "--host %s: found a file that is no socket, expected none or a socket",
                         path);
    const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (probe < 0) return error_set_os(error, STATUS_IO, errno, "--host %s", path);
    const bool is_dead =
        connect(probe, (const struct sockaddr *)address, sizeof *address) != 0 && errno == ECONNREFUSED;
    close(probe);
    if (!is_dead) return error_set(error, STATUS_IO, "cannot listen on %s: another server does", path);
    if (unlink(path) != 0) return error_set_os(error, STATUS_IO, errno, "--host %s", path);
    return STATUS_OK;
}

/* The folder is locked: between two servers that start, what one finds dead is not what the other just made. */
static enum status bind_file(struct listener *listener, const char *path, const struct sockaddr_un *address,
                             struct error *error) {
    /* bind makes the file with the socket's mode, less the umask. */
    if (fchmod(listener->socket, FILE_MODE) != 0) return error_set_os(error, STATUS_IO, errno, "--host %s", path);
    const struct sockaddr *any = (const struct sockaddr *)address;
    bool is_bound = bind(listener->socket, any, sizeof *address) == 0;
    if (!is_bound && errno == EADDRINUSE) {
        TRY(remove_dead_file(address, error));
        is_bound = bind(listener->socket, any, sizeof *address) == 0;
    }
    struct stat made;
    if (!is_bound || lstat(path, &made) != 0) return error_set_os(error, STATUS_IO, errno, "cannot listen on %s", path);
    listener->path = path;
    listener->device = made.st_dev;
    listener->inode = made.st_ino;
    if (listen(listener->socket, BACKLOG) == 0) return STATUS_OK;
    return error_set_os(error, STATUS_IO, errno, "cannot listen on %s", path);
}

static enum status open_file(struct listener *listener, const char *path, struct error *error) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const size_t length = strlen(path);
    if (length >= sizeof address.sun_path)
        return error_set(error, STATUS_USAGE, "--host %s: found %zu bytes, a socket's path has at most %zu", path,
                         length, sizeof address.sun_path - 1);
    memcpy(address.sun_path, path, length);
    listener->socket = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (listener->socket < 0) return error_set_os(error, STATUS_IO, errno, "--host %s", path);
    const char *slash = strrchr(path, '/');
    char folder[sizeof address.sun_path] = ".";
    if (slash != NULL) snprintf(folder, sizeof folder, "%.*s", (int)(slash - path) + 1, path);
    const int lock = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock < 0 || flock(lock, LOCK_EX) != 0) {
        error_set_os(error, STATUS_IO, errno, "--host %s: its folder", path);
        if (lock >= 0) close(lock);
        return STATUS_IO;
    }
    enum status status = bind_file(listener, path, &address, error);
    close(lock);
    return status;
}

enum status listener_open(struct listener *listener, const char *host, uint16_t port, struct error *error) {
    *listener = (struct listener){.socket = -1};
    return guard_is_file(host) ? open_file(listener, host, error) : open_name(listener, host, port, error);
}

void listener_close(struct listener *listener) {
    struct stat now;
    if (listener->path != NULL && lstat(listener->path, &now) == 0 && now.st_dev == listener->device &&
        now.st_ino == listener->inode)
        (void)unlink(listener->path);
    listener->path = NULL;
    if (listener->socket >= 0) close(listener->socket);
    listener->socket = -1;
}
