#include "cli/words.h"

#include "base/buf.h"
#include "base/err.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <string.h>

/* All commands of a text: words in [], a line each. */
static const char *split(const char *text)
{
    static struct buf out;
    struct words w;

    buf_clear(&out);
    while (words_next(&text, &w, NULL) == 0) {
        for (size_t i = 0; i < w.n; i++)
            buf_printf(&out, "[%s]", w.word[i]);
        buf_adds(&out, w.expands ? "$\n" : "\n");
        words_fini(&w);
    }
    return buf_str(&out);
}

Test(words, blanks_part_words_and_lines_part_commands)
{
    cr_expect(eq(str, (char *)split("a  b\tc\n\n d"), "[a][b][c]\n[d]\n"));
    cr_expect(eq(str, (char *)split("a; b & c && d || e | f"), "[a]\n[b]\n[c]\n[d]\n[e]\n[f]\n"));
    cr_expect(eq(str, (char *)split(""), ""));
    cr_expect(eq(str, (char *)split(" \n;;&\n"), ""));
}

Test(words, quotes_keep_what_is_in_them)
{
    cr_expect(eq(str, (char *)split("'a b' \"c 'd' \\\" \\x\" e\\ f ''"), "[a b][c 'd' \" \\x][e f][]\n"));
    cr_expect(eq(str, (char *)split("a'b'\"c\"d"), "[abcd]\n"));
    cr_expect(eq(str, (char *)split("'a\nb'"), "[a\nb]\n"));
}

Test(words, a_backslash_goes_on_in_the_next_line)
{
    cr_expect(eq(str, (char *)split("a \\\n  b \\\r\n c"), "[a][b][c]\n"));
    cr_expect(eq(str, (char *)split("a\\\nb"), "[ab]\n"));
    cr_expect(eq(str, (char *)split("\"a\\\nb\""), "[ab]\n"));
    cr_expect(eq(str, (char *)split("a \\"), "[a][]\n"));
}

Test(words, comments_and_redirections_are_dropped)
{
    cr_expect(eq(str, (char *)split("# all\na#b # c\nd"), "[a#b]\n[d]\n"));
    cr_expect(eq(str, (char *)split("a 2>&1 > log b >>x </dev/null 2>err& c"), "[a][b]\n[c]\n"));
}

Test(words, what_the_shell_would_expand_is_noted)
{
    cr_expect(eq(str, (char *)split("a $HOME\nb '$x' \\$y\nc \"`d`\""), "[a][$HOME]$\n[b][$x][$y]\n[c][`d`]$\n"));
}

Test(words, a_quote_without_end_is_refused)
{
    const char *text = "a 'b";
    struct words w;
    struct err err = { 0 };

    cr_expect(eq(int, words_next(&text, &w, &err), -EINVAL));
    cr_expect(eq(str, err.text, "a ' does not end"));
}
