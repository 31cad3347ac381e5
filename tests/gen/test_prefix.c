#include "gen/prefix.h"

#include "gen/kv.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

enum { PAGES = 8 };

static struct kv *kv;
static struct prefix *prefix;
static int32_t tokens[4 * KV_PAGE];
static uint64_t chain[4];
static const struct prefix_salt none, other = { { 0, 1 } };

static void setup(void)
{
    const struct kv_shape shape = { .n_layers = 1, .n_kv_heads = 1, .head_dim = 4, .n_pages = PAGES };

    cr_assert(zero(int, kv_open(&shape, &kv, NULL)));
    cr_assert(zero(int, prefix_open(kv, &prefix, NULL)));
    for (int i = 0; i < 4 * KV_PAGE; i++)
        tokens[i] = i * 7;
    prefix_chain(prefix, &none, tokens, 4 * KV_PAGE, chain);
}

static void teardown(void)
{
    prefix_close(prefix);
    kv_close(kv);
}

TestSuite(prefix, .init = setup, .fini = teardown);

static struct prefix_key key(int i, uint32_t parent)
{
    return (struct prefix_key){ .parent = parent, .hash = chain[i], .tokens = tokens + i * KV_PAGE };
}

static uint32_t put(int i, uint32_t parent)
{
    struct prefix_key k = key(i, parent);
    uint32_t page;

    cr_assert(zero(int, kv_take(kv, &page)));
    return prefix_put(prefix, &k, page);
}

static bool take(int i, uint32_t parent, uint32_t *ret)
{
    struct prefix_key k = key(i, parent);

    return prefix_take(prefix, &k, ret);
}

Test(prefix, what_was_put_is_taken_by_who_goes_the_same_way)
{
    uint32_t a = put(0, PREFIX_ROOT), b = put(1, a), page;

    cr_expect(eq(u32, prefix_pages(prefix), 2));
    cr_assert(take(0, PREFIX_ROOT, &page));
    cr_expect(eq(u32, page, a));
    cr_assert(take(1, a, &page));
    cr_expect(eq(u32, page, b));
    cr_expect(not(take(2, b, &page)));
    cr_expect(not(take(1, PREFIX_ROOT, &page)));
}

Test(prefix, a_hash_alone_is_no_proof)
{
    struct prefix_key k = key(0, put(1, PREFIX_ROOT));
    uint32_t page;

    k = key(1, PREFIX_ROOT);
    tokens[KV_PAGE + 3]++;
    cr_expect(not(prefix_take(prefix, &k, &page)));
    tokens[KV_PAGE + 3]--;
    k.salt = other;
    cr_expect(not(prefix_take(prefix, &k, &page)));
    k.salt = none;
    cr_expect(prefix_take(prefix, &k, &page));
}

Test(prefix, another_salt_or_beginning_makes_another_chain)
{
    uint64_t chains[4];

    prefix_chain(prefix, &other, tokens, 4 * KV_PAGE, chains);
    for (int i = 0; i < 4; i++)
        cr_expect(ne(u64, chains[i], chain[i]));
    tokens[KV_PAGE]++;
    prefix_chain(prefix, &none, tokens, 4 * KV_PAGE, chains);
    cr_expect(eq(u64, chains[0], chain[0]));
    for (int i = 1; i < 4; i++)
        cr_expect(ne(u64, chains[i], chain[i]));
}

Test(prefix, two_of_the_same_page_become_one)
{
    uint32_t a = put(0, PREFIX_ROOT), b = put(0, PREFIX_ROOT);

    cr_expect(eq(u32, a, b));
    cr_expect(eq(u32, prefix_pages(prefix), 1));
    cr_expect(eq(u32, kv_free_pages(kv), PAGES - 1));
    prefix_leave(prefix, a);
    cr_expect(eq(u32, prefix_idle(prefix), 0));
    prefix_leave(prefix, a);
    cr_expect(eq(u32, prefix_idle(prefix), 1));
}

Test(prefix, the_page_longest_out_of_use_goes_first_and_its_parent_after_it)
{
    uint32_t a = put(0, PREFIX_ROOT), b = put(1, a), c = put(2, PREFIX_ROOT), page;

    cr_expect(not(prefix_evict(prefix)));           /* all are in use */
    prefix_leave(prefix, b);
    prefix_leave(prefix, a);
    prefix_leave(prefix, c);
    cr_assert(take(0, PREFIX_ROOT, &page));
    prefix_leave(prefix, page);                     /* now: b, c, a */
    cr_expect(prefix_evict(prefix));
    cr_assert(take(0, PREFIX_ROOT, &page));
    cr_expect(not(take(1, a, &page)));
    prefix_leave(prefix, a);
    cr_expect(prefix_evict(prefix));
    cr_expect(not(take(2, PREFIX_ROOT, &page)));
    cr_expect(prefix_evict(prefix));
    cr_expect(not(prefix_evict(prefix)));
    cr_expect(eq(u32, kv_free_pages(kv), PAGES));
    cr_expect(eq(u32, prefix_pages(prefix), 0));
}
