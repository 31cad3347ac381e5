#include "cli/pull_plan.h"

#include "base/err.h"
#include "cli/hub_choose.h"
#include "daemon/model_name.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void plan_fini(struct plan *p)
{
    for (size_t i = 0; i < p->n_models; i++)
        manifest_fini(&p->models[i].old);
    free(p->models);
    free(p->files);
    *p = (struct plan){ 0 };
}

/* ---- names ---- */

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

/* The file's path here, and the name of the model that it belongs to. */
static bool name_file(const char *repo, const struct hub_file *of, const char *name, struct plan_file *f, char model[NAME_MAX])
{
    char of_file[MODEL_NAME_MAX + 1];
    const char *folder = name ? name : base_name(repo);
    int n;

    if (hub_is_gguf(of->path)) {
        if (!hub_local_name(repo, of->path, name, f->path, sizeof f->path) || !model_name_of_file(f->path, of_file))
            return false;
        snprintf(model, NAME_MAX, "%s", of_file);
        return true;
    }
    n = repo[0] ? snprintf(f->path, sizeof f->path, "%s/%s", folder, of->path)
                : snprintf(f->path, sizeof f->path, "%s", name ? name : of->path);
    snprintf(model, NAME_MAX, "%s", repo[0] ? folder : f->path);
    return n > 0 && (size_t)n < sizeof f->path;
}

static int model_named(struct plan *p, const char *name, size_t *ret)
{
    struct plan_model *more;

    for (*ret = 0; *ret < p->n_models; ++*ret)
        if (strcmp(p->models[*ret].name, name) == 0)
            return 0;
    more = reallocarray(p->models, p->n_models + 1, sizeof *more);
    if (!more)
        return -ENOMEM;
    p->models = more;
    p->models[p->n_models] = (struct plan_model){ 0 };
    snprintf(p->models[p->n_models++].name, sizeof more->name, "%s", name);
    return 0;
}

int plan_add(struct plan *p, const char *repo, const struct hub_file *of, const char *name, struct err *err)
{
    struct plan_file *more = reallocarray(p->files, p->n_files + 1, sizeof *more);
    struct plan_file f = { .of = of };
    char model[NAME_MAX] = "";

    if (!more)
        return err_set(err, -ENOMEM, "no memory");
    p->files = more;
    if (p->n_files == STORE_MAX_FILES)
        return err_set(err, -E2BIG, "over %d files are wanted; pull them in several goes, by name", STORE_MAX_FILES);
    if (!name_file(repo, of, name, &f, model) || !hub_path_is_safe(f.path))
        return err_set(err, -EINVAL, "%.200s can have no name here; give one with --name", of->path);
    for (size_t i = 0; i < p->n_files; i++)
        if (strcmp(p->files[i].path, f.path) == 0)
            return err_set(err, -EINVAL, "%.150s and %.150s would both be %.150s here; pull one of them, or give names with --name",
                           p->files[i].of->path, of->path, f.path);
    if (model_named(p, model, &f.model) < 0)
        return err_set(err, -ENOMEM, "no memory");
    p->files[p->n_files++] = f;
    return 0;
}

/* ---- what is there ---- */

static const struct manifest_file *recorded(const struct manifest *m, const char *path)
{
    for (size_t i = 0; i < m->n_files; i++)
        if (strcmp(m->files[i].path, path) == 0)
            return &m->files[i];
    return NULL;
}

static int look_at_file(struct plan *p, struct plan_file *f, bool force, struct err *err)
{
    const struct manifest_file *old = recorded(&p->models[f->model].old, f->path);
    int64_t size = store_size(p->store, f->path);

    if (size < 0 && size != -ENOENT)
        return err_errno(err, (int)size, "%s/%s", p->store->path, f->path);
    /* of a file that no manifest names, whoever fetches it finds out what it is */
    if (size < 0 || force || !old)
        return 0;
    if (size == old->size && (f->of->sha256[0] ? strcmp(f->of->sha256, old->sha256) == 0 : !f->of->blob[0])) {
        f->there = true;
        f->size = size;
        strcpy(f->sha256, old->sha256);
    }
    return 0;
}

int plan_look(struct plan *p, bool force, struct err *err)
{
    int r = 0;

    for (size_t i = 0; i < p->n_models; i++) {
        struct plan_model *m = &p->models[i];
        struct err why = { 0 };

        r = store_manifest(p->store, m->name, &m->old, &why);
        if (r < 0 && r != -ENOENT && !force)
            return err_set(err, -EEXIST, "%s. --force writes it anew", err_text(&why));
        if (r == 0 && strcmp(m->old.source, p->source) != 0) {
            if (!force)
                return err_set(err, -EEXIST,
                               "%s is there already, from %.200s: give this one another name with --name, or replace it with --force",
                               m->name, m->old.source);
            manifest_fini(&m->old);
        }
    }
    r = 0;
    for (size_t i = 0; i < p->n_files && r == 0; i++)
        r = look_at_file(p, &p->files[i], force, err);
    return r;
}

bool plan_is_ours(const struct plan *p, const struct plan_file *f)
{
    return recorded(&p->models[f->model].old, f->path) != NULL;
}

int64_t plan_missing(const struct plan *p)
{
    int64_t sum = 0;

    for (size_t i = 0; i < p->n_files; i++) {
        char part[HUB_PATH_BYTES + 8];
        int64_t have;

        if (p->files[i].there || p->files[i].of->size < 0)
            continue;
        snprintf(part, sizeof part, "%s" STORE_PART, p->files[i].path);
        have = store_size(p->store, part);
        sum += p->files[i].of->size - (have > 0 && have <= p->files[i].of->size ? have : 0);
    }
    return sum;
}

/* ---- what is written down ---- */

static int put_texts(struct manifest *m, const struct plan *p, size_t model, const char *revision, const char *commit,
                     struct err *err)
{
    char now[32];
    time_t t = time(NULL);
    struct tm tm;

    strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&t, &tm));
    m->name = strdup(p->models[model].name);
    m->source = strdup(p->source);
    m->revision = strdup(revision);
    m->commit = strdup(commit);
    m->pulled = strdup(now);
    return m->name && m->source && m->revision && m->commit && m->pulled ? 0 : err_set(err, -ENOMEM, "no memory");
}

static bool plans(const struct plan *p, const char *path)
{
    for (size_t i = 0; i < p->n_files; i++)
        if (strcmp(p->files[i].path, path) == 0)
            return true;
    return false;
}

int plan_record(const struct plan *p, size_t model, const char *revision, const char *commit, struct err *err)
{
    const struct manifest *old = &p->models[model].old;
    struct manifest m = { 0 };
    int r = put_texts(&m, p, model, revision, commit, err);

    for (size_t i = 0; i < p->n_files && r == 0; i++)
        if (p->files[i].model == model)
            r = manifest_add(&m, p->files[i].path, p->files[i].of->path, p->files[i].size, p->files[i].sha256, err);
    for (size_t i = 0; i < old->n_files && r == 0; i++)
        if (!plans(p, old->files[i].path) && store_size(p->store, old->files[i].path) >= 0)
            r = manifest_add(&m, old->files[i].path, old->files[i].from, old->files[i].size, old->files[i].sha256, err);
    if (r == 0)
        r = store_put_manifest(p->store, &m, err);
    manifest_fini(&m);
    return r;
}
