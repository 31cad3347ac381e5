#include "adapters/adapters.h"

#include "adapters/rule.h"

/* The class goes before the path, and that before PEFT. The module's path counts as the class, folders of remote code included. */
const char *adapter_loop(const char *model_class, const char *path, bool share)
{
    static const struct { const char *rule, *loop; } by_class[] = {
        { "chatglm", "chatglm" },
        { "rwforcausallm", "falcon" },
        { "codet5p", "codet5p" },
        { "exllama", "exllama" },
        { "xft", "xft" },
        { "yuan", "yuan2" },
    };
    const struct rule_subject class = { model_class, NULL }, where = { path, NULL };

    for (size_t i = 0; i < sizeof by_class / sizeof by_class[0]; i++)
        if (rule_holds(by_class[i].rule, &class))
            return by_class[i].loop;
    if (rule_holds("consistency-llm", &where))
        return "cllm";
    return share && rule_holds("peft", &class) ? "peft" : NULL;
}
