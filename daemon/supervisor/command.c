/* What an administrator asks for, whoever brings it: control.sock or the bus.
 *
 * A command begins at once and may take minutes. Who brought it leaves a waiter,
 * which is told once: when what it waits for is there, or can not be any more.
 */
#include "base/err.h"
#include "base/log.h"
#include "daemon/supervisor/supervisor_parts.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct { const char *name; enum command command; } names[] = {
    { "drain", COMMAND_DRAIN },   { "load", COMMAND_LOAD },       { "reload", COMMAND_RELOAD },
    { "unload", COMMAND_UNLOAD }, { "upgrade", COMMAND_UPGRADE },
};
enum { N_NAMES = sizeof names / sizeof names[0] };

const char *command_name(enum command command)
{
    for (size_t i = 0; i < N_NAMES; i++)
        if (names[i].command == command)
            return names[i].name;
    return "";
}

enum command command_of(const char *name)
{
    for (size_t i = 0; i < N_NAMES; i++)
        if (strcmp(names[i].name, name) == 0)
            return names[i].command;
    return COMMAND_NONE;
}

void command_wait(struct supervisor *s, struct waiter *w, enum command command, const char *model)
{
    w->command = command;
    snprintf(w->model, sizeof w->model, "%s", model);
    w->next = s->waiters;
    w->link = &s->waiters;
    if (w->next)
        w->next->link = &w->next;
    s->waiters = w;
}

void command_forget(struct waiter *w)
{
    if (w->command == COMMAND_NONE)
        return;
    *w->link = w->next;
    if (w->next)
        w->next->link = w->link;
    w->command = COMMAND_NONE;
}

static void tell(struct waiter *w, int result, const char *text)
{
    command_forget(w);
    w->answer(w, result, text);
}

static int begin(struct supervisor *s, enum command command, const char *model, struct buf *faults, struct err *err)
{
    switch (command) {
    case COMMAND_RELOAD:
        if (reload(s, faults) == 0)
            return 0;
        buf_adds(faults, "nothing has changed: the configuration in force stays\n");
        return -EINVAL;
    case COMMAND_LOAD:
        return models_load(s, model, err);
    case COMMAND_UNLOAD:
        return models_unload(s, model, err);
    case COMMAND_UPGRADE:
        return upgrade_begin(s, err);
    case COMMAND_DRAIN:
        supervisor_drain(s);
        return 0;
    case COMMAND_NONE:
        break;
    }
    return err_set(err, -ENOSYS, "unknown command");
}

int command_begin(struct supervisor *s, struct waiter *w, enum command command, const char *model, struct buf *why)
{
    struct err err = { 0 };
    int r;

    if (command == COMMAND_DRAIN && *model)
        command = COMMAND_UNLOAD;
    if (command == COMMAND_LOAD || command == COMMAND_UNLOAD)
        model = models_name(s, model);
    else
        model = "";
    if (s->phase != STOP_NOT && command != COMMAND_DRAIN)
        r = err_set(&err, -ESHUTDOWN, "the service is stopping");
    else if ((command == COMMAND_LOAD || command == COMMAND_UNLOAD) && (!*model || strlen(model) >= sizeof w->model))
        r = err_set(&err, -ENOENT, "this command needs the name of a model");
    else
        r = begin(s, command, model, why, &err);
    if (r) {
        buf_adds(why, why->len ? "" : err_text(&err));
        return r;
    }
    command_wait(s, w, command, model);
    supervisor_news(s);
    return 0;
}

/* Is what it waits for over? And if so, how: 0 or -errno. */
static bool is_over(const struct supervisor *s, const struct waiter *w, int *ret, struct err *text)
{
    enum models_progress progress;

    *ret = s->troubles.len && (w->command == COMMAND_RELOAD || w->command == COMMAND_UPGRADE) ? -EIO : 0;
    switch (w->command) {
    case COMMAND_RELOAD:
        err_set(text, 1, "%s", s->troubles.len ? buf_str(&s->troubles) : "the configuration is in force");
        return !s->reloading;
    case COMMAND_LOAD:
    case COMMAND_UNLOAD:
        progress = models_progress(s, w->model, w->command == COMMAND_LOAD, text);
        if (progress == MODELS_FAILED)
            *ret = text->code;
        err_set(text, 1, "%s is %s", w->model, w->command == COMMAND_LOAD ? "loaded" : "unloaded");
        return progress != MODELS_PENDING;
    case COMMAND_UPGRADE:
        err_set(text, 1, "the service runs fastchatd %s%s%s", FASTCHAT_VERSION, s->troubles.len ? ", but\n" : "",
                buf_str(&s->troubles));
        return !s->upgrade && fleet_is_settled(s);
    case COMMAND_DRAIN:
        *ret = s->hard ? -ETIME : 0;
        err_set(text, 1, s->hard ? "the service has stopped, and not all that ran had ended by itself"
                                 : "the service has stopped; all that ran has ended");
        return s->phase == STOP_DONE;
    case COMMAND_NONE:
        break;
    }
    return false;
}

void commands_settle(struct supervisor *s)
{
    struct waiter *next;

    for (struct waiter *w = s->waiters; w; w = next) {
        struct err text = { 0 };
        int result;

        next = w->next;
        if (is_over(s, w, &result, &text))
            tell(w, result, err_text(&text));
    }
}

void commands_give_up(struct supervisor *s, enum command what, int result, const char *why)
{
    struct waiter *next;

    for (struct waiter *w = s->waiters; w; w = next) {
        next = w->next;
        if (what == COMMAND_NONE || what == w->command)
            tell(w, result, why);
    }
}
