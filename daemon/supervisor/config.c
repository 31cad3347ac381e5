/* libconfig's tree → typed values.
 *
 * Each file is read into the same groups: a later file's value takes the place
 * of an earlier one, models are added. Every value remembers its file and
 * line. Nothing stops at the first fault: a file that does not parse is
 * reported and skipped, a value that is wrong is reported and left unset, and
 * the checks between values run over what is there.
 */
#include "daemon/supervisor/config.h"

#include "base/arena.h"
#include "base/err.h"
#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"
#include "base/nearest.h"
#include "daemon/model_name.h"
#include "daemon/supervisor/config_parts.h"
#include "daemon/supervisor/cpu_list.h"
#include "ipc/address.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <grp.h>
#include <libconfig.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_FILE = 1 << 20, MAX_FILES = 256, MAX_LIST = 64, MAX_FAULTS = 100, MAX_NOTES = 64 };

const struct config_row config_rows[CONFIG_N_KEYS] = {
#define CONFIG(section, key, type, applies, def, unit, min, max, doc)                              \
    { CONFIG_##section, #key, CONFIG_##type, CONFIG_##applies, def, unit, min, max, doc },
#include "daemon/supervisor/config.def"
#undef CONFIG
};

const char *const config_section_names[CONFIG_N_SECTIONS] = {
    [CONFIG_SUPERVISOR] = "supervisor", [CONFIG_CONTROLLER] = "controller",
    [CONFIG_API] = "api",               [CONFIG_LISTEN] = "api.listen",
    [CONFIG_DEFAULTS] = "defaults",     [CONFIG_MODEL] = "models",
    [CONFIG_TEMPLATE] = "templates",
};

struct reader {
    struct config *c;
    struct config_faults *faults;
    const char *file;           /* as in messages */
    const char *folder;         /* absolute, of that file */
};

void config_fault(struct config_faults *f, const char *file, int line, const char *fmt, ...)
{
    va_list ap;

    if (f->n++ >= MAX_FAULTS)
        return;
    if (f->n == MAX_FAULTS) {
        buf_adds(f->out, "… and further errors\n");
        return;
    }
    if (file && line > 0)
        buf_printf(f->out, "%s:%d: ", file, line);
    else if (file)
        buf_printf(f->out, "%s: ", file);
    va_start(ap, fmt);
    buf_vprintf(f->out, fmt, ap);
    va_end(ap);
    buf_addc(f->out, '\n');
}

void config_note(struct config *c, const char *fmt, ...)
{
    const char **notes = (const char **)c->notes;
    char text[1024];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (c->n_notes == MAX_NOTES - 1)
        snprintf(text, sizeof text, "… and further notes");
    if (c->n_notes < MAX_NOTES && (notes[c->n_notes] = arena_strdup(c->arena, text)))
        c->n_notes++;
}

/* ---- names ---- */

static bool row_in(size_t key, enum config_section a, enum config_section b)
{
    return config_rows[key].section == a || config_rows[key].section == b;
}

static void unknown_key(struct reader *r, const config_setting_t *s, struct config_group *g,
                        enum config_section a, enum config_section b)
{
    struct nearest n = nearest_to(s->name);
    size_t guess = CONFIG_N_KEYS;

    for (size_t k = 0; k < CONFIG_N_KEYS; k++)
        if (row_in(k, a, b) && nearest_try(&n, config_rows[k].name))
            guess = k;
    if (guess < CONFIG_N_KEYS) {
        config_fault(r->faults, r->file, (int)s->line,
                     "%s.%s: unknown key; did you mean \"%s\"?", g->label, s->name, n.name);
        if (!g->values[guess].set)
            g->values[guess].line = (int)s->line;       /* so it is not called missing too */
        return;
    }
    for (size_t k = 0; k < CONFIG_N_KEYS; k++)
        if (strcmp(config_rows[k].name, s->name) == 0) {
            config_fault(r->faults, r->file, (int)s->line,
                         "%s.%s: unknown key; \"%s\" belongs in %s", g->label, s->name, s->name,
                         config_section_names[config_rows[k].section]);
            return;
        }
    config_fault(r->faults, r->file, (int)s->line, "%s.%s: unknown key", g->label, s->name);
}

/* ---- values ---- */

static const char *type_name(const config_setting_t *s)
{
    switch (config_setting_type(s)) {
    case CONFIG_TYPE_GROUP:
        return "a group";
    case CONFIG_TYPE_INT:
    case CONFIG_TYPE_INT64:
        return "an integer";
    case CONFIG_TYPE_FLOAT:
        return "a number with a fraction";
    case CONFIG_TYPE_STRING:
        return "a string";
    case CONFIG_TYPE_BOOL:
        return "a boolean";
    case CONFIG_TYPE_ARRAY:
        return "an array";
    case CONFIG_TYPE_LIST:
        return "a list";
    default:
        return "nothing";
    }
}

/* One key of one group, while it is read. */
struct place {
    struct reader *r;
    const struct config_row *row;
    const char *label;          /* "models[1].path" */
    int line;
};

enum { LABEL = 160 };

/* Where entry i of a list stands; its label is written to `label`. */
static struct place place_of_entry(const struct place *list, const config_setting_t *entry, int i,
                                   char label[LABEL])
{
    struct place at = *list;

    snprintf(label, LABEL, "%s[%d]", list->label, i);
    at.label = label;
    at.line = entry->line ? (int)entry->line : list->line;
    return at;
}

static int fault(const struct place *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static int fault(const struct place *p, const char *fmt, ...)
{
    struct err e = { 0 };
    va_list ap;

    va_start(ap, fmt);
    err_vset(&e, -EINVAL, fmt, ap);
    va_end(ap);
    config_fault(p->r->faults, p->r->file, p->line, "%s: %s", p->label, e.text);
    return -EINVAL;
}

static int wrong_type(const struct place *p, const char *want, const config_setting_t *s)
{
    return fault(p, "must be %s, but is %s", want, type_name(s));
}

static bool is_int(const config_setting_t *s)
{
    return s->type == CONFIG_TYPE_INT || s->type == CONFIG_TYPE_INT64;
}

static int check_range(const struct place *p, double v, const char *text)
{
    if (v < p->row->min)
        return fault(p, "%s is below %.15g", text, p->row->min);
    if (v > p->row->max)
        return fault(p, "%s is above %.15g", text, p->row->max);
    return 0;
}

static int read_int(const struct place *p, const config_setting_t *s, struct config_value *v)
{
    char text[32];

    if (!is_int(s))
        return wrong_type(p, "an integer", s);
    v->i = config_setting_get_int64(s);
    snprintf(text, sizeof text, "%lld", (long long)v->i);
    return check_range(p, (double)v->i, text);
}

static int read_float(const struct place *p, const config_setting_t *s, struct config_value *v)
{
    char text[32];

    if (is_int(s))
        v->f = (double)config_setting_get_int64(s);
    else if (s->type == CONFIG_TYPE_FLOAT)
        v->f = config_setting_get_float(s);
    else
        return wrong_type(p, "a number", s);
    snprintf(text, sizeof text, "%.15g", v->f);
    return isnan(v->f) ? fault(p, "is not a number") : check_range(p, v->f, text);
}

/* A string that can be shown, logged and sent as JSON. */
static int read_text(const struct place *p, const config_setting_t *s, const char **ret)
{
    const char *text;

    if (s->type != CONFIG_TYPE_STRING)
        return wrong_type(p, "a string", s);
    text = config_setting_get_string(s);
    if (!*text)
        return fault(p, "is empty");
    if (!utf8_is_valid(text, strlen(text)))
        return fault(p, "is not UTF-8");
    for (const char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7F)
            return fault(p, "holds a control character");
    *ret = arena_strdup(p->r->c->arena, text);
    return *ret ? 0 : fault(p, "no memory");
}

static int check_choice(const struct place *p, const char *text)
{
    struct nearest n = nearest_to(text);
    size_t len = strlen(text);
    BUF_LOCAL names = BUF_INIT;

    for (const char *at = p->row->unit; *at;) {
        size_t l = strcspn(at, "|");
        char *name = arena_strndup(p->r->c->arena, at, l);

        if (l == len && memcmp(at, text, l) == 0)
            return 0;
        if (name)
            nearest_try(&n, name);
        buf_printf(&names, "%s%.*s", names.len ? ", " : "", (int)l, at);
        at += l + (at[l] == '|');
    }
    if (n.name)
        return fault(p, "\"%s\" is unknown; did you mean \"%s\"?", text, n.name);
    return fault(p, "\"%s\" is unknown; it can be %s", text, buf_str(&names));
}

static int read_mode(const struct place *p, const char *text, int64_t *ret)
{
    char *end;
    long v = strtol(text, &end, 8);

    if (!isdigit((unsigned char)*text) || *end || v < 0 || v > 0777)
        return fault(p, "\"%s\" is no mode in octal digits, as \"0660\"", text);
    *ret = v;
    return 0;
}

static int read_group_name(const struct place *p, const char *text, int64_t *ret)
{
    const struct group *g = getgrnam(text);

    if (!g)
        return fault(p, "there is no system group \"%s\"", text);
    *ret = g->gr_gid;
    return 0;
}

/* ~/x, $NAME/x and relative paths → absolute. `text` is what to resolve; NULL
 * comes back, without a fault, for a variable that is not set. */
static const char *absolute(struct reader *r, const char *text)
{
    char name[64];
    const char *value, *rest = text;
    size_t n;

    if (*text == '/')
        return text;
    if (text[0] == '~' && (text[1] == '/' || !text[1])) {
        value = getenv("HOME");
        rest = text + 1;
    } else if (*text == '$') {
        n = strcspn(text + 1, "/");
        if (n >= sizeof name)
            return NULL;
        memcpy(name, text + 1, n);
        name[n] = 0;
        value = getenv(name);
        rest = text + 1 + n;
    } else {
        return arena_printf(r->c->arena, "%s/%s", r->folder,
                            strncmp(text, "./", 2) == 0 ? text + 2 : text);
    }
    return value && *value == '/' && utf8_is_valid(value, strlen(value))
               ? arena_printf(r->c->arena, "%s%s", value, rest) : NULL;
}

static int read_path(const struct place *p, const char *text, const char **ret)
{
    const char *path = absolute(p->r, text);

    if (!path)
        return fault(p, "\"%s\" begins with a variable that holds no absolute path", text);
    if (strlen(path) >= PATH_MAX)
        return fault(p, "is longer than a path can be");
    *ret = path;
    return 0;
}

/* Names go into URLs, socket names and logs. */
static int check_name(const struct place *p, const char *text)
{
    if (strlen(text) > MODEL_NAME_MAX)
        return fault(p, "is longer than %d bytes", MODEL_NAME_MAX);
    for (const char *c = text; *c; c++)
        if (!model_name_char(*c))
            return fault(p, "\"%s\" holds a character that is no letter, digit or one of " MODEL_NAME_EXTRA,
                         text);
    return 0;
}

static int read_address(const struct place *p, const char *text, const char **ret)
{
    struct address a;
    struct err e = { 0 };

    if (p->row->type == CONFIG_ADDRESSES && strncmp(text, "http://", 7) == 0)
        text += 7;
    if (strncmp(text, "unix:", 5) == 0 && text[5] && text[5] != '/' && text[5] != '@') {
        const char *path = absolute(p->r, text + 5);

        text = path ? arena_printf(p->r->c->arena, "unix:%s", path) : NULL;
        if (!text)
            return fault(p, "begins with a variable that holds no absolute path");
    }
    if (address_parse(text, &a, &e))
        return fault(p, "%s", err_text(&e));
    if (a.is_unix && strcmp(p->row->unit, "host:port") == 0 && p->row->type == CONFIG_ADDRESS)
        return fault(p, "must be host:port, but is \"%s\"", text);
    *ret = arena_strdup(p->r->c->arena, a.text);
    return *ret ? 0 : fault(p, "no memory");
}

static int check_cpus(const struct place *p, const char *text)
{
    struct cpu_list l;
    struct err e = { 0 };

    return cpu_list_parse(text, &l, &e) ? fault(p, "\"%s\" is no list of CPUs, as \"0-3,8\": %s", text, err_text(&e)) : 0;
}

/* What a string means for the row; *text may be replaced. */
static int read_meaning(const struct place *p, const char **text, int64_t *i)
{
    switch (p->row->type) {
    case CONFIG_CHOICE:
        return check_choice(p, *text);
    case CONFIG_CPUS:
        return check_cpus(p, *text);
    case CONFIG_MODE:
        return read_mode(p, *text, i);
    case CONFIG_GROUP:
        return read_group_name(p, *text, i);
    case CONFIG_PATH:
    case CONFIG_PATHS:
        return read_path(p, *text, text);
    case CONFIG_FILE:           /* relative ones are looked for once all files are read */
        return strchr("~$", **text) ? read_path(p, *text, text) : 0;
    case CONFIG_NAME:
    case CONFIG_NAMES:
        return check_name(p, *text);
    case CONFIG_ADDRESS:
    case CONFIG_ADDRESSES:
        return read_address(p, *text, text);
    default:
        return 0;
    }
}

static bool is_list(const config_setting_t *s)
{
    return s->type == CONFIG_TYPE_LIST || s->type == CONFIG_TYPE_ARRAY;
}

static int read_list(const struct place *p, const config_setting_t *s, struct config_value *v)
{
    int n = config_setting_length(s), r = 0;
    const char **list;

    if (!is_list(s))
        return wrong_type(p, "a list of strings", s);
    if (n > MAX_LIST)
        return fault(p, "has more than %d entries", MAX_LIST);
    list = arena_array(p->r->c->arena, (size_t)n + 1, sizeof *list);
    if (!list)
        return fault(p, "no memory");
    for (int i = 0; i < n; i++) {
        const config_setting_t *e = config_setting_get_elem(s, (unsigned)i);
        char label[LABEL];
        const struct place at = place_of_entry(p, e, i, label);

        if (read_text(&at, e, &list[i]) || read_meaning(&at, &list[i], &v->i))
            r = -EINVAL;
    }
    v->list = list;
    v->n_list = (size_t)n;
    return r;
}

/* ---- fields of chat templates ---- */

enum { MAX_FIELD_DEPTH = 3 };       /* a list of pairs of texts */

static int put_field(const struct place *p, const config_setting_t *s, int depth, struct json_writer *w)
{
    int r = 0;

    switch (config_setting_type(s)) {
    case CONFIG_TYPE_INT:
    case CONFIG_TYPE_INT64:
        json_int(w, config_setting_get_int64(s));
        return 0;
    case CONFIG_TYPE_FLOAT:
        json_num(w, config_setting_get_float(s));
        return 0;
    case CONFIG_TYPE_STRING:
        if (!utf8_is_valid(config_setting_get_string(s), strlen(config_setting_get_string(s))))
            return fault(p, "is not UTF-8");
        json_str(w, config_setting_get_string(s));
        return 0;
    case CONFIG_TYPE_ARRAY:
    case CONFIG_TYPE_LIST:
        if (depth == MAX_FIELD_DEPTH)
            return fault(p, "holds lists within lists within lists");
        json_open(w, '[');
        for (int i = 0; r == 0 && i < config_setting_length(s); i++)
            r = put_field(p, config_setting_get_elem(s, (unsigned)i), depth + 1, w);
        json_close(w, ']');
        return r;
    default:
        return wrong_type(p, "a text, a number or a list", s);
    }
}

static int read_field(const struct place *p, const config_setting_t *s, const char **ret)
{
    BUF_LOCAL json = BUF_INIT;
    struct json_writer w = json_writer(&json);
    int r = put_field(p, s, 1, &w);

    if (r)
        return r;
    *ret = json.failed ? NULL : arena_strdup(p->r->c->arena, buf_str(&json));
    return *ret ? 0 : fault(p, "no memory");
}

static int read_listeners(const struct place *p, const config_setting_t *s, struct config_value *v);

static int read_value(const struct place *p, const config_setting_t *s, struct config_value *v)
{
    switch (p->row->type) {
    case CONFIG_INT:
        return read_int(p, s, v);
    case CONFIG_FLOAT:
        return read_float(p, s, v);
    case CONFIG_PATHS:
    case CONFIG_NAMES:
    case CONFIG_ADDRESSES:
        return read_list(p, s, v);
    case CONFIG_LISTENERS:
        return read_listeners(p, s, v);
    case CONFIG_FIELD:
        return read_field(p, s, &v->s);
    default:
        if (read_text(p, s, &v->s))
            return -EINVAL;
        return read_meaning(p, &v->s, &v->i);
    }
}

static void read_key(struct reader *r, const config_setting_t *s, struct config_group *g,
                     size_t key)
{
    struct config_value v = { .file = r->file, .line = (int)s->line };
    char label[128];
    struct place p = { .r = r, .row = &config_rows[key], .label = label, .line = v.line };

    snprintf(label, sizeof label, "%s.%s", g->label, p.row->name);
    if (read_value(&p, s, &v) == 0) {
        v.set = true;
        g->values[key] = v;
    } else if (!g->values[key].set) {
        g->values[key].line = v.line;           /* said, if wrongly: not missing */
    }
}

static size_t find_key(const char *name, enum config_section a, enum config_section b)
{
    for (size_t k = 0; k < CONFIG_N_KEYS; k++)
        if (row_in(k, a, b) && strcmp(config_rows[k].name, name) == 0)
            return k;
    return CONFIG_N_KEYS;
}

/* `a` and `b`: the sections whose rows may stand in it. */
static void read_group(struct reader *r, const config_setting_t *s, struct config_group *g,
                       enum config_section a, enum config_section b)
{
    for (int i = 0; i < config_setting_length(s); i++) {
        const config_setting_t *e = config_setting_get_elem(s, (unsigned)i);
        size_t key = find_key(e->name, a, b);

        if (key < CONFIG_N_KEYS)
            read_key(r, e, g, key);
        else
            unknown_key(r, e, g, a, b);
    }
}

/* ---- groups in lists ---- */

static void set_defaults(struct reader *r, struct config_group *g, enum config_section section);

static struct config_group *new_group(struct reader *r, const char *label, int line)
{
    struct config_group *g = arena_alloc(r->c->arena, sizeof *g);

    if (!g || !(g->label = arena_strdup(r->c->arena, label)))
        return NULL;
    g->file = r->file;
    g->line = line;
    return g;
}

static int read_listener(const struct place *p, const config_setting_t *e, struct config_group **ret)
{
    struct config_group *g = new_group(p->r, p->label, p->line);
    struct place at = *p;
    struct config_value *v;

    if (!g)
        return fault(p, "no memory");
    set_defaults(p->r, g, CONFIG_LISTEN);
    *ret = g;
    if (e->type == CONFIG_TYPE_GROUP) {
        read_group(p->r, e, g, CONFIG_LISTEN, CONFIG_LISTEN);
        return 0;
    }
    if (e->type != CONFIG_TYPE_STRING)
        return wrong_type(p, "a string or a group", e);
    at.row = &config_rows[LISTEN_address];
    v = &g->values[LISTEN_address];
    v->file = p->r->file;
    v->line = p->line;
    if (read_text(&at, e, &v->s) == 0 && read_address(&at, v->s, &v->s) == 0)
        v->set = true;
    return 0;
}

static int read_listeners(const struct place *p, const config_setting_t *s, struct config_value *v)
{
    struct config *c = p->r->c;
    int n = config_setting_length(s), r = 0;
    struct config_group **groups;

    if (!is_list(s))
        return wrong_type(p, "a list of addresses and groups", s);
    if (n > CONFIG_MAX_LISTENERS)
        return fault(p, "has more than %d entries", CONFIG_MAX_LISTENERS);
    groups = arena_array(c->arena, (size_t)n + 1, sizeof *groups);
    if (!groups)
        return fault(p, "no memory");
    for (int i = 0; i < n; i++) {
        const config_setting_t *e = config_setting_get_elem(s, (unsigned)i);
        char label[LABEL];
        const struct place at = place_of_entry(p, e, i, label);

        if (read_listener(&at, e, &groups[i]))
            r = -EINVAL;
    }
    if (r == 0) {
        c->listeners = groups;
        c->n_listeners = (size_t)n;
    }
    return r;
}

/* A list of groups: models, templates. `a` and `b` as in read_group(). */
struct groups {
    const char *name;
    enum config_section a, b;
    struct config_group **list;
    size_t *n;
    size_t max;
};

static void read_groups(struct reader *r, const config_setting_t *s, const struct groups *to)
{
    int n = config_setting_length(s);

    if (!is_list(s) || (n > 0 && s->type == CONFIG_TYPE_ARRAY)) {
        config_fault(r->faults, r->file, (int)s->line, "%s: must be a list of groups, but is %s", to->name,
                     type_name(s));
        return;
    }
    if (*to->n + (size_t)n > to->max) {
        config_fault(r->faults, r->file, (int)s->line, "%s: more than %zu %s", to->name, to->max, to->name);
        return;
    }
    for (int i = 0; i < n; i++) {
        const config_setting_t *e = config_setting_get_elem(s, (unsigned)i);
        struct config_group *g;
        char label[32];

        snprintf(label, sizeof label, "%s[%d]", to->name, i);
        if (e->type != CONFIG_TYPE_GROUP) {
            config_fault(r->faults, r->file, (int)(e->line ? e->line : s->line),
                         "%s: must be a group, but is %s", label, type_name(e));
            continue;
        }
        g = new_group(r, label, (int)(e->line ? e->line : s->line));
        if (!g) {
            config_fault(r->faults, r->file, (int)s->line, "%s: no memory", to->name);
            return;
        }
        read_group(r, e, g, to->a, to->b);
        to->list[(*to->n)++] = g;
    }
}

static void read_models(struct reader *r, const config_setting_t *s)
{
    read_groups(r, s, &(struct groups){ "models", CONFIG_MODEL, CONFIG_DEFAULTS, r->c->models, &r->c->n_models,
                                        CONFIG_MAX_MODELS });
}

static void read_templates(struct reader *r, const config_setting_t *s)
{
    read_groups(r, s, &(struct groups){ "templates", CONFIG_TEMPLATE, CONFIG_TEMPLATE, r->c->template_groups,
                                        &r->c->n_template_groups, CONFIG_MAX_TEMPLATES });
}

static void unknown_section(struct reader *r, const config_setting_t *s)
{
    struct nearest n = nearest_to(s->name);

    for (size_t i = 0; i < CONFIG_N_SECTIONS; i++)
        if (i != CONFIG_LISTEN)
            nearest_try(&n, config_section_names[i]);
    if (n.name)
        config_fault(r->faults, r->file, (int)s->line, "%s: unknown section; did you mean \"%s\"?",
                     s->name, n.name);
    else
        config_fault(r->faults, r->file, (int)s->line,
                     "%s: unknown section; there are supervisor, controller, api, defaults, models, templates",
                     s->name);
}

static void read_section(struct reader *r, const config_setting_t *s)
{
    size_t i = 0;

    while (i < CONFIG_N_SECTIONS &&
           (i == CONFIG_LISTEN || strcmp(config_section_names[i], s->name) != 0))
        i++;
    if (i == CONFIG_N_SECTIONS)
        unknown_section(r, s);
    else if (i == CONFIG_MODEL)
        read_models(r, s);
    else if (i == CONFIG_TEMPLATE)
        read_templates(r, s);
    else if (s->type != CONFIG_TYPE_GROUP)
        config_fault(r->faults, r->file, (int)s->line, "%s: must be a group, but is %s", s->name,
                     type_name(s));
    else
        read_group(r, s, &r->c->sections[i], i, i);
}

/* ---- files ---- */

bool config_plain_name(const char *name)
{
    if (!utf8_is_valid(name, strlen(name)))
        return false;
    for (const char *c = name; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7F)
            return false;
    return true;
}

int config_file_text(const char *path, struct buf *out, const char **ret_fault)
{
    int r = file_read(path, MAX_FILE, out, NULL);

    *ret_fault = r == -E2BIG ? "is larger than 1 MB" : r == -EINVAL ? "is no regular file" : strerror(-r);
    return r;
}

/* libconfig says what, but not which; the line shows it. */
static void syntax_fault(struct reader *r, int line, const char *text, const char *what)
{
    const char *end;

    for (int i = 1; i < line && text; i++) {
        text = strchr(text, '\n');
        text += text != NULL;
    }
    if (!text) {
        config_fault(r->faults, r->file, line, "%s", what);
        return;
    }
    text += strspn(text, " \t");
    end = text + strcspn(text, "\r\n");
    if (end == text)
        config_fault(r->faults, r->file, line, "%s", what);
    else
        config_fault(r->faults, r->file, line, "%s in or before: %.*s", what,
                     (int)(end - text > 80 ? 80 : end - text), text);
}

static void read_text_of_file(struct reader *r, const struct buf *raw)
{
    BUF_LOCAL text = BUF_INIT;
    struct err err = { 0 };
    config_t tree;
    int line = 0;

    if (config_scan(buf_str(raw), raw->len, &text, &line, &err)) {
        config_fault(r->faults, r->file, line, "%s", err_text(&err));
        return;
    }
    config_init(&tree);
    if (config_read_string(&tree, buf_str(&text)) == CONFIG_TRUE) {
        const config_setting_t *root = config_root_setting(&tree);

        for (int i = 0; i < config_setting_length(root); i++)
            read_section(r, config_setting_get_elem(root, (unsigned)i));
    } else {
        syntax_fault(r, config_error_line(&tree), buf_str(&text), config_error_text(&tree));
    }
    config_destroy(&tree);
}

static int read_file(struct reader *r, const char *path)
{
    struct config *c = r->c;
    const char **files = (const char **)c->files;
    BUF_LOCAL raw = BUF_INIT;
    const char *why;
    int e = config_file_text(path, &raw, &why);

    r->file = arena_strdup(c->arena, path);
    if (!r->file) {
        config_fault(r->faults, path, 0, "no memory");
        return -ENOMEM;
    }
    if (e) {
        config_fault(r->faults, path, 0, "%s", why);
        return e;
    }
    files[c->n_files++] = r->file;
    read_text_of_file(r, &raw);
    return 0;
}

static int is_drop_in(const struct dirent *d)
{
    size_t n = strlen(d->d_name);

    return d->d_name[0] != '.' && n > 5 && strcmp(d->d_name + n - 5, ".conf") == 0;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* `shown` is the folder as in messages. */
static void read_drop_ins(struct reader *r, const char *shown)
{
    BUF_LOCAL path = BUF_INIT;
    struct dirent **names;
    int n;

    buf_printf(&path, "%s/conf.d", r->folder);
    n = scandir(buf_str(&path), &names, is_drop_in, by_name);
    if (n < 0) {
        if (errno != ENOENT && errno != ENOTDIR)
            config_fault(r->faults, buf_str(&path), 0, "%s", strerror(errno));
        return;
    }
    r->folder = arena_strdup(r->c->arena, buf_str(&path));
    for (int i = 0; i < n; i++) {
        buf_clear(&path);
        buf_printf(&path, "%sconf.d/%s", shown, names[i]->d_name);
        if (i < MAX_FILES - 1 && r->folder)
            read_file(r, buf_str(&path));
        else if (i == MAX_FILES - 1)
            config_fault(r->faults, buf_str(&path), 0, "more than %d files", MAX_FILES);
        free(names[i]);
    }
    free(names);
}

/* ---- defaults ---- */

static void split_default(struct reader *r, const char *text, struct config_value *v)
{
    const char **list = arena_array(r->c->arena, MAX_LIST, sizeof *list);

    while (list && *text && v->n_list < MAX_LIST) {
        size_t n = strcspn(text, ":");
        char *one = arena_strndup(r->c->arena, text, n);
        const char *path = one ? absolute(r, one) : NULL;

        if (path)
            list[v->n_list++] = path;
        text += n + (text[n] == ':');
    }
    v->list = list;
}

static void set_default(struct reader *r, const struct config_row *row, struct config_value *v)
{
    v->set = true;
    v->s = row->def;
    switch (row->type) {
    case CONFIG_INT:
        v->i = strtoll(row->def, NULL, 10);
        break;
    case CONFIG_MODE:
        v->i = strtoll(row->def, NULL, 8);
        break;
    case CONFIG_FLOAT:
        v->f = strtod(row->def, NULL);
        break;
    case CONFIG_PATHS:
        split_default(r, row->def, v);
        break;
    default:
        break;
    }
}

static void set_defaults(struct reader *r, struct config_group *g, enum config_section section)
{
    for (size_t k = 0; k < CONFIG_N_KEYS; k++)
        if (config_rows[k].section == section && config_rows[k].def)
            set_default(r, &config_rows[k], &g->values[k]);
}

/* systemd gives a list of folders; the first one is ours. */
static void set_runtime_dir(struct reader *r)
{
    struct config_value *v = &r->c->sections[CONFIG_SUPERVISOR].values[SUPERVISOR_runtime_dir];
    const char *env = getenv("RUNTIME_DIRECTORY");
    size_t n = env ? strcspn(env, ":") : 0;

    if (n && env[0] == '/' && utf8_is_valid(env, n)) {
        v->s = arena_strndup(r->c->arena, env, n);
        v->file = "$RUNTIME_DIRECTORY";
    }
}

static int set_default_listener(struct reader *r)
{
    struct config *c = r->c;
    struct config_group *g = new_group(r, "api.listen[0]", 0);

    c->listeners = arena_array(c->arena, 1, sizeof *c->listeners);
    if (!g || !c->listeners)
        return -ENOMEM;
    g->file = NULL;
    set_defaults(r, g, CONFIG_LISTEN);
    g->values[LISTEN_address].s = config_rows[API_listen].def;
    g->values[LISTEN_address].set = true;
    c->listeners[c->n_listeners++] = g;
    return 0;
}

/* The folder is that of the name, not of what a link leads to: conf.d is
 * beside the name. */
static const char *folder_of(struct config *c, const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *folder = !slash ? "." : slash == path ? "/"
                         : arena_strndup(c->arena, path, (size_t)(slash - path));
    CLEANUP(mem_free) char *real = folder ? realpath(folder, NULL) : NULL;

    return arena_strdup(c->arena, real ? real : ".");
}

static int prepare(struct reader *r, const char *path)
{
    struct config *c = r->c;
    const char *slash = strrchr(path, '/');

    c->arena = arena_new(64 << 20);
    if (!c->arena)
        return -ENOMEM;
    r->folder = folder_of(c, path);
    if (!r->folder)
        return -ENOMEM;
    c->path = arena_printf(c->arena, "%s/%s", strcmp(r->folder, "/") == 0 ? "" : r->folder,
                           slash ? slash + 1 : path);
    c->files = arena_array(c->arena, MAX_FILES, sizeof *c->files);
    c->models = arena_array(c->arena, CONFIG_MAX_MODELS, sizeof *c->models);
    c->template_groups = arena_array(c->arena, CONFIG_MAX_TEMPLATES, sizeof *c->template_groups);
    c->templates = arena_array(c->arena, CONFIG_MAX_TEMPLATES, sizeof *c->templates);
    c->notes = arena_array(c->arena, MAX_NOTES, sizeof *c->notes);
    if (!c->path || !c->files || !c->models || !c->template_groups || !c->templates || !c->notes)
        return -ENOMEM;
    for (size_t i = 0; i < CONFIG_N_SECTIONS; i++) {
        c->sections[i].label = config_section_names[i];
        set_defaults(r, &c->sections[i], i);
    }
    set_runtime_dir(r);
    return set_default_listener(r);
}

static void inherit(struct config *c)
{
    for (size_t m = 0; m < c->n_models; m++)
        for (size_t k = 0; k < CONFIG_N_KEYS; k++) {
            struct config_value *v = &c->models[m]->values[k];

            if (config_rows[k].section == CONFIG_DEFAULTS && !v->set)
                *v = c->sections[CONFIG_DEFAULTS].values[k];
        }
}

int config_load(const char *path, struct config **ret, struct buf *errors)
{
    CLEANUP(config_free) struct config *c = calloc(1, sizeof *c);
    struct config_faults faults = { .out = errors };
    struct reader r = { .c = c, .faults = &faults };
    const char *slash = strrchr(path, '/');
    int e;

    if (!c || prepare(&r, path)) {
        config_fault(&faults, path, 0, "no memory");
        return -ENOMEM;
    }
    e = read_file(&r, path);
    if (e)
        return e == -ENOENT ? -ENOENT : -EINVAL;
    read_drop_ins(&r, slash ? arena_strndup(c->arena, path, (size_t)(slash - path + 1)) : "");
    inherit(c);
    config_check(c, &faults);
    config_take_templates(c, &faults);
    if (faults.n)
        return -EINVAL;
    *ret = STEAL(c);
    return 0;
}

void config_free(struct config *c)
{
    if (!c)
        return;
    arena_free(c->arena);
    free(c);
}

int config_set_path(struct config *c, const char *path)
{
    c->path = arena_strdup(c->arena, path);
    return c->path ? 0 : -ENOMEM;
}

int64_t config_int(const struct config *c, enum config_key key)
{
    return c->sections[config_rows[key].section].values[key].i;
}

const char *config_str(const struct config *c, enum config_key key)
{
    return c->sections[config_rows[key].section].values[key].s;
}

bool config_only_workers(const struct config *c)
{
    const char *parts = config_str(c, SUPERVISOR_parts);

    return parts && strcmp(parts, "workers") == 0;
}
