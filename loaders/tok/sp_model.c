/* A model file is a protocol buffer: fields of a number, a type and a value, in any order. Fields that are
 * not of interest are skipped, but must be sound.
 */
#include "loaders/tok/sp_model.h"

#include "base/buf.h"
#include "base/cursor.h"
#include "base/err.h"
#include "loaders/tok/decode.h"
#include "loaders/tok/sp_normalize.h"
#include "loaders/tok/tok_config.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

enum { WIRE_VARINT, WIRE_64, WIRE_BYTES, WIRE_GROUP, WIRE_GROUP_END, WIRE_32 };
enum { MODEL_PIECES = 1, MODEL_TRAINER = 2, MODEL_NORMALIZER = 3, MODEL_DENORMALIZER = 5 };
enum { PIECE_TEXT = 1, PIECE_SCORE = 2, PIECE_TYPE = 3 };
enum { TRAINER_TYPE = 3, TRAINER_SUFFIX = 24, TRAINER_BYTE_FALLBACK = 35, TRAINER_UNK_SURFACE = 44, TRAINER_BOS = 46,
       TRAINER_EOS = 47 };
enum { NORMALIZER_MAP = 2, NORMALIZER_PREFIX = 3, NORMALIZER_EXTRA = 4, NORMALIZER_ESCAPE = 5 };
enum { TYPE_UNIGRAM = 1, TYPE_BPE = 2, TYPE_WORD = 3, TYPE_CHAR = 4 };

#define STR(s) ((struct tok_str){ s, sizeof s - 1 })

struct field {
    uint32_t number, wire;
    uint64_t value;                     /* WIRE_VARINT, WIRE_32, WIRE_64 */
    struct tok_str bytes;               /* WIRE_BYTES */
};

struct reader {
    struct sp_model *m;
    const uint8_t *start;               /* of the file */
    struct err *err;
    uint32_t cap_pieces;
    uint64_t type;                      /* of the model */
};

__attribute__((format(printf, 4, 5)))
static int refuse(struct reader *r, int code, const struct cursor *c, const char *fmt, ...)
{
    char text[ERR_TEXT];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!c)
        return err_set(r->err, code, "%s: %s", r->m->name, text);
    return err_set(r->err, code, "%s: byte %zu: %s", r->m->name, (size_t)(c->data - r->start) + c->pos, text);
}

static uint64_t varint(struct cursor *c)
{
    uint64_t v = 0;

    for (unsigned shift = 0; shift < 64; shift += 7) {
        uint8_t byte = cursor_u8(c);

        v |= (uint64_t)(byte & 0x7F) << shift;
        if (c->bad || !(byte & 0x80))
            return v;
    }
    c->bad = true;
    return 0;
}

/* The next field: 0, 1 at the end, or -EINVAL. */
static int next_field(struct reader *r, struct cursor *c, struct field *f)
{
    struct cursor at = *c;
    uint64_t tag, n;

    if (cursor_left(c) == 0)
        return 1;
    *f = (struct field){ 0 };
    tag = varint(c);
    if (c->bad || tag >> 3 == 0 || tag >> 3 > 0x1FFFFFFF)
        return refuse(r, -EINVAL, &at, "no field begins here");
    f->number = (uint32_t)(tag >> 3);
    f->wire = tag & 7;
    switch (f->wire) {
    case WIRE_VARINT:
        f->value = varint(c);
        break;
    case WIRE_64:
        f->value = cursor_u64(c);
        break;
    case WIRE_32:
        f->value = cursor_u32(c);
        break;
    case WIRE_BYTES:
        n = varint(c);
        if (c->bad || n > cursor_left(c))
            return refuse(r, -EINVAL, &at, "field %u has %llu bytes, but %zu are left", f->number, (unsigned long long)n,
                          cursor_left(c));
        f->bytes = (struct tok_str){ cursor_bytes(c, n), (uint32_t)n };
        break;
    default:
        return refuse(r, -EINVAL, &at, "field %u has the unknown type %u", f->number, f->wire);
    }
    return c->bad ? refuse(r, -EINVAL, &at, "field %u ends past its place", f->number) : 0;
}

static struct cursor within(const struct field *f)
{
    return cursor_over(f->bytes.text, f->bytes.len);
}

static float as_float(uint64_t value)
{
    uint32_t bits = (uint32_t)value;
    float v;

    memcpy(&v, &bits, sizeof v);
    return v;
}

static int read_piece(struct reader *r, const struct field *message)
{
    struct cursor c = within(message);
    struct sp_piece p = { .kind = TOK_NORMAL };
    struct sp_model *m = r->m;
    struct field f;
    int e;

    if (m->n_pieces == TOKENIZER_MAX_VOCAB)
        return refuse(r, -E2BIG, &c, "more than %d pieces", TOKENIZER_MAX_VOCAB);
    while ((e = next_field(r, &c, &f)) == 0) {
        if (f.number == PIECE_TEXT && f.wire == WIRE_BYTES)
            p.text = f.bytes;
        else if (f.number == PIECE_SCORE && f.wire == WIRE_32)
            p.score = as_float(f.value);
        else if (f.number == PIECE_TYPE && f.wire == WIRE_VARINT && f.value >= TOK_NORMAL && f.value <= TOK_BYTE)
            p.kind = (enum token_kind)f.value;
        else if (f.number <= PIECE_TYPE)
            return refuse(r, -EINVAL, &c, "piece %u: field %u makes no sense", m->n_pieces, f.number);
    }
    if (e < 0)
        return e;
    if (p.text.len == 0)
        return refuse(r, -EINVAL, &c, "piece %u has no text", m->n_pieces);
    if (!isfinite(p.score))
        return refuse(r, -EINVAL, &c, "piece %u has no finite score", m->n_pieces);
    if (m->n_pieces == r->cap_pieces) {
        uint32_t cap = r->cap_pieces ? r->cap_pieces * 2 : 1024;
        struct sp_piece *pieces = reallocarray(m->pieces, cap, sizeof *pieces);

        if (!pieces)
            return refuse(r, -ENOMEM, NULL, "no memory for %u pieces", cap);
        m->pieces = pieces;
        r->cap_pieces = cap;
    }
    m->pieces[m->n_pieces++] = p;
    return 0;
}

static int read_trainer(struct reader *r, const struct field *message)
{
    struct cursor c = within(message);
    struct field f;
    int e;

    while ((e = next_field(r, &c, &f)) == 0) {
        if (f.wire == WIRE_VARINT && f.number == TRAINER_TYPE)
            r->type = f.value;
        else if (f.wire == WIRE_VARINT && f.number == TRAINER_SUFFIX)
            r->m->as_suffix = f.value != 0;
        else if (f.wire == WIRE_VARINT && f.number == TRAINER_BYTE_FALLBACK)
            r->m->byte_fallback = f.value != 0;
        else if (f.wire == WIRE_BYTES && f.number == TRAINER_UNK_SURFACE)
            r->m->unk_surface = f.bytes;
        else if (f.wire == WIRE_BYTES && f.number == TRAINER_BOS)
            r->m->bos = f.bytes;
        else if (f.wire == WIRE_BYTES && f.number == TRAINER_EOS)
            r->m->eos = f.bytes;
    }
    return e < 0 ? e : 0;
}

static int read_normalizer(struct reader *r, const struct field *message)
{
    struct cursor c = within(message);
    struct field f;
    int e;

    while ((e = next_field(r, &c, &f)) == 0) {
        if (f.wire == WIRE_BYTES && f.number == NORMALIZER_MAP)
            r->m->charsmap = f.bytes;
        else if (f.wire == WIRE_VARINT && f.number == NORMALIZER_PREFIX)
            r->m->dummy_prefix = f.value != 0;
        else if (f.wire == WIRE_VARINT && f.number == NORMALIZER_EXTRA)
            r->m->remove_extra = f.value != 0;
        else if (f.wire == WIRE_VARINT && f.number == NORMALIZER_ESCAPE)
            r->m->escape = f.value != 0;
    }
    return e < 0 ? e : 0;
}

static int read_denormalizer(struct reader *r, const struct field *message)
{
    struct cursor c = within(message);
    struct field f;
    int e;

    while ((e = next_field(r, &c, &f)) == 0)
        if (f.wire == WIRE_BYTES && f.number == NORMALIZER_MAP && f.bytes.len)
            return refuse(r, -ENOTSUP, &c, "a denormalizer_spec with a map of characters is not supported");
    return e < 0 ? e : 0;
}

static int read_fields(struct reader *r, struct cursor c)
{
    struct field f;
    int e, code = 0;

    while (code == 0 && (e = next_field(r, &c, &f)) != 1) {
        if (e < 0)
            return e;
        if (f.number == MODEL_PIECES || f.number == MODEL_TRAINER || f.number == MODEL_NORMALIZER ||
            f.number == MODEL_DENORMALIZER) {
            if (f.wire != WIRE_BYTES)
                return refuse(r, -EINVAL, &c, "field %u is no message", f.number);
        }
        if (f.number == MODEL_PIECES)
            code = read_piece(r, &f);
        else if (f.number == MODEL_TRAINER)
            code = read_trainer(r, &f);
        else if (f.number == MODEL_NORMALIZER)
            code = read_normalizer(r, &f);
        else if (f.number == MODEL_DENORMALIZER)
            code = read_denormalizer(r, &f);
    }
    return code;
}

static int check_type(struct reader *r)
{
    switch (r->type) {
    case TYPE_UNIGRAM:
        return 0;
    case TYPE_BPE:
        r->m->bpe = true;
        return 0;
    case TYPE_WORD:
    case TYPE_CHAR:
        return refuse(r, -ENOTSUP, NULL, "a model of %s is not supported, only Unigram and BPE", 
                      r->type == TYPE_WORD ? "words" : "characters");
    default:
        return refuse(r, -EINVAL, NULL, "model_type %llu is not known", (unsigned long long)r->type);
    }
}

static int check_pieces(struct reader *r)
{
    struct sp_model *m = r->m;
    uint32_t n_bytes = 0;

    if (m->n_pieces == 0)
        return refuse(r, -EINVAL, NULL, "no pieces");
    m->unk = -1;
    for (uint32_t i = 0; i < m->n_pieces; i++) {
        if (m->pieces[i].kind == TOK_UNKNOWN && m->unk >= 0)
            return refuse(r, -EINVAL, NULL, "pieces %d and %u are both the unknown one", m->unk, i);
        if (m->pieces[i].kind == TOK_UNKNOWN)
            m->unk = (int32_t)i;
        n_bytes += m->pieces[i].kind == TOK_BYTE;
    }
    if (m->unk < 0)
        return refuse(r, -EINVAL, NULL, "no piece is the unknown one");
    if (n_bytes && !m->byte_fallback)
        return refuse(r, -EINVAL, NULL, "there are byte pieces, but byte_fallback is off");
    if (m->byte_fallback && n_bytes != 256)
        return refuse(r, -EINVAL, NULL, "byte_fallback is on, but there are %u byte pieces, not 256", n_bytes);
    return 0;
}

int sp_model_read(const char *name, const void *data, size_t len, struct sp_model *ret, struct err *err)
{
    struct reader r = { .m = ret, .start = data, .err = err, .type = TYPE_UNIGRAM };
    int e;

    *ret = (struct sp_model){ .name = name, .unk = -1, .dummy_prefix = true, .remove_extra = true, .escape = true,
                              .bos = STR("<s>"), .eos = STR("</s>"),
                              .unk_surface = STR(" \xE2\x81\x87 ") };
    if (len > TOKENIZER_MAX_FILE)
        return refuse(&r, -E2BIG, NULL, "%zu bytes, at most %d are allowed", len, TOKENIZER_MAX_FILE);
    e = read_fields(&r, cursor_over(data, len));
    if (e == 0)
        e = check_type(&r);
    return e < 0 ? e : check_pieces(&r);
}

void sp_model_fini(struct sp_model *m)
{
    free(m->pieces);
    m->pieces = NULL;
}

bool sp_model_looks_like(const void *data, size_t len)
{
    const uint8_t *p = data;
    size_t size, at = 2;

    /* A first field 1 of bytes, in it a first field 1 of bytes that fits. */
    if (len < 8 || p[0] != (MODEL_PIECES << 3 | WIRE_BYTES))
        return false;
    size = p[1] & 0x7F;
    if (p[1] & 0x80)
        size |= (size_t)p[at++] << 7;
    return p[at] == (PIECE_TEXT << 3 | WIRE_BYTES) && p[at + 1] + 2u <= size;
}

/* The tokenizer. */

static bool same(struct tok_str a, struct tok_str b)
{
    return a.len == b.len && memcmp(a.text, b.text, a.len) == 0;
}

/* A piece that stands for text, with its marks and its spaces changed for each other: marks become what spaces of a text are here, and
 * a space, which no text has when it comes to the model, becomes what no text has here. */
static void add_piece(const struct sp_model *m, struct tok_str s, struct buf *out)
{
    size_t from = 0;

    for (size_t i = 0; m->escape && i < s.len; i++)
        if (s.text[i] == ' ') {
            sp_space(out, s.text + from, i - from);
            buf_adds(out, "\xE2\x96\x81");
            from = i + 1;
        }
    sp_space(out, s.text + from, s.len - from);
}

static int put_piece(const struct sp_model *m, struct vocab *v, uint32_t id, struct buf *text, struct err *err)
{
    const struct sp_piece *p = &m->pieces[id];
    int32_t twin;

    buf_clear(text);
    if (p->kind == TOK_NORMAL || p->kind == TOK_UNUSED || p->kind == TOK_USER_DEFINED)
        add_piece(m, p->text, text);
    else
        buf_add(text, p->text.text, p->text.len);
    if (text->failed)
        return err_set(err, -ENOMEM, "%s: no memory for a piece", m->name);
    twin = vocab_find(v, buf_str(text), text->len);
    if (twin >= 0 && same(m->pieces[twin].text, p->text))
        return err_set(err, -EINVAL, "%s: pieces %d and %u have the same text", m->name, twin, id);
    if (vocab_put(v, (int32_t)id, buf_str(text), text->len, p->kind) < 0)
        return err_set(err, -ENOMEM, "%s: no memory for %u pieces", m->name, m->n_pieces);
    return 0;
}

int sp_model_vocab(const struct sp_model *m, struct tokenizer *t, struct err *err)
{
    BUF_LOCAL text = BUF_INIT;
    int r = vocab_new(m->n_pieces, 0, &t->vocab);

    if (r < 0)
        return err_set(err, r, "%s: no memory for %u pieces", m->name, m->n_pieces);
    for (uint32_t id = 0; id < m->n_pieces && r == 0; id++)
        r = put_piece(m, t->vocab, id, &text, err);
    return r;
}

static int make_normalizer(const struct sp_model *m, struct tokenizer *t, struct err *err)
{
    CLEANUP(mem_free) struct tok_str *whole = calloc(m->n_pieces + 1, sizeof *whole);
    struct sp_normalizer_spec spec = { .charsmap = m->charsmap.text, .charsmap_len = m->charsmap.len, .whole = whole,
                                       .dummy_prefix = m->dummy_prefix, .as_suffix = m->as_suffix,
                                           .remove_extra = m->remove_extra };
    struct err why = { 0 };
    int r;

    if (!whole)
        return err_set(err, -ENOMEM, "%s: no memory", m->name);
    for (uint32_t i = 0; i < m->n_pieces; i++)
        if (m->pieces[i].kind == TOK_USER_DEFINED)
            whole[spec.n_whole++] = m->pieces[i].text;
    r = sp_normalizer_new(&spec, &t->normalizer, &why);
    return r < 0 ? err_set(err, r, "%s: %s", m->name, err_text(&why)) : 0;
}

static int make_bpe(const struct sp_model *m, struct tokenizer *t)
{
    CLEANUP(mem_free) float *scores = calloc((size_t)vocab_size(t->vocab) + 1, sizeof *scores);       /* more than pieces: added tokens */
    struct spm_bpe_spec spec = { .vocab = t->vocab, .scores = scores, .unk = m->unk, .byte_fallback = m->byte_fallback };

    for (uint32_t i = 0; scores && i < m->n_pieces; i++)
        scores[i] = m->pieces[i].score;
    return scores ? spm_bpe_new(&spec, &t->model) : -ENOMEM;
}

static int make_unigram(const struct sp_model *m, struct tokenizer *t)
{
    CLEANUP(mem_free) double *scores = calloc((size_t)vocab_size(t->vocab) + 1, sizeof *scores);
    struct unigram_spec spec = { .vocab = t->vocab, .scores = scores, .single = true, .unk = m->unk,
                                 .byte_fallback = m->byte_fallback,
                                 .fuse_unk = true };

    for (uint32_t i = 0; scores && i < m->n_pieces; i++)
        scores[i] = (double)m->pieces[i].score;
    return scores ? unigram_new(&spec, &t->model) : -ENOMEM;
}

static int make_decoder(const struct sp_model *m, struct tokenizer *t)
{
    struct decode_step step = { .op = DECODE_SENTENCEPIECE, .text = m->unk_surface, .start = m->dummy_prefix || m->remove_extra,
                                .flag = m->remove_extra };
    int r = decoder_new(&step, 1, &t->decoder);

    return r < 0 ? r : decoder_bind(t->decoder, t->vocab);
}

/* The most bytes of text that one token stands for: a space may have been a U+2581. Where unknown characters are joined, or the
 * normaliser or a token's neighbourhood may swallow text, there is no such number. */
static size_t longest(const struct sp_model *m, const struct vocab *v)
{
    size_t most = 0;

    if (!m->byte_fallback || m->charsmap.len || m->remove_extra)
        return 0;
    for (uint32_t id = 0; id < vocab_size(v); id++) {
        struct tok_str s = vocab_text(v, (int32_t)id);
        size_t len = s.len;

        for (uint32_t i = 0; i < s.len; i++)
            len += s.text[i] == ' ' ? 2 : 0;
        most = len > most ? len : most;
    }
    return most;
}

int sp_model_chain(const struct sp_model *m, struct tokenizer *t, struct err *err)
{
    int r = make_normalizer(m, t, err);

    if (r < 0)
        return r;
    r = m->bpe ? make_bpe(m, t) : make_unigram(m, t);
    if (r == 0)
        r = make_decoder(m, t);
    if (r < 0)
        return err_set(err, r, r == -ENOMEM ? "%s: no memory for its tokenizer" : "%s: its pieces are too much text", m->name);
    t->longest = longest(m, t->vocab);
    snprintf(t->kind, sizeof t->kind, "SentencePiece %s%s", m->bpe ? "BPE" : "Unigram", m->byte_fallback ? ", byte fallback" : "");
    return 0;
}

/* BOS and EOS are what the config or the model calls so, if that is a control token. */
static int32_t control(const struct tokenizer *t, const cJSON *config, const char *key, struct tok_str otherwise)
{
    const char *text = tok_config_token(config, key);
    int32_t id = text ? vocab_find(t->vocab, text, strlen(text)) : vocab_find(t->vocab, otherwise.text, otherwise.len);

    return id >= 0 && vocab_kind(t->vocab, id) == TOK_CONTROL ? id : -1;
}

/* What ends an answer by its spelling is a control token, but for a user-defined one: SentencePiece matches it in any text. (A
 * checkpoint's tokenizer_config.json may say otherwise.) */
static int find_ends(const struct sp_model *m, const cJSON *config, struct tokenizer *t, struct err *err)
{
    int r = tokenizer_find_ends(t, NULL, 0);

    for (uint32_t id = 0; id < m->n_pieces; id++)
        if (m->pieces[id].kind == TOK_USER_DEFINED)
            vocab_set_kind(t->vocab, (int32_t)id, TOK_USER_DEFINED);
    return r < 0 ? err_set(err, r, "%s: no memory for its tokenizer", m->name) : tok_config_fill(config, t, err);
}

static int make_tokenizer(const struct sp_model *m, const cJSON *config, struct tokenizer *t, struct err *err)
{
    static const char *const with_bos[] = { "LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer" },
        *const with_eos[] = { "T5Tokenizer" };
    struct tok_config_added a = { 0 };
    int r = sp_model_vocab(m, t, err);

    if (r < 0 || (r = find_ends(m, config, t, err)) < 0)
        return r;
    t->bos = control(t, config, "bos_token", m->bos);
    t->eos = control(t, config, "eos_token", m->eos);
    if ((r = tokenizer_add_end(t, t->eos)) < 0 || (r = added_of_vocab(t->vocab, m->n_pieces, config, &t->added_raw)) < 0 ||
        (r = tok_config_edges(config, t, tok_config_class(config, with_bos, 3), tok_config_class(config, with_eos, 1))) < 0)
        return err_set(err, r, "%s: no memory for its tokenizer", m->name);
    r = sp_model_chain(m, t, err);
    while (tok_config_added(config, &a))
        if (a.lstrip || a.rstrip)
            t->longest = 0;
    return r;
}

int sp_tokenizer_open(const char *name, const void *data, size_t len, const cJSON *config, struct tokenizer **ret, struct err *err)
{
    CLEANUP(tokenizer_close) struct tokenizer *t = NULL;
    struct sp_model m;
    int r = tokenizer_new(&t);

    if (r < 0)
        return err_set(err, r, "%s: no memory for its tokenizer", name);
    r = sp_model_read(name, data, len, &m, err);
    if (r == 0)
        r = make_tokenizer(&m, config, t, err);
    sp_model_fini(&m);
    if (r < 0)
        return r;
    *ret = STEAL(t);
    return 0;
}
