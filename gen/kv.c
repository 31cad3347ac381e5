#include "gen/kv.h"

#include "base/err.h"
#include "gen/slab.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>

struct kv {
    struct kv_shape shape;
    uint8_t *slab;
    size_t bytes;
    size_t head_bytes;          /* K and V of one head in one page */
    bool *lent;                 /* [n_pages]: a page given twice would be two owners' */
    uint32_t n_free;
    uint32_t free[];            /* a stack: the warmest page is lent next */
};

int kv_open(const struct kv_shape *s, struct kv **ret, struct err *err)
{
    const size_t dims[] = { s->n_layers, s->n_pages, s->n_kv_heads };
    CLEANUP(kv_close) struct kv *kv = NULL;
    size_t bytes = kv_page_bytes(s->type, s->head_dim);

    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++)
        if (__builtin_mul_overflow(bytes, dims[i], &bytes) || bytes == 0)
            return err_set(err, -EINVAL,
                           "kv cache: %u layers of %u pages of %u heads of %u dimensions: "
                           "the shape is empty or too large",
                           s->n_layers, s->n_pages, s->n_kv_heads, s->head_dim);

    if (s->type == KV_Q8 && s->head_dim % KERNEL_LANES)
        return err_set(err, -EINVAL, "kv cache: heads of %u dimensions; q8 wants a multiple of %d", s->head_dim, KERNEL_LANES);
    kv = calloc(1, sizeof *kv + s->n_pages * sizeof kv->free[0]);
    if (kv) {
        kv->lent = calloc(s->n_pages, sizeof *kv->lent);
        kv->slab = slab_map(bytes);
        kv->bytes = bytes;
    }
    if (!kv || !kv->lent || !kv->slab)
        return err_set(err, -ENOMEM, "kv cache: no memory for %zu bytes", bytes);

    kv->shape = *s;
    kv->head_bytes = kv_page_bytes(s->type, s->head_dim);
    /* Filled backwards, so that page 0 is lent first and dumps read in order. */
    for (uint32_t i = s->n_pages; i-- > 0;)
        kv->free[kv->n_free++] = i;
    *ret = STEAL(kv);
    return 0;
}

void kv_close(struct kv *kv)
{
    if (!kv)
        return;
    slab_unmap(kv->slab, kv->bytes);
    free(kv->lent);
    free(kv);
}

int kv_take(struct kv *kv, uint32_t *ret_page)
{
    if (kv->n_free == 0)
        return KV_FULL;
    *ret_page = kv->free[--kv->n_free];
    kv->lent[*ret_page] = true;
    return 0;
}

void kv_give(struct kv *kv, uint32_t page)
{
    assert(page < kv->shape.n_pages && kv->lent[page]);
    kv->lent[page] = false;
    kv->free[kv->n_free++] = page;
}

uint32_t kv_pages(const struct kv *kv) { return kv->shape.n_pages; }

uint32_t kv_free_pages(const struct kv *kv) { return kv->n_free; }

size_t kv_bytes(const struct kv *kv) { return kv->bytes; }

enum kv_type kv_type(const struct kv *kv) { return kv->shape.type; }

uint8_t *kv_page(struct kv *kv, uint32_t layer, uint32_t page, uint32_t head)
{
    const struct kv_shape *s = &kv->shape;

    assert(layer < s->n_layers && page < s->n_pages && head < s->n_kv_heads);
    return kv->slab + (((size_t)page * s->n_layers + layer) * s->n_kv_heads + head) * kv->head_bytes;
}

struct kv_view kv_view(struct kv *kv, uint32_t layer, uint32_t head)
{
    const struct kv_shape *s = &kv->shape;

    return (struct kv_view){ s->type, kv_page(kv, layer, 0, head), (size_t)s->n_layers * s->n_kv_heads * kv->head_bytes };
}

size_t kv_page_bytes(enum kv_type type, uint32_t head_dim) { return 2 * kv_half_bytes(type, head_dim); }

static const char *const type_names[KV_TYPES] = { "f16", "bf16", "q8" };

const char *kv_type_name(enum kv_type type) { return type_names[type]; }

int kv_type_read(const char *name, enum kv_type *ret, struct err *err)
{
    for (int i = 0; i < KV_TYPES; i++)
        if (strcmp(name && *name ? name : "f16", type_names[i]) == 0)
            return *ret = (enum kv_type)i, 0;
    return err_set(err, -EINVAL, "keys and values as '%s' are not known: there are f16, bf16 and q8", name);
}
