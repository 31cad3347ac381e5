/* What a script file may not be: one bad file for each reason. */
#include "base/err.h"
#include "gen/script.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct { const char *json, *why; } bad[] = {
    { "[1", "byte 2: unexpected end" },
    { "[]", "a script must be an object, but is an array" },
    { "{\"plays\":[]}", "unknown key 'plays'" },
    { "{\"context_length\":1}", "'context_length' must be between 2 and 100000000, but is 1" },
    { "{\"load_ms\":-1}", "'load_ms' must be between 0 and 86400000, but is -1" },
    { "{\"load_error\":\"x\",\"load_code\":\"y\"}", "'load_code' must be \"oom\" or \"internal\"" },
    { "{\"play\":\"x\"}", "'play' must be an array, but is a string" },
    { "{\"play\":[7]}", "play[0]: a step must be a string or an object, but is a number" },
    { "{\"play\":[\"a\",{}]}", "play[1]: is no step that is known" },
    { "{\"play\":[{\"txt\":\"a\"}]}", "play[0]: is no step that is known" },
    { "{\"play\":[{\"text\":\"a\",\"wait_ms\":1}]}", "play[0]: is more than one step" },
    { "{\"play\":[{\"text\":\"a\",\"bytes\":[1]}]}", "play[0]: is more than one step" },
    { "{\"play\":[{\"wait_ms\":1,\"tokens\":1}]}", "play[0]: unknown key 'tokens'" },
    { "{\"play\":[{\"text\":\"a\",\"tokens\":0}]}", "play[0]: 'tokens' must be between 1 and 1024, but is 0" },
    { "{\"play\":[{\"text\":1}]}", "play[0]: 'text' must be a string, but is a number" },
    { "{\"play\":[{\"bytes\":[256]}]}", "play[0]: 'bytes' must hold integers between 0 and 255" },
    { "{\"play\":[{\"text\":\"a\",\"logprob\":\"x\"}]}", "play[0]: 'logprob' must be a number, but is a string" },
    { "{\"play\":[{\"text\":\"a\",\"top\":[{}]}]}", "play[0]: top[0] has no 'text'" },
    { "{\"play\":[{\"text\":\"a\",\"top\":[1]}]}", "play[0]: 'top' must hold objects, but holds a number" },
    { "{\"play\":[{\"wait_ms\":86400001}]}", "play[0]: 'wait_ms' must be between 0 and 86400000, but is 86400001" },
    { "{\"play\":[{\"repeat\":0,\"play\":[]}]}", "play[0]: 'repeat' must be between 1 and 1000000, but is 0" },
    { "{\"play\":[{\"repeat\":2}]}", "play[0]: 'repeat' needs a 'play'" },
    { "{\"play\":[{\"repeat\":1000000,\"play\":[{\"repeat\":1000000,\"play\":[\"a\"]}]}]}",
      "play[0]: the play is longer than 10000000 steps" },
    { "{\"play\":[{\"repeat\":1,\"play\":[{\"fail\":1}]}]}", "play[0].play[0]: 'fail' must be a string, but is a number" },
    { "{\"play\":[{\"fail\":\"x\",\"code\":\"y\"}]}", "play[0]: 'code' must be \"oom\" or \"internal\"" },
    { "{\"play\":[{\"hang\":false}]}", "play[0]: 'hang' must be true" },
    { "{\"play\":[{\"exit\":256}]}", "play[0]: 'exit' must be between 0 and 255, but is 256" },
    { "{\"play\":[{\"signal\":0}]}", "play[0]: 'signal' must be between 1 and 64, but is 0" },
    { "{\"play\":[{\"finish\":\"abort\"}]}", "play[0]: 'finish' must be \"stop\" or \"length\"" },
    { "{\"play\":[{\"usage\":{\"total\":1}}]}", "play[0]: unknown key 'total'" },
    { "{\"rules\":[1]}", "rules[0]: must be an object, but is a number" },
    { "{\"rules\":[{\"play\":[]}]}", "rules[0]: has no 'match'" },
    { "{\"rules\":[{\"match\":\"x\"}]}", "rules[0]: 'play' must be an array, but is absent" },
    { "{\"rules\":[{\"match\":\"x\",\"play\":[\"a\",1]}]}",
      "rules[0].play[1]: a step must be a string or an object, but is a number" },
};

Test(script, each_fault_is_refused_with_its_place)
{
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct script *s = NULL;
        struct err err = { 0 };
        char want[300];

        snprintf(want, sizeof want, "x.json: %s", bad[i].why);
        cr_expect(eq(int, script_parse("x.json", bad[i].json, strlen(bad[i].json), &s, &err), -EINVAL),
                  "%s", bad[i].json);
        cr_expect(eq(str, (char *)err_text(&err), want));
        script_close(s);
    }
}

Test(script, repeats_nest_eight_deep_and_no_deeper)
{
    char json[1024];
    struct script *s = NULL;

    for (int depth = 8; depth <= 9; depth++) {
        int n = snprintf(json, sizeof json, "{\"play\":[");

        for (int i = 0; i < depth; i++)
            n += snprintf(json + n, sizeof json - (size_t)n, "{\"repeat\":1,\"play\":[");
        n += snprintf(json + n, sizeof json - (size_t)n, "\"a\"");
        for (int i = 0; i < depth; i++)
            n += snprintf(json + n, sizeof json - (size_t)n, "]}");
        n += snprintf(json + n, sizeof json - (size_t)n, "]}");
        cr_expect(eq(int, script_parse("x", json, (size_t)n, &s, NULL), depth == 8 ? 0 : -EINVAL));
    }
    script_close(s);
}

Test(script, the_same_text_is_the_same_token_and_a_byte_is_itself)
{
    static const char json[] = "{\"play\":[\"ab\",\"c\",\"ab\",{\"bytes\":[200]}]}";
    struct script *s = NULL;
    const struct script_play *p;
    size_t len;

    cr_assert(zero(int, script_parse("x", json, sizeof json - 1, &s, NULL)));
    p = script_choose(s, "", 0);
    cr_assert(eq(sz, p->n, 4));
    cr_expect(eq(i32, p->steps[0].tokens.list[0].id, SCRIPT_TEXTS));
    cr_expect(eq(i32, p->steps[1].tokens.list[0].id, 'c'));
    cr_expect(eq(i32, p->steps[2].tokens.list[0].id, SCRIPT_TEXTS));
    cr_expect(eq(i32, p->steps[3].tokens.list[0].id, 200));
    cr_expect(eq(str, (char *)script_token_text(s, SCRIPT_TEXTS, &len), "ab"));
    cr_expect(eq(str, (char *)script_token_text(s, SCRIPT_END, &len), ""));
    cr_expect(eq(str, (char *)script_token_text(s, -1, &len), ""));
    cr_expect(eq(u32, script_vocab(s), SCRIPT_TEXTS + 1));
    script_close(s);
}

Test(script, a_file_that_is_not_there_or_no_file_is_named)
{
    struct script *s = NULL;
    struct err err = { 0 };

    cr_expect(eq(int, script_open("/nonexistent/x.json", &s, &err), -ENOENT));
    cr_expect(eq(str, (char *)err_text(&err), "/nonexistent/x.json: can not be opened: No such file or directory"));
    err_clear(&err);
    cr_expect(eq(int, script_open("/", &s, &err), -EINVAL));
    cr_expect(eq(str, (char *)err_text(&err), "/: is no regular file"));
}
