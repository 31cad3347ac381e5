/* Strings and expressions that are looked for.
 *
 * PCRE2 counts its steps from each place in the text anew, so a search of its own has no limit that holds for a text. Here
 * each place is tried on its own, skipped where the first byte can not begin a match, and what a try may cost grows fourfold
 * until it ends or the walk's budget is spent. What PCRE2 does not count (a run of one class of characters is one step to it, however
 * long) is bounded by the processor's time, which is looked at now and then.
 */
#define PCRE2_CODE_UNIT_WIDTH 8

#include "loaders/tok/regex.h"

#include "base/err.h"
#include "base/utf8.h"

#include <errno.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    TIERS = 6,
    FIRST_TIER = 4096,                  /* steps; each further one four times as many */
    BUDGET = 200 * 1000 * 1000,         /* steps of a walk: some seconds */
    STEPS_A_TRY = 32,                   /* what a try that ends soon is counted as */
    HEAP_KIB = 64 * 1024,
    LOOK_EVERY = 64,                    /* tries */
    SECONDS = 2, BYTES_A_SECOND = 1 << 20,
};

struct pattern {
    char *string;                       /* NULL: an expression */
    size_t len;
    pcre2_code *code;
    pcre2_match_context *tiers[TIERS];
    const uint8_t *first;               /* bit a byte: may begin a match; NULL: any */
};

int pattern_string(const char *text, size_t len, struct pattern **ret)
{
    struct pattern *p = calloc(1, sizeof *p);

    if (!p)
        return -ENOMEM;
    p->string = malloc(len + 1);
    if (!p->string) {
        free(p);
        return -ENOMEM;
    }
    memcpy(p->string, text, len);
    p->len = len;
    *ret = p;
    return 0;
}

static int compile(struct pattern *p, const char *rewritten, const char *text, size_t len, struct err *err)
{
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    PCRE2_UCHAR message[128];
    PCRE2_SIZE at;
    int code;

    if (!context)
        return err_set(err, -ENOMEM, "no memory for a regular expression");
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    p->code = pcre2_compile((PCRE2_SPTR)rewritten, strlen(rewritten), PCRE2_UTF | PCRE2_MULTILINE | PCRE2_DUPNAMES | PCRE2_NEVER_BACKSLASH_C,
                            &code, &at, context);
    pcre2_compile_context_free(context);
    if (p->code)
        return 0;
    if (code == PCRE2_ERROR_NOMEMORY)
        return err_set(err, -ENOMEM, "no memory for a regular expression");
    if (pcre2_get_error_message(code, message, sizeof message) < 0)
        message[0] = '\0';
    return err_set(err, -EINVAL, "regular expression \"%.*s\"%s: %s", (int)(len < 200 ? len : 200), text, len < 200 ? "" : "…",
                   (const char *)message);
}

static int make_tiers(struct pattern *p, struct err *err)
{
    uint32_t limit = FIRST_TIER;

    for (int i = 0; i < TIERS; i++, limit *= 4) {
        p->tiers[i] = pcre2_match_context_create(NULL);
        if (!p->tiers[i])
            return err_set(err, -ENOMEM, "no memory for a regular expression");
        pcre2_set_match_limit(p->tiers[i], limit);
        pcre2_set_depth_limit(p->tiers[i], limit);
        pcre2_set_heap_limit(p->tiers[i], HEAP_KIB);
    }
    return 0;
}

int pattern_regex(const char *text, size_t len, struct pattern **ret, struct err *err)
{
    CLEANUP(pattern_free) struct pattern *p = NULL;
    CLEANUP(mem_free) char *rewritten = NULL;
    int e = regex_rewrite(text, len, &rewritten, err);

    if (e < 0)
        return e;
    p = calloc(1, sizeof *p);
    if (!p)
        return err_set(err, -ENOMEM, "no memory for a regular expression");
    if ((e = compile(p, rewritten, text, len, err)) < 0 || (e = make_tiers(p, err)) < 0)
        return e;
    pcre2_pattern_info(p->code, PCRE2_INFO_FIRSTBITMAP, &p->first);
    *ret = STEAL(p);
    return 0;
}

void pattern_free(struct pattern *p)
{
    if (!p)
        return;
    for (int i = 0; i < TIERS; i++)
        pcre2_match_context_free(p->tiers[i]);
    pcre2_code_free(p->code);
    free(p->string);
    free(p);
}

/* A copy whose bad bytes are U+0001 each, so that places stay the same; NULL in *ret: there are none. */
static int mask_bad_bytes(const char *text, size_t len, char **ret)
{
    size_t valid = utf8_valid_prefix(text, len);
    char *masked;

    if (valid == len)
        return 0;
    masked = malloc(len);
    if (!masked)
        return -ENOMEM;
    memcpy(masked, text, len);
    for (size_t i = valid; i < len; i += utf8_valid_prefix(text + i, len - i))
        masked[i++] = 1;
    *ret = masked;
    return 0;
}

int pattern_begin(struct pattern_walk *w, const struct pattern *p, const char *text, size_t len)
{
    *w = (struct pattern_walk){ .pattern = p, .text = text, .len = len, .budget = BUDGET + 2 * STEPS_A_TRY * (uint64_t)len };
    if (p->string)
        return 0;
    w->match = pcre2_match_data_create(1, NULL);
    return w->match ? mask_bad_bytes(text, len, &w->masked) : -ENOMEM;
}

void pattern_end(struct pattern_walk *w)
{
    pcre2_match_data_free(w->match);
    free(w->masked);
    *w = (struct pattern_walk){ 0 };
}

static size_t character_length(const struct pattern_walk *w, size_t at)
{
    uint32_t c;
    int n = utf8_decode(w->text + at, w->len - at, &c);

    return n > 0 ? (size_t)n : 1;
}

static int next_string(struct pattern_walk *w, size_t *ret_start, size_t *ret_end)
{
    const struct pattern *p = w->pattern;
    const char *found;

    if (p->len == 0) {
        if (w->any && w->at < w->len)
            w->at += character_length(w, w->at);
        else if (w->any)
            return PATTERN_END;
        w->any = true;
        *ret_start = *ret_end = w->at;
        return w->len ? 0 : PATTERN_END;
    }
    found = w->at < w->len ? memmem(w->text + w->at, w->len - w->at, p->string, p->len) : NULL;
    if (!found)
        return PATTERN_END;
    *ret_start = (size_t)(found - w->text);
    *ret_end = w->at = *ret_start + p->len;
    return 0;
}

static int spend(struct pattern_walk *w, uint64_t steps)
{
    if (steps > w->budget)
        return -E2BIG;
    w->budget -= steps;
    return 0;
}

/* A match that begins at w->at: 0, PATTERN_END or an error. */
static int try_here(struct pattern_walk *w)
{
    const char *text = w->masked ? w->masked : w->text;
    uint64_t limit = FIRST_TIER;

    for (int tier = 0; tier < TIERS; tier++, limit *= 4) {
        int rc;

        if (spend(w, tier ? limit : STEPS_A_TRY) < 0)
            return -E2BIG;
        rc = pcre2_match(w->pattern->code, (PCRE2_SPTR)text, w->len, w->at, PCRE2_ANCHORED | PCRE2_NO_UTF_CHECK, w->match,
                         w->pattern->tiers[tier]);
        if (rc >= 0)
            return 0;
        if (rc == PCRE2_ERROR_NOMATCH)
            return PATTERN_END;
        if (rc == PCRE2_ERROR_NOMEMORY)
            return -ENOMEM;
        if (rc != PCRE2_ERROR_MATCHLIMIT && rc != PCRE2_ERROR_DEPTHLIMIT)
            return -E2BIG;
    }
    return -E2BIG;
}

static int64_t cpu_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* The processor's time, every so many tries. */
static bool too_long(struct pattern_walk *w)
{
    if (++w->tries % LOOK_EVERY != 1)
        return false;
    if (w->tries == 1)
        w->began_ms = cpu_ms();
    return cpu_ms() - w->began_ms > 1000 * (int64_t)(SECONDS + w->len / BYTES_A_SECOND);
}

static bool may_begin(const struct pattern_walk *w)
{
    const uint8_t *first = w->pattern->first;
    unsigned char c;

    if (!first)
        return true;
    if (w->at == w->len)
        return false;
    c = (unsigned char)(w->masked ? w->masked : w->text)[w->at];
    return first[c / 8] >> c % 8 & 1;
}

int pattern_next(struct pattern_walk *w, size_t *ret_start, size_t *ret_end)
{
    if (w->pattern->string)
        return next_string(w, ret_start, ret_end);
    for (; w->at <= w->len && w->len; w->at += w->at < w->len ? character_length(w, w->at) : 1) {
        const PCRE2_SIZE *where;
        int e;

        if (!may_begin(w))
            continue;
        if (too_long(w))
            return -E2BIG;
        if ((e = try_here(w)) < 0)
            return e;
        if (e == PATTERN_END)
            continue;
        where = pcre2_get_ovector_pointer(w->match);
        if (where[1] == w->at && w->any && w->last_end == w->at)
            continue;                   /* empty, right behind the one before */
        *ret_start = w->at;
        *ret_end = w->at = w->last_end = where[1];
        w->any = true;
        return 0;
    }
    return PATTERN_END;
}
