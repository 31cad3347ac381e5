#include "gen/ngram.h"

#include "base/err.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

enum { PROBES = 32 };           /* slots that a pair may be in; one that finds none is forgotten */

/* A place is where a pair ends, plus 1: 0 is none. Places that left the window stay in
 * the table and count for nothing until they are written over. */
struct ngram {
    uint32_t window, n_slots;   /* powers of 2 */
    uint32_t n_read;            /* pairs that end before are in the table */
    uint32_t *slots;            /* [n_slots] the newest place of a pair */
    uint32_t *before;           /* [window] of a place: the one before */
};

static uint32_t window_of(uint32_t n_ctx)
{
    uint32_t w = 64;

    while (w < n_ctx && w < NGRAM_MAX_WINDOW)
        w *= 2;
    return w;
}

size_t ngram_bytes(uint32_t n_ctx)
{
    /* The table is at most half full. */
    return sizeof(struct ngram) + 3 * (size_t)window_of(n_ctx) * sizeof(uint32_t);
}

int ngram_open(uint32_t n_ctx, struct ngram **ret, struct err *err)
{
    struct ngram *g = calloc(1, ngram_bytes(n_ctx));

    if (!g)
        return err_set(err, -ENOMEM, "no memory to look up %u tokens", n_ctx);
    g->window = window_of(n_ctx);
    g->n_slots = 2 * g->window;
    g->slots = (uint32_t *)(g + 1);
    g->before = g->slots + g->n_slots;
    *ret = g;
    return 0;
}

void ngram_close(struct ngram *g)
{
    free(g);
}

void ngram_reset(struct ngram *g)
{
    g->n_read = 0;
    memset(g->slots, 0, g->n_slots * sizeof g->slots[0]);
}

static uint32_t hash(const struct ngram *g, const int32_t *pair)
{
    uint64_t z = ((uint64_t)(uint32_t)pair[0] << 32 | (uint32_t)pair[1]) + 0x9E3779B97F4A7C15u;

    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (uint32_t)(z ^ z >> 31) & (g->n_slots - 1);
}

/* Whether it is among the last `window` places that were read. */
static bool known(const struct ngram *g, uint32_t place)
{
    return place && place + g->window > g->n_read;
}

/* The slot of the pair that ends at `end`; *ret_found says whether it is there. NULL: nowhere to put it. */
static uint32_t *slot_of(struct ngram *g, const int32_t *text, uint32_t end, bool *ret_found)
{
    const int32_t *pair = text + end - 1;
    uint32_t at = hash(g, pair), *free = NULL;

    *ret_found = false;
    for (int i = 0; i < PROBES; i++, at = (at + 1) & (g->n_slots - 1)) {
        const uint32_t place = g->slots[at];

        if (known(g, place)) {
            if (memcmp(text + place - 2, pair, 2 * sizeof text[0]) == 0)
                return *ret_found = true, &g->slots[at];
        } else if (!free) {
            free = &g->slots[at];
        }
        if (!place)
            break;
    }
    return free;
}

static void read_up_to(struct ngram *g, const int32_t *text, uint32_t n)
{
    if (g->n_read == 0)
        g->n_read = NGRAM_SHORTEST - 1;             /* where the first pair ends */
    /* Of a text that is longer than the window only its end is kept. */
    if (n > g->window && g->n_read < n - g->window)
        g->n_read = n - g->window;
    for (; g->n_read < n; g->n_read++) {
        bool found;
        uint32_t *slot = slot_of(g, text, g->n_read, &found);

        if (!slot)
            continue;
        g->before[g->n_read & (g->window - 1)] = found ? *slot : 0;
        *slot = g->n_read + 1;
    }
}

/* Tokens up to text[end] that are equal to the last ones. */
static uint32_t match(const int32_t *text, uint32_t n, uint32_t end)
{
    uint32_t len = NGRAM_SHORTEST;

    while (len < NGRAM_LONGEST && len <= end && text[end - len] == text[n - 1 - len])
        len++;
    return len;
}

uint32_t ngram_propose(struct ngram *g, const int32_t *text, uint32_t n, uint32_t most, int32_t *ret)
{
    uint32_t best = 0, best_end = 0, place;
    uint32_t *slot;
    bool found;

    if (n <= NGRAM_SHORTEST)
        return 0;
    read_up_to(g, text, n - 1);                     /* nothing follows the last pair yet */
    slot = slot_of(g, text, n - 1, &found);
    if (!found)
        return 0;
    place = *slot;
    for (int i = 0; i < NGRAM_PLACES && known(g, place); i++) {
        const uint32_t end = place - 1, len = match(text, n, end);

        if (len > best) {
            best = len;
            best_end = end;
        }
        if (best == NGRAM_LONGEST)
            break;
        place = g->before[end & (g->window - 1)];
    }
    if (most > 2 * (best - 1))
        most = 2 * (best - 1);
    for (uint32_t i = 0; i < most; i++)
        ret[i] = best_end + 1 + i < n ? text[best_end + 1 + i] : ret[best_end + 1 + i - n];
    return most;
}
