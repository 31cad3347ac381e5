/* JSON from outside. What the check accepts becomes a tree, whatever the limits;
 * what is written of a tree is JSON and, read again, the same. */
#include "base/err.h"
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void get(const cJSON *obj)
{
    const char *text = "";
    const cJSON *tree;
    double number;
    int64_t whole = 7;
    bool flag;

    for (const cJSON *v = cJSON_IsObject(obj) ? obj->child : NULL; v; v = v->next) {
        struct err err = { 0 };

        if (json_get_string(obj, v->string, &text, NULL) == 0 && !text)
            abort();
        json_get_number(obj, v->string, &number, NULL);
        if (json_get_int(obj, v->string, -10, 10, &whole, &err) == 0 ? whole < -10 || whole > 10 : whole != 7)
            abort();
        whole = 7;
        json_get_bool(obj, v->string, &flag, NULL);
        json_get_array(obj, v->string, &tree, NULL);
        json_get_object(obj, v->string, &tree, NULL);
    }
}

static void write_again(const cJSON *tree)
{
    CLEANUP(json_delete) cJSON *again = NULL;
    BUF_LOCAL first = BUF_INIT;
    BUF_LOCAL second = BUF_INIT;
    struct json_writer w = json_writer(&first);

    json_tree(&w, tree);
    if (json_parse(buf_str(&first), first.len, NULL, &again, NULL) < 0)
        abort();
    w = json_writer(&second);
    json_tree(&w, again);
    if (first.len != second.len || memcmp(buf_str(&first), buf_str(&second), first.len) != 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct json_limits tight = { .bytes = 500, .depth = 4, .string_bytes = 20, .values = 20 };
    CLEANUP(json_delete) cJSON *tree = NULL;
    CLEANUP(json_delete) cJSON *bounded = NULL;
    BUF_LOCAL quoted = BUF_INIT;
    struct err err = { 0 };
    int r = json_parse((const char *)data, size, NULL, &tree, &err);

    if (r == 0) {
        get(tree);
        write_again(tree);
    } else if (!err_is_set(&err)) {
        abort();
    }
    if (json_parse((const char *)data, size, &tight, &bounded, NULL) == 0 && r < 0)
        abort();
    json_quote(&quoted, (const char *)data, size);
    if (!memchr(data, 0, size) && json_check(buf_str(&quoted), quoted.len, NULL, NULL) < 0)
        abort();
    return 0;
}
