#include "adapters/adapters.h"

#include "base/buf.h"
#include "base/err.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static char top[] = "/tmp/fastchat-adapters-XXXXXX";

static void enter(void)
{
    cr_assert_not_null(mkdtemp(top));
    cr_assert(zero(int, chdir(top)));
}

static void leave(void)
{
    char command[128];

    snprintf(command, sizeof command, "rm -r '%s'", top);
    cr_assert(zero(int, system(command)));
}

TestSuite(find, .init = enter, .fini = leave);

static void config(const char *folder, const char *text)
{
    char path[256];
    FILE *f;

    for (const char *p = folder; (p = strchr(p, '/')) != NULL; p++) {
        snprintf(path, sizeof path, "%.*s", (int)(p - folder), folder);
        mkdir(path, 0700);
    }
    mkdir(folder, 0700);
    snprintf(path, sizeof path, "%s/adapter_config.json", folder);
    f = fopen(path, "w");
    cr_assert_not_null(f);
    fputs(text, f);
    fclose(f);
}

static const char *class_of(const char *path) { return adapter_class(adapter_find(path, NULL)); }

Test(find, the_working_directory_does_not_decide_for_a_path_elsewhere)
{
    config("mistral-lora", "{\"base_model_name_or_path\": \"lmsys/vicuna-7b\"}");
    cr_expect(eq(str, (char *)class_of("/srv/mistral-lora"), "MistralAdapter"));
    cr_expect(eq(str, (char *)class_of("store/mistral-lora"), "MistralAdapter"));
    cr_expect(eq(str, (char *)class_of("mistral-lora"), "PeftModelAdapter"));
    cr_expect(eq(str, (char *)class_of("./x/../mistral-lora//"), "PeftModelAdapter"));

    config(".", "{\"base_model_name_or_path\": \"lmsys/vicuna-7b\"}");
    cr_expect(eq(str, (char *)class_of(""), "BaseModelAdapter"));
    cr_expect(eq(str, (char *)class_of("/"), "BaseModelAdapter"));
}

Test(find, dots_are_resolved_before_the_last_component_is_taken)
{
    static const char *const same[] = { "a/vicuna-7b", "vicuna-7b/.", "vicuna-7b/x/..", "/../vicuna-7b", "x/../../vicuna-7b//" };

    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        enum adapter_matched matched;

        cr_expect(eq(str, (char *)adapter_class(adapter_find(same[i], &matched)), "VicunaAdapter"), "%s", same[i]);
        cr_expect(eq(int, matched, ADAPTER_BASENAME), "%s", same[i]);
    }
    cr_expect(eq(str, (char *)class_of("gpt-4/.."), "BaseModelAdapter"));
}

static int template_error(const char *path, struct err *err)
{
    const char *name = NULL;

    return adapter_template(adapter_find(path, NULL), path, &name, err);
}

Test(find, a_base_model_that_is_not_told_is_an_error_in_words)
{
    static const struct { const char *text, *why; } bad[] = {
        { "{", "byte 1" },
        { "[]", "names no base_model_name_or_path" },
        { "{}", "names no base_model_name_or_path" },
        { "{\"base_model_name_or_path\": \"\"}", "names no base_model_name_or_path" },
        { "{\"base_model_name_or_path\": 7}", "must be a string" },
        { "{\"base_model_name_or_path\": \"org/x-peft\"}", "is an adapter itself" },
    };
    struct err err = { 0 };

    cr_expect(eq(int, template_error("some-peft", &err), -EINVAL));
    cr_expect_not_null(strstr(err.text, "some-peft/adapter_config.json: "), "%s", err.text);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        config("lora", bad[i].text);
        err_clear(&err);
        cr_expect(eq(int, template_error("lora", &err), -EINVAL), "%s", bad[i].text);
        cr_expect_not_null(strstr(err.text, bad[i].why), "%s: %s", bad[i].text, err.text);
    }
}

Test(find, bases_that_stand_on_each_other_end)
{
    struct err err = { 0 };

    config("lora", "{\"base_model_name_or_path\": \"lora\"}");
    cr_expect(eq(int, template_error("lora", &err), -ELOOP));
}
