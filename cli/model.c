/* model.c - `fastchat model info|list|rm|verify`: the files of models on this machine.
 *
 * What lies in the folders where models are looked for: those of the running service
 * (supervisor.model_folders), those of supervisor.model_dirs, or the one of --dir.
 * The service's view of its models is `fastchat models`.
 */
#include "cli/commands.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "base/nearest.h"
#include "cli/download.h"
#include "cli/model_dirs.h"
#include "cli/model_info.h"
#include "cli/model_store.h"
#include "cli/progress.h"
#include "cli/service.h"
#include "cli/term.h"
#include "gen/cpu/kernels.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_OPERANDS = 65, MAX_FOLDERS = 64 };

struct folder {
    struct store store;
    struct store_list list;
};

struct model {
    const struct command *cmd;
    const char *operands[MAX_OPERANDS]; /* the action, then names */
    size_t n_names;
    const char *dir, *isa, *kv_type;
    struct service_args service;
    struct arg_number context, parallel, replicas;
    bool force, json, quiet, yes;

    struct folder *folders;
    size_t n_folders;
    cJSON *status; /* of the running service; NULL: none answers */
    struct progress progress;
};

/* ---- the folders ---- */

/* One that is not there is left out, one that is not ours to read with a word. */
static bool take_folder(const char *path, void *user)
{
    struct model *m = user;
    struct folder f = { .store.fd = -1 };
    struct err why = { 0 };
    struct stat st, other;

    if (m->n_folders == MAX_FOLDERS)
        return false;
    if (store_open(path, false, &f.store, &why) < 0) {
        if (why.code != -ENOENT)
            term_error("%s; left out", err_text(&why));
        return false;
    }
    for (size_t i = 0; i < m->n_folders; i++)
        if (fstat(f.store.fd, &st) == 0 && fstat(m->folders[i].store.fd, &other) == 0 && st.st_dev == other.st_dev &&
            st.st_ino == other.st_ino) {
            store_close(&f.store);
            return false;
        }
    if (store_list(&f.store, &f.list, &why) < 0) {
        term_error("%s; left out", err_text(&why));
        store_close(&f.store);
    } else {
        m->folders[m->n_folders++] = f;
    }
    return false;
}

static int open_folders(struct model *m, struct err *err)
{
    const cJSON *list = NULL, *item;
    struct err ignored = { 0 };

    m->folders = calloc(MAX_FOLDERS, sizeof *m->folders);
    if (!m->folders)
        return err_set(err, -ENOMEM, "no memory");
    service_status(&m->service, &m->status, NULL, &ignored);
    if (m->dir) {
        struct store s;

        if (store_open(m->dir, false, &s, err) < 0)
            return err->code;
        store_close(&s);
        take_folder(m->dir, m);
        return 0;
    }
    json_get_array(m->status, "model_folders", &list, NULL);
    cJSON_ArrayForEach(item, list) if (cJSON_IsString(item)) take_folder(item->valuestring, m);
    model_dirs_each(take_folder, m);
    return 0;
}

static void close_folders(struct model *m)
{
    for (size_t i = 0; i < m->n_folders; i++) {
        store_list_fini(&m->folders[i].list);
        store_close(&m->folders[i].store);
    }
    free(m->folders);
    cJSON_Delete(m->status);
}

static size_t count(const struct model *m)
{
    size_t n = 0;

    for (size_t i = 0; i < m->n_folders; i++)
        n += m->folders[i].list.n;
    return n;
}

/* The service's model whose file is one of the entry's; NULL: none. */
static const char *used_as(const struct model *m, const struct folder *f, const struct store_entry *e)
{
    const cJSON *list = NULL, *item;

    json_get_array(m->status, "models", &list, NULL);
    cJSON_ArrayForEach(item, list)
    {
        const char *path = "", *name = "?";
        struct stat st, own;

        json_get_string(item, "path", &path, NULL);
        json_get_string(item, "name", &name, NULL);
        if (stat(path, &st) < 0)
            continue;
        for (size_t i = 0; i < e->m.n_files; i++)
            if (fstatat(f->store.fd, e->m.files[i].path, &own, 0) == 0 && own.st_dev == st.st_dev && own.st_ino == st.st_ino)
                return name;
    }
    return NULL;
}

/* The entry that somebody names: NAME, or the file's name. More than one: the first
 * folder's, as `fastchat run` takes it. */
static struct store_entry *find(const struct model *m, const char *name, struct folder **ret, struct err *err)
{
    struct nearest near = nearest_to(name);

    for (size_t i = 0; i < m->n_folders; i++)
        for (size_t k = 0; k < m->folders[i].list.n; k++) {
            struct store_entry *e = &m->folders[i].list.entries[k];

            *ret = &m->folders[i];
            if (strcmp(e->m.name, name) == 0)
                return e;
            for (size_t n = 0; n < e->m.n_files; n++)
                if (strcmp(e->m.files[n].path, name) == 0)
                    return e;
            nearest_try(&near, e->m.name);
        }
    err_set(err, -ENOENT, "there is no model '%s' in the folders of models%s%s%s", name, near.name ? "; did you mean '" : "",
            near.name ? near.name : "", near.name ? "'?" : ". 'fastchat model list' shows what there is");
    return NULL;
}

/* ---- list ---- */

static const char *state_of(const struct model *m, const struct folder *f, const struct store_entry *e)
{
    return e->bad                  ? "manifest is damaged"
           : e->missing            ? "files are missing"
           : e->m.n_files == 0     ? "not whole yet"
           : used_as(m, f, e)      ? "in the service"
           : e->partial > 0        ? "being replaced"
                                   : "whole";
}

static void list_json(const struct model *m)
{
    BUF_LOCAL out = BUF_INIT;
    struct json_writer w = json_writer(&out);

    json_open(&w, '[');
    for (size_t i = 0; i < m->n_folders; i++)
        for (size_t k = 0; k < m->folders[i].list.n; k++) {
            const struct store_entry *e = &m->folders[i].list.entries[k];

            json_open(&w, '{');
            json_kstr(&w, "name", e->m.name);
            json_kstr(&w, "folder", m->folders[i].store.path);
            json_kint(&w, "bytes", e->size);
            json_kint(&w, "partial_bytes", e->partial);
            json_kstr(&w, "state", state_of(m, &m->folders[i], e));
            json_kstr(&w, "service_model", used_as(m, &m->folders[i], e));
            json_kstr(&w, "source", e->pulled ? e->m.source : NULL);
            json_kstr(&w, "revision", e->pulled ? e->m.revision : NULL);
            json_kstr(&w, "commit", e->pulled ? e->m.commit : NULL);
            json_kstr(&w, "pulled", e->pulled ? e->m.pulled : NULL);
            json_key(&w, "files");
            json_open(&w, '[');
            for (size_t n = 0; n < e->m.n_files; n++)
                json_str(&w, e->m.files[n].path);
            json_close(&w, ']');
            json_close(&w, '}');
        }
    json_close(&w, ']');
    printf("%s\n", buf_str(&out));
}

static int list(struct model *m)
{
    BUF_LOCAL out = BUF_INIT;
    int width = 4;

    if (m->n_names)
        return args_mistake(m->cmd, "list takes no names");
    if (m->json) {
        list_json(m);
        return CLI_DONE;
    }
    if (count(m) == 0) {
        term_error("there are no models here. 'fastchat pull ORGANISATION/NAME' fetches one");
        return CLI_DONE;
    }
    for (size_t i = 0; i < m->n_folders; i++)
        for (size_t k = 0; k < m->folders[i].list.n; k++) {
            int n = (int)strlen(m->folders[i].list.entries[k].m.name);

            width = n > width ? n : width;
        }
    buf_printf(&out, "%-*s  %9s  %-19s  %-10s  %s\n", width, "NAME", "SIZE", "STATE", "PULLED", "FROM");
    for (size_t i = 0; i < m->n_folders; i++) {
        for (size_t k = 0; k < m->folders[i].list.n; k++) {
            const struct store_entry *e = &m->folders[i].list.entries[k];
            char size[SIZE_TEXT];

            buf_printf(&out, "%-*s  %9s  %-19s  %-10.10s  ", width, e->m.name, size_text(e->size ? e->size : e->partial, size),
                       state_of(m, &m->folders[i], e), e->pulled ? e->m.pulled : "-");
            if (e->pulled)
                buf_printf(&out, "%s%s%s", e->m.source, e->m.revision[0] ? "@" : "", e->m.revision);
            else
                buf_printf(&out, "%s", m->folders[i].store.path);
            buf_addc(&out, '\n');
        }
    }
    term_write(buf_str(&out), out.len);
    return CLI_DONE;
}

/* ---- verify ---- */

static const char *damage(struct model *m, const struct folder *f, const struct manifest_file *file, char found[SHA256_HEX + 1],
                          bool *ret_stop)
{
    CLEANUP(digest_free) struct digest *digest = NULL;
    CLEANUP(fd_close) int fd = -1;
    static char text[ERR_TEXT];
    char blob[SHA1_HEX + 1];
    struct err err = { 0 };
    int64_t size = store_size(&f->store, file->path);
    int r;

    if (size == -ENOENT)
        return "is not there";
    if (size >= 0 && size != file->size) {
        snprintf(text, sizeof text, "has %lld bytes instead of %lld", (long long)size, (long long)file->size);
        return text;
    }
    r = size < 0 ? (int)size : store_read(&f->store, file->path, &fd, &err);
    if (r == 0)
        r = digest_new(-1, &digest, &err);
    if (r == 0)
        r = download_hash(fd, "reading", file->path, term_interrupts(), &m->progress, digest, size, &err);
    *ret_stop = r == DOWNLOAD_INTERRUPTED;
    if (r == 0)
        r = digest_end(digest, found, blob, &err);
    if (r < 0) {
        snprintf(text, sizeof text, "can not be read: %s", err_is_set(&err) ? err_text(&err) : strerror(-r));
        return text;
    }
    return file->sha256[0] && strcmp(found, file->sha256) != 0 ? "is not what was pulled: its bytes have changed" : NULL;
}

/* 0; 1: something is wrong; -1: interrupted. */
static int verify_one(struct model *m, const struct folder *f, const struct store_entry *e)
{
    bool bad = e->bad, stop = false;

    if (e->bad)
        printf("%s: its manifest can not be read\n", e->m.name);
    if (!e->bad && e->m.n_files == 0) {
        printf("%s: not whole yet\n", e->m.name);
        return 1;
    }
    for (size_t i = 0; i < e->m.n_files && !stop; i++) {
        char found[SHA256_HEX + 1] = "";
        const char *why = damage(m, f, &e->m.files[i], found, &stop);

        bad |= why != NULL;
        if (stop)
            break;
        if (why)
            printf("%s: %s/%s %s\n", e->m.name, f->store.path, e->m.files[i].path, why);
        else if (!e->pulled && !m->quiet)
            printf("%s: nobody recorded its checksum, which is %s\n", e->m.name, found);
        fflush(stdout);
    }
    if (stop)
        return -1;
    if (e->pulled && !bad && !m->quiet)
        printf("%s: right\n", e->m.name);
    else if (e->pulled && bad)
        printf("%s: 'fastchat pull --force --name %s --to %s %s' fetches it again\n", e->m.name, e->m.name, f->store.path, e->m.source);
    return bad;
}

static int verify(struct model *m)
{
    size_t wrong = 0;

    for (size_t i = 0; i < m->n_names; i++) {
        struct err err = { 0 };
        struct folder *f;
        const struct store_entry *e = find(m, m->operands[1 + i], &f, &err);
        int r;

        if (!e) {
            term_error("%s", err_text(&err));
            wrong++;
            continue;
        }
        r = verify_one(m, f, e);
        if (r < 0)
            return CLI_FAILED;
        wrong += (size_t)r;
    }
    for (size_t i = 0; i < m->n_folders && m->n_names == 0; i++)
        for (size_t k = 0; k < m->folders[i].list.n; k++) {
            int r = verify_one(m, &m->folders[i], &m->folders[i].list.entries[k]);

            if (r < 0)
                return CLI_FAILED;
            wrong += (size_t)r;
        }
    return wrong ? CLI_FAILED : CLI_DONE;
}

/* ---- rm ---- */

/* True when it may go: nobody uses it, or the person says so. */
static bool may_go(const struct model *m, const struct folder *f, const struct store_entry *e)
{
    BUF_LOCAL line = BUF_INIT;
    const char *name = used_as(m, f, e);
    char size[SIZE_TEXT];

    if (strncmp(f->store.path, "/usr/", 5) == 0) {
        term_error("%s lies in %s, which belongs to a package: 'apt remove' of that package removes it", e->m.name, f->store.path);
        return false;
    }
    if (name && !m->force) {
        term_error("the running service has %s as its model %s. Take it out of the configuration and 'fastchat reload' first, or say --force",
                   e->m.name, name);
        return false;
    }
    if (m->yes)
        return true;
    if (!term_input_is_tty()) {
        term_error("--yes says that %s is really to be removed", e->m.name);
        return false;
    }
    fprintf(stderr, "Remove %s (%s) from %s? [y/N] ", e->m.name, size_text(e->size + e->partial, size), f->store.path);
    if (term_read_line(&line) != 0)
        return false;
    return strcmp(buf_str(&line), "y") == 0 || strcmp(buf_str(&line), "yes") == 0;
}

static int drop(const struct store *s, const char *path, const char *end, struct err *err)
{
    BUF_LOCAL whole = BUF_INIT;
    int r;

    buf_printf(&whole, "%s%s", path, end);
    r = store_size(s, buf_str(&whole)) == -ENOENT ? 0 : store_remove(s, buf_str(&whole), err);
    return r == -ENOENT ? 0 : r;
}

static int remove_entry(const struct folder *f, const struct store_entry *e, struct err *err)
{
    int r = 0;

    /* the manifest last: what a failure leaves can be removed again */
    for (size_t i = 0; i < e->m.n_files && r == 0; i++) {
        r = drop(&f->store, e->m.files[i].path, STORE_PART, err);
        if (r == 0)
            r = drop(&f->store, e->m.files[i].path, STORE_STATE, err);
        if (r == 0)
            r = drop(&f->store, e->m.files[i].path, "", err);
    }
    if (r == 0 && e->m.n_files == 0 && !e->bad) {
        r = drop(&f->store, e->m.name, ".gguf" STORE_PART, err);
        if (r == 0)
            r = drop(&f->store, e->m.name, ".gguf" STORE_STATE, err);
    }
    return r == 0 ? drop(&f->store, e->m.name, STORE_MANIFEST, err) : r;
}

static int rm(struct model *m)
{
    int code = CLI_DONE;

    if (m->n_names == 0)
        return args_mistake(m->cmd, "rm needs the name of a model");
    for (size_t i = 0; i < m->n_names; i++) {
        struct err err = { 0 };
        struct folder *f;
        const struct store_entry *e = find(m, m->operands[1 + i], &f, &err);
        bool used = e && used_as(m, f, e);

        if (e && !may_go(m, f, e)) {
            code = CLI_FAILED;
            continue;
        }
        if (!e || remove_entry(f, e, &err) < 0) {
            term_error("%s", err_text(&err));
            code = CLI_FAILED;
            continue;
        }
        if (!m->quiet)
            fprintf(stderr, "%s is removed%s\n", e->m.name, used ? "; 'fastchat reload' takes it out of the running service" : "");
    }
    return code;
}

/* ---- info ---- */

/* The service's model of the name; NULL: there is none. */
static const cJSON *in_service(const struct model *m, const char *name)
{
    const cJSON *list = NULL, *item;

    json_get_array(m->status, "models", &list, NULL);
    cJSON_ArrayForEach(item, list)
    {
        const char *has = "";

        json_get_string(item, "name", &has, NULL);
        if (strcmp(has, name) == 0)
            return item;
    }
    return NULL;
}

/* What is asked of: a path, a model of the service, which may have a limit and several replicas, or one of the folders. */
static int find_file(const struct model *m, const char *name, struct model_info_ask *ask, struct buf *path, struct err *err)
{
    const cJSON *model = in_service(m, name);
    const struct store_entry *e;
    struct folder *f = NULL;
    const char *of = "";
    int64_t limit = 0, replicas = ask->replicas;
    struct stat st;

    if (strchr(name, '/') || (!model && stat(name, &st) == 0 && S_ISREG(st.st_mode))) {
        buf_adds(path, name);
        return 0;
    }
    if (model) {
        json_get_string(model, "path", &of, NULL);
        json_get_int(model, "memory_max_mb", 0, INT32_MAX, &limit, NULL);
        buf_adds(path, of);
        ask->name = name;
        ask->limit = (uint64_t)limit << 20;
        if (!m->replicas.given)
            json_get_int(model, "replicas", 1, INT32_MAX, &replicas, NULL);
        ask->replicas = (uint32_t)replicas;
        if (!ask->kv_type)
            json_get_string(model, "kv_type", &ask->kv_type, NULL);
        if (!ask->isa)
            json_get_string(model, "isa", &ask->isa, NULL);
        return 0;
    }
    e = find(m, name, &f, err);
    if (!e)
        return err->code;
    if (e->m.n_files == 0)
        return err_set(err, -ENOENT, "%s is not whole yet", name);
    buf_printf(path, "%s/%s", f->store.path, e->m.files[0].path);
    ask->name = e->m.name;
    return 0;
}

static int info(struct model *m)
{
    struct model_info_ask ask = {
        .context = (uint32_t)m->context.value, .parallel = m->parallel.given ? (uint32_t)m->parallel.value : 1,
        .replicas = m->replicas.given ? (uint32_t)m->replicas.value : 1, .isa = m->isa, .kv_type = m->kv_type,
        .json = m->json,
    };
    const struct kernels *kernels;
    BUF_LOCAL path = BUF_INIT;
    struct err err = { 0 };

    if (m->n_names != 1)
        return args_mistake(m->cmd, "info needs one model, or the path of a file");
    if (kernels_choose(m->isa, &kernels, &err) < 0 || find_file(m, m->operands[1], &ask, &path, &err) < 0) {
        term_error("%s", err_text(&err));
        return CLI_FAILED;
    }
    ask.path = buf_str(&path);
    return model_info_show(&ask);
}

int model_run(const struct command *cmd, int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(struct model *m);
    } actions[] = { { "info", info }, { "list", list }, { "rm", rm }, { "verify", verify } };
    struct model m = { .cmd = cmd };
    struct err err = { 0 };
    const struct arg args[] = {
        ARG(model_context, &m.context),
        ARG(model_dir, &m.dir),
        ARG(model_force, &m.force),
        ARG(model_isa, &m.isa),
        ARG(model_json, &m.json),
        ARG(model_kv_type, &m.kv_type),
        ARG(model_parallel, &m.parallel),
        ARG(quiet, &m.quiet),
        ARG(model_replicas, &m.replicas),
        ARG(runtime_dir, &m.service.runtime_dir),
        ARG(yes, &m.yes),
    };
    const size_t n_actions = sizeof actions / sizeof actions[0];
    size_t action = 0;
    int code = args_parse(cmd, args, sizeof args / sizeof args[0], argc, argv, m.operands, MAX_OPERANDS);

    if (code != ARGS_RUN)
        return code;
    while (m.n_names + 1 < MAX_OPERANDS && m.operands[m.n_names + 1])
        m.n_names++;
    while (action < n_actions && (!m.operands[0] || strcmp(m.operands[0], actions[action].name) != 0))
        action++;
    if (action == n_actions)
        return args_mistake(cmd, "needs one of info, list, rm, verify");
    progress_init(&m.progress, m.quiet);
    if (open_folders(&m, &err) < 0) {
        term_error("%s", err_text(&err));
        code = CLI_FAILED;
    } else {
        if (actions[action].run == verify)
            term_catch_end();
        code = actions[action].run(&m);
    }
    close_folders(&m);
    return code;
}
