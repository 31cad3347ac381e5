/* Chat templates from files of folders and from the configuration. */
#include "config_files.h"

#include "base/json.h"

#include <criterion/new/assert.h>
#include <unistd.h>

TestSuite(config_templates, .init = config_folder_make, .fini = config_folder_remove);

#define DIRS "supervisor = { template_dirs = ( \"a.d\", \"b.d\" ); };\n"
#define ROW "{\"roles\":[\"U\",\"A\"],\"sep_style\":\"ADD_COLON_SINGLE\",\"sep\":\"|\"}"
#define FIELDS "roles = ( \"U\", \"A\" ); sep_style = 1;"

static struct config *load(const char *text)
{
    const char *path = config_write_text("fastchat.conf", text);
    BUF_LOCAL errors = BUF_INIT;
    struct config *c = NULL;

    cr_assert(zero(int, config_load(path, &c, &errors)), "%s", buf_str(&errors));
    return c;
}

/* All templates, a line each: name, row, Jinja text; then the notes. */
static void expect(const struct config *c, const char *wanted)
{
    BUF_LOCAL got = BUF_INIT;

    for (size_t i = 0; i < c->n_templates; i++)
        buf_printf(&got, "%s %s %s\n", c->templates[i].name, c->templates[i].row ? c->templates[i].row : "-",
                   c->templates[i].jinja ? c->templates[i].jinja : "-");
    for (size_t i = 0; i < c->n_notes; i++)
        buf_printf(&got, "%s\n", c->notes[i]);
    config_strip_folder(&got);
    cr_expect(eq(str, (char *)buf_str(&got), (char *)wanted));
}

Test(config_templates, each_file_of_the_folders_is_one_and_the_last_one_wins)
{
    struct config *c;

    config_write_text("a.d/one.json", "{\n  \"roles\": [\"U\", \"A\"],\n  \"sep_style\": \"ADD_COLON_SINGLE\", \"sep\": \"|\" }\n");
    config_write_text("a.d/two.jinja", "{{ messages }}");
    config_write_text("a.d/two.json", ROW);
    config_write_text("a.d/three.jinja", "old");
    config_write_text("a.d/README", "not one");
    config_write_text("a.d/.hidden.json", "not one");
    config_write_text("a.d/.json", "not one");
    config_write_text("b.d/three.jinja", "new");
    config_write_text("b.d/two.jinja", "alone");
    config_write_text("b.d/raw.json", ROW);
    c = load(DIRS);
    expect(c, "one " ROW " -\nraw " ROW " -\nthree - new\ntwo - alone\n"
              "b.d/raw.json: the template \"raw\" takes the place of the built-in one\n"
              "b.d/three.jinja: the template \"three\" takes the place of a.d/three.jinja\n"
              "b.d/two.jinja: the template \"two\" takes the place of a.d/two.json\n");
    config_free(c);
}

Test(config_templates, both_halves_in_one_folder_are_one_template)
{
    struct config *c;

    config_write_text("a.d/two.jinja", "{{ messages }}");
    config_write_text("a.d/two.json", ROW);
    c = load(DIRS);
    cr_assert(eq(sz, c->n_templates, 1));
    cr_expect(eq(str, (char *)c->templates[0].row, ROW));
    cr_expect(eq(str, (char *)c->templates[0].jinja, "{{ messages }}"));
    config_free(c);
}

Test(config_templates, the_list_has_them_in_full_or_by_file)
{
    struct config *c;

    config_write_text("t/x.jinja", "of x");
    config_write_text("t/y.json", ROW);
    config_write_text("a.d/in_full.json", ROW);
    c = load("supervisor = { template_dirs = ( \"a.d\" ); };\n"
             "templates = (\n"
             "  { name = \"in_full\"; system_template = \"<{system_message}>\\n\"; system_message = \"\"; roles = (\"U\\\"\", \"\");\n"
             "    messages = ((\"U\", \"hi\\t\"), (\"A\", \"yo\")); offset = 2; sep_style = 1; sep = \" \"; sep2 = \"#\";\n"
             "    stop_str = [\"a\", \"b\"]; stop_token_ids = (1, 2); max_image_size_mb = 2.5; },\n"
             "  { name = \"other\"; file = \"t/x.jinja\"; }, { file = \"t/y.json\"; },\n"
             "  { name = \"text\"; jinja = \"{{ 1 }}\\n\"; " FIELDS " }, { name = \"bare\"; jinja = \"\"; } );\n");
    expect(c, "bare - \n"
              "in_full {\"system_template\":\"<{system_message}>\\n\",\"system_message\":\"\",\"roles\":[\"U\\\"\",\"\"],"
              "\"messages\":[[\"U\",\"hi\\t\"],[\"A\",\"yo\"]],\"offset\":2,\"sep_style\":1,\"sep\":\" \",\"sep2\":\"#\","
              "\"stop_str\":[\"a\",\"b\"],\"stop_token_ids\":[1,2],\"max_image_size_mb\":2.5} -\n"
              "other - of x\n"
              "text {\"roles\":[\"U\",\"A\"],\"sep_style\":1} {{ 1 }}\n\n"
              "y " ROW " -\n"
              "fastchat.conf:3: the template \"in_full\" takes the place of a.d/in_full.json\n");
    config_free(c);
}

Test(config_templates, the_dump_has_them_again)
{
    BUF_LOCAL first = BUF_INIT;
    BUF_LOCAL second = BUF_INIT;
    struct config *c = load("templates = ( { name = \"t\"; system_template = \"a\\n\\\\\\\"\\x01é{system_message}\"; system_message = \"\";\n"
                            "roles = (\"\", \"\"); messages = (); sep_style = \"CHATML\"; max_image_size_mb = 5.0; stop_token_ids = [7]; },\n"
                            "{ name = \"u\"; jinja = \"x\"; } );\n");

    config_dump(c, &first);
    cr_expect(strstr(buf_str(&first), "system_template = \"a\\n\\\\\\\"\\x01é{system_message}\";    # ") != NULL, "%s", buf_str(&first));
    cr_expect(strstr(buf_str(&first), "messages = ();") != NULL);
    cr_expect(strstr(buf_str(&first), "stop_token_ids = ( 7 );") != NULL);
    for (size_t i = 0; i < c->n_templates; i++)
        buf_printf(&second, "%s %s %s\n", c->templates[i].name, c->templates[i].row ? c->templates[i].row : "-",
                   c->templates[i].jinja ? c->templates[i].jinja : "-");
    config_free(c);
    c = load(buf_str(&first));
    expect(c, buf_str(&second));
    config_free(c);
}

static const struct { const char *text, *errors; } bad[] = {
    { "templates = 5;", "fastchat.conf:1: templates: must be a list of groups, but is an integer\n" },
    { "templates = ( 5 );", "fastchat.conf:1: templates[0]: must be a group, but is an integer\n" },
    { "templates = ( { " FIELDS " } );", "fastchat.conf:1: templates[0]: \"name\" is missing\n" },
    { "templates = ( { name = 5; " FIELDS " } );", "fastchat.conf:1: templates[0].name: must be a string, but is an integer\n" },
    { "templates = ( { name = \"a b\"; " FIELDS " } );",
      "fastchat.conf:1: templates[0]: the name of a template has no space, control character or '/'\n" },
    { "templates = ( { name = \"x\"; rols = 5; } );",
      "fastchat.conf:1: templates[0].rols: unknown key; did you mean \"roles\"?\n"
      "fastchat.conf:1: templates[0].sep_style: is missing\n" },
    { "templates = ( { name = \"x\"; sep_style = 1; } );",
      "fastchat.conf:1: templates[0].roles: must be a list of two strings\n" },
    { "templates = ( { name = \"x\"; sep_style = 1;\n roles = (\"U\", 5); } );",
      "fastchat.conf:2: templates[0].roles: must be a list of two strings\n" },
    { "templates = ( { name = \"x\"; roles = (\"U\", \"A\");\n sep_style = \"CHATLM\"; } );",
      "fastchat.conf:2: templates[0].sep_style: has no style 'CHATLM'; there are 'ADD_COLON_SINGLE', 'CHATML' and others\n" },
    { "templates = ( { name = \"x\"; " FIELDS "\n sep = true; } );",
      "fastchat.conf:2: templates[0].sep: must be a text, a number or a list, but is a boolean\n" },
    { "templates = ( { name = \"x\"; " FIELDS "\n sep = { }; } );",
      "fastchat.conf:2: templates[0].sep: must be a text, a number or a list, but is a group\n" },
    { "templates = ( { name = \"x\"; " FIELDS "\n messages = ((((\"a\", \"b\")))); } );",
      "fastchat.conf:2: templates[0].messages: holds lists within lists within lists\n" },
    { "templates = ( { name = \"x\"; " FIELDS "\n sep = \"\\xFF\"; } );", "fastchat.conf:2: templates[0].sep: is not UTF-8\n" },
    { "templates = ( { name = \"x\"; jinja = 5; } );", "fastchat.conf:1: templates[0].jinja: must be a string, but is a number\n" },
    { "templates = ( { name = \"x\";\n jinja = \"a\\n{% for %}\"; } );",
      "fastchat.conf:2: templates[0].jinja: line 2 of it: Expected an expression, got 'end of statement block'\n" },
    { "templates = ( { name = \"x\"; " FIELDS " },\n { name = \"x\"; jinja = \"\"; } );",
      "fastchat.conf:2: templates[1]: there is a template \"x\" already (fastchat.conf:1)\n" },
    { "templates = ( { file = \"x.txt\"; } );", "fastchat.conf:1: templates[0].file: must end in .json or .jinja\n" },
    { "templates = ( { file = \".json\"; } );", "fastchat.conf:1: templates[0].file: must end in .json or .jinja\n" },
    { "templates = ( { file = \"gone.json\"; } );", "fastchat.conf:1: gone.json: No such file or directory\n" },
    { "templates = ( { name = \"x\"; file = \"good.json\";\n sep = \"\"; } );",
      "fastchat.conf:2: templates[0].sep: \"file\" holds the template already\n" },
    { "templates = ( { file = \"good.json\"; }, { name = \"good\"; " FIELDS " } );",
      "fastchat.conf:1: templates[1]: there is a template \"good\" already (fastchat.conf:1)\n" },
};

static void expect_errors(const char *text, const char *wanted)
{
    BUF_LOCAL errors = BUF_INIT;
    struct config *c = NULL;

    cr_expect(lt(int, config_load(config_write_text("fastchat.conf", text), &c, &errors), 0), "%s", text);
    config_strip_folder(&errors);
    cr_expect(eq(str, (char *)buf_str(&errors), (char *)wanted), "%s", text);
}

Test(config_templates, what_is_wrong_in_the_list_is_said_with_its_place)
{
    config_write_text("good.json", ROW);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        expect_errors(bad[i].text, bad[i].errors);
}

static const struct { const char *text, *errors; } bad_files[] = {
    { "{\n \"roles\": [\"U\",\n  5 5] }", "a.d/x.json:3: expected ',' or a bracket\n" },
    { "[]", "a.d/x.json: a conversation template must be an object, but is an array\n" },
    { "{ \"sep_style\": 1,\n \"system_message\": \"\\\"roles\\\":\",\n \"messages\": [[\"roles\", \"x\"]],\n \"roles\": [] }",
      "a.d/x.json:4: roles: must be a list of two strings\n" },
    { "{ \"roles\": [\"U\", \"A\"],\n\n \"sep_style\": 24 }", "a.d/x.json:3: sep_style: 24 is none of the styles 1 to 23\n" },
    { "{ \"roles\": [\"U\", \"A\"] }", "a.d/x.json: sep_style: is missing\n" },
    { "{ \"roles\": [\"U\", \"A\"], \"sep_style\": 1,\n \"stop_strs\": 5,\n \"?\": 1, \"jinja\": \"x\" }",
      "a.d/x.json:2: stop_strs: unknown key; did you mean \"stop_str\"?\n"
      "a.d/x.json:3: ?: unknown key\n"
      "a.d/x.json:3: jinja: unknown key\n" },
    { "", "a.d/x.json:1: unexpected end\n" },
};

Test(config_templates, what_is_wrong_in_a_file_is_said_with_its_place)
{
    for (size_t i = 0; i < sizeof bad_files / sizeof bad_files[0]; i++) {
        config_write_text("a.d/x.json", bad_files[i].text);
        expect_errors("supervisor = { template_dirs = ( \"a.d\" ); };", bad_files[i].errors);
    }
    config_write_text("a.d/x.json", ROW);
    config_write_text("a.d/y.jinja", "\xFF");
    config_write_text("a.d/with space.jinja", "");
    expect_errors("supervisor = { template_dirs = ( \"a.d\" ); };",
                  "a.d/with space.jinja: the name of a template has no space, control character or '/'\n"
                  "a.d/y.jinja: a template is text in UTF-8 without NUL\n");
    config_write_text("c.d/y.jinja", "{% if a %}\n\n{{ b \n");
    expect_errors("supervisor = { template_dirs = ( \"c.d\" ); };",
                  "c.d/y.jinja:3: unexpected end of template, expected 'end of print statement'.\n");
}

Test(config_templates, the_example_that_is_shipped_is_fine)
{
    char path[PATH_MAX], text[4096] = { 0 };
    struct config *c;
    FILE *f;

    snprintf(path, sizeof path, "%s/etc/templates.d/example.json.off", getenv("FASTCHAT_SOURCE"));
    f = fopen(path, "r");
    cr_assert(f != NULL);
    cr_assert(gt(sz, fread(text, 1, sizeof text - 1, f), 0));
    fclose(f);
    config_write_text("a.d/example.json", text);
    c = load("supervisor = { template_dirs = ( \"a.d\" ); };");
    cr_assert(eq(sz, c->n_templates, 1));
    cr_expect(eq(sz, c->n_notes, 0));
    config_free(c);
}

Test(config_templates, there_is_room_for_so_many)
{
    BUF_LOCAL text = BUF_INIT;
    BUF_LOCAL large = BUF_INIT;
    char path[128];

    buf_adds(&text, "templates = ( ");
    for (int i = 0; i < 257; i++)
        buf_printf(&text, "%s{ name = \"t%d\"; jinja = \"\"; }", i ? ", " : "", i);
    buf_adds(&text, " );");
    expect_errors(buf_str(&text), "fastchat.conf:1: templates: more than 256 templates\n");
    for (int i = 0; i < 1000000; i++)
        buf_addc(&large, 'x');
    for (int i = 0; i < 5; i++) {
        snprintf(path, sizeof path, "a.d/%d.jinja", i);
        config_write_text(path, buf_str(&large));
    }
    expect_errors("supervisor = { template_dirs = ( \"a.d\" ); };", "a.d/4.jinja: there can be 256 templates of 4 MB in all\n");
    for (int i = 0; i < 1000000; i++)
        buf_addc(&large, 'x');
    config_write_text("b.d/1.json", buf_str(&large));
    expect_errors("supervisor = { template_dirs = ( \"b.d\" ); };", "b.d/1.json: is larger than 1 MB\n");
}

Test(config_templates, a_folder_that_is_not_there_is_noted)
{
    struct config *c = load("supervisor = { template_dirs = ( \"gone.d\", \"/etc/fastchat/templates.d\" ); };");

    expect(c, "gone.d: no templates from there: No such file or directory\n");
    config_free(c);
}

static const char MODELS[] = DIRS "models = ( { name = \"auto\"; path = \"m.gguf\"; }, { name = \"one\"; path = \"m.gguf\"; template = \"one\"; },\n"
                                  "{ name = \"none\"; path = \"m.gguf\"; template = \"chatml\"; } );";

static const char *templates_of(const struct config *c, size_t model, struct buf *out)
{
    const char *at;

    buf_clear(out);
    config_worker_settings(c, model, 0, "w", "w", out);
    at = strstr(buf_str(out), ",\"templates\":");
    return at ? at : "";
}

Test(config_templates, a_worker_is_told_those_that_its_model_may_use)
{
    BUF_LOCAL out = BUF_INIT;
    struct config *c;

    config_write_text("a.d/one.json", ROW);
    config_write_text("a.d/two.jinja", "{{ \"\" }}\n");
    c = load(MODELS);
    cr_expect(eq(str, (char *)templates_of(c, 0, &out),
                 ",\"templates\":[{\"name\":\"one\",\"row\":" ROW "},{\"name\":\"two\",\"jinja\":\"{{ \\\"\\\" }}\\n\"}]}"));
    cr_expect(eq(str, (char *)templates_of(c, 1, &out), ",\"templates\":[{\"name\":\"one\",\"row\":" ROW "}]}"));
    cr_expect(eq(str, (char *)templates_of(c, 2, &out), ""));
    config_free(c);
}

static void note_change(const struct config_change *change, void *user)
{
    buf_printf(user, "%s: %s -> %s\n", change->template ? change->template : change->row ? change->row->name : "?", change->was,
               change->is);
}

Test(config_templates, one_that_changes_replaces_who_may_use_it)
{
    BUF_LOCAL changes = BUF_INIT;
    struct config *was, *is;

    config_write_text("a.d/one.json", ROW);
    config_write_text("a.d/three.jinja", "x");
    was = load(MODELS);
    config_write_text("a.d/one.json", "{\"roles\":[\"U\",\"A\"],\"sep_style\":2}");
    config_write_text("b.d/two.jinja", "x");
    config_write_text("b.d/three.jinja", "x");
    is = load(MODELS);
    for (size_t m = 0; m < 3; m++) {
        BUF_LOCAL before = BUF_INIT;
        BUF_LOCAL after = BUF_INIT;

        config_fingerprint(was, CONFIG_MODEL, m, &before);
        config_fingerprint(is, CONFIG_MODEL, m, &after);
        cr_expect(eq(int, strcmp(buf_str(&before), buf_str(&after)) != 0, m < 2), "model %zu", m);
    }
    config_diff(was, is, note_change, &changes);
    config_strip_folder(&changes);
    cr_expect(eq(str, (char *)buf_str(&changes), "one: a.d/one.json -> a.d/one.json\ntwo:  -> b.d/two.jinja\n"));
    buf_clear(&changes);
    config_diff(is, was, note_change, &changes);
    config_strip_folder(&changes);
    cr_expect(eq(str, (char *)buf_str(&changes), "two: b.d/two.jinja -> \none: a.d/one.json -> a.d/one.json\n"));
    config_free(was);
    config_free(is);
}
