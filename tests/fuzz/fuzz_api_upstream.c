/* A worker's stream, cut into reads of a size that the first byte gives. Each
 * event makes a chunk that is JSON, and a line that the scanner of plain text
 * takes says the same to the JSON parser. */
#include "base/json.h"
#include "daemon/api/chat_answer.h"
#include "daemon/api/upstream.h"

#include <stdlib.h>

static struct upstream_scratch scratch;

/* The text as it is, or NULL. */
static cJSON *unescaped(const char *text, size_t len)
{
    BUF_LOCAL quoted = BUF_INIT;
    cJSON *tree = NULL;

    buf_addc(&quoted, '"');
    buf_add(&quoted, text, len);
    buf_addc(&quoted, '"');
    json_parse(buf_str(&quoted), quoted.len, NULL, &tree, NULL);
    return tree;
}

/* A blank in front sends any line to the parser. */
static void parse_both_ways(const char *line, size_t len, const struct upstream_event *scanned)
{
    static struct upstream_scratch other;
    CLEANUP(json_delete) cJSON *one = unescaped(scanned->text, scanned->text_len);
    CLEANUP(json_delete) cJSON *two = NULL;
    struct upstream_event ev;
    BUF_LOCAL copy = BUF_INIT;

    buf_addc(&copy, ' ');
    buf_add(&copy, line, len);
    if (upstream_parse(buf_str(&copy), copy.len, 2, &other, &ev, NULL) == 0) {
        two = unescaped(ev.text, ev.text_len);
        if (ev.kind != UPSTREAM_TEXT || ev.n_tokens != scanned->n_tokens || !cJSON_Compare(one, two, true))
            abort();
    }
    upstream_scratch_fini(&other);
}

static int on_line(const char *line, size_t len, void *user)
{
    const struct chat_head *head = user;
    struct upstream_event ev;
    BUF_LOCAL out = BUF_INIT;

    if (upstream_parse(line, len, 2, &scratch, &ev, NULL) < 0)
        return 0;
    if (ev.kind == UPSTREAM_TEXT && ev.text >= line && ev.text < line + len)
        parse_both_ways(line, len, &ev);
    if (ev.kind == UPSTREAM_TEXT)
        chat_chunk_text(head, 0, ev.text, ev.text_len, ev.logprobs, &out);
    else if (ev.kind == UPSTREAM_FINISH)
        chat_chunk_finish(head, 0, ev.finish_reason, &out);
    else if (ev.kind == UPSTREAM_ERROR)
        chat_event_error(&ev.error, &out);
    if (out.len && json_check(out.data + 6, out.len - 8, NULL, NULL) < 0)     /* "data: ", "\n\n" */
        abort();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct upstream_lines lines = { 0 };
    struct chat_head head;
    size_t step = size ? data[0] % 64 + 1u : 1;

    chat_head_init(&head, "id", "m", 1, false);
    for (size_t i = 1; i < size; i += step)
        if (upstream_lines_feed(&lines, '\n', (const char *)data + i, size - i < step ? size - i : step, on_line,
                                &head) != 0)
            break;
    upstream_lines_fini(&lines);
    upstream_scratch_fini(&scratch);
    chat_head_fini(&head);
    return 0;
}
