#include "gen/prefix.h"

#include "base/clock.h"
#include "base/err.h"
#include "gen/kv.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/random.h>

enum { NONE = UINT32_MAX };

/* What is known of page i of the cache. */
struct entry {
    uint64_t hash;
    struct prefix_salt salt;
    uint32_t parent, users, n_children;
    uint32_t chain_next;                /* of its bucket */
    uint32_t idle_prev, idle_next;      /* among those without users */
    bool known;
    int32_t tokens[KV_PAGE];
};

struct prefix {
    struct kv *kv;
    uint64_t secret[2];
    uint32_t n_known, n_idle;
    uint32_t idle_first, idle_last;     /* longest out of use first */
    uint32_t mask;                      /* of buckets */
    uint32_t *buckets;
    struct entry entries[];             /* [n_pages] */
};

/* ---- the hash ---- */

struct sip { uint64_t v[4]; };

static uint64_t turn(uint64_t x, int by) { return x << by | x >> (64 - by); }

static void sip_round(struct sip *s)
{
    uint64_t *v = s->v;

    v[0] += v[1]; v[1] = turn(v[1], 13); v[1] ^= v[0]; v[0] = turn(v[0], 32);
    v[2] += v[3]; v[3] = turn(v[3], 16); v[3] ^= v[2];
    v[0] += v[3]; v[3] = turn(v[3], 21); v[3] ^= v[0];
    v[2] += v[1]; v[1] = turn(v[1], 17); v[1] ^= v[2]; v[2] = turn(v[2], 32);
}

static void sip_add(struct sip *s, uint64_t word)
{
    s->v[3] ^= word;
    sip_round(s);
    sip_round(s);
    s->v[0] ^= word;
}

static struct sip sip_begin(const uint64_t secret[2])
{
    return (struct sip){ {
        secret[0] ^ 0x736f6d6570736575, secret[1] ^ 0x646f72616e646f6d,
        secret[0] ^ 0x6c7967656e657261, secret[1] ^ 0x7465646279746573,
    } };
}

static uint64_t sip_end(struct sip *s)
{
    s->v[2] ^= 0xff;
    for (int i = 0; i < 4; i++)
        sip_round(s);
    return s->v[0] ^ s->v[1] ^ s->v[2] ^ s->v[3];
}

static uint64_t hash_of(const struct prefix *p, uint64_t before, const struct prefix_salt *salt, const int32_t *tokens)
{
    struct sip s = sip_begin(p->secret);

    sip_add(&s, before);
    sip_add(&s, salt->part[0]);
    sip_add(&s, salt->part[1]);
    for (int i = 0; i < KV_PAGE; i += 2)
        sip_add(&s, (uint64_t)(uint32_t)tokens[i] << 32 | (uint32_t)tokens[i + 1]);
    return sip_end(&s);
}

void prefix_chain(const struct prefix *p, const struct prefix_salt *salt, const int32_t *tokens,
                  size_t n_tokens, uint64_t *ret)
{
    uint64_t before = 0;

    for (size_t i = 0; i < n_tokens / KV_PAGE; i++)
        ret[i] = before = hash_of(p, before, salt, tokens + i * KV_PAGE);
}

/* ---- opening ---- */

int prefix_open(struct kv *kv, struct prefix **ret, struct err *err)
{
    uint32_t n = kv_pages(kv), n_buckets = 16;
    CLEANUP(prefix_close) struct prefix *p = calloc(1, sizeof *p + n * sizeof p->entries[0]);

    while (n_buckets < n && n_buckets < UINT32_MAX / 2 + 1)
        n_buckets *= 2;
    if (p)
        p->buckets = malloc(n_buckets * sizeof p->buckets[0]);
    if (!p || !p->buckets)
        return err_set(err, -ENOMEM, "no memory to know %u pages again", n);
    p->kv = kv;
    p->mask = n_buckets - 1;
    p->idle_first = p->idle_last = NONE;
    memset(p->buckets, 0xff, n_buckets * sizeof p->buckets[0]);
    /* Early at boot there may be none yet; then the clock is what nobody outside knows. */
    if (getrandom(p->secret, sizeof p->secret, GRND_NONBLOCK) != sizeof p->secret)
        p->secret[0] = clock_mono_ns();
    *ret = STEAL(p);
    return 0;
}

void prefix_close(struct prefix *p)
{
    if (!p)
        return;
    free(p->buckets);
    free(p);
}

/* ---- who is out of use ---- */

static void idle_add(struct prefix *p, uint32_t page)
{
    struct entry *e = &p->entries[page];

    e->idle_prev = p->idle_last;
    e->idle_next = NONE;
    if (p->idle_last == NONE)
        p->idle_first = page;
    else
        p->entries[p->idle_last].idle_next = page;
    p->idle_last = page;
    p->n_idle++;
}

static void idle_remove(struct prefix *p, uint32_t page)
{
    struct entry *e = &p->entries[page];

    if (e->idle_prev == NONE)
        p->idle_first = e->idle_next;
    else
        p->entries[e->idle_prev].idle_next = e->idle_next;
    if (e->idle_next == NONE)
        p->idle_last = e->idle_prev;
    else
        p->entries[e->idle_next].idle_prev = e->idle_prev;
    p->n_idle--;
}

/* ---- pages ---- */

static uint32_t *bucket_of(struct prefix *p, uint64_t hash) { return &p->buckets[hash & p->mask]; }

static bool is(const struct entry *e, const struct prefix_key *key)
{
    return e->hash == key->hash && e->parent == key->parent && e->salt.part[0] == key->salt.part[0] &&
           e->salt.part[1] == key->salt.part[1] && memcmp(e->tokens, key->tokens, sizeof e->tokens) == 0;
}

bool prefix_take(struct prefix *p, const struct prefix_key *key, uint32_t *ret_page)
{
    uint32_t page = *bucket_of(p, key->hash);

    while (page != NONE && !is(&p->entries[page], key))
        page = p->entries[page].chain_next;
    if (page == NONE)
        return false;
    if (p->entries[page].users++ == 0)
        idle_remove(p, page);
    *ret_page = page;
    return true;
}

uint32_t prefix_put(struct prefix *p, const struct prefix_key *key, uint32_t page)
{
    struct entry *e = &p->entries[page];
    uint32_t *bucket = bucket_of(p, key->hash), there;

    if (prefix_take(p, key, &there)) {
        kv_give(p->kv, page);
        return there;
    }
    assert(!e->known && (key->parent == PREFIX_ROOT || p->entries[key->parent].users));
    *e = (struct entry){ .hash = key->hash, .salt = key->salt, .parent = key->parent, .users = 1,
                         .chain_next = *bucket, .known = true };
    memcpy(e->tokens, key->tokens, sizeof e->tokens);
    *bucket = page;
    if (key->parent != PREFIX_ROOT)
        p->entries[key->parent].n_children++;
    p->n_known++;
    return page;
}

void prefix_leave(struct prefix *p, uint32_t page)
{
    struct entry *e = &p->entries[page];

    assert(e->known && e->users);
    if (--e->users == 0)
        idle_add(p, page);
}

bool prefix_evict(struct prefix *p)
{
    uint32_t page = p->idle_first, *at;
    struct entry *e;

    if (page == NONE)
        return false;
    e = &p->entries[page];
    assert(e->n_children == 0);
    idle_remove(p, page);
    for (at = bucket_of(p, e->hash); *at != page; at = &p->entries[*at].chain_next)
        ;
    *at = e->chain_next;
    if (e->parent != PREFIX_ROOT)
        p->entries[e->parent].n_children--;
    e->known = false;
    p->n_known--;
    kv_give(p->kv, page);
    return true;
}

uint32_t prefix_pages(const struct prefix *p) { return p->n_known; }

uint32_t prefix_idle(const struct prefix *p) { return p->n_idle; }
