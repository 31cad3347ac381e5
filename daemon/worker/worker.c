/* One model from start to end: settings, sockets, loading, ready, draining.
 *
 * The engine loads on a thread of its own while the loop answers status
 * requests and beats. The loader writes its result, then `loaded`, then wakes
 * the loop by the same eventfd that the engine uses for events; from then on
 * the loop's thread is the engine's caller.
 *
 * A model that can not be loaded because of its file or settings is reported
 * and ends the process with the code that is not restarted; for want of memory
 * and other passing reasons with the one that is. */
#include "daemon/worker/worker.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "conv/chat.h"
#include "daemon/child.h"
#include "daemon/roles.h"
#include "daemon/worker/register.h"
#include "gen/weights.h"
#include "ipc/http_client.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>

static void health(struct http_request *req, void *user)
{
    static const char *const status[] = {
        [WORKER_LOADING] = "{\"status\":\"loading\"}",
        [WORKER_READY] = "{\"status\":\"ok\"}",
        [WORKER_DRAINING] = "{\"status\":\"draining\"}",
    };
    struct worker *w = user;

    http_reply_json(req, w->phase == WORKER_READY ? 200 : 503, status[w->phase]);
}

enum { COUNT_BODY_BYTES = 8 << 20 };    /* a count has no context that bounds it */

static const struct http_route routes[] = {
    { "POST", "/count_token", contract_count_token, COUNT_BODY_BYTES },
    { "POST", "/fastchat/detokenize", text_detokenize, 0 },
    { "POST", "/fastchat/generate", generate_handle, 0 },
    { "POST", "/fastchat/render", text_render, 0 },
    { "POST", "/fastchat/tokenize", text_tokenize, COUNT_BODY_BYTES },
    { "GET", "/health", health, 0 },
    { "POST", "/model_details", contract_model_details, 0 },
    { "POST", "/worker_generate", contract_generate, 0 },
    { "POST", "/worker_generate_stream", contract_generate_stream, 0 },
    { "POST", "/worker_get_conv_template", contract_conv_template, 0 },
    { "POST", "/worker_get_embeddings", contract_embeddings, 0 },
    { "POST", "/worker_get_status", contract_status, 0 },
};

/* ---- what others ask ---- */

uint32_t worker_queue_length(const struct worker *w)
{
    return w->n_jobs;
}

const char *worker_refusal(const struct worker *w, const char **ret_code)
{
    if (w->phase == WORKER_READY)
        return NULL;
    if (ret_code)
        *ret_code = w->phase == WORKER_LOADING ? "loading" : "draining";
    return w->phase == WORKER_LOADING ? "the model is loading" : "the model is stopping";
}

size_t worker_surely_too_long(const struct worker *w, size_t bytes)
{
    static const size_t many = 1 << 20;     /* a tenth of a second, and exact numbers read better */
    const struct engine_info *info = engine_info(w->engine);
    size_t least = info->longest_token ? bytes / info->longest_token : 0;

    return bytes > many && least > info->context_length ? least : 0;
}

void worker_status(struct worker *w, struct json_writer *out)
{
    json_key(out, "model_names");
    json_open(out, '[');
    json_str(out, w->set.name);
    for (size_t i = 0; i < w->set.n_aliases; i++)
        json_str(out, w->set.aliases[i]);
    json_close(out, ']');
    json_kint(out, "speed", 1);
    json_kint(out, "queue_length", worker_queue_length(w));
}

bool worker_alive(struct worker *w, uint64_t *seen, uint64_t *ret_busy_ms)
{
    uint64_t beats = atomic_load(&w->pulse.beats), until = atomic_load(&w->pulse.busy_until_us),
             now = clock_mono_us();
    bool moved = beats != *seen;

    *seen = beats;
    *ret_busy_ms = until > now ? (until - now) / 1000 + 1 : 0;
    return moved || until > now || atomic_load(&w->pulse.idle);
}

static bool alive(uint64_t *busy_ms, void *user)
{
    struct worker *w = user;

    return worker_alive(w, &w->pulse_seen, busy_ms);
}

/* How long the request has waited that waits longest now. */
static uint64_t oldest_wait_us(const struct worker *w, uint64_t now)
{
    uint64_t oldest = 0;

    for (const struct job *j = w->jobs; j; j = j->next)
        if (!j->admitted && now - j->submitted_us > oldest)
            oldest = now - j->submitted_us;
    return oldest;
}

static void stats(struct json_writer *out, void *user)
{
    struct worker *w = user;
    uint64_t now = clock_mono_us();
    bool idle = w->n_jobs == 0 && w->engine;
    struct engine_stats s = { 0 };
    struct rates_now rates;

    if (w->engine)
        engine_stats(w->engine, &s);
    rates = rates_take(&w->rates, now, s.prompt_tokens, s.generated_tokens);
    if (w->engine)
        json_kstr(out, "engine", engine_info(w->engine)->backend);
    json_kint(out, "running", s.running);
    json_kint(out, "waiting", s.waiting);
    json_kint(out, "kv_pages", s.kv_pages);
    json_kint(out, "kv_pages_free", s.kv_pages_free);
    json_kint(out, "kv_pages_cached", s.kv_pages_cached);
    json_kint(out, "forwards", (int64_t)s.forwards);
    json_kint(out, "forwards_batched", (int64_t)s.forwards_batched);
    json_kint(out, "prompt_tokens", (int64_t)s.prompt_tokens);
    json_kint(out, "cached_tokens", (int64_t)s.cached_tokens);
    json_kint(out, "generated_tokens", (int64_t)s.generated_tokens);
    json_kint(out, "drafted_tokens", (int64_t)s.drafted_tokens);
    json_kint(out, "accepted_tokens", (int64_t)s.accepted_tokens);
    json_kint(out, "preemptions", (int64_t)s.preemptions);
    json_knum(out, "prompt_per_s", rates.prompt_per_s);
    json_knum(out, "generated_per_s", rates.generated_per_s);
    json_kint(out, "queue_length", worker_queue_length(w));
    json_kint(out, "wait_ms", (int64_t)rates.wait_ms);
    json_kint(out, "wait_max_ms", (int64_t)rates.wait_max_ms);
    json_kint(out, "oldest_wait_ms", (int64_t)(oldest_wait_us(w, now) / 1000));
    json_kint(out, "idle_ms", idle ? (int64_t)((now - w->idle_since_us) / 1000) : 0);
}

/* ---- draining ---- */

static void drained(void *user)
{
    loop_stop(((struct worker *)user)->loop, EXIT_DONE);
}

void worker_leave_when_done(struct worker *w)
{
    if (w->phase != WORKER_DRAINING || w->staying || w->leaving || w->n_jobs)
        return;
    w->leaving = true;
    http_server_drain(w->server, 0, drained, w);
}

enum { STAY_MS = 200 };

static void stayed(void *user)
{
    struct worker *w = user;

    w->staying = false;
    worker_leave_when_done(w);
}

/* While streams run the sockets stay open and new requests hear a 503; and for a
 * moment in any case, for those who ask before they have heard that it leaves:
 * a connection that is cut looks like a death. */
static void drain(uint64_t limit_ms, void *user)
{
    struct worker *w = user;

    if (w->phase == WORKER_DRAINING)
        return;
    w->staying = w->phase == WORKER_READY;
    w->phase = WORKER_DRAINING;
    if (w->staying)
        loop_timer_set(w->stay, limit_ms < STAY_MS ? 0 : STAY_MS * 1000);
    log_notice("draining: %u requests are left", w->n_jobs);
    registrar_leave(w->registrar);
    worker_leave_when_done(w);
}

/* ---- new settings ---- */

static bool same_standing(const struct settings *a, const struct settings *b)
{
    if (a->n_aliases != b->n_aliases || a->queue != b->queue)
        return false;
    for (size_t i = 0; i < a->n_aliases; i++)
        if (strcmp(a->aliases[i], b->aliases[i]) != 0)
            return false;
    return true;
}

/* Requests that run took their values with them when they began. */
static int reload(const cJSON *tree, void *user, struct err *err)
{
    struct worker *w = user;
    CLEANUP(arena_free) struct arena *arena = arena_new(0);
    struct settings old = w->set;
    bool same;
    int r;

    if (!arena)
        return err_set(err, -ENOMEM, "no memory");
    /* In place: the loader may be reading the rest of them. */
    r = settings_renew(tree, arena, &w->set, err);
    if (r < 0)
        return r;
    same = same_standing(&old, &w->set);
    arena_free(w->renewed);
    w->renewed = STEAL(arena);
    if (!same && w->phase == WORKER_READY)
        registrar_renew(w->registrar);
    return 0;
}

/* ---- loading ---- */

static void notify(void *user)
{
    struct worker *w = user;
    uint64_t one = 1;

    if (write(w->wake.fd, &one, sizeof one) < 0 && errno != EAGAIN)
        log_error("eventfd: %s", strerror(errno));
}

static void say(void *user, const char *text)
{
    log_info("%s: %s", ((struct worker *)user)->set.path, text);
}

static void *load(void *user)
{
    struct worker *w = user;
    const struct engine_config config = {
        .name = w->set.name, .path = w->set.path, .device = w->set.device, .context = w->set.context,
        .threads = w->set.threads, .isa = w->set.isa, .parallel = w->set.parallel, .kv_tokens = w->set.kv_tokens,
        .speculative = w->set.speculative, .draft_model = w->set.draft_model, .draft_tokens = w->set.draft_tokens,
        .kv_type = w->set.kv_type, .prefix = w->set.prefix, .chat_template = w->set.chat_template, .templates = w->set.registry, .pulse = &w->pulse, .share = &w->share,
        .notify = notify, .notify_user = w,
        .say = say, .say_user = w,
    };

    w->load_result = engine_open(&config, &w->opened, w->load_err);
    atomic_store(&w->loaded, true);
    notify(w);
    return NULL;
}

/* What the same files and settings would lead to again. */
static bool is_configuration(int error)
{
    static const int errors[] = {
        E2BIG, EACCES, EINVAL, EISDIR, ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR, ENOTSUP, EPERM,
    };

    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (error == -errors[i])
            return true;
    return false;
}

static void load_failed(struct worker *w)
{
    bool configuration = is_configuration(w->load_result);

    log_error("the model can not be loaded: %s", err_text(w->load_err));
    child_state(w->child, "failed", err_text(w->load_err));
    loop_stop(w->loop, configuration ? EXIT_CONFIG : EXIT_FAILED);
}

/* The loader has written its result: takes it over. */
static void loader_join(struct worker *w)
{
    pthread_join(w->loader, NULL);
    w->loader_runs = false;
    fd_close(STEAL_FD(w->share.given));
    w->engine = STEAL(w->opened);
}

static void hand_weights_on(struct worker *w)
{
    const double mb = (double)engine_info(w->engine)->weight_bytes / 1e6;

    if (mb <= 0)
        return;
    if (w->share.why[0])
        log_notice("the packed weights of an earlier process are not used: %s", w->share.why);
    if (w->share.taken)
        log_info("weights: %.1f MB that an earlier process packed", mb);
    else if (w->share.made >= 0)
        log_info("weights: %.1f MB packed, for other processes too", mb);
    else
        log_info("weights: %.1f MB packed, for this process alone", mb);
    if (w->share.made >= 0)
        child_give_weights(w->child, STEAL_FD(w->share.made));
}

static void load_done(struct worker *w)
{
    const struct engine_info *info;

    loader_join(w);
    if (w->load_result < 0) {
        load_failed(w);
        return;
    }
    hand_weights_on(w);
    w->idle_since_us = clock_mono_us();
    rates_take(&w->rates, w->idle_since_us, 0, 0);      /* what comes before the first beat counts too */
    if (w->phase == WORKER_DRAINING)
        return;
    info = engine_info(w->engine);
    log_notice("ready: %s on %s, context %u, %u at once", info->model, info->backend, info->context_length,
               w->set.parallel);
    log_info("chat template %s: %s", chat_name(info->chat), info->chat_reason);
    w->phase = WORKER_READY;
    registrar_start(w->registrar);
}

void worker_announce(struct worker *w)
{
    if (w->phase == WORKER_READY)
        child_state(w->child, "ready", NULL);
}

static void on_wake(struct loop_io *io, uint32_t events)
{
    struct worker *w = io->user;
    uint64_t count;

    while (read(io->fd, &count, sizeof count) < 0 && errno == EINTR)
        ;
    if (w->loader_runs && atomic_load(&w->loaded))
        load_done(w);
    if (w->engine)
        engine_poll(w->engine, job_event, NULL);
    worker_leave_when_done(w);
}

/* ---- start and end ---- */

static int listen_on(struct worker *w, const char *name, struct err *err)
{
    int fd = child_take_socket(w->child, name);

    return fd < 0 ? 0 : http_server_listen(w->server, fd, err);
}

static void listen_anew(const char *name, int fd, void *user)
{
    struct worker *w = user;
    struct err err = { 0 };

    if (http_server_listen(w->server, fd, &err) < 0) {
        log_error("%s: %s", name, err_text(&err));
        close(fd);
    }
}

static void on_shortage(int error, void *user)
{
    log_warning("connections are refused: %s", strerror(-error));
}

/* Who reads too slowly is for the api in front to judge: it stops reading here
 * while its own client catches up, and ends the request itself. */
enum { STALL_US = 600000000 };

static int open_sockets(struct worker *w, struct err *err)
{
    struct http_config config = {
        .routes = routes, .n_routes = sizeof routes / sizeof routes[0], .user = w,
        .limits.stall_us = STALL_US, .shortage = on_shortage,
    };
    int r;

    if ((r = http_server_open(w->loop, &config, &w->server, err)) < 0 ||
        (r = listen_on(w, "worker.unix", err)) < 0 || (r = listen_on(w, "worker.tcp", err)) < 0)
        return r;
    http_server_gather(w->server);
    return http_client_open(w->loop, &w->client, err);
}

static int start_loading(struct worker *w, struct err *err)
{
    int r;

    w->share.want = w->set.share_weights;
    w->share.given = child_take_weights(w->child);

    w->wake = (struct loop_io){ .fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .fn = on_wake, .user = w };
    if (w->wake.fd < 0)
        return err_errno(err, -errno, "eventfd");
    r = loop_add(w->loop, &w->wake, EPOLLIN);
    if (r < 0)
        return err_errno(err, r, "eventfd");
    r = pthread_create(&w->loader, NULL, load, w);
    w->loader_runs = r == 0;
    return r ? err_errno(err, -r, "no thread to load the model") : 0;
}

/* 0, or the failure with a sentence; then the process ends with EXIT_CONFIG
 * when the settings are at fault. */
static int worker_start(struct worker *w, struct err *err)
{
    int r;

    w->loop = child_loop(w->child);
    w->arena = arena_new(0);
    if (!w->arena)
        return err_set(err, -ENOMEM, "no memory");
    r = settings_read(child_settings(w->child), w->arena, &w->set, err);
    if (r < 0) {
        err_place(err, "settings");
        return r;
    }
    r = loop_timer_new(w->loop, stayed, w, &w->stay);
    if (r < 0)
        return err_errno(err, r, "timer");
    if ((r = open_sockets(w, err)) < 0 || (r = registrar_open(w, &w->registrar, err)) < 0)
        return r;
    return start_loading(w, err);
}

/* A loader that still runs can not be stopped: the process ends under it. */
static void worker_stop(struct worker *w, int code)
{
    if (w->loader_runs && !atomic_load(&w->loaded))
        _exit(code);
    if (w->loader_runs)
        loader_join(w);
    registrar_close(w->registrar);
    loop_timer_free(w->stay);
    http_server_close(w->server);       /* cancels what runs, so before the engine */
    http_client_close(w->client);
    if (w->wake.events)
        loop_remove(w->loop, &w->wake);
    engine_close(w->engine);
    fd_close(w->share.given);
    fd_close(w->share.made);
    if (w->wake.fd > 0)
        close(w->wake.fd);
    settings_fini(&w->set);
    arena_free(w->renewed);
    arena_free(w->arena);
    child_close(w->child);
}

int worker_main(int argc, char **argv)
{
    static char role[160];
    struct err err = { 0 }, load_err = { 0 };
    struct worker w = { .load_err = &load_err, .share = { .given = -1, .made = -1 } };
    const struct child_ops ops = {
        .drain = drain, .listen = listen_anew, .reload = reload, .alive = alive, .stats = stats, .user = &w,
    };
    int r, code;

    if (argc != 3) {
        fprintf(stderr, "usage: fastchat-worker MODEL REPLICA (started by fastchatd)\n");
        return EXIT_FAILED;
    }
    snprintf(role, sizeof role, "worker %s/%s", argv[1], argv[2]);
    log_set_model(argv[1]);
    r = child_open(role, &ops, &w.child, &err);
    if (r == 0) {
        r = worker_start(&w, &err);
        if (r < 0)
            child_state(w.child, "failed", err_text(&err));
    }
    if (r < 0)
        log_error("%s", err_text(&err));
    code = r == 0 ? loop_run(w.loop) : is_configuration(r) ? EXIT_CONFIG : EXIT_FAILED;
    if (code < 0)
        code = EXIT_FAILED;
    worker_stop(&w, code);
    return code;
}
