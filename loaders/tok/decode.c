/* Two ways through one chain. The whole: every step over the list of all texts, exactly as the reference does it; the list
 * is one buffer and the lengths of its parts, and each step writes another. Token by token: each step over
 * one token, once, at load.
 */
#include "loaders/tok/decode.h"

#include "base/buf.h"
#include "base/utf8.h"
#include "loaders/detok.h"
#include "loaders/tok/alphabet.h"
#include "loaders/tok/regex.h"
#include "loaders/tok/sp_normalize.h"

#include <errno.h>
#include <string.h>

static const char replacement[] = "\xEF\xBF\xBD";   /* U+FFFD */
enum { MAX_FORMS_BYTES = 1 << 30 };

struct form { uint32_t at, len; bool is_byte, uncut; };

struct chain {
    struct decoder base;
    struct decode_step steps[DECODE_MAX_STEPS];
    size_t n_steps;
    char *texts;                        /* what the steps' strings point into */
    struct decode_rules rules;
    bool by_bytes;                      /* the whole is what a stream gives */
    struct form *mid, *first;           /* of each id; first NULL: as mid */
    uint32_t n_ids;
    char *form_texts;
};

/* A token's text on its way. */
struct item { const char *text; size_t len; bool raw, first, last, is_byte; };

/* Steps over one token: each appends to out. 0, -ENOMEM or what a pattern says. */

static void replace_text(struct buf *out, const char *text, size_t len, struct tok_str what, const char *with)
{
    size_t from = 0;

    for (size_t i = 0; what.len && i + what.len <= len;) {
        if (memcmp(text + i, what.text, what.len) != 0) {
            i++;
            continue;
        }
        buf_add(out, text + from, i - from);
        buf_adds(out, with);
        i += what.len;
        from = i;
    }
    buf_add(out, text + from, len - from);
}

/* The replacements of Hugging Face's clean-up, each over the result of the one before. */
static void clean_up(struct buf *out, const char *text, size_t len)
{
    static const char *const pairs[][2] = {
        { " .", "." }, { " ?", "?" }, { " !", "!" }, { " ,", "," }, { " ' ", "'" }, { " n't", "n't" },
        { " 'm", "'m" }, { " do not", " don't" }, { " 's", "'s" }, { " 've", "'ve" }, { " 're", "'re" },
    };
    BUF_LOCAL a = BUF_INIT;
    BUF_LOCAL b = BUF_INIT;

    buf_add(&a, text, len);
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        struct buf swap = a;

        buf_clear(&b);
        replace_text(&b, a.data, a.len, (struct tok_str){ pairs[i][0], (uint32_t)strlen(pairs[i][0]) }, pairs[i][1]);
        a = b;
        b = swap;
    }
    buf_add(out, a.data, a.len);
    out->failed = out->failed || a.failed || b.failed;
}

static void decode_wordpiece(const struct decode_step *s, const struct item *in, struct buf *out)
{
    BUF_LOCAL b = BUF_INIT;
    const char *text = in->text;
    size_t len = in->len;

    if (!in->first && len >= s->text.len && memcmp(text, s->text.text, s->text.len) == 0) {
        text += s->text.len;
        len -= s->text.len;
    } else if (!in->first) {
        buf_addc(&b, ' ');
    }
    buf_add(&b, text, len);
    if (s->flag)
        clean_up(out, b.data, b.len);
    else
        buf_add(out, b.data, b.len);
    out->failed = out->failed || b.failed;
}

static void decode_strip(const struct decode_step *s, const struct item *in, struct buf *out)
{
    size_t from = 0, to = in->len, n = s->text.len;

    for (uint32_t i = 0; i < s->start && to - from >= n && memcmp(in->text + from, s->text.text, n) == 0; i++)
        from += n;
    for (uint32_t i = 0; i < s->stop && to - from >= n && memcmp(in->text + to - n, s->text.text, n) == 0; i++)
        to -= n;
    buf_add(out, in->text + from, to - from);
}

static int decode_replace(const struct decode_step *s, const struct item *in, struct buf *out)
{
    struct pattern_walk w;
    size_t from = 0, start, end;
    int r = pattern_begin(&w, s->pattern, in->text, in->len);

    while (r == 0 && (r = pattern_next(&w, &start, &end)) == 0) {
        buf_add(out, in->text + from, start - from);
        buf_add(out, s->with.text, s->with.len);
        from = end;
    }
    pattern_end(&w);
    if (r < 0)
        return r;
    buf_add(out, in->text + from, in->len - from);
    return 0;
}

static void decode_ctc(const struct decode_step *s, const struct item *in, struct buf *out)
{
    BUF_LOCAL a = BUF_INIT;
    BUF_LOCAL b = BUF_INIT;

    replace_text(&a, in->text, in->len, s->text, "");
    if (s->flag) {
        clean_up(&b, a.data, a.len);
        replace_text(out, b.data, b.len, s->with, " ");
    } else {
        buf_add(out, a.data, a.len);
    }
    out->failed = out->failed || a.failed || b.failed;
}

/* A token with a character outside the alphabet stands for itself. */
static void decode_alphabet(const struct decode_step *s, const struct item *in, struct buf *out)
{
    char *room = in->raw && s->flag ? NULL : buf_room(out, in->len);

    if (in->raw && s->flag)
        buf_add(out, in->text, in->len);
    else if (room)
        buf_grew(out, alphabet_decode(in->text, in->len, room));
}

static int byte_of(const char *text, size_t len)
{
    int byte = 0;

    if (len != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
        return -1;
    for (int i = 3; i < 5; i++) {
        char c = text[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;

        if (digit < 0)
            return -1;
        byte = byte * 16 + digit;
    }
    return byte;
}

static int run_step(const struct decode_step *s, struct item *in, struct buf *out)
{
    int byte;

    switch (s->op) {
    case DECODE_BYTE_LEVEL:
        decode_alphabet(s, in, out);
        in->raw = true;
        return 0;
    case DECODE_BYTE_FALLBACK:
        byte = byte_of(in->text, in->len);
        in->is_byte = byte >= 0;
        if (in->is_byte)
            buf_addc(out, (char)byte);
        else
            buf_add(out, in->text, in->len);
        return 0;
    case DECODE_WORDPIECE:
        decode_wordpiece(s, in, out);
        return 0;
    case DECODE_METASPACE:
        replace_text(out, in->text, in->len, s->text, in->first && s->flag ? "" : " ");
        return 0;
    case DECODE_STRIP:
        decode_strip(s, in, out);
        return 0;
    case DECODE_REPLACE:
        return decode_replace(s, in, out);
    case DECODE_BPE:
        replace_text(out, in->text, in->len, s->text, in->last ? "" : " ");
        return 0;
    case DECODE_CTC:
        decode_ctc(s, in, out);
        return 0;
    case DECODE_JOIN:
        if (!in->first)
            buf_addc(out, ' ');
        break;
    case DECODE_FUSE:
    case DECODE_SENTENCEPIECE:
        break;
    }
    buf_add(out, in->text, in->len);
    return 0;
}

/* The whole. */

struct list {
    struct buf text;
    uint32_t *lens;
    bool *raw;
    size_t n;
};

static void add_lossy(struct buf *out, const char *bytes, size_t len)
{
    struct detok d;

    detok_init(&d, NULL);
    detok_add_bytes(&d, bytes, len, out);
    detok_flush(&d, out);
}

/* Joins all texts of the list into one. */
static void fuse(struct list *l)
{
    l->lens[0] = (uint32_t)l->text.len;
    l->raw[0] = false;
    l->n = 1;
}

/* One text in place of each run of bytes, or a U+FFFD a byte. */
static void byte_runs(struct list *l, struct buf *out)
{
    BUF_LOCAL run = BUF_INIT;
    size_t at = 0, n = 0;

    for (size_t i = 0; i <= l->n; i++) {
        int byte = i < l->n ? byte_of(l->text.data + at, l->lens[i]) : -1;
        size_t before = out->len;

        if (byte >= 0) {
            buf_addc(&run, (char)byte);
            at += l->lens[i];
            continue;
        }
        if (run.len && utf8_is_valid(run.data, run.len))
            buf_add(out, run.data, run.len);
        else
            for (size_t k = 0; k < run.len; k++)
                buf_adds(out, replacement);
        if (run.len)
            l->lens[n++] = (uint32_t)(out->len - before);
        buf_clear(&run);
        if (i < l->n) {
            buf_add(out, l->text.data + at, l->lens[i]);
            at += l->lens[i];
            l->lens[n++] = l->lens[i];
        }
    }
    out->failed = out->failed || run.failed;
    l->n = n;
}

static int each_token(const struct decode_step *s, struct list *l, struct buf *out)
{
    size_t at = 0, n = 0;
    struct tok_str before = { NULL, 0 };

    for (size_t i = 0; i < l->n; i++) {
        struct item in = { .text = l->text.data + at, .len = l->lens[i], .raw = l->raw[i], .first = i == 0, .last = i + 1 == l->n };
        size_t len = out->len;
        bool same = before.text && before.len == in.len && (in.len == 0 || memcmp(before.text, in.text, in.len) == 0);
        int r;

        at += in.len;
        before = (struct tok_str){ in.text ? in.text : "", (uint32_t)in.len };
        if (s->op == DECODE_CTC && same)
            continue;
        r = run_step(s, &in, out);
        if (r < 0)
            return r;
        if (s->op == DECODE_CTC && out->len == len)
            continue;
        l->lens[n] = (uint32_t)(out->len - len);
        l->raw[n++] = in.raw;
    }
    l->n = n;
    return 0;
}

static int run_list(const struct decode_step *s, struct list *l)
{
    BUF_LOCAL out = BUF_INIT;
    int r = 0;

    if (s->op == DECODE_BYTE_FALLBACK)
        byte_runs(l, &out);
    else if (s->op != DECODE_FUSE)
        r = each_token(s, l, &out);
    if (r < 0 || out.failed || out.len > UINT32_MAX)
        return r < 0 ? r : -ENOMEM;
    if (s->op != DECODE_FUSE) {
        struct buf swap = l->text;

        l->text = out;
        out = swap;
    }
    if (s->op == DECODE_BYTE_LEVEL) {
        buf_clear(&out);
        add_lossy(&out, l->text.data, l->text.len);
        if (out.failed)
            return -ENOMEM;
        buf_clear(&l->text);
        buf_add(&l->text, out.data, out.len);
    }
    if (s->op == DECODE_FUSE || s->op == DECODE_BYTE_LEVEL || s->op == DECODE_JOIN)
        fuse(l);
    return l->text.failed ? -ENOMEM : 0;
}

static int decode_list(const struct chain *d, const struct vocab *v, const int32_t *ids, size_t n, bool skip_special,
                       struct list *l)
{
    int r = 0;

    for (size_t i = 0; i < n; i++) {
        struct tok_str s = vocab_text(v, ids[i]);
        enum token_kind kind = vocab_kind(v, ids[i]);

        if (!s.text || (skip_special && decoder_skips(&d->base, v, ids[i])))
            continue;
        buf_add(&l->text, s.text, s.len);
        l->raw[l->n] = kind == TOK_NORMAL;
        l->lens[l->n++] = s.len;
    }
    if (l->text.failed || l->text.len > UINT32_MAX)
        return -ENOMEM;
    for (size_t i = 0; i < d->n_steps && l->n && r == 0; i++)
        r = run_list(&d->steps[i], l);
    return r;
}

static int decode_stream(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special, struct buf *out)
{
    struct detok d;

    detok_init(&d, t);
    d.keep_special = !skip_special;
    for (size_t i = 0; i < n; i++)
        detok_add(&d, ids[i], out);
    detok_flush(&d, out);
    return out->failed ? -ENOMEM : 0;
}

int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special, struct buf *out)
{
    const struct chain *d = (const struct chain *)t->decoder;
    struct list l = { .text = BUF_INIT };
    int r = -ENOMEM;

    if (!d || d->by_bytes)
        return decode_stream(t, ids, n, skip_special, out);
    l.lens = calloc(n + 1, sizeof *l.lens);
    l.raw = calloc(n + 1, sizeof *l.raw);
    if (l.lens && l.raw)
        r = decode_list(d, t->vocab, ids, n, skip_special, &l);
    if (r == 0)
        buf_add(out, l.text.data, l.text.len);
    buf_fini(&l.text);
    free(l.lens);
    free(l.raw);
    return r < 0 ? r : out->failed ? -ENOMEM : 0;
}

/* Token by token. */

static bool joins(enum decode_op op)
{
    return op == DECODE_FUSE || op == DECODE_BYTE_LEVEL || op == DECODE_JOIN;
}

/* The text of one token through the chain; what cuts the joined text is a rule, not a step. */
static int token_form(const struct chain *d, struct tok_str s, enum token_kind kind, bool first, struct buf *out, bool *ret_is_byte)
{
    BUF_LOCAL a = BUF_INIT;
    BUF_LOCAL b = BUF_INIT;
    bool joined = false, raw = kind == TOK_NORMAL;

    *ret_is_byte = false;
    buf_add(&a, s.text, s.len);
    for (size_t i = 0; i < d->n_steps; i++) {
        struct item in = { .text = a.data, .len = a.len, .raw = raw, .first = first };
        struct buf swap;
        int r;

        if (joined && d->steps[i].op == DECODE_STRIP)
            continue;
        buf_clear(&b);
        r = run_step(&d->steps[i], &in, &b);
        if (r < 0)
            return r;
        raw = in.raw;
        *ret_is_byte = *ret_is_byte || in.is_byte;
        joined = joined || joins(d->steps[i].op);
        swap = a;
        a = b;
        b = swap;
    }
    buf_add(out, a.data, a.len);
    return a.failed || b.failed || out->failed ? -ENOMEM : 0;
}

/* SentencePiece's: the vocabulary holds spaces already, but where a piece had one of its own (sp_model.c). */
static void sentencepiece_form(const struct decode_step *s, struct tok_str token, enum token_kind kind, struct buf *out,
                               struct form *ret)
{
    int byte = kind == TOK_BYTE ? byte_of(token.text, token.len) : -1;

    ret->is_byte = byte >= 0;
    ret->uncut = kind == TOK_UNKNOWN;
    if (byte >= 0)
        buf_addc(out, (char)byte);
    else if (kind == TOK_UNKNOWN)
        buf_add(out, s->text.text, s->text.len);
    else if (kind == TOK_CONTROL)
        buf_add(out, token.text, token.len);
    else
        sp_space(out, token.text, token.len);
}

static int bind_forms(const struct chain *d, const struct vocab *v, bool first, struct form *forms, struct buf *texts)
{
    for (uint32_t id = 0; id < d->n_ids; id++) {
        struct tok_str s = vocab_text(v, (int32_t)id);
        enum token_kind kind = vocab_kind(v, (int32_t)id);
        size_t before = texts->len;
        int r = 0;

        if (!s.text)
            continue;
        if (d->steps[0].op == DECODE_SENTENCEPIECE)
            sentencepiece_form(&d->steps[0], s, kind, texts, &forms[id]);
        else
            r = token_form(d, s, kind, first, texts, &forms[id].is_byte);
        if (r < 0)
            return r;
        if (texts->failed || texts->len > MAX_FORMS_BYTES)
            return texts->failed ? -ENOMEM : -E2BIG;
        forms[id].at = (uint32_t)before;
        forms[id].len = (uint32_t)(texts->len - before);
    }
    return 0;
}

static bool needs_first(const struct chain *d)
{
    for (size_t i = 0; i < d->n_steps; i++)
        if (d->steps[i].op == DECODE_WORDPIECE || d->steps[i].op == DECODE_JOIN ||
            (d->steps[i].op == DECODE_METASPACE && d->steps[i].flag))
            return true;
    return false;
}

int decoder_bind(struct decoder *decoder, const struct vocab *v)
{
    struct chain *d = (struct chain *)decoder;
    BUF_LOCAL texts = BUF_INIT;
    int r;

    d->n_ids = vocab_size(v);
    d->mid = calloc((size_t)d->n_ids + 1, sizeof *d->mid);
    d->first = needs_first(d) ? calloc((size_t)d->n_ids + 1, sizeof *d->first) : NULL;
    if (!d->mid || (needs_first(d) && !d->first))
        return -ENOMEM;
    r = bind_forms(d, v, false, d->mid, &texts);
    if (r == 0 && d->first)
        r = bind_forms(d, v, true, d->first, &texts);
    if (r < 0)
        return r;
    buf_addc(&texts, '\0');
    d->form_texts = buf_take(&texts);
    return d->form_texts ? 0 : -ENOMEM;
}

struct decode_form decoder_form(const struct decoder *decoder, int32_t id, bool first)
{
    const struct chain *d = (const struct chain *)decoder;
    const struct form *f;

    if (id < 0 || (uint32_t)id >= d->n_ids)
        return (struct decode_form){ "", 0, false, false };
    f = first && d->first ? &d->first[id] : &d->mid[id];
    return (struct decode_form){ d->form_texts + f->at, f->len, f->is_byte, f->uncut };
}

const struct decode_rules *decoder_rules(const struct decoder *decoder)
{
    static const struct decode_rules none;

    return decoder ? &((const struct chain *)decoder)->rules : &none;
}

bool decoder_skips(const struct decoder *decoder, const struct vocab *v, int32_t id)
{
    enum token_kind kind = vocab_kind(v, id);

    return kind == TOK_CONTROL || (kind == TOK_UNKNOWN && !decoder_rules(decoder)->shows_unknown);
}

static const char *chain_token(const struct decoder *decoder, const struct vocab *v, int32_t id, size_t *ret_len)
{
    struct decode_form f = decoder_form(decoder, id, false);

    *ret_len = f.len;
    return vocab_text(v, id).text ? f.text : NULL;
}

static void chain_free(struct decoder *decoder)
{
    struct chain *d = (struct chain *)decoder;

    for (size_t i = 0; i < d->n_steps; i++)
        pattern_free(d->steps[i].pattern);
    free(d->texts);
    free(d->mid);
    free(d->first);
    free(d->form_texts);
    free(d);
}

static const struct decoder_ops chain_ops = { chain_token, chain_free };

static void make_rules(struct chain *d)
{
    bool joined = false;

    d->by_bytes = d->n_steps == 1 && (d->steps[0].op == DECODE_BYTE_LEVEL || d->steps[0].op == DECODE_SENTENCEPIECE);
    for (size_t i = 0; i < d->n_steps; i++) {
        const struct decode_step *s = &d->steps[i];

        if (s->op == DECODE_STRIP && joined) {
            d->rules.strip = s->text;
            d->rules.n_strip = s->start;
        }
        if (s->op == DECODE_SENTENCEPIECE) {
            d->rules.strip = (struct tok_str){ " ", 1 };
            d->rules.n_strip = s->start ? UINT32_MAX : 0;
            d->rules.strip_tokens = true;
            d->rules.strip_once = !s->flag;
            d->rules.shows_unknown = true;
        }
        d->rules.by_run = d->rules.by_run || s->op == DECODE_BYTE_FALLBACK || s->op == DECODE_SENTENCEPIECE;
        d->rules.hold_space = d->rules.hold_space || s->op == DECODE_BPE;
        d->rules.merge_equal = d->rules.merge_equal || s->op == DECODE_CTC;
        joined = joined || joins(s->op);
    }
}

static void release(const struct decode_step *steps, size_t n)
{
    for (size_t i = 0; i < n; i++)
        pattern_free(steps[i].pattern);
}

static struct tok_str copy(struct chain *d, size_t *at, struct tok_str s)
{
    char *to = d->texts + *at;

    if (s.len)
        memcpy(to, s.text, s.len);
    *at += s.len;
    return (struct tok_str){ to, s.len };
}

int decoder_new(const struct decode_step *steps, size_t n, struct decoder **ret)
{
    struct chain *d = n && n <= DECODE_MAX_STEPS ? calloc(1, sizeof *d) : NULL;
    size_t bytes = 1, at = 0;

    for (size_t i = 0; i < n; i++)
        bytes += (size_t)steps[i].text.len + steps[i].with.len;
    if (d)
        d->texts = malloc(bytes);
    if (!d || !d->texts) {
        release(steps, n);
        free(d);
        return n && n <= DECODE_MAX_STEPS ? -ENOMEM : -E2BIG;
    }
    d->base.ops = &chain_ops;
    d->n_steps = n;
    for (size_t i = 0; i < n; i++) {
        d->steps[i] = steps[i];
        d->steps[i].text = copy(d, &at, steps[i].text);
        d->steps[i].with = copy(d, &at, steps[i].with);
    }
    make_rules(d);
    *ret = &d->base;
    return 0;
}
