#include "adapters/registry.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

Test(registry, a_later_row_of_a_name_wins)
{
    struct model_info info;

    cr_assert(model_info("mistral-large-2407", &info));
    cr_expect(eq(str, (char *)info.link, "https://mistral.ai/news/mixtral-of-experts/"));
    cr_expect(eq(str, (char *)info.organisation, "Mistral AI"));
}

Test(registry, an_unknown_name_gives_itself)
{
    struct model_info info;

    cr_assert(not(model_info("no-such-model", &info)));
    cr_expect(eq(str, (char *)info.name, "no-such-model"));
    cr_expect(eq(str, (char *)info.link, ""));
    cr_expect(not(model_info("", &info)));
    cr_expect(not(model_info("vicuna-13", &info)), "a part of a name is not the name");
}

Test(registry, every_row_names_an_organisation)
{
    struct model_info info;
    size_t len;

    for (size_t i = 0; model_info_at(i, &len, &info); i++)
        cr_expect(ne(str, (char *)info.organisation, ""), "%.*s", (int)len, model_info_at(i, &len, &info));
}
