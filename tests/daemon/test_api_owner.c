#include "daemon/api/owner.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

static struct owner of(const char *authorization, const char *x_api_key, const char *cache_salt)
{
    struct owner o;

    owner_of(authorization, x_api_key, cache_salt, &o);
    return o;
}

Test(api_owner, without_a_key_there_is_none)
{
    static const char *const none[] = { NULL, "", "Bearer", "Bearer ", "Basic dTpw" };

    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        cr_expect(eq(str, of(none[i], NULL, NULL).tenant, ""));
        cr_expect(eq(str, of(none[i], NULL, "").salt, ""));
    }
}

Test(api_owner, a_key_is_the_same_in_whichever_header_and_process)
{
    struct owner a = of("Bearer sk-1", NULL, NULL), b = of(NULL, "sk-1", NULL);

    cr_expect(eq(str, a.tenant, b.tenant));
    cr_expect(eq(str, a.salt, b.salt));
    cr_expect(eq(str, of("bearer  sk-1", "other", NULL).salt, a.salt));
    cr_expect(eq(sz, strlen(a.tenant), OWNER_TENANT_HEX));
    cr_expect(eq(sz, strlen(a.salt), OWNER_SALT_HEX));
    cr_expect(eq(str, a.tenant, "7d162b1d7adbc656"));
    cr_expect(eq(str, a.salt, "2bc375c3e898e316e3fde254ee3c720e"));
}

Test(api_owner, keys_and_salts_differ_and_do_not_run_into_each_other)
{
    struct owner a = of("Bearer sk-1", NULL, NULL), b = of("Bearer sk-2", NULL, NULL), c = of("Bearer sk-1", NULL, "x"),
                 d = of("Bearer sk-1x", NULL, NULL), e = of(NULL, NULL, "x");

    cr_expect(ne(str, a.salt, b.salt));
    cr_expect(ne(str, a.tenant, b.tenant));
    cr_expect(ne(str, a.salt, c.salt));
    cr_expect(ne(str, c.salt, d.salt));
    cr_expect(ne(str, c.salt, e.salt));
    cr_expect(eq(str, a.tenant, c.tenant));
    cr_expect(eq(str, e.tenant, ""));
    cr_expect(ne(int, strncmp(a.salt, a.tenant, OWNER_TENANT_HEX), 0));
}
