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
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <systemd/sd-daemon.h>

enum { ACCURACY_US = 1000, HURRY_US = 1000000 };

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

static int on_news(sd_event_source *source, void *user)
{
    struct supervisor *s = user;
    BUF_LOCAL models = BUF_INIT;
    BUF_LOCAL line = BUF_INIT;

    status_models(s, &models);
    if (is_news(&s->told_models, &models)) {
        unit_post(s->controller, MAIL_MODELS);
        unit_post(s->api, MAIL_MODELS);
    }
    status_line(s, &line);
    if (is_news(&s->told_line, &line))
        sd_notifyf(0, "STATUS=%s", buf_str(&line));
    if (!s->announced && s->api->state == UNIT_READY) {
        s->announced = true;
        sd_notify(0, "READY=1");
        log_event(LOG_INFO, "service-ready", NULL, "the service is ready: %s", buf_str(&line));
    }
    return 0;
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

    s->exit_code = code;
    s->phase = STOP_API;
    s->drain_until_us = clock_mono_us() + drain_us;
    sd_notify(0, "STOPPING=1");
    set_stop_timer(s, drain_us);
    /* None of them is started again, whatever its turn. */
    for (size_t i = 0; i < s->n_units; i++) {
        s->units[i]->stopping = true;
        if (s->units[i]->pid == 0 || s->units[i] == s->api)
            unit_stop(s->units[i], MAIL_DRAIN);
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

uint64_t supervisor_drain_left_ms(const struct supervisor *s)
{
    uint64_t now = clock_mono_us();

    return s->drain_until_us > now ? (s->drain_until_us - now) / 1000 : 0;
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
    log_notice("SIGHUP: the configuration is only read at the start; restart the service to apply changes");
    return 0;
}

static int watch_signals(struct supervisor *s, struct err *err)
{
    static const int numbers[] = { SIGTERM, SIGINT, SIGHUP };
    sigset_t set;
    int r = 0;

    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        sigaddset(&set, numbers[i]);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    for (size_t i = 0; r >= 0 && i < sizeof numbers / sizeof numbers[0]; i++)
        r = sd_event_add_signal(s->event, NULL, numbers[i],
                                numbers[i] == SIGHUP ? on_hangup : on_stop_signal, s);
    return r < 0 ? err_errno(err, r, "signals") : 0;
}

/* ---- the units ---- */

static int add_unit(struct supervisor *s, enum unit_role role, size_t model, int replica,
                    struct err *err)
{
    int r = unit_new(s, role, model, replica, &s->units[s->n_units], err);

    if (r == 0)
        s->n_units++;
    return r;
}

static int add_own_socket(struct unit *u, const char *name, const char *path, bool keep, struct err *err)
{
    BUF_LOCAL address = BUF_INIT;

    buf_printf(&address, "unix:%s", path);
    return unit_add_socket(u, name, buf_str(&address), 0660, (gid_t)-1, keep, err);
}

static int add_controller(struct supervisor *s, struct err *err)
{
    const char *tcp = config_str(s->config, CONTROLLER_listen);
    BUF_LOCAL path = BUF_INIT;
    int r = add_unit(s, UNIT_CONTROLLER, 0, 0, err);

    if (r)
        return r;
    s->controller = s->units[s->n_units - 1];
    config_socket_path(s->config, "controller.sock", &path);
    r = add_own_socket(s->controller, "controller.unix", buf_str(&path), true, err);
    if (r == 0 && tcp)
        r = unit_add_socket(s->controller, "controller.tcp", tcp, 0, (gid_t)-1, true, err);
    return r;
}

/* A worker's sockets are made anew for each start: while it is down, whoever
 * tries it is refused instead of kept waiting. */
static int add_worker(struct supervisor *s, size_t model, int replica, struct err *err)
{
    BUF_LOCAL text = BUF_INIT;
    int r = add_unit(s, UNIT_WORKER, model, replica, err);

    if (r)
        return r;
    config_worker_socket(s->config, model, replica, &text);
    r = add_own_socket(s->units[s->n_units - 1], "worker.unix", buf_str(&text), false, err);
    buf_clear(&text);
    config_worker_tcp(s->config, model, replica, MODEL_listen, &text);
    if (r == 0 && text.len)
        r = unit_add_socket(s->units[s->n_units - 1], "worker.tcp", buf_str(&text), 0, (gid_t)-1, false, err);
    return r;
}

static int add_api(struct supervisor *s, struct err *err)
{
    int r = add_unit(s, UNIT_API, 0, 0, err);

    if (r)
        return r;
    s->api = s->units[s->n_units - 1];
    for (size_t i = 0; r == 0 && i < s->config->n_listeners; i++) {
        const struct config_value *v = s->config->listeners[i]->values;
        char name[16];

        snprintf(name, sizeof name, "api.%zu", i);
        r = unit_add_socket(s->api, name, v[LISTEN_address].s, (mode_t)v[LISTEN_mode].i,
                            v[LISTEN_group].set ? (gid_t)v[LISTEN_group].i : (gid_t)-1, true, err);
    }
    return r;
}

static int add_units(struct supervisor *s, struct err *err)
{
    const struct config *c = s->config;
    size_t n = 2;
    int r;

    for (size_t m = 0; m < c->n_models; m++)
        n += (size_t)c->models[m]->values[DEFAULTS_replicas].i;
    s->units = calloc(n, sizeof *s->units);
    if (!s->units)
        return err_set(err, -ENOMEM, "no memory");
    r = add_controller(s, err);
    for (size_t m = 0; r == 0 && m < c->n_models; m++)
        for (int i = 0; r == 0 && i < c->models[m]->values[DEFAULTS_replicas].i; i++)
            r = add_worker(s, m, i, err);
    if (r == 0)
        r = add_api(s, err);
    for (size_t i = 0; r == 0 && i < s->n_units; i++)
        r = unit_bind(s->units[i], err);
    return r;
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

/* Children with many connections inherit what the system allows. */
static void raise_file_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static int prepare(struct supervisor *s, struct err *err)
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
    if (r < 0)
        return err_errno(err, r, "event loop");
    r = watch_signals(s, err);
    if (r == 0)
        r = add_units(s, err);
    if (r == 0)
        r = admin_open(s, &s->admin, err);
    return r;
}

static void supervisor_fini(struct supervisor *s)
{
    admin_close(s->admin);
    for (size_t i = s->n_units; i-- > 0;)
        unit_free(s->units[i]);
    free(s->units);
    buf_fini(&s->told_models);
    buf_fini(&s->told_line);
    sd_event_source_disable_unref(s->news);
    sd_event_source_disable_unref(s->stop_timer);
    sd_event_unref(s->event);
}

static int run(struct supervisor *s)
{
    struct err err = { 0 };
    int r = prepare(s, &err);

    if (r) {
        log_event(LOG_ERR, "service-failed", NULL, "%s", err_text(&err));
        return EXIT_FAILED;
    }
    for (size_t i = 0; i < s->config->n_files; i++)
        log_info("configuration: %s", s->config->files[i]);
    for (size_t i = 0; i < s->api->n_sockets; i++)
        log_info("the api listens on %s", s->api->sockets[i].bound.text);
    for (size_t i = 0; i < s->n_units && s->phase == STOP_NOT; i++)
        unit_start(s->units[i]);
    r = sd_event_loop(s->event);
    if (r < 0) {
        log_error("event loop: %s", strerror(-r));
        return EXIT_FAILED;
    }
    log_event(LOG_NOTICE, "stopped", NULL, "the service has stopped");
    return r;
}

int supervisor_run(const struct config *config, const struct supervisor_options *options)
{
    CLEANUP(fd_close) int lock = -1;
    CLEANUP(mem_free) struct supervisor *s = NULL;
    struct err err = { 0 };
    int code;

    if (runtime_dir_open(config_str(config, SUPERVISOR_runtime_dir), &lock, &err)) {
        log_event(LOG_ERR, "service-failed", NULL, "%s", err_text(&err));
        return EXIT_FAILED;
    }
    raise_file_limit();
    s = calloc(1, sizeof *s);
    if (!s)
        return EXIT_FAILED;
    s->config = config;
    s->options = options;
    s->started_us = clock_mono_us();
    s->restart_limits = restart_limits(config);
    code = run(s);
    supervisor_fini(s);
    return code;
}
