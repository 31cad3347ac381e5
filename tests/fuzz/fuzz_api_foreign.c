/* A foreign worker's answers, a line each: its template, its window, the length of the prompt; then its stream, cut into
 * reads of a size that the first byte gives. What goes on to a client or back to the worker is JSON. */
#include "base/arena.h"
#include "base/json.h"
#include "daemon/api/api_error.h"
#include "daemon/api/chat_answer.h"
#include "daemon/api/chat_request.h"
#include "daemon/api/foreign.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct stream {
    struct foreign f;
    struct upstream_scratch scratch;
    struct chat_head head;
};

static void must_be_json(const char *text, size_t len)
{
    if (json_check(text, len, NULL, NULL) < 0)
        abort();
}

/* "data: …\n\n", any number of them */
static void must_be_events(const struct buf *out)
{
    for (const char *p = buf_str(out), *end; *p; p = end + 2) {
        end = strstr(p, "\n\n");
        if (!end || strncmp(p, "data: ", 6) != 0)
            abort();
        must_be_json(p + 6, (size_t)(end - p) - 6);
    }
}

static int on_frame(const char *frame, size_t len, void *user)
{
    struct stream *s = user;
    struct upstream_event ev;
    BUF_LOCAL out = BUF_INIT;

    if (foreign_parse(&s->f, frame, len, &s->scratch, &ev, NULL) < 0)
        return 1;
    if (ev.text_len)
        chat_chunk_text(&s->head, 0, ev.text, ev.text_len, NULL, &out);
    if (ev.kind == UPSTREAM_FINISH)
        chat_chunk_finish(&s->head, 0, ev.finish_reason, &out);
    if (ev.kind == UPSTREAM_ERROR)
        chat_event_error(&ev.error, &out);
    must_be_events(&out);
    return 0;
}

/* The next line, as a tree if it is one. */
static cJSON *answer(const char **p, const char *end)
{
    const char *stop = memchr(*p, '\n', (size_t)(end - *p));
    cJSON *tree = NULL;

    stop = stop ? stop : end;
    json_parse(*p, (size_t)(stop - *p), NULL, &tree, NULL);
    *p = stop < end ? stop + 1 : end;
    return tree;
}

/* False when the request ends here, with an error that says why. */
static bool prepare(struct stream *s, const struct chat_request *r, const char **p, const char *end)
{
    CLEANUP(json_delete) cJSON *conv = answer(p, end);
    CLEANUP(json_delete) cJSON *window = answer(p, end);
    CLEANUP(json_delete) cJSON *count = answer(p, end);
    struct api_error e = { 0 };
    BUF_LOCAL body = BUF_INIT;

    if (foreign_render(&s->f, r, conv, &e) < 0 || foreign_take_window(&s->f, window, &e) < 0 ||
        foreign_take_count(&s->f, count, &e) < 0) {
        if (!e.status || !e.message[0])
            abort();
        return false;
    }
    foreign_write_question(&s->f, r->model, true, &body);
    must_be_json(buf_str(&body), body.len);
    buf_clear(&body);
    foreign_write(&s->f, r, 0, &body);
    must_be_json(buf_str(&body), body.len);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char body[] = "{\"model\":\"m\",\"stop\":\"x\",\"seed\":1,\"messages\":[{\"role\":\"system\",\"content\":\"s\"},"
                               "{\"role\":\"user\",\"content\":\"hi \\u2028\"}]}";
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    const char *p = (const char *)data, *end = p + size;
    struct upstream_lines frames = { 0 };
    struct stream s = { 0 };
    struct chat_request r;
    struct api_error e = { 0 };
    size_t step = size ? data[0] + 1u : 1;

    if (size == 0 || chat_request_parse(body, sizeof body - 1, a, &r, &e) < 0)
        return 0;
    p++;
    chat_head_init(&s.head, "id", "m", 1, false);
    if (prepare(&s, &r, &p, end))
        for (; p < end; p += step) {
            step = (size_t)(end - p) < step ? (size_t)(end - p) : step;
            if (upstream_lines_feed(&frames, FOREIGN_FRAME_END, p, step, on_frame, &s) != 0)
                break;
        }
    chat_request_fini(&r);
    upstream_lines_fini(&frames);
    upstream_scratch_fini(&s.scratch);
    chat_head_fini(&s.head);
    foreign_fini(&s.f);
    return 0;
}
