/* What a worker of the FastChat contract is asked, and what its frames say. */
#include "base/arena.h"
#include "base/err.h"
#include "base/json.h"
#include "daemon/api/api_error.h"
#include "daemon/api/chat_request.h"
#include "daemon/api/foreign.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

/* Contract 2.6's own example. */
#define VICUNA                                                                                     \
    "{\"conv\":{\"name\":\"vicuna_v1.1\",\"system_template\":\"{system_message}\","                \
    "\"system_message\":\"SYS\",\"system_message_vision\":\"\",\"roles\":[\"USER\",\"ASSISTANT\"]," \
    "\"messages\":[],\"offset\":0,\"sep_style\":2,\"sep\":\" \",\"sep2\":\"</s>\","                \
    "\"stop_str\":\"###\",\"stop_token_ids\":[2],\"max_image_size_mb\":null}}"

static void parse_request(const char *body, struct arena *a, struct chat_request *r)
{
    struct api_error e = { 0 };

    cr_assert(zero(int, chat_request_parse(body, strlen(body), a, r, &e)), "%s", e.message);
}

static int render(struct foreign *f, const char *request, const char *answer, struct api_error *e)
{
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    CLEANUP(json_delete) cJSON *tree = cJSON_Parse(answer);
    struct chat_request r;
    int got;

    parse_request(request, a, &r);
    got = foreign_render(f, &r, tree, e);
    chat_request_fini(&r);
    return got;
}

Test(api_foreign, the_prompt_is_rendered_from_the_workers_template)
{
    static const char request[] =
        "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\","
        "\"content\":\"yo\"},{\"role\":\"user\",\"content\":\"q\"}],\"stop\":\"a\",\"stop_token_ids\":[7],"
        "\"seed\":5,\"temperature\":0.5,\"top_k\":0,\"max_tokens\":1000}";
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    CLEANUP(json_delete) cJSON *conv = cJSON_Parse(VICUNA);
    CLEANUP(json_delete) cJSON *window = cJSON_Parse("{\"context_length\":512}");
    CLEANUP(json_delete) cJSON *count = cJSON_Parse("{\"count\":500,\"error_code\":0}");
    struct foreign f = { 0 };
    struct chat_request r;
    struct api_error e = { 0 };
    BUF_LOCAL out = BUF_INIT;

    parse_request(request, a, &r);
    cr_assert(zero(int, foreign_render(&f, &r, conv, &e)), "%s", e.message);
    cr_expect(eq(str, f.prompt.data, "SYS USER: hi ASSISTANT: yo</s>USER: q ASSISTANT:"));
    cr_assert(zero(int, foreign_take_window(&f, window, &e)));
    cr_assert(zero(int, foreign_take_count(&f, count, &e)));
    foreign_write(&f, &r, 1, &out);
    cr_expect(eq(str, out.data,
                 "{\"model\":\"m\",\"prompt\":\"SYS USER: hi ASSISTANT: yo</s>USER: q ASSISTANT:\","
                 "\"temperature\":0.5,\"top_p\":1,\"top_k\":-1,\"presence_penalty\":0,\"frequency_penalty\":0,\"seed\":6,\"max_new_tokens\":12,\"echo\":false,"
                 "\"logprobs\":null,\"stop\":[\"a\",\"###\"],\"stop_token_ids\":[7,2]}"));
    chat_request_fini(&r);
    foreign_fini(&f);
}

Test(api_foreign, a_request_that_says_little_is_asked_as_from_a_python_api)
{
    /* Contract 12.3. */
    static const char conv[] =
        "{\"conv\":{\"name\":\"vicuna_v1.1\",\"system_template\":\"{system_message}\","
        "\"system_message\":\"SYS\",\"system_message_vision\":\"\",\"roles\":[\"USER\",\"ASSISTANT\"],"
        "\"messages\":[],\"offset\":0,\"sep_style\":2,\"sep\":\" \",\"sep2\":\"</s>\","
        "\"stop_str\":null,\"stop_token_ids\":null,\"max_image_size_mb\":null}}";
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    CLEANUP(json_delete) cJSON *tree = cJSON_Parse(conv);
    struct foreign f = { .window = 100, .n_prompt = 26 };
    struct chat_request r;
    struct api_error e = { 0 };
    BUF_LOCAL out = BUF_INIT;

    parse_request("{\"model\":\"vic-a\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}", a, &r);
    cr_assert(zero(int, foreign_render(&f, &r, tree, &e)), "%s", e.message);
    foreign_write(&f, &r, 0, &out);
    cr_expect(eq(str, out.data,
                 "{\"model\":\"vic-a\",\"prompt\":\"SYS USER: hi ASSISTANT:\",\"temperature\":1,\"top_p\":1,\"top_k\":-1,"
                 "\"presence_penalty\":0,\"frequency_penalty\":0,\"max_new_tokens\":74,\"echo\":false,\"logprobs\":null,"
                 "\"stop\":[],\"stop_token_ids\":null}"));
    chat_request_fini(&r);
    foreign_fini(&f);
}

Test(api_foreign, a_raw_prompt_needs_no_template)
{
    struct foreign f = { 0 };
    struct api_error e = { 0 };

    cr_assert(zero(int, render(&f, "{\"model\":\"m\",\"messages\":\"as it is\"}", VICUNA, &e)));
    cr_expect(eq(str, f.prompt.data, "as it is"));
    cr_expect(eq(str, f.stops.data, "[]"));
    foreign_fini(&f);
}

Test(api_foreign, what_can_not_be_asked_has_a_status)
{
    static const char plain[] = "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}";
    static const struct { const char *request, *answer; int status; } rows[] = {
        { plain, "{}", 502 },
        { plain, "{\"conv\":{\"name\":\"x\",\"sep_style\":2}}", 502 },
        { plain, "{\"conv\":{\"name\":\"x\",\"roles\":[\"a\",\"b\"],\"sep_style\":null}}", 501 },
        { "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"logprobs\":true}", VICUNA, 400 },
        { "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"logit_bias\":{\"5\":1}}", VICUNA, 400 },
        { "{\"model\":\"m\",\"messages\":[{\"role\":\"tool\",\"content\":\"hi\"}]}", VICUNA, 400 },
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct foreign f = { 0 };
        struct api_error e = { 0 };

        cr_expect(ne(int, render(&f, rows[i].request, rows[i].answer, &e), 0), "row %zu", i);
        cr_expect(eq(int, e.status, rows[i].status), "row %zu: %s", i, e.message);
        foreign_fini(&f);
    }
}

Test(api_foreign, a_prompt_that_fills_the_window_is_refused_with_both_numbers)
{
    CLEANUP(json_delete) cJSON *fits = cJSON_Parse("{\"count\":511}");
    CLEANUP(json_delete) cJSON *full = cJSON_Parse("{\"count\":512}");
    CLEANUP(json_delete) cJSON *odd = cJSON_Parse("{\"count\":\"x\"}");
    struct foreign f = { .window = 512 };
    struct api_error e = { 0 };

    cr_expect(zero(int, foreign_take_count(&f, fits, &e)));
    cr_expect(ne(int, foreign_take_count(&f, full, &e), 0));
    cr_expect(eq(int, e.status, 400));
    cr_expect(eq(str, e.code, "context_length_exceeded"));
    cr_expect(eq(str, e.message, "This model's maximum context length is 512 tokens. However, your messages "
                                 "resulted in 512 tokens. Please reduce the length of the messages."));
    e = (struct api_error){ 0 };
    foreign_take_count(&f, odd, &e);
    cr_expect(eq(int, e.status, 502));
    foreign_fini(&f);
}

static void feed(struct foreign *f, const char *frame, struct upstream_scratch *s, struct upstream_event *ev,
                 struct buf *all)
{
    cr_assert(zero(int, foreign_parse(f, frame, strlen(frame), s, ev, NULL)), "%s", frame);
    buf_add(all, ev->text, ev->text_len);
    buf_addc(all, '|');
}

/* The texts, one frame each, and at the end (unless it ends without a reason) the last one once more with "stop". */
static void deltas(const char *const *texts, size_t n, bool reason, bool whole, const char *want)
{
    struct foreign f = { .whole = whole };
    struct upstream_scratch s = { 0 };
    struct upstream_event ev;
    BUF_LOCAL all = BUF_INIT;
    BUF_LOCAL frame = BUF_INIT;

    for (size_t i = 0; i < n; i++) {
        buf_clear(&frame);
        buf_printf(&frame, "{\"text\": \"%s\", \"error_code\": 0, \"finish_reason\": null}", texts[i]);
        feed(&f, frame.data, &s, &ev, &all);
        cr_expect(eq(int, ev.kind, UPSTREAM_TEXT));
    }
    if (reason) {
        buf_clear(&frame);
        buf_printf(&frame, "{\"text\": \"%s\", \"error_code\": 0, \"finish_reason\": \"stop\"}", texts[n - 1]);
        feed(&f, frame.data, &s, &ev, &all);
    } else {
        cr_assert(zero(int, foreign_end(&f, &s, &ev)));
        buf_add(&all, ev.text, ev.text_len);
        buf_addc(&all, '|');
    }
    cr_expect(eq(int, ev.kind, UPSTREAM_FINISH));
    cr_expect(eq(str, (char *)ev.finish_reason, "stop"));
    cr_expect(eq(str, all.data, (char *)want));
    foreign_fini(&f);
    upstream_scratch_fini(&s);
}

#define DELTAS(reason, whole, want, ...)                                                           \
    deltas((const char *const[]){ __VA_ARGS__ }, sizeof((const char *const[]){ __VA_ARGS__ }) / sizeof(char *), \
           reason, whole, want)

Test(api_foreign, cumulative_frames_become_deltas)
{
    /* Contract 12.2. */
    DELTAS(true, false, "|Hel|lo \xE4\xBD\xA0||\xE5\xA5\xBD|", "Hel", "Hello \xE4\xBD\xA0", "Hello \xE4\xBD\xA0\\ufffd",
           "Hello \xE4\xBD\xA0\xE5\xA5\xBD");
}

Test(api_foreign, text_that_is_written_anew_is_sent_once)
{
    /* Contract 12.2 and 4.9. */
    DELTAS(true, false, "|ab|X|||YZ|", "abc", "abX", "abXY", "ab", "abXYZ");
    DELTAS(false, false, "|ab|X|||YZ|", "abc", "abX", "abXY", "ab", "abXYZ");
    /* Two characters that begin with the same byte. */
    DELTAS(true, false, "|a|\xC3\xAF|x|", "a\xC3\xA9", "a\xC3\xAF", "a\xC3\xAFx");
    /* A word that its end joins to the one before. */
    DELTAS(true, false, "|I do||n't| go|", "I do", "I do n", "I don't", "I don't go");
}

Test(api_foreign, what_can_not_be_taken_back_is_not_sent_twice)
{
    DELTAS(true, false, "|abc|| there| \xC3\xA9|t\xC3\xA9|", "abc", "abcd", "xyz there", "xyz there \xC3\xA9", "xyz there \xC3\xA9t\xC3\xA9");
    DELTAS(true, false, "|abc|||", "abc", "abcd", "a");
}

Test(api_foreign, an_answer_that_is_not_streamed_is_the_last_frame)
{
    DELTAS(true, true, "||||xyz|", "abc", "abcd", "abcd", "xyz");
    DELTAS(false, true, "||xy\xEF\xBF\xBD|", "abc", "xy\\ufffd");
}

Test(api_foreign, the_end_of_a_text_is_its_own_even_where_it_is_odd)
{
    DELTAS(true, false, "|na||\xC3\xAFve \\\"x\xEF\xBF\xBD|", "na", "na\\ufffd", "na\xC3\xAFve \\\"x\\ufffd");
    DELTAS(false, false, "||", "");
}

Test(api_foreign, the_numbers_of_a_frame_are_its_workers)
{
    struct foreign f = { 0 };
    struct upstream_scratch s = { 0 };
    struct upstream_event ev;
    BUF_LOCAL all = BUF_INIT;

    feed(&f, "{\"text\": \"a\", \"error_code\": 0, \"usage\": {\"prompt_tokens\": 4, "
             "\"completion_tokens\": 5, \"total_tokens\": 9}}", &s, &ev, &all);
    cr_expect(eq(int, ev.kind, UPSTREAM_TEXT));
    cr_expect(ev.prompt_tokens == 4 && ev.completion_tokens == 5);
    feed(&f, "{\"text\": \"a\", \"error_code\": 0, \"usage\": {}, \"finish_reason\": \"length\"}", &s, &ev, &all);
    cr_expect(ev.prompt_tokens == -1 && ev.completion_tokens == -1);
    cr_expect(eq(int, ev.kind, UPSTREAM_FINISH));
    cr_expect(eq(str, (char *)ev.finish_reason, "length"));
    foreign_fini(&f);
    upstream_scratch_fini(&s);
}

Test(api_foreign, an_error_frame_is_an_error_and_nonsense_is_refused)
{
    static const char *const bad[] = { "x", "{}", "{\"text\":7}", "{\"text\":\"\",\"finish_reason\":\"abort\"}" };
    struct foreign f = { 0 };
    struct upstream_scratch s = { 0 };
    struct upstream_event ev;
    BUF_LOCAL all = BUF_INIT;

    feed(&f, "{\"text\": \"out of memory\", \"error_code\": 50002}", &s, &ev, &all);
    cr_expect(ev.kind == UPSTREAM_ERROR && ev.error.status == 500);
    cr_expect(eq(str, ev.error.message, "out of memory"));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct err err = { 0 };

        cr_expect(lt(int, foreign_parse(&f, bad[i], strlen(bad[i]), &s, &ev, &err), 0), "%s", bad[i]);
        cr_expect(err_is_set(&err), "%s", bad[i]);
    }
    foreign_fini(&f);
    upstream_scratch_fini(&s);
}
