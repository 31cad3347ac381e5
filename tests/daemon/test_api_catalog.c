#include "base/err.h"
#include "base/json.h"
#include "daemon/api/api_error.h"
#include "daemon/api/catalog.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <string.h>

static struct catalog *make(const char *models)
{
    CLEANUP(json_delete) cJSON *tree = cJSON_Parse(models);
    struct catalog *c = catalog_new();

    cr_assert(tree != NULL);
    cr_assert(zero(int, catalog_configure(c, tree, NULL)));
    return c;
}

static void table(struct catalog *c, const char *workers)
{
    struct err err = { 0 };
    char line[2048];
    int n = snprintf(line, sizeof line, "{\"version\":1,\"workers\":[%s]}", workers);

    cr_assert(zero(int, catalog_table(c, line, (size_t)n, &err)), "%s", err_text(&err));
}

static void states(struct catalog *c, const char *json)
{
    CLEANUP(json_delete) cJSON *tree = cJSON_Parse(json);

    catalog_states(c, tree);
}

#define MODELS "[{\"name\":\"m\",\"aliases\":[\"gpt\"],\"queue\":2,\"parallel\":1,\"replicas\":2}]"
#define WORKER(name, queue, speed)                                                                 \
    "{\"name\":\"" name "\",\"models\":[\"m\",\"gpt\"],\"unix\":\"/" name "\",\"url\":null,"       \
    "\"native\":true,\"queue_length\":" queue ",\"speed\":" speed ",\"context_length\":2048,"      \
    "\"parallel\":1,\"multimodal\":false}"

Test(api_catalog, names_and_aliases_resolve_and_are_listed)
{
    CLEANUP(catalog_free) struct catalog *c = make(MODELS);
    CLEANUP(mem_free) struct catalog_entry *list = NULL;
    size_t n;

    table(c, WORKER("a", "0", "1") ",{\"name\":\"f\",\"models\":[\"foreign/x\"],\"url\":\"http://h:1\"}");
    cr_assert(zero(int, catalog_list(c, &list, &n)));
    cr_assert(eq(sz, n, 3));
    cr_expect(eq(str, (char *)list[0].id, "foreign/x"));
    cr_expect(eq(str, (char *)list[1].id, "gpt"));
    cr_expect(eq(str, (char *)list[2].id, "m"));
    cr_expect(eq(i64, list[2].context_length, 2048));
    cr_expect(eq(ptr, catalog_find(c, "gpt"), catalog_find(c, "m")));
    cr_expect(catalog_find(c, "foreign/x") != NULL);
    cr_expect(catalog_find(c, "M") == NULL);
    table(c, "");
    cr_expect(catalog_find(c, "foreign/x") == NULL);
    cr_expect(catalog_find(c, "m") != NULL);
}

Test(api_catalog, the_least_loaded_worker_is_picked)
{
    CLEANUP(catalog_free) struct catalog *c = make(MODELS);
    struct model *m = catalog_find(c, "m");
    struct worker *w;
    uint64_t tried[2];

    table(c, WORKER("a", "4", "1") "," WORKER("b", "6", "2"));
    w = catalog_pick(c, m, NULL, 0, 0);
    cr_expect(eq(str, w->name, "b"));           /* 6 / 2 < 4 / 1 */
    for (int i = 0; i < 9; i++)
        catalog_lease_worker(w);                /* 9 / 2 > 4 / 1: the report is old */
    cr_expect(eq(str, catalog_pick(c, m, NULL, 0, 0)->name, "a"));
    tried[0] = catalog_pick(c, m, NULL, 0, 0)->serial;
    cr_expect(eq(ptr, catalog_pick(c, m, tried, 1, 0), w));
    tried[1] = w->serial;
    cr_expect(catalog_pick(c, m, tried, 2, 0) == NULL);
    catalog_pick(c, m, tried + 1, 1, 0)->suspect_until_us = 100;
    cr_expect(eq(ptr, catalog_pick(c, m, NULL, 0, 50), w));
    cr_expect(eq(str, catalog_pick(c, m, NULL, 0, 100)->name, "a"));
    while (w->leases > 1)
        catalog_release_worker(c, w);
    table(c, WORKER("a", "4", "1"));            /* b lives on for its last lease */
    cr_expect(eq(str, w->name, "b"));
    cr_expect(eq(str, catalog_pick(c, m, NULL, 0, 100)->name, "a"));
    catalog_release_worker(c, w);
    cr_expect(eq(sz, catalog_n_workers(c), 1));
}

Test(api_catalog, equals_take_turns)
{
    CLEANUP(catalog_free) struct catalog *c = make(MODELS);
    struct model *m = catalog_find(c, "m");
    int a = 0;

    table(c, WORKER("a", "0", "1") "," WORKER("b", "0", "1"));
    for (int i = 0; i < 10; i++)
        a += catalog_pick(c, m, NULL, 0, 0)->name[0] == 'a';
    cr_expect(eq(int, a, 5));
}

Test(api_catalog, admission_says_why_not)
{
    CLEANUP(catalog_free) struct catalog *c = make(MODELS);
    struct model *m = catalog_find(c, "m");
    struct api_error e = { 0 };

    cr_expect(zero(int, catalog_admit(c, m, 4, &e)));       /* also while it loads */
    table(c, WORKER("a", "0", "1"));
    cr_expect(zero(int, catalog_admit(c, m, 4, &e)));       /* queue 2 + parallel 1 * replicas 2 */
    e = (struct api_error){ 0 };
    cr_expect(ne(int, catalog_admit(c, m, 5, &e), 0));
    cr_expect(e.status == 400 && strcmp(e.param, "n") == 0);
    catalog_lease_model(c, m, 4);
    e = (struct api_error){ 0 };
    cr_expect(ne(int, catalog_admit(c, m, 1, &e), 0));
    cr_expect(e.status == 503 && e.retry_after_s > 0 && strstr(e.message, "full"));
    catalog_release_model(c, m, 1);
    cr_expect(zero(int, catalog_admit(c, m, 1, &e)));
    catalog_release_model(c, m, 3);
}

struct away {
    const char *states;
    bool comes, sleeps;
    const char *says;
};

#define ROW(replica, state, more) "{\"name\":\"m\",\"replica\":" replica ",\"state\":\"" state "\"" more "}"
#define REASON(text) ",\"reason\":\"" text "\""
#define ON_DEMAND ",\"on_demand\":true"

Test(api_catalog, a_model_that_nobody_serves_comes_or_says_why_not)
{
    static const struct away cases[] = {
        { "[]", true, false, "Loading model: 'm' is not ready yet (it is loading)." },
        { "[" ROW("0", "ready", "") "]", true, false, "Loading model: 'm' is not ready yet (it is loading)." },
        { "[" ROW("0", "draining", "") "]", true, false, "Loading model: 'm' is not ready yet (it is draining)." },
        { "[" ROW("0", "failed", REASON("no file")) "," ROW("1", "stopped", "") "]", false, false,
          "The model 'm' has failed: no file" },
        { "[" ROW("0", "stopped", "") "," ROW("1", "failed", REASON("no file")) "]", false, false,
          "The model 'm' has failed: no file" },
        { "[" ROW("0", "failed", REASON("no file")) "," ROW("1", "loading", REASON("ended with exit code 1")) "]", true,
          false, "Loading model: 'm' is not ready yet (it is loading: ended with exit code 1)." },
        { "[" ROW("0", "loading", "") "," ROW("1", "failed", REASON("no file")) "]", true, false,
          "Loading model: 'm' is not ready yet (it is loading)." },
        { "[" ROW("0", "stopped", "") "," ROW("1", "stopped", "") "]", false, false,
          "The model 'm' is not loaded; 'fastchat load m' loads it." },
        { "[" ROW("0", "stopped", ON_DEMAND) "]", true, true, "Loading model: 'm' is not ready yet (it is stopped)." },
        { "[" ROW("0", "loading", ON_DEMAND) "]", true, false, "Loading model: 'm' is not ready yet (it is loading)." },
        { "[" ROW("0", "failed", ON_DEMAND REASON("bad")) "]", false, false, "The model 'm' has failed: bad" },
    };
    CLEANUP(catalog_free) struct catalog *c = make(MODELS);
    struct model *m = catalog_find(c, "m");

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct api_error e = { 0 };

        states(c, cases[i].states);
        cr_expect(eq(int, catalog_comes(m, &e), cases[i].comes), "%s", cases[i].states);
        cr_expect(eq(int, catalog_sleeps(m), cases[i].sleeps), "%s", cases[i].states);
        cr_expect(eq(str, e.message, (char *)cases[i].says));
        cr_expect(e.status == 503 && e.retry_after_s > 0);
    }
    cr_expect(zero(int, catalog_serves(c, m)));
    table(c, WORKER("a", "0", "1") ",{\"name\":\"f\",\"models\":[\"theirs\"],\"url\":\"http://h:1\"}");
    cr_expect(eq(int, catalog_serves(c, m), 1));
    cr_expect(zero(int, catalog_comes(catalog_find(c, "theirs"), &(struct api_error){ 0 })));
}

Test(api_catalog, a_model_on_demand_is_healthy_while_it_is_not_loaded)
{
    CLEANUP(catalog_free) struct catalog *c = make(MODELS);
    CLEANUP(mem_free) struct catalog_entry *list = NULL;
    size_t n;

    states(c, "[" ROW("0", "stopped", ON_DEMAND) "]");
    cr_expect(eq(int, catalog_health(c), CATALOG_OK));
    cr_assert(zero(int, catalog_list(c, &list, &n)));
    cr_expect(eq(str, (char *)list[0].status, "stopped"));
    states(c, "[" ROW("0", "loading", ON_DEMAND) "]");
    cr_expect(eq(int, catalog_health(c), CATALOG_OK));
    states(c, "[" ROW("0", "failed", ON_DEMAND) "]");
    cr_expect(eq(int, catalog_health(c), CATALOG_FAILED));
    states(c, "[" ROW("0", "stopped", "") "]");
    cr_expect(eq(int, catalog_health(c), CATALOG_FAILED));
}

Test(api_catalog, health_is_ok_when_something_can_answer)
{
    CLEANUP(catalog_free) struct catalog *none = make("[]");
    CLEANUP(catalog_free) struct catalog *c = make(MODELS);

    cr_expect(eq(int, catalog_health(none), CATALOG_OK));
    cr_expect(eq(int, catalog_health(c), CATALOG_LOADING));
    states(c, "[{\"name\":\"m\",\"replica\":0,\"state\":\"failed\",\"reason\":\"x\"}]");
    cr_expect(eq(int, catalog_health(c), CATALOG_FAILED));
    table(c, WORKER("a", "0", "1"));
    cr_expect(eq(int, catalog_health(c), CATALOG_OK));
}

Test(api_catalog, a_bad_table_leaves_the_last_one)
{
    static const char *const bad[] = {
        "", "[]", "{}", "{\"workers\":{}}", "{\"workers\":[7]}", "{\"workers\":[{\"name\":\"x\"}]}",
        "{\"workers\":[{\"name\":\"x\",\"unix\":\"/x\",\"models\":[7]}]}",
        "{\"workers\":[{\"name\":\"x\",\"unix\":\"/x\",\"queue_length\":-1}]}",
        "{\"workers\":[{\"name\":\"x\",\"unix\":\"/x\",\"speed\":\"fast\"}]}",
    };
    CLEANUP(catalog_free) struct catalog *c = make(MODELS);

    table(c, WORKER("a", "0", "1"));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct err err = { 0 };

        cr_expect(lt(int, catalog_table(c, bad[i], strlen(bad[i]), &err), 0), "%s", bad[i]);
        cr_expect(err_is_set(&err), "%s", bad[i]);
    }
    cr_expect(eq(sz, catalog_n_workers(c), 1));
    cr_expect(catalog_pick(c, catalog_find(c, "m"), NULL, 0, 0) != NULL);
}

Test(api_catalog, settings_may_change_under_running_requests)
{
    CLEANUP(catalog_free) struct catalog *c = make(MODELS);
    CLEANUP(json_delete) cJSON *fewer = cJSON_Parse("[{\"name\":\"n\"}]");
    CLEANUP(json_delete) cJSON *odd = cJSON_Parse("[{\"name\":\"n\",\"queue\":-1}]");
    struct model *m = catalog_find(c, "m");
    struct err err = { 0 };

    catalog_lease_model(c, m, 1);
    cr_assert(zero(int, catalog_configure(c, fewer, &err)));
    cr_expect(catalog_find(c, "m") == NULL);
    cr_expect(catalog_find(c, "n") != NULL);
    cr_expect(eq(str, m->name, "m"));
    catalog_release_model(c, m, 1);
    cr_expect(lt(int, catalog_configure(c, odd, &err), 0));
    cr_expect(catalog_find(c, "n") != NULL);
}

Test(api_catalog, a_controller_that_starts_anew_takes_nobody_out)
{
    CLEANUP(catalog_free) struct catalog *c = make(MODELS);

    table(c, WORKER("a", "0", "1"));
    catalog_keep_missing(c, true);
    table(c, "");
    cr_expect(eq(sz, catalog_n_workers(c), 1));
    table(c, WORKER("b", "0", "1"));
    cr_expect(eq(sz, catalog_n_workers(c), 2));
    catalog_keep_missing(c, false);
    table(c, WORKER("b", "0", "1"));
    cr_expect(eq(sz, catalog_n_workers(c), 1));
}

static void configure(struct catalog *c, const char *models)
{
    CLEANUP(json_delete) cJSON *tree = cJSON_Parse(models);
    struct err err = { 0 };

    cr_assert(zero(int, catalog_configure(c, tree, &err)), "%s", err_text(&err));
}

static char *names_of(struct catalog *c)
{
    static char text[256];
    CLEANUP(mem_free) struct catalog_entry *list = NULL;
    size_t n, len = 0;

    cr_assert(zero(int, catalog_list(c, &list, &n)));
    text[0] = 0;
    for (size_t i = 0; i < n; i++)
        len += (size_t)snprintf(text + len, sizeof text - len, "%s ", list[i].id);
    return text;
}

#define NAMED(name, models)                                                                        \
    "{\"name\":\"" name "\",\"models\":[" models "],\"unix\":\"/" name "\",\"native\":true}"

/* The api, the workers and the controller hear of it one after the other. */
Test(api_catalog, an_alias_that_goes_to_another_model_never_leads_to_the_wrong_one)
{
    CLEANUP(catalog_free) struct catalog *c = make("[{\"name\":\"a\",\"aliases\":[\"x\"]},{\"name\":\"b\"}]");

    table(c, NAMED("wa", "\"a\",\"x\"") "," NAMED("wb", "\"b\""));
    configure(c, "[{\"name\":\"a\"},{\"name\":\"b\",\"aliases\":[\"x\"]}]");
    cr_expect(eq(str, catalog_find(c, "x")->name, "b"));
    for (int i = 0; i < 4; i++)
        cr_expect(eq(str, catalog_pick(c, catalog_find(c, "x"), NULL, 0, 0)->name, "wb"));
    table(c, NAMED("wa", "\"a\"") "," NAMED("wb", "\"b\",\"x\""));
    cr_expect(eq(str, catalog_find(c, "x")->name, "b"));
    cr_expect(eq(str, names_of(c), "a b x "));
}

Test(api_catalog, a_new_alias_is_listed_once_whoever_hears_of_it_first)
{
    CLEANUP(catalog_free) struct catalog *c = make("[{\"name\":\"a\"}]");

    table(c, NAMED("wa", "\"a\",\"x\""));
    cr_expect(eq(str, names_of(c), "a x "));
    configure(c, "[{\"name\":\"a\",\"aliases\":[\"x\",\"y\"]}]");
    cr_expect(eq(str, names_of(c), "a x y "));
    cr_expect(eq(str, catalog_find(c, "x")->name, "a"));
    table(c, NAMED("wa", "\"a\",\"x\",\"y\""));
    cr_expect(eq(str, names_of(c), "a x y "));
    configure(c, "[{\"name\":\"a\"}]");
    table(c, NAMED("wa", "\"a\""));
    cr_expect(eq(str, names_of(c), "a "));
    cr_expect(catalog_find(c, "x") == NULL);
}

Test(api_catalog, a_model_whose_workers_are_gone_for_good_is_not_waited_for)
{
    CLEANUP(catalog_free) struct catalog *c = make(MODELS);
    struct api_error e = { 0 };

    states(c, "[]");
    cr_expect(catalog_comes(catalog_find(c, "m"), &e), "nobody has spoken of it yet");
    states(c, "[{\"name\":\"m\",\"replica\":0,\"state\":\"loading\"}]");
    cr_expect(catalog_comes(catalog_find(c, "m"), &e));
    states(c, "[]");
    e = (struct api_error){ 0 };
    cr_expect(not(catalog_comes(catalog_find(c, "m"), &e)));
    cr_expect(eq(int, e.status, 503));
}

#define PROCESS(instance) "{\"name\":\"a\",\"models\":[\"m\"],\"unix\":\"/a\",\"native\":true,\"instance\":" instance "}"

Test(api_catalog, another_process_of_the_same_name_is_another_worker)
{
    CLEANUP(catalog_free) struct catalog *c = make(MODELS);
    struct worker *first, *second;
    struct model *m;
    uint64_t tried;

    table(c, PROCESS("7"));
    m = catalog_find(c, "m");
    first = catalog_pick(c, m, NULL, 0, 1);
    cr_assert(first != NULL);
    tried = first->serial;
    catalog_lease_worker(first);
    table(c, PROCESS("7"));
    cr_expect(catalog_pick(c, m, &tried, 1, 1) == NULL);
    table(c, PROCESS("8"));
    second = catalog_pick(c, m, &tried, 1, 1);
    cr_assert(second != NULL && second != first);
    cr_expect(eq(u64, first->serial, tried), "whoever holds the first one still knows which it is");
    catalog_release_worker(c, first);
    cr_expect(eq(sz, catalog_n_workers(c), 1));
}
