#include "daemon/supervisor/listener.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <systemd/sd-daemon.h>
#include <time.h>

enum { BACKLOG = 1024 };

/* No colon may be in a name of the fd store. */
static void make_name(const struct address *a, char *out, size_t size)
{
    snprintf(out, size, "%s%s", a->is_unix ? "" : "tcp-", a->text);
    for (char *p = out; *p; p++)
        if (*p == ':')
            *p = '-';
}

static void store(struct listener *k)
{
    char text[256];

    make_name(&k->address, k->name, sizeof k->name);
    snprintf(text, sizeof text, "FDSTORE=1\nFDNAME=%s", k->name);
    k->stored = sd_pid_notify_with_fds(0, false, text, &k->fd, 1) > 0;
}

static void unstore(struct listener *k)
{
    if (k->stored)
        sd_notifyf(false, "FDSTOREREMOVE=1\nFDNAME=%s", k->name);
    k->stored = false;
}

static void drop(struct listeners *l, struct listener *k)
{
    struct listener **at = &l->first;

    while (*at != k)
        at = &(*at)->next;
    *at = k->next;
    fd_close(k->fd);
    free(k);
}

static int add(struct listeners *l, const struct address *address, int fd, struct listener **ret, struct err *err)
{
    struct listener *k = calloc(1, sizeof *k);

    if (!k)
        return err_set(err, -ENOMEM, "no memory");
    k->address = *address;
    k->fd = fd;
    if (address_local(fd, &k->bound, err)) {
        free(k);
        return -EINVAL;
    }
    if (address->is_unix) {
        k->bound = *address;
        socket_file_note(address->path, &k->file);
    }
    k->next = l->first;
    l->first = k;
    *ret = k;
    return 0;
}

void socket_file_note(const char *path, struct socket_file *ret)
{
    struct stat st;

    *ret = (struct socket_file){ 0 };
    if (lstat(path, &st) == 0 && S_ISSOCK(st.st_mode))
        *ret = (struct socket_file){ .dev = st.st_dev, .ino = st.st_ino };
}

bool socket_file_is(const char *path, const struct socket_file *file)
{
    struct socket_file now;

    socket_file_note(path, &now);
    return now.ino && now.ino == file->ino && now.dev == file->dev;
}

bool listener_is_lost(const struct listener *k)
{
    return k->address.is_unix && !socket_file_is(k->address.path, &k->file);
}

int listener_mend(struct listener *k, struct err *err)
{
    int fd = -1, r = address_listen(&k->address, BACKLOG, k->mode, k->group, &fd, err);

    if (r)
        return r;
    unstore(k);
    close(k->fd);
    k->fd = fd;
    socket_file_note(k->address.path, &k->file);
    store(k);
    return 0;
}

struct listener *listener_find(const struct listeners *l, const struct address *a)
{
    char name[sizeof ((struct listener *)0)->name];

    make_name(a, name, sizeof name);
    for (struct listener *k = l->first; k; k = k->next)
        if (strcmp(name, k->name) == 0 || strcmp(a->text, k->address.text) == 0 || strcmp(a->text, k->bound.text) == 0)
            return k;
    return NULL;
}

static int set_mode(struct listener *k, mode_t mode, gid_t group, struct err *err)
{
    k->mode = mode;
    k->group = group;
    if (!k->address.is_unix || listener_is_lost(k))
        return 0;
    if (chmod(k->address.path, mode) < 0 || (group != (gid_t)-1 && chown(k->address.path, (uid_t)-1, group) < 0))
        return err_errno(err, -errno, "%s", k->address.text);
    return 0;
}

/* Children of a supervisor that was killed die with it, but the kernel takes a
 * while to tear down a large one, and its sockets last until then. */
static int bind_patiently(const struct listeners *l, const struct address *address, mode_t mode, gid_t group, int *ret,
                          struct err *err)
{
    const struct timespec pause = { .tv_nsec = 20000000 };
    int r;

    while ((r = address_listen(address, BACKLOG, mode, group, ret, err)) == -EADDRINUSE &&
           clock_mono_us() < l->patient_until_us) {
        err_clear(err);
        nanosleep(&pause, NULL);
    }
    return r;
}

int listener_get(struct listeners *l, const struct address *address, mode_t mode, gid_t group,
                 struct listener **ret, struct err *err)
{
    struct listener *k = listener_find(l, address);
    CLEANUP(fd_close) int fd = -1;
    int r;

    if (k && listener_is_lost(k) && k->users == 0) {
        drop(l, k);
        k = NULL;
    }
    if (k) {
        r = set_mode(k, mode, group, err);
        if (r)
            return r;
        k->address = *address;
        *ret = listener_share(k);
        return 0;
    }
    r = bind_patiently(l, address, mode, group, &fd, err);
    if (r == 0)
        r = add(l, address, fd, &k, err);
    if (r)
        return r;
    fd = -1;
    k->mode = mode;
    k->group = group;
    store(k);
    *ret = listener_share(k);
    return 0;
}

struct listener *listener_share(struct listener *k)
{
    k->users++;
    return k;
}

void listener_put(struct listeners *l, struct listener *k)
{
    if (!k || --k->users)
        return;
    if (!l->ending)
        unstore(k);
    if (k->address.is_unix && !k->stored && !listener_is_lost(k))
        unlink(k->address.path);
    drop(l, k);
}

int listener_adopt(struct listeners *l, int fd, const char *configured, const char *name, struct err *err)
{
    CLEANUP(fd_close) int own = fd;
    struct address a;
    struct listener *k;
    int r;

    fcntl(fd, F_SETFD, FD_CLOEXEC);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    r = configured ? address_parse(configured, &a, err) : address_local(fd, &a, err);
    if (r == 0)
        r = add(l, &a, fd, &k, err);
    if (r)
        return r;
    own = -1;
    k->stored = name != NULL;
    snprintf(k->name, sizeof k->name, "%s", name ? name : "");
    return 0;
}

void listeners_inherit(struct listeners *l)
{
    char **names = NULL;
    int n = sd_listen_fds_with_names(1, &names);

    if (n < 0)
        log_warning("the descriptors that systemd passed are not used: %s", strerror(-n));
    for (int i = 0; i < n; i++) {
        int fd = SD_LISTEN_FDS_START + i;
        struct err err = { 0 };

        if (sd_is_socket(fd, AF_UNSPEC, SOCK_STREAM, 1) <= 0) {
            log_warning("descriptor %d that systemd passed (%s) is no listening socket", fd, names[i]);
            fd_close(fd);
        } else if (listener_adopt(l, fd, NULL, names[i], &err)) {
            log_warning("descriptor %d that systemd passed (%s): %s", fd, names[i], err_text(&err));
        }
        free(names[i]);
    }
    free(names);
}

void listeners_trim(struct listeners *l)
{
    for (struct listener *k = l->first, *next; k; k = next) {
        next = k->next;
        if (k->users)
            continue;
        log_notice("nobody listens on %s any more", k->bound.text);
        if (!l->ending)
            unstore(k);
        drop(l, k);
    }
}
