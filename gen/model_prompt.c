/* The rows of a prompt through the layers, on tables that have kernels for them (cpu/prompt.h).
 *
 * A call may end behind any layer, and the next one goes on there: all that is kept from layer to layer are the residual stream,
 * the turns, and the normed rows as tiles.
 *
 * A layer is seven phases with a barrier behind each, eight where heads are normed. A phase is cut into items: two groups of a
 * weight, or a few times that, for up to all rows of a share; rows to norm; a head for up to 128 rows. Threads take items from counters
 * until there are none left, so a thread whose core is taken from it costs what it does not compute, and one item at the end. Who computes
 * an item changes nothing: an element is the sum over all of k, in one order, and attention sees what is in the cache.
 *
 * Rows are dealt out in shares, and a thread takes from its own first, in all phases: what one phase left in a core's cache is where the
 * next one reads it. Two threads were slowed by a third while they wrote neighbouring columns of the same rows; weights are unpacked for
 * each share, which is less.
 *
 * Between phases rows are bf16 tiles, but for the residual stream, queries and what attention gives, which are floats.
 *
 * The first cache holds unpacked weights, the second one activations: so an item has all rows of a share where they fit, else several
 * panels for 256 rows, whose activations then come once for all of these.
 *
 * Logits of these rows are computed with those of generated ones, by the kernels of generated rows (model.c). In the last layer only
 * rows from the first one on whose logits are wanted go further than their keys and values.
 */
#include "gen/model_in.h"

#include "gen/kv.h"

#include <string.h>

enum {
    ROWS_OF_NORM = 8,           /* of an item that norms rows */
    FEW_ROWS = 64,              /* below, unpacking weights costs as much as multiplying them */
    SECOND_CACHE = 1 << 20,     /* bytes of it for activations */
    ROWS_OF_PANELS = PROMPT_ITEM / 4,           /* of items of several panels: up to four */
    LEAST_SHARE = MODEL_MAX_ROWS / PROMPT_SHARES,   /* rows; below, weights are unpacked for each share at more than that saves */
    BLOCK_ELEMENTS = PROMPT_ROWS * KERNEL_BLOCK,
};

/* Phases, one after another. */
struct walk {
    const struct part *p;
    const struct prompt_kernels *k;
    struct prompt *prompt;
    uint32_t phase;
    uint32_t first, n;          /* rows [first, n) of the prompt's are on the way */
    uint32_t layer;
};

static const struct layer *layer_of(const struct walk *w) { return &w->p->m->layers[w->layer]; }

/* A row of the prompt in the buffers. */
static uint32_t row_of(const struct walk *w, uint32_t r) { return prompt_row(w->p->m, r); }

static uint32_t ceil_of(uint32_t n, uint32_t by) { return (n + by - 1) / by; }

/* Rows [from, to) of the prompt's. */
struct span { uint32_t from, to; };

/* What is on the way of a share. */
static struct span share_of(const struct walk *w, uint32_t share)
{
    const uint32_t rows = w->prompt->share_rows;
    struct span s = { share * rows, (share + 1) * rows };

    if (s.to > w->n)
        s.to = w->n;
    if (s.from < w->first)
        s.from = w->first < s.to ? w->first : s.to;
    return s;
}

/* The most rows that a share may have on the way. */
static uint32_t most_rows(const struct walk *w)
{
    const uint32_t n = w->n - w->first;

    return n < w->prompt->share_rows ? n : w->prompt->share_rows;
}

/* Where the tiles of the block that holds row r begin. */
static uint16_t *block_of(uint16_t *tiles, uint32_t k, uint32_t r)
{
    return tiles + (size_t)(r / PROMPT_ROWS) * PROMPT_ROWS * k;
}

/* ---- phases ---------------------------------------------------------- */

typedef void (*item_fn)(const struct walk *w, const void *arg, uint32_t share, uint32_t i);

/* n: of the largest share. The other counters are idle: all have left the phase before, and they count from the next one on. */
static void run(struct walk *w, item_fn fn, const void *arg, uint32_t n)
{
    const uint32_t shares = w->prompt->n_shares, home = w->p->thread * shares / w->p->threads;
    struct claims *claims = w->prompt->claims[w->phase % 2], *other = w->prompt->claims[(w->phase + 1) % 2];

    for (uint32_t j = 0; j < shares && w->p->thread == 0; j++)
        atomic_store_explicit(&other[j].n, 0, memory_order_relaxed);
    for (uint32_t j = 0; j < shares; j++) {
        const uint32_t share = (home + j) % shares;
        uint32_t i;

        while ((i = atomic_fetch_add_explicit(&claims[share].n, 1, memory_order_relaxed)) < n) {
            fn(w, arg, share, i);
            part_beat(w->p);
        }
    }
    pool_barrier(w->p->m->pool, w->p->thread);
    w->phase++;
}

/* Of a share's rows, those that are number i of ROWS_OF_NORM. */
static struct span few_rows(const struct walk *w, uint32_t share, uint32_t i)
{
    struct span s = share_of(w, share);

    s.from += i * ROWS_OF_NORM;
    if (s.from + ROWS_OF_NORM < s.to)
        s.to = s.from + ROWS_OF_NORM;
    return s;
}

static void run_rows(struct walk *w, item_fn fn, const void *arg) { run(w, fn, arg, ceil_of(most_rows(w), ROWS_OF_NORM)); }

/* ---- rows ------------------------------------------------------------ */

static void begin_item(const struct walk *w, const void *arg, uint32_t share, uint32_t i)
{
    const struct span s = few_rows(w, share, i);

    (void)arg;
    for (uint32_t r = s.from; r < s.to; r++)
        part_begin_row(w->p, row_of(w, r));
}

/* What comes before the residual stream takes it in, and what makes of that the next input; each may be NULL. */
struct norms { const float *post, *next; };

static void norm_row(const struct walk *w, const struct norms *n, uint32_t r)
{
    const struct part *p = w->p;
    const struct model *m = p->m;
    float *x = p->rows->x + (size_t)row_of(w, r) * m->dim, *out = p->room->row;

    if (n->post) {
        p->k->rms_norm(m->y_rows[row_of(w, r)], n->post, m->dim, m->shape.dim, m->shape.rms_eps, out);
        p->k->add(x, out, m->dim);
    }
    if (n->next) {
        p->k->rms_norm(x, n->next, m->dim, m->shape.dim, m->shape.rms_eps, out);
        w->k->to_tiles(out, m->dim, 0, r % PROMPT_ROWS, block_of(w->prompt->in, m->dim, r));
    }
}

static void norm_item(const struct walk *w, const void *arg, uint32_t share, uint32_t i)
{
    const struct span s = few_rows(w, share, i);

    for (uint32_t r = s.from; r < s.to; r++)
        norm_row(w, arg, r);
}

static void norm_rows(struct walk *w, const float *post, const float *next)
{
    if (post || next)
        run_rows(w, norm_item, &(struct norms){ post, next });
}

/* ---- matrices -------------------------------------------------------- */

/* How a matrix is cut for a share: items of `panels` panels times `rows` rows, those of the same rows side by side. */
struct cut { uint32_t panels, rows, n_across, n; };

static uint32_t panels_of(const struct weight *w) { return ceil_of(w->mat.n_groups, 2); }

static struct cut cut(const struct walk *w, uint32_t k, uint32_t n_panels, uint32_t most_panels)
{
    const uint32_t n = most_rows(w), enough = w->p->threads > 1 ? ceil_of(3 * w->p->threads, w->prompt->n_shares) : 1;
    const size_t fit = SECOND_CACHE / ((size_t)k * sizeof(uint16_t)) / PROMPT_ROWS * PROMPT_ROWS;
    struct cut c = { .rows = ceil_of(n, PROMPT_ROWS) * PROMPT_ROWS };

    if (fit < c.rows && c.rows > ROWS_OF_PANELS)
        c.rows = ROWS_OF_PANELS;
    /* Of neighbouring panels a row's results lie together: two cost less than one at a time. */
    c.panels = fit < c.rows ? most_panels : c.rows <= ROWS_OF_PANELS ? 2 : 1;
    while (ceil_of(n_panels, c.panels) * ceil_of(n, c.rows) < enough && (c.panels > 1 || c.rows > FEW_ROWS)) {
        if (c.panels > 1)
            c.panels /= 2;
        else
            c.rows = ceil_of(c.rows / 2, PROMPT_ROWS) * PROMPT_ROWS;
    }
    c.n_across = ceil_of(n_panels, c.panels);
    c.n = c.n_across * ceil_of(n, c.rows);
    return c;
}

/* One item: panels [panel, panel + n_panels) for rows [row, row + n_rows). */
struct piece { uint32_t panel, n_panels, row, n_rows; };

/* False: the share is smaller than others, it has no such piece. */
static bool find_piece(const struct walk *w, uint32_t share, const struct cut *c, uint32_t n_panels, uint32_t i, struct piece *ret)
{
    const struct span s = share_of(w, share);
    struct piece t = { .panel = i % c->n_across * c->panels, .row = s.from + i / c->n_across * c->rows };

    if (t.row >= s.to)
        return false;
    t.n_panels = n_panels - t.panel < c->panels ? n_panels - t.panel : c->panels;
    t.n_rows = s.to - t.row < c->rows ? s.to - t.row : c->rows;
    *ret = t;
    return true;
}

/* Groups of a piece, from its panel number `from` on. */
static uint32_t groups_of(const struct weight *weight, const struct piece *t, uint32_t from, uint32_t n_panels)
{
    const uint32_t left = weight->mat.n_groups - (t->panel + from) * 2;

    return left < 2 * n_panels ? left : 2 * n_panels;
}

static void multiply(const struct walk *w, const struct weight *weight, uint16_t *x, const struct piece *t, float *sums)
{
    const struct mat *mat = &weight->mat;
    const uint8_t *first = mat->w + (size_t)t->panel * 2 * mat->group_bytes;
    const bool more = (t->panel + 2 * t->n_panels) * 2 <= mat->n_groups;        /* then most likely the next item is this thread's */

    w->k->mul(&(struct prompt_mul){
        .type = mat->type,
        .w = first,
        .next = more ? first + (size_t)t->n_panels * 2 * mat->group_bytes : NULL,
        .group_bytes = mat->group_bytes,
        .n_groups = groups_of(weight, t, 0, t->n_panels),
        .k = mat->k,
        .x = block_of(x, mat->k, t->row),
        .n_rows = t->n_rows,
        .c = sums,
        .room = w->p->room->tiles,
    });
}

static const float *bias_at(const struct weight *weight, uint32_t panel)
{
    return weight->bias ? weight->bias + (size_t)panel * 2 * KERNEL_LANES : NULL;
}

static const float *panel_sums(const float *sums, const struct piece *t, uint32_t panel)
{
    return sums + (size_t)panel * ceil_of(t->n_rows, PROMPT_ROWS) * PROMPT_SUMS;
}

static struct prompt_out out_of(const struct walk *w, const struct weight *weight, const struct piece *t, uint32_t panel)
{
    return (struct prompt_out){
        .c = panel_sums(w->p->room->sums, t, panel),
        .n_rows = t->n_rows,
        .n_groups = groups_of(weight, t, panel, 1),
        .bias = bias_at(weight, t->panel + panel),
    };
}

/* ---- queries, keys, values -------------------------------------------- */

struct qkv { struct cut cuts[3]; };

static void turn_out(const struct walk *w, struct prompt_out *o, const struct piece *t, uint32_t panel)
{
    const struct turns *turns = &w->p->rows->turns[layer_of(w)->sight];
    const uint32_t hd = w->p->m->shape.head_dim, at = (t->panel + panel) * 2 * KERNEL_LANES;

    o->cos = turns->c + (size_t)row_of(w, t->row) * hd;
    o->sin = turns->s + (size_t)row_of(w, t->row) * hd;
    o->turn_stride = hd;
    o->turn_at[0] = at % hd;
    o->turn_at[1] = (at + KERNEL_LANES) % hd;
}

/* x: one panel's rows of keys or values. */
static void keep(const struct walk *w, enum weight_id id, const struct piece *t, uint32_t panel, uint32_t n_groups, const float *x)
{
    const struct part *p = w->p;
    struct kv *kv = p->step->kv;
    const uint32_t hd = p->m->shape.head_dim;
    void (*const put)(uint8_t *, uint32_t, uint32_t, uint32_t, const float *) = (id == W_K ? p->k->put_k : p->k->put_v)[kv_type(kv)];

    for (uint32_t g = 0; g < n_groups; g++) {
        const uint32_t row = (t->panel + panel) * 2 * KERNEL_LANES + g * KERNEL_LANES, head = row / hd, at = row % hd;

        for (uint32_t r = 0; r < t->n_rows; r++) {
            const struct model_row *of = &p->m->pass[row_of(w, t->row + r)];

            put(kv_page(kv, w->layer, of->pages[of->pos / KV_PAGE], head), hd, of->pos % KV_PAGE, at,
                x + (size_t)r * KERNEL_BLOCK + g * KERNEL_LANES);
        }
    }
}

/* Queries go where attention finds them, and keys where they are normed first; other keys, and values, to their pages. */
static void qkv_out(const struct walk *w, enum weight_id id, const struct piece *t, uint32_t panel, size_t at)
{
    const struct layer *l = layer_of(w);
    const struct model *m = w->p->m;
    struct prompt_out o = out_of(w, &l->w[id], t, panel);
    const bool pages = id == W_V || (id == W_K && !l->q_norm);

    if (id != W_V && !l->q_norm)
        turn_out(w, &o, t, panel);
    if (pages) {
        o.y = w->p->room->sums + PROMPT_ITEM * (size_t)KERNEL_LANES;
        o.y_stride = KERNEL_BLOCK;
    } else {
        o.y = m->qkv_rows[row_of(w, t->row)] + at + (size_t)(t->panel + panel) * 2 * KERNEL_LANES;
        o.y_stride = (size_t)(m->qkv_rows[1] - m->qkv_rows[0]);
    }
    w->k->out(&o);
    if (pages)
        keep(w, id, t, panel, o.n_groups, o.y);
}

static void qkv_item(const struct walk *w, const void *arg, uint32_t share, uint32_t i)
{
    const struct qkv *all = arg;
    const struct layer *l = layer_of(w);
    enum weight_id id = W_Q;
    size_t at = 0;
    struct piece t;

    for (; i >= all->cuts[id].n; id++) {
        i -= all->cuts[id].n;
        at += (size_t)l->w[id].mat.n_groups * KERNEL_LANES;
    }
    if (!find_piece(w, share, &all->cuts[id], panels_of(&l->w[id]), i, &t))
        return;
    multiply(w, &l->w[id], w->prompt->in, &t, w->p->room->sums);
    for (uint32_t q = 0; q < t.n_panels; q++)
        qkv_out(w, id, &t, q, at);
}

static void head_item(const struct walk *w, const void *arg, uint32_t share, uint32_t i)
{
    const struct model_shape *shape = &w->p->m->shape;
    const struct span s = few_rows(w, share, i);

    (void)arg;
    for (uint32_t r = s.from; r < s.to; r++)
        for (uint32_t h = 0; h < shape->n_heads + shape->n_kv_heads; h++)
            part_keep_head(w->p, w->layer, h, row_of(w, r));
}

static void qkv(struct walk *w)
{
    const struct layer *l = layer_of(w);
    struct qkv all;
    uint32_t n = 0;

    for (enum weight_id id = W_Q; id <= W_V; id++) {
        all.cuts[id] = cut(w, l->w[id].mat.k, panels_of(&l->w[id]), 2);
        n += all.cuts[id].n;
    }
    run(w, qkv_item, &all, n);
    if (l->q_norm)
        run_rows(w, head_item, NULL);
}

/* ---- attention ------------------------------------------------------- */

static void attend_unit(const struct walk *w, const struct unit *u, uint32_t head)
{
    const struct part *p = w->p;
    const struct model *m = p->m;
    const uint32_t r = row_of(w, u->first), hd = m->shape.head_dim;
    const struct kv_view view = kv_view(p->step->kv, w->layer, head);

    w->k->attend(&(struct prompt_attend){
        .q = m->qkv_rows[r] + (size_t)head * m->group * hd,
        .q_stride = (size_t)(m->qkv_rows[1] - m->qkv_rows[0]),
        .n = u->n,
        .group = m->group,
        .head_dim = hd,
        .pos = m->pass[r].pos,
        .window = m->sights[layer_of(w)->sight].window,
        .kv = &view,
        .pages = m->pass[r].pages,
        .scale = m->attn_scale,
        .softcap = m->attn_softcap,
        .o = p->room->heads,
        .o_stride = m->group * hd,
        .scratch = p->room->attend,
    });
}

/* What heads are padded with stays out of O's input. */
static void heads_to_tiles(const struct walk *w, uint32_t r, uint32_t head, const float *o)
{
    const struct model *m = w->p->m;
    const uint32_t hd = m->shape.head_dim, real = m->shape.head_real;
    uint16_t *block = block_of(w->prompt->att, m->attn, r);

    if (hd == real) {
        w->k->to_tiles(o, m->group * hd, head * m->group * hd, r % PROMPT_ROWS, block);
        return;
    }
    for (uint32_t h = 0; h < m->group; h++)
        w->k->to_tiles(o + (size_t)h * hd, real, (head * m->group + h) * real, r % PROMPT_ROWS, block);
}

/* The longest first: of a prompt's rows the last see most. */
static void attend_item(const struct walk *w, const void *arg, uint32_t share, uint32_t i)
{
    const struct model *m = w->p->m;
    const uint32_t heads = m->shape.n_kv_heads, head = i % heads, *at = &w->prompt->share_units[share];
    const struct unit *u;
    const float *o;
    size_t o_stride;

    (void)arg;
    if (i / heads >= at[1] - at[0])
        return;
    u = &w->prompt->units[at[1] - 1 - i / heads];
    if ((uint32_t)u->first + u->n <= w->first)
        return;
    if (w->k->attend) {
        attend_unit(w, u, head);
        o = w->p->room->heads;
        o_stride = m->group * m->shape.head_dim;
    } else {
        o = w->p->rows->heads + (size_t)row_of(w, u->first) * m->heads_stride + (size_t)head * m->group * m->shape.head_dim;
        o_stride = m->heads_stride;
    }
    for (uint32_t r = u->first; r < (uint32_t)u->first + u->n; r++, o += o_stride) {
        if (!w->k->attend)
            part_attend_head(w->p, w->layer, head, row_of(w, r));
        heads_to_tiles(w, r, head, o);
    }
}

/* ---- the rest of a layer --------------------------------------------- */

/* A matrix whose result goes to the residual stream, at once or by a norm. */
struct to_stream {
    const struct weight *weight;
    uint16_t *x;
    bool normed;
    struct cut cut;
};

static void stream_item(const struct walk *w, const void *arg, uint32_t share, uint32_t i)
{
    const struct to_stream *s = arg;
    const struct model *m = w->p->m;
    struct piece t;

    if (!find_piece(w, share, &s->cut, panels_of(s->weight), i, &t))
        return;
    multiply(w, s->weight, s->x, &t, w->p->room->sums);
    for (uint32_t q = 0; q < t.n_panels; q++) {
        struct prompt_out o = out_of(w, s->weight, &t, q);

        o.add = !s->normed;
        o.y = (s->normed ? m->y : w->p->rows->x) + (size_t)row_of(w, t.row) * m->dim + (size_t)(t.panel + q) * 2 * KERNEL_LANES;
        o.y_stride = m->dim;
        w->k->out(&o);
    }
}

static void to_stream(struct walk *w, enum weight_id id, uint16_t *x, bool normed)
{
    struct to_stream s = { .weight = &layer_of(w)->w[id], .x = x, .normed = normed };

    s.cut = cut(w, s.weight->mat.k, panels_of(s.weight), 4);
    run(w, stream_item, &s, s.cut.n);
}

/* A panel of both matrices is one column of tiles in the middle. */
static void gate_item(const struct walk *w, const void *arg, uint32_t share, uint32_t i)
{
    const struct weight *gate = &layer_of(w)->w[W_GATE], *up = &layer_of(w)->w[W_UP];
    const struct model *m = w->p->m;
    float *gates = w->p->room->sums, *ups = gates + PROMPT_ITEM * (size_t)KERNEL_LANES;
    struct piece t;

    if (!find_piece(w, share, arg, panels_of(gate), i, &t))
        return;
    multiply(w, gate, w->prompt->in, &t, gates);
    multiply(w, up, w->prompt->in, &t, ups);
    for (uint32_t q = 0; q < t.n_panels; q++)
        w->k->gate(&(struct prompt_gate){
            .gate = panel_sums(gates, &t, q),
            .up = panel_sums(ups, &t, q),
            .gate_bias = bias_at(gate, t.panel + q),
            .up_bias = bias_at(up, t.panel + q),
            .n_rows = t.n_rows,
            .gelu = m->arch->act == ARCH_GELU_TANH,
            .x = block_of(w->prompt->mid, m->ffn, t.row) + (size_t)(t.panel + q) * BLOCK_ELEMENTS,
            .x_stride = (size_t)PROMPT_ROWS * m->ffn,
        });
}

static void run_layer(struct walk *w)
{
    const struct layer *l = layer_of(w);
    const struct model *m = w->p->m;
    const bool last = w->layer + 1 == m->shape.n_layers;
    struct cut gates;

    qkv(w);
    if (last)
        w->first = w->prompt->seen_from;
    if (w->first >= w->n)
        return;
    run(w, attend_item, NULL, w->prompt->most_units * m->shape.n_kv_heads);
    to_stream(w, W_O, w->prompt->att, l->post_attn_norm != NULL);
    norm_rows(w, l->post_attn_norm, l->ffn_norm);
    gates = cut(w, l->w[W_GATE].mat.k, panels_of(&l->w[W_GATE]), 2);
    run(w, gate_item, &gates, gates.n);
    to_stream(w, W_DOWN, w->prompt->mid, l->post_ffn_norm != NULL);
    norm_rows(w, l->post_ffn_norm, last ? NULL : l[1].attn_norm);
}

void prompt_part(const struct part *p)
{
    struct walk w = { .p = p, .k = p->k->prompt, .prompt = &p->m->prompt, .n = p->m->prompt.n, .layer = p->m->prompt.from };

    w.k->enter();
    if (w.layer == 0) {
        run_rows(&w, begin_item, NULL);
        norm_rows(&w, NULL, p->m->layers[0].attn_norm);
    }
    for (; w.layer < w.prompt->to; w.layer++)
        run_layer(&w);
    w.k->leave();
}

/* Rows of one sequence that follow one another have the same pages and neighbouring positions. */
static bool follows(const struct model_row *a, const struct model_row *b)
{
    return a->pages == b->pages && a->pos + 1 == b->pos;
}

/* Rows of a unit: long ones unpack keys and values less often, but every thread should have some. */
static uint32_t unit_rows(const struct model *m)
{
    uint32_t rows = PROMPT_ATTEND_ROWS;

    while (rows > PROMPT_ROWS && ceil_of(m->prompt.n, rows) * m->shape.n_kv_heads < 3 * m->reading.n)
        rows /= 2;
    return rows;
}

/* Rows are dealt to shares of whole blocks. */
static void plan_shares(struct model *m)
{
    struct prompt *p = &m->prompt;
    uint32_t most = m->prompt.n / LEAST_SHARE;

    most = most > m->reading.n ? m->reading.n : most ? most : 1;
    p->share_rows = ceil_of(ceil_of(m->prompt.n, PROMPT_ROWS), most) * PROMPT_ROWS;
    p->n_shares = ceil_of(m->prompt.n, p->share_rows);
    for (uint32_t i = 0; i < p->n_shares; i++)
        for (int phase = 0; phase < 2; phase++)
            p->claims[phase][i].n = 0;
}

static void plan_units(struct model *m)
{
    struct prompt *p = &m->prompt;
    const struct model_row *rows = m->pass + prompt_row(m, 0);
    const uint32_t most = unit_rows(m);
    uint32_t n = 0;

    p->most_units = 0;
    for (uint32_t share = 0; share < p->n_shares; share++) {
        const uint32_t from = share * p->share_rows, end = from + p->share_rows;

        p->share_units[share] = n;
        for (uint32_t r = from; r < end && r < p->n; r++) {
            if (r == from || p->units[n - 1].n == most || !follows(&rows[r - 1], &rows[r]))
                p->units[n++] = (struct unit){ (uint16_t)r, 0 };
            p->units[n - 1].n++;
        }
        if (p->most_units < n - p->share_units[share])
            p->most_units = n - p->share_units[share];
    }
    p->share_units[p->n_shares] = n;
}

void prompt_plan(struct model *m)
{
    struct prompt *p = &m->prompt;
    const struct model_row *rows = m->pass + prompt_row(m, 0);
    uint32_t seen = 0;

    plan_shares(m);
    plan_units(m);
    while (seen < p->n && !rows[seen].logits)
        seen++;
    p->seen_from = seen == p->n ? seen : seen / PROMPT_ROWS * PROMPT_ROWS;
}
