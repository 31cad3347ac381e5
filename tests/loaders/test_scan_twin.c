/* Every scanner against the expression that it stands for, run by PCRE2 over random texts: the cuts must be the same.
 *
 * PCRE2 is not Oniguruma: where the syntax means something else, the expression is rewritten here. Its tables are older than ours, so the
 * texts hold characters of Unicode 3.2 only; and U+180E, which it counts as a space, is not among them.
 */
#define PCRE2_CODE_UNIT_WIDTH 8

#include "base/buf.h"
#include "base/utf8.h"
#include "loaders/tok/scan.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <pcre2.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define FOLD "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define NOT_HAN(class) "(?:(?!\\p{sc:Han})" class ")"
#define U NOT_HAN("[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]")
#define L NOT_HAN("[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]")
#define WORD "[\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24B6}-\\x{24E9}]"

/* By the scanner's name. */
static const struct { const char *name, *regex; } rewritten[] = {
    { "kimi-k2", "\\p{sc:Han}+|[^\\r\\n\\p{L}\\p{N}]?" U "*" L "+" FOLD "?|[^\\r\\n\\p{L}\\p{N}]?" U "+" L "*" FOLD
                 "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" },
    { "cl100k-onig", "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|(?:\\p{N}{1,3})+| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|"
                     "\\s++$|\\s*[\\r\\n]|\\s+(?!\\S)|\\s" },
    { "bloom", " ?[^(\\s|.,!?…。，、।۔،)]+" },
    { "digits from the right", "\\d{1,3}(?=(?:\\d{3})*(?!" WORD "))" },
    { "punctuation, falcon", "[\\p{P}$+<=>\\^~|`]+" },
};

/* Characters of all classes, those that expressions name more often than others. */
static const uint32_t alphabet[] = {
    ' ', ' ', ' ', ' ', ' ', '\n', '\n', '\r', '\t', 0x0B, 0x85, 0xA0, 0x2003, 0x2028, 0x3000, '\'', '\'', '\'', 's', 't', 'r', 'e', 'v',
    'm', 'l', 'l', 'd', 'S', 'T', 'R', 'E', 'V', 'M', 'L', 'D', 0x17F, 'a', 'b', 'z', 'A', 'B', 'C', 'Z', '0', '1', '2', '3', '7', '9',
    '.', ',', '!', '?', '/', '/', '-', '_', '(', ')', '[', ']', '{', '|', '<', '>', '$', '+', '=', '^', '`', '~', '#', '"', '\\', ';',
    0x00, 0x07, 0x1F, 0x7F, 0xAD, 0x200B, 0x200C, 0x200D, 0xFEFF, 0xE001, 0x0378,
    0xE9, 0xC9, 0xDF, 0x1C5, 0x1C6, 0x1C4, 0x2B0, 0x2C6, 0x2EE, 0xAA, 0x1BB, 0x3B1, 0x391, 0x416, 0x436, 0x531, 0x561, 0x10D0,
    0x300, 0x301, 0x483, 0x488, 0x5B0, 0x64B, 0x903, 0x93E, 0x94D, 0xE31, 0x20DD, 0x5D0, 0x628, 0x6CC, 0x905, 0x915, 0xE01, 0xE40,
    0x4E00, 0x4E2D, 0x9FA5, 0x3400, 0x8C48, 0xF900, 0x3007, 0x2E80, 0x3005, 0x3042, 0x30A2, 0x30FC, 0x3105, 0x3131, 0xAC00, 0xD7A3,
    0x1100, 0x0800, 0xA000, 0x661, 0x967, 0xE51, 0xFF11, 0xB2, 0xBD, 0x2160, 0x2460, 0x3220, 0x24B6, 0x1D7CE, 0x20000, 0x2A6D6,
    0x2F800, 0x2026, 0x3002, 0x3001, 0xFF0C, 0xFF01, 0xFF1A, 0xFF1B, 0x0964, 0x06D4, 0x060C, 0x2014, 0x2018, 0x201C, 0x201D, 0x3008,
    0x20AC, 0x2190, 0x2211, 0x266A, 0x1F600, 0x1D400, 0x10400, 0x10428, 0xFF21, 0xFF41, 0x2C6, 0x5E, 0xB4, 0xFE30, 0xFF65, 0xFF9E,
};
enum { N_ALPHABET = sizeof alphabet / sizeof alphabet[0] };

static uint64_t state;

static uint32_t random_below(uint32_t n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) % n);
}

/* Runs of one neighbourhood of the alphabet, so that long matches of each class come up as well. */
static void random_text(struct buf *b)
{
    uint32_t n = 1 + random_below(24), base = 0, width = N_ALPHABET;

    buf_clear(b);
    for (uint32_t i = 0; i < n; i++) {
        char c[4];

        if (random_below(6) == 0) {
            width = random_below(2) ? N_ALPHABET : 1 + random_below(8);
            base = random_below(N_ALPHABET);
        }
        buf_add(b, c, (size_t)utf8_encode(alphabet[(base + random_below(width)) % N_ALPHABET], c));
    }
}

struct cuts { size_t at[512], n; const char *text; };

static int add_cut(void *user, const char *piece, size_t len)
{
    struct cuts *c = user;

    cr_assert(len > 0 && piece == c->text + (c->n ? c->at[c->n - 1] : 0));
    c->at[c->n++] = (size_t)(piece - c->text) + len;
    return 0;
}

static void cut_at(struct cuts *c, size_t at)
{
    if (at && (!c->n || c->at[c->n - 1] != at))
        c->at[c->n++] = at;
}

static size_t next_character(const char *text, size_t len, size_t at)
{
    uint32_t c;
    int n = utf8_decode(text + at, len - at, &c);

    return at + (n > 0 ? (size_t)n : 1);
}

static void cuts_of_regex(const pcre2_code *code, pcre2_match_data *data, const char *text, size_t len, struct cuts *c)
{
    for (size_t at = 0; at <= len;) {
        const size_t *ovector = pcre2_get_ovector_pointer(data);
        int r = pcre2_match(code, (PCRE2_SPTR)text, len, at, 0, data, NULL);

        if (r < 0)
            break;
        cut_at(c, ovector[0]);
        cut_at(c, ovector[1]);
        at = ovector[1] > ovector[0] ? ovector[1] : ovector[1] < len ? next_character(text, len, ovector[1]) : len + 1;
    }
    cut_at(c, len);
}

static pcre2_code *compile(const char *name, const char *regex)
{
    size_t where;
    int error;
    pcre2_code *code;

    for (size_t i = 0; i < sizeof rewritten / sizeof rewritten[0]; i++)
        if (strcmp(rewritten[i].name, name) == 0)
            regex = rewritten[i].regex;
    code = pcre2_compile((PCRE2_SPTR)regex, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &where, NULL);
    cr_assert(ne(ptr, code, NULL), "%s: error %d at %zu of %s", name, error, where, regex);
    return code;
}

static void show(struct buf *b, const struct cuts *c)
{
    for (size_t i = 0, from = 0; i < c->n; from = c->at[i++]) {
        buf_quote(b, "");
        b->len--;
        for (size_t j = from; j < c->at[i]; j++)
            buf_printf(b, (unsigned char)c->text[j] > 0x20 && c->text[j] != 0x7F ? "%c" : "\\x%02X", (unsigned char)c->text[j]);
        buf_adds(b, "\" ");
    }
}

static bool same_cuts(const struct cuts *a, const struct cuts *b)
{
    return a->n == b->n && memcmp(a->at, b->at, a->n * sizeof a->at[0]) == 0;
}

static void compare(const struct scan *scan, const char *regex, unsigned n_texts)
{
    pcre2_code *code = compile(scan->name, regex);
    pcre2_match_data *data = pcre2_match_data_create_from_pattern(code, NULL);
    BUF_LOCAL text = BUF_INIT;
    unsigned wrong = 0;

    state = 42;
    for (unsigned i = 0; i < n_texts && wrong < 3; i++) {
        struct cuts want = { .n = 0 }, have = { .n = 0 };

        random_text(&text);
        want.text = have.text = text.data;
        cr_assert(eq(int, scan->run(text.data, text.len, add_cut, &have), 0));
        cuts_of_regex(code, data, text.data, text.len, &want);
        if (!same_cuts(&want, &have)) {
            BUF_LOCAL b = BUF_INIT;

            show(&b, &want);
            buf_adds(&b, "\n  have: ");
            show(&b, &have);
            cr_expect(false, "%s:\n  want: %s", scan->name, buf_str(&b));
            wrong++;
        }
    }
    pcre2_match_data_free(data);
    pcre2_code_free(code);
}

Test(scan_twin, every_scanner_cuts_as_its_expression_does, .timeout = 600)
{
    const char *regex;
    const struct scan *scan;

    for (size_t i = 0; (scan = scan_at(i, &regex)); i++)
        compare(scan, regex, 20000);
}

static int count(void *user, const char *piece, size_t len)
{
    size_t *sum = user;

    *sum += len;
    return 0;
}

static void *scan_long_runs(void *user)
{
    static const struct { const char *unit; size_t n; } runs[] = {
        { "x", 30000 }, { " ", 200000 }, { "\n", 200000 }, { "\xE4\xB8\xAD", 100000 }, { "7", 100000 }, { "aA", 100000 },
        { "\xFF", 100000 }, { "'", 100000 }, { "\xCC\x81", 100000 }, { "a ", 100000 }, { "!\n", 100000 }, { " 7", 100000 },
    };
    size_t *wrong = user;

    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        size_t unit = strlen(runs[i].unit), len = unit * runs[i].n;
        char *text = malloc(len);

        for (size_t j = 0; text && j < len; j++)
            text[j] = runs[i].unit[j % unit];
        for (size_t k = 0; text && scan_pre_at(k); k++) {
            size_t sum = 0;

            *wrong += scan_all(scan_pre_at(k)->scans, text, len, count, &sum) != 0 || sum != len;
        }
        *wrong += !text;
        free(text);
    }
    return NULL;
}

Test(scan_twin, long_runs_of_one_class_need_no_stack, .timeout = 600)
{
    size_t wrong = 0;
    pthread_attr_t attr;
    pthread_t thread;

    pthread_attr_init(&attr);
    cr_assert(eq(int, pthread_attr_setstacksize(&attr, 64 << 10), 0));
    cr_assert(eq(int, pthread_create(&thread, &attr, scan_long_runs, &wrong), 0));
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attr);
    cr_expect(eq(sz, wrong, 0));
}
