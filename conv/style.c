/* The separator styles of the contract's appendix A.1, each a row of patterns (template.h says
 * how to read them).
 */
#include "conv/template.h"

#define SAME(x) { x, x }

static const struct style styles[CONV_N_STYLES] = {
    [CONV_ADD_COLON_SINGLE] = { "ADD_COLON_SINGLE", SYSTEM_ALWAYS, .system = "{S}{s}",
        .turn = SAME("{r}: {t}{s}"), .open = SAME("{r}:") },
    [CONV_ADD_COLON_TWO] = { "ADD_COLON_TWO", SYSTEM_ALWAYS, .system = "{S}{s}",
        .turn = { "{r}: {t}{s}", "{r}: {t}{z}" }, .open = SAME("{r}:") },
    [CONV_ADD_COLON_SPACE_SINGLE] = { "ADD_COLON_SPACE_SINGLE", SYSTEM_ALWAYS, .system = "{S}{s}",
        .turn = SAME("{r}: {t}{s}"), .open = SAME("{r}: ") },
    [CONV_NO_COLON_SINGLE] = { "NO_COLON_SINGLE", SYSTEM_ALWAYS, .system = "{S}",
        .turn = SAME("{r}{t}{s}"), .open = SAME("{r}") },
    [CONV_NO_COLON_TWO] = { "NO_COLON_TWO", SYSTEM_ALWAYS, .system = "{S}",
        .turn = { "{r}{t}{s}", "{r}{t}{z}" }, .open = SAME("{r}") },
    [CONV_ADD_NEW_LINE_SINGLE] = { "ADD_NEW_LINE_SINGLE", SYSTEM_IF_TEXT, .system = "{S}{s}",
        .turn = SAME("{r}\n{t}{s}"), .open = SAME("{r}\n") },
    [CONV_LLAMA2] = { "LLAMA2", SYSTEM_IF_MESSAGE, .system = "{S}", .no_system = "[INST] ", .first = "{t} ",
        .turn = { "{p} {t}{s}", "{p} {t}{z}" }, .open = SAME("{p}") },
    [CONV_LLAMA3] = { "LLAMA3", SYSTEM_IF_MESSAGE, .begin = "<|begin_of_text|>", .system = "{S}",
        .turn = SAME("<|start_header_id|>{r}<|end_header_id|>\n\n{t}<|eot_id|>"),
        .open = SAME("<|start_header_id|>{r}<|end_header_id|>\n\n"), .strip = true },
    [CONV_CHATGLM] = { "CHATGLM", SYSTEM_IF_TEXT, .system = "{S}{s}",
        .turn = { "[Round {n}]{s}{r}：{t}{s}", "{r}：{t}{s}" }, .open = { "[Round {n}]{s}{r}：", "{r}：" } },
    [CONV_CHATML] = { "CHATML", SYSTEM_IF_TEXT, .system = "{S}{s}\n",
        .turn = SAME("{r}\n{t}{s}\n"), .open = SAME("{r}\n") },
    [CONV_CHATINTERN] = { "CHATINTERN", SYSTEM_ALWAYS, .system = "{S}",
        .turn = { "<s>{r}:{t}{s}\n", "{r}:{t}{z}\n" }, .open = { "<s>{r}:", "{r}:" } },
    [CONV_DOLLY] = { "DOLLY", SYSTEM_ALWAYS, .system = "{S}",
        .turn = { "{r}:\n{t}{s}", "{r}:\n{t}{z}\n\n" }, .open = SAME("{r}:\n") },
    [CONV_RWKV] = { "RWKV", SYSTEM_ALWAYS, .system = "{S}",
        .turn = SAME("{r}: {t}\n\n"), .open = SAME("{r}:"), .one_blank_line = true },
    [CONV_PHOENIX] = { "PHOENIX", SYSTEM_ALWAYS, .system = "{S}",
        .turn = SAME("{r}: <s>{t}</s>"), .open = SAME("{r}: <s>") },
    [CONV_ROBIN] = { "ROBIN", SYSTEM_ALWAYS, .system = "{S}{s}",
        .turn = SAME("{r}:\n{t}{s}"), .open = SAME("{r}:\n") },
    [CONV_FALCON_CHAT] = { "FALCON_CHAT", SYSTEM_IF_MESSAGE, .system = "{S}{s}",
        .turn = SAME("{r}: {t}{s}"), .open = SAME("{r}:") },
    [CONV_CHATGLM3] = { "CHATGLM3", SYSTEM_IF_MESSAGE, .system = "{S}",
        .turn = SAME("{r}\n{t}"), .open = SAME("{r}") },
    [CONV_DEEPSEEK_CHAT] = { "DEEPSEEK_CHAT", SYSTEM_ALWAYS, .system = "{S}",
        .turn = { "{r}: {t}{s}", "{r}: {t}{z}" }, .open = SAME("{r}:") },
    [CONV_METAMATH] = { "METAMATH", SYSTEM_IF_TEXT, .system = "{S}{s}",
        .turn = { "{r}:\n{t}{s}", "{r}: {z}{t}" }, .open = { "{r}:\n", "{r}: {z}" } },
    /* Python's rstrip("<n>") takes the characters, not the word: of a text's own end too. */
    [CONV_YUAN2] = { "YUAN2", SYSTEM_IF_MESSAGE, .system = "{S}{z}",
        .turn = SAME("{t}<n>"), .open = SAME(""), .strip_end = "<n>", .end = "{s}" },
    [CONV_GEMMA] = { "GEMMA", SYSTEM_NEVER, .begin = "<bos>",
        .turn = SAME("<start_of_turn>{r}\n{t}{s}"), .open = SAME("<start_of_turn>{r}\n") },
    [CONV_CLLM] = { "CLLM", SYSTEM_ALWAYS, .system = "{S}{s}",
        .turn = { "{r}: {t}{s}", "{r}: {t}{z}" }, .open = SAME("{r}:"), .last_two = true },
    [CONV_DEFAULT] = { "DEFAULT", SYSTEM_ALWAYS, .system = "{S}\n",
        .turn = SAME("{r}: {t}\n"), .open = SAME("{r}:") },
};

const struct style *conv_style_facts(int64_t number)
{
    return number > CONV_NO_STYLE && number < CONV_N_STYLES ? &styles[number] : NULL;
}
