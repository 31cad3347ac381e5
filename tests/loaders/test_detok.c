#include "base/buf.h"
#include "base/utf8.h"
#include "gguf_build.h"
#include "loaders/detok.h"
#include "loaders/tokenizer.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

#define FFFD "\xEF\xBF\xBD"

/* The text of bytes fed in parts of n, valid after every part. */
static void fed(const char *bytes, size_t len, const char *wanted)
{
    for (size_t n = 1; n <= len; n++) {
        BUF_LOCAL out = BUF_INIT;
        struct detok d;

        detok_init(&d, NULL);
        for (size_t i = 0; i < len; i += n) {
            detok_add_bytes(&d, bytes + i, len - i < n ? len - i : n, &out);
            cr_expect(utf8_is_valid(buf_str(&out), out.len));
        }
        detok_flush(&d, &out);
        cr_expect(eq(str, (char *)buf_str(&out), (char *)wanted), "in parts of %zu", n);
    }
}

Test(detok, characters_cut_anywhere_come_out_whole)
{
    fed("a\xC3\xA9\xE4\xBD\xA0\xF0\x9F\x8C\x8Dz", 11, "a\xC3\xA9\xE4\xBD\xA0\xF0\x9F\x8C\x8Dz");
}

/* Unicode 15, section 3.9, table 3-8 and its neighbours. */
Test(detok, each_longest_ill_formed_part_becomes_one_replacement)
{
    fed("\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64", 12, FFFD FFFD FFFD "b" FFFD "c" FFFD FFFD "d");
    fed("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", 9, FFFD FFFD FFFD FFFD FFFD FFFD FFFD FFFD "A");
    fed("\xED\xA0\x80\xF4\x91\x92\x93\xFF\x41", 9, FFFD FFFD FFFD FFFD FFFD FFFD FFFD FFFD "A");
    fed("\xE4\xBD", 2, FFFD);
    fed("x\xF0\x9F\x8C", 4, "x" FFFD);
}

Test(detok, control_tokens_give_nothing_and_end_no_character)
{
    static const char *const added[] = { "<|end|>", "<user>" };
    static const int32_t types[] = { 3, 4 };
    static const int32_t ids[] = { 'H', 0xC3, 256, 0xA9, 257, 9999, -1, 0xE4 };
    struct gguf_build b = GGUF_BUILD_INIT;
    BUF_LOCAL file = BUF_INIT;
    BUF_LOCAL out = BUF_INIT;
    CLEANUP(gguf_close) struct gguf *g = NULL;
    CLEANUP(tokenizer_close) struct tokenizer *t = NULL;
    struct detok d;

    gguf_build_tokenizer(&b, NULL, NULL, 0, added, types, 2);
    gguf_build_finish(&b, &file);
    cr_assert(eq(int, gguf_open_memory("m.gguf", file.data, file.len, &g, NULL), 0));
    cr_assert(eq(int, tokenizer_open(g, &t, NULL), 0));
    detok_init(&d, t);
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++)
        detok_add(&d, ids[i], &out);
    cr_expect(eq(str, (char *)buf_str(&out), "H\xC3\xA9<user>"));
    detok_flush(&d, &out);
    cr_expect(eq(str, (char *)buf_str(&out), "H\xC3\xA9<user>" FFFD));
    detok_flush(&d, &out);
    cr_expect(eq(sz, out.len, 12));
}
