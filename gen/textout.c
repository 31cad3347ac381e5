#include "gen/textout.h"

#include "base/buf.h"
#include "base/err.h"
#include "base/utf8.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

/* Each stop has an automaton whose state is the length of the longest tail of
 * the text that begins the stop. The longest of these tails is what must be
 * held back, and a stop that is complete counts once no tail that began
 * before it can still become a stop.
 *
 * Stops are whole characters, so a tail that begins one starts at a character:
 * cutting before it never splits one. */
struct automaton {
    const char *stop;
    uint16_t *fail;             /* [len + 1]: longest proper border of each prefix */
    uint32_t len, state;
};

struct textout {
    char raw[4];                /* of an unfinished character */
    uint32_t n_raw;
    uint32_t n_stops, longest;
    uint64_t seen, given;       /* bytes of text; held is what lies between */
    uint64_t found_at;          /* where the stop `found` begins */
    int found;                  /* best stop that is complete, or -1 */
    bool stopped, ended;
    char *held;                 /* [longest + 4] */
    struct automaton stops[];
};

static const char replacement[] = "\xEF\xBF\xBD";

static void automaton_init(struct automaton *a, const char *stop, uint32_t len, uint16_t *fail)
{
    uint32_t k = 0;

    *a = (struct automaton){ .stop = stop, .fail = fail, .len = len };
    fail[0] = fail[1] = 0;
    for (uint32_t i = 1; i < len; i++) {
        while (k && stop[i] != stop[k])
            k = fail[k];
        if (stop[i] == stop[k])
            k++;
        fail[i + 1] = (uint16_t)k;
    }
}

static bool automaton_step(struct automaton *a, char c)
{
    uint32_t k = a->state;

    while (k && a->stop[k] != c)
        k = a->fail[k];
    if (a->stop[k] == c)
        k++;
    a->state = k;
    return k == a->len;
}

static int stop_check(const char *stop, size_t i, size_t *ret_len, struct err *err)
{
    size_t len = stop ? strnlen(stop, TEXTOUT_MAX_STOP_BYTES + 1) : 0;

    if (!len)
        return err_set(err, -EINVAL, "stop string %zu is empty", i + 1);
    if (len > TEXTOUT_MAX_STOP_BYTES)
        return err_set(err, -EINVAL, "stop string %zu is longer than %d bytes", i + 1,
                       TEXTOUT_MAX_STOP_BYTES);
    if (!utf8_is_valid(stop, len))
        return err_set(err, -EINVAL, "stop string %zu is not valid UTF-8", i + 1);
    *ret_len = len;
    return 0;
}

int textout_open(const char *const *stops, size_t n_stops, struct textout **ret, struct err *err)
{
    size_t lens[TEXTOUT_MAX_STOPS], total = 0, longest = 0, fails;
    struct textout *t;
    uint16_t *fail;
    char *bytes;
    int r;

    if (n_stops > TEXTOUT_MAX_STOPS)
        return err_set(err, -EINVAL, "%zu stop strings are more than %d", n_stops,
                       TEXTOUT_MAX_STOPS);
    for (size_t i = 0; i < n_stops; i++) {
        r = stop_check(stops[i], i, &lens[i], err);
        if (r < 0)
            return r;
        total += lens[i] + 1;
        longest = lens[i] > longest ? lens[i] : longest;
    }

    fails = total * sizeof *fail;
    t = calloc(1, sizeof *t + n_stops * sizeof t->stops[0] + fails + total + longest + 4);
    if (!t)
        return err_set(err, -ENOMEM, "no memory for stop strings");
    fail = (uint16_t *)&t->stops[n_stops];
    bytes = (char *)fail + fails;
    for (size_t i = 0; i < n_stops; i++) {
        memcpy(bytes, stops[i], lens[i] + 1);
        automaton_init(&t->stops[i], bytes, (uint32_t)lens[i], fail);
        fail += lens[i] + 1;
        bytes += lens[i] + 1;
    }
    t->held = bytes;
    t->longest = (uint32_t)longest;
    t->n_stops = (uint32_t)n_stops;
    t->found = -1;
    *ret = t;
    return 0;
}

void textout_close(struct textout *t)
{
    free(t);
}

/* Lets everything before position `end` of the text go. */
static void release(struct textout *t, uint64_t end, struct buf *out)
{
    size_t n_held = (size_t)(t->seen - t->given), n = (size_t)(end - t->given);

    if (!n)
        return;
    buf_add(out, t->held, n);
    memmove(t->held, t->held + n, n_held - n);
    t->given = end;
}

static void stop_here(struct textout *t, struct buf *out)
{
    release(t, t->found_at, out);
    t->stopped = true;
    t->n_raw = 0;
}

/* One whole character. */
static void put(struct textout *t, const char *c, size_t len, struct buf *out)
{
    uint32_t tail = 0;

    if (!t->n_stops) {
        buf_add(out, c, len);
        t->seen += len;
        t->given = t->seen;
        return;
    }
    memcpy(t->held + (t->seen - t->given), c, len);
    t->seen += len;
    for (uint32_t i = 0; i < t->n_stops; i++) {
        struct automaton *a = &t->stops[i];
        bool whole = false;

        for (size_t k = 0; k < len; k++)
            whole = automaton_step(a, c[k]);
        if (whole) {
            uint64_t at = t->seen - a->len;

            if (t->found < 0 || at < t->found_at) {
                t->found = (int)i;
                t->found_at = at;
            }
            a->state = a->fail[a->len];
        }
        tail = a->state > tail ? a->state : tail;
    }
    if (t->found >= 0 && t->seen - tail >= t->found_at)
        stop_here(t, out);
    else
        release(t, t->seen - tail, out);
}

static void put_byte(struct textout *t, char c, struct buf *out)
{
    uint32_t code;
    int n;

    t->raw[t->n_raw++] = c;
    n = utf8_decode(t->raw, t->n_raw, &code);
    if (n == -1 && t->n_raw > 1) {
        /* The bytes before this one could have begun a character. */
        t->n_raw = 0;
        put(t, replacement, 3, out);
        if (!t->stopped)
            put_byte(t, c, out);
        return;
    }
    if (n == -2)
        return;
    t->n_raw = 0;
    if (n > 0)
        put(t, t->raw, (size_t)n, out);
    else
        put(t, replacement, 3, out);
}

int textout_add(struct textout *t, const char *bytes, size_t len, struct buf *out)
{
    for (size_t i = 0; i < len && !t->stopped && !t->ended; i++)
        put_byte(t, bytes[i], out);
    return t->stopped ? TEXTOUT_STOPPED : 0;
}

int textout_end(struct textout *t, struct buf *out)
{
    if (t->stopped || t->ended)
        return t->stopped ? TEXTOUT_STOPPED : 0;
    if (t->n_raw) {
        t->n_raw = 0;
        put(t, replacement, 3, out);
    }
    if (!t->stopped && t->found >= 0)
        stop_here(t, out);
    if (!t->stopped)
        release(t, t->seen, out);
    t->ended = true;
    return t->stopped ? TEXTOUT_STOPPED : 0;
}

int textout_stop(const struct textout *t)
{
    return t->stopped ? t->found : -1;
}

const char *textout_stop_text(const struct textout *t)
{
    return t->stopped ? t->stops[t->found].stop : NULL;
}

size_t textout_most(const struct textout *t, size_t len)
{
    return (t->seen - t->given) + 3 * (len + 1);
}

uint64_t textout_seen(const struct textout *t)
{
    return t->seen + (t->n_raw > 0);
}

uint64_t textout_given(const struct textout *t)
{
    return t->given;
}
