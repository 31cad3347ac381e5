/* Integers as Python has them: 64 bits while they fit, limbs of nine decimal digits beyond.
 *
 * Templates count messages; the decimal limbs make printing trivial and the rest short. Python itself refuses to
 * print more than 4300 digits, and no value here ever has more.
 */
#include "conv/jinja/value.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>

enum { BASE = 1000000000, MAX_LIMBS = 478 };        /* 4302 digits */

struct big { bool negative; uint32_t n; uint32_t limb[]; };        /* the lowest first, the highest is not 0 */

struct view { bool negative; uint32_t n; const uint32_t *limb; uint32_t own[3]; };

static void view_of(struct val v, struct view *w)
{
    uint64_t u = v.i < 0 ? 0 - (uint64_t)v.i : (uint64_t)v.i;

    if (v.t == V_BIG) {
        *w = (struct view){ v.big->negative, v.big->n, v.big->limb, { 0 } };
        return;
    }
    *w = (struct view){ .negative = v.i < 0 };
    for (; u > 0; u /= BASE)
        w->own[w->n++] = (uint32_t)(u % BASE);
    w->limb = w->own;
}

static _Noreturn void too_large(struct rt *r)
{
    raise_error(r, "ValueError", "Exceeds the limit (4300 digits) for integer string conversion");
}

static struct big *big_new(struct rt *r, uint32_t n)
{
    struct big *b;

    if (n > MAX_LIMBS)
        too_large(r);
    b = mem_array(r, 1, sizeof *b + n * sizeof b->limb[0]);
    *b = (struct big){ .n = n };
    memset(b->limb, 0, n * sizeof b->limb[0]);
    return b;
}

/* The value of limbs: small if it fits. */
static struct val normal(struct big *b)
{
    uint64_t u = 0;

    while (b->n > 0 && b->limb[b->n - 1] == 0)
        b->n--;
    if (b->n <= 3) {
        bool over = false;

        for (uint32_t i = b->n; i-- > 0; )
            over = over || __builtin_mul_overflow(u, (uint64_t)BASE, &u) || __builtin_add_overflow(u, (uint64_t)b->limb[i], &u);
        if (!over && u <= (uint64_t)INT64_MAX + b->negative)
            return v_int(b->negative ? (int64_t)(0 - u) : (int64_t)u);
    }
    return (struct val){ .t = V_BIG, .big = b };
}

static int magnitude_compare(const struct view *a, const struct view *b)
{
    if (a->n != b->n)
        return a->n < b->n ? -1 : 1;
    for (uint32_t i = a->n; i-- > 0; )
        if (a->limb[i] != b->limb[i])
            return a->limb[i] < b->limb[i] ? -1 : 1;
    return 0;
}

static struct val magnitude_add(struct rt *r, const struct view *a, const struct view *b, bool negative)
{
    uint32_t n = (a->n > b->n ? a->n : b->n) + 1;
    struct big *s = big_new(r, n < MAX_LIMBS ? n : n - 1);
    uint64_t carry = 0;

    for (uint32_t i = 0; i < s->n; i++) {
        carry += (i < a->n ? a->limb[i] : 0) + (uint64_t)(i < b->n ? b->limb[i] : 0);
        s->limb[i] = (uint32_t)(carry % BASE);
        carry /= BASE;
    }
    if (carry)
        too_large(r);
    s->negative = negative;
    return normal(s);
}

/* a - b, where |a| >= |b| */
static struct val magnitude_sub(struct rt *r, const struct view *a, const struct view *b, bool negative)
{
    struct big *s = big_new(r, a->n);
    int64_t borrow = 0;

    for (uint32_t i = 0; i < a->n; i++) {
        int64_t d = (int64_t)a->limb[i] - (i < b->n ? b->limb[i] : 0) - borrow;

        borrow = d < 0;
        s->limb[i] = (uint32_t)(d + borrow * BASE);
    }
    s->negative = negative;
    return normal(s);
}

struct val int_add(struct rt *r, struct val a, struct val b, bool subtract)
{
    struct view x, y;
    int64_t sum;

    if (a.t != V_BIG && b.t != V_BIG &&
        !(subtract ? __builtin_sub_overflow(a.i, b.i, &sum) : __builtin_add_overflow(a.i, b.i, &sum)))
        return v_int(sum);
    view_of(a, &x);
    view_of(b, &y);
    y.negative ^= subtract;
    if (x.negative == y.negative)
        return magnitude_add(r, &x, &y, x.negative);
    return magnitude_compare(&x, &y) >= 0 ? magnitude_sub(r, &x, &y, x.negative) : magnitude_sub(r, &y, &x, y.negative);
}

struct val int_mul(struct rt *r, struct val a, struct val b)
{
    struct view x, y;
    struct big *p;
    int64_t product;

    if (a.t != V_BIG && b.t != V_BIG && !__builtin_mul_overflow(a.i, b.i, &product))
        return v_int(product);
    view_of(a, &x);
    view_of(b, &y);
    step(r, (uint64_t)x.n * y.n / 8);
    p = big_new(r, x.n + y.n);
    for (uint32_t i = 0; i < x.n; i++) {
        uint64_t carry = 0;

        for (uint32_t k = 0; k < y.n || carry; k++) {
            carry += p->limb[i + k] + (uint64_t)x.limb[i] * (k < y.n ? y.limb[k] : 0);
            p->limb[i + k] = (uint32_t)(carry % BASE);
            carry /= BASE;
        }
    }
    p->negative = x.negative != y.negative;
    return normal(p);
}

struct val int_neg(struct rt *r, struct val a) { return int_add(r, v_int(0), a, true); }

bool int_negative(struct val a) { return a.t == V_BIG ? a.big->negative : a.i < 0; }

int int_compare(struct val a, struct val b)
{
    struct view x, y;
    int c;

    if (a.t != V_BIG && b.t != V_BIG)
        return a.i < b.i ? -1 : a.i > b.i;
    view_of(a, &x);
    view_of(b, &y);
    if (x.negative != y.negative)
        return x.negative ? -1 : 1;
    c = magnitude_compare(&x, &y);
    return x.negative ? -c : c;
}

/* Limb by limb, each quotient digit found by halving: enough for numbers of a few hundred limbs. */
static void magnitude_divmod(struct rt *r, const struct view *a, const struct view *b, struct val *quot, struct val *rem)
{
    struct big *q = big_new(r, a->n ? a->n : 1);
    struct val left = v_int(0), divisor = v_int(0);

    for (uint32_t i = b->n; i-- > 0; )
        divisor = int_add(r, int_mul(r, divisor, v_int(BASE)), v_int(b->limb[i]), false);
    for (uint32_t i = a->n; i-- > 0; ) {
        uint32_t low = 0, high = BASE - 1;

        left = int_add(r, int_mul(r, left, v_int(BASE)), v_int(a->limb[i]), false);
        while (low < high) {
            uint32_t middle = low + (high - low + 1) / 2;

            if (int_compare(int_mul(r, divisor, v_int(middle)), left) <= 0)
                low = middle;
            else
                high = middle - 1;
        }
        q->limb[i] = low;
        left = int_add(r, left, int_mul(r, divisor, v_int(low)), true);
    }
    *quot = normal(q);
    *rem = left;
}

void int_divmod(struct rt *r, struct val a, struct val b, struct val *quot, struct val *rem)
{
    struct view x, y;

    if (a.t != V_BIG && b.t != V_BIG && !(a.i == INT64_MIN && b.i == -1)) {
        int64_t q = a.i / b.i, m = a.i % b.i;

        if (m != 0 && (m < 0) != (b.i < 0)) {
            q--;
            m += b.i;
        }
        *quot = v_int(q);
        *rem = v_int(m);
        return;
    }
    view_of(a, &x);
    view_of(b, &y);
    magnitude_divmod(r, &x, &y, quot, rem);
    if (x.negative != y.negative) {
        *quot = int_neg(r, *quot);
        if (int_compare(*rem, v_int(0)) != 0) {
            *quot = int_add(r, *quot, v_int(1), true);
            *rem = int_add(r, y.negative ? int_neg(r, b) : b, *rem, true);
        }
    }
    if (y.negative)
        *rem = int_neg(r, *rem);
}

struct val int_pow(struct rt *r, struct val a, uint64_t n)
{
    struct val result = v_int(1);

    for (; n > 0; n >>= 1) {
        if (n & 1)
            result = int_mul(r, result, a);
        if (n > 1)
            a = int_mul(r, a, a);
    }
    return result;
}

double int_double(struct val a)
{
    double f = 0;
    struct view w;

    if (a.t != V_BIG)
        return (double)a.i;
    view_of(a, &w);
    for (uint32_t i = w.n; i-- > 0; )
        f = f * BASE + w.limb[i];
    return w.negative ? -f : f;
}

uint32_t int_hash(struct val a)
{
    struct view w;
    uint64_t h = (uint64_t)a.i;

    if (a.t == V_BIG) {
        view_of(a, &w);
        h = w.negative;
        for (uint32_t i = 0; i < w.n; i++)
            h = h * 1000003 ^ w.limb[i];
    }
    h *= 0x9e3779b97f4a7c15u;
    return (uint32_t)(h >> 32);
}

struct val int_from_text(struct rt *r, const char *digits, size_t len, int base, bool negative)
{
    struct val v = v_int(0);

    if (base == 10 && len > 4300)
        too_large(r);
    for (size_t i = 0; i < len; i++) {
        char c = digits[i];
        int d = c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
        int64_t next;

        if (v.t != V_BIG && !__builtin_mul_overflow(v.i, (int64_t)base, &next) && !__builtin_add_overflow(next, (int64_t)d, &next))
            v = v_int(next);
        else
            v = int_add(r, int_mul(r, v, v_int(base)), v_int(d), false);
    }
    return negative ? int_neg(r, v) : v;
}

struct val int_from_double(struct rt *r, double f)
{
    struct val v;
    char text[400];
    bool negative = f < 0;
    int n;

    if (isnan(f))
        raise_error(r, "ValueError", "cannot convert float NaN to integer");
    if (isinf(f))
        raise_error(r, "OverflowError", "cannot convert float infinity to integer");
    f = trunc(f);
    if (fabs(f) < 9e18)
        return v_int((int64_t)f);
    n = snprintf(text, sizeof text, "%.0f", fabs(f));
    v = int_from_text(r, text, (size_t)n, 10, negative);
    return v;
}

void int_out(struct rt *r, struct val a)
{
    char text[24];
    size_t at = sizeof text;
    struct view w;
    uint64_t u = a.i < 0 ? 0 - (uint64_t)a.i : (uint64_t)a.i;

    if (a.t == V_BIG) {
        view_of(a, &w);
        out_printf(r, "%s%u", w.negative ? "-" : "", w.limb[w.n - 1]);
        for (uint32_t i = w.n - 1; i-- > 0; )
            out_printf(r, "%09u", w.limb[i]);
        return;
    }
    do
        text[--at] = (char)('0' + u % 10);
    while ((u /= 10) > 0);
    if (a.i < 0)
        text[--at] = '-';
    out_add(r, text + at, sizeof text - at, r->literal);
}
