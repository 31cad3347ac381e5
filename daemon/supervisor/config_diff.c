/* Two configurations, setting by setting.
 *
 * Models are told apart by name, and so are chat templates: those in force, whatever file they come from. A setting that a model inherits in both is shown
 * once, at `defaults`.
 */
#include "daemon/supervisor/config_parts.h"

#include <string.h>

struct diff {
    const struct config *was, *is;
    config_change_fn *fn;
    void *user;
};

static void put_listeners(const struct config *c, struct buf *out)
{
    buf_adds(out, "(");
    for (size_t i = 0; i < c->n_listeners; i++) {
        const struct config_group *g = c->listeners[i];
        bool plain = !g->values[LISTEN_mode].line && !g->values[LISTEN_group].set;
        const char *sep = " ";

        buf_adds(out, i ? ", " : " ");
        if (plain) {
            buf_quote(out, g->values[LISTEN_address].s);
            continue;
        }
        buf_addc(out, '{');
        for (size_t k = 0; k < CONFIG_N_KEYS; k++)
            if (config_rows[k].section == CONFIG_LISTEN && g->values[k].set) {
                buf_printf(out, "%s%s = ", sep, config_rows[k].name);
                config_put_value(out, &config_rows[k], &g->values[k]);
                sep = "; ";
            }
        buf_adds(out, " }");
    }
    buf_adds(out, " )");
}

/* As a file would have it; "" when it is not set. */
static void put(struct buf *out, const struct config *c, const struct config_row *row, const struct config_value *v)
{
    if (row->type == CONFIG_LISTENERS)
        put_listeners(c, out);
    else if (v->set)
        config_put_value(out, row, v);
}

static void compare(const struct diff *d, const char *model, enum config_key key, const struct config_value *was,
                    const struct config_value *is)
{
    const struct config_row *row = &config_rows[key];
    BUF_LOCAL old = BUF_INIT;
    BUF_LOCAL new = BUF_INIT;

    put(&old, d->was, row, was);
    put(&new, d->is, row, is);
    if (strcmp(buf_str(&old), buf_str(&new)) != 0)
        d->fn(&(struct config_change){ .model = model, .row = row, .was = buf_str(&old), .is = buf_str(&new), .file = is->file,
                                       .line = is->line }, d->user);
}

static bool is_inherited(const struct config *c, const struct config_value *v, size_t key)
{
    const struct config_value *from = &c->sections[CONFIG_DEFAULTS].values[key];

    return config_rows[key].section == CONFIG_DEFAULTS && v->file == from->file && v->line == from->line;
}

static void compare_models(const struct diff *d, const struct config_group *was, const struct config_group *is)
{
    for (size_t k = 0; k < CONFIG_N_KEYS; k++) {
        enum config_section section = config_rows[k].section;

        if ((section == CONFIG_MODEL || section == CONFIG_DEFAULTS) &&
            !(is_inherited(d->was, &was->values[k], k) && is_inherited(d->is, &is->values[k], k)))
            compare(d, is->values[MODEL_name].s, k, &was->values[k], &is->values[k]);
    }
}

/* A model that one of them lacks. */
static void alone(const struct diff *d, const struct config_group *g, bool is_new)
{
    const char *path = g->values[MODEL_path].s;

    d->fn(&(struct config_change){ .model = g->values[MODEL_name].s, .was = is_new ? "" : path, .is = is_new ? path : "", .file = g->file,
                                   .line = g->line }, d->user);
}

static bool same_text(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

static const struct config_template *find_template(const struct config *c, const char *name)
{
    for (size_t i = 0; i < c->n_templates; i++)
        if (strcmp(c->templates[i].name, name) == 0)
            return &c->templates[i];
    return NULL;
}

static void compare_templates(const struct diff *d)
{
    for (size_t i = 0; i < d->was->n_templates; i++) {
        const struct config_template *t = &d->was->templates[i];

        if (!find_template(d->is, t->name))
            d->fn(&(struct config_change){ .template = t->name, .was = t->file, .is = "" }, d->user);
    }
    for (size_t i = 0; i < d->is->n_templates; i++) {
        const struct config_template *t = &d->is->templates[i], *old = find_template(d->was, t->name);

        if (!old || !same_text(old->row, t->row) || !same_text(old->jinja, t->jinja))
            d->fn(&(struct config_change){ .template = t->name, .was = old ? old->file : "", .is = t->file, .file = t->file,
                                           .line = t->line }, d->user);
    }
}

void config_diff(const struct config *was, const struct config *is, config_change_fn *fn, void *user)
{
    const struct diff d = { was, is, fn, user };

    for (size_t k = 0; k < CONFIG_N_KEYS; k++) {
        enum config_section s = config_rows[k].section;

        if (s != CONFIG_LISTEN && s != CONFIG_MODEL && s != CONFIG_TEMPLATE)
            compare(&d, NULL, k, &was->sections[s].values[k], &is->sections[s].values[k]);
    }
    for (size_t m = 0; m < was->n_models; m++)
        if (config_find_model(is, was->models[m]->values[MODEL_name].s) < 0)
            alone(&d, was->models[m], false);
    for (size_t m = 0; m < is->n_models; m++) {
        int old = config_find_model(was, is->models[m]->values[MODEL_name].s);

        if (old < 0)
            alone(&d, is->models[m], true);
        else
            compare_models(&d, was->models[old], is->models[m]);
    }
    compare_templates(&d);
}
