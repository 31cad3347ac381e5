#include "gen/turns.h"

#include "base/err.h"

#include <assert.h>
#include <errno.h>

struct tenant {
    uint64_t id, served;
    uint32_t n_present;         /* requests; a record without any is kept until its place is needed */
};

struct turns {
    uint32_t n, n_used;
    uint64_t last_left;         /* what the tenant had been served who left last */
    struct tenant tenants[];    /* [n] */
};

int turns_open(uint32_t n, struct turns **ret, struct err *err)
{
    struct turns *t = calloc(1, sizeof *t + n * sizeof t->tenants[0]);

    if (!t)
        return err_set(err, -ENOMEM, "no memory for %u tenants", n);
    t->n = n;
    *ret = t;
    return 0;
}

void turns_close(struct turns *t)
{
    free(t);
}

/* What the least served of those present has. */
static uint64_t least(const struct turns *t)
{
    uint64_t served = UINT64_MAX;

    for (uint32_t i = 0; i < t->n_used; i++)
        if (t->tenants[i].n_present && t->tenants[i].served < served)
            served = t->tenants[i].served;
    return served < UINT64_MAX ? served : t->last_left;
}

/* Its record, or else a new one, or else the place of one who is not here. */
static uint32_t find(struct turns *t, uint64_t id)
{
    uint32_t away = t->n;

    for (uint32_t i = 0; i < t->n_used; i++) {
        const struct tenant *at = &t->tenants[i];

        if (at->id == id)
            return i;
        if (!at->n_present && (away == t->n || at->served < t->tenants[away].served))
            away = i;
    }
    if (t->n_used < t->n)
        away = t->n_used++;
    assert(away < t->n);
    t->tenants[away] = (struct tenant){ .id = id };
    return away;
}

uint32_t turns_enter(struct turns *t, uint64_t tenant)
{
    uint64_t floor = least(t);
    uint32_t i = find(t, tenant);
    struct tenant *at = &t->tenants[i];

    if (at->n_present++ == 0 && at->served < floor)
        at->served = floor;
    return i;
}

void turns_leave(struct turns *t, uint32_t i)
{
    assert(t->tenants[i].n_present);
    if (--t->tenants[i].n_present == 0)
        t->last_left = t->tenants[i].served;
}

void turns_count(struct turns *t, uint32_t i, uint64_t served) { t->tenants[i].served += served; }

uint64_t turns_served(const struct turns *t, uint32_t i) { return t->tenants[i].served; }
