#include "base/err.h"
#include "base/json.h"
#include "conv/conv.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define ROW "{\"roles\":[\"a\",\"b\"],\"sep_style\":\"CHATML\",\"sep\":\"|\"}"

static int add(struct conv_registry *r, const char *name, const char *json, const char *jinja, struct err *err)
{
    CLEANUP(json_delete) cJSON *row = NULL;

    cr_assert(json == NULL || json_parse(json, strlen(json), NULL, &row, NULL) == 0);
    return conv_registry_add(r, name, row, jinja, jinja ? strlen(jinja) : 0, err);
}

static size_t n_names(const struct conv_registry *r)
{
    size_t n = 0;

    while (conv_registry_name(r, n))
        n++;
    return n;
}

Test(registry, templates_are_found_by_name)
{
    CLEANUP(conv_registry_free) struct conv_registry *r = conv_registry_new();
    size_t len;

    cr_expect(eq(sz, n_names(NULL), 104));
    cr_expect(eq(sz, n_names(r), 104));
    cr_expect(eq(str, (char *)conv_registry_name(r, 0), "raw"));
    for (size_t i = 0; i < 104; i++)
        cr_expect(eq(str, (char *)conv_name(conv_find(r, conv_registry_name(r, i))), (char *)conv_registry_name(r, i)));
    cr_expect(eq(ptr, (void *)conv_find(r, "vicuna"), NULL));
    cr_expect(eq(ptr, (void *)conv_find(NULL, ""), NULL));
    cr_expect(eq(ptr, (void *)conv_registry_jinja(r, "raw", &len), NULL));
    cr_expect(eq(str, (char *)conv_style(conv_find(r, "gemma")), "GEMMA"));
    cr_expect(eq(ptr, (void *)conv_style(conv_find(r, "yandexgpt")), NULL));
}

Test(registry, what_is_added_is_found_and_wins)
{
    CLEANUP(conv_registry_free) struct conv_registry *r = conv_registry_new();
    struct err err = { 0 };
    size_t len = 0;

    cr_assert(eq(int, add(r, "own", ROW, NULL, &err), 0), "%s", err.text);
    cr_expect(eq(str, (char *)conv_name(conv_find(r, "own")), "own"));
    cr_expect(eq(str, (char *)conv_style(conv_find(r, "own")), "CHATML"));
    cr_expect(eq(int, add(r, "raw", NULL, "{{ messages }}", &err), CONV_REPLACED));
    cr_expect(eq(ptr, (void *)conv_find(r, "raw"), NULL));
    cr_expect(eq(str, (char *)conv_registry_jinja(r, "raw", &len), "{{ messages }}"));
    cr_expect(eq(sz, len, 14));
    cr_expect(ne(ptr, (void *)conv_find(NULL, "raw"), NULL));
    cr_expect(eq(int, add(r, "own", ROW, "x", &err), CONV_REPLACED));
    cr_expect(eq(str, (char *)conv_registry_jinja(r, "own", &len), "x"));
    cr_expect(ne(ptr, (void *)conv_find(r, "own"), NULL));
    cr_expect(eq(sz, n_names(r), 105));
    cr_expect(eq(str, (char *)conv_registry_name(r, 104), "own"));
}

/* A number in a file is the contract's, whatever fields it has. */
Test(registry, the_name_in_the_text_and_old_numbers_do_not_count)
{
    static const char json[] =
        "{\"name\":\"other\",\"system_template\":\"{system_message}\",\"system_message\":\"SYS\",\"roles\":[\"U\","
        "\"A\"],\"messages\":[],\"offset\":0,\"sep_style\":9,\"sep\":\"|\",\"sep2\":null,\"stop_str\":null,"
        "\"stop_token_ids\":null}";
    CLEANUP(conv_registry_free) struct conv_registry *r = conv_registry_new();

    cr_assert(eq(int, add(r, "own", json, NULL, NULL), 0));
    cr_expect(eq(str, (char *)conv_name(conv_find(r, "own")), "own"));
    cr_expect(eq(str, (char *)conv_style(conv_find(r, "own")), "CHATGLM"));
}

static void refused(struct conv_registry *r, const char *name, const char *json, const char *jinja, const char *words)
{
    struct err err = { 0 };

    cr_expect(lt(int, add(r, name, json, jinja, &err), 0));
    cr_expect(eq(str, err.text, (char *)words));
}

Test(registry, what_is_wrong_changes_nothing)
{
    CLEANUP(conv_registry_free) struct conv_registry *r = conv_registry_new();
    char name[102] = { 0 };
    size_t len;

    memset(name, 'n', sizeof name - 1);
    cr_assert(eq(int, add(r, "own", NULL, "x", NULL), 0));
    refused(r, "own", "[]", NULL, "a conversation template must be an object, but is an array");
    refused(r, "own", "{\"sep_style\":1}", NULL, "'roles' must be a list of two strings");
    refused(r, "own", NULL, "\xFF", "a template is text in UTF-8 without NUL");
    refused(r, "", ROW, NULL, "the name of a template has 1 to 100 bytes");
    refused(r, name, ROW, NULL, "the name of a template has 1 to 100 bytes");
    refused(r, "a b", ROW, NULL, "the name of a template has no space, control character or '/'");
    refused(r, "../a", ROW, NULL, "the name of a template has no space, control character or '/'");
    cr_expect(eq(str, (char *)conv_registry_jinja(r, "own", &len), "x"));
    cr_expect(eq(sz, n_names(r), 105));
}

Test(registry, a_registry_is_full_some_day)
{
    CLEANUP(conv_registry_free) struct conv_registry *r = conv_registry_new();
    char name[16];

    for (int i = 0; i < CONV_MAX_ADDED; i++) {
        snprintf(name, sizeof name, "t%d", i);
        cr_assert(eq(int, add(r, name, NULL, "", NULL), 0));
    }
    refused(r, "one-more", NULL, "", "there are more than 1000 templates");
    cr_expect(eq(int, add(r, "t5", NULL, "", NULL), CONV_REPLACED));
}
