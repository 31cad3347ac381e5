/* Socket files that somebody deleted, as cleaners of temporary folders do.
 *
 * A socket that no file leads to any more can not be reached, and no peer of it
 * hears of that. So once a second the supervisor looks whether the files are
 * still those that bind() made; one that is not is made anew and its new socket
 * given to those who listen there, who go on with all they have.
 */
#include "base/err.h"
#include "base/log.h"
#include "daemon/supervisor/supervisor_parts.h"

/* What came of one that was lost; said once. */
static bool is_mended(int r, bool *hopeless, const char *address, const struct err *err)
{
    if (r == 0)
        log_event(LOG_WARNING, "socket", NULL, "%s was gone and is made anew", address);
    else if (!*hopeless)
        log_event(LOG_ERR, "socket", NULL, "%s is gone and can not be made anew: %s", address, err_text(err));
    *hopeless = r != 0;
    return r == 0;
}

static void mend_listener(struct supervisor *s, struct listener *k)
{
    struct err err = { 0 };

    if (!is_mended(listener_mend(k, &err), &k->hopeless, k->address.text, &err))
        return;
    for (size_t i = 0; i < s->n_units; i++)
        for (size_t j = 0; j < s->units[i]->n_sockets; j++)
            if (s->units[i]->sockets[j].kept == k)
                s->units[i]->sockets[j].told = false;
}

static bool is_lost(const struct unit_socket *k)
{
    return k->told && !k->kept && k->address.is_unix && !socket_file_is(k->address.path, &k->file);
}

static void mend_unit(struct unit *u)
{
    bool untold = false;

    if (!u->started || u->stopping)
        return;
    for (size_t i = 0; i < u->n_sockets; i++) {
        struct unit_socket *k = &u->sockets[i];
        struct err err = { 0 };

        if (is_lost(k) && is_mended(unit_bind_socket(k, &err), &k->hopeless, k->address.text, &err))
            k->told = false;
        untold |= !k->told;
    }
    if (untold)
        unit_post(u, MAIL_SOCKETS);
}

void sockets_mend(struct supervisor *s)
{
    for (struct listener *k = s->listeners.first; k; k = k->next)
        if (k->users && listener_is_lost(k))
            mend_listener(s, k);
    for (size_t i = 0; i < s->n_units; i++)
        mend_unit(s->units[i]);
    admin_mend(s->admin);
}
