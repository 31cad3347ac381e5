/* tile_attend.h - attention of a prompt's rows on bf16 tiles.
 *
 * Keys are met in rounds of 128 positions, which begin at multiples of 128 whatever rows are computed. A round's keys and values
 * become tiles once, for all rows and heads of the call. A job is 32 rows of one head; in its round it has three stages, each a job
 * behind the other: scores by tiles, weights by vectors, their sums of values by tiles again. Tiles of the job behind and of the job
 * ahead are issued between the rows of weights, for the two kinds of instruction do not wait for each other.
 *
 * A row's own: its largest score, which is raised only by scores 2^20 times as heavy, and by what its sums are scaled then; and
 * what it sees, for all else has the weight 0. So its bits do not depend on the rows beside it. A value that is not finite would
 * reach rows that do not see it, as 0 x infinity: it becomes 0, and the rows that see it a NaN.
 *
 * Queries, keys, values and weights are rounded to bf16, sums are float. Of a result of normal numbers that leaves 3e-3 to 7e-3,
 * most of it by the rounding of queries and keys; the exponential's 1e-4 is not seen beside it.
 *
 * Source   online softmax, arXiv:1805.02867; FlashAttention-2, arXiv:2307.08691; the raise by a threshold and the cubic: measured
 */
#ifndef GEN_CPU_TILE_ATTEND_H
#define GEN_CPU_TILE_ATTEND_H

#include "gen/cpu/avx512.h"

#include "gen/cpu/prompt.h"
#include "gen/cpu/tiles.h"

enum {
    ROUND = 128,                /* positions */
    ROUND_BLOCKS = ROUND / PROMPT_ROWS,         /* of 32 positions: two tiles of keys */
    ROW_SUMS = PROMPT_ROWS * L,
    MAX_JOBS_OF_HEAD = PROMPT_ATTEND_ROWS / PROMPT_ROWS,
};

/* 2^x within 1e-4 of itself for -126 < x < 127: integer part to the exponent, a cubic for the rest. A NaN stays one. */
INLINE v16 exp2_cubic(v16 x)
{
    const v16 magic = v16_set1(12582912), sum = v16_add(x, magic), r = v16_sub(x, v16_sub(sum, magic));
    v16 p = v16_fma(v16_set1(0.0551716685f), r, v16_set1(0.2426389f));

    p = v16_fma(p, r, v16_set1(0.69326053f));
    p = v16_fma(p, r, v16_set1(0.99992807f));
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(sum), 23)));
}

INLINE void put_bf16(uint16_t *to, v16 v) { _mm256_storeu_si256((__m256i *)to, (__m256i)_mm512_cvtneps_pbh(v)); }

/* ---- what is computed ------------------------------------------------- */

/* 32 neighbouring rows of one head. */
struct attend_job {
    uint32_t pos, n;            /* of the first row; rows */
    uint16_t *q;                /* [dims / 32][2][16][32], times scale and log2 e */
    float *o;                   /* [dims / 32][2][2][16][16] */
    float *sum;                 /* [32][16] */
    float *max;                 /* [32] */
};

struct attend_round {
    uint32_t base;              /* its first position */
    uint16_t *k;                /* [ROUND / 16][dims / 32][16][16][2]: pairs of dimensions of 16 positions */
    uint16_t *v;                /* [ROUND / 32][dims / 16][16][16][2]: pairs of positions of 16 dimensions */
    uint64_t bad[2];            /* positions with a value that is not finite */
};

/* The tile products that wait: scores of the job ahead, then values of the job behind. */
struct attend_feed {
    const struct attend_job *ahead, *behind;    /* NULL: none */
    const uint16_t *k, *v, *p;
    float *s;
    uint32_t ahead_blocks, behind_blocks, n_dims;
    uint32_t n_scores, n, done; /* steps of four products */
    uint32_t outer, inner;      /* of the step to come */
};

struct attention {
    const struct prompt_attend *a;
    uint32_t n_dims;            /* 32s of head_dim */
    uint32_t end;               /* positions that there are */
    struct attend_job *jobs;
    uint32_t n_jobs;
    struct attend_round rounds[2];
    float *s[2];                /* [ROUND_BLOCKS][2][2][16][16] */
    uint16_t *p[2];             /* [ROUND_BLOCKS][2][16][32] */
};

/* ---- tiles of keys and values ----------------------------------------- */

/* Words 0, 16, 1, 17, ... of two times sixteen. */
INLINE __m512i interleave(__m512i x)
{
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4,
                                           19, 3, 18, 2, 17, 1, 16, 0);

    return _mm512_permutexvar_epi16(order, x);
}

INLINE __m512i pair_floats(v16 even, v16 odd) { return interleave((__m512i)_mm512_cvtne2ps_pbh(odd, even)); }

INLINE __m512i pair_halves(const uint16_t *even, const uint16_t *odd)
{
    return interleave(_mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)even)),
                                         _mm256_loadu_si256((const __m256i *)odd), 1));
}

INLINE void tile_keys(const enum kv_type type, const uint8_t *k, uint32_t hd, uint32_t n_dims, uint16_t *tiles)
{
    for (uint32_t i = 0; i < 32 * n_dims; i += 2, tiles += 32) {
        const size_t at = (size_t)i * PAGE;
        __m512i x;

        if (i >= hd) {
            x = _mm512_setzero_si512();
        } else if (type == KV_BF16) {
            x = pair_halves((const uint16_t *)k + at, (const uint16_t *)k + at + PAGE);
        } else if (type == KV_F16) {
            x = pair_floats(load_kv(type, k, at), load_kv(type, k, at + PAGE));
        } else {
            const v16 s = load_scales(k, hd, i / L * L);

            x = pair_floats(v16_mul(s, load_kv(type, k, at)), v16_mul(s, load_kv(type, k, at + PAGE)));
        }
        _mm512_store_si512(tiles, x);
    }
}

/* Sixteen dimensions from `at` on of one position. */
INLINE v16 load_value(const enum kv_type type, const uint8_t *v, uint32_t hd, uint32_t pos, uint32_t at)
{
    const v16 x = load_kv(type, v, (size_t)pos * hd + at);

    return type == KV_Q8 ? v16_mul(x, v16_set1(bf16_to_f32(((const uint16_t *)(v + kv_elements_bytes(KV_Q8, hd)))[at + pos]))) : x;
}

/* Of one page, to the upper or lower half of tiles; positions from n on are 0. Returns the largest of what bf16 has but for signs. */
INLINE __m512i tile_values(const enum kv_type type, const uint8_t *v, uint32_t n, uint32_t hd, uint16_t *tiles)
{
    __m512i largest = _mm512_setzero_si512();

    for (uint32_t at = 0; at < hd; at += L, tiles += PROMPT_TILE)
        UNROLL for (uint32_t t = 0; t < PAGE; t += 2) {
            const uint16_t *halves = (const uint16_t *)v + (size_t)t * hd + at;
            __m512i x;

            if (t + 1 >= n)
                x = t < n ? pair_floats(load_value(type, v, hd, t, at), v16_set1(0)) : _mm512_setzero_si512();
            else if (type == KV_BF16)
                x = pair_halves(halves, halves + hd);
            else
                x = pair_floats(load_value(type, v, hd, t, at), load_value(type, v, hd, t + 1, at));
            largest = _mm512_max_epu16(largest, _mm512_and_si512(x, _mm512_set1_epi16(0x7fff)));
            _mm512_store_si512(tiles + t * L, x);
        }
    return largest;
}

INLINE uint16_t *value_tiles(const struct attention *t, const struct attend_round *r, uint32_t block)
{
    return r->v + (size_t)block * 2 * t->n_dims * PROMPT_TILE;
}

/* Rare: values that are not finite become 0, their positions are noted. */
static __attribute__((noinline, cold)) void find_bad_values(const struct attention *t, struct attend_round *r, uint32_t n_blocks)
{
    const __m512i exponent = _mm512_set1_epi16(0x7f80);

    for (uint32_t b = 0; b < n_blocks; b++)
        for (uint32_t i = 0; i < 2 * t->n_dims * L; i++) {
            uint16_t *row = value_tiles(t, r, b) + (size_t)i * 32;
            const __m512i x = _mm512_load_si512(row);
            const __mmask32 bad = _mm512_cmpeq_epi16_mask(_mm512_and_si512(x, exponent), exponent);
            const uint32_t pos = b * PROMPT_ROWS + 2 * (i % L);

            r->bad[pos / 64] |= (uint64_t)((bad & 0x55555555) != 0) << pos % 64 | (uint64_t)((bad & 0xaaaaaaaa) != 0) << (pos + 1) % 64;
            _mm512_store_si512(row, _mm512_maskz_mov_epi16(~bad, x));
        }
}

static uint32_t round_pages(const struct attention *t, uint32_t base)
{
    const uint32_t left = t->end - base;

    return ((left < ROUND ? left : ROUND) + PAGE - 1) / PAGE;
}

INLINE const uint8_t *round_page(const struct attention *t, uint32_t base, uint32_t i)
{
    return t->a->kv->page + t->a->pages[base / PAGE + i] * t->a->kv->page_stride;
}

INLINE void round_keys(const struct attention *t, const enum kv_type type, struct attend_round *r)
{
    const uint32_t n = round_pages(t, r->base);
    const size_t page = (size_t)t->n_dims * PROMPT_TILE;

    for (uint32_t i = 0; i < n; i++)
        tile_keys(type, round_page(t, r->base, i), t->a->head_dim, t->n_dims, r->k + i * page);
    if (n % 2)                  /* the other half of a block: seen by nobody, but read */
        memset(r->k + n * page, 0, page * sizeof *r->k);
}

INLINE void round_values(const struct attention *t, const enum kv_type type, struct attend_round *r)
{
    const uint32_t n = round_pages(t, r->base), hd = t->a->head_dim;
    __m512i largest = _mm512_setzero_si512();

    for (uint32_t i = 0; i < n + n % 2; i++) {
        const uint32_t at = r->base + i * PAGE, left = at < t->end ? t->end - at : 0;
        const uint8_t *v = round_page(t, r->base, i < n ? i : n - 1) + kv_half_bytes(type, hd);
        uint16_t *tiles = value_tiles(t, r, i / 2) + i % 2 * (PROMPT_TILE / 2);

        largest = _mm512_max_epu16(largest, left >= PAGE ? tile_values(type, v, PAGE, hd, tiles) : tile_values(type, v, left, hd, tiles));
        if (hd % 32)
            memset(tiles + (size_t)hd / L * PROMPT_TILE, 0, PROMPT_TILE / 2 * sizeof *tiles);
    }
    r->bad[0] = r->bad[1] = 0;
    if (_mm512_cmpge_epu16_mask(largest, _mm512_set1_epi16(0x7f80)))
        find_bad_values(t, r, (n + 1) / 2);
}

#define BY_TYPE(call)                                                                                                             \
    switch (t->a->kv->type) {                                                                                                     \
    case KV_F16: call(t, KV_F16, r); break;                                                                                       \
    case KV_BF16: call(t, KV_BF16, r); break;                                                                                     \
    case KV_Q8: call(t, KV_Q8, r); break;                                                                                         \
    case KV_TYPES: break;                                                                                                         \
    }
static void make_keys(const struct attention *t, struct attend_round *r) { BY_TYPE(round_keys) }
static void make_values(const struct attention *t, struct attend_round *r) { BY_TYPE(round_values) }

/* ---- products --------------------------------------------------------- */

/* Step z of 32 x 32 scores. */
INLINE void score_step(struct attend_feed *f)
{
    const uint16_t *q = f->ahead->q + (size_t)f->inner * 2 * PROMPT_TILE;
    const uint16_t *k = f->k + ((size_t)f->outer * 2 * f->n_dims + f->inner) * PROMPT_TILE;
    float *s = f->s + (size_t)f->outer * PROMPT_SUMS;

    if (f->inner == 0) {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
    }
    TILE_LOAD(4, q, 64);
    TILE_LOAD(6, k, 64);
    TILE_BF16(0, 4, 6);
    TILE_LOAD(7, k + (size_t)f->n_dims * PROMPT_TILE, 64);
    TILE_BF16(1, 4, 7);
    TILE_LOAD(5, q + PROMPT_TILE, 64);
    TILE_BF16(2, 5, 6);
    TILE_BF16(3, 5, 7);
    if (++f->inner < f->n_dims)
        return;
    TILE_STORE(0, s, 64);
    TILE_STORE(1, s + 256, 64);
    TILE_STORE(2, s + 512, 64);
    TILE_STORE(3, s + 768, 64);
    f->inner = 0;
    f->outer++;
}

/* 32 positions to 32 rows and 32 dimensions of what is summed. */
INLINE void value_step(struct attend_feed *f)
{
    const uint16_t *p = f->p + (size_t)f->inner * 2 * PROMPT_TILE;
    const uint16_t *v = f->v + ((size_t)f->inner * f->n_dims + f->outer) * 2 * PROMPT_TILE;
    float *o = f->behind->o + (size_t)f->outer * PROMPT_SUMS;

    if (f->inner == 0) {
        TILE_LOAD(0, o, 64);
        TILE_LOAD(1, o + 256, 64);
        TILE_LOAD(2, o + 512, 64);
        TILE_LOAD(3, o + 768, 64);
    }
    TILE_LOAD(4, p, 64);
    TILE_LOAD(6, v, 64);
    TILE_BF16(0, 4, 6);
    TILE_LOAD(7, v + PROMPT_TILE, 64);
    TILE_BF16(1, 4, 7);
    TILE_LOAD(5, p + PROMPT_TILE, 64);
    TILE_BF16(2, 5, 6);
    TILE_BF16(3, 5, 7);
    if (++f->inner < f->behind_blocks)
        return;
    TILE_STORE(0, o, 64);
    TILE_STORE(1, o + 256, 64);
    TILE_STORE(2, o + 512, 64);
    TILE_STORE(3, o + 768, 64);
    f->inner = 0;
    f->outer++;
}

INLINE void feed_until(struct attend_feed *f, uint32_t n)
{
    while (f->done < n) {
        if (f->done == f->n_scores)
            f->outer = 0;
        if (f->done++ < f->n_scores)
            score_step(f);
        else
            value_step(f);
    }
}

/* ---- weights ---------------------------------------------------------- */

static uint64_t bits_below(int32_t n) { return n <= 0 ? 0 : n >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << n) - 1; }

/* Of a round, what a row at `pos` sees. */
static void seen(const struct prompt_attend *a, uint32_t pos, uint32_t base, uint64_t ret[2])
{
    const int64_t last = (int64_t)pos + 1 - base, before = last - a->window;
    const int32_t to = last > ROUND ? ROUND : (int32_t)last, from = before < 0 ? 0 : before > ROUND ? ROUND : (int32_t)before;

    for (int i = 0; i < 2; i++)
        ret[i] = bits_below(to - 64 * i) & ~bits_below(from - 64 * i);
}

/* Gives row r the larger maximum, and returns what its sums are to be scaled by. */
static __attribute__((noinline)) float raise_max(const struct attend_job *j, uint32_t r, v16 scores)
{
    const float old = j->max[r];
    float by;

    j->max[r] = v16_reduce_max(scores);
    if (old < -1e29f)           /* nothing is summed yet */
        return 1;
    by = exp2f(old - j->max[r]);
    v16_store(j->sum + (size_t)r * L, v16_mul(v16_load(j->sum + (size_t)r * L), v16_set1(by)));
    return by;
}

static void scale_sums(const struct attention *t, const struct attend_job *j, uint32_t r, float by)
{
    float *o = j->o + (size_t)(r / L) * 512 + r % L * L;

    for (uint32_t d = 0; d < t->n_dims; d++, o += PROMPT_SUMS)
        for (int half = 0; half < 2; half++)
            v16_store(o + half * 256, v16_mul(v16_load(o + half * 256), v16_set1(by)));
}

/* One job's scores to weights, `blocks` of them; masked: some row does not see all. */
INLINE void soften_job(const struct attention *t, const struct attend_job *j, const struct attend_round *round, const float *scores,
                       uint16_t *weights, struct attend_feed *f, const int blocks, const bool masked)
{
    const v16 hidden = v16_set1(-1e30f);
    float by[PROMPT_ROWS];
    uint32_t raised = 0;

    for (uint32_t r = 0; r < j->n; r++) {
        const float *s = scores + (size_t)(r / L) * 512 + r % L * L;
        uint16_t *p = weights + (size_t)(r / L) * PROMPT_TILE + r % L * 32;
        uint64_t mask[2] = { 0, 0 };
        v16 v[2 * ROUND_BLOCKS], most, sum;

        if (masked)
            seen(t->a, j->pos + r, round->base, mask);
        UNROLL for (int i = 0; i < 2 * blocks; i++) {
            v[i] = v16_load(s + (i / 2) * PROMPT_SUMS + i % 2 * 256);
            if (masked)
                v[i] = _mm512_mask_mov_ps(hidden, (__mmask16)(mask[i / 4] >> i % 4 * L), v[i]);
        }
        most = v[0];
        UNROLL for (int i = 1; i < 2 * blocks; i++)
            most = v16_max(most, v[i]);
        if (__builtin_expect(_mm512_cmp_ps_mask(most, v16_set1(j->max[r] + 20), _CMP_GT_OQ) != 0, 0)) {
            by[r] = raise_max(j, r, most);
            raised |= (uint32_t)(by[r] != 1) << r;
        }
        most = v16_set1(j->max[r]);
        sum = v16_load(j->sum + (size_t)r * L);
        UNROLL for (int b = 0; b < blocks; b++) {
            v16 lo = exp2_cubic(v16_max(v16_set1(-125), v16_sub(v[2 * b], most))),
                hi = exp2_cubic(v16_max(v16_set1(-125), v16_sub(v[2 * b + 1], most)));

            if (masked) {
                lo = _mm512_maskz_mov_ps((__mmask16)(mask[b / 2] >> b % 2 * 2 * L), lo);
                hi = _mm512_maskz_mov_ps((__mmask16)(mask[b / 2] >> (b % 2 * 2 + 1) * L), hi);
            }
            sum = v16_add(sum, v16_add(lo, hi));
            _mm512_store_si512(p + (size_t)b * 2 * PROMPT_TILE, (__m512i)_mm512_cvtne2ps_pbh(hi, lo));
        }
        v16_store(j->sum + (size_t)r * L, sum);
        feed_until(f, f->n * (r + 1) / PROMPT_ROWS);
    }
    feed_until(f, f->n);
    for (; raised; raised &= raised - 1)
        scale_sums(t, j, (uint32_t)__builtin_ctz(raised), by[__builtin_ctz(raised)]);
}

/* Scores times 2 log2(e) / softcap to cap * tanh(s / cap) * log2(e). */
static void cap_scores(float *s, uint32_t blocks, float cap)
{
    const v16 to = v16_set1(cap * 1.44269504f);

    for (uint32_t i = 0; i < blocks * PROMPT_SUMS; i += L) {
        const v16 e = exp2_cubic(v16_max(v16_set1(-125), v16_min(v16_set1(125), v16_load(s + i))));

        v16_store(s + i, v16_mul(to, v16_sub(v16_set1(1), v16_div(v16_set1(2), v16_add(v16_set1(1), e)))));
    }
}

/* Rows that see a value that is not finite become NaNs. */
static void spoil(const struct attention *t, const struct attend_job *j, const struct attend_round *round)
{
    for (uint32_t r = 0; r < j->n; r++) {
        uint64_t mask[2];

        seen(t->a, j->pos + r, round->base, mask);
        if ((mask[0] & round->bad[0]) | (mask[1] & round->bad[1]))
            j->sum[(size_t)r * L] = NAN;
    }
}

static void weigh_job(const struct attention *t, const struct attend_job *j, const struct attend_round *round, float *s, uint16_t *p,
                      uint32_t blocks, struct attend_feed *f)
{
    const uint32_t last = j->pos + j->n - 1;
    const bool all = j->pos >= round->base + ROUND - 1 && (last < t->a->window || last - t->a->window < round->base);

    if (t->a->softcap > 0)
        cap_scores(s, blocks, t->a->softcap);
    if (all)
        soften_job(t, j, round, s, p, f, ROUND_BLOCKS, false);
    else if (blocks == 4)
        soften_job(t, j, round, s, p, f, 4, true);
    else if (blocks == 3)
        soften_job(t, j, round, s, p, f, 3, true);
    else if (blocks == 2)
        soften_job(t, j, round, s, p, f, 2, true);
    else
        soften_job(t, j, round, s, p, f, 1, true);
    if (round->bad[0] | round->bad[1])
        spoil(t, j, round);
}

/* ---- the order of work ------------------------------------------------ */

/* A job in a round. */
struct attend_item {
    uint32_t round, job;        /* round: number of its first position / ROUND */
};

static bool in_round(const struct attention *t, const struct attend_item *i)
{
    const struct attend_job *j = &t->jobs[i->job];
    const uint64_t base = (uint64_t)i->round * ROUND, begins = j->pos + 1 > t->a->window ? j->pos + 1 - t->a->window : 0;

    return base < (uint64_t)j->pos + j->n && begins < base + ROUND;
}

static bool next_item(const struct attention *t, struct attend_item *i)
{
    do {
        if (++i->job == t->n_jobs) {
            i->job = 0;
            i->round++;
        }
        if ((uint64_t)i->round * ROUND >= t->end)
            return false;
    } while (!in_round(t, i));
    return true;
}

/* Blocks of a round that some row of the job sees, from its first on. */
static uint32_t blocks_of(const struct attention *t, const struct attend_item *i)
{
    const struct attend_job *j = &t->jobs[i->job];
    const uint32_t n = j->pos + j->n - i->round * ROUND;

    return n >= ROUND ? ROUND_BLOCKS : (n + PROMPT_ROWS - 1) / PROMPT_ROWS;
}

static void look_ahead(const struct attention *t, struct attend_feed *f, const struct attend_item *ahead, float *s)
{
    f->ahead = &t->jobs[ahead->job];
    f->k = t->rounds[ahead->round % 2].k;
    f->s = s;
    f->ahead_blocks = blocks_of(t, ahead);
    f->n_scores = f->ahead_blocks * f->n_dims;
}

static void look_behind(const struct attention *t, struct attend_feed *f, const struct attend_item *behind, const uint16_t *p)
{
    f->behind = &t->jobs[behind->job];
    f->v = t->rounds[behind->round % 2].v;
    f->p = p;
    f->behind_blocks = blocks_of(t, behind);
}

static void run_items(struct attention *t, struct attend_item item)
{
    struct attend_feed f = { .n_dims = t->n_dims };
    struct attend_item ahead = item, behind = item;
    bool more = true, first = true;

    t->rounds[item.round % 2].base = item.round * ROUND;
    make_keys(t, &t->rounds[item.round % 2]);
    look_ahead(t, &f, &item, t->s[0]);
    feed_until(&f, f.n = f.n_scores);
    for (uint32_t i = 0; more; i++) {
        struct attend_round *round = &t->rounds[item.round % 2];

        f = (struct attend_feed){ .n_dims = t->n_dims };
        if (first || item.round != behind.round)
            make_values(t, round);
        more = next_item(t, &ahead);
        if (more) {
            if (ahead.round != item.round) {
                t->rounds[ahead.round % 2].base = ahead.round * ROUND;
                make_keys(t, &t->rounds[ahead.round % 2]);
            }
            look_ahead(t, &f, &ahead, t->s[(i + 1) % 2]);
        }
        if (!first)
            look_behind(t, &f, &behind, t->p[(i + 1) % 2]);
        f.n = f.n_scores + f.behind_blocks * f.n_dims;
        weigh_job(t, &t->jobs[item.job], round, t->s[i % 2], t->p[i % 2], blocks_of(t, &item), &f);
        behind = item;
        item = ahead;
        first = false;
        if (!more) {
            f = (struct attend_feed){ .n_dims = t->n_dims };
            look_behind(t, &f, &behind, t->p[i % 2]);
            feed_until(&f, f.n = f.behind_blocks * f.n_dims);
        }
    }
}

/* ---- a call ----------------------------------------------------------- */

static void job_begin(const struct attention *t, const struct attend_job *j, const float *q)
{
    const struct prompt_attend *a = t->a;
    const v16 by = v16_set1(1.44269504f * (a->softcap > 0 ? 2 * a->scale / a->softcap : a->scale));

    memset(j->q, 0, (size_t)t->n_dims * 2 * PROMPT_TILE * sizeof *j->q);
    memset(j->o, 0, (size_t)t->n_dims * PROMPT_SUMS * sizeof *j->o);
    memset(j->sum, 0, ROW_SUMS * sizeof *j->sum);
    for (uint32_t r = 0; r < j->n; r++, q += a->q_stride) {
        uint16_t *to = j->q + (size_t)(r / L) * PROMPT_TILE + r % L * 32;

        j->max[r] = -INFINITY;
        for (uint32_t i = 0; i < a->head_dim; i += L)
            put_bf16(to + (size_t)(i / 32) * 2 * PROMPT_TILE + i % 32, v16_mul(v16_load(q + i), by));
    }
}

static void job_end(const struct attention *t, const struct attend_job *j, float *out)
{
    for (uint32_t r = 0; r < j->n; r++, out += t->a->o_stride) {
        const float *o = j->o + (size_t)(r / L) * 512 + r % L * L;
        const v16 by = v16_set1(1 / v16_reduce_add(v16_load(j->sum + (size_t)r * L)));

        for (uint32_t i = 0; i < t->a->head_dim; i += L)
            v16_store(out + i, v16_mul(v16_load(o + (size_t)(i / 32) * PROMPT_SUMS + i % 32 / L * 256), by));
    }
}

static void *take(void *scratch, size_t *at, size_t bytes)
{
    void *p = scratch ? (uint8_t *)scratch + *at : NULL;

    *at += (bytes + 63) & ~(size_t)63;
    return p;
}

/* Cuts the scratch; without one, says how much that is. */
static size_t lay_out(struct attention *t, void *scratch, uint32_t n_jobs)
{
    size_t at = 0;

    for (int i = 0; i < 2; i++) {
        t->rounds[i].k = take(scratch, &at, (size_t)ROUND * t->n_dims * 32 * sizeof(uint16_t));
        t->rounds[i].v = take(scratch, &at, (size_t)ROUND * t->n_dims * 32 * sizeof(uint16_t));
        t->s[i] = take(scratch, &at, ROUND_BLOCKS * PROMPT_SUMS * sizeof(float));
        t->p[i] = take(scratch, &at, ROUND_BLOCKS * 2 * PROMPT_TILE * sizeof(uint16_t));
    }
    t->jobs = take(scratch, &at, n_jobs * sizeof *t->jobs);
    for (uint32_t i = 0; i < n_jobs; i++) {
        struct attend_job j = {
            .q = take(scratch, &at, (size_t)t->n_dims * 2 * PROMPT_TILE * sizeof(uint16_t)),
            .o = take(scratch, &at, (size_t)t->n_dims * PROMPT_SUMS * sizeof(float)),
            .sum = take(scratch, &at, ROW_SUMS * sizeof(float)),
            .max = take(scratch, &at, PROMPT_ROWS * sizeof(float)),
        };

        if (scratch)
            t->jobs[i] = j;
    }
    return at;
}

static size_t attend_scratch(uint32_t group, uint32_t head_dim)
{
    struct attention t = { .n_dims = (head_dim + 31) / 32 };

    return lay_out(&t, NULL, group * MAX_JOBS_OF_HEAD);
}

static void prompt_attend(const struct prompt_attend *a)
{
    const uint32_t blocks = (a->n + PROMPT_ROWS - 1) / PROMPT_ROWS;
    struct attention t = { .a = a, .n_dims = (a->head_dim + 31) / 32, .end = a->pos + a->n, .n_jobs = blocks * a->group };
    const uint32_t begins = a->pos + 1 > a->window ? a->pos + 1 - a->window : 0;

    lay_out(&t, a->scratch, t.n_jobs);
    for (uint32_t i = 0; i < t.n_jobs; i++) {
        const uint32_t from = i / a->group * PROMPT_ROWS, left = a->n - from;

        t.jobs[i].pos = a->pos + from;
        t.jobs[i].n = left < PROMPT_ROWS ? left : PROMPT_ROWS;
        job_begin(&t, &t.jobs[i], a->q + from * a->q_stride + (size_t)(i % a->group) * a->head_dim);
    }
    run_items(&t, (struct attend_item){ begins / ROUND, 0 });
    for (uint32_t i = 0; i < t.n_jobs; i++)
        job_end(&t, &t.jobs[i], a->o + i / a->group * PROMPT_ROWS * a->o_stride + (size_t)(i % a->group) * a->head_dim);
}

#endif
