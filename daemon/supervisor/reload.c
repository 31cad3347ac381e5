/* A new configuration while the service runs.
 *
 * It is read and checked whole, and what it listens on is bound, before
 * anything changes; a fault in any line, or an address that can not be had, and
 * the one in force stays.
 */
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "daemon/supervisor/supervisor_parts.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <systemd/sd-daemon.h>

static int hold(struct supervisor *s, struct held *h, const char *address, mode_t mode, gid_t group, struct err *err)
{
    struct address a;
    int r = address_parse(address, &a, err);

    if (r == 0)
        r = listener_get(&s->listeners, &a, mode, group, &h->kept[h->n], err);
    h->n += r == 0;
    return r;
}

static int hold_all(struct supervisor *s, const struct config *c, struct held *h, struct err *err)
{
    const char *tcp = config_str(c, CONTROLLER_listen);
    int r = tcp && !config_only_workers(c) ? hold(s, h, tcp, 0, (gid_t)-1, err) : 0;

    for (size_t i = 0; r == 0 && !config_only_workers(c) && i < c->n_listeners; i++) {
        const struct config_value *v = c->listeners[i]->values;

        r = hold(s, h, v[LISTEN_address].s, (mode_t)v[LISTEN_mode].i, v[LISTEN_group].set ? (gid_t)v[LISTEN_group].i : (gid_t)-1, err);
    }
    return r;
}

void reload_let_go(struct supervisor *s, struct held *h)
{
    while (h->n)
        listener_put(&s->listeners, h->kept[--h->n]);
}

static void log_faults(const char *text)
{
    while (*text) {
        size_t n = strcspn(text, "\n");

        log_event(LOG_ERR, "config", NULL, "%.*s", (int)n, text);
        text += n + (text[n] == '\n');
    }
    log_event(LOG_ERR, "reload", NULL, "the new configuration is not used; the one in force stays");
}

static int read_new(struct supervisor *s, struct held *h, struct config **ret, struct buf *text)
{
    CLEANUP(config_free) struct config *c = NULL;
    const struct config_row *row;
    struct err err = { 0 };

    if (config_load(s->config->path, &c, text))
        return -EINVAL;
    row = config_needs_restart(s->config, c);
    if ((row && config_restart_fault(c, row, &err)) || hold_all(s, c, h, &err)) {
        buf_printf(text, "%s\n", err_text(&err));
        return -EINVAL;
    }
    *ret = STEAL(c);
    return 0;
}

int reload(struct supervisor *s, struct buf *text)
{
    struct held h = { 0 };
    struct config *c = NULL;
    struct err err = { 0 };

    if (s->phase != STOP_NOT) {
        buf_adds(text, "the service is stopping\n");
        return -EINVAL;
    }
    if (read_new(s, &h, &c, text)) {
        reload_let_go(s, &h);
        log_faults(buf_str(text));
        return -EINVAL;
    }
    log_event(LOG_NOTICE, "reload", NULL, "the configuration was read again");
    sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%" PRIu64, clock_mono_us());
    s->reloading = true;
    buf_clear(&s->troubles);
    config_free(s->config);
    s->config = c;
    supervisor_use_config(s);
    reload_let_go(s, &s->held);
    s->held = h;
    if (fleet_fit(s, &err)) {
        log_event(LOG_ERR, "reload", NULL, "%s", err_text(&err));
        reload_trouble(s, "%s", err_text(&err));
    }
    return 0;
}

void reload_trouble(struct supervisor *s, const char *fmt, ...)
{
    va_list ap;

    s->troubles.limit = 16384;
    va_start(ap, fmt);
    buf_vprintf(&s->troubles, fmt, ap);
    va_end(ap);
    buf_addc(&s->troubles, '\n');
}

void reload_turn(struct supervisor *s)
{
    if (!s->reloading || !fleet_is_settled(s))
        return;
    s->reloading = false;
    reload_let_go(s, &s->held);
    listeners_trim(&s->listeners);      /* what was held over an upgrade */
    sd_notify(0, "READY=1");
    log_event(LOG_NOTICE, "reload", NULL, "the configuration is in force%s", s->troubles.len ? ", with faults" : "");
}
