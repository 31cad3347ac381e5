#include "base/err.h"
#include "daemon/api/upstream.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <string.h>

static struct upstream_scratch scratch;

static int parse(const char *line, unsigned top, struct upstream_event *ev, struct err *err)
{
    return upstream_parse(line, strlen(line), top, &scratch, ev, err);
}

struct text_row {
    const char *line, *text;
    unsigned n_tokens;
};

/* The first ones are taken by the scanner, the later ones by the parser. */
static const struct text_row texts[] = {
    { "{\"text\":\" Par\",\"tokens\":[3247]}", " Par", 1 },
    { "{\"text\":\"\",\"tokens\":[]}", "", 0 },
    { "{\"text\":\"a\\n\\\"b\\\\\",\"tokens\":[1,22,333]}", "a\\n\\\"b\\\\", 3 },
    { "{\"text\":\"\xC3\xA9\",\"tokens\":[1]}", "\xC3\xA9", 1 },
    { "{\"text\":\"x\"}", "x", 0 },
    { " {\"text\":\"x\",\"tokens\":[1, 2]}", "x", 2 },
    { "{\"text\":\"\\u00e9\",\"tokens\":[1]}", "\xC3\xA9", 1 },
    { "{\"tokens\":[1,2],\"text\":\"a\\\"\"}", "a\\\"", 2 },
    { "{\"text\":\"x\",\"tokens\":[1],\"later\":true}", "x", 1 },
};

Test(api_upstream, text_keeps_its_escapes)
{
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct upstream_event ev;
        char got[64];

        cr_assert(zero(int, parse(texts[i].line, 0, &ev, NULL)), "%s", texts[i].line);
        cr_assert(eq(int, ev.kind, UPSTREAM_TEXT), "%s", texts[i].line);
        snprintf(got, sizeof got, "%.*s", (int)ev.text_len, ev.text);
        cr_expect(eq(str, got, (char *)texts[i].text), "%s", texts[i].line);
        cr_expect(eq(uint, ev.n_tokens, texts[i].n_tokens), "%s", texts[i].line);
    }
    upstream_scratch_fini(&scratch);
}

Test(api_upstream, the_other_lines_are_understood)
{
    struct upstream_event ev;

    cr_assert(zero(int, parse("{\"prompt_tokens\":37}", 0, &ev, NULL)));
    cr_expect(ev.kind == UPSTREAM_ADMITTED && ev.prompt_tokens == 37);
    cr_assert(zero(int, parse("{\"finish_reason\":\"length\",\"stop_reason\":null,\"usage\":"
                              "{\"prompt_tokens\":37,\"completion_tokens\":12},\"timings\":"
                              "{\"queued_ms\":1.5}}", 0, &ev, NULL)));
    cr_expect(ev.kind == UPSTREAM_FINISH && ev.prompt_tokens == 37 && ev.completion_tokens == 12);
    cr_expect(eq(str, (char *)ev.finish_reason, "length"));
    cr_expect(eq(str, (char *)ev.timings, "{\"queued_ms\":1.5}"));
    memset(&ev, 0x55, sizeof ev);
    cr_assert(zero(int, parse("{\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\","
                              "\"code\":\"oom\"}}", 0, &ev, NULL)));
    cr_expect(ev.kind == UPSTREAM_ERROR && ev.error.status == 500 && ev.error.retry_after_s == 0);
    cr_expect(eq(str, ev.error.message, "out of memory"));
    cr_expect(eq(str, ev.error.code, "oom"));
    cr_assert(zero(int, parse("{\"later\":1}", 0, &ev, NULL)));
    cr_expect(eq(int, ev.kind, UPSTREAM_OTHER));
    cr_assert(zero(int, parse("", 0, &ev, NULL)));
    cr_expect(eq(int, ev.kind, UPSTREAM_OTHER));
    upstream_scratch_fini(&scratch);
}

Test(api_upstream, logprobs_take_openais_form_with_as_many_alternatives_as_asked)
{
    static const char line[] =
        "{\"text\":\"hi\",\"tokens\":[5],\"logprobs\":[{\"token\":\"hi\",\"bytes\":[104,105],"
        "\"logprob\":-0.5,\"top\":[{\"token\":\"a\",\"bytes\":[97],\"logprob\":null},"
        "{\"token\":\"b\",\"bytes\":null,\"logprob\":-1e300},{\"token\":\"c\",\"logprob\":-3}]}]}";
    struct upstream_event ev;

    cr_assert(zero(int, parse(line, 2, &ev, NULL)));
    cr_expect(eq(str, (char *)ev.logprobs,
                 "{\"token\":\"hi\",\"logprob\":-0.5,\"bytes\":[104,105],\"top_logprobs\":["
                 "{\"token\":\"a\",\"logprob\":-9999,\"bytes\":[97]},"
                 "{\"token\":\"b\",\"logprob\":-9999,\"bytes\":null}]}"));
    upstream_scratch_fini(&scratch);
}

Test(api_upstream, what_is_no_line_of_a_worker_is_refused)
{
    static const char *const bad[] = {
        "x", "[]", "{\"text\":7}", "{\"text\":\"\xff\",\"tokens\":[1]}", "{\"text\":\"a\",\"tokens\":[1}",
        "{\"text\":\"a\\ud800\",\"tokens\":[1]}", "{\"text\":\"a\nb\",\"tokens\":[1]}",
        "{\"prompt_tokens\":-1}", "{\"prompt_tokens\":\"x\"}", "{\"finish_reason\":\"abort\"}",
        "{\"finish_reason\":7}", "{\"text\":\"a\",\"tokens\":[1],\"logprobs\":[7]}",
        "{\"text\":\"a\",\"tokens\":[1,,2]}", "{\"text\":\"a\",\"tokens\":[1,]}",
        "{\"text\":\"a\\x\",\"tokens\":[1]}", "{\"text\":\"a\",\"tokens\":[1]}}",
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct upstream_event ev;
        struct err err = { 0 };

        cr_expect(lt(int, parse(bad[i], 0, &ev, &err), 0), "%s", bad[i]);
        cr_expect(err_is_set(&err), "%s", bad[i]);
    }
    upstream_scratch_fini(&scratch);
}

struct seen {
    char text[128];
    int stop_at, n;
};

static int collect(const char *line, size_t len, void *user)
{
    struct seen *s = user;

    snprintf(s->text + strlen(s->text), sizeof s->text - strlen(s->text), "<%.*s>", (int)len, line);
    return ++s->n == s->stop_at ? 7 : 0;
}

Test(api_upstream, lines_are_the_same_however_reads_cut_them)
{
    static const char all[] = "one\n\nthree, longer\nfour\nrest";

    for (size_t step = 1; step <= sizeof all; step++) {
        struct upstream_lines l = { 0 };
        struct seen s = { 0 };

        for (size_t i = 0; i < strlen(all); i += step) {
            size_t n = strlen(all) - i < step ? strlen(all) - i : step;

            cr_assert(zero(int, upstream_lines_feed(&l, '\n', all + i, n, collect, &s)));
        }
        cr_expect(eq(str, s.text, "<one><><three, longer><four>"), "step %zu", step);
        cr_expect(eq(str, (char *)buf_str(&l.rest), "rest"));
        upstream_lines_fini(&l);
    }
}

Test(api_upstream, a_reader_may_stop_and_a_line_has_an_end)
{
    struct upstream_lines l = { 0 };
    struct seen s = { .stop_at = 2 };
    char block[4096];
    int r = 0;

    cr_expect(eq(int, upstream_lines_feed(&l, '\n', "a\nb\nc\n", 6, collect, &s), 7));
    cr_expect(eq(str, s.text, "<a><b>"));
    memset(block, 'x', sizeof block);
    for (int i = 0; i < UPSTREAM_LINE / 4096; i++)
        cr_assert(zero(int, upstream_lines_feed(&l, '\n', block, sizeof block, collect, &s)));
    r = upstream_lines_feed(&l, '\n', block, 1, collect, &s);
    cr_expect(lt(int, r, 0));
    upstream_lines_fini(&l);
}
