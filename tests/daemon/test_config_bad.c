/* Each way in which a configuration can be wrong, and what is said about it.
 * "%" in a text or message stands for the folder that holds the files. */
#include "config_files.h"

#include <criterion/new/assert.h>
#include <errno.h>

TestSuite(config_bad, .init = config_folder_make, .fini = config_folder_remove);

struct bad {
    const char *text, *says;
};

#define MODEL(more) "models = ({ name = \"m\"; path = \"m.gguf\"; " more "});"
#define WORKERS "supervisor = { parts = \"workers\"; };\n"
#define F "fastchat.conf:"

static const struct bad cases[] = {
    /* syntax */
    { "api = {", F "1: syntax error in or before: api = {\n" },
    { "api = { listen = ( , ); };", F "1: syntax error in or before: api = { listen = ( , ); };\n" },
    { "api = { listen = ( \"127.0.0.1:1\",, ); };", F "1: syntax error in or before: api = { listen = ( \"127.0.0.1:1\",, ); };\n" },
    { "api = {\n}\nx y;\n", F "3: syntax error in or before: x y;\n" },
    { "api = { idle_s = 1;\n idle_s = 2; };", F "2: duplicate setting name in or before: idle_s = 2; };\n" },
    { "api = { };\napi = { };", F "2: duplicate setting name in or before: api = { };\n" },
    { "# fine\n@include \"/etc/passwd\"\n", F "2: @include is not supported: use conf.d\n" },
    { "a = \"never\nclosed", F "1: the string that begins here has no closing quote\n" },
    { "a = \"\\x00\";", F "1: a string cannot hold a zero byte\n" },
    { "\n# \xFF\n", F "2: the text is not UTF-8\n" },
    { "a = ((((((((((((((((((1))))))))))))))))));", F "1: nested more than 16 deep\n" },
    { "api = { idle_s = 99999999999999999999; };", F "1: 99999999999999999999 is larger than any integer can be\n" },
    { "api = { idle_s = 0x; };", F "1: syntax error in or before: api = { idle_s = 0x; };\n" },
    /* names */
    { "apl = { };", F "1: apl: unknown section; did you mean \"api\"?\n" },
    { "server = 1;", F "1: server: unknown section; there are supervisor, controller, api, defaults, models, templates\n" },
    { "api = { idel_s = 5; };", F "1: api.idel_s: unknown key; did you mean \"idle_s\"?\n" },
    { "api = {\n\n heartbeat_ms = 5; };", F "3: api.heartbeat_ms: unknown key; \"heartbeat_ms\" belongs in supervisor\n" },
    { "api = { zzzzzzzzzz = 5; };", F "1: api.zzzzzzzzzz: unknown key\n" },
    { "models = ({ name = \"m\"; paht = \"m.gguf\"; });", F "1: models[0].paht: unknown key; did you mean \"path\"?\n" },
    { MODEL("contxt = 7;"), F "1: models[0].contxt: unknown key; did you mean \"context\"?\n" },
    { "api = { listen = ({ adress = \"127.0.0.1:1\"; }); };",
      F "1: api.listen[0].adress: unknown key; did you mean \"address\"?\n" },
    /* types */
    { "api = 5;", F "1: api: must be a group, but is an integer\n" },
    { "api = { idle_s = \"5\"; };", F "1: api.idle_s: must be an integer, but is a string\n" },
    { "api = { idle_s = 5.5; };", F "1: api.idle_s: must be an integer, but is a number with a fraction\n" },
    { "api = { idle_s = true; };", F "1: api.idle_s: must be an integer, but is a boolean\n" },
    { "defaults = { top_p = \"a\"; };", F "1: defaults.top_p: must be a number, but is a string\n" },
    { "supervisor = { log_level = 3; };", F "1: supervisor.log_level: must be a string, but is an integer\n" },
    { "api = { listen = \"127.0.0.1:1\"; };", F "1: api.listen: must be a list of addresses and groups, but is a string\n" },
    { "api = { listen = (5); };", F "1: api.listen[0]: must be a string or a group, but is an integer\n" },
    { "models = { };", F "1: models: must be a list of groups, but is a group\n" },
    { "models = (\n5);", F "2: models[0]: must be a group, but is an integer\n" },
    { MODEL("aliases = \"a\";"), F "1: models[0].aliases: must be a list of strings, but is a string\n" },
    { MODEL("aliases = (1);"), F "1: models[0].aliases[0]: must be a string, but is an integer\n" },
    /* ranges and choices */
    { "api = {\n idle_s = 0; };", F "2: api.idle_s: 0 is below 1\n" },
    { "api = { idle_s = 70000000000; };", F "1: api.idle_s: 70000000000 is above 86400\n" },
    { "defaults = { temperature = 2.5; };", F "1: defaults.temperature: 2.5 is above 2\n" },
    { "defaults = { temperature = 1e999; };", F "1: defaults.temperature: inf is above 2\n" },
    { "supervisor = { log_level = \"inof\"; };", F "1: supervisor.log_level: \"inof\" is unknown; did you mean \"info\"?\n" },
    { "controller = { dispatch = \"random\"; };",
      F "1: controller.dispatch: \"random\" is unknown; it can be shortest_queue, lottery\n" },
    { MODEL("device = \"gpu\";"), F "1: models[0].device: \"gpu\" is unknown; did you mean \"cpu\"?\n" },
    { MODEL("isa = \"avx512\";"), F "1: models[0].isa: \"avx512\" is unknown; did you mean \"avx2\"?\n" },
    { "defaults = {\n isa = \"mmx\"; };", F "2: defaults.isa: \"mmx\" is unknown; did you mean \"amx\"?\n" },
    { "defaults = { isa = \"altivec\"; };",
      F "1: defaults.isa: \"altivec\" is unknown; it can be auto, scalar, sse41, avx2, avx512vnni, amx, neon, neon-dotprod, neon-i8mm\n" },
    { "supervisor = { heartbeat_ms = 3000; };",
      F "1: supervisor.heartbeat_limit_ms: 5000 is below 2 times heartbeat_ms (3000)\n" },
    { "supervisor = { restart_delay_max_ms = 50; };",
      F "1: supervisor.restart_delay_max_ms: 50 is below restart_delay_ms (100)\n" },
    /* strings */
    { "supervisor = { group = \"no-such-group\"; };", F "1: supervisor.group: there is no system group \"no-such-group\"\n" },
    { "defaults = { template = \"\"; };", F "1: defaults.template: is empty\n" },
    { "defaults = { template = \"a\\nb\"; };", F "1: defaults.template: holds a control character\n" },
    { "defaults = { template = \"\\xff\"; };", F "1: defaults.template: is not UTF-8\n" },
    { "supervisor = { runtime_dir = \"$NO_SUCH_VAR/x\"; };",
      F "1: supervisor.runtime_dir: \"$NO_SUCH_VAR/x\" begins with a variable that holds no absolute path\n" },
    { "api = { listen = ({ address = \"unix:a.sock\"; mode = \"660x\"; }); };",
      F "1: api.listen[0].mode: \"660x\" is no mode in octal digits, as \"0660\"\n" },
    { "models = ({ name = \"a b\"; path = \"m.gguf\"; });",
      F "1: models[0].name: \"a b\" holds a character that is no letter, digit or one of -_.:/@+\n" },
    /* processors */
    { MODEL("cpus = 3;"), F "1: models[0].cpus: must be a string, but is an integer\n" },
    { MODEL("cpus = \"\";"), F "1: models[0].cpus: is empty\n" },
    { MODEL("cpus = \"0-\";"), F "1: models[0].cpus: \"0-\" is no list of CPUs, as \"0-3,8\": a CPU's number is missing at the end\n" },
    { "defaults = { cpus = \"8-2\"; };", F "1: defaults.cpus: \"8-2\" is no list of CPUs, as \"0-3,8\": 8-2 runs backwards\n" },
    { MODEL("numa_node = 1023;"), F "1: models[0].numa_node: this machine has no node 1023\n" },
    { MODEL("") "\ndefaults = { numa_node = 1023; };", F "2: defaults.numa_node: this machine has no node 1023\n" },
    { MODEL("nice = 20;"), F "1: models[0].nice: 20 is above 19\n" },
    { MODEL("memory_max_mb = -1;"), F "1: models[0].memory_max_mb: -1 is below 0\n" },
    { MODEL("cpu_quota = 2.5;"), F "1: models[0].cpu_quota: must be an integer, but is a number with a fraction\n" },
    /* addresses */
    { "api = { listen = (\"here\"); };",
      F "1: api.listen[0]: 'here' is no address: write HOST:PORT, [IPV6]:PORT or unix:PATH\n" },
    { "api = { listen = (\"127.0.0.1:70000\"); };",
      F "1: api.listen[0]: '127.0.0.1:70000': the port must be a number from 0 to 65535\n" },
    { "api = { listen = (); };", F "1: api.listen: needs at least one address\n" },
    { "api = { listen = ({ mode = \"0660\"; }); };", F "1: api.listen[0]: \"address\" is missing\n" },
    { "controller = { listen = \"unix:/x\"; };", F "1: controller.listen: must be host:port, but is \"unix:/x\"\n" },
    { "api = { listen = (\n\"127.0.0.1:81\",\n\"localhost:81\"); };",
      F "3: api.listen[1]: \"localhost:81\" is taken already by api.listen[0] (%/fastchat.conf:2)\n" },
    { "api = { listen = (\"0.0.0.0:81\"); };\ncontroller = {\n listen = \"127.0.0.1:81\"; };",
      F "1: api.listen[0]: \"0.0.0.0:81\" is taken already by controller.listen (%/fastchat.conf:3)\n" },
    { "controller = { listen = \"127.0.0.1:8000\"; };",
      F "1: controller.listen: \"127.0.0.1:8000\" is taken already by api.listen[0]\n" },
    { "supervisor = { runtime_dir = \"run\"; };\napi = { listen = (\"unix:run/controller.sock\"); };",
      F "2: api.listen[0]: \"unix:%/run/controller.sock\" is taken already by the service itself (%/fastchat.conf:1)\n" },
    { MODEL("listen = \"0.0.0.0:21002\";"),
      F "1: models[0].listen: others cannot reach \"0.0.0.0:21002\" under that name; say how in \"advertise\"\n" },
    { MODEL("advertise = \"10.0.0.1:21002\";"), F "1: models[0].advertise: needs \"listen\" too\n" },
    { MODEL("listen = \"127.0.0.1:65530\"; replicas = 8;"),
      F "1: models[0].listen: the ports of 8 replicas end above 65535\n" },
    { MODEL("listen = \"127.0.0.1:7999\"; replicas = 2;"),
      F "1: models[0].listen: \"127.0.0.1:8000\" is taken already by api.listen[0]\n" },
    { MODEL("controllers = (\"unix:/x\", \"10.0.0.1:21001\");"),
      F "1: models[0].controllers: \"10.0.0.1:21001\" can use a worker that it reaches only: \"listen\" is missing\n" },
    /* only workers */
    { "supervisor = { parts = \"worker\"; };", F "1: supervisor.parts: \"worker\" is unknown; did you mean \"workers\"?\n" },
    { WORKERS MODEL(""), F "2: models[0]: \"controllers\" is missing, and with supervisor.parts = \"workers\" there is none here\n" },
    { WORKERS MODEL("controllers = ();"),
      F "2: models[0]: \"controllers\" is missing, and with supervisor.parts = \"workers\" there is none here\n" },
    { WORKERS MODEL("controllers = (\"unix:/x\");\n load = \"on-demand\";"),
      F "3: models[0].load: with supervisor.parts = \"workers\" nobody here asks for a model; it can be always or manual\n" },
    { "supervisor = { parts = \"workers\";\n model_folders = (\"/x\"); };",
      F "2: supervisor.model_folders: with parts = \"workers\" each model must be listed, with its controllers\n" },
    /* models */
    { "models = ({\n});", F "1: models[0]: \"name\" is missing\n" F "1: models[0]: \"path\" is missing\n" },
    { "models = ({ name = \"m\"; path = \"none.gguf\"; });",
      F "1: models[0].path: there is no file \"none.gguf\" beside this one or in supervisor.model_dirs\n" },
    { "models = ({ name = \"m\"; path = \"/none.gguf\"; });", F "1: models[0].path: there is no file \"/none.gguf\"\n" },
    { MODEL("draft_model = \"none.gguf\";"),
      F "1: models[0].draft_model: there is no file \"none.gguf\" beside this one or in supervisor.model_dirs\n" },
    { MODEL("speculative = \"draft\";"), F "1: models[0]: \"draft_model\" is missing, and speculative is \"draft\"\n" },
    { MODEL("speculative = \"n-gram\";"), F "1: models[0].speculative: \"n-gram\" is unknown; did you mean \"ngram\"?\n" },
    { MODEL("draft_tokens = 17;"), F "1: models[0].draft_tokens: 17 is above 16\n" },
    { "models = ({ name = \"m\"; path = \"/tmp\"; });", F "1: models[0].path: /tmp: is a folder\n" },
    { "models = ({ name = \"m\"; path = \"m.gguf\"; },\n{ name = \"m\"; path = \"m.gguf\"; replicas = 1; });",
      F "2: models[1].name: \"m\" is taken already by models[0].name (%/fastchat.conf:1)\n" },
    { "models = ({ name = \"a\"; aliases = (\"x\"); path = \"m.gguf\"; },\n{ name = \"x\"; path = \"m.gguf\"; });",
      F "2: models[1].name: \"x\" is taken already by models[0].aliases (%/fastchat.conf:1)\n" },
    { MODEL("aliases = (\"m\");"), F "1: models[0].aliases: \"m\" is taken already by models[0].name (%/fastchat.conf:1)\n" },
    /* all of them in one run */
    { "api = { idel_s = 1; max_connections = 0; };\ncontroller = 1;\n" "defaults = { top_p = 3; };",
      F "1: api.idel_s: unknown key; did you mean \"idle_s\"?\n" F "1: api.max_connections: 0 is below 1\n"
      F "2: controller: must be a group, but is an integer\n" F "3: defaults.top_p: 3 is above 1\n" },
};

/* "%/" → "" as in the messages, whose paths lose the folder too. */
static void strip_percent(const char *text, struct buf *out)
{
    for (; *text; text++)
        if (text[0] == '%' && text[1] == '/')
            text++;
        else
            buf_addc(out, *text);
}

Test(config_bad, every_fault_is_named_with_its_place)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        BUF_LOCAL errors = BUF_INIT;
        BUF_LOCAL want = BUF_INIT;
        struct config *c = NULL;
        const char *path = config_write_text("fastchat.conf", cases[i].text);

        cr_expect(eq(int, config_load(path, &c, &errors), -EINVAL), "%s", cases[i].text);
        config_strip_folder(&errors);
        strip_percent(cases[i].says, &want);
        cr_expect(eq(str, (char *)buf_str(&errors), (char *)buf_str(&want)), "%s", cases[i].text);
        config_free(c);
    }
}

Test(config_bad, a_missing_file_is_told_apart)
{
    BUF_LOCAL errors = BUF_INIT;
    struct config *c = NULL;

    cr_assert(eq(int, config_load("/nowhere/at/all.conf", &c, &errors), -ENOENT));
    cr_expect(eq(str, (char *)buf_str(&errors), "/nowhere/at/all.conf: No such file or directory\n"));
}

Test(config_bad, a_folder_or_a_huge_file_is_no_configuration)
{
    BUF_LOCAL errors = BUF_INIT;
    struct config *c = NULL;
    char *text = malloc((1 << 20) + 2);

    cr_expect(eq(int, config_load("/tmp", &c, &errors), -EINVAL));
    cr_expect(eq(str, (char *)buf_str(&errors), "/tmp: is no regular file\n"));
    memset(text, '\n', (1 << 20) + 1);
    text[(1 << 20) + 1] = 0;
    buf_clear(&errors);
    cr_expect(eq(int, config_load(config_write_text("big.conf", text), &c, &errors), -EINVAL));
    config_strip_folder(&errors);
    cr_expect(eq(str, (char *)buf_str(&errors), "big.conf: is larger than 1 MB\n"));
    free(text);
}

Test(config_bad, faults_of_all_files_are_shown_together)
{
    BUF_LOCAL errors = BUF_INIT;
    struct config *c = NULL;

    config_write_text("conf.d/20-b.conf", "api = {\n\n idle_s = -1; };");
    config_write_text("conf.d/10-a.conf", "models = ({ name = \"one\"; path = \"../m.gguf\"; });");
    cr_expect(eq(int, config_load(config_write_text("fastchat.conf",
        "models = ({ name = \"one\"; path = \"m.gguf\"; listen = \"127.0.0.1:5\"; });\nx = 1;"), &c, &errors), -EINVAL));
    config_strip_folder(&errors);
    cr_expect(eq(str, (char *)buf_str(&errors),
        "fastchat.conf:2: x: unknown section; there are supervisor, controller, api, defaults, models, templates\n"
        "conf.d/20-b.conf:3: api.idle_s: -1 is below 1\n"
        "conf.d/10-a.conf:1: models[0].name: \"one\" is taken already by models[0].name (fastchat.conf:1)\n"));
}

Test(config_bad, a_flood_of_faults_is_cut)
{
    BUF_LOCAL text = BUF_INIT;
    BUF_LOCAL errors = BUF_INIT;
    struct config *c = NULL;
    size_t lines = 0;

    for (int i = 0; i < 500; i++)
        buf_printf(&text, "zzzzzzzzzzz%d = 1;\n", i);
    cr_expect(eq(int, config_load(config_write_text("fastchat.conf", buf_str(&text)), &c, &errors), -EINVAL));
    for (const char *p = buf_str(&errors); *p; p++)
        lines += *p == '\n';
    cr_expect(eq(sz, lines, 100));
    cr_expect(strstr(buf_str(&errors), "… and further errors\n") != NULL);
}

Test(config_bad, a_runtime_folder_too_long_for_sockets_is_refused)
{
    BUF_LOCAL errors = BUF_INIT;
    BUF_LOCAL text = BUF_INIT;
    struct config *c = NULL;

    buf_adds(&text, "supervisor = { runtime_dir = \"/");
    for (int i = 0; i < 100; i++)
        buf_addc(&text, 'r');
    buf_adds(&text, "\"; };");
    cr_expect(eq(int, config_load(config_write_text("fastchat.conf", buf_str(&text)), &c, &errors), -EINVAL));
    cr_expect(strstr(buf_str(&errors), "fastchat.conf:1: supervisor.runtime_dir: ") != NULL);
    cr_expect(strstr(buf_str(&errors), "a Unix socket's path may have 107 bytes") != NULL);
}
