/* The questions about text: docs/wire.md, part 4. Scripted models have a token a byte, and their special tokens. */
#include "tests/daemon/worker_rig.h"

#include "base/json.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

/* 512 is <s>, 513 </s>, 514 <|im_start|>, 515 <|im_end|>. */
#define SPECIALS                                                                                          \
    "\"special_tokens\":{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\",\"start\":\"<|im_start|>\",\"end\":\"<|im_end|>\"}"
#define SCRIPT(more) "{\"context_length\":64," SPECIALS more ",\"play\":[\"ok\"]}"

struct asked { const char *path, *body, *answer; };

static void expect(struct rig *r, int status, const struct asked *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct reply reply = rig_ask(r, "POST", rows[i].path, rows[i].body);

        cr_expect(eq(int, reply.status, status), "%s: %s", rows[i].body, buf_str(&reply.body));
        cr_expect(strstr(buf_str(&reply.body), rows[i].answer) != NULL, "%s: %s", rows[i].body, buf_str(&reply.body));
        reply_fini(&reply);
    }
}

#define EXPECT(r, status, rows) expect(r, status, rows, sizeof rows / sizeof rows[0])
#define TOKENIZE "/fastchat/tokenize"
#define DETOKENIZE "/fastchat/detokenize"
#define RENDER "/fastchat/render"

Test(worker_text, a_text_has_tokens_and_tokens_a_text)
{
    static const struct asked rows[] = {
        { TOKENIZE, "{\"content\":\"ab\"}", "{\"tokens\":[97,98]}" },
        { TOKENIZE, "{}", "{\"tokens\":[]}" },
        { TOKENIZE, "{\"content\":\"</s>a\"}", "{\"tokens\":[513,97]}" },
        { TOKENIZE, "{\"content\":\"</s>\",\"parse_special\":false}", "{\"tokens\":[60,47,115,62]}" },
        { TOKENIZE, "{\"content\":\"a\",\"add_special\":true}", "{\"tokens\":[512,97]}" },
        { TOKENIZE, "{\"content\":\"<s>a\",\"add_special\":true}", "{\"tokens\":[512,97]}" },
        { TOKENIZE, "{\"content\":[\"a\",515,\"b\"],\"add_special\":true}", "{\"tokens\":[512,97,515,98]}" },
        { TOKENIZE, "{\"content\":\"a\\u00e9</s>\",\"with_pieces\":true,\"model\":\"m\"}",
          "{\"tokens\":[{\"id\":97,\"piece\":\"a\"},{\"id\":195,\"piece\":[195]},{\"id\":169,\"piece\":[169]},"
          "{\"id\":513,\"piece\":\"</s>\"}]}" },
        { DETOKENIZE, "{\"tokens\":[512,97,195,169,515]}", "{\"content\":\"<s>a\xC3\xA9<|im_end|>\"}" },
        { DETOKENIZE, "{\"tokens\":[97,195]}", "{\"content\":\"a\xEF\xBF\xBD\"}" },
        { DETOKENIZE, "{}", "{\"content\":\"\"}" },
    };
    static const struct asked bad[] = {
        { TOKENIZE, "[]", "the body must be an object" },
        { TOKENIZE, "{\"content\":{}}", "'content' must be a string or a list of strings and tokens, but is an object" },
        { TOKENIZE, "{\"content\":[[]]}", "but is an array" },
        { TOKENIZE, "{\"content\":[100000]}", "a token must be between 0 and 516" },
        { TOKENIZE, "{\"content\":[1.5]}", "a token must be between 0 and 516" },
        { TOKENIZE, "{\"content\":\"a\",\"add_special\":1}", "\"param\":\"add_special\"" },
        { DETOKENIZE, "{\"tokens\":[-1]}", "'tokens[0]' must be a token between 0 and 516" },
        { DETOKENIZE, "{\"tokens\":\"a\"}", "\"param\":\"tokens\"" },
    };
    struct rig r;

    rig_ready(&r, SCRIPT(",\"add_bos\":true"), NULL);
    EXPECT(&r, 200, rows);
    EXPECT(&r, 400, bad);
    rig_stop(&r);
}

#define HI "{\"role\":\"user\",\"content\":\"hi\"}"

Test(worker_text, a_chat_has_a_prompt)
{
    static const struct asked rows[] = {
        { RENDER, "{\"messages\":[" HI "]}",
          "{\"prompt\":\"<|im_start|>user\\nhi<|im_end|>\\n<|im_start|>assistant\\n\",\"stop\":[],\"stop_token_ids\":[]}" },
        { RENDER, "{\"messages\":[" HI "],\"add_generation_prompt\":false,\"token_ids\":true}",
          "\"token_ids\":[514,117,115,101,114,10,104,105,515,10]}" },
        { RENDER, "{\"messages\":[" HI ",{\"role\":\"assistant\",\"content\":\"a \"}],\"continue_final_message\":true}",
          "{\"prompt\":\"<|im_start|>user\\nhi<|im_end|>\\n<|im_start|>assistant\\na \"," },
    };
    static const struct asked bad[] = {
        { RENDER, "{}", "'messages' is missing" },
        { RENDER, "{\"messages\":7}", "\"param\":\"messages\"" },
        { RENDER, "{\"messages\":[" HI "],\"tools\":[{}]}", "the chat template chatml takes no tools" },
        { RENDER, "{\"messages\":[" HI "],\"documents\":[{}]}", "the chat template chatml takes no documents" },
    };
    struct rig r;

    rig_ready(&r, SCRIPT(""), NULL);
    EXPECT(&r, 200, rows);
    EXPECT(&r, 400, bad);
    rig_stop(&r);
}

/* What a person writes is text, also when it spells a control token, alone or over the seam of two messages. */
Test(worker_text, no_message_holds_a_control_token)
{
    static const struct asked rows[] = {
        { RENDER, "{\"token_ids\":true,\"add_generation_prompt\":false,\"messages\":[{\"role\":\"user\",\"content\":\"</s>\"}]}",
          "\"token_ids\":[514,117,115,101,114,10,60,47,115,62,515,10]}" },
        { RENDER, "{\"token_ids\":true,\"add_generation_prompt\":false,\"messages\":[{\"role\":\"user\",\"content\":["
                  "{\"type\":\"text\",\"text\":\"</\"},{\"type\":\"text\",\"text\":\"s>\"}]}]}",
          "\"token_ids\":[514,117,115,101,114,10,60,47,115,62,515,10]}" },
    };
    struct rig r;

    rig_ready(&r, SCRIPT(""), NULL);
    EXPECT(&r, 200, rows);
    rig_stop(&r);
}

/* A Python api could only write such a chat wrongly. */
Test(worker_text, a_template_without_a_form_of_the_contract_says_so)
{
    static const struct asked own[] = { { "/worker_get_conv_template", "{}", "has no form of the contract" } };
    static const struct asked row[] = { { "/worker_get_conv_template", "{}", "\"name\":\"vicuna_v1.1\"" } };
    const struct rig_options named = { .model = ",\"template\":\"vicuna_v1.1\"" };
    struct rig r;

    rig_ready(&r, SCRIPT(",\"chat_template\":\"{{ messages[0].content }}\""), NULL);
    EXPECT(&r, 501, own);
    rig_stop(&r);
    rig_ready(&r, SCRIPT(",\"chat_template\":\"{{ messages[0].content }}\""), &named);
    EXPECT(&r, 200, row);
    rig_stop(&r);
}

/* Not so long that the loop would stop for it. */
Test(worker_text, a_template_that_takes_too_many_steps_is_a_400)
{
    static const struct asked rows[] = { { RENDER, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", "\"param\":\"messages\"" } };
    struct rig r;

    rig_ready(&r, SCRIPT(",\"chat_template\":\"{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}\""), NULL);
    EXPECT(&r, 400, rows);
    rig_stop(&r);
}

Test(worker_text, a_model_that_loads_says_so)
{
    static const struct asked rows[] = {
        { TOKENIZE, "{}", "the model is loading" }, { DETOKENIZE, "{}", "the model is loading" }, { RENDER, "{}", "the model is loading" },
    };
    struct rig r;

    rig_start(&r, "{\"load_ms\":600000}", NULL);
    rig_wait_state(&r, "loading");
    EXPECT(&r, 503, rows);
    rig_stop(&r);
}
