#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "cli/conversation.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

DEFINE_CLEANUP(struct conversation *, conversation_free)

static char dir[] = "/tmp/fastchat-conversation-XXXXXX";

static void make_dir(void)
{
    cr_assert(mkdtemp(dir) != NULL);
}

static void remove_dir(void)
{
    char command[64];

    snprintf(command, sizeof command, "rm -r %s", dir);
    cr_assert(zero(int, system(command)));
}

static int load_text(const char *text, struct conversation **ret, struct err *err)
{
    char path[128], used[256];
    FILE *f;

    snprintf(path, sizeof path, "%s/file.json", dir);
    f = fopen(path, "w");
    cr_assert(f != NULL);
    fputs(text, f);
    fclose(f);
    return conversation_load(path, ret, used, sizeof used, err);
}

TestSuite(conversation, .init = make_dir, .fini = remove_dir);

Test(conversation, a_pair_is_dropped_whole)
{
    CLEANUP(conversation_free) struct conversation *c = conversation_new(NULL);
    CLEANUP(mem_free) char *question = NULL;
    bool user;

    cr_assert(zero(int, conversation_add(c, true, "a")));
    cr_assert(zero(int, conversation_add(c, false, "b")));
    cr_assert(zero(int, conversation_add(c, true, "c")));
    cr_expect(eq(str, (char *)conversation_last(c, &user), "c"));
    question = conversation_drop_pair(c);
    cr_expect(eq(str, question, "c"));
    free(question);
    question = conversation_drop_pair(c);
    cr_expect(eq(str, question, "a"));
    cr_expect(eq(sz, conversation_count(c), 0));
    cr_expect(zero(ptr, conversation_drop_pair(c)));
}

Test(conversation, what_was_saved_is_loaded)
{
    CLEANUP(conversation_free) struct conversation *c = conversation_new("be kind");
    CLEANUP(conversation_free) struct conversation *again = NULL;
    BUF_LOCAL out = BUF_INIT;
    struct json_writer w = json_writer(&out);
    char name[128], used[256];

    for (int i = 0; i < 40; i++)
        cr_assert(zero(int, conversation_add(c, i % 2 == 0, "\"line\"\n\xc3\xa9")));
    snprintf(name, sizeof name, "%s/x.y", dir);
    cr_assert(zero(int, conversation_save(c, name, used, sizeof used, NULL)));
    cr_expect(eq(str, used, name));
    cr_assert(zero(int, conversation_load(name, &again, used, sizeof used, NULL)));
    cr_expect(eq(sz, conversation_count(again), 40));
    while (conversation_count(again) > 1)
        conversation_drop(again);
    conversation_write(again, &w);
    cr_expect(eq(str, (char *)buf_str(&out),
                 "[{\"role\":\"system\",\"content\":\"be kind\"},"
                 "{\"role\":\"user\",\"content\":\"\\\"line\\\"\\n\xc3\xa9\"}]"));
}

/* A file for each reason to refuse one. */
static const struct {
    const char *text, *reason;
} bad[] = {
    { "", "byte 0" },
    { "{\"roles\":[\"u\",\"a\"],\"messages\":[]", "byte " },
    { "[]", "is no conversation" },
    { "{\"messages\":[]}", "needs 'messages' and two 'roles'" },
    { "{\"roles\":[\"u\"],\"messages\":[]}", "needs 'messages' and two 'roles'" },
    { "{\"roles\":[\"u\",\"a\"]}", "needs 'messages' and two 'roles'" },
    { "{\"roles\":[\"u\",\"a\"],\"messages\":{}}", "'messages' must be an array" },
    { "{\"roles\":[\"u\",\"a\"],\"messages\":[],\"system_message\":1}",
      "'system_message' must be a string" },
    { "{\"roles\":[\"u\",\"a\"],\"messages\":[],\"offset\":-1}", "'offset' must be between" },
    { "{\"roles\":[\"u\",\"a\"],\"messages\":[\"u\"]}", "messages[0] must be [role, text]" },
    { "{\"roles\":[\"u\",\"a\"],\"messages\":[[\"u\",\"x\"],[\"a\",1]]}",
      "messages[1] must be [role, text]" },
    { "{\"roles\":[\"u\",\"a\"],\"messages\":[[\"v\",\"x\"]]}", "who is not in 'roles'" },
};

Test(conversation, a_bad_file_is_refused_with_its_name_and_reason)
{
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct conversation *c = NULL;
        struct err err = { 0 };

        cr_expect(lt(int, load_text(bad[i].text, &c, &err), 0), "%s", bad[i].text);
        cr_expect(zero(ptr, c));
        cr_expect(strstr(err_text(&err), bad[i].reason) != NULL, "%s: %s", bad[i].text,
                  err_text(&err));
        cr_expect(strstr(err_text(&err), "/file.json: ") != NULL, "%s", err_text(&err));
    }
}

Test(conversation, a_folder_or_a_missing_file_is_said_so)
{
    struct conversation *c = NULL;
    struct err err = { 0 };
    char used[256];

    cr_expect(eq(int, conversation_load(dir, &c, used, sizeof used, &err), -EINVAL));
    err_clear(&err);
    cr_expect(eq(int, conversation_load("/nowhere/x", &c, used, sizeof used, &err), -ENOENT));
    cr_expect(eq(str, (char *)err_text(&err), "file not found: /nowhere/x"));
    err_clear(&err);
    c = conversation_new(NULL);
    cr_expect(eq(int, conversation_save(c, "/nowhere/x", used, sizeof used, &err), -ENOENT));
    cr_expect(strstr(err_text(&err), "/nowhere/x.json") != NULL);
    conversation_free(c);
}
