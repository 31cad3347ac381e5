/* Added tokens and the chain over spans, with parts made here. */
#include "base/buf.h"
#include "loaders/tok/tok.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <string.h>

#define T(s) { s, sizeof s - 1 }

static const struct added_token tokens[] = {
    { T("<s>"), 900, .special = true },
    { T("<s>x"), 901 },
    { T("<mask>"), 902, .special = true, .lstrip = true },
    { T("<end>"), 903, .special = true, .rstrip = true },
    { T("word"), 904, .single_word = true },
    { T("wordy"), 905 },
    { T("  "), 906 },
    { T("<"), 907 },
    { T("<s>x"), 999 },                         /* the first of equals counts */
};
enum { N_TOKENS = sizeof tokens / sizeof tokens[0] };

static void matches(const char *text, bool special, const uint8_t *trusted, const char *wanted)
{
    CLEANUP(added_free) struct added *a = NULL;
    struct added_cursor c = { 0 };
    struct added_match m;
    BUF_LOCAL b = BUF_INIT;

    cr_assert(eq(int, added_new(tokens, N_TOKENS, &a), 0));
    while (added_next(a, text, strlen(text), &c, special, trusted, &m))
        buf_printf(&b, "%d:%zu-%zu ", m.id, m.start, m.end);
    cr_expect(eq(str, (char *)buf_str(&b), (char *)wanted), "%s", text);
}

Test(added, the_leftmost_wins_then_the_longest)
{
    matches("", true, NULL, "");
    matches("a<s>b", true, NULL, "900:1-4 ");
    matches("<s>x<s>", true, NULL, "901:0-4 900:4-7 ");
    matches("<<s>", true, NULL, "907:0-1 900:1-4 ");
    matches("<s", true, NULL, "907:0-1 ");
}

Test(added, special_ones_that_may_not_match_leave_room_for_others)
{
    static const uint8_t all_but_one[] = { 1, 1, 0, 1, 1, 1, 1 };

    matches("a<s>b", false, NULL, "907:1-2 ");
    matches("<s>x", false, NULL, "901:0-4 ");
    matches("<s><s>b", true, all_but_one, "907:0-1 900:3-6 ");
}

Test(added, white_space_beside_is_swallowed_where_it_is_free)
{
    matches("a \t\xC2\xA0<mask> b", true, NULL, "902:1-11 ");
    matches("a<end> \n b", true, NULL, "903:1-9 ");
    matches("<end> <mask>x", true, NULL, "903:0-6 902:6-12 ");
    matches("<mask>", true, NULL, "902:0-6 ");
    /* A token within what was swallowed still counts, as in Hugging Face's. */
    matches("<end>  b", true, NULL, "903:0-7 906:5-7 ");
}

Test(added, a_single_word_has_no_word_character_beside_it)
{
    matches("word", true, NULL, "904:0-4 ");
    matches("a word.", true, NULL, "904:2-6 ");
    matches("sword word_ wordy word\xC3\xA9", true, NULL, "905:12-17 ");
    matches("\xFFword\xFF", true, NULL, "904:1-5 ");
}

/* A tokenizer whose model gives a token a byte, and whose normaliser writes small letters, doubles '2', drops '0', and puts '>' in
 * front of every text. */

static int byte_encode(const struct tok_model *m, const char *piece, size_t len, struct tok_scratch *s, struct token_list *out)
{
    for (size_t i = 0; i < len; i++)
        if (token_list_add(out, (unsigned char)piece[i]) < 0)
            return -1;
    return 0;
}

static void no_free_model(struct tok_model *m) { }
static void no_free_normalizer(struct normalizer *n) { }

static int small_letters(const struct normalizer *n, const char *text, size_t len, bool *at_start, struct buf *out, struct err *err)
{
    buf_addc(out, '>');
    for (size_t i = 0; i < len; i++) {
        char c = text[i] >= 'A' && text[i] <= 'Z' ? (char)(text[i] | 32) : text[i];

        if (c != '0')
            buf_addc(out, c);
        if (c == '2')
            buf_addc(out, c);
    }
    return 0;
}

static const struct tok_model_ops byte_ops = { "bytes", byte_encode, no_free_model };
static struct tok_model byte_model = { &byte_ops };
static const struct normalizer_ops small_ops = { small_letters, no_free_normalizer };
static struct normalizer small = { &small_ops };

static struct tokenizer *chain(bool normalized)
{
    static const struct added_token raw[] = { { T("<s>"), 900, .special = true }, { T("||"), 901 } };
    static const struct added_token after[] = { { T("[end]"), 902, .special = true }, { T("22"), 903 } };
    struct tokenizer *t = NULL;

    cr_assert(eq(int, tokenizer_new(&t), 0));
    cr_assert(eq(int, vocab_new(0, 0, &t->vocab), 0));
    cr_assert(eq(int, added_new(raw, 2, &t->added_raw), 0));
    t->model = &byte_model;
    if (normalized) {
        cr_assert(eq(int, added_new(after, 2, &t->added_normalized), 0));
        t->normalizer = &small;
    }
    return t;
}

/* Ids as text: bytes as themselves, others in parentheses. Spans in `text` are cut at '@': trusted, not, trusted, … */
static void spans_are(const struct tokenizer *t, const char *text, const char *wanted)
{
    struct text_span spans[16];
    TOKEN_LIST_LOCAL ids = { 0 };
    BUF_LOCAL b = BUF_INIT;
    size_t n = 0;

    for (const char *at = text, *end;; at = end + 1) {
        end = strchrnul(at, '@');
        spans[n] = (struct text_span){ at, (size_t)(end - at), n % 2 == 0 };
        n++;
        if (!*end)
            break;
    }
    cr_assert(eq(int, tokenizer_encode_spans(t, spans, n, &ids, NULL), 0));
    for (size_t i = 0; i < ids.n; i++)
        buf_printf(&b, ids.ids[i] < 256 ? "%c" : "(%d)", ids.ids[i]);
    cr_expect(eq(str, (char *)buf_str(&b), (char *)wanted), "%s", text);
}

Test(encode, a_control_token_counts_only_where_all_its_bytes_are_trusted)
{
    CLEANUP(tokenizer_close) struct tokenizer *t = chain(false);

    spans_are(t, "<s>a@<s>b@<s>c", "(900)a<s>b(900)c");
    spans_are(t, "<@s>@<s>", "<s>(900)");
    spans_are(t, "a@<s@>", "a<s>");
    spans_are(t, "<s@>@", "<s>");
    spans_are(t, "<@@s>", "(900)");             /* nothing of nobody stands between */
    spans_are(t, "a|@|b", "a(901)b");           /* an ordinary one may be of any text */
    spans_are(t, "@@@", "");
    spans_are(t, "@x", "x");
}

Test(encode, trust_follows_the_text_through_a_normaliser)
{
    CLEANUP(tokenizer_close) struct tokenizer *t = chain(true);

    spans_are(t, "[END]@[END]", ">(902)[end]");
    spans_are(t, "[END]@x[END]y@[END]", ">(902)x[end]y(902)");
    spans_are(t, "2@2[END]@2[END]", ">(903)(903)[end](903)(902)");
    spans_are(t, "[E@ND]@[End]", ">[end](902)");
    spans_are(t, "A@0[END@]", ">a[end]");
    spans_are(t, "A<s>B@[end]@C", ">a(900)>b[end]c");
    spans_are(t, "@[END]@[END]@[END]@[END]", ">[end](902)[end](902)");
}

Test(encode, spans_over_the_limit_are_refused_and_the_list_stays)
{
    CLEANUP(tokenizer_close) struct tokenizer *t = chain(false);
    struct text_span spans[] = { { "x", TOKENIZER_MAX_TEXT, true }, { "y", 1, false } };
    TOKEN_LIST_LOCAL ids = { 0 };

    cr_assert(eq(int, token_list_add(&ids, 7), 0));
    cr_expect(lt(int, tokenizer_encode_spans(t, spans, 2, &ids, NULL), 0));
    spans[0].len = SIZE_MAX;
    cr_expect(lt(int, tokenizer_encode_spans(t, spans, 2, &ids, NULL), 0));
    cr_expect(eq(sz, ids.n, 1));
    cr_expect(eq(int, tokenizer_encode_spans(t, NULL, 0, &ids, NULL), 0));
    cr_expect(eq(sz, ids.n, 1));
}
