/* supervisor.model_folders: files that are models because they lie there.
 *
 * What somebody drops into a folder must not make the configuration wrong: a
 * file that cannot be a model is left out with a note, and one that is none
 * becomes a model whose worker says so. A configured model has the name and the
 * file before one of a folder; of two files the first has it, by the order of
 * the folders and then of the file names.
 */
#include "daemon/supervisor/config_parts.h"

#include "base/arena.h"
#include "base/err.h"
#include "base/reach.h"
#include "daemon/model_name.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct folders {
    struct config *c;
    size_t n_workers;
    bool full;                  /* said that there is no more room */
};

/* The model that has this file already, NULL when none has. One of a folder has
 * it under its own name alone: a link is a second name for it. */
static const struct config_group *owner_of_file(const struct folders *f, const struct stat *st,
                                                const char *name)
{
    for (size_t m = 0; m < f->c->n_models; m++) {
        const struct config_group *g = f->c->models[m];
        const struct config_value *path = &g->values[MODEL_path];
        struct stat own;

        if (path->set && stat(path->s, &own) == 0 && own.st_dev == st->st_dev && own.st_ino == st->st_ino &&
            (g->line || strcmp(g->values[MODEL_name].s, name) == 0))
            return g;
    }
    return NULL;
}

static const struct config_group *owner_of_name(const struct folders *f, const char *name)
{
    for (size_t m = 0; m < f->c->n_models; m++) {
        const struct config_group *g = f->c->models[m];
        const struct config_value *aliases = &g->values[MODEL_aliases];

        if (g->values[MODEL_name].set && strcmp(g->values[MODEL_name].s, name) == 0)
            return g;
        for (size_t i = 0; i < aliases->n_list; i++)
            if (strcmp(aliases->list[i], name) == 0)
                return g;
    }
    return NULL;
}

static void add_model(struct folders *f, const char *path, const char *name)
{
    const struct config_group *defaults = &f->c->sections[CONFIG_DEFAULTS];
    struct config_group *g = arena_alloc(f->c->arena, sizeof *g);
    char *own = arena_strdup(f->c->arena, name);

    if (!g || !own)
        return;
    g->label = g->file = path;
    for (size_t k = 0; k < CONFIG_N_KEYS; k++)
        if (config_rows[k].section == CONFIG_DEFAULTS)
            g->values[k] = defaults->values[k];
    g->values[MODEL_name] = (struct config_value){ .set = true, .s = own, .file = path };
    g->values[MODEL_path] = (struct config_value){ .set = true, .s = path, .file = path };
    f->c->models[f->c->n_models++] = g;
    f->n_workers += (size_t)g->values[DEFAULTS_replicas].i;
}

static bool has_room(struct folders *f, const char *path)
{
    size_t replicas = (size_t)f->c->sections[CONFIG_DEFAULTS].values[DEFAULTS_replicas].i;

    if (f->c->n_models < CONFIG_MAX_MODELS && f->n_workers + replicas <= CONFIG_MAX_WORKERS)
        return true;
    if (!f->full)
        config_note(f->c, "%s: left out, and further files too: there can be %d models and %d workers in all", path,
             CONFIG_MAX_MODELS, CONFIG_MAX_WORKERS);
    f->full = true;
    return false;
}

/* A part of a model in several files stands for the whole if it is the first. */
static bool stands_for_it(struct folders *f, const char *folder, const char *file)
{
    const char *shape = "-00001-of-00003.gguf";
    unsigned part = model_file_part(file);
    size_t stem;
    char *first;

    if (part <= 1)
        return true;
    stem = strlen(file) - strlen(shape);
    first = arena_printf(f->c->arena, "%s/%.*s-00001%s", folder, (int)stem, file, file + stem + strlen("-00001"));
    if (first && access(first, F_OK) < 0)
        config_note(f->c, "%s/%s: left out: it is part %u of a model whose first part is not there", folder, file, part);
    return false;
}

static void take_file(struct folders *f, const char *folder, const char *file)
{
    char name[MODEL_NAME_MAX + 1];
    const struct config_group *owner;
    struct stat st;
    char *path;

    if (!config_plain_name(file)) {
        config_note(f->c, "%s: a file is left out whose name is no plain UTF-8 text", folder);
        return;
    }
    path = arena_printf(f->c->arena, "%s/%s", folder, file);
    if (!path || !stands_for_it(f, folder, file))
        return;
    if (stat(path, &st) < 0)
        config_note(f->c, "%s: left out: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        config_note(f->c, "%s: left out: it is no regular file", path);
    else if (!model_name_of_file(file, name))
        config_note(f->c, "%s: left out: nothing in its name can be the name of a model", path);
    else if (owner_of_file(f, &st, name))
        return;
    else if (!(owner = owner_of_name(f, name))) {
        if (has_room(f, path))
            add_model(f, path, name);
    } else if (owner->line)
        config_note(f->c, "%s: left out: the name \"%s\" is that of %s (%s:%d)", path, name, owner->label, owner->file,
             owner->line);
    else
        config_note(f->c, "%s: left out: the name \"%s\" is that of %s", path, name, owner->label);
}

static int is_model(const struct dirent *d)
{
    size_t n = strlen(d->d_name);

    return d->d_name[0] != '.' && n > 5 && strcmp(d->d_name + n - 5, ".gguf") == 0;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void take_folder(struct folders *f, const char *folder)
{
    struct dirent **names;
    int n = scandir(folder, &names, is_model, by_name);

    if (n < 0) {
        const char *why = strerror(errno);
        struct err denied = { 0 };

        if (errno == EACCES && reach_denied(folder, &denied))
            why = err_text(&denied);
        config_note(f->c, "%s: no models from there: %s", folder, why);
        return;
    }
    for (int i = 0; i < n; i++) {
        take_file(f, folder, names[i]->d_name);
        free(names[i]);
    }
    free(names);
}

void config_add_folders(struct config *c)
{
    const struct config_value *v = &c->sections[CONFIG_SUPERVISOR].values[SUPERVISOR_model_folders];
    struct folders f = { .c = c };

    for (size_t m = 0; m < c->n_models; m++)
        f.n_workers += (size_t)c->models[m]->values[DEFAULTS_replicas].i;
    for (size_t i = 0; i < v->n_list; i++)
        take_folder(&f, v->list[i]);
}
