/* Models that are there because their files lie in a folder. */
#include "config_files.h"

#include "daemon/model_name.h"

#include <criterion/new/assert.h>
#include <unistd.h>

TestSuite(config_folders, .init = config_folder_make, .fini = config_folder_remove);

static struct config *load(const char *text)
{
    const char *path = config_write_text("fastchat.conf", text);
    BUF_LOCAL errors = BUF_INIT;
    struct config *c = NULL;

    cr_assert(zero(int, config_load(path, &c, &errors)), "%s", buf_str(&errors));
    return c;
}

static const char *name(const struct config *c, size_t m)
{
    return c->models[m]->values[MODEL_name].s;
}

/* Names of all models, and all notes with the folder taken out, a line each. */
static void expect(const struct config *c, const char *models, const char *notes)
{
    BUF_LOCAL got = BUF_INIT;
    BUF_LOCAL said = BUF_INIT;

    for (size_t m = 0; m < c->n_models; m++)
        buf_printf(&got, "%s%s", m ? " " : "", name(c, m));
    for (size_t i = 0; i < c->n_notes; i++)
        buf_printf(&said, "%s\n", c->notes[i]);
    config_strip_folder(&said);
    cr_expect(eq(str, (char *)buf_str(&got), (char *)models));
    cr_expect(eq(str, (char *)buf_str(&said), (char *)notes));
}

#define FOLDERS "supervisor = { model_folders = ( \"a.d\", \"b.d\" ); };\n"

Test(config_folders, each_file_is_a_model_with_the_values_of_defaults)
{
    struct config *c;
    const struct config_value *v;
    char path[128];

    config_write_text("b.d/zwei.gguf", "x");
    config_write_text("a.d/SmolLM2-135M.Q4_1.gguf", "x");
    config_write_text("a.d/notes.txt", "x");
    config_write_text("a.d/.hidden.gguf", "x");
    config_write_text("a.d/.gguf", "x");
    c = load(FOLDERS "defaults = { context = 99; };\nmodels = ( { name = \"m\"; path = \"m.gguf\"; } );\n");
    expect(c, "m SmolLM2-135M.Q4_1 zwei", "");
    v = &c->models[1]->values[MODEL_path];
    snprintf(path, sizeof path, "%s/a.d/SmolLM2-135M.Q4_1.gguf", config_folder);
    cr_expect(eq(str, (char *)v->s, path));
    cr_expect(eq(str, (char *)v->file, path));
    cr_expect(zero(int, c->models[1]->line));
    cr_expect(eq(i64, c->models[2]->values[DEFAULTS_context].i, 99));
    cr_expect(eq(i64, c->models[2]->values[DEFAULTS_parallel].i, 8));
    config_free(c);
    snprintf(path, sizeof path, "%s/b.d/zwei.gguf", config_folder);
    unlink(path);               /* the next load sees one model less */
    c = load(FOLDERS);
    expect(c, "SmolLM2-135M.Q4_1", "");
    config_free(c);
}

Test(config_folders, folders_that_are_not_there_are_noted)
{
    struct config *c;

    config_write_text("b.d", "a file");
    c = load(FOLDERS);
    expect(c, "", "a.d: no models from there: No such file or directory\nb.d: no models from there: Not a directory\n");
    config_free(c);
}

Test(config_folders, names_are_made_of_what_a_name_may_hold)
{
    static const char *const cases[][2] = {
        { "plain.gguf", "plain" }, { "/x/y/My Model (v2).gguf", "My-Model-v2" }, { "Gr\xc3\xbc\xc3\x9f" "e.gguf", "Gr-e" },
        { " a.gguf", "a" }, { "a .gguf", "a" }, { "a.GGUF", "a.GGUF" }, { "x.gguf.gguf", "x.gguf" },
        { "big-00001-of-00003.gguf", "big" }, { "big-00002-of-00003.gguf", "big" }, { "-00001-of-00003.gguf", "-00001-of-00003" },
        { "big-0001-of-00003.gguf", "big-0001-of-00003" }, { "a+b_c.d:e@f-g.gguf", "a+b_c.d:e@f-g" },
    };
    char got[MODEL_NAME_MAX + 1], longest[300];

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_expect(model_name_of_file(cases[i][0], got), "%s", cases[i][0]);
        cr_expect(eq(str, got, (char *)cases[i][1]));
    }
    cr_expect(not(model_name_of_file("\xc3\xbc.gguf", got)));
    cr_expect(not(model_name_of_file(".gguf", got)));
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = 0;
    cr_expect(model_name_of_file(longest, got));
    cr_expect(eq(sz, strlen(got), (size_t)MODEL_NAME_MAX));
    memset(longest + MODEL_NAME_MAX - 1, ' ', 5);
    cr_expect(model_name_of_file(longest, got));
    cr_expect(eq(sz, strlen(got), (size_t)MODEL_NAME_MAX));
    cr_expect(eq(uint, model_file_part("a/big-00012-of-00034.gguf"), 12));
    cr_expect(zero(uint, model_file_part("big-00012-of-0034.gguf")));
}

Test(config_folders, a_name_that_is_taken_stays_whose_it_is)
{
    struct config *c;

    config_write_text("a.d/m.gguf", "x");
    config_write_text("a.d/other.gguf", "x");
    config_write_text("a.d/two words.gguf", "x");
    config_write_text("b.d/two-words.gguf", "x");
    config_write_text("b.d/free.gguf", "x");
    c = load(FOLDERS "models = ( { name = \"m\"; aliases = ( \"other\" ); path = \"m.gguf\"; } );\n");
    expect(c, "m two-words free",
           "a.d/m.gguf: left out: the name \"m\" is that of models[0] (fastchat.conf:2)\n"
           "a.d/other.gguf: left out: the name \"other\" is that of models[0] (fastchat.conf:2)\n"
           "b.d/two-words.gguf: left out: the name \"two-words\" is that of a.d/two words.gguf\n");
    config_free(c);
}

Test(config_folders, a_file_that_a_model_names_as_its_path_is_no_second_one)
{
    struct config *c, *again = NULL;
    BUF_LOCAL dump = BUF_INIT;
    BUF_LOCAL errors = BUF_INIT;
    char from[128], to[128];

    config_write_text("a.d/one.gguf", "x");
    config_write_text("a.d/two.gguf", "x");
    config_write_text("b.d/nothing", "x");
    snprintf(from, sizeof from, "%s/a.d/two.gguf", config_folder);
    snprintf(to, sizeof to, "%s/b.d/two.gguf", config_folder);
    cr_assert(zero(int, symlink(from, to)));
    c = load(FOLDERS "models = ( { name = \"mine\"; path = \"a.d/one.gguf\"; context = 7; } );\n");
    expect(c, "mine two", "");
    /* so a dump, which names them all, loads to the same models */
    config_dump(c, &dump);
    cr_expect(zero(int, config_load(config_write_text("else/dump.conf", buf_str(&dump)), &again, &errors)), "%s", buf_str(&errors));
    expect(again, "mine two", "");
    config_strip_folder(&dump);
    cr_expect(strstr(buf_str(&dump), "    name = \"two\";    # a.d/two.gguf\n") != NULL);
    cr_expect(strstr(buf_str(&dump), "    context = 0;    # default\n") != NULL);
    config_free(c);
    config_free(again);
}

Test(config_folders, a_model_in_several_files_is_one)
{
    struct config *c;

    config_write_text("a.d/big-00001-of-00002.gguf", "x");
    config_write_text("a.d/big-00002-of-00002.gguf", "x");
    config_write_text("b.d/lost-00002-of-00002.gguf", "x");
    c = load(FOLDERS);
    expect(c, "big", "b.d/lost-00002-of-00002.gguf: left out: it is part 2 of a model whose first part is not there\n");
    cr_expect(strstr(c->models[0]->values[MODEL_path].s, "a.d/big-00001-of-00002.gguf") != NULL);
    config_free(c);
}

Test(config_folders, what_can_be_no_model_is_left_out_with_a_note)
{
    struct config *c;
    char link_path[128];

    config_write_text("a.d/folder.gguf/x", "x");
    config_write_text("a.d/\xc3\xbc.gguf", "x");
    config_write_text("a.d/\xff.gguf", "x");
    config_write_text("a.d/new\nline.gguf", "x");
    config_write_text("b.d/good.gguf", "x");
    snprintf(link_path, sizeof link_path, "%s/a.d/gone.gguf", config_folder);
    cr_assert(zero(int, symlink("/no/such/file", link_path)));
    c = load(FOLDERS);
    expect(c, "good",
           "a.d/folder.gguf: left out: it is no regular file\n"
           "a.d/gone.gguf: left out: No such file or directory\n"
           "a.d: a file is left out whose name is no plain UTF-8 text\n"
           "a.d/\xc3\xbc.gguf: left out: nothing in its name can be the name of a model\n"
           "a.d: a file is left out whose name is no plain UTF-8 text\n");
    config_free(c);
}

Test(config_folders, more_than_the_service_can_hold_is_left_out)
{
    struct config *c;
    char file[32];

    for (int i = 0; i < 100; i++) {
        snprintf(file, sizeof file, "a.d/m%02d.gguf", i);
        config_write_text(file, "x");
    }
    c = load(FOLDERS "defaults = { replicas = 3; };\nmodels = ( { name = \"m\"; path = \"m.gguf\"; replicas = 2; } );\n");
    cr_expect(eq(sz, c->n_models, 85));         /* 2 + 84 * 3 = 254 workers */
    cr_expect(eq(sz, c->n_notes, 2));           /* b.d is not there */
    cr_expect(strstr(c->notes[0], "/a.d/m84.gguf: left out, and further files too") != NULL, "%s", c->notes[0]);
    config_free(c);
}

Test(config_folders, notes_have_a_limit)
{
    struct config *c;
    char file[32];

    for (int i = 0; i < 200; i++) {
        snprintf(file, sizeof file, "a.d/m%03d.gguf/x", i);
        config_write_text(file, "x");
    }
    c = load(FOLDERS);
    cr_expect(eq(sz, c->n_notes, 64));
    cr_expect(eq(str, (char *)c->notes[63], "… and further notes"));
    config_free(c);
}
