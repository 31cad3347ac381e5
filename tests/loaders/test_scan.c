#include "base/buf.h"
#include "loaders/tok/scan.h"
#include "real_files.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

static int add_piece(void *user, const char *piece, size_t len)
{
    struct buf *b = user;

    if (b->len)
        buf_addc(b, '|');
    buf_add(b, piece, len);
    return 0;
}

static void pieces(const char *pre, const char *text, const char *wanted)
{
    BUF_LOCAL b = BUF_INIT;
    const struct scan_pre *p = scan_of_name(pre);

    cr_assert(ne(ptr, (void *)p, NULL), "%s", pre);
    cr_assert(eq(int, scan_all(p->scans, text, strlen(text), add_piece, &b), 0));
    cr_expect(eq(str, (char *)buf_str(&b), (char *)wanted), "%s", pre);
}

Test(scan, an_unknown_name_is_not_found)
{
    cr_expect(eq(ptr, (void *)scan_of_name("gpt-7"), NULL));
    cr_expect(eq(ptr, (void *)scan_of_name(""), NULL));
}

Test(scan, gpt2_keeps_a_space_with_the_word_behind_it)
{
    pieces("gpt-2", "", "");
    pieces("gpt-2", "Hello world", "Hello| world");
    pieces("gpt-2", "a  b   c\n\nd ", "a| | b|  | c|\n|\n|d| ");
    pieces("gpt-2", "x \xC2\xA0y", "x| |\xC2\xA0|y");
    pieces("gpt-2", "a   ", "a|   ");
    pieces("gpt-2", "it's we'll I'M 'dog''re", "it|'s| we|'ll| I|'|M| '|dog|''|re");
    pieces("gpt-2", "in 2024: 1,000!", "in| 2024|:| 1|,|000|!");
    pieces("gpt-2", "\xE4\xBD\xA0\xE5\xA5\xBD \xF0\x9F\x8C\x8D!\xC3\xA9", "\xE4\xBD\xA0\xE5\xA5\xBD| \xF0\x9F\x8C\x8D!|\xC3\xA9");
    pieces("gpt-2", "a\xFF\xFE" "b", "a|\xFF\xFE|b");
}

Test(scan, smollm_lets_every_number_stand_alone)
{
    pieces("smollm", "in 2024", "in| |2|0|2|4");
    pieces("smollm", "x\xC2\xB2\xC2\xBD \xD9\xA1\xE0\xA5\xA7y", "x|\xC2\xB2|\xC2\xBD| |\xD9\xA1|\xE0\xA5\xA7|y");
    pieces("smollm", "a  1", "a|  |1");
}

Test(scan, llama3_and_qwen2_differ_in_digits)
{
    pieces("llama-bpe", "12345 a", "123|45| a");
    pieces("qwen2", "12345 a", "1|2|3|4|5| a");
    pieces("llama-bpe", "(word) I'LL \xC5\xBF'\xC5\xBF", "(word|)| I|'LL| \xC5\xBF|'\xC5\xBF");
    pieces("llama-bpe", "a!\n\nb \n c  \n", "a|!\n\n|b| \n| c|  \n");
    pieces("llama-bpe", "\tx\n\ty   z", "\tx|\n|\ty|  | z");
    pieces("llama-bpe", " 1 \xE2\x82\xAC" "5", " |1| \xE2\x82\xAC|5");
}

Test(scan, falcon_and_default_cut_punctuation_first)
{
    pieces("falcon", "a$$b 12345", "a|$$|b| |123|45");
    pieces("default", "a`b 12345", "a|`|b| |123|45");
}

static bool is_refused(const char *name)
{
    static const char *const refused[] = { "gemma4", "granite-embed-multi-311m", "sarvam-moe", "whitespace" };

    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        if (strcmp(refused[i], name) == 0)
            return true;
    return false;
}

/* The expressions that llama.cpp has for a name are those of its scanners, as far as each is known by its text. */
static size_t check_regexes(const struct scan_pre *pre, const cJSON *row)
{
    const cJSON *theirs = cJSON_GetObjectItem(row, "llama_cpp_regexes"), *regexes = cJSON_GetObjectItem(row, "hf_original"), *regex;
    size_t i = 0, known = 0;

    if (cJSON_GetArraySize(regexes) != cJSON_GetArraySize(theirs))
        regexes = theirs;
    cJSON_ArrayForEach(regex, regexes)
    {
        const struct scan *scan = scan_of_regex(regex->valuestring, strlen(regex->valuestring));

        cr_expect(i < SCAN_MAX_STAGES && pre->scans[i], "%s: stage %zu", pre->name, i);
        cr_expect(scan == NULL || scan == pre->scans[i], "%s: stage %zu is %s", pre->name, i, scan ? scan->name : "");
        known += scan != NULL;
        i++;
    }
    return known;
}

Test(scan, every_name_of_llama_cpp_is_known_or_refused)
{
    size_t len, names = 0, known = 0;
    CLEANUP(mem_free) char *text = real_read(real_golden("tokenizers/pre_table.json"), &len);
    CLEANUP(json_delete) cJSON *table = cJSON_ParseWithLength(text, len);
    const cJSON *row;

    cJSON_ArrayForEach(row, cJSON_GetObjectItem(table, "pre"))
    {
        const struct scan_pre *pre = scan_of_name(row->string);

        names++;
        cr_expect(is_refused(row->string) == (pre == NULL), "%s", row->string);
        if (!pre)
            continue;
        cr_expect(pre->ignore_merges == cJSON_IsTrue(cJSON_GetObjectItem(row, "ignore_merges")), "%s", row->string);
        cr_expect(pre->add_bos == cJSON_IsTrue(cJSON_GetObjectItem(row, "add_bos_default")), "%s", row->string);
        known += check_regexes(pre, row);
    }
    cr_expect(eq(sz, names, 87));
    cr_expect(gt(sz, known, 60));
}
