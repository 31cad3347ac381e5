/* polkit's CheckAuthorization, without waiting for it.
 *
 * Who root is the bus knows, so root needs no polkit. libsystemd could ask both,
 * but waits for the answers.
 *
 * Source  polkit(8); org.freedesktop.PolicyKit1.Authority
 */
#include "base/log.h"
#include "daemon/supervisor/bus_parts.h"

enum { MAY_INTERACT = 1 };
/* A person may have to find a password; polkit alone is quick. */
enum { PERSON_US = 300000000, PROGRAM_US = 25000000 };

void polkit_withdraw(struct polkit_question *q)
{
    q->slot = sd_bus_slot_unref(q->slot);
}

static int deny(struct polkit_question *q, const char *error, const char *text)
{
    polkit_withdraw(q);
    q->answer(q, error, text);
    return 0;
}

static int denied(struct polkit_question *q, const char *text)
{
    return deny(q, SD_BUS_ERROR_ACCESS_DENIED, text);
}

static int may(struct polkit_question *q)
{
    polkit_withdraw(q);
    q->answer(q, NULL, NULL);
    return 0;
}

static int on_verdict(sd_bus_message *m, void *user, sd_bus_error *error)
{
    struct polkit_question *q = user;
    const sd_bus_error *e = sd_bus_message_get_error(m);
    int authorized = 0, challenge = 0;

    if (e && (sd_bus_error_has_name(e, SD_BUS_ERROR_SERVICE_UNKNOWN) || sd_bus_error_has_name(e, SD_BUS_ERROR_NAME_HAS_NO_OWNER)))
        return denied(q, "polkit is not running, and without it only root may do that");
    if (e) {
        log_event(LOG_NOTICE, "bus", NULL, "polkit does not say whether %s may %s: %s", sd_bus_message_get_sender(q->message),
                  q->action, e->message ? e->message : e->name);
        return denied(q, "polkit did not answer, and without it only root may do that");
    }
    if (sd_bus_message_enter_container(m, 'r', "bba{ss}") < 0 || sd_bus_message_read(m, "bb", &authorized, &challenge) < 0)
        return denied(q, "polkit gave an answer that is none, and without it only root may do that");
    if (authorized)
        return may(q);
    if (challenge && sd_bus_message_get_allow_interactive_authorization(q->message) == 0)
        return deny(q, SD_BUS_ERROR_INTERACTIVE_AUTHORIZATION_REQUIRED, "this needs authentication");
    return denied(q, "polkit does not permit that");
}

static int ask_polkit(struct polkit_question *q, sd_bus *bus)
{
    bool interact = sd_bus_message_get_allow_interactive_authorization(q->message) > 0;
    sd_bus_message *m = NULL;
    int r = sd_bus_message_new_method_call(bus, &m, "org.freedesktop.PolicyKit1", "/org/freedesktop/PolicyKit1/Authority",
                                           "org.freedesktop.PolicyKit1.Authority", "CheckAuthorization");

    if (r >= 0)
        r = sd_bus_message_append(m, "(sa{sv})s", "system-bus-name", 1, "name", "s", sd_bus_message_get_sender(q->message), q->action);
    if (r >= 0)
        r = *q->model ? sd_bus_message_append(m, "a{ss}", 1, "model", q->model) : sd_bus_message_append(m, "a{ss}", 0);
    if (r >= 0)
        r = sd_bus_message_append(m, "us", interact ? MAY_INTERACT : 0, "");
    if (r >= 0)
        r = sd_bus_call_async(bus, &q->slot, m, on_verdict, q, interact ? PERSON_US : PROGRAM_US);
    sd_bus_message_unref(m);
    return r;
}

static int on_user(sd_bus_message *m, void *user, sd_bus_error *error)
{
    struct polkit_question *q = user;

    polkit_withdraw(q);
    if (sd_bus_message_is_method_error(m, NULL) || sd_bus_message_read(m, "u", &q->uid) < 0)
        return denied(q, "the bus does not know who asks");
    if (q->uid == 0 || q->uid == geteuid())
        return may(q);
    if (ask_polkit(q, sd_bus_message_get_bus(m)) < 0)
        return denied(q, "polkit can not be asked, and without it only root may do that");
    return 0;
}

int polkit_ask(struct polkit_question *q)
{
    return sd_bus_call_method_async(sd_bus_message_get_bus(q->message), &q->slot, "org.freedesktop.DBus", "/org/freedesktop/DBus",
                                    "org.freedesktop.DBus", "GetConnectionUnixUser", on_user, q, "s",
                                    sd_bus_message_get_sender(q->message));
}
