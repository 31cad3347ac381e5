/* One pass over a batch of rows.
 *
 * Work is cut by columns of the result: each thread has its groups of every
 * matrix, always the same ones, and what follows elementwise (bias, rotation,
 * storing keys and values, SiLU and quantising) happens on the thread that made
 * the numbers. What needs whole rows (norms, joining attention spans) is cut by
 * rows with a barrier behind it; for one or two rows every thread does it for
 * itself instead, on the same numbers in the same order, which is cheaper than a
 * barrier and gives the same bits. That is 5 barriers a layer in decoding, 8
 * in a prompt, and one more where heads are normed.
 *
 * Attention is computed in spans of KERNEL_SPAN positions from the sequence's
 * start and joined in their order, whoever computes them: so the result does not
 * depend on how spans are dealt out.
 *
 * While a thread reads its last group of one matrix it prefetches its first
 * group of the next, so the stream of weights does not stop at a barrier.
 */
#include "gen/model_in.h"

#include "base/err.h"
#include "gen/engine.h"
#include "gen/kv.h"
#include "gen/slab.h"
#include "loaders/gguf.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

static void range(const struct part *p, uint32_t n, uint32_t *from, uint32_t *to)
{
    pool_range(n, p->thread, p->threads, from, to);
}

/* Where this thread's groups of a matrix begin. */
static const uint8_t *first_group(const struct part *p, const struct mat *mat)
{
    uint32_t from, to;

    range(p, mat->n_groups, &from, &to);
    return mat->w + from * mat->group_bytes;
}

/* After row-wise work: others may read it now. */
static void meet(const struct part *p)
{
    if (!p->step->copied)
        pool_barrier(p->m->pool, p->thread);
}

/* Comes many times a layer: with 500 rows of a large model, or on a machine with other load, one layer takes
 * longer than a process may be silent. */
static void beat(const struct part *p)
{
    if (p->thread == 0)
        part_beat(p);
}

static void barrier(const struct part *p)
{
    pool_barrier(p->m->pool, p->thread);
    beat(p);
}

/* ---- row-wise work --------------------------------------------------- */

/* Hands row r of `a` on in the forms that are needed. `f` may be its own row. */
static void give_row(const struct part *p, const struct acts *a, uint32_t r, const float *f, uint32_t from,
                     uint32_t n, struct need need)
{
    const size_t at = (size_t)r * a->k + from, b = at / KERNEL_BLOCK;

    if (need.floats && f != a->f + at)
        memcpy(a->f + at, f, n * sizeof *f);
    if (need.quantised)
        p->k->quantise(f, n, a->q + at, a->d + b, a->sum + b, a->half + b);
}

static void norm_row(const struct part *p, const float *x, const float *w, uint32_t r, struct need need)
{
    const struct acts *a = &p->rows->in;
    float *out = need.floats ? a->f + (size_t)r * a->k : p->room->row;

    p->k->rms_norm(x, w, p->m->dim, p->m->shape.dim, p->m->shape.rms_eps, out);
    give_row(p, a, r, out, 0, a->k, need);
}

static void norm_rows(const struct part *p, const float *w, struct need need)
{
    for (uint32_t r = p->from; r < p->to; r++)
        norm_row(p, p->rows->x + (size_t)r * p->m->dim, w, r, need);
}

/* `norm` is what comes before the addition, or NULL. */
static void add_rows(const struct part *p, const float *norm)
{
    const struct model *m = p->m;
    const uint32_t dim = m->dim;

    for (uint32_t r = p->from; r < p->to; r++) {
        const float *y = m->y_rows[r];

        if (norm) {
            p->k->rms_norm(y, norm, dim, m->shape.dim, m->shape.rms_eps, p->room->row);
            y = p->room->row;
        }
        p->k->add(p->rows->x + (size_t)r * dim, y, dim);
    }
}

static void make_turns(const struct part *p, uint32_t r, enum sight_id id)
{
    const uint32_t hd = p->m->shape.head_dim;
    const double *freq = p->m->sights[id].freq, length = (double)p->m->sights[id].turn_length;
    float *c = p->rows->turns[id].c + (size_t)r * hd, *s = p->rows->turns[id].s + (size_t)r * hd;

    for (uint32_t i = 0; i < hd / 2; i++) {
        double angle = p->m->pass[r].pos * freq[i];

        c[2 * i] = c[2 * i + 1] = (float)(length * cos(angle));
        s[2 * i + 1] = (float)(length * sin(angle));
        s[2 * i] = -s[2 * i + 1];
    }
}

void part_begin_row(const struct part *p, uint32_t r)
{
    const struct model *m = p->m;
    float *x = p->rows->x + (size_t)r * m->dim;

    mat_row(&m->embd, (uint32_t)p->m->pass[r].token, x);
    if (m->arch->scaled_embedding)
        p->k->scale(x, m->embd_scale, m->dim);
    for (uint32_t i = 0; i < m->n_sights; i++)
        make_turns(p, r, i);
}

static void begin_rows(const struct part *p)
{
    for (uint32_t r = p->from; r < p->to; r++)
        part_begin_row(p, r);
}

/* ---- matrices -------------------------------------------------------- */

/* Groups of a matrix between two beats: milliseconds of work on a fast machine. */
static uint32_t groups_a_beat(const struct mat *w, uint32_t n_rows)
{
    enum { PRODUCTS = 1 << 27 };
    const uint64_t of_one = (uint64_t)KERNEL_LANES * w->k * n_rows;

    return of_one >= PRODUCTS ? 1 : (uint32_t)(PRODUCTS / of_one);
}

/* Groups [from, to) of a weight for all rows; y[row][at] is its row 0. */
static void mul(const struct part *p, const struct weight *w, const struct acts *x, float *const *y,
                size_t at, uint32_t from, uint32_t to, const uint8_t *next)
{
    struct mul m = {
        .group_bytes = w->mat.group_bytes,
        .x = x,
        .n_rows = p->step->n,
        .y = y,
    };
    const uint32_t most = groups_a_beat(&w->mat, m.n_rows);

    for (uint32_t g = from; g < to; g += m.n_groups) {
        m.n_groups = to - g < most ? to - g : most;
        m.w = w->mat.w + g * m.group_bytes;
        m.next = g + m.n_groups == to ? next : m.w + m.n_groups * m.group_bytes;
        m.at = at + (size_t)g * KERNEL_LANES;
        p->k->mul[w->mat.type](&m);
        for (uint32_t r = 0; w->bias && r < m.n_rows; r++)
            p->k->add(y[r] + m.at, w->bias + (size_t)g * KERNEL_LANES, m.n_groups * KERNEL_LANES);
        beat(p);
    }
}

/* Where position and head of a group of 16 rows of K or V lie. */
static uint8_t *page_of(const struct part *p, uint32_t layer, uint32_t group, const struct model_row *row)
{
    return kv_page(p->step->kv, layer, row->pages[row->pos / KV_PAGE], group * KERNEL_LANES / p->m->shape.head_dim);
}

static void store_k(const struct part *p, uint32_t layer, uint32_t group, const float *x,
                    const struct model_row *row)
{
    const uint32_t hd = p->m->shape.head_dim;

    p->k->put_k[kv_type(p->step->kv)](page_of(p, layer, group, row), hd, row->pos % KV_PAGE, group * KERNEL_LANES % hd, x);
}

static void store_v(const struct part *p, uint32_t layer, uint32_t group, const float *x,
                    const struct model_row *row)
{
    const uint32_t hd = p->m->shape.head_dim;

    p->k->put_v[kv_type(p->step->kv)](page_of(p, layer, group, row), hd, row->pos % KV_PAGE, group * KERNEL_LANES % hd, x);
}

/* A group holds whole pairs of neighbours, so it can be rotated and stored by the thread that has it; unless whole
 * heads have to be normed first. */
static void keep_group(const struct part *p, uint32_t layer, enum weight_id id, uint32_t g, float *x, uint32_t r)
{
    const struct layer *l = &p->m->layers[layer];
    const struct turns *turns = &p->rows->turns[l->sight];
    const uint32_t hd = p->m->shape.head_dim;
    const size_t turn = (size_t)r * hd + g * KERNEL_LANES % hd;

    if (id == W_V) {
        store_v(p, layer, g, x, &p->m->pass[r]);
        return;
    }
    if (l->q_norm)
        return;
    p->k->rope(x, turns->c + turn, turns->s + turn, KERNEL_LANES);
    if (id == W_K)
        store_k(p, layer, g, x, &p->m->pass[r]);
}

/* Queries, keys and values. */
static void qkv_part(const struct part *p, uint32_t layer)
{
    const struct model *m = p->m;
    const struct layer *l = &m->layers[layer];
    size_t at = 0;

    for (enum weight_id id = W_Q; id <= W_V; id++) {
        const struct weight *w = &l->w[id];
        uint32_t from, to;

        range(p, w->mat.n_groups, &from, &to);
        mul(p, w, &p->rows->in, m->qkv_rows, at, from, to, first_group(p, &l->w[id + 1].mat));
        for (uint32_t r = 0; r < p->step->n; r++)
            for (uint32_t g = from; g < to; g++)
                keep_group(p, layer, id, g, m->qkv_rows[r] + at + (size_t)g * KERNEL_LANES, r);
        at += (size_t)w->mat.n_groups * KERNEL_LANES;
    }
}

/* Norm and rotation of whole heads, queries in their place, keys into the cache. */
void part_keep_head(const struct part *p, uint32_t layer, uint32_t h, uint32_t r)
{
    const struct model *m = p->m;
    const struct layer *l = &m->layers[layer];
    const struct turns *turns = &p->rows->turns[l->sight];
    const struct model_shape *s = &m->shape;
    const uint32_t hd = s->head_dim, padded = (hd + KERNEL_BLOCK - 1) / KERNEL_BLOCK * KERNEL_BLOCK;
    const size_t turn = (size_t)r * hd;
    float *x = m->qkv_rows[r] + (size_t)h * hd, *head = p->room->row;

    memcpy(head, x, hd * sizeof *head);
    memset(head + hd, 0, (padded - hd) * sizeof *head);
    p->k->rms_norm(head, h < s->n_heads ? l->q_norm : l->k_norm, padded, s->head_real, s->rms_eps, head);
    p->k->rope(head, turns->c + turn, turns->s + turn, hd);
    if (h < s->n_heads) {
        memcpy(x, head, hd * sizeof *x);
        return;
    }
    for (uint32_t g = 0; g < hd; g += KERNEL_LANES)
        store_k(p, layer, ((h - s->n_heads) * hd + g) / KERNEL_LANES, head + g, &p->m->pass[r]);
}

static void heads_part(const struct part *p, uint32_t layer)
{
    const uint32_t heads = p->m->shape.n_heads + p->m->shape.n_kv_heads;
    uint32_t from, to;

    range(p, p->step->n * heads, &from, &to);
    for (uint32_t i = from; i < to; i++)
        part_keep_head(p, layer, i % heads, i / heads);
}

/* The middle of the feed-forward in units of one block of 32. */
static void ffn_part(const struct part *p, uint32_t layer)
{
    enum { GROUPS = KERNEL_BLOCK / KERNEL_LANES };
    const struct model *m = p->m;
    const struct layer *l = &m->layers[layer];
    const struct weight *gate = &l->w[W_GATE], *up = &l->w[W_UP];
    uint32_t from, to, g0, g1, n_groups = gate->mat.n_groups;

    range(p, m->ffn / KERNEL_BLOCK, &from, &to);
    g0 = from * GROUPS;
    g1 = to * GROUPS < n_groups ? to * GROUPS : n_groups;
    if (from == to)
        return;
    mul(p, gate, &p->rows->in, m->gate_rows, 0, g0, g1, up->mat.w + g0 * up->mat.group_bytes);
    mul(p, up, &p->rows->in, m->up_rows, 0, g0, g1, first_group(p, &l->w[W_DOWN].mat));
    for (uint32_t r = 0; r < p->step->n; r++) {
        const uint32_t at = from * KERNEL_BLOCK, n = (to - from) * KERNEL_BLOCK;
        float *out = l->down.floats ? m->mid.f + (size_t)r * m->ffn + at : p->room->row;

        if (m->arch->act == ARCH_GELU_TANH)
            p->k->gelu_tanh_mul(m->gate_rows[r] + at, m->up_rows[r] + at, n, out);
        else
            p->k->silu_mul(m->gate_rows[r] + at, m->up_rows[r] + at, n, out);
        give_row(p, &m->mid, r, out, at, n, l->down);
    }
}

static void y_part(const struct part *p, const struct weight *w, const struct acts *x, const uint8_t *next)
{
    uint32_t from, to;

    range(p, w->mat.n_groups, &from, &to);
    mul(p, w, x, p->m->y_rows, 0, from, to, next);
}

/* ---- attention ------------------------------------------------------- */

/* A span's result: max[group], sum[group], o[group][head_dim]. */
struct slot { float *max, *sum, *o; };

static struct slot slot_at(const struct model *m, float *at)
{
    return (struct slot){ at, at + m->group, at + 2 * m->group };
}

static const struct sight *sight_of(const struct model *m, uint32_t layer)
{
    return &m->sights[m->layers[layer].sight];
}

static uint32_t first_span(const struct sight *s, uint32_t pos)
{
    return pos + 1 > s->window ? (pos + 1 - s->window) / KERNEL_SPAN : 0;
}

static uint32_t n_spans(const struct sight *s, uint32_t pos) { return pos / KERNEL_SPAN + 1 - first_span(s, pos); }

/* Positions of number `span` of those that row r sees: whole pages from `from` on, of which the first `skip` are not seen. */
struct reach { uint32_t from, end, skip; };

static struct reach reach_of(const struct part *p, const struct sight *sight, uint32_t r, uint32_t span)
{
    const uint32_t pos = p->m->pass[r].pos, begin = (first_span(sight, pos) + span) * KERNEL_SPAN, left = pos + 1 - begin;
    const uint32_t seen = pos + 1 > sight->window ? pos + 1 - sight->window : 0;
    const uint32_t hidden = seen > begin ? seen - begin : 0;    /* positions of the span before the window */

    return (struct reach){ begin + hidden / KV_PAGE * KV_PAGE, begin + (left < KERNEL_SPAN ? left : KERNEL_SPAN), hidden % KV_PAGE };
}

/* The first pages of what is attended to behind a span, in the order of spans, heads and rows. */
static void fetch_ahead(const struct part *p, uint32_t layer, uint32_t r, uint32_t head, uint32_t span, const uint8_t *ret[2])
{
    const struct sight *sight = sight_of(p->m, layer);
    struct reach next;

    ret[0] = ret[1] = NULL;
    if (++span == n_spans(sight, p->m->pass[r].pos)) {
        span = 0;
        if (++head == p->m->shape.n_kv_heads) {
            head = 0;
            r++;
        }
    }
    if (r == p->step->n || r == MODEL_MAX_ROWS)
        return;
    next = reach_of(p, sight, r, span);
    for (uint32_t i = 0; i < 2 && next.from < next.end; i++, next.from += KV_PAGE)
        ret[i] = kv_page(p->step->kv, layer, p->m->pass[r].pages[next.from / KV_PAGE], head);
}

/* Number `span` of those that row r sees. */
static void attend_span(const struct part *p, uint32_t layer, uint32_t r, uint32_t head, uint32_t span,
                        struct slot out)
{
    const struct model *m = p->m;
    const struct model_row *row = &p->m->pass[r];
    const struct reach reach = reach_of(p, sight_of(m, layer), r, span);
    struct attend a = {
        .q = m->qkv_rows[r] + (size_t)head * m->group * m->shape.head_dim,
        .n_q = m->group,
        .head_dim = m->shape.head_dim,
        .kv = kv_view(p->step->kv, layer, head),
        .pages = row->pages + reach.from / KV_PAGE,
        .n = reach.end - reach.from,
        .skip = reach.skip,
        .scale = m->attn_scale,
        .softcap = m->attn_softcap,
        .max = out.max,
        .sum = out.sum,
        .o = out.o,
    };

    fetch_ahead(p, layer, r, head, span, a.next);
    p->k->attend(&a);
}

static void fold(const struct part *p, struct slot into, struct slot from)
{
    p->k->fold(into.max, into.sum, into.o, from.max, from.sum, from.o, p->m->group,
               p->m->shape.head_dim);
}

static void divide_by_sum(const struct part *p, struct slot s)
{
    for (uint32_t h = 0; h < p->m->group; h++)
        p->k->scale(s.o + (size_t)h * p->m->shape.head_dim, 1.0f / s.sum[h], p->m->shape.head_dim);
}

/* Single spans, each into its slot: [row][head][span]. */
static void attend_spans(const struct part *p, uint32_t layer)
{
    const struct model *m = p->m;
    const struct sight *sight = sight_of(m, layer);
    const size_t heads = m->shape.n_kv_heads, total = sight->at[p->step->n] * heads;
    const size_t from = total * p->thread / p->threads, to = total * (p->thread + 1) / p->threads;
    uint32_t r = 0;

    for (size_t i = from; i < to; i++) {
        while (sight->at[r + 1] * heads <= i)
            r++;
        size_t in_row = i - sight->at[r] * heads, spans = n_spans(sight, m->pass[r].pos);

        attend_span(p, layer, r, (uint32_t)(in_row / spans), (uint32_t)(in_row % spans),
                    slot_at(m, m->slots + i * m->slot_floats));
    }
}

void part_attend_head(const struct part *p, uint32_t layer, uint32_t h, uint32_t r)
{
    const struct model *m = p->m;
    const size_t spans = n_spans(sight_of(m, layer), m->pass[r].pos), width = (size_t)m->group * m->shape.head_dim;
    struct slot part = slot_at(m, p->room->part), whole = slot_at(m, p->room->row);

    whole.o = p->rows->heads + (size_t)r * m->heads_stride + h * width;
    for (uint32_t s = 0; s < spans; s++) {
        attend_span(p, layer, r, h, s, s ? part : whole);
        if (s)
            fold(p, whole, part);
    }
    divide_by_sum(p, whole);
}

/* Whole heads of rows, those whose first span falls in this thread's part. */
static void attend_heads(const struct part *p, uint32_t layer)
{
    const struct model *m = p->m;
    const struct sight *sight = sight_of(m, layer);
    const size_t heads = m->shape.n_kv_heads, total = sight->at[p->step->n] * heads;
    const size_t from = total * p->thread / p->threads, to = total * (p->thread + 1) / p->threads;

    for (uint32_t r = 0; r < p->step->n; r++, beat(p))
        for (uint32_t h = 0; h < heads; h++) {
            const size_t at = sight->at[r] * heads + h * (size_t)n_spans(sight, m->pass[r].pos);

            if (at >= from && at < to)
                part_attend_head(p, layer, h, r);
        }
}

/* The same sums for a row whose spans lie in slots. */
static void join_spans(const struct part *p, uint32_t layer, uint32_t r)
{
    const struct model *m = p->m;
    const struct sight *sight = sight_of(m, layer);
    const size_t heads = m->shape.n_kv_heads, width = (size_t)m->group * m->shape.head_dim;

    for (uint32_t h = 0; h < heads; h++) {
        const size_t spans = n_spans(sight, m->pass[r].pos), at = sight->at[r] * heads + h * spans;
        struct slot whole = slot_at(m, p->room->part);

        memcpy(p->room->part, m->slots + at * m->slot_floats, m->slot_floats * sizeof(float));
        for (size_t s = 1; s < spans; s++)
            fold(p, whole, slot_at(m, m->slots + (at + s) * m->slot_floats));
        divide_by_sum(p, whole);
        memcpy(p->rows->heads + (size_t)r * m->heads_stride + h * width, whole.o, width * sizeof(float));
    }
}

/* O's input without what heads are padded with. */
static void close_gaps(const struct part *p, uint32_t r)
{
    const struct model *m = p->m;
    const uint32_t hd = m->shape.head_dim, real = m->shape.head_real;
    const float *from = p->rows->heads + (size_t)r * m->heads_stride;
    float *to = p->rows->att.f + (size_t)r * m->attn;

    for (uint32_t h = 0; h < m->shape.n_heads; h++)
        memcpy(to + (size_t)h * real, from + (size_t)h * hd, real * sizeof *to);
}

static void attention(const struct part *p, uint32_t layer)
{
    const struct layer *l = &p->m->layers[layer];

    if (p->step->split)
        attend_spans(p, layer);
    else
        attend_heads(p, layer);
    barrier(p);
    for (uint32_t r = p->from; r < p->to; r++) {
        if (p->step->split)
            join_spans(p, layer, r);
        if (p->rows->heads != p->rows->att.f)
            close_gaps(p, r);
        give_row(p, &p->rows->att, r, p->rows->att.f + (size_t)r * p->m->attn, 0, p->m->attn, l->o);
    }
    meet(p);
}

/* ---- the pass -------------------------------------------------------- */

static void run_layer(const struct part *p, uint32_t i)
{
    const struct model *m = p->m;
    const struct layer *l = &m->layers[i];
    const struct mat *then = i + 1 < m->shape.n_layers ? &l[1].w[W_Q].mat : &m->out;

    norm_rows(p, l->attn_norm, l->attn);
    meet(p);
    qkv_part(p, i);
    barrier(p);
    if (l->q_norm) {
        heads_part(p, i);
        barrier(p);
    }
    attention(p, i);
    y_part(p, &l->w[W_O], &p->rows->att, first_group(p, &l->w[W_GATE].mat));
    barrier(p);
    add_rows(p, l->post_attn_norm);
    norm_rows(p, l->ffn_norm, l->ffn);
    meet(p);
    ffn_part(p, i);
    barrier(p);
    y_part(p, &l->w[W_DOWN], &m->mid, first_group(p, then));
    barrier(p);
    add_rows(p, l->post_ffn_norm);
}

/* The output matrix for the rows whose logits are wanted. */
static void logits(const struct part *p)
{
    struct model *m = p->m;
    const struct mat *out = &m->out;
    const uint32_t n = p->step->n_wanted, whole = out->rows / KERNEL_LANES, rest = out->rows % KERNEL_LANES;
    uint32_t from, to, g0, g1;
    struct mul mul_out;

    if (n == 0)
        return;
    if (p->step->copied) {
        from = 0;
        to = n;
    } else {
        barrier(p);                                 /* add_rows() of the last layer */
        range(p, n, &from, &to);
    }
    for (uint32_t i = from; i < to; i++)
        norm_row(p, p->rows->x + (size_t)m->wanted[i] * m->dim, m->out_norm, i, m->out_need);
    meet(p);
    range(p, out->n_groups, &g0, &g1);
    mul_out = (struct mul){
        .w = out->w + g0 * out->group_bytes,
        .next = first_group(p, &m->layers[0].w[W_Q].mat),
        .group_bytes = out->group_bytes,
        .n_groups = (g1 > whole ? whole : g1) - (g0 > whole ? whole : g0),
        .x = &p->rows->in,
        .n_rows = n,
        .y = m->logit_rows,
        .at = (size_t)g0 * KERNEL_LANES,
    };
    if (mul_out.n_groups)
        p->k->mul[out->type](&mul_out);
    for (uint32_t i = 0; m->final_softcap > 0 && i < n; i++)
        p->k->softcap(m->logit_rows[i] + mul_out.at, m->final_softcap, mul_out.n_groups * KERNEL_LANES);
    if (rest == 0 || g1 != out->n_groups || g0 == g1)
        return;
    /* The caller's rows end in the middle of the last group. */
    mul_out.w = out->w + whole * out->group_bytes;
    mul_out.n_groups = 1;
    mul_out.y = m->tail_rows;
    mul_out.at = 0;
    p->k->mul[out->type](&mul_out);
    for (uint32_t i = 0; i < n; i++) {
        if (m->final_softcap > 0)
            p->k->softcap(m->tail_rows[i], m->final_softcap, KERNEL_LANES);
        memcpy(m->logit_rows[i] + (size_t)whole * KERNEL_LANES, m->tail_rows[i], rest * sizeof(float));
    }
}

static struct part part_of(struct model *m, uint32_t thread, uint32_t threads)
{
    struct part p = {
        .m = m,
        .step = &m->step,
        .k = m->k,
        .room = &m->rooms[thread],
        .rows = m->step.copied ? &m->rooms[thread].rows : &m->rows,
        .thread = thread,
        .threads = threads,
    };

    if (m->step.copied)
        p.to = m->step.n;
    else
        range(&p, m->step.n, &p.from, &p.to);
    return p;
}

static void forward_part(void *arg, uint32_t thread)
{
    struct model *m = arg;
    const struct part p = part_of(m, thread, m->generating.n);

    begin_rows(&p);
    for (uint32_t i = 0; m->step.n && i < m->shape.n_layers; i++)
        run_layer(&p, i);
    logits(&p);
}

static void read_part(void *arg, uint32_t thread)
{
    struct model *m = arg;
    const struct part p = part_of(m, thread, m->reading.n);

    prompt_part(&p);
}

static void want(struct model *m, uint32_t r)
{
    m->wanted[m->step.n_wanted] = r;
    m->logit_rows[m->step.n_wanted++] = m->pass[r].logits;
}

static void take_row(struct model *m, uint32_t r, const struct model_row *row)
{
    assert(row->token >= 0 && (uint32_t)row->token < m->shape.vocab_size);
    m->pass[r] = *row;
}

bool model_reads(const struct model *m) { return m->k->prompt != NULL; }

void model_read(struct model *m, struct kv *kv, const struct model_row *rows, size_t n, uint32_t from, uint32_t to)
{
    struct prompt *p = &m->prompt;

    assert(m->k->prompt && n && n <= MODEL_MAX_ROWS && from < to && to <= m->shape.n_layers);
    m->step = (struct step){ .kv = kv };
    p->n = (uint32_t)n;
    p->from = from;
    p->to = to;
    p->n_wanted = 0;
    for (uint32_t r = 0; r < n; r++) {
        take_row(m, prompt_row(m, r), &rows[r]);
        if (to == m->shape.n_layers && rows[r].logits)
            p->wanted[p->n_wanted++] = prompt_row(m, r);
    }
    prompt_plan(m);
    pool_run_crew(m->pool, &m->reading, read_part, m);
}

/* Rows that take the kernels of a prompt: they stand last, and all are generated where there are none. */
static size_t count_prompt(const struct model *m, const struct model_row *rows, size_t n)
{
    size_t n_prompt = 0;

    while (m->k->prompt && n_prompt < n && rows[n - 1 - n_prompt].prompt)
        n_prompt++;
    return n_prompt;
}

void model_forward(struct model *m, struct kv *kv, const struct model_row *rows, size_t n)
{
    const uint32_t threads = m->generating.n, heads = m->shape.n_kv_heads;
    const size_t n_prompt = count_prompt(m, rows, n);
    struct step *step = &m->step;

    assert(n <= MODEL_MAX_ROWS);
    if (n_prompt)
        model_read(m, kv, rows + n - n_prompt, n_prompt, 0, m->shape.n_layers);
    *step = (struct step){ .kv = kv, .n = (uint32_t)(n - n_prompt) };
    for (uint32_t r = 0; r < step->n; r++) {
        assert(!rows[r].prompt || !m->k->prompt);
        take_row(m, r, &rows[r]);
        for (uint32_t i = 0; i < m->n_sights; i++)
            m->sights[i].at[r + 1] = m->sights[i].at[r] + n_spans(&m->sights[i], rows[r].pos);
        if (rows[r].logits)
            want(m, r);
    }
    for (uint32_t i = 0; i < m->prompt.n_wanted; i++)
        want(m, m->prompt.wanted[i]);
    /* Few heads would leave threads without work: then spans are dealt out. The first sight has the most. */
    step->split = m->sights[0].at[step->n] * heads <= MODEL_SLOTS && step->n * heads < 8 * (size_t)threads;
    step->copied = step->split && n <= MODEL_COPIED_ROWS && m->prompt.n_wanted == 0;
    m->prompt.n_wanted = 0;
    if (step->n || step->n_wanted)
        pool_run_crew(m->pool, &m->generating, forward_part, m);
}

/* ---- life ------------------------------------------------------------ */

int model_open(const struct gguf *file, const struct model_options *options, struct model **ret,
               struct err *err)
{
    CLEANUP(model_close) struct model *m = calloc(1, sizeof *m);
    int r;

    if (!m)
        return err_set(err, -ENOMEM, "%s: no memory", gguf_path(file));
    m->pulse = options->pulse;
    m->borrowed = options->threads_of;
    if (m->borrowed)
        m->pool = m->borrowed->pool;
    if ((r = kernels_choose(options->isa, &m->k, err)) ||
        (!m->pool && (r = pool_open(options->threads, &m->pool, err))))
        return r;
    m->threads = pool_threads(m->pool);
    crew_init(&m->reading, m->threads);
    crew_init(&m->generating, m->threads);
    if ((r = model_load(m, file, options->share, err)))
        return r;
    *ret = STEAL(m);
    return 0;
}

void model_close(struct model *m)
{
    if (!m)
        return;
    if (!m->borrowed)
        pool_close(m->pool);
    weights_free(&m->weights);
    slab_unmap(m->scratch, m->scratch_bytes);
    arena_free(m->arena);
    free(m);
}

const struct model_shape *model_shape(const struct model *m) { return &m->shape; }

const char *model_isa(const struct model *m) { return m->k->name; }

uint32_t model_threads(const struct model *m) { return m->threads; }

void model_on_threads(struct model *m, void (*fn)(void *arg, uint32_t thread), void *arg)
{
    pool_run_on(m->pool, m->generating.n, fn, arg);
}

size_t model_weight_bytes(const struct model *m) { return m->weights_bytes; }
