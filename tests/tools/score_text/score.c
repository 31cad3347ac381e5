#include "tests/tools/score_text/score.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "base/utf8.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_WORDS = 400,        /* bytes that a failing record's line may have */
    EXCERPT = 30,           /* bytes shown on either side of the first difference */
};

struct part {
    char *name;
    size_t passed, failed, left_out;
    struct buf notes;       /* a line a record that failed or was left out */
};

struct score {
    struct part *parts;
    size_t n_parts, current;
};

void score_die(const char *fmt, ...)
{
    va_list ap;

    fflush(stdout);
    fputs("score-text: ", stderr);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    exit(2);
}

static void *need(void *p)
{
    return p ? p : (score_die("no memory"), NULL);
}

/* ---- counting ---- */

struct score *score_new(void)
{
    return need(calloc(1, sizeof(struct score)));
}

static void clear(struct score *s)
{
    for (size_t i = 0; i < s->n_parts; i++) {
        free(s->parts[i].name);
        buf_fini(&s->parts[i].notes);
    }
    free(s->parts);
    *s = (struct score){ 0 };
}

void score_free(struct score *s)
{
    if (!s)
        return;
    clear(s);
    free(s);
}

void score_begin(struct score *s, const char *name)
{
    for (s->current = 0; s->current < s->n_parts; s->current++)
        if (!strcmp(s->parts[s->current].name, name))
            return;
    s->parts = need(reallocarray(s->parts, s->n_parts + 1, sizeof s->parts[0]));
    s->parts[s->n_parts++] = (struct part){ .name = need(strdup(name)) };
}

static struct part *current(struct score *s)
{
    return s->current < s->n_parts ? &s->parts[s->current] : (score_die("a record before score_begin()"), NULL);
}

void score_pass(struct score *s)
{
    current(s)->passed++;
}

/* One line, whatever the record's name and the words hold. */
static void note(struct part *p, const char *mark, const char *record, const char *words)
{
    BUF_LOCAL line = BUF_INIT;

    buf_printf(&line, "%s%s: %s", mark, record, words);
    if (line.len > MAX_WORDS) {
        line.len = MAX_WORDS - utf8_unfinished_tail(line.data, MAX_WORDS);
        buf_adds(&line, "…");
    }
    for (size_t i = 0; i < line.len; i++)
        if ((unsigned char)line.data[i] < ' ')
            line.data[i] = ' ';
    buf_printf(&p->notes, "    %s\n", buf_str(&line));
    if (line.failed || p->notes.failed)
        score_die("no memory");
}

void score_fail(struct score *s, const char *record, const char *fmt, ...)
{
    struct part *p = current(s);
    BUF_LOCAL words = BUF_INIT;
    va_list ap;

    va_start(ap, fmt);
    buf_vprintf(&words, fmt, ap);
    va_end(ap);
    note(p, "", record, buf_str(&words));
    p->failed++;
}

void score_leave_out(struct score *s, const char *record, const char *why)
{
    struct part *p = current(s);

    note(p, "left out: ", record, why);
    p->left_out++;
}

static void excerpt(struct buf *out, const char *text, size_t len, size_t at)
{
    size_t from = at > EXCERPT ? at - EXCERPT : 0, to = len - at > EXCERPT ? at + EXCERPT : len;

    while (from > 0 && ((unsigned char)text[from] & 0xC0) == 0x80)
        from--;
    while (to < len && ((unsigned char)text[to] & 0xC0) == 0x80)
        to++;
    json_quote(out, text + from, to - from);
}

void score_compare(struct score *s, const char *record, const char *want, size_t want_len, const char *have, size_t have_len)
{
    size_t at = 0, shorter = want_len < have_len ? want_len : have_len;
    BUF_LOCAL wanted = BUF_INIT, had = BUF_INIT;

    while (at < shorter && want[at] == have[at])
        at++;
    if (at == want_len && at == have_len) {
        score_pass(s);
        return;
    }
    excerpt(&wanted, want, want_len, at);
    excerpt(&had, have, have_len, at);
    score_fail(s, record, "differs at byte %zu: %s should be %s", at, buf_str(&had), buf_str(&wanted));
}

size_t score_records(const struct score *s)
{
    size_t n = 0;

    for (size_t i = 0; i < s->n_parts; i++)
        n += s->parts[i].passed + s->parts[i].failed;
    return n;
}

/* ---- printing ---- */

static void print_line(const char *name, size_t name_len, const struct part *p)
{
    printf("%.*s %zu/%zu", (int)name_len, name, p->passed, p->passed + p->failed);
    if (p->left_out)
        printf(", %zu left out", p->left_out);
    printf("\n%s", buf_str(&p->notes));
}

static size_t records(const struct part *p)
{
    return p->passed + p->failed + p->left_out;
}

/* The parts of a name that have records, one below the other, then their sum; a name without parts is its own sum. */
static void print_name(const struct score *s, size_t first, size_t stem_len)
{
    const char *stem = s->parts[first].name;
    struct part sum = { 0 };
    bool has_parts = false;

    for (size_t i = first; i < s->n_parts; i++) {
        const struct part *p = &s->parts[i];

        if (!records(p) || strcspn(p->name, "/") != stem_len || strncmp(p->name, stem, stem_len))
            continue;
        print_line(p->name, strlen(p->name), p);
        has_parts = has_parts || i != first || p->name[stem_len];
        sum.passed += p->passed;
        sum.failed += p->failed;
        sum.left_out += p->left_out;
    }
    if (has_parts && records(&sum))
        print_line(stem, stem_len, &sum);
}

bool score_print(struct score *s)
{
    size_t failed = 0;

    for (size_t i = 0; i < s->n_parts; i++) {
        size_t stem_len = strcspn(s->parts[i].name, "/"), earlier = 0;

        failed += s->parts[i].failed;
        while (earlier < i && (strcspn(s->parts[earlier].name, "/") != stem_len || strncmp(s->parts[earlier].name, s->parts[i].name, stem_len)))
            earlier++;
        if (earlier == i)
            print_name(s, i, stem_len);
    }
    fflush(stdout);
    clear(s);
    return !failed;
}

/* ---- reading ---- */

char *score_file(const char *folder, const char *file, size_t *ret_len)
{
    BUF_LOCAL path = BUF_INIT;
    BUF_LOCAL text = BUF_INIT;
    char *room;
    size_t n;
    FILE *f;

    buf_printf(&path, "%s/%s", folder, file);
    f = fopen(buf_str(&path), "re");
    if (!f && (errno == ENOENT || errno == ENOTDIR))
        return NULL;
    if (!f)
        score_die("%s: %s", buf_str(&path), strerror(errno));
    do {
        room = need(buf_room(&text, 1 << 16));
        n = fread(room, 1, 1 << 16, f);
        buf_grew(&text, n);
    } while (n);
    if (ferror(f))
        score_die("%s: %s", buf_str(&path), strerror(errno));
    fclose(f);
    buf_add(&text, "", 0);
    *ret_len = text.len;
    return need(buf_take(&text));
}

/* The tree, or NULL for half a surrogate pair, which cJSON refuses; base/json refuses U+0000 too, where cJSON ends a string. */
static cJSON *parse(const char *file, size_t number, const char *raw, size_t len)
{
    struct err err = { 0 };
    cJSON *tree = NULL;

    if (json_parse(raw, len, NULL, &tree, &err) < 0) {
        tree = cJSON_ParseWithLength(raw, len);
        if (!tree && !strstr(err_text(&err), "surrogate"))
            score_die("%s: line %zu: %s", file, number, err_text(&err));
    }
    return tree;
}

static bool lines_of(const char *folder, const char *file, void (*fn)(void *user, const cJSON *record, const char *raw, size_t len), void *user)
{
    CLEANUP(mem_free) char *text = NULL;
    size_t len = 0, number = 0;

    text = score_file(folder, file, &len);
    if (!text)
        return false;
    for (const char *p = text, *end = text + len; p < end; ) {
        const char *eol = memchr(p, '\n', (size_t)(end - p));
        size_t n = (size_t)((eol ? eol : end) - p);

        number++;
        if (n) {
            CLEANUP(json_delete) cJSON *record = parse(file, number, p, n);

            fn(user, record, p, n);
        }
        p += n + 1;
    }
    return true;
}

static int is_jsonl(const struct dirent *d)
{
    size_t n = strlen(d->d_name);

    return n > 6 && d->d_name[0] != '.' && !strcmp(d->d_name + n - 6, ".jsonl");
}

bool score_lines(const char *folder, const char *file, void (*fn)(void *user, const cJSON *record, const char *raw, size_t len), void *user)
{
    BUF_LOCAL split = BUF_INIT;
    struct dirent **list;
    size_t stem = strlen(file);
    int n;

    if (lines_of(folder, file, fn, user))
        return true;
    if (stem > 6 && !strcmp(file + stem - 6, ".jsonl"))
        stem -= 6;
    buf_printf(&split, "%s/%.*s", folder, (int)stem, file);
    n = scandir(buf_str(&split), &list, is_jsonl, alphasort);
    if (n < 0)
        return false;
    for (int i = 0; i < n; i++) {
        lines_of(buf_str(&split), list[i]->d_name, fn, user);
        free(list[i]);
    }
    free(list);
    return n > 0;
}

/* ---- one field's string, from the line ---- */

static const char *skip_space(const char *p, const char *end)
{
    while (p < end && strchr(" \t\r\n", *p) && *p)
        p++;
    return p;
}

/* Behind the value at p: of a string, or of anything whose brackets pair up outside strings. The line is JSON. */
static const char *skip_value(const char *p, const char *end)
{
    int depth = 0;

    do {
        if (*p == '"') {
            for (p++; p < end && *p != '"'; p++)
                p += *p == '\\';
        } else if (*p == '{' || *p == '[') {
            depth++;
        } else if (*p == '}' || *p == ']') {
            depth--;
        } else if (depth == 0) {
            while (p + 1 < end && !strchr(",}] \t\r\n", p[1]))
                p++;
        }
        p++;
    } while (depth > 0 && p < end);
    return p < end ? p : end;
}

static uint32_t hex4(const char *p, const char *end)
{
    char digits[5] = { 0 };

    if (end - p < 4)
        return 0;
    memcpy(digits, p, 4);
    return (uint32_t)strtoul(digits, NULL, 16);
}

static void add_character(struct buf *out, uint32_t c)
{
    char bytes[4];

    if (c >= 0xD800 && c <= 0xDFFF)     /* utf8_encode() would replace it */
        buf_add(out, (char[]){ (char)0xED, (char)(0x80 | (c >> 6 & 0x3F)), (char)(0x80 | (c & 0x3F)) }, 3);
    else
        buf_add(out, bytes, (size_t)utf8_encode(c, bytes));
}

static void add_string(struct buf *out, const char *p, const char *end)
{
    for (; p < end && *p != '"'; p++) {
        const char *short_ones = "b\bf\fn\nr\rt\t", *s;

        if (*p != '\\' || p + 1 >= end) {
            buf_addc(out, *p);
        } else if (*++p == 'u') {
            uint32_t c = hex4(p + 1, end), low = end - p > 10 && p[5] == '\\' && p[6] == 'u' ? hex4(p + 7, end) : 0;

            if (c >= 0xD800 && c <= 0xDBFF && low >= 0xDC00 && low <= 0xDFFF) {
                c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
                p += 6;
            }
            add_character(out, c);
            p += 4;
        } else {
            s = strchr(short_ones, *p);
            buf_addc(out, s && *p >= 'a' ? s[1] : *p);
        }
    }
    if (out->failed)
        score_die("no memory");
}

bool score_string(const char *raw, size_t len, const char *key, struct buf *out)
{
    const char *end = raw + len, *p = skip_space(raw, end);
    size_t key_len = strlen(key);

    if (p < end)
        p++;                                            /* the brace */
    for (; p < end && (p = skip_space(p, end)) < end && *p == '"'; p++) {
        const char *name = p + 1;
        bool found;

        p = skip_value(p, end);
        found = (size_t)(p - name) == key_len + 1 && !memcmp(name, key, key_len);
        p = skip_space(p, end);
        p = skip_space(p < end ? p + 1 : end, end);     /* the colon */
        if (p == end)
            break;
        if (found && *p == '"')
            add_string(out, p + 1, end);
        if (found)
            return *p == '"';
        p = skip_space(skip_value(p, end), end);        /* to the comma */
    }
    return false;
}
