/* unicode-tool - what base/unicode.h says, for test_unicode.py to compare.
 *
 *     unicode-tool table      a line a code point: number, class, category, script, answers as 0 and 1, decimal value, mappings
 *     unicode-tool NAME       upper, lower, title, capitalize, swapcase, casefold, nfc, nfd, nfkc, nfkd of each line of standard
 *                             input, which is text in hexadecimal, as is what is printed; "-" behind what unicode_is_normal() denies */
#include "base/buf.h"
#include "base/unicode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_mapping(int (*map)(uint32_t c, uint32_t ret[3]), uint32_t c)
{
    uint32_t to[3];
    int n = map(c, to);

    for (int i = 0; i < n; i++)
        printf("%c%x", i ? ',' : ' ', to[i]);
}

static int table(void)
{
    static bool (*const answers[])(uint32_t) = {
        unicode_is_han, unicode_is_word, unicode_is_pyspace, unicode_is_printable, unicode_is_decimal, unicode_is_digit,
        unicode_is_numeric, unicode_is_cased, unicode_is_case_ignorable, unicode_is_upper, unicode_is_lower, unicode_is_title,
        unicode_is_identifier_start, unicode_is_identifier_part,
    };

    for (uint32_t c = 0; c < 0x110000; c++) {
        printf("%x %u %s %s ", c, unicode_class(c), unicode_category(c), unicode_script(c));
        for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++)
            putchar(answers[i](c) ? '1' : '0');
        printf(" %d", unicode_decimal_value(c));
        print_mapping(unicode_upper, c);
        print_mapping(unicode_lower, c);
        print_mapping(unicode_title, c);
        print_mapping(unicode_casefold, c);
        putchar('\n');
    }
    return 0;
}

static const struct operation {
    const char *name;
    void (*map)(struct buf *out, const char *text, size_t len);     /* NULL: the form */
    enum unicode_form form;
} operations[] = {
    { "upper", unicode_add_upper, 0 },
    { "lower", unicode_add_lower, 0 },
    { "title", unicode_add_title, 0 },
    { "capitalize", unicode_add_capitalize, 0 },
    { "swapcase", unicode_add_swapcase, 0 },
    { "casefold", unicode_add_casefold, 0 },
    { "nfc", NULL, UNICODE_NFC },
    { "nfd", NULL, UNICODE_NFD },
    { "nfkc", NULL, UNICODE_NFKC },
    { "nfkd", NULL, UNICODE_NFKD },
};

static void apply(const struct operation *op, char *line, size_t len)
{
    BUF_LOCAL out = BUF_INIT;
    size_t n = len / 2;

    for (size_t i = 0; i < n; i++) {
        char digits[3] = { line[2 * i], line[2 * i + 1] };

        line[i] = (char)strtoul(digits, NULL, 16);
    }
    if (op->map)
        op->map(&out, line, n);
    else
        unicode_add_normal(&out, op->form, line, n);
    for (size_t i = 0; i < out.len; i++)
        printf("%02x", (unsigned char)out.data[i]);
    puts(!op->map && !unicode_is_normal(op->form, line, n) ? "-" : "");
}

int main(int argc, char **argv)
{
    const struct operation *op = NULL;
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;

    if (argc == 2 && !strcmp(argv[1], "table"))
        return table();
    for (size_t i = 0; argc == 2 && i < sizeof operations / sizeof operations[0]; i++)
        if (!strcmp(argv[1], operations[i].name))
            op = &operations[i];
    if (!op)
        return 2;
    while ((len = getline(&line, &cap, stdin)) > 0)
        apply(op, line, (size_t)(line[len - 1] == '\n' ? len - 1 : len));
    free(line);
    return 0;
}
