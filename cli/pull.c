/* pull.c - `fastchat pull`: a model from a hub, or a file from anywhere.
 *
 * First what there is (hub.h), then which of it is wanted (hub_choose.h), what it is
 * called here and what is there already (pull_plan.h), then file by file
 * (download.h). A model's manifest is written when all of its files are there. The
 * paths go to stdout, everything else to stderr, so that a script can use them.
 */
#include "cli/commands.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "base/reach.h"
#include "cli/download.h"
#include "cli/hub.h"
#include "cli/hub_access.h"
#include "cli/hub_choose.h"
#include "cli/model_dirs.h"
#include "cli/model_store.h"
#include "cli/progress.h"
#include "cli/pull_plan.h"
#include "cli/service.h"
#include "cli/term.h"
#include "cli/web.h"
#include "daemon/model_name.h"

#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_OPERANDS = 64, ANSWER_BYTES = 32 << 20, RETRIES = 5, TIMEOUT_S = 30 };

struct pull {
    const struct command *cmd;
    const char *operands[MAX_OPERANDS]; /* the source, then files */
    size_t n_files;
    const char *to, *name, *revision, *include, *exclude, *sha256, *cacert;
    struct service_args service;
    struct arg_number retries, timeout;
    bool offline, quiet, force;

    struct hub_access access;
    struct hub_source source;
    struct hub_listing listing;
    struct hub_file of_url; /* what a URL's file is: a listing of one */
    struct store store;
    struct plan plan;
    struct progress progress;
    struct web *web;
};

/* ---- the command line ---- */

static int parse(struct pull *p, int argc, char **argv)
{
    const struct arg args[] = {
        ARG(cacert, &p->cacert),
        ARG(exclude, &p->exclude),
        ARG(force, &p->force),
        ARG(include, &p->include),
        ARG(offline, &p->offline),
        ARG(pull_name, &p->name),
        ARG(quiet, &p->quiet),
        ARG(retries, &p->retries),
        ARG(revision, &p->revision),
        ARG(runtime_dir, &p->service.runtime_dir),
        ARG(sha256, &p->sha256),
        ARG(timeout, &p->timeout),
        ARG(to, &p->to),
    };
    int r = args_parse(p->cmd, args, sizeof args / sizeof args[0], argc, argv, p->operands, MAX_OPERANDS);

    while (p->n_files + 1 < MAX_OPERANDS && p->operands[p->n_files + 1])
        p->n_files++;
    return r;
}

/* One that makes a file's name too. */
static bool is_name(const char *name)
{
    if (!name[0] || strlen(name) > MODEL_NAME_MAX || name[0] == '.' || name[0] == '-')
        return false;
    for (const char *c = name; *c; c++)
        if (!model_name_char(*c) || strchr("/:@", *c))
            return false;
    return true;
}

/* Lower case, as digests are written. */
static bool take_sum(char ret[SHA256_HEX + 1], const char *text)
{
    if (strlen(text) != SHA256_HEX)
        return false;
    for (int i = 0; i <= SHA256_HEX; i++)
        ret[i] = text[i] >= 'A' && text[i] <= 'F' ? (char)(text[i] | 32) : text[i];
    return digest_is_hex(ret, SHA256_HEX);
}

static int check(struct pull *p)
{
    struct err err = { 0 };
    char sum[SHA256_HEX + 1];

    if (!p->operands[0])
        return args_mistake(p->cmd, "needs a source: ORGANISATION/NAME of a repository, or a URL");
    if (hub_access_read(&p->access, &err) < 0) {
        term_error("%s", err_text(&err));
        return CLI_FAILED;
    }
    if (hub_source_parse(p->operands[0], p->access.endpoint, &p->source, &err) < 0)
        return args_mistake(p->cmd, "%s", err_text(&err));
    if (p->name && !is_name(p->name))
        return args_mistake(p->cmd, "--name: a name has up to %d letters, digits and -_.+, and begins with none of -.", MODEL_NAME_MAX);
    if (p->sha256 && !take_sum(sum, p->sha256))
        return args_mistake(p->cmd, "--sha256 needs 64 hexadecimal digits");
    if (p->source.url[0] && (p->n_files || p->include || p->exclude || p->revision))
        return args_mistake(p->cmd, "a URL is one file: there is nothing to choose by name, pattern or revision");
    if (p->revision && p->source.revision[0] && strcmp(p->revision, p->source.revision) != 0)
        return args_mistake(p->cmd, "two revisions: %s and %s", p->source.revision, p->revision);
    if (p->revision && (!p->revision[0] || strlen(p->revision) >= sizeof p->source.revision))
        return args_mistake(p->cmd, "--revision needs a branch, tag or commit");
    if (p->revision)
        strcpy(p->source.revision, p->revision);
    p->offline |= hub_access_is_offline();
    return ARGS_RUN;
}

/* ---- what is wanted ---- */

/* What a URL's file is called: the last part of its path. */
static bool file_of_url(const char *url, char *ret, size_t size)
{
    const char *end = url + strcspn(url, "?#"), *at = end, *host = strstr(url, "://");
    char *to = ret;

    while (at > url && at[-1] != '/')
        at--;
    if (!host || at < host + 4 || (size_t)(end - at) >= size)
        return false;
    for (; at < end; at++) {
        unsigned v = 0;

        if (*at == '%' && end - at > 2 && sscanf(at + 1, "%2x", &v) == 1 && v >= 0x20) {
            *to++ = (char)v;
            at += 2;
        } else {
            *to++ = *at;
        }
    }
    *to = 0;
    return ret[0] && !strchr(ret, '/') && hub_path_is_safe(ret);
}

/* A manifest is read by everybody: no password, no signature. */
static void public_url(const char *url, char *ret, size_t size)
{
    const char *host = strstr(url, "://") + 3, *end = host + strcspn(host, "/?#");
    const char *at = memrchr(host, '@', (size_t)(end - host));

    snprintf(ret, size, "%.*s%.*s", (int)(host - url), url, (int)strcspn(at ? at + 1 : host, "?#"), at ? at + 1 : host);
}

static int plan_url(struct pull *p, struct err *err)
{
    char name[HUB_PATH_BYTES];

    public_url(p->source.url, p->plan.source, sizeof p->plan.source);
    if (!file_of_url(p->source.url, name, sizeof name) && !p->name)
        return err_set(err, -EINVAL, "%.200s: its end is no file's name; give one with --name", p->plan.source);
    p->of_url = (struct hub_file){ .path = strdup(name[0] ? name : p->name), .size = -1 };
    if (!p->of_url.path)
        return err_set(err, -ENOMEM, "no memory");
    if (p->sha256)
        take_sum(p->of_url.sha256, p->sha256);      /* so that one that is there counts only with it */
    return plan_add(&p->plan, "", &p->of_url, p->name, err);
}

/* What the hub says to a request. 0, -errno. */
static int hub_status(const struct pull *p, const struct web_answer *a, struct err *err)
{
    const struct hub_refusal refusal = {
        .endpoint = p->access.endpoint, .source = &p->source, .code = a->error_code, .message = a->error_message,
        .status = a->status, .with_token = p->access.token[0],
    };

    return a->status / 100 == 2 ? 0 : hub_explain(&refusal, err);
}

static int ask_commit(struct pull *p, struct err *err)
{
    BUF_LOCAL url = BUF_INIT;
    BUF_LOCAL body = BUF_INIT;
    struct web_answer a;
    int r;

    hub_url_revision(p->access.endpoint, &p->source, &url);
    r = web_text(p->web, buf_str(&url), ANSWER_BYTES, &body, &a, err);
    if (r == 0)
        r = hub_status(p, &a, err);
    return r == 0 ? hub_parse_revision(buf_str(&body), body.len, &p->listing, err) : r;
}

static int ask_files(struct pull *p, struct err *err)
{
    BUF_LOCAL url = BUF_INIT;
    BUF_LOCAL body = BUF_INIT;
    char next[HUB_URL_BYTES];

    hub_url_tree(p->access.endpoint, &p->source, p->listing.commit, &url);
    for (int page = 0; page < HUB_MAX_PAGES; page++) {
        struct web_answer a;
        int r = web_text(p->web, buf_str(&url), ANSWER_BYTES, &body, &a, err);

        if (r == 0)
            r = hub_status(p, &a, err);
        if (r == 0)
            r = hub_parse_tree(buf_str(&body), body.len, &p->listing, err);
        if (r != 0 || !hub_next_link(a.link, next))
            return r;
        if (!web_same_origin(next, p->access.endpoint))
            return err_set(err, -EPROTO, "the next page of the list of files is at another host");
        buf_clear(&url);
        buf_adds(&url, next);
    }
    return err_set(err, -E2BIG, "the list of files has over %d pages", HUB_MAX_PAGES);
}

/* --sha256 of what the hub lists. */
static int check_sum(const struct pull *p, struct err *err)
{
    const struct hub_file *of = p->plan.files[0].of;

    if (p->plan.n_files > 1)
        return err_set(err, -EINVAL, "--sha256 is of one file, and %zu are wanted", p->plan.n_files);
    if (of->sha256[0] && strcasecmp(of->sha256, p->sha256) != 0)
        return err_set(err, -EINVAL, "the hub's %s has the checksum %.12s…, not the %.12s… of --sha256", of->path, of->sha256,
                       p->sha256);
    return 0;
}

static int plan_hub(struct pull *p, struct err *err)
{
    const struct hub_wish wish = {
        .source = &p->source, .files = p->operands + 1, .n_files = p->n_files, .include = p->include, .exclude = p->exclude,
    };
    CLEANUP(mem_free) bool *chosen = NULL;
    int r = ask_commit(p, err);

    if (r == 0)
        r = ask_files(p, err);
    if (r != 0)
        return r;
    chosen = calloc(p->listing.n_files + 1, sizeof *chosen);
    if (!chosen)
        return err_set(err, -ENOMEM, "no memory");
    r = hub_choose(&p->listing, &wish, chosen, err);
    snprintf(p->plan.source, sizeof p->plan.source, "%s", p->source.repo);
    for (size_t i = 0; i < p->listing.n_files && r == 0; i++)
        if (chosen[i])
            r = plan_add(&p->plan, p->source.repo, &p->listing.files[i], p->name, err);
    return r == 0 && p->sha256 ? check_sum(p, err) : r;
}

/* ---- what is fetched ---- */

static int check_room(struct pull *p, struct err *err)
{
    int64_t missing = plan_missing(&p->plan), room = store_free_bytes(&p->store);
    char need[SIZE_TEXT], have[SIZE_TEXT];

    if (room < 0 || missing <= room)
        return 0;
    return err_set(err, -ENOSPC, "no room in %s: %s are to come and %s are free", p->store.path, size_text(missing, need),
                   size_text(room, have));
}

static void hub_file_url(const struct pull *p, const struct plan_file *f, struct buf *url, char *origin, size_t size)
{
    if (p->source.url[0]) {
        buf_adds(url, p->source.url);
        snprintf(origin, size, "%s", p->plan.source);
        return;
    }
    hub_url_file(p->access.endpoint, &p->source, p->listing.commit, f->of->path, url);
    snprintf(origin, size, "%s/%s", p->source.repo, f->of->path);
}

/* A file of the name that no manifest speaks of: it is the wanted one, or not to be
 * touched. 0: fetch it; PLAN_THERE; others as download_run. */
enum { PLAN_THERE = 2 };

static int look_closer(struct pull *p, struct plan_file *f, struct download *d, struct err *err)
{
    bool stop = false, known = d->sha256[0] || d->blob[0];

    if (p->force || store_size(&p->store, f->path) < 0)
        return 0;
    if (known && download_is_there(d, &stop))
        return PLAN_THERE;
    if (stop)
        return DOWNLOAD_INTERRUPTED;
    if (plan_is_ours(&p->plan, f))
        return 0;
    return err_set(err, -EEXIST, "%s/%s is there already%s: give the new one another name with --name, or replace it with --force",
                   p->store.path, f->path, known ? ", and is another file" : "");
}

static int fetch_file(struct pull *p, struct plan_file *f, struct err *err)
{
    BUF_LOCAL url = BUF_INIT;
    char origin[HUB_URL_BYTES + HUB_PATH_BYTES];
    struct hub_refusal refusal = {
        .endpoint = p->access.endpoint, .source = &p->source, .path = f->of->path, .with_token = p->access.token[0],
    };
    struct download d = {
        .web = p->web, .progress = &p->progress, .store = &p->store, .path = f->path, .origin = origin,
        .interrupt_fd = term_interrupts(), .size = f->of->size, .refusal = p->source.url[0] ? NULL : &refusal,
    };
    int r;

    hub_file_url(p, f, &url, origin, sizeof origin);
    if (url.failed)
        return err_set(err, -ENOMEM, "no memory");
    d.url = buf_str(&url);
    if (p->sha256)
        take_sum(d.sha256, p->sha256);
    else
        strcpy(d.sha256, f->of->sha256);
    strcpy(d.blob, f->of->blob);
    r = look_closer(p, f, &d, err);
    if (r == 0)
        r = download_run(&d, err);
    else if (r == PLAN_THERE)
        r = 0;
    if (r == 0) {
        f->there = true;
        f->size = d.size;
        strcpy(f->sha256, d.sha256);
    }
    return r;
}

static int fetch_model(struct pull *p, size_t model, struct err *err)
{
    bool any = false;

    for (size_t i = 0; i < p->plan.n_files; i++) {
        struct plan_file *f = &p->plan.files[i];
        int r;

        if (f->model != model || f->there)
            continue;
        any = true;
        r = fetch_file(p, f, err);
        if (r != 0)
            return r;
    }
    if (!any)
        progress_note(&p->progress, "%s is there already", p->plan.models[model].name);
    return plan_record(&p->plan, model, p->source.url[0] ? "" : p->source.revision[0] ? p->source.revision : "main",
                       p->listing.commit, err);
}

/* ---- what comes next ---- */

/* Where a model begins: its first GGUF file, else the folder of its files. */
static void path_of_model(const struct store *s, const char *name, const char *first, char ret[PATH_MAX])
{
    char real[PATH_MAX];

    if (!realpath(s->path, real))
        snprintf(real, sizeof real, "%s", s->path);
    if (strchr(first, '/'))
        snprintf(ret, PATH_MAX, "%s/%s", real, name);
    else
        snprintf(ret, PATH_MAX, "%s/%s", real, first);
}

static bool same_folder(const char *folder, void *user)
{
    char real[PATH_MAX];

    return realpath(folder, real) && strcmp(real, user) == 0;
}

static bool service_watches(const cJSON *status, char *folder)
{
    const cJSON *list = NULL, *item;

    json_get_array(status, "model_folders", &list, NULL);
    cJSON_ArrayForEach(item, list) if (cJSON_IsString(item) && same_folder(item->valuestring, folder)) return true;
    return false;
}

/* What the user of the running service may not read it can not load. */
static void check_reach(struct pull *p, const cJSON *status, const char *path)
{
    struct reach_user user = { 0 };
    struct err why = { 0 }, ignored = { 0 };
    int64_t pid = 0;

    if (json_get_int(status, "pid", 1, INT32_MAX, &pid, &ignored) != 0 || reach_process((pid_t)pid, &user, &ignored) < 0)
        return;
    if (reach_read(path, &user, &why) == -EACCES)
        progress_note(&p->progress, "note: %s. 'sudo fastchat pull' puts models into " STORE_SYSTEM, err_text(&why));
    reach_fini(&user);
}

static void check_kind(struct pull *p, const char *path)
{
    const char *quantisation = hub_quantisation(path);
    BUF_LOCAL running = BUF_INIT;

    if (!quantisation || hub_quantisation_runs(quantisation))
        return;
    hub_quantisations_that_run(&running);
    progress_note(&p->progress, "note: the worker does not compute with %s; it does with %s", quantisation, buf_str(&running));
}

/* For the first model; the others are as it. */
static void say_next(struct pull *p)
{
    CLEANUP(json_delete) cJSON *status = NULL;
    const struct plan_file *f = &p->plan.files[0];
    const char *name = p->plan.models[f->model].name, *config = "";
    struct err ignored = { 0 };
    char folder[PATH_MAX], path[PATH_MAX];

    if (!realpath(p->store.path, folder))
        return;
    path_of_model(&p->store, name, f->path, path);
    if (!hub_is_gguf(f->path)) {
        progress_note(&p->progress, "the service loads GGUF files; these are of another kind");
        return;
    }
    check_kind(p, f->path);
    if (service_status(&p->service, &status, NULL, &ignored) == 0) {
        check_reach(p, status, path);
        json_get_string(status, "config", &config, NULL);
        if (service_watches(status, folder))
            progress_note(&p->progress, "next: 'fastchat reload' lets the running service offer %s", name);
        else
            progress_note(&p->progress, "next: put { name = \"%s\"; path = \"%s\"; } into models of %s, then 'fastchat reload'",
                          name, path, config);
    } else {
        bool found = model_dirs_each(same_folder, folder) && model_file_part(f->path) == 0;

        progress_note(&p->progress, "next: 'fastchat run %s' talks to it", found ? name : path);
    }
}

static void print_path(const struct store *s, const char *name, const char *first)
{
    char path[PATH_MAX];

    path_of_model(s, name, first, path);
    printf("%s\n", path);
}

/* ---- offline ---- */

struct offline {
    struct pull *p;
    const char *source;
    size_t n_found, n_broken;
};

/* True when a manifest's file is one that is asked for. */
static bool is_asked(const struct pull *p, const struct manifest_file *f)
{
    if (p->source.path[0])
        return strcmp(p->source.path, f->from) == 0;
    if (p->source.tag[0])
        return hub_has_tag(f->from, p->source.tag);
    if (p->include && !hub_matches(p->include, f->from))
        return false;
    for (size_t i = 0; i < p->n_files; i++)
        if (fnmatch(p->operands[1 + i], f->from, 0) == 0)
            return true;
    return p->n_files == 0;
}

static bool is_of(const struct offline *o, const struct store_entry *e)
{
    const char *revision = o->p->source.revision;

    if (!e->pulled || strcmp(e->m.source, o->source) != 0 || (o->p->name && strcmp(o->p->name, e->m.name) != 0) ||
        (revision[0] && strcmp(revision, e->m.revision) != 0 && strcmp(revision, e->m.commit) != 0))
        return false;
    for (size_t i = 0; i < e->m.n_files; i++)
        if (is_asked(o->p, &e->m.files[i]))
            return true;
    return false;
}

static bool look_offline(const char *folder, void *user)
{
    struct offline *o = user;
    struct store s;
    struct store_list list = { 0 };
    struct err ignored = { 0 };

    if (store_open(folder, false, &s, &ignored) < 0)
        return false;
    if (store_list(&s, &list, &ignored) == 0)
        for (size_t i = 0; i < list.n; i++) {
            if (!is_of(o, &list.entries[i]))
                continue;
            if (list.entries[i].missing) {
                o->n_broken++;
                continue;
            }
            o->n_found++;
            print_path(&s, list.entries[i].m.name, list.entries[i].m.files[0].path);
        }
    store_list_fini(&list);
    store_close(&s);
    return false;
}

static int answer_offline(struct pull *p)
{
    char source[STORE_SOURCE_BYTES];
    struct offline o = { .p = p, .source = source };

    if (p->source.url[0])
        public_url(p->source.url, source, sizeof source);
    else
        snprintf(source, sizeof source, "%s", p->source.repo);
    if (p->to)
        look_offline(p->to, &o);
    else
        model_dirs_each(look_offline, &o);
    if (o.n_found > 0)
        return CLI_DONE;
    if (o.n_broken > 0)
        term_error("offline: %s is here, but not whole; without --offline, pull fetches what is missing", p->operands[0]);
    else
        term_error("offline: %s is not here; 'fastchat model list' shows what is. Without --offline (and HF_HUB_OFFLINE), pull fetches it",
                   p->operands[0]);
    return CLI_FAILED;
}

/* ---- the whole ---- */

static int open_web(struct pull *p, struct err *err)
{
    const struct web_options options = {
        .cacert = p->cacert,
        .home = p->access.endpoint,
        .token = p->access.token[0] && !p->source.url[0] ? p->access.token : NULL,
        .timeout_s = p->timeout.given ? (unsigned)p->timeout.value : TIMEOUT_S,
        .retries = p->retries.given ? (unsigned)p->retries.value : RETRIES,
        .interrupt_fd = term_interrupts(),
        .progress = &p->progress,
    };

    if (options.token && !web_is_private(p->access.endpoint))
        progress_note(&p->progress, "the token is not sent to %s: that is not https", p->access.endpoint);
    return web_open(&options, &p->web, err);
}

static int run_plan(struct pull *p, struct err *err)
{
    int r = p->source.url[0] ? plan_url(p, err) : plan_hub(p, err);

    if (r == 0)
        r = plan_look(&p->plan, p->force, err);
    if (r == 0)
        r = check_room(p, err);
    for (size_t i = 0; i < p->plan.n_models && r == 0; i++)
        r = fetch_model(p, i, err);
    return r;
}

static int work(struct pull *p, struct err *err)
{
    char folder[PATH_MAX];
    int r = 0;

    if (!p->to)
        r = store_default(folder, err);
    if (r == 0)
        r = store_open(p->to ? p->to : folder, true, &p->store, err);
    p->plan.store = &p->store;
    if (r == 0)
        r = open_web(p, err);
    return r == 0 ? run_plan(p, err) : r;
}

static int finish(struct pull *p, int r, const struct err *err)
{
    if (r == DOWNLOAD_INTERRUPTED) {
        term_error("stopped; the same command goes on with what is there");
        return CLI_FAILED;
    }
    if (r < 0) {
        term_error("%s", err_text(err));
        return CLI_FAILED;
    }
    for (size_t m = 0; m < p->plan.n_models; m++)
        for (size_t i = 0; i < p->plan.n_files; i++)
            if (p->plan.files[i].model == m) {
                print_path(&p->store, p->plan.models[m].name, p->plan.files[i].path);
                break;
            }
    fflush(stdout);
    say_next(p);
    return CLI_DONE;
}

int pull_run(const struct command *cmd, int argc, char **argv)
{
    struct pull p = { .cmd = cmd, .store.fd = -1 };
    struct err err = { 0 };
    int code = parse(&p, argc, argv);

    if (code == ARGS_RUN)
        code = check(&p);
    if (code != ARGS_RUN)
        return code;
    if (p.offline)
        return answer_offline(&p);
    /* a write over a limit is an error of that write */
    signal(SIGXFSZ, SIG_IGN);
    term_catch_end();
    progress_init(&p.progress, p.quiet);
    code = finish(&p, work(&p, &err), &err);
    plan_fini(&p.plan);
    hub_listing_fini(&p.listing);
    free(p.of_url.path);
    web_close(p.web);
    store_close(&p.store);
    return code;
}
