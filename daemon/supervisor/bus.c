/* org.fastchat.Manager1 on the system bus, where there is one.
 *
 * The service needs no bus and never waits for one: whatever is wrong with it
 * (none there, gone, started anew, the name refused) is tried again every few
 * seconds and costs nothing else. A bus that takes nothing any more loses us
 * before what we have to say fills the memory. All calls are answered from what
 * is known, or when what they ask for is done; libsystemd's own checks of who
 * calls are not used, since they wait for the bus.
 *
 * The bus is read at a lower priority than all else: a flood of calls delays
 * calls, not children.
 */
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/utf8.h"
#include "daemon/supervisor/bus_parts.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { RETRY_US = 2000000, PRIORITY = SD_EVENT_PRIORITY_NORMAL + 10 };
/* Calls that wait for an answer, of all and of one connection; what waits to be
 * sent to a bus that does not read. */
enum { MAX_CALLS = 512, MAX_CALLS_OF_ONE = 64, MAX_UNSENT = 20000 };

static const struct action {
    const char *method, *id;
    enum command command;
    bool needs_model;
} actions[] = {
    { "Drain", "org.fastchat.stop", COMMAND_DRAIN, false },             /* of a model: as UnloadModel */
    { "LoadModel", "org.fastchat.manage-models", COMMAND_LOAD, true },
    { "Reload", "org.fastchat.reload", COMMAND_RELOAD, false },
    { "UnloadModel", "org.fastchat.manage-models", COMMAND_UNLOAD, true },
    { "Upgrade", "org.fastchat.upgrade", COMMAND_UPGRADE, false },
};

struct bus_call {
    struct bus *bus;
    struct bus_call *next, **link;
    sd_bus_message *message;
    enum command command;
    char model[132];
    struct polkit_question question;
    struct waiter waiter;
};

int bus_append_text(sd_bus_message *m, const char *text)
{
    BUF_LOCAL clean = BUF_INIT;
    size_t left = strlen(text);

    while (left) {
        size_t good = utf8_valid_prefix(text, left);

        buf_add(&clean, text, good);
        text += good;
        left -= good;
        if (left) {
            buf_adds(&clean, "\xef\xbf\xbd");
            text++;
            left--;
        }
    }
    return clean.failed ? -ENOMEM : sd_bus_message_append(m, "s", buf_str(&clean));
}

/* ---- calls ---- */

static void call_free(struct bus_call *c)
{
    polkit_withdraw(&c->question);
    command_forget(&c->waiter);
    *c->link = c->next;
    if (c->next)
        c->next->link = c->link;
    c->bus->n_calls--;
    sd_bus_message_unref(c->message);
    free(c);
}

static const char *error_name(int result)
{
    switch (result) {
    case -ENOENT:
        return BUS_ERROR "NoSuchModel";
    case -EINVAL:
        return BUS_ERROR "BadConfiguration";
    case -ESHUTDOWN:
        return BUS_ERROR "Stopping";
    case -EBUSY:
        return BUS_ERROR "Busy";
    default:
        return BUS_ERROR "Failed";
    }
}

static int refuse(sd_bus_message *call, const char *name, const char *text)
{
    sd_bus_message *m = NULL;
    int r = sd_bus_message_new_method_error(call, &m, &SD_BUS_ERROR_MAKE_CONST(name, NULL));

    if (r >= 0)
        r = bus_append_text(m, text);
    if (r >= 0)
        r = sd_bus_send(sd_bus_message_get_bus(call), m, NULL);
    sd_bus_message_unref(m);
    return r;
}

static void on_done(struct waiter *w, int result, const char *text)
{
    struct bus_call *c = (struct bus_call *)((char *)w - offsetof(struct bus_call, waiter));

    if (result)
        refuse(c->message, error_name(result), text);
    else
        sd_bus_reply_method_return(c->message, NULL);
    call_free(c);
}

static void on_permission(struct polkit_question *q, const char *error, const char *text)
{
    struct bus_call *c = (struct bus_call *)((char *)q - offsetof(struct bus_call, question));
    BUF_LOCAL why = BUF_INIT;
    int r;

    if (error) {
        refuse(c->message, error, text);
        call_free(c);
        return;
    }
    log_event(LOG_NOTICE, "bus", NULL, "user %u asks over the bus: %s%s%s", (unsigned)q->uid, command_name(c->command),
              *c->model ? " " : "", c->model);
    r = command_begin(c->bus->sup, &c->waiter, c->command, c->model, &why);
    if (r)
        on_done(&c->waiter, r, buf_str(&why));
}

static bool too_many(const struct bus *b, sd_bus_message *m)
{
    const char *sender = sd_bus_message_get_sender(m);
    size_t n = 0;

    for (const struct bus_call *c = b->calls; c; c = c->next)
        n += strcmp(sd_bus_message_get_sender(c->message), sender) == 0;
    return b->n_calls >= MAX_CALLS || n >= MAX_CALLS_OF_ONE;
}

static int add_call(struct bus *b, sd_bus_message *m, const struct action *a, const char *model)
{
    struct bus_call *c = calloc(1, sizeof *c);
    int r;

    if (!c)
        return -ENOMEM;
    c->bus = b;
    c->message = sd_bus_message_ref(m);
    c->command = a->command;
    strcpy(c->model, model);
    c->waiter.answer = on_done;
    c->question = (struct polkit_question){
        .message = c->message, .model = c->model, .answer = on_permission,
        .action = a->command == COMMAND_DRAIN && *model ? "org.fastchat.manage-models" : a->id,
    };
    c->next = b->calls;
    c->link = &b->calls;
    if (c->next)
        c->next->link = &c->next;
    b->calls = c;
    b->n_calls++;
    r = polkit_ask(&c->question);
    if (r < 0)
        call_free(c);
    return r;
}

static const struct action *action_of(sd_bus_message *m)
{
    for (size_t i = 0; i < sizeof actions / sizeof actions[0]; i++)
        if (strcmp(actions[i].method, sd_bus_message_get_member(m)) == 0)
            return &actions[i];
    return NULL;
}

static int on_command(sd_bus_message *m, void *user, sd_bus_error *error)
{
    const struct action *a = action_of(m);
    struct bus *b = user;
    const char *model = "";
    int r = 0;

    if (!a || !sd_bus_message_get_sender(m))
        return -EINVAL;
    if (!sd_bus_message_has_signature(m, ""))
        r = sd_bus_message_read(m, "s", &model);
    if (r < 0)
        return r;
    model = models_name(b->sup, model);
    if ((*model || a->needs_model) && config_find_model(b->sup->config, model) < 0)
        return sd_bus_error_set(error, BUS_ERROR "NoSuchModel", "there is no such model in the configuration");
    if (too_many(b, m))
        return sd_bus_error_set(error, SD_BUS_ERROR_LIMITS_EXCEEDED, "too many calls wait for their answers");
    r = add_call(b, m, a, model);
    return r < 0 ? r : 1;
}

static int on_list(sd_bus_message *m, void *user, sd_bus_error *error)
{
    sd_bus_message *reply = NULL;
    int r = sd_bus_message_new_method_return(m, &reply);

    if (r >= 0)
        r = bus_models_list(user, reply);
    if (r >= 0)
        r = sd_bus_send(sd_bus_message_get_bus(m), reply, NULL);
    sd_bus_message_unref(reply);
    return r;
}

/* ---- the manager's properties ---- */

static int append_listeners(sd_bus_message *reply, const struct supervisor *s)
{
    int r = sd_bus_message_open_container(reply, 'a', "s");

    for (const struct listener *k = s->listeners.first; r >= 0 && k; k = k->next)
        r = bus_append_text(reply, k->bound.text);
    return r < 0 ? r : sd_bus_message_close_container(reply);
}

static int get_manager(sd_bus *bus, const char *path, const char *interface, const char *property, sd_bus_message *reply,
                       void *user, sd_bus_error *error)
{
    const struct bus *b = user;

    if (strcmp(property, "Version") == 0)
        return sd_bus_message_append(reply, "s", FASTCHAT_VERSION);
    if (strcmp(property, "State") == 0)
        return sd_bus_message_append(reply, "s", status_state(b->sup));
    if (strcmp(property, "Status") == 0)
        return bus_append_text(reply, buf_str(&b->told_status));
    if (strcmp(property, "ConfigPath") == 0)
        return bus_append_text(reply, b->sup->config->path);
    if (strcmp(property, "Listeners") == 0)
        return append_listeners(reply, b->sup);
    return sd_bus_message_append(reply, "t", (clock_mono_us() - b->sup->started_us) / 1000000);
}

static const sd_bus_vtable manager_vtable[] = {
    SD_BUS_VTABLE_START(0),
    SD_BUS_METHOD("Reload", "", "", on_command, SD_BUS_VTABLE_UNPRIVILEGED),
    SD_BUS_METHOD_WITH_ARGS("Drain", SD_BUS_ARGS("s", model), SD_BUS_NO_RESULT, on_command, SD_BUS_VTABLE_UNPRIVILEGED),
    SD_BUS_METHOD_WITH_ARGS("LoadModel", SD_BUS_ARGS("s", model), SD_BUS_NO_RESULT, on_command, SD_BUS_VTABLE_UNPRIVILEGED),
    SD_BUS_METHOD_WITH_ARGS("UnloadModel", SD_BUS_ARGS("s", model), SD_BUS_NO_RESULT, on_command, SD_BUS_VTABLE_UNPRIVILEGED),
    SD_BUS_METHOD("Upgrade", "", "", on_command, SD_BUS_VTABLE_UNPRIVILEGED),
    SD_BUS_METHOD_WITH_ARGS("ListModels", SD_BUS_NO_ARGS, SD_BUS_RESULT("a(sssuuo)", models), on_list, SD_BUS_VTABLE_UNPRIVILEGED),
    SD_BUS_SIGNAL_WITH_ARGS("ModelStateChanged", SD_BUS_ARGS("s", model, "s", state, "s", reason), 0),
    SD_BUS_SIGNAL_WITH_ARGS("WorkerRestarted", SD_BUS_ARGS("s", model, "u", replica, "u", pid, "t", restarts, "s", reason), 0),
    SD_BUS_PROPERTY("Version", "s", get_manager, 0, SD_BUS_VTABLE_PROPERTY_CONST),
    SD_BUS_PROPERTY("State", "s", get_manager, 0, SD_BUS_VTABLE_PROPERTY_EMITS_CHANGE),
    SD_BUS_PROPERTY("Status", "s", get_manager, 0, SD_BUS_VTABLE_PROPERTY_EMITS_CHANGE),
    SD_BUS_PROPERTY("ConfigPath", "s", get_manager, 0, SD_BUS_VTABLE_PROPERTY_CONST),
    SD_BUS_PROPERTY("Listeners", "as", get_manager, 0, 0),
    SD_BUS_PROPERTY("Uptime", "t", get_manager, 0, 0),
    SD_BUS_VTABLE_END,
};

static void tell_manager(struct bus *b, bool tell)
{
    const char *state = status_state(b->sup);
    BUF_LOCAL status = BUF_INIT;
    bool new_state = b->told_state != state, new_status;

    status_line(b->sup, &status);
    new_status = strcmp(buf_str(&status), buf_str(&b->told_status)) != 0;
    b->told_state = state;
    if (new_status) {
        buf_clear(&b->told_status);
        buf_adds(&b->told_status, buf_str(&status));
    }
    if (tell && new_state)
        sd_bus_emit_properties_changed(b->conn, BUS_PATH, BUS_NAME, "State", NULL);
    if (tell && new_status)
        sd_bus_emit_properties_changed(b->conn, BUS_PATH, BUS_NAME, "Status", NULL);
}

/* ---- the connection ---- */

/* Said once, until it works again. */
static void complain(struct bus *b, int level, const char *what, const char *why)
{
    if (!b->complained)
        log_event(level, "bus", NULL, "%s: %s; it is tried again", what, why);
    b->complained = true;
}

static void set_named(struct bus *b, bool named)
{
    if (named && !b->named)
        log_event(LOG_INFO, "bus", NULL, BUS_NAME " is on the bus");
    b->named = named;
    b->asking = !named && b->asking;
    b->complained = b->complained && !named;
}

static int on_message(sd_bus_message *m, void *user, sd_bus_error *error)
{
    struct bus *b = user;
    bool of_bus = sd_bus_message_get_sender(m) && strcmp(sd_bus_message_get_sender(m), "org.freedesktop.DBus") == 0;
    const char *name = "";

    if (sd_bus_message_is_signal(m, "org.freedesktop.DBus.Local", "Disconnected")) {
        b->broken = true;
        supervisor_news(b->sup);
    } else if (of_bus && (sd_bus_message_is_signal(m, NULL, "NameAcquired") || sd_bus_message_is_signal(m, NULL, "NameLost"))) {
        if (sd_bus_message_read(m, "s", &name) >= 0 && strcmp(name, BUS_NAME) == 0)
            set_named(b, sd_bus_message_is_signal(m, NULL, "NameAcquired") > 0);
        sd_bus_message_rewind(m, true);
    }
    return 0;
}

static int on_name(sd_bus_message *m, void *user, sd_bus_error *error)
{
    enum { OWNER = 1, QUEUED = 2, ALREADY = 4 };
    const sd_bus_error *e = sd_bus_message_get_error(m);
    struct bus *b = user;
    uint32_t answer = 0;

    if (e)
        complain(b, LOG_NOTICE, "the bus does not give us the name " BUS_NAME, e->message ? e->message : e->name);
    else if (sd_bus_message_read(m, "u", &answer) >= 0 && answer == QUEUED)
        complain(b, LOG_NOTICE, BUS_NAME, "another service has the name");
    if (answer == OWNER || answer == ALREADY)
        set_named(b, true);
    b->asking = b->asking && answer == QUEUED;
    return 0;
}

static void request_name(struct bus *b)
{
    b->next_us = clock_mono_us() + RETRY_US;
    b->asking = sd_bus_request_name_async(b->conn, NULL, BUS_NAME, SD_BUS_NAME_QUEUE, on_name, b) >= 0;
}

static void disconnect(struct bus *b)
{
    while (b->calls)
        call_free(b->calls);
    sd_bus_detach_event(b->conn);
    sd_bus_close_unref(STEAL(b->conn));
    b->broken = b->named = b->asking = false;
    b->next_us = clock_mono_us() + RETRY_US;
}

static int offer(struct bus *b)
{
    int r = sd_bus_set_close_on_exit(b->conn, false);       /* it would wait until all is sent */

    if (r >= 0)
        r = sd_bus_add_filter(b->conn, NULL, on_message, b);
    if (r >= 0)
        r = sd_bus_add_object_manager(b->conn, NULL, BUS_PATH);
    if (r >= 0)
        r = sd_bus_add_object_vtable(b->conn, NULL, BUS_PATH, BUS_NAME, manager_vtable, b);
    if (r >= 0)
        r = bus_models_offer(b);
    if (r >= 0)
        r = sd_bus_attach_event(b->conn, b->sup->event, PRIORITY);
    return r;
}

static void connect_anew(struct bus *b)
{
    int r = sd_bus_open_system_with_description(&b->conn, "fastchat");

    b->next_us = clock_mono_us() + RETRY_US;
    if (r < 0) {
        b->conn = NULL;
        complain(b, LOG_INFO, "no bus", strerror(-r));
        return;
    }
    r = offer(b);
    if (r >= 0) {
        request_name(b);
        return;
    }
    complain(b, LOG_NOTICE, "the bus can not be used", strerror(-r));
    disconnect(b);
}

static bool is_stuck(const struct bus *b)
{
    uint64_t unsent = 0;

    return sd_bus_get_n_queued_write(b->conn, &unsent) >= 0 && unsent > MAX_UNSENT;
}

/* One service of a host has the name; those that only lend workers may be many. */
static bool is_wanted(const struct config *c)
{
    return strcmp(config_str(c, SUPERVISOR_bus), "auto") == 0 && !config_only_workers(c);
}

void bus_turn(struct bus *b)
{
    bool wanted;

    if (!b)
        return;
    wanted = is_wanted(b->sup->config);
    if (b->conn && (b->broken || !wanted || is_stuck(b))) {
        if (wanted)
            complain(b, LOG_NOTICE, "the bus is gone", b->broken ? "it ended the connection" : "it takes nothing any more");
        disconnect(b);
    }
    if (!b->conn && wanted && b->sup->phase == STOP_NOT && clock_mono_us() >= b->next_us)
        connect_anew(b);
    else if (b->conn && !b->named && !b->asking && clock_mono_us() >= b->next_us)
        request_name(b);
    if (!b->conn)
        return;
    tell_manager(b, b->named);
    bus_models_turn(b, b->named);
}

void bus_leave(struct bus *b)
{
    struct bus_call *next;

    for (struct bus_call *c = b ? b->calls : NULL; c; c = next) {
        next = c->next;
        if (c->waiter.command == COMMAND_UPGRADE)
            on_done(&c->waiter, 0, "");
        else
            on_done(&c->waiter, -EINTR, "a new program takes over meanwhile: the properties say what came of it");
    }
}

struct bus *bus_new(struct supervisor *s)
{
    struct bus *b = calloc(1, sizeof *b);

    if (b)
        b->sup = s;
    return b;
}

void bus_free(struct bus *b)
{
    if (!b)
        return;
    if (b->conn)
        disconnect(b);
    bus_models_free(b);
    buf_fini(&b->told_status);
    free(b);
}
