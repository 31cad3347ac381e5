/* Chats of texts come out of chat.h as transformers writes them, whatever chat.h does to messages: the renders of
 * tests/golden/jinja, and of $FASTCHAT_GOLDEN where that is there (by default beside the source).
 *
 * A template that looks at parts only drops a text there, and has it here; then the golden output does not hold it. */
#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "conv/chat.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

enum { MAX_TOKENS = 32 };

static const char *const cases[] = { "user_gen", "user_nogen", "sys_user_gen", "multi_gen", "trailing_assistant_nogen",
                                     "trailing_assistant_gen", "unicode", "custom_tokens", "whitespace", "many_turns",
                                     "think_true", "think_false", "two_users", "empty_content",
                                     /* as our own are called */
                                     "user", "user_no_prompt", "talk", "talk_system", "system", "two_systems",
                                     "ends_with_assistant", "thinking", "no_thinking", "empty" };

static const struct json_limits limits = { .bytes = SIZE_MAX, .depth = 200, .string_bytes = SIZE_MAX, .values = SIZE_MAX };

struct record {
    cJSON *tree;
    const char *template, *name;
    struct chat_input in;
    struct chat_token tokens[MAX_TOKENS];
    size_t n_tokens;
    struct buf kwargs;
};

static bool in_list(const char *name)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (strcmp(cases[i], name) == 0)
            return true;
    return false;
}

static bool ends_in(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);

    return n > m && strcmp(text + n - m, end) == 0;
}

static void read_variable(struct record *r, struct json_writer *kwargs, const cJSON *v, struct json_slice key, struct json_slice text)
{
    if (strcmp(v->string, "messages") == 0) {
        r->in.messages = text.text;
        r->in.messages_len = text.len;
    } else if (strcmp(v->string, "add_generation_prompt") == 0) {
        r->in.add_generation_prompt = cJSON_IsTrue(v);
    } else if (ends_in(v->string, "_token") && cJSON_IsString(v)) {
        cr_assert(lt(sz, r->n_tokens, MAX_TOKENS));
        r->tokens[r->n_tokens++] = (struct chat_token){ v->string, v->valuestring };
    } else if (!cJSON_IsNull(v)) {
        json_slice(kwargs, key);
        buf_addc(kwargs->out, ':');
        kwargs->comma = false;
        json_slice(kwargs, text);
    }
}

/* False: it is not of a case that is compared here. */
static bool read_record(const char *line, size_t len, struct record *r)
{
    struct json_writer kwargs = json_writer(&r->kwargs);
    struct json_slice context, key, text;
    const cJSON *c;
    struct tm tm = { .tm_year = 125, .tm_mon = 1, .tm_mday = 3, .tm_hour = 4, .tm_min = 5, .tm_sec = 6, .tm_isdst = -1 };

    if (json_parse(line, len, &limits, &r->tree, NULL) < 0)
        return false;
    if (json_get_string(r->tree, "case", &r->name, NULL) != 0 || !in_list(r->name) || !json_find(r->tree, "output") ||
        json_get_string(r->tree, "template", &r->template, NULL) != 0)
        return false;
    r->in.now = mktime(&tm);
    context = json_slice_of(line, len, r->tree, json_find(r->tree, "context"));
    json_open(&kwargs, '{');
    c = json_find(r->tree, "context")->child;
    for (struct json_walk w = json_walk(context.text, context.len); c && json_next(&w, &key, &text); c = c->next)
        read_variable(r, &kwargs, c, key, text);
    json_close(&kwargs, '}');
    r->in.kwargs = buf_str(&r->kwargs);
    r->in.kwargs_len = r->kwargs.len;
    return true;
}

static struct chat_template *load(const char *folder, const struct record *r)
{
    BUF_LOCAL text = BUF_INIT;
    struct chat_template *chat = NULL;
    struct chat_source source = { .name = "default" };
    struct err err = { 0 };
    char path[4096], *room;
    FILE *f;

    snprintf(path, sizeof path, "%s/templates/%s.jinja", folder, r->template);
    f = fopen(path, "r");
    cr_assert(f != NULL, "%s", path);
    for (size_t n = 1; n > 0 && (room = buf_room(&text, 65536)) != NULL; buf_grew(&text, n))
        n = fread(room, 1, 65536, f);
    fclose(f);
    source.text = buf_str(&text);
    source.len = text.len;
    cr_assert(zero(int, chat_from_jinja(r->template, &source, 1, r->tokens, r->n_tokens, NULL, &chat, &err)), "%s", err_text(&err));
    return chat;
}

/* Whether the last text of a person is missing in what transformers writes. */
static bool drops_text(const struct record *r)
{
    const char *output = json_find(r->tree, "output")->valuestring;
    const cJSON *m;

    cJSON_ArrayForEach(m, json_find(json_find(r->tree, "context"), "messages"))
    {
        const cJSON *content = json_find(m, "content");
        char words[32] = "";

        if (cJSON_IsString(content))
            sscanf(content->valuestring, " %31[^ \n\t]", words);
        if (*words && !strstr(output, words))
            return true;
    }
    return false;
}

static void compare(const char *folder, struct record *r)
{
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    CLEANUP(chat_free) struct chat_template *chat = load(folder, r);
    struct chat_prompt prompt;
    const char *param;
    struct err err = { 0 };
    size_t len = 0;

    cr_assert(zero(int, chat_render(chat, &r->in, a, &prompt, &param, &err)), "%s %s: %s", r->template, r->name, err_text(&err));
    for (size_t i = 0; i < prompt.n_spans; i++)
        len += prompt.spans[i].len;
    cr_expect(eq(sz, len, prompt.len));
    if (!drops_text(r))
        cr_expect(eq(str, (char *)prompt.text, json_find(r->tree, "output")->valuestring), "%s %s", r->template, r->name);
}

/* The number of records, or -1: there are none. */
static int compare_all(const char *folder)
{
    char path[4096], *line = NULL;
    size_t cap = 0;
    ssize_t len;
    int n = 0;
    FILE *f;

    snprintf(path, sizeof path, "%s/renders.jsonl", folder);
    f = fopen(path, "r");
    if (!f)
        return -1;
    while ((len = getline(&line, &cap, f)) > 0) {
        struct record r = { 0 };

        if (read_record(line, (size_t)len - (line[len - 1] == '\n'), &r)) {
            compare(folder, &r);
            n++;
        }
        buf_fini(&r.kwargs);
        cJSON_Delete(r.tree);
    }
    free(line);
    fclose(f);
    return n;
}

Test(chat_golden, texts_come_out_as_transformers_writes_them)
{
    const char *source = getenv("FASTCHAT_SOURCE"), *golden = getenv("FASTCHAT_GOLDEN");
    char folder[4096];
    int n;

    snprintf(folder, sizeof folder, "%s/tests/golden/jinja", source ? source : ".");
    n = compare_all(folder);
    cr_expect(gt(int, n, 50), "%s", folder);
    if (golden)
        snprintf(folder, sizeof folder, "%s/jinja", golden);
    else
        snprintf(folder, sizeof folder, "%s/../shared/golden/jinja", source ? source : ".");
    fprintf(stderr, "%d records of our own", n);
    n = compare_all(folder);
    if (n >= 0)
        fprintf(stderr, ", %d of %s\n", n, folder);
    else
        fprintf(stderr, "; there is no %s\n", folder);
}
