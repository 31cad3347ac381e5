/* SentencePiece model files: what is refused and why, what is read, and how a config beside it counts. The ids are
 * score-text's matter. */
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "ids_of.h"
#include "loaders/detok.h"
#include "loaders/tok/sp_model.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* A small writer of the format. */

static void varint(struct buf *b, uint64_t v)
{
    for (; v > 0x7F; v >>= 7)
        buf_addc(b, (char)((v & 0x7F) | 0x80));
    buf_addc(b, (char)v);
}

static void field(struct buf *b, uint32_t number, const void *bytes, size_t len)
{
    varint(b, number << 3 | 2);
    varint(b, len);
    buf_add(b, bytes, len);
}

static void number(struct buf *b, uint32_t n, uint64_t v)
{
    varint(b, n << 3);
    varint(b, v);
}

static void piece(struct buf *b, const char *text, float score, int kind)
{
    BUF_LOCAL p = BUF_INIT;

    field(&p, 1, text, strlen(text));
    varint(&p, 2 << 3 | 5);
    buf_add(&p, &score, sizeof score);
    if (kind != 1)
        number(&p, 3, (uint64_t)kind);
    field(b, 1, p.data, p.len);
}

enum { NORMAL = 1, UNKNOWN, CONTROL, USER, UNUSED, BYTE };

static void start(struct buf *b)
{
    piece(b, "<unk>", 0, UNKNOWN);
    piece(b, "<s>", 0, CONTROL);
    piece(b, "</s>", 0, CONTROL);
}

static void trainer(struct buf *b, uint64_t type, bool byte_fallback)
{
    BUF_LOCAL t = BUF_INIT;

    number(&t, 3, type);
    if (byte_fallback)
        number(&t, 35, 1);
    field(b, 2, t.data, t.len);
}

static void refused(const struct buf *b, int code, const char *words)
{
    CLEANUP(tokenizer_close) struct tokenizer *t = NULL;
    struct err err = { 0 };

    cr_expect(eq(int, sp_tokenizer_open("m.model", b->data ? b->data : "", b->len, NULL, &t, &err), code), "%s", words);
    cr_expect(strstr(err_text(&err), words) != NULL, "\"%s\" is not in \"%s\"", words, err_text(&err));
    cr_expect(strncmp(err_text(&err), "m.model: ", 9) == 0, "%s", err_text(&err));
    cr_expect(eq(ptr, t, NULL));
}

#define BAD(code, words, ...) do { BUF_LOCAL b = BUF_INIT; __VA_ARGS__; refused(&b, code, words); } while (0)

Test(sp_model, bytes_that_are_no_protocol_buffer_are_refused_with_the_place)
{
    BAD(-EINVAL, "no pieces", (void)0);
    BAD(-EINVAL, "byte 0: no field begins here", buf_add(&b, "\x00\x01", 2));
    BAD(-EINVAL, "no field begins here", start(&b); buf_add(&b, "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01", 12));
    BAD(-EINVAL, "unknown type 3", start(&b); buf_add(&b, "\x0B", 1));
    BAD(-EINVAL, "unknown type 6", start(&b); buf_add(&b, "\x0E", 1));
    BAD(-EINVAL, "has 100 bytes, but 1 are left", start(&b); buf_add(&b, "\x0A\x64X", 3));
    BAD(-EINVAL, "but 0 are left", start(&b); buf_add(&b, "\x12\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01", 11));
    BAD(-EINVAL, "ends past its place", start(&b); buf_add(&b, "\x20\x80", 2));
    BAD(-EINVAL, "ends past its place", start(&b); buf_add(&b, "\x25\x01\x02", 3));
    BAD(-EINVAL, "field 1 is no message", start(&b); number(&b, 1, 7));
}

Test(sp_model, every_cut_of_a_sound_file_is_refused_or_sound)
{
    BUF_LOCAL b = BUF_INIT;

    start(&b);
    piece(&b, "a", -1, NORMAL);
    trainer(&b, 2, false);
    for (size_t n = 0; n < b.len; n++) {
        CLEANUP(tokenizer_close) struct tokenizer *t = NULL;
        char *copy = malloc(n + 1);
        struct err err = { 0 };

        memcpy(copy, b.data, n);
        if (sp_tokenizer_open("m.model", copy, n, NULL, &t, &err) < 0)
            cr_expect(err_is_set(&err));
        free(copy);
    }
}

Test(sp_model, pieces_that_make_no_sense_are_refused)
{
    BAD(-EINVAL, "piece 3 has no text", start(&b); piece(&b, "", -1, NORMAL));
    BAD(-EINVAL, "pieces 3 and 4 have the same text", start(&b); piece(&b, "a", -1, NORMAL); piece(&b, "a", -2, NORMAL));
    BAD(-EINVAL, "no piece is the unknown one", piece(&b, "a", -1, NORMAL));
    BAD(-EINVAL, "pieces 0 and 3 are both the unknown one", start(&b); piece(&b, "<u>", 0, UNKNOWN));
    BAD(-EINVAL, "piece 3 has no finite score", start(&b); piece(&b, "a", NAN, NORMAL));
    BAD(-EINVAL, "piece 3 has no finite score", start(&b); piece(&b, "a", -INFINITY, NORMAL));
    BAD(-EINVAL, "piece 3: field 3 makes no sense", start(&b); piece(&b, "a", 0, 7));
    BAD(-EINVAL, "piece 3: field 3 makes no sense", start(&b); piece(&b, "a", 0, -1));
    BAD(-EINVAL, "byte_fallback is off", start(&b); piece(&b, "<0x41>", 0, BYTE));
    BAD(-EINVAL, "but there are 1 byte pieces, not 256", start(&b); piece(&b, "<0x41>", 0, BYTE); trainer(&b, 1, true));
}

Test(sp_model, kinds_of_models_and_maps_that_are_not_known_are_refused)
{
    BAD(-ENOTSUP, "a model of words is not supported", start(&b); trainer(&b, 3, false));
    BAD(-ENOTSUP, "a model of characters is not supported", start(&b); trainer(&b, 4, false));
    BAD(-EINVAL, "model_type 9 is not known", start(&b); trainer(&b, 9, false));
    BAD(-EINVAL, "precompiled_charsmap", start(&b); field(&b, 3, "\x12\x02xx", 4));
    BAD(-EINVAL, "precompiled_charsmap", start(&b); field(&b, 3, "\x12\x08\xFF\xFF\xFF\x7Fxxxx", 10));
    BAD(-ENOTSUP, "denormalizer_spec", start(&b); field(&b, 5, "\x12\x02xx", 4));
}

static struct tokenizer *open_with(const struct buf *b, const char *config)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    struct tokenizer *t = NULL;
    struct err err = { 0 };

    if (config)
        cr_assert(zero(int, json_parse(config, strlen(config), NULL, &tree, &err)));
    cr_assert(zero(int, sp_tokenizer_open("m.model", b->data, b->len, tree, &t, &err)), "%s", err_text(&err));
    return t;
}

#define SAME(have, want) cr_expect(eq(str, (char *)(have), (char *)(want)))

static void small_bpe(struct buf *b)
{
    start(b);
    piece(b, "\xE2\x96\x81" "a", -1, NORMAL);       /* 3 */
    piece(b, "a", -2, NORMAL);
    piece(b, "\xE2\x96\x81", -3, NORMAL);           /* 5 */
    piece(b, "b", -4, NORMAL);
    piece(b, "<|im_end|>", 0, USER);                /* 7 */
    piece(b, "ab", -5, UNUSED);
    trainer(b, 2, false);
}

Test(sp_model, control_tokens_count_where_text_is_vouched_for_and_user_defined_ones_anywhere)
{
    BUF_LOCAL b = BUF_INIT;
    CLEANUP(tokenizer_close) struct tokenizer *t = NULL;

    small_bpe(&b);
    t = open_with(&b, NULL);
    SAME(ids_of(t, "a b", false), "3 5 6");
    SAME(ids_of(t, "aab", false), "3 4 6");         /* what is not used is cut again */
    SAME(ids_of(t, "a<s>b", false), "3 0 6");
    SAME(ids_of(t, "a<s>b", true), "3 1 5 6");
    SAME(ids_of(t, "a<|im_end|>b", false), "3 7 6");
    SAME(ids_of(t, "\xE2\x96\x81" "a", false), "5 3");
    cr_expect(eq(i32, tokenizer_bos(t), 1));
    cr_expect(eq(i32, tokenizer_eos(t), 2));
    cr_expect(tokenizer_is_end(t, 2));
    cr_expect(tokenizer_is_end(t, 7));
    cr_expect(not(tokenizer_adds_bos(t)));
    SAME(tokenizer_kind(t), "SentencePiece BPE");
}

/* To SentencePiece a text's spaces are U+2581 by then; a piece with a space of its own is met by none. */
Test(sp_model, a_space_in_a_piece_is_no_space_of_a_text)
{
    BUF_LOCAL b = BUF_INIT;
    CLEANUP(tokenizer_close) struct tokenizer *t = NULL;
    size_t len;

    start(&b);
    piece(&b, "a b", 0, USER);
    piece(&b, "a", -1, NORMAL);                     /* 4 */
    piece(&b, "b", -1, NORMAL);
    piece(&b, "\xE2\x96\x81", -1, NORMAL);         /* 6 */
    piece(&b, "  ", 0, USER);
    trainer(&b, 2, false);
    t = open_with(&b, NULL);
    SAME(ids_of(t, "a b", false), "6 4 6 5");
    SAME(ids_of(t, "a  b", false), "6 4 6 6 5");
    cr_expect(zero(int, memcmp(tokenizer_token(t, 3, &len), "a b", 3)));
    cr_expect(eq(sz, len, 3));
}

Test(sp_model, a_config_beside_it_says_what_is_special_and_what_stands_in_front)
{
    static const char config[] = "{\"tokenizer_class\":\"LlamaTokenizer\",\"eos_token\":{\"content\":\"<|im_end|>\"},\"added_tokens_decoder\":{"
                                 "\"7\":{\"content\":\"<|im_end|>\",\"special\":true},\"9\":{\"content\":\"<new>\"},\"x\":{\"content\":\"<no>\"}}}";
    BUF_LOCAL b = BUF_INIT;
    CLEANUP(tokenizer_close) struct tokenizer *t = NULL;

    small_bpe(&b);
    t = open_with(&b, config);
    SAME(ids_of(t, "a<|im_end|>b", false), "3 0 6");
    SAME(ids_of(t, "a<|im_end|>b", true), "3 7 5 6");
    SAME(ids_of(t, "a<new>", false), "3 9");
    cr_expect(eq(i32, tokenizer_eos(t), 7));
    cr_expect(tokenizer_adds_bos(t));
    cr_expect(not(tokenizer_adds_eos(t)));
    cr_expect(eq(u32, tokenizer_size(t), 10));
}

Test(sp_model, an_added_token_that_is_another_in_the_vocabulary_is_refused)
{
    static const char config[] = "{\"added_tokens_decoder\":{\"4\":{\"content\":\"zz\"}}}";
    CLEANUP(json_delete) cJSON *tree = NULL;
    struct tokenizer *t = NULL;
    struct err err = { 0 };
    BUF_LOCAL b = BUF_INIT;

    small_bpe(&b);
    cr_assert(zero(int, json_parse(config, sizeof config - 1, NULL, &tree, NULL)));
    cr_expect(eq(int, sp_tokenizer_open("m.model", b.data, b.len, tree, &t, &err), -EINVAL));
    cr_expect(strstr(err_text(&err), "token 4 is \"zz\", but \"a\"") != NULL, "%s", err_text(&err));
}

/* One line without spaces, one repeated character: in a time that grows as the text does. */
static void long_text(const struct tokenizer *t, const char *unit, size_t bytes)
{
    char *text = malloc(bytes);
    size_t n = strlen(unit);
    TOKEN_LIST_LOCAL ids = { 0 };
    BUF_LOCAL out = BUF_INIT;

    for (size_t i = 0; i < bytes; i++)
        text[i] = unit[i % n];
    cr_assert(zero(int, tokenizer_encode(t, text, bytes, false, &ids, NULL)));
    cr_assert(zero(int, tokenizer_decode(t, ids.ids, ids.n, true, &out)));
    cr_expect(out.len == bytes && memcmp(out.data, text, bytes) == 0);
    free(text);
}

Test(sp_model, texts_of_megabytes_without_a_space_come_back_whole)
{
    static const char *const texts[] = { "a", "b", "aa", "aaaa", "ab", "abab", "the", "th", "qu", "ick", "ck", "-", "-qu", "aaaaaaaa" };

    for (uint64_t type = 1; type <= 2; type++) {
        CLEANUP(tokenizer_close) struct tokenizer *t = NULL;
        BUF_LOCAL b = BUF_INIT;

        start(&b);
        for (int i = 0; i < 256; i++) {
            char name[8];

            snprintf(name, sizeof name, "<0x%02X>", (unsigned)i);
            piece(&b, name, -20, BYTE);
        }
        for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
            piece(&b, texts[i], -2 - (float)i / 4, NORMAL);
        trainer(&b, type, true);
        field(&b, 3, "\x18\x00\x20\x00", 4);       /* nothing in front, spaces stay */
        t = open_with(&b, NULL);
        long_text(t, "a", 1 << 20);
        long_text(t, "ab", 1 << 20);
        long_text(t, "the-quick-brown-fox", 1 << 20);
        long_text(t, "\xE4\xB8\xAD", 3 << 18);
    }
}
