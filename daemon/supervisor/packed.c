/* What a worker packed of its model's file, for the next process.
 *
 * It is a sealed memory file whose content only workers know and check
 * (gen/weights.h); here it is a descriptor that goes to whoever is started for
 * the same model. It is let go when the file is another one, and when no
 * process of the model is left or wanted: it holds as much memory as the model.
 */
#include "base/err.h"
#include "base/log.h"
#include "daemon/supervisor/supervisor_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>

static void let_go(struct packed **at)
{
    struct packed *p = *at;

    *at = p->next;
    fd_close(p->fd);
    free(p->model);
    free(p->file);
    free(p);
}

static struct packed **find(struct supervisor *s, const char *model)
{
    struct packed **at = &s->packed;

    while (*at && strcmp((*at)->model, model) != 0)
        at = &(*at)->next;
    return at;
}

static int64_t sealed_kb(int fd)
{
    enum { NEEDED = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE };
    int seals = fcntl(fd, F_GET_SEALS);
    struct stat st;

    if (seals < 0 || (seals & NEEDED) != NEEDED || fstat(fd, &st) < 0)
        return -1;
    return st.st_size / 1024;
}

int packed_adopt(struct supervisor *s, const char *model, const char *file, int fd, struct err *err)
{
    CLEANUP(fd_close) int own = fd;
    struct packed **at = find(s, model), *p;
    int64_t kb = sealed_kb(fd);

    if (kb < 0)
        return err_set(err, -EPROTO, "packed weights must come in a sealed memory file");
    p = calloc(1, sizeof *p);
    if (!p)
        return err_set(err, -ENOMEM, "no memory");
    *p = (struct packed){ .model = strdup(model), .file = strdup(file), .fd = STEAL_FD(own), .kb = kb };
    if (*at)
        let_go(at);
    p->next = s->packed;
    s->packed = p;
    if (p->model && p->file)
        return 0;
    let_go(&s->packed);
    return err_set(err, -ENOMEM, "no memory");
}

/* The file of its model as it is now; "": it is not in the configuration. */
static void put_file(const struct unit *u, struct buf *out)
{
    const struct config_group *g = models_group(u);

    if (g)
        fleet_put_file(g->values[MODEL_path].s, out);
}

int packed_keep(struct unit *u, int fd, struct err *err)
{
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0), r = copy < 0 ? -errno : 0;
    BUF_LOCAL file = BUF_INIT;

    put_file(u, &file);
    if (r == 0)
        r = packed_adopt(u->sup, u->model, buf_str(&file), copy, err);
    if (r == -EPROTO)
        return r;
    if (r) {
        log_warning("the packed weights of %s can not be kept: %s", u->name, strerror(-r));
        return 0;
    }
    log_info("%s has packed %" PRIi64 " MB of weights for all processes of its model", u->name, u->sup->packed->kb / 1024);
    supervisor_news(u->sup);
    return 0;
}

const struct packed *packed_find(const struct unit *u)
{
    struct packed **at = find(u->sup, u->model);
    BUF_LOCAL file = BUF_INIT;

    if (!*at)
        return NULL;
    put_file(u, &file);
    if (strcmp(buf_str(&file), (*at)->file) == 0)
        return *at;
    log_info("the packed weights of %s are let go: its file is another one", u->model);
    let_go(at);
    return NULL;
}

int64_t packed_kb(const struct unit *u)
{
    const struct packed *p = *find(u->sup, u->model);

    return p ? p->kb : 0;
}

bool packed_are_due(const struct unit *u)
{
    const struct config_group *g = u->role == UNIT_WORKER ? models_group(u) : NULL;
    const struct supervisor *s = u->sup;

    if (!g || strcmp(g->values[DEFAULTS_share_weights].s, "never") == 0 || strcmp(g->values[DEFAULTS_device].s, "cpu") != 0 ||
        *find(u->sup, u->model))
        return false;
    for (size_t i = 0; i < s->n_units; i++) {
        const struct unit *other = s->units[i];

        if (other != u && other->role == UNIT_WORKER && other->state == UNIT_LOADING && unit_is_up(other) &&
            strcmp(other->model, u->model) == 0)
            return true;
    }
    return false;
}

static bool is_needed(const struct supervisor *s, const char *model)
{
    for (size_t i = 0; i < s->n_units; i++) {
        const struct unit *u = s->units[i];

        if (u->role == UNIT_WORKER && (u->pid || u->wanted || u->state == UNIT_WAITING) && strcmp(u->model, model) == 0)
            return true;
    }
    return false;
}

void packed_turn(struct supervisor *s)
{
    for (struct packed **at = &s->packed; *at;) {
        if (is_needed(s, (*at)->model)) {
            at = &(*at)->next;
            continue;
        }
        log_info("the packed weights of %s are let go: no process of it is left", (*at)->model);
        let_go(at);
    }
}

void packed_free(struct supervisor *s)
{
    while (s->packed)
        let_go(&s->packed);
}
