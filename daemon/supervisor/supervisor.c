/* The service as a whole: what is started in which order, what its end looks
 * like, and who is told of what.
 *
 * The order is controller, workers, api; the end goes the other way, so that
 * whoever takes requests goes before whoever answers them: the api gets as long
 * as drain_s for what runs, then the workers what is left of it, then the
 * controller. After drain_s everything is told to stop at once, and stop_s
 * later what is still there is killed. A second signal skips
 * the draining, a third one the patience.
 */
#include "daemon/supervisor/supervisor.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "daemon/roles.h"
#include "daemon/supervisor/runtime_dir.h"
#include "daemon/supervisor/supervisor_parts.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <systemd/sd-daemon.h>

enum { ACCURACY_US = 1000, HURRY_US = 1000000, TICK_US = 1000000, PATIENT_US = 5000000, MORE_US = 30000000 };

/* ---- news ---- */

/* Takes the text over if it is another one than was told last. */
static bool is_news(struct buf *told, struct buf *text)
{
    if (text->failed || strcmp(buf_str(told), buf_str(text)) == 0)
        return false;
    buf_clear(told);
    buf_adds(told, buf_str(text));
    return true;
}

void supervisor_post(struct supervisor *s, enum unit_role role, unsigned mail)
{
    for (size_t i = 0; i < s->n_units; i++)
        if (s->units[i]->role == role)
            unit_post(s->units[i], mail);
}

/* Somebody listens; where there are only workers, nobody here has to. */
static bool is_up(const struct supervisor *s)
{
    if (config_only_workers(s->config))
        return true;
    for (size_t i = 0; i < s->n_units; i++)
        if (s->units[i]->role == UNIT_API && s->units[i]->state == UNIT_READY)
            return true;
    return false;
}

static void tell_all(struct supervisor *s)
{
    BUF_LOCAL models = BUF_INIT;
    BUF_LOCAL line = BUF_INIT;

    status_models(s, &models);
    if (is_news(&s->told_models, &models)) {
        supervisor_post(s, UNIT_CONTROLLER, MAIL_MODELS);
        supervisor_post(s, UNIT_API, MAIL_MODELS);
    }
    status_line(s, &line);
    if (is_news(&s->told_line, &line))
        sd_notifyf(0, "STATUS=%s", buf_str(&line));
    if (!s->announced && is_up(s)) {
        s->announced = true;
        sd_notify(0, "READY=1");
        log_event(LOG_INFO, "service-ready", NULL, "the service is ready: %s", buf_str(&line));
    }
}

static int on_news(sd_event_source *source, void *user)
{
    struct supervisor *s = user;

    if (s->phase == STOP_NOT)
        fleet_roll(s);
    tell_all(s);
    reload_turn(s);
    commands_settle(s);     /* what was unloaded is, also when a request loads it now */
    packed_turn(s);
    if (s->phase == STOP_NOT)
        models_turn(s);
    bus_turn(s->bus);
    return 0;
}

/* A start, a reload or an upgrade takes as long as its models need; whether that
 * is right is watched here, child by child, and not by systemd's clock. */
static void ask_for_time(const struct supervisor *s)
{
    if (s->phase == STOP_NOT && (!s->announced || s->reloading))
        sd_notifyf(0, "EXTEND_TIMEOUT_USEC=%d", MORE_US);
}

static int on_tick(sd_event_source *source, uint64_t usec, void *user)
{
    struct supervisor *s = user;

    for (size_t i = 0; i < s->n_units; i++)
        unit_look(s->units[i]);
    upgrade_look(s->upgrade);
    limits_tick(s);
    ask_for_time(s);
    supervisor_news(s);
    if (s->phase == STOP_NOT)
        sockets_mend(s);
    sd_event_source_set_time(source, clock_mono_us() + TICK_US);
    return sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
}

void supervisor_news(struct supervisor *s)
{
    if (s->news)
        sd_event_source_set_enabled(s->news, SD_EVENT_ONESHOT);
}

/* ---- the end ---- */

static bool of_phase(const struct unit *u, enum stop_phase phase)
{
    static const enum unit_role roles[] = {
        [STOP_API] = UNIT_API, [STOP_WORKERS] = UNIT_WORKER, [STOP_CONTROLLER] = UNIT_CONTROLLER,
    };

    return u->role == roles[phase];
}

static bool phase_is_over(const struct supervisor *s)
{
    for (size_t i = 0; i < s->n_units; i++)
        if (of_phase(s->units[i], s->phase) && s->units[i]->pid)
            return false;
    return true;
}

static void stop_next(struct supervisor *s)
{
    while (s->phase < STOP_DONE && phase_is_over(s)) {
        s->phase++;
        for (size_t i = 0; s->phase < STOP_DONE && !s->hard && i < s->n_units; i++)
            if (of_phase(s->units[i], s->phase))
                unit_stop(s->units[i], MAIL_DRAIN);
    }
    if (s->phase == STOP_DONE)
        sd_event_exit(s->event, s->exit_code);
}

static void set_stop_timer(struct supervisor *s, uint64_t in_us)
{
    sd_event_source_set_time(s->stop_timer, clock_mono_us() + in_us);
    sd_event_source_set_enabled(s->stop_timer, SD_EVENT_ONESHOT);
}

/* From here on nobody is waited for. */
static void stop_hard(struct supervisor *s, uint64_t limit_us)
{
    s->hard = true;
    for (size_t i = 0; i < s->n_units; i++)
        unit_stop(s->units[i], MAIL_STOP);
    set_stop_timer(s, limit_us);
}

static void kill_all(struct supervisor *s)
{
    for (size_t i = 0; i < s->n_units; i++)
        unit_kill(s->units[i], "did not stop in time");
}

static int on_stop_timer(sd_event_source *source, uint64_t usec, void *user)
{
    struct supervisor *s = user;

    if (s->hard) {
        kill_all(s);
        return 0;
    }
    log_notice("the time to finish what runs is over");
    stop_hard(s, (uint64_t)config_int(s->config, SUPERVISOR_stop_s) * 1000000);
    return 0;
}

static void begin_stop(struct supervisor *s, int code)
{
    uint64_t drain_us = (uint64_t)config_int(s->config, SUPERVISOR_drain_s) * 1000000;
    uint64_t stop_us = (uint64_t)config_int(s->config, SUPERVISOR_stop_s) * 1000000;

    s->exit_code = code;
    s->phase = STOP_API;
    s->listeners.ending = true;
    /* Those who do not obey are killed stop_s after the draining; they get as long again. */
    sd_notifyf(0, "STOPPING=1\nEXTEND_TIMEOUT_USEC=%" PRIu64, drain_us + 2 * stop_us + HURRY_US);
    set_stop_timer(s, drain_us);
    upgrade_free(STEAL(s->upgrade));
    commands_give_up(s, COMMAND_NONE, -ESHUTDOWN, "the service stops");
    /* None of them is started again, whatever its turn. */
    for (size_t i = 0; i < s->n_units; i++) {
        struct unit *u = s->units[i];

        if (!u->stopping || u->pid == 0)
            u->drain_until_us = clock_mono_us() + drain_us;
        if (u->pid == 0 || u->role == UNIT_API)
            unit_stop(u, MAIL_DRAIN);
        u->stopping = true;
        u->wanted = false;
    }
    stop_next(s);
}

void supervisor_down(struct supervisor *s, struct unit *u)
{
    if (s->phase != STOP_NOT)
        stop_next(s);
}

void supervisor_fail(struct supervisor *s, int code)
{
    if (s->phase != STOP_NOT)
        return;
    log_event(LOG_ERR, "service-failed", NULL, "the service cannot go on and stops");
    begin_stop(s, code);
}

void supervisor_drain(struct supervisor *s)
{
    if (s->phase != STOP_NOT)
        return;
    log_event(LOG_NOTICE, "stop", NULL, "drain: the service takes nothing new and stops when what runs has ended");
    begin_stop(s, EXIT_DONE);
}

/* ---- signals ---- */

static int on_stop_signal(sd_event_source *source, const struct signalfd_siginfo *si, void *user)
{
    struct supervisor *s = user;
    const char *name = si->ssi_signo == SIGINT ? "SIGINT" : "SIGTERM";

    if (s->phase == STOP_NOT) {
        log_event(LOG_NOTICE, "stop", NULL, "%s: the service stops", name);
        begin_stop(s, EXIT_DONE);
    } else if (!s->hard) {
        log_notice("%s again: the service stops at once", name);
        stop_hard(s, HURRY_US);
    } else {
        kill_all(s);
    }
    return 0;
}

static int on_hangup(sd_event_source *source, const struct signalfd_siginfo *si, void *user)
{
    BUF_LOCAL faults = BUF_INIT;

    reload(user, &faults);      /* says in the log what came of it */
    return 0;
}

static int on_upgrade(sd_event_source *source, const struct signalfd_siginfo *si, void *user)
{
    struct err err = { 0 };

    if (upgrade_begin(user, &err))
        log_event(LOG_ERR, "upgrade", NULL, "no upgrade: %s", err_text(&err));
    return 0;
}

static int watch_signals(struct supervisor *s, struct err *err)
{
    static const struct { int number; sd_event_signal_handler_t fn; } signals[] = {
        { SIGTERM, on_stop_signal }, { SIGINT, on_stop_signal }, { SIGHUP, on_hangup }, { SIGUSR2, on_upgrade },
    };
    enum { N = sizeof signals / sizeof signals[0] };
    sigset_t set;
    int r = 0;

    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    for (size_t i = 0; i < N; i++)
        sigaddset(&set, signals[i].number);
    signal(SIGHUP, SIG_DFL);    /* nohup leaves it ignored, and then no reload would come */
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    for (size_t i = 0; r >= 0 && i < N; i++)
        r = sd_event_add_signal(s->event, NULL, signals[i].number, signals[i].fn, s);
    return r < 0 ? err_errno(err, r, "signals") : 0;
}

/* ---- start ---- */

static struct restart_limits restart_limits(const struct config *c)
{
    return (struct restart_limits){
        .delay_us = (uint64_t)config_int(c, SUPERVISOR_restart_delay_ms) * 1000,
        .delay_max_us = (uint64_t)config_int(c, SUPERVISOR_restart_delay_max_ms) * 1000,
        .reset_us = (uint64_t)config_int(c, SUPERVISOR_restart_reset_s) * 1000000,
        .window_us = (uint64_t)config_int(c, SUPERVISOR_restart_window_s) * 1000000,
        .budget = (size_t)config_int(c, SUPERVISOR_restart_budget),
    };
}

void supervisor_use_config(struct supervisor *s)
{
    s->restart_limits = restart_limits(s->config);
    log_set_level(log_level_of(config_str(s->config, SUPERVISOR_log_level)));
    for (size_t i = 0; i < s->config->n_notes; i++)
        log_event(LOG_NOTICE, "config", NULL, "%s", s->config->notes[i]);
}

/* Children with many connections inherit what the system allows. */
static void raise_file_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static int make_loop(struct supervisor *s, struct err *err)
{
    int r = sd_event_new(&s->event);

    if (r >= 0)
        r = sd_event_set_watchdog(s->event, true);
    if (r >= 0)
        r = sd_event_add_defer(s->event, &s->news, on_news, s);
    if (r >= 0)
        r = sd_event_source_set_enabled(s->news, SD_EVENT_OFF);
    if (r >= 0)
        r = sd_event_add_time(s->event, &s->stop_timer, CLOCK_MONOTONIC, UINT64_MAX, ACCURACY_US, on_stop_timer, s);
    if (r >= 0)
        r = sd_event_add_time(s->event, &s->tick, CLOCK_MONOTONIC, clock_mono_us() + TICK_US, 0, on_tick, s);
    if (r < 0)
        return err_errno(err, r, "event loop");
    return watch_signals(s, err);
}

/* A new service: its folder, its sockets, its units. */
static int begin(struct supervisor *s, struct err *err)
{
    bool crashed = false;
    int r = runtime_dir_open(config_str(s->config, SUPERVISOR_runtime_dir), &s->lock, &crashed, err);

    if (r == 0)
        r = make_loop(s, err);
    if (r)
        return r;
    s->listeners.patient_until_us = crashed ? s->started_us + PATIENT_US : 0;
    limits_open(s);
    listeners_inherit(&s->listeners);
    r = admin_open(s, -1, &s->admin, err);
    if (r == 0)
        r = fleet_fit(s, err);
    if (r == 0)                 /* else the next start may ask for it */
        listeners_trim(&s->listeners);
    return r;
}

/* One that another image of this program has begun. */
static int take_over(struct supervisor *s, struct err *err)
{
    int r = make_loop(s, err);

    if (r == 0)
        r = handover_read(s->options->handover, s, err);
    fd_close(s->options->handover);
    if (r)
        return r;
    limits_open(s);
    log_event(LOG_NOTICE, "upgrade", NULL, "this is fastchatd %s now; the processes follow one by one", FASTCHAT_VERSION);
    s->reloading = true;        /* the image before said RELOADING=1 */
    fleet_outdate(s);
    if (fleet_fit(s, err)) {    /* those that are there go on */
        log_event(LOG_ERR, "upgrade", NULL, "%s", err_text(err));
        reload_trouble(s, "%s", err_text(err));
    }
    return 0;
}

static void supervisor_fini(struct supervisor *s)
{
    s->listeners.ending = true;
    admin_close(s->admin);
    bus_free(s->bus);
    upgrade_free(s->upgrade);
    for (size_t i = s->n_units; i-- > 0;)
        unit_free(s->units[i]);
    packed_free(s);
    reload_let_go(s, &s->held);
    listeners_trim(&s->listeners);
    free(s->units);
    buf_fini(&s->told_models);
    buf_fini(&s->told_line);
    buf_fini(&s->troubles);
    sd_event_source_disable_unref(s->news);
    sd_event_source_disable_unref(s->tick);
    sd_event_source_disable_unref(s->stop_timer);
    sd_event_unref(s->event);
    runtime_dir_leave(s->lock);
    cgroup_close(s->cgroup);
    config_free(s->config);
    free(s);
}

static int run(struct supervisor *s)
{
    struct err err = { 0 };
    int r = s->options->handover ? take_over(s, &err) : begin(s, &err);

    if (r) {
        log_event(LOG_ERR, "service-failed", NULL, "%s", err_text(&err));
        return EXIT_FAILED;
    }
    for (size_t i = 0; i < s->config->n_files; i++)
        log_info("configuration: %s", s->config->files[i]);
    for (const struct listener *k = s->listeners.first; k; k = k->next)
        log_info("listening on %s", k->bound.text);
    r = sd_event_loop(s->event);
    commands_settle(s);
    if (r < 0) {
        log_error("event loop: %s", strerror(-r));
        return EXIT_FAILED;
    }
    log_event(LOG_NOTICE, "stopped", NULL, "the service has stopped");
    return r;
}

int supervisor_run(struct config *config, const struct supervisor_options *options)
{
    struct supervisor *s = calloc(1, sizeof *s);
    int code;

    if (!s) {
        config_free(config);
        return EXIT_FAILED;
    }
    raise_file_limit();
    s->config = config;
    s->options = options;
    s->lock = -1;
    s->started_us = clock_mono_us();
    s->bus = bus_new(s);
    supervisor_use_config(s);
    code = run(s);
    supervisor_fini(s);
    return code;
}

int supervisor_check_handover(int fd, struct err *err)
{
    return handover_read(fd, NULL, err);
}
