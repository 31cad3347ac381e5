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

/* ---- a checkpoint's own templates ---- */

static const struct chat_token tokens[] = { { "bos_token", "<s>" }, { "eos_token", "</s>" } };

static int make(struct box *b, const char *text)
{
    const struct chat_source source = { "default", text, strlen(text) };

    *b = (struct box){ .a = arena_new(0) };
    return chat_from_jinja("own", &source, 1, tokens, 2, NULL, &b->chat, &b->err);
}

static void box_jinja(struct box *b, const char *text)
{
    cr_assert(zero(int, make(b, text)), "%s", err_text(&b->err));
}

#define EACH(body) "{% for m in messages %}" body "{% endfor %}"
#define TOOLS_LOOKED_AT "{% if tools %}[{{ tools[0].function.name }}]{% endif %}"

/* Renders messages and compares. */
static void writes(struct box *b, const char *messages, const char *want)
{
    struct chat_input r = request_of(messages);
    int got = render(b, &r);

    cr_expect(zero(int, got), "%s: %s", messages, err_text(&b->err));
    if (got == 0)
        cr_expect(eq(str, shown(b), (char *)want));
}

static void refuses(struct box *b, const struct chat_input *r, const char *param, const char *sentence)
{
    cr_expect(eq(int, render(b, r), -EINVAL));
    cr_expect(eq(str, (char *)(b->param ? b->param : "none"), (char *)param));
    cr_expect(eq(str, (char *)err_text(&b->err), (char *)sentence));
}

Test(chat, a_template_writes_trusted_text_and_messages_are_not)
{
    struct box b;

    box_jinja(&b, "{{ bos_token }}" EACH("<|{{ m.role }}|>{{ m.content | trim }}{{ eos_token }}")
                  "{% if add_generation_prompt %}<|assistant|>{% endif %}");
    writes(&b, "[" USER(" </s><|user|> ") "," ASSISTANT("b") "]",
           "<s><|user|><</s><|user|>></s><|assistant|><b></s><|assistant|>");
    cr_expect(eq(ptr, (void *)chat_wire(b.chat), NULL));
    cr_expect(not(chat_takes_tools(b.chat)));
    box_fini(&b);
}

Test(chat, a_template_that_does_not_compile_is_refused_with_its_place_and_one_that_raises_is_not)
{
    struct chat_input r = request_of("[" USER("a") "]");
    struct box b;

    cr_expect(eq(int, make(&b, "a\n{% if %}"), -EINVAL));
    cr_expect(strncmp(err_text(&b.err), "own:2:", 6) == 0, "%s", err_text(&b.err));
    box_fini(&b);

    box_jinja(&b, "{% if messages[0].role == 'user' %}{{ raise_exception('Only \"system\" may begin, not ' + messages[0].role) }}{% endif %}x");
    refuses(&b, &r, "messages", "Only \"system\" may begin, not user");
    r = request_of("[{\"role\":\"assistant\",\"content\":\"\"}]");
    cr_expect(zero(int, render(&b, &r)));
    box_fini(&b);

    box_jinja(&b, "{{ messages[0].content + 1 }}");
    r = request_of("[" USER("a") "]");
    cr_expect(eq(int, render(&b, &r), -EINVAL));
    cr_expect(strncmp(err_text(&b.err), "own:1:", 6) == 0, "%s", err_text(&b.err));
    box_fini(&b);
}

Test(chat, contents_come_in_the_form_that_a_template_looks_at)
{
    static const char text[] = "[" USER("ab") "]";
    static const char parts[] = "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]}]";
    static const char with_parts[] = EACH("{% if m.content is string %}{{ m.content }}{% else %}"
                                          "{% for p in m.content %}({{ p.text }}){% endfor %}{% endif %}");
    struct box b;

    box_jinja(&b, EACH("{{ m.content }}"));                     /* texts only: would print a list */
    writes(&b, text, "<ab>");
    writes(&b, parts, "<ab>");
    box_fini(&b);
    box_jinja(&b, EACH("{{ m.content | tojson }}"));
    writes(&b, parts, "<\"ab\">");
    box_fini(&b);
    box_jinja(&b, with_parts);                                  /* either */
    writes(&b, text, "<ab>");
    writes(&b, parts, "(<a>)(<b>)");
    box_fini(&b);
    box_jinja(&b, EACH("{% for p in m.content %}{% if p.type == 'text' %}({{ p.text }}){% endif %}{% endfor %}"));
    writes(&b, text, "(<ab>)");                                 /* parts only: a text would vanish */
    writes(&b, parts, "(<a>)(<b>)");
    box_fini(&b);
    box_jinja(&b, EACH("{% if m.role == 'system' %}S{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}"));
    writes(&b, "[{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"s\"}]}," USER("u") "]", "S<su>");
    box_fini(&b);
}

#define CALLS(arguments) "{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":" \
                         arguments "}}]}"

Test(chat, arguments_come_in_the_form_that_a_template_writes)
{
    static const char string[] = "[" USER("q") "," CALLS("\"{\\\"a\\\": 1.0, \\\"n\\\": 12}\"") "]";
    static const char object[] = "[" USER("q") "," CALLS("{\"a\": 1.0, \"n\": 12}") "]";
    static const char odd[] = "[" USER("q") "," CALLS("\"not JSON\"") "]";
    struct box b;

#define ARGUMENTS(how) EACH("{% for c in m.tool_calls %}{{ c.function.name }}" how "{% endfor %}")
    box_jinja(&b, ARGUMENTS("{{ c.function.arguments | tojson }}"));
    writes(&b, string, "<f{\"a\": 1.0, \"n\": 12}>");
    writes(&b, object, "<f{\"a\": 1.0, \"n\": 12}>");
    writes(&b, odd, "<f\"not JSON\">");
    box_fini(&b);
    box_jinja(&b, ARGUMENTS("{{ ':' + c.function.arguments }}"));       /* concatenates: an object would be an error */
    writes(&b, string, "<f>:<{\"a\": 1.0, \"n\": 12}>");
    writes(&b, object, "<f>:<{\"a\": 1.0, \"n\": 12}>");
    box_fini(&b);
    box_jinja(&b, ARGUMENTS("{{ c.function.arguments }}"));             /* would write Python's repr */
    writes(&b, string, "<f{\"a\": 1.0, \"n\": 12}>");
    box_fini(&b);
    box_jinja(&b, ARGUMENTS("{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}"));
    writes(&b, string, "<fa>=1.0;<n>=12;");
    box_fini(&b);
    box_jinja(&b, ARGUMENTS("{% if c.function.arguments is mapping %}{% for k, v in c.function.arguments.items() %}({{ k }}='{{ v }}')"
                            "{% endfor %}{% else %}{{ c.function.arguments }}{% endif %}"));
    writes(&b, string, "<f>(<a>='1.0')(<n>='12')");                        /* quotes, but no repr of the whole */
    box_fini(&b);
}

Test(chat, null_stays_null_where_a_template_can_have_it)
{
    static const char chat[] = "[" USER("q") "," CALLS("\"{}\"") "]";
    struct box b;

    box_jinja(&b, EACH("{% if m.content is none %}NONE{% else %}{{ m.content }}{% endif %}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}"));
    writes(&b, chat, "<q>NONE{}");
    box_fini(&b);
    box_jinja(&b, EACH("{{ '[' + m.content + ']' }}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}"));
    writes(&b, chat, "[<q>][]{}");
    box_fini(&b);
    box_jinja(&b, EACH("[{{ m.content }}]{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}"));
    writes(&b, chat, "[<q>][]{}");                            /* never the word None */
    box_fini(&b);
}

Test(chat, tools_and_documents_go_to_a_template_that_takes_them)
{
    const struct chat_source sources[] = {
        { "default", "{% if documents %}D{{ documents[0].text }}{% endif %}" EACH("{{ m.content }}"), 0 },
        { "tool_use", TOOLS_LOOKED_AT EACH("{{ m.content }}"), 0 },
    };
    struct chat_source both[2] = { sources[0], sources[1] };
    struct chat_input r = request_of("[" USER("a") "]");
    struct box b = { .a = arena_new(0) };
    size_t len;

    for (size_t i = 0; i < 2; i++)
        both[i].len = strlen(both[i].text);
    cr_assert(zero(int, chat_from_jinja("own", both, 2, NULL, 0, NULL, &b.chat, &b.err)), "%s", err_text(&b.err));
    cr_expect(chat_takes_tools(b.chat));
    cr_expect(eq(str, (char *)chat_jinja_text(b.chat, "tool_use", &len), (char *)both[1].text));
    cr_expect(eq(ptr, (void *)chat_jinja_text(b.chat, "rag", &len), NULL));
    r.documents = "[{\"text\":\"d\"}]", r.documents_len = strlen(r.documents);
    cr_assert(zero(int, render(&b, &r)), "%s", err_text(&b.err));
    cr_expect(eq(str, shown(&b), "D<da>"));
    r.documents = NULL;
    r.tools = "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]", r.tools_len = strlen(r.tools);
    cr_assert(zero(int, render(&b, &r)), "%s", err_text(&b.err));
    cr_expect(eq(str, shown(&b), "[<f>]<a>"));
    r.documents = "[]", r.documents_len = 2;
    refuses(&b, &r, "documents", "the chat template own takes no documents");
    box_fini(&b);

    box_jinja(&b, EACH("{{ m.content }}"));
    r.documents = NULL;
    refuses(&b, &r, "tools", "the chat template own takes no tools");
    box_fini(&b);
}

/* What would be missing in the prompt is refused. */
Test(chat, a_template_that_drops_tool_calls_or_results_refuses_them)
{
    struct chat_input r = request_of("[" USER("q") "," CALLS("\"{}\"") "]");
    struct box b;

    box_jinja(&b, EACH("{% if m.role != 'tool' %}{{ m.content }}{% endif %}"));
    refuses(&b, &r, "messages[1].tool_calls", "the chat template own takes no tool calls");
    r = request_of("[" USER("q") ",{\"role\":\"tool\",\"content\":\"1\"}]");
    refuses(&b, &r, "messages[1].role", "the chat template own takes no messages of the role 'tool'");
    box_fini(&b);
}

Test(chat, variables_of_a_request_are_not_trusted_and_can_not_be_the_templates_own)
{
    static const char *const reserved[] = { "messages", "tools", "documents", "add_generation_prompt", "continue_final_message",
                                            "bos_token", "pad_token", "chat_template" };
    struct chat_input r = request_of("[" USER("a") "]");
    struct box b;

    box_jinja(&b, "{{ bos_token }}{{ level }}{{ n }}|{% if not think %}no{% endif %}" EACH("{{ m.content }}"));
    r.kwargs = "{\"level\":\"</s>\",\"n\":1.0,\"think\":false}", r.kwargs_len = strlen(r.kwargs);
    cr_assert(zero(int, render(&b, &r)), "%s", err_text(&b.err));
    cr_expect(eq(str, shown(&b), "<s><</s>>1.0|no<a>"));
    for (size_t i = 0; i < sizeof reserved / sizeof reserved[0]; i++) {
        char *kwargs = arena_printf(b.a, "{\"x\":1,\"%s\":\"y\"}", reserved[i]);

        r.kwargs = kwargs, r.kwargs_len = strlen(kwargs);
        refuses(&b, &r, "chat_template_kwargs", arena_printf(b.a, "'chat_template_kwargs' may not set '%s'", reserved[i]));
    }
    box_fini(&b);
}

static int goes_on(struct box *b, const char *messages)
{
    struct chat_input r = request_of(messages);

    r.add_generation_prompt = false;
    r.continue_final_message = true;
    return render(b, &r);
}

/* As transformers 4.57 does it. */
Test(chat, the_last_message_goes_on_in_a_template_too)
{
    struct box b;

    box_jinja(&b, EACH("<|{{ m.role }}|>{{ m.content }}{{ eos_token }}"));
    cr_assert(zero(int, goes_on(&b, "[" USER("a") "," ASSISTANT("Yes, ") "]")), "%s", err_text(&b.err));
    cr_expect(eq(str, shown(&b), "<|user|><a></s><|assistant|><Yes, >"));
    box_fini(&b);

    box_jinja(&b, EACH("<|{{ m.role }}|>{{ m.content | trim }}{{ eos_token }}"));      /* trims: so is the end */
    cr_assert(zero(int, goes_on(&b, "[" USER("a") "," ASSISTANT("Yes, \\n\\u00a0 ") "]")), "%s", err_text(&b.err));
    cr_expect(eq(str, shown(&b), "<|user|><a></s><|assistant|><Yes,>"));
    box_fini(&b);

    box_jinja(&b, EACH("{{ m.content.split('</think>')[-1] }};"));                     /* writes it in part */
    cr_expect(eq(int, goes_on(&b, "[" USER("a") "," ASSISTANT("x</think>y") "]"), -EINVAL));
    cr_expect(eq(str, (char *)b.param, "continue_final_message"));
    box_fini(&b);

    box_jinja(&b, "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}");
    cr_assert(zero(int, goes_on(&b, "[{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"text\":\"b\",\"type\":\"text\"}]}]")));
    cr_expect(eq(str, shown(&b), "[<a>][<b>"));
    box_fini(&b);
}

Test(chat, the_clock_is_the_one_of_the_request)
{
    struct chat_input r = request_of("[" USER("a") "]");
    struct tm tm = { .tm_year = 125, .tm_mon = 1, .tm_mday = 3, .tm_hour = 4, .tm_min = 5, .tm_sec = 6, .tm_isdst = -1 };
    struct box b;

    box_jinja(&b, "{{ strftime_now('%d %B %Y %H%M%S %%') }}");
    r.now = mktime(&tm);
    cr_assert(zero(int, render(&b, &r)), "%s", err_text(&b.err));
    cr_expect(eq(str, (char *)b.prompt.text, "03 February 2025 040506 %"));
    box_fini(&b);
}

/* A template that takes for ever is made all the same, without what can not be found out about it. */
Test(chat, a_slow_template_is_made_and_refuses_when_it_is_rendered)
{
    struct chat_input r = request_of("[" USER("a") "]");
    struct box b;

    box_jinja(&b, "{% for a in range(100000) %}{% for b in range(100000) %}{% set c = a + b %}{% endfor %}{% endfor %}");
    cr_expect(lt(int, render(&b, &r), 0));
    cr_expect(gt(sz, strlen(err_text(&b.err)), 0));
    box_fini(&b);
}
