#include "cli/answer.h"

#include "base/json.h"

#include <errno.h>
#include <string.h>

void answer_fini(struct answer *a)
{
    buf_fini(&a->rest);
    buf_fini(&a->text);
}

static void add_text(struct answer *a, const char *text, size_t len)
{
    buf_add(&a->text, text, len);
    if (a->show)
        a->show(text, len);
}

/* Cuts `data` into pieces that end in `end` and takes each as long as nothing
 * is wrong. */
static bool cut(struct answer *a, char end, void (*take)(struct answer *a, const char *piece, size_t len),
                const char *data, size_t len)
{
    buf_add(&a->rest, data, len);
    while (!a->finished && !err_is_set(&a->err)) {
        const char *stop = a->rest.len ? memchr(a->rest.data, end, a->rest.len) : NULL;
        size_t n;

        if (!stop)
            break;
        n = (size_t)(stop - a->rest.data);
        take(a, a->rest.data, n);
        buf_drop(&a->rest, n + 1);
    }
    if (a->rest.failed || a->text.failed)
        err_set(&a->err, -E2BIG, "the answer is too long");
    return !a->finished && !err_is_set(&a->err);
}

/* ---- events ---- */

static void take_event(struct answer *a, const char *data, size_t len)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    const cJSON *error, *choices = NULL, *delta = NULL;
    const char *text;

    if (len == 6 && memcmp(data, "[DONE]", 6) == 0) {
        a->finished = true;
        return;
    }
    if (json_parse(data, len, NULL, &tree, &a->err) < 0)
        return;
    a->any = true;
    error = json_find(tree, "error");
    if (error) {
        text = "the answer failed";
        json_get_string(error, "message", &text, NULL);
        err_set(&a->err, -EIO, "%s", text);
        return;
    }
    json_get_array(tree, "choices", &choices, NULL);
    json_get_object(cJSON_GetArrayItem(choices, 0), "delta", &delta, NULL);
    if (json_get_string(delta, "content", &text, NULL) == 0)
        add_text(a, text, strlen(text));
}

static void take_line(struct answer *a, const char *line, size_t len)
{
    size_t head = sizeof "data:" - 1;

    if (len && line[len - 1] == '\r')
        len--;
    if (len <= head || memcmp(line, "data:", head) != 0)
        return;
    head += line[head] == ' ';
    take_event(a, line + head, len - head);
}

bool answer_events(struct answer *a, const char *data, size_t len)
{
    return cut(a, '\n', take_line, data, len);
}

/* ---- frames ---- */

static void take_frame(struct answer *a, const char *frame, size_t len)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    const char *text = "";
    int64_t code = 0;
    size_t n;

    if (len == 0 || json_parse(frame, len, NULL, &tree, &a->err) < 0)
        return;
    a->any = true;
    json_get_string(tree, "text", &text, NULL);
    json_get_int(tree, "error_code", INT32_MIN, INT32_MAX, &code, NULL);
    n = strlen(text);
    if (code != 0)
        err_set(&a->err, -EIO, "%s (error %lld)", text, (long long)code);
    else if (n > a->text.len)
        add_text(a, text + a->text.len, n - a->text.len);
}

bool answer_frames(struct answer *a, const char *data, size_t len)
{
    return cut(a, '\0', take_frame, data, len);
}
