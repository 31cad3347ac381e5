/* Chat templates from outside: files of supervisor.template_dirs, and the list `templates`.
 *
 * Each source takes the place of the ones before: what is built in, then folder by folder, then the configuration. Within
 * one folder NAME.json and NAME.jinja are one template: the Jinja text is what is rendered, the row is its wire form.
 * Everything is checked here, with the place of what is wrong; what a worker is told has been read by the same functions
 * that it uses itself.
 */
#include "daemon/supervisor/config_parts.h"

#include "base/arena.h"
#include "base/err.h"
#include "base/json.h"
#include "base/nearest.h"
#include "base/reach.h"
#include "conv/conv.h"
#include "conv/jinja/jinja.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BYTES = 4 << 20 };       /* as JSON up to six times as much, and settings are 32 MB at most */

struct taking {
    struct config *c;
    struct config_faults *faults;
    struct conv_registry *registry;     /* to try them in */
    const char *folder;                 /* the one that is read; NULL: the configuration */
    size_t bytes;
    bool full;                          /* said that there is no more room */
};

/* ---- where in a file ---- */

static int line_of(const char *text, const char *at)
{
    int line = 1;

    for (; text < at; text++)
        line += *text == '\n';
    return line;
}

/* The line of a key of the outermost object, of text that is JSON. 0: it is not there. */
static int line_of_key(const char *text, const char *key, size_t len)
{
    int depth = 0;

    for (const char *s = text; *s; s++) {
        depth += (*s == '{' || *s == '[') - (*s == '}' || *s == ']');
        if (*s != '"')
            continue;
        if (depth == 1 && strncmp(s + 1, key, len) == 0 && s[len + 1] == '"' &&
            s[len + 2 + strspn(s + len + 2, " \t\r\n")] == ':')
            return line_of(text, s);
        for (s++; *s && *s != '"'; s++)
            s += *s == '\\' && s[1];
        if (!*s)
            break;
    }
    return 0;
}

/* "'roles' must be …" → the key, and what is said of it. */
static size_t key_of(const char *words, const char **ret_rest)
{
    const char *end = *words == '\'' ? strchr(words + 1, '\'') : NULL;

    *ret_rest = words;
    if (!end)
        return 0;
    *ret_rest = end[1] == ' ' ? end + 2 : end + 1;
    return (size_t)(end - words - 1);
}

static void fault_in_json(struct taking *t, const char *path, const char *text, const struct err *err)
{
    const char *rest;
    size_t n = key_of(err_text(err), &rest);
    unsigned long byte = 0;
    int used = 0;

    if (sscanf(err_text(err), "byte %lu: %n", &byte, &used) == 1 && used && byte <= strlen(text))
        config_fault(t->faults, path, line_of(text, text + byte), "%s", err_text(err) + used);
    else if (n)
        config_fault(t->faults, path, line_of_key(text, err_text(err) + 1, n), "%.*s: %s", (int)n, err_text(err) + 1,
                     rest);
    else
        config_fault(t->faults, path, 0, "%s", err_text(err));
}

/* Nothing is rendered here. false: what is wrong is in err, and in *ret_fault with its line. */
static bool compiles(const char *name, const char *text, size_t len, struct jinja_fault *ret_fault, struct err *err)
{
    struct jinja_limits limits = jinja_limits_default;
    CLEANUP(jinja_free) struct jinja *t = NULL;

    limits.memory_bytes = 128 << 20;
    return jinja_compile(name, text, len, &limits, &t, ret_fault, err) == 0;
}

/* ---- taking one ---- */

static struct config_template *find(struct config *c, const char *name)
{
    for (size_t i = 0; i < c->n_templates; i++)
        if (strcmp(c->templates[i].name, name) == 0)
            return &c->templates[i];
    return NULL;
}

static void put_place(const struct config_template *of, struct buf *out)
{
    buf_adds(out, of->file);
    if (of->line)
        buf_printf(out, ":%d", of->line);
}

static bool is_in_folder(const struct config_template *of, const char *folder)
{
    size_t n = folder ? strlen(folder) : 0;

    return n && !of->line && strncmp(of->file, folder, n) == 0 && of->file[n] == '/' && !strchr(of->file + n + 1, '/');
}

static void note_replaced(struct taking *t, const struct config_template *new, const struct config_template *old)
{
    BUF_LOCAL place = BUF_INIT;
    BUF_LOCAL other = BUF_INIT;

    put_place(new, &place);
    if (old)
        put_place(old, &other);
    config_note(t->c, "%s: the template \"%s\" takes the place of %s", buf_str(&place), new->name,
                old ? buf_str(&other) : "the built-in one");
}

static bool has_room(struct taking *t, const struct config_template *new)
{
    t->bytes += (new->row ? strlen(new->row) : 0) + (new->jinja ? strlen(new->jinja) : 0);
    if (t->bytes <= MAX_BYTES && t->c->n_templates < CONFIG_MAX_TEMPLATES)
        return true;
    if (!t->full)
        config_fault(t->faults, new->file, new->line, "there can be %d templates of %d MB in all", CONFIG_MAX_TEMPLATES,
                     MAX_BYTES >> 20);
    t->full = true;
    return false;
}

static void take(struct taking *t, const struct config_template *new)
{
    struct config_template *old = find(t->c, new->name);

    if (!has_room(t, new))
        return;
    if (old && is_in_folder(old, t->folder)) {      /* the other half of it */
        old->row = new->row ? new->row : old->row;
        old->jinja = new->jinja ? new->jinja : old->jinja;
        old->file = new->row ? new->file : old->file;
        return;
    }
    if (old || conv_find(NULL, new->name))
        note_replaced(t, new, old);
    if (!old)
        old = &t->c->templates[t->c->n_templates++];
    *old = *new;
}

/* ---- files ---- */

/* A key that is not known is a slip of the pen. */
static int check_keys(struct taking *t, const char *path, const char *text, const cJSON *tree)
{
    const cJSON *item;
    int bad = 0;

    cJSON_ArrayForEach(item, tree)
    {
        struct nearest n = nearest_to(item->string);
        bool known = strcmp(item->string, "name") == 0;

        for (size_t k = TEMPLATE_system_template; k < CONFIG_N_KEYS && !known; k++) {
            known = strcmp(item->string, config_rows[k].name) == 0;
            nearest_try(&n, config_rows[k].name);
        }
        if (known)
            continue;
        bad = -EINVAL;
        if (n.name)
            config_fault(t->faults, path, line_of_key(text, item->string, strlen(item->string)),
                         "%.100s: unknown key; did you mean \"%s\"?", item->string, n.name);
        else
            config_fault(t->faults, path, line_of_key(text, item->string, strlen(item->string)), "%.100s: unknown key",
                         item->string);
    }
    return bad;
}

static int read_row(struct taking *t, const char *name, const char *path, const struct buf *text, const char **ret)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    BUF_LOCAL compact = BUF_INIT;
    struct json_writer w = json_writer(&compact);
    struct err err = { 0 };

    if (json_parse(buf_str(text), text->len, NULL, &tree, &err) < 0 ||
        (cJSON_IsObject(tree) && check_keys(t, path, buf_str(text), tree)) ||
        conv_registry_add(t->registry, name, tree, NULL, 0, &err) < 0) {
        if (err_is_set(&err))
            fault_in_json(t, path, buf_str(text), &err);
        return -EINVAL;
    }
    json_tree(&w, tree);
    *ret = arena_strdup(t->c->arena, buf_str(&compact));
    return *ret ? 0 : -ENOMEM;
}

static int read_jinja(struct taking *t, const char *name, const char *path, const struct buf *text, const char **ret)
{
    struct jinja_fault fault = { 0 };
    struct err err = { 0 };

    if (conv_registry_add(t->registry, name, NULL, buf_str(text), text->len, &err) < 0 ||
        !compiles(name, buf_str(text), text->len, &fault, &err)) {
        config_fault(t->faults, path, (int)fault.line, "%s", fault.message[0] ? fault.message : err_text(&err));
        return -EINVAL;
    }
    *ret = arena_strndup(t->c->arena, buf_str(text), text->len);
    return *ret ? 0 : -ENOMEM;
}

/* Bytes of NAME before ".json" or ".jinja"; 0: it ends in neither. */
static size_t stem_of(const char *file)
{
    static const char *const ends[] = { ".json", ".jinja" };
    size_t n = strlen(file);

    for (size_t i = 0; i < 2; i++)
        if (n > strlen(ends[i]) && strcmp(file + n - strlen(ends[i]), ends[i]) == 0)
            return n - strlen(ends[i]);
    return 0;
}

static const char *file_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

/* name NULL: as the file is named. at: the group that names the file; NULL: it lies in a folder. */
static void take_file(struct taking *t, const char *name, const char *path, const struct config_group *at)
{
    size_t stem = stem_of(file_of(path));
    struct config_template new = { .name = name ? name : arena_strndup(t->c->arena, file_of(path), stem),
                                   .file = at ? at->file : path, .line = at ? at->line : 0 };
    BUF_LOCAL text = BUF_INIT;
    struct err denied = { 0 };
    const char *why;
    int r = config_file_text(path, &text, &why);

    if (!new.name)
        return;
    if (r == -EACCES && reach_denied(path, &denied))
        why = err_text(&denied);
    if (r < 0)
        config_fault(t->faults, new.file, new.line, at ? "%s: %s" : "%.0s%s", path, why);
    else if (file_of(path)[stem + 2] == 's')
        r = read_row(t, new.name, path, &text, &new.row);
    else
        r = read_jinja(t, new.name, path, &text, &new.jinja);
    if (r == 0)
        take(t, &new);
}

static int is_template(const struct dirent *d)
{
    return d->d_name[0] != '.' && stem_of(d->d_name) > 0;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* One of the folders that are the default: it need not be there. */
static bool is_default(const char *folder)
{
    size_t n = strlen(folder);

    for (const char *at = config_rows[SUPERVISOR_template_dirs].def; *at;) {
        size_t len = strcspn(at, ":");

        if (len == n && memcmp(at, folder, n) == 0)
            return true;
        at += len + (at[len] == ':');
    }
    return false;
}

/* A folder that can not be read is no fault, as one of models; it is worth a note. */
static void take_folder(struct taking *t, const char *folder)
{
    struct dirent **names;
    int n = scandir(folder, &names, is_template, by_name);

    if (n < 0) {
        struct err denied = { 0 };

        if (errno == EACCES && reach_denied(folder, &denied))
            config_note(t->c, "%s: no templates from there: %s", folder, err_text(&denied));
        else if (errno != ENOENT || !is_default(folder))
            config_note(t->c, "%s: no templates from there: %s", folder, strerror(errno));
        return;
    }
    t->folder = folder;
    for (int i = 0; i < n; i++) {
        const char *path = config_plain_name(names[i]->d_name) ? arena_printf(t->c->arena, "%s/%s", folder, names[i]->d_name) : NULL;

        if (path)
            take_file(t, NULL, path, NULL);
        else
            config_fault(t->faults, folder, 0, "holds a template whose name is no plain UTF-8 text");
        free(names[i]);
    }
    free(names);
    t->folder = NULL;
}

/* ---- the list in the configuration ---- */

/* The first key that says something of the template itself; CONFIG_N_KEYS: none. */
static size_t first_field(const struct config_group *g)
{
    size_t k = TEMPLATE_jinja;

    while (k < CONFIG_N_KEYS && !g->values[k].set)
        k++;
    return k;
}

static void fault_in_group(struct taking *t, const struct config_group *g, const struct err *err)
{
    const char *words = err_text(err), *rest;
    size_t n = key_of(words, &rest);

    for (size_t k = TEMPLATE_name; k < CONFIG_N_KEYS && n; k++) {
        const struct config_value *v = &g->values[k];

        if (strlen(config_rows[k].name) != n || strncmp(config_rows[k].name, words + 1, n) != 0)
            continue;
        if (v->set)
            config_fault(t->faults, v->file, v->line, "%s.%s: %s", g->label, config_rows[k].name, rest);
        else if (!v->line)
            config_fault(t->faults, g->file, g->line, "%s.%s: %s", g->label, config_rows[k].name, rest);
        return;
    }
    config_fault(t->faults, g->file, g->line, "%s: %s", g->label, words);
}

/* The fields as the wire has them; those that are not set are left out. */
static void put_row(const struct config_group *g, struct buf *out)
{
    struct json_writer w = json_writer(out);

    json_open(&w, '{');
    for (size_t k = TEMPLATE_system_template; k < CONFIG_N_KEYS; k++)
        if (g->values[k].set) {
            json_key(&w, config_rows[k].name);
            json_raw(&w, g->values[k].s);
        }
    json_close(&w, '}');
}

static const char *jinja_of(struct taking *t, const struct config_group *g, struct err *err)
{
    const struct config_value *v = &g->values[TEMPLATE_jinja];
    CLEANUP(json_delete) cJSON *text = NULL;
    struct jinja_fault fault = { 0 };
    struct err why = { 0 };

    if (!v->set || json_parse(v->s, strlen(v->s), NULL, &text, err) < 0)
        return NULL;
    if (!cJSON_IsString(text))
        err_set(err, -EINVAL, "'jinja' must be a string, but is %s", json_type_name(text));
    else if (compiles(g->label, text->valuestring, strlen(text->valuestring), &fault, &why))
        return arena_strdup(t->c->arena, text->valuestring);
    else if (fault.line)
        err_set(err, -EINVAL, "'jinja' line %u of it: %s", fault.line, fault.message);
    else
        err_set(err, -EINVAL, "'jinja' %s", err_text(&why));
    return NULL;
}

static void take_fields(struct taking *t, const struct config_group *g)
{
    struct config_template new = { .name = g->values[TEMPLATE_name].s, .file = g->file, .line = g->line };
    CLEANUP(json_delete) cJSON *row = NULL;
    BUF_LOCAL text = BUF_INIT;
    struct err err = { 0 };

    new.jinja = jinja_of(t, g, &err);
    put_row(g, &text);
    if (!err_is_set(&err) && (!new.jinja || text.len > strlen("{}")) &&
        json_parse(buf_str(&text), text.len, NULL, &row, &err) == 0)
        new.row = arena_strdup(t->c->arena, buf_str(&text));
    if (err_is_set(&err) || conv_registry_add(t->registry, new.name, row, new.jinja, new.jinja ? strlen(new.jinja) : 0, &err) < 0)
        fault_in_group(t, g, &err);
    else
        take(t, &new);
}

/* One that an earlier group has, also by the name of its file. */
static bool is_said(struct taking *t, const char *name, const struct config_group *g)
{
    const struct config_template *old = find(t->c, name);

    if (!old || !old->line)
        return false;
    config_fault(t->faults, g->file, g->line, "%s: there is a template \"%s\" already (%s:%d)", g->label, name, old->file,
                 old->line);
    return true;
}

static void take_group(struct taking *t, const struct config_group *g)
{
    const struct config_value *name = &g->values[TEMPLATE_name], *file = &g->values[TEMPLATE_file];
    size_t field = first_field(g);
    const char *called = name->s;

    if (!file->set) {
        if (!name->set && !name->line)
            config_fault(t->faults, g->file, g->line, "%s: \"name\" is missing", g->label);
        else if (name->set && !file->line && !is_said(t, called, g))
            take_fields(t, g);
        return;
    }
    if (!name->set && stem_of(file_of(file->s)))
        called = arena_strndup(t->c->arena, file_of(file->s), stem_of(file_of(file->s)));
    if (stem_of(file_of(file->s)) == 0)
        config_fault(t->faults, file->file, file->line, "%s.file: must end in .json or .jinja", g->label);
    else if (field < CONFIG_N_KEYS)
        config_fault(t->faults, g->values[field].file, g->values[field].line, "%s.%s: \"file\" holds the template already",
                     g->label, config_rows[field].name);
    else if (called && !is_said(t, called, g))
        take_file(t, called, file->s, g);
}

/* ---- all of them ---- */

static int by_template_name(const void *a, const void *b)
{
    return strcmp(((const struct config_template *)a)->name, ((const struct config_template *)b)->name);
}

void config_take_templates(struct config *c, struct config_faults *faults)
{
    const struct config_value *dirs = &c->sections[CONFIG_SUPERVISOR].values[SUPERVISOR_template_dirs];
    CLEANUP(conv_registry_free) struct conv_registry *registry = conv_registry_new();
    struct taking t = { .c = c, .faults = faults, .registry = registry };

    if (!registry) {
        config_fault(faults, c->path, 0, "templates: no memory");
        return;
    }
    for (size_t i = 0; i < dirs->n_list; i++)
        take_folder(&t, dirs->list[i]);
    for (size_t i = 0; i < c->n_template_groups; i++)
        take_group(&t, c->template_groups[i]);
    qsort(c->templates, c->n_templates, sizeof *c->templates, by_template_name);
}

void config_put_templates(const struct config *c, const char *template, struct json_writer *w)
{
    bool any = strcmp(template, "auto") == 0, begun = false;

    for (size_t i = 0; i < c->n_templates; i++) {
        const struct config_template *t = &c->templates[i];

        if (!any && strcmp(t->name, template) != 0)
            continue;
        if (!begun) {
            json_key(w, "templates");
            json_open(w, '[');
        }
        begun = true;
        json_open(w, '{');
        json_kstr(w, "name", t->name);
        if (t->row) {
            json_key(w, "row");
            json_raw(w, t->row);
        }
        if (t->jinja)
            json_kstr(w, "jinja", t->jinja);
        json_close(w, '}');
    }
    if (begun)
        json_close(w, ']');
}
