#include "base/err.h"
#include "gen/kv.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <string.h>

static const struct kv_shape small = { .n_layers = 2, .n_kv_heads = 3, .head_dim = 4, .n_pages = 2 };

Test(kv, a_full_cache_says_so_and_lends_again_after_a_return)
{
    struct kv *kv = NULL;
    uint32_t a, b, c = 77;

    cr_assert(zero(int, kv_open(&small, &kv, NULL)));
    cr_expect(eq(u32, kv_pages(kv), 2));
    cr_expect(eq(u32, kv_free_pages(kv), 2));
    cr_assert(zero(int, kv_take(kv, &a)));
    cr_assert(zero(int, kv_take(kv, &b)));
    cr_expect(ne(u32, a, b));
    cr_expect(eq(int, kv_take(kv, &c), KV_FULL));
    cr_expect(eq(u32, c, 77));
    cr_expect(eq(u32, kv_free_pages(kv), 0));
    kv_give(kv, a);
    cr_assert(zero(int, kv_take(kv, &c)));
    cr_expect(eq(u32, c, a));
    kv_close(kv);
}

Test(kv, the_page_that_came_back_last_is_lent_next)
{
    struct kv *kv = NULL;
    uint32_t a, b, c;

    cr_assert(zero(int, kv_open(&small, &kv, NULL)));
    cr_assert(zero(int, kv_take(kv, &a)));
    cr_assert(zero(int, kv_take(kv, &b)));
    kv_give(kv, b);
    kv_give(kv, a);
    cr_assert(zero(int, kv_take(kv, &c)));
    cr_expect(eq(u32, c, a));
    kv_close(kv);
}

Test(kv, every_head_of_every_page_of_every_layer_has_bytes_of_its_own)
{
    for (enum kv_type type = 0; type < KV_TYPES; type++) {
        const struct kv_shape shape = { .n_layers = 2, .n_kv_heads = 3, .head_dim = 48, .n_pages = 2, .type = type };
        const size_t part = kv_page_bytes(type, shape.head_dim);
        struct kv *kv = NULL;
        uint8_t next = 1;

        cr_assert(zero(int, kv_open(&shape, &kv, NULL)));
        cr_expect(eq(sz, kv_bytes(kv), 2 * 2 * 3 * part));
        cr_expect(eq(int, kv_type(kv), type));
        for (int pass = 0; pass < 2; pass++, next = 1)
            for (uint32_t l = 0; l < 2; l++)
                for (uint32_t p = 0; p < 2; p++)
                    for (uint32_t h = 0; h < 3; h++, next++) {
                        const struct kv_view view = kv_view(kv, l, h);
                        uint8_t *at = kv_page(kv, l, p, h);

                        cr_assert(eq(ptr, (void *)(view.page + p * view.page_stride), at));
                        for (size_t i = 0; i < part; i++)
                            if (pass == 0)
                                at[i] = next;
                            else
                                cr_assert(eq(u8, at[i], next));
                    }
        kv_close(kv);
    }
}

Test(kv, an_element_takes_16_bits_or_9)
{
    cr_expect(eq(sz, kv_page_bytes(KV_F16, 64), 2 * 64 * KV_PAGE * 2));
    cr_expect(eq(sz, kv_page_bytes(KV_BF16, 64), 2 * 64 * KV_PAGE * 2));
    cr_expect(eq(sz, kv_page_bytes(KV_Q8, 64), 2 * 64 * KV_PAGE * 9 / 8));
}

Test(kv, a_type_has_a_name_and_no_other_is_taken)
{
    struct err err = { 0 };
    enum kv_type type;

    for (enum kv_type t = 0; t < KV_TYPES; t++) {
        cr_expect(zero(int, kv_type_read(kv_type_name(t), &type, NULL)));
        cr_expect(eq(int, type, t));
    }
    cr_expect(zero(int, kv_type_read(NULL, &type, NULL)));
    cr_expect(eq(int, type, KV_F16));
    cr_expect(eq(int, kv_type_read("q4", &type, &err), -EINVAL));
    cr_expect(eq(str, (char *)err_text(&err), "keys and values as 'q4' are not known: there are f16, bf16 and q8"));
}

Test(kv, a_head_starts_on_a_cache_line)
{
    struct kv *kv = NULL;

    for (enum kv_type type = 0; type < KV_TYPES; type++) {
        cr_assert(zero(int, kv_open(&(struct kv_shape){ 2, 3, 16, 2, type }, &kv, NULL)));
        cr_expect(zero(sz, (uintptr_t)kv_page(kv, 1, 1, 2) % 64));
        kv_close(kv);
    }
}

Test(kv, an_empty_or_uncountable_shape_is_refused_and_nothing_is_touched)
{
    struct kv_shape empty = small, huge = { UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX };
    struct kv *kv = (struct kv *)&empty;
    struct err err = { 0 };

    empty.head_dim = 0;
    cr_expect(eq(int, kv_open(&empty, &kv, &err), -EINVAL));
    cr_expect(ne(ptr, strstr(err.text, "0 dimensions"), NULL));
    cr_expect(eq(int, kv_open(&huge, &kv, NULL), -EINVAL));
    cr_expect(eq(ptr, kv, &empty));
}

Test(kv, memory_that_is_not_there_is_an_error_not_a_crash)
{
    struct kv_shape large = { .n_layers = 1 << 14, .n_kv_heads = 1 << 14, .head_dim = 1 << 12, .n_pages = 1 << 10 };
    struct kv *kv = NULL;
    struct err err = { 0 };

    cr_expect(eq(int, kv_open(&large, &kv, &err), -ENOMEM));
    cr_expect(ne(ptr, strstr(err.text, "no memory"), NULL));
    cr_expect(eq(ptr, kv, NULL));
}
