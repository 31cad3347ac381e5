/* Chats of a request to prompts: what is refused and with which field, which spans are trusted, the last message that goes on. */
#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "conv/chat.h"
#include "conv/conv.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <string.h>

struct box {
    struct arena *a;
    struct chat_template *chat;
    struct chat_prompt prompt;
    const char *param;
    struct err err;
};

static struct chat_input request_of(const char *messages)
{
    return (struct chat_input){ .messages = messages, .messages_len = strlen(messages), .add_generation_prompt = true };
}

static void box_row(struct box *b, const char *name)
{
    *b = (struct box){ .a = arena_new(0) };
    cr_assert(zero(int, chat_from_row(conv_find(NULL, name), &b->chat, &b->err)));
}

static void box_fini(struct box *b)
{
    chat_free(b->chat);
    arena_free(b->a);
}

static int render(struct box *b, const struct chat_input *r)
{
    err_clear(&b->err);
    return chat_render(b->chat, r, b->a, &b->prompt, &b->param, &b->err);
}

/* The spans: trusted ones as they are, others in <>. */
static char *shown(struct box *b)
{
    BUF_LOCAL out = BUF_INIT;

    for (size_t i = 0; i < b->prompt.n_spans; i++) {
        const struct text_span *s = &b->prompt.spans[i];

        if (s->trusted)
            buf_add(&out, s->text, s->len);
        else
            buf_printf(&out, "<%.*s>", (int)s->len, s->text);
    }
    return arena_strdup(b->a, buf_str(&out));
}

#define USER(text) "{\"role\":\"user\",\"content\":\"" text "\"}"
#define ASSISTANT(text) "{\"role\":\"assistant\",\"content\":\"" text "\"}"

Test(chat, a_row_writes_texts_and_joins_their_parts)
{
    struct chat_input r = request_of(
        "[{\"role\":\"system\",\"content\":\"be\"}," USER("a") ",{\"role\":\"assistant\",\"content\":null},"
        "{\"content\":[{\"type\":\"text\",\"text\":\"b \"},{\"text\":\"\\u00e9\",\"type\":\"text\"}],\"role\":\"user\",\"name\":\"x\"}]");
    struct box b;

    box_row(&b, "vicuna_v1.1");
    cr_assert(zero(int, render(&b, &r)), "%s", err_text(&b.err));
    cr_expect(eq(str, shown(&b), "<be> USER: <a> ASSISTANT:USER: <b \xC3\xA9> ASSISTANT:"));
    cr_expect(eq(sz, b.prompt.len, strlen(b.prompt.text)));
    r.add_generation_prompt = false;
    cr_assert(zero(int, render(&b, &r)));
    cr_expect(eq(str, shown(&b), "<be> USER: <a> ASSISTANT:USER: <b \xC3\xA9> "));
    cr_expect(eq(str, (char *)chat_name(b.chat), "vicuna_v1.1"));
    cr_expect(not(chat_takes_tools(b.chat)));
    box_fini(&b);
}

Test(chat, what_can_not_be_written_is_refused_with_its_field)
{
    static const struct { const char *messages, *param, *text; } rows[] = {
        { "{}", "messages", "must be an array, but is an object" },
        { "[", "messages", "byte 1" },
        { "[]", "messages", "must hold 1 to 10000 messages, but holds 0" },
        { "[7]", "messages[0]", "must be an object, but is a number" },
        { "[{}]", "messages[0].role", "must be a string" },
        { "[" USER("a") ",{\"role\":\"user\",\"content\":7}]", "messages[1].content", "a string or a list of parts, but is a number" },
        { "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image_url\",\"image_url\":{\"url\":\"x\"}}]}]",
          "messages[0].content[1]", "has the type 'image_url'" },
        { "[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", "messages[0].content[0]", "text' must be a string" },
        { "[{\"role\":\"user\",\"content\":[7]}]", "messages[0].content[0]", "must be an object" },
        { "[{\"role\":\"assistant\",\"tool_calls\":7}]", "messages[0].tool_calls", "must be an array" },
        { "[{\"role\":\"assistant\",\"tool_calls\":[{}]}]", "messages[0].tool_calls[0]", "an object with a 'name'" },
        { "[" USER("a") ",{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\"}}]}]", "messages[1].tool_calls",
          "vicuna_v1.1 takes no tool calls" },
        { "[{\"role\":\"tool\",\"content\":\"a\"}]", "messages", "has no role 'tool'" },
    };
    struct box b;

    box_row(&b, "vicuna_v1.1");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct chat_input r = request_of(rows[i].messages);

        cr_expect(eq(int, render(&b, &r), -EINVAL), "%s", rows[i].messages);
        cr_expect(eq(str, (char *)b.param, (char *)rows[i].param), "%s", rows[i].messages);
        cr_expect(strstr(err_text(&b.err), rows[i].text) != NULL, "%s: %s", rows[i].messages, err_text(&b.err));
    }
    box_fini(&b);
}

Test(chat, what_stands_beside_the_messages_is_checked_too)
{
    struct chat_input r = request_of("[" USER("a") "]");
    struct box b;

    box_row(&b, "chatml");
    r.tools = "[{\"type\":\"function\"}]", r.tools_len = strlen(r.tools);
    cr_expect(eq(int, render(&b, &r), -EINVAL));
    cr_expect(eq(str, (char *)b.param, "tools"));
    cr_expect(eq(str, (char *)err_text(&b.err), "the chat template chatml takes no tools"));
    r.tools = " {}", r.tools_len = 3;
    cr_expect(eq(int, render(&b, &r), -EINVAL));
    cr_expect(eq(str, (char *)err_text(&b.err), "'tools' must be an array"));
    r.tools = NULL;
    r.documents = "[7]", r.documents_len = 3;
    cr_expect(eq(int, render(&b, &r), -EINVAL));
    cr_expect(eq(str, (char *)err_text(&b.err), "'documents[0]' must be an object"));
    r.documents = NULL;
    r.kwargs = "[]", r.kwargs_len = 2;
    cr_expect(eq(int, render(&b, &r), -EINVAL));
    cr_expect(eq(str, (char *)b.param, "chat_template_kwargs"));
    r.kwargs = "{\"enable_thinking\":false}", r.kwargs_len = strlen(r.kwargs);
    cr_expect(zero(int, render(&b, &r)));
    r.continue_final_message = true;
    cr_expect(eq(int, render(&b, &r), -EINVAL));
    cr_expect(eq(str, (char *)b.param, "continue_final_message"));
    box_fini(&b);
}

Test(chat, a_last_message_goes_on_where_its_text_ends)
{
    struct chat_input r = request_of("[" USER("a CONTINUE_FINAL_MESSAGE_TAG ") "," ASSISTANT(" The answer is ") "]");
    struct box b;

    r.add_generation_prompt = false;
    r.continue_final_message = true;
    box_row(&b, "chatml");
    cr_assert(zero(int, render(&b, &r)), "%s", err_text(&b.err));
    cr_expect(eq(str, shown(&b), "<|im_start|>user\n<a CONTINUE_FINAL_MESSAGE_TAG ><|im_end|>\n<|im_start|>assistant\n< The answer is >"));
    cr_expect(eq(sz, b.prompt.len, strlen(b.prompt.text)));

    r = request_of("[" USER("a") ",{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"x\"},{\"text\":\"y\",\"type\":\"text\"}]}]");
    r.add_generation_prompt = false;
    r.continue_final_message = true;
    cr_assert(zero(int, render(&b, &r)), "%s", err_text(&b.err));
    cr_expect(eq(str, shown(&b), "<|im_start|>user\n<a><|im_end|>\n<|im_start|>assistant\n<xy>"));

    r = request_of("[" USER("a") ",{\"role\":\"assistant\",\"content\":null}]");
    r.add_generation_prompt = false;
    r.continue_final_message = true;
    cr_expect(eq(int, render(&b, &r), -EINVAL));
    cr_expect(eq(str, (char *)err_text(&b.err), "'continue_final_message': the last message has no text"));
    box_fini(&b);
}
