/* status.c - `fastchat status`: what runs, once or again and again.
 *
 * --watch on a terminal draws in place; elsewhere each interval gives another
 * snapshot, and with --json a line, for whoever reads it from a pipe. The service
 * may go away meanwhile and come back: that is shown, and watching goes on. Only
 * a service that is not there at the beginning is a failure.
 */
#include "cli/commands.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "cli/screen.h"
#include "cli/service.h"
#include "cli/status_view.h"
#include "cli/term.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct watch {
    struct service_args service;
    bool json;
    double interval_s;
};

/* False: standard output is closed. */
static bool print(const struct buf *text)
{
    return fputs(buf_str(text), stdout) >= 0 && fflush(stdout) == 0;
}

/* What is there now, in the form that was asked for. 0 or -errno. */
static int snapshot(const struct watch *w, int room, struct buf *out, struct err *err)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    CLEANUP(mem_free) char *text = NULL;
    int r = service_status(&w->service, &tree, &text, err);

    if (r < 0)
        return r;
    if (w->json)
        buf_printf(out, "%s\n", text);
    else
        status_view(tree, room, out);
    return 0;
}

/* In place of a snapshot that cannot be had. */
static void put_failure(const struct watch *w, const struct err *err, struct buf *out)
{
    struct json_writer j = json_writer(out);

    if (w->json) {
        json_open(&j, '{');
        json_kstr(&j, "error", err_text(err));
        json_close(&j, '}');
    } else {
        buf_adds(out, term_red());
        term_put(out, err_text(err));
        buf_adds(out, term_plain());
    }
    buf_addc(out, '\n');
}

static void put_header(const struct watch *w, struct buf *out)
{
    time_t now = time(NULL);
    struct tm tm;
    char clock[32];

    localtime_r(&now, &tm);
    strftime(clock, sizeof clock, "%H:%M:%S", &tm);
    buf_printf(out, "%severy %g s, at %s; q leaves%s\n\n", term_bold(), w->interval_s, clock, term_plain());
}

static int watch_screen(const struct watch *w)
{
    CLEANUP(screen_close) struct screen *screen = NULL;
    struct err err = { 0 };
    enum screen_event event;

    if (screen_open(&screen, &err) < 0)
        return service_failed(&err);
    do {
        BUF_LOCAL text = BUF_INIT;
        struct err now = { 0 };

        put_header(w, &text);
        if (snapshot(w, screen_width(screen), &text, &now) < 0)
            put_failure(w, &now, &text);
        screen_draw(screen, buf_str(&text));
        event = screen_wait(screen, clock_mono_ms() + (uint64_t)(w->interval_s * 1000));
    } while (event != SCREEN_END);
    return CLI_DONE;
}

static void sleep_s(double s)
{
    struct timespec t = { .tv_sec = (time_t)s, .tv_nsec = (long)((s - (double)(time_t)s) * 1e9) };

    nanosleep(&t, NULL);
}

static int watch_pipe(const struct watch *w)
{
    for (bool first = true;; first = false) {
        BUF_LOCAL text = BUF_INIT;
        struct err err = { 0 };

        if (!first && !w->json)
            buf_addc(&text, '\n');
        if (snapshot(w, 0, &text, &err) < 0)
            put_failure(w, &err, &text);
        if (!print(&text))
            return CLI_FAILED;
        sleep_s(w->interval_s);
    }
}

int status_run(const struct command *cmd, int argc, char **argv)
{
    struct watch w = { .interval_s = 2 };
    struct arg_number interval = { 0 };
    BUF_LOCAL text = BUF_INIT;
    bool again = false;
    struct err err = { 0 };
    int r;
    const struct arg args[] = {
        ARG(interval, &interval),
        ARG(status_json, &w.json),
        ARG(runtime_dir, &w.service.runtime_dir),
        ARG(watch, &again),
    };

    r = args_parse(cmd, args, sizeof args / sizeof args[0], argc, argv, NULL, 0);
    if (r != ARGS_RUN)
        return r;
    if (interval.given && !again)
        return args_mistake(cmd, "--interval needs --watch");
    if (interval.given)
        w.interval_s = interval.value;
    if (snapshot(&w, term_width(), &text, &err) < 0)
        return service_failed(&err);
    if (again)
        return isatty(STDOUT_FILENO) && !w.json ? watch_screen(&w) : watch_pipe(&w);
    return print(&text) ? CLI_DONE : CLI_FAILED;
}
