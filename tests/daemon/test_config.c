#include "config_files.h"

#include "base/json.h"

#include <criterion/new/assert.h>
#include <unistd.h>

TestSuite(config, .init = config_folder_make, .fini = config_folder_remove);

static struct config *load(const char *path)
{
    BUF_LOCAL errors = BUF_INIT;
    struct config *c = NULL;

    cr_assert(zero(int, config_load(path, &c, &errors)), "%s", buf_str(&errors));
    return c;
}

static const struct config_value *value(const struct config *c, enum config_key key)
{
    return &c->sections[config_rows[key].section].values[key];
}

static void expect_origin(const struct config_value *v, const char *name, int line)
{
    cr_assert(v->file != NULL);
    cr_expect(eq(str, strrchr(v->file, '/') + 1, (char *)name));
    cr_expect(eq(int, v->line, line));
}

Test(config, an_empty_file_gives_the_defaults)
{
    struct config *c = load(config_write_text("fastchat.conf", ""));

    cr_expect(eq(i64, config_int(c, SUPERVISOR_heartbeat_ms), 1000));
    cr_expect(eq(i64, config_int(c, SUPERVISOR_heartbeat_limit_ms), 5000));
    cr_expect(eq(str, (char *)config_str(c, SUPERVISOR_runtime_dir), "/run/fastchat"));
    cr_expect(config_str(c, CONTROLLER_listen) == NULL);
    cr_assert(eq(sz, c->n_listeners, 1));
    cr_expect(eq(str, (char *)c->listeners[0]->values[LISTEN_address].s, "127.0.0.1:8000"));
    cr_expect(eq(sz, c->n_models, 0));
    config_free(c);
}

Test(config, every_default_is_within_its_own_limits)
{
    for (size_t k = 0; k < CONFIG_N_KEYS; k++) {
        const struct config_row *row = &config_rows[k];

        if (row->def && (row->type == CONFIG_INT || row->type == CONFIG_FLOAT)) {
            double v = strtod(row->def, NULL);

            cr_expect(v >= row->min && v <= row->max, "%s", row->name);
        }
    }
}

Test(config, values_are_typed_and_remember_where_they_were_said)
{
    struct config *c = load(config_write_text("fastchat.conf",
        "supervisor = {\n  log_level = \"debug\";\n};\n"
        "defaults: { top_k = 40; top_p = 1;\n temperature = 0.25; kv_tokens = 8589934592; };\n"));

    cr_expect(eq(str, (char *)config_str(c, SUPERVISOR_log_level), "debug"));
    expect_origin(value(c, SUPERVISOR_log_level), "fastchat.conf", 2);
    cr_expect(eq(i64, config_int(c, DEFAULTS_top_k), 40));
    cr_expect(eq(dbl, value(c, DEFAULTS_top_p)->f, 1.0));
    cr_expect(eq(dbl, value(c, DEFAULTS_temperature)->f, 0.25));
    expect_origin(value(c, DEFAULTS_temperature), "fastchat.conf", 5);
    cr_expect(eq(i64, config_int(c, DEFAULTS_kv_tokens), 8589934592));
    cr_expect(value(c, SUPERVISOR_drain_s)->file == NULL);
    config_free(c);
}

Test(config, a_list_may_end_with_a_comma)
{
    struct config *c = load(config_write_text("fastchat.conf",
        "supervisor = { model_dirs = [ \"/a,)\", \"/b\" , ]; };\n"
        "api = { listen = ( \"127.0.0.1:1\", # one, )\n"
        "                   { address = \"127.0.0.1:2\"; }, /* two ) */ ); };\n"));

    cr_expect(eq(sz, c->n_listeners, 2));
    cr_expect(eq(int, c->listeners[1]->line, 3));
    cr_expect(eq(sz, value(c, SUPERVISOR_model_dirs)->n_list, 2));
    cr_expect(eq(str, (char *)value(c, SUPERVISOR_model_dirs)->list[0], "/a,)"));
    config_free(c);
}

Test(config, drop_ins_override_settings_and_add_models_in_name_order)
{
    struct config *c;

    config_write_text("conf.d/20-b.conf", "api = {\n wait_s = 22; };\nmodels = ({ name = \"b\"; path = \"../m.gguf\"; });");
    config_write_text("conf.d/10-a.conf", "api = { wait_s = 11; ping_s = 3; };\nmodels = ({ name = \"a\"; path = \"../m.gguf\"; });");
    config_write_text("conf.d/.hidden.conf", "this is not read");
    config_write_text("conf.d/30.conf.bak", "this is not read");
    config_write_text("conf.d/30.conf~", "this is not read");
    config_write_text("conf.d/README", "this is not read");
    c = load(config_write_text("fastchat.conf", "api = { wait_s = 1; idle_s = 9; };\nmodels = ({ name = \"main\"; path = \"m.gguf\"; });"));
    cr_expect(eq(i64, config_int(c, API_wait_s), 22));
    expect_origin(value(c, API_wait_s), "20-b.conf", 2);
    cr_expect(eq(i64, config_int(c, API_ping_s), 3));
    expect_origin(value(c, API_ping_s), "10-a.conf", 1);
    cr_expect(eq(i64, config_int(c, API_idle_s), 9));
    cr_assert(eq(sz, c->n_models, 3));
    cr_expect(eq(str, (char *)c->models[0]->values[MODEL_name].s, "main"));
    cr_expect(eq(str, (char *)c->models[1]->values[MODEL_name].s, "a"));
    cr_expect(eq(str, (char *)c->models[2]->values[MODEL_name].s, "b"));
    cr_expect(eq(sz, c->n_files, 3));
    config_free(c);
}

Test(config, a_model_inherits_what_it_does_not_say)
{
    struct config *c = load(config_write_text("fastchat.conf",
        "models = ({ name = \"x\"; path = \"m.gguf\"; parallel = 3; });\ndefaults = { parallel = 2; queue = 5; };"));
    const struct config_value *v = c->models[0]->values;

    cr_expect(eq(i64, v[DEFAULTS_parallel].i, 3));
    cr_expect(eq(i64, v[DEFAULTS_queue].i, 5));
    expect_origin(&v[DEFAULTS_queue], "fastchat.conf", 2);
    cr_expect(eq(str, (char *)v[DEFAULTS_template].s, "auto"));
    cr_expect(not(v[DEFAULTS_temperature].set));
    config_free(c);
}

static void expect_path(const char *got, const char *name)
{
    char want[PATH_MAX];

    snprintf(want, sizeof want, "%s/%s", config_folder, name);
    cr_expect(eq(str, (char *)got, want));
}

Test(config, relative_paths_count_from_their_file_and_models_have_folders)
{
    struct config *c;
    char dirs[PATH_MAX];

    snprintf(dirs, sizeof dirs, "%s/cache", config_folder);
    setenv("FASTCHAT_CACHE", dirs, 1);
    config_write_text("cache/models/far.gguf", "x");
    config_write_text("cache/near.gguf", "x");
    config_write_text("conf.d/own.gguf", "x");
    config_write_text("conf.d/a.conf", "models = ({ name = \"own\"; path = \"own.gguf\"; }, { name = \"home\"; path = \"~/m.gguf\"; });");
    c = load(config_write_text("fastchat.conf",
        "supervisor = { runtime_dir = \"run\"; };\napi = { listen = (\"unix:a.sock\"); };\n"
        "models = ({ name = \"far\"; path = \"far.gguf\"; }, { name = \"near\"; path = \"near.gguf\"; });"));
    expect_path(config_str(c, SUPERVISOR_runtime_dir), "run");
    cr_expect(eq(sz, c->n_models, 4));
    expect_path(c->models[0]->values[MODEL_path].s, "cache/models/far.gguf");
    expect_path(c->models[1]->values[MODEL_path].s, "cache/near.gguf");
    expect_path(c->models[2]->values[MODEL_path].s, "conf.d/own.gguf");
    expect_path(c->models[3]->values[MODEL_path].s, "m.gguf");
    expect_path(c->listeners[0]->values[LISTEN_address].s + 5, "a.sock");
    config_free(c);
}

Test(config, the_environment_gives_the_runtime_folder_unless_a_file_does)
{
    struct config *c;

    setenv("RUNTIME_DIRECTORY", "/run/one:/run/two", 1);
    c = load(config_write_text("fastchat.conf", ""));
    cr_expect(eq(str, (char *)config_str(c, SUPERVISOR_runtime_dir), "/run/one"));
    cr_expect(eq(str, (char *)value(c, SUPERVISOR_runtime_dir)->file, "$RUNTIME_DIRECTORY"));
    config_free(c);
    c = load(config_write_text("fastchat.conf", "supervisor = { runtime_dir = \"/run/file\"; };"));
    cr_expect(eq(str, (char *)config_str(c, SUPERVISOR_runtime_dir), "/run/file"));
    config_free(c);
}

static const char full[] =
    "supervisor = { runtime_dir = \"run\"; log_level = \"warning\"; restart_budget = 3; };\n"
    "controller = { listen = \"127.0.0.1:21001\"; dispatch = \"lottery\"; lease_s = 7; };\n"
    "api = { listen = ( \"127.0.0.1:81\", { address = \"unix:\\\"odd\\\\name.sock\"; mode = \"0600\"; } ); body_mb = 2; };\n"
    "defaults = { queue = 4; temperature = 1; };\n"
    "models = ( { name = \"org/big-model\"; aliases = ( \"big\", \"b:1\" ); path = \"m.gguf\"; replicas = 2; context = 512;\n"
    "             listen = \"0.0.0.0:21002\"; advertise = \"host.example:21002\"; controllers = ( \"http://10.0.0.1:21001\", \"unix:/x\" );\n"
    "             kv_tokens = 5000000000; top_p = 0.1; max_tokens = 9; } );\n";

static void all_settings(const struct config *c, struct buf *out)
{
    config_controller_settings(c, out);
    config_api_settings(c, out);
    for (size_t m = 0; m < c->n_models; m++)
        config_worker_settings(c, m, 1, "w", "unix-path", out);
}

Test(config, a_dump_loads_to_the_same_settings)
{
    BUF_LOCAL first = BUF_INIT;
    BUF_LOCAL second = BUF_INIT;
    BUF_LOCAL dump = BUF_INIT;
    struct config *c = load(config_write_text("fastchat.conf", full));
    struct config *again;

    all_settings(c, &first);
    config_dump(c, &dump);
    again = load(config_write_text("else/dump.conf", buf_str(&dump)));
    all_settings(again, &second);
    cr_expect(eq(str, (char *)buf_str(&first), (char *)buf_str(&second)));
    for (size_t k = 0; k < CONFIG_N_KEYS; k++)
        if (config_rows[k].section <= CONFIG_API)
            cr_expect(eq(i64, value(c, k)->i, value(again, k)->i), "%s", config_rows[k].name);
    cr_expect(eq(str, (char *)c->listeners[1]->values[LISTEN_address].s,
                 (char *)again->listeners[1]->values[LISTEN_address].s));
    cr_expect(eq(i64, again->listeners[1]->values[LISTEN_mode].i, 0600));
    config_free(c);
    config_free(again);
}

Test(config, a_dump_says_where_each_value_comes_from)
{
    BUF_LOCAL dump = BUF_INIT;
    struct config *c = load(config_write_text("fastchat.conf", full));

    config_dump(c, &dump);
    config_strip_folder(&dump);
    cr_expect(strstr(buf_str(&dump), "  restart_budget = 3;    # fastchat.conf:1\n") != NULL);
    cr_expect(strstr(buf_str(&dump), "  drain_s = 30;    # default\n") != NULL);
    cr_expect(strstr(buf_str(&dump), "      mode = \"0600\";    # fastchat.conf:3\n") != NULL);
    cr_expect(strstr(buf_str(&dump), "    queue = 4;    # fastchat.conf:4\n") != NULL);
    cr_expect(strstr(buf_str(&dump), "    # min_p is not set\n") != NULL);
    config_free(c);
}

Test(config, the_controller_is_told_its_part)
{
    BUF_LOCAL out = BUF_INIT;
    struct config *c = load(config_write_text("fastchat.conf", full));

    config_controller_settings(c, &out);
    config_strip_folder(&out);
    cr_expect(eq(str, (char *)buf_str(&out),
        "{\"role\":\"controller\",\"log_level\":\"warning\",\"runtime_dir\":\"run\",\"heartbeat_ms\":1000,"
        "\"dispatch\":\"lottery\",\"lease_ms\":7000,\"request_timeout_ms\":100000}"));
    config_free(c);
}

Test(config, the_api_is_told_its_part)
{
    BUF_LOCAL out = BUF_INIT;
    struct config *c = load(config_write_text("fastchat.conf", full));

    config_api_settings(c, &out);
    config_strip_folder(&out);
    cr_expect(eq(str, (char *)buf_str(&out),
        "{\"role\":\"api\",\"log_level\":\"warning\",\"runtime_dir\":\"run\",\"heartbeat_ms\":1000,"
        "\"controller\":\"run/controller.sock\",\"limits\":{\"max_connections\":10000,\"header_kb\":16,\"body_mb\":2,"
        "\"header_s\":10,\"body_s\":60,\"idle_s\":75,\"stall_s\":60},\"processes\":1,\"wait_s\":600,\"load_wait_s\":300,\"ping_s\":15,"
        "\"models\":[{\"name\":\"org/big-model\",\"aliases\":[\"big\",\"b:1\"],\"queue\":4,\"parallel\":8,\"replicas\":2}]}"));
    config_free(c);
}

Test(config, cpus_that_are_not_here_are_noted_and_none_at_all_is_a_fault)
{
    BUF_LOCAL errors = BUF_INIT;
    struct config *c = load(config_write_text("fastchat.conf", "defaults = { cpus = \"0,8190\"; };\n"
                                              "models = ({ name = \"x\"; path = \"m.gguf\"; },\n { name = \"y\"; path = \"m.gguf\"; cpus = \"0, 8191\"; });"));

    cr_expect(eq(str, (char *)c->models[0]->values[DEFAULTS_cpus].s, "0,8190"));
    cr_assert(eq(sz, c->n_notes, 2));
    cr_expect(strstr(c->notes[0], "fastchat.conf:1: defaults.cpus: not on this machine: 8190") != NULL, "%s", c->notes[0]);
    cr_expect(strstr(c->notes[1], "fastchat.conf:3: models[1].cpus: not on this machine: 8191") != NULL, "%s", c->notes[1]);
    config_free(c);
    cr_expect(lt(int, config_load(config_write_text("fastchat.conf", "defaults = { cpus = \"8191\"; };"), &c, &errors), 0));
    cr_expect(strstr(buf_str(&errors), "fastchat.conf:1: defaults.cpus: none of 8191 is on this machine, which has 0") != NULL, "%s", buf_str(&errors));
}

Test(config, what_a_process_keeps_is_in_its_fingerprint_and_the_rest_is_not)
{
    static const struct { const char *set; bool kept; } cases[] = {
        { "cpus = \"0\";", true }, { "numa_node = 0;", true }, { "cpu_quota = 50;", true },
        { "isa = \"scalar\";", true }, { "isa = \"auto\";", false }, { "kv_type = \"q8\";", true },
        { "memory_max_mb = 50;", false }, { "pids_max = 50;", false }, { "nice = 0;", false },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        BUF_LOCAL before = BUF_INIT;
        BUF_LOCAL after = BUF_INIT;
        BUF_LOCAL text = BUF_INIT;
        struct config *c = load(config_write_text("fastchat.conf", "models = ({ name = \"x\"; path = \"m.gguf\"; });"));

        config_fingerprint(c, CONFIG_MODEL, 0, &before);
        config_free(c);
        buf_printf(&text, "models = ({ name = \"x\"; path = \"m.gguf\"; %s });", cases[i].set);
        c = load(config_write_text("fastchat.conf", buf_str(&text)));
        config_fingerprint(c, CONFIG_MODEL, 0, &after);
        config_free(c);
        cr_expect(eq(int, strcmp(buf_str(&before), buf_str(&after)) != 0, cases[i].kept), "%s", cases[i].set);
    }
}

Test(config, a_worker_is_told_its_part)
{
    BUF_LOCAL out = BUF_INIT;
    BUF_LOCAL path = BUF_INIT;
    BUF_LOCAL want = BUF_INIT;
    struct config *c = load(config_write_text("fastchat.conf", full));

    config_worker_socket(c, 0, 1, 0, &path);
    config_worker_settings(c, 0, 1, "http://host.example:21003", buf_str(&path), &out);
    config_strip_folder(&out);
    config_strip_folder(&path);
    cr_expect(strncmp(buf_str(&path), "run/worker-org_big-model-", 25) == 0, "%s", buf_str(&path));
    buf_printf(&want,
        "{\"role\":\"worker\",\"log_level\":\"warning\",\"runtime_dir\":\"run\",\"heartbeat_ms\":1000,"
        "\"worker_name\":\"http://host.example:21003\",\"unix\":\"%s\","
        "\"controllers\":[\"unix:run/controller.sock\",\"http://10.0.0.1:21001\",\"unix:/x\"],"
        "\"model\":{\"name\":\"org/big-model\",\"aliases\":[\"big\",\"b:1\"],\"replica\":1,\"path\":\"m.gguf\",\"device\":\"cpu\","
        "\"context\":512,\"threads\":0,\"parallel\":8,\"queue\":4,\"kv_tokens\":5000000000,\"kv_type\":\"f16\",\"isa\":\"auto\",\"share_weights\":\"always\",\"prefix_cache\":\"per-key\",\"speculative\":\"off\",\"draft_tokens\":8,\"template\":\"auto\","
        "\"sampling\":{\"temperature\":1,\"top_p\":0.1,\"max_tokens\":9}}}", buf_str(&path));
    cr_expect(eq(str, (char *)buf_str(&out), (char *)buf_str(&want)));
    buf_clear(&path);
    config_worker_tcp(c, 0, 1, MODEL_advertise, &path);
    cr_expect(eq(str, (char *)buf_str(&path), "host.example:21003"));
    config_free(c);
}

Test(config, a_worker_is_told_the_instruction_set_of_its_model_or_of_all)
{
    static const char *const want[] = { "\"isa\":\"avx2\",", "\"isa\":\"neon-i8mm\"," };
    struct config *c = load(config_write_text("fastchat.conf",
        "defaults = { isa = \"avx2\"; };\n"
        "models = ({ name = \"x\"; path = \"m.gguf\"; }, { name = \"y\"; path = \"m.gguf\"; isa = \"neon-i8mm\"; });"));

    for (size_t i = 0; i < 2; i++) {
        BUF_LOCAL out = BUF_INIT;

        config_worker_settings(c, i, 0, "unix:/w", "/w", &out);
        cr_expect(ne(ptr, strstr(buf_str(&out), want[i]), NULL), "%s", buf_str(&out));
    }
    config_free(c);
}

Test(config, a_worker_is_told_of_a_draft_model_where_it_lies)
{
    BUF_LOCAL out = BUF_INIT;
    struct config *c = load(config_write_text("fastchat.conf",
        "defaults = { speculative = \"draft\"; draft_tokens = 5; };\n"
        "models = ({ name = \"x\"; path = \"m.gguf\"; draft_model = \"m.gguf\"; });"));

    config_worker_settings(c, 0, 0, "unix:/w", "/w", &out);
    config_strip_folder(&out);
    cr_expect(ne(ptr, strstr(buf_str(&out), "\"speculative\":\"draft\",\"draft_model\":\"m.gguf\",\"draft_tokens\":5,"), NULL), "%s", buf_str(&out));
    config_free(c);
}

Test(config, a_worker_without_a_service_around_it_has_its_controllers_only)
{
    BUF_LOCAL out = BUF_INIT;
    struct config *c = load(config_write_text("fastchat.conf",
        "supervisor = { parts = \"workers\"; };\n"
        "controller = { listen = \"127.0.0.1:21002\"; };\n"      /* of no effect, so not taken */
        "api = { listen = (); };\n"
        "models = ({ name = \"m\"; path = \"m.gguf\"; controllers = (\"10.0.0.1:21001\"); listen = \"127.0.0.1:21002\"; });\n"));

    cr_expect(config_only_workers(c));
    config_worker_settings(c, 0, 0, "http://127.0.0.1:21002", "x", &out);
    cr_expect(strstr(buf_str(&out), "\"controllers\":[\"http://10.0.0.1:21001\"],") != NULL, "%s", buf_str(&out));
    config_free(c);
}

Test(config, the_shipped_file_shows_every_key_with_default_unit_and_range)
{
    char path[PATH_MAX];
    CLEANUP(mem_free) char *text = calloc(1, 1 << 16);
    FILE *f;

    snprintf(path, sizeof path, "%s/etc/fastchat.conf", getenv("FASTCHAT_SOURCE"));
    f = fopen(path, "r");
    cr_assert(f != NULL);
    cr_assert(fread(text, 1, (1 << 16) - 1, f) > 0);
    fclose(f);
    for (size_t k = 0; k < CONFIG_N_KEYS; k++) {
        static const char *const starts[] = { "\nsupervisor:", "\ncontroller:", "\napi:", "\napi:", "\ndefaults:", "\nmodels:",
                                               "\ntemplates:" };
        const struct config_row *row = &config_rows[k];
        const char *section = strstr(text, starts[row->section]);
        const char *end, *doc, *line;
        BUF_LOCAL setting = BUF_INIT;
        BUF_LOCAL range = BUF_INIT;

        cr_assert(section != NULL);
        end = strstr(section, row->section >= CONFIG_MODEL ? "\n);" : "\n};");
        doc = strstr(section, row->doc);
        cr_assert(end && doc && doc < end, "%s is not described", row->name);
        if (row->def)
            config_row_default(row, &setting);
        else
            buf_printf(&setting, " %s = ", row->name);
        line = strstr(doc, buf_str(&setting));
        cr_assert(line && line < end, "no line %s", buf_str(&setting));
        config_row_range(row, &range);
        if (range.len) {
            const char *said = strstr(line + setting.len, buf_str(&range));

            cr_expect(said && said < strchr(line, '\n'), "%s: range is not \"%s\"", row->name, buf_str(&range));
            if (!row->def)
                cr_expect(strstr(line, "# not set; ") && strstr(line, "# not set; ") < said, "%s", row->name);
        }
    }
}

Test(config, the_shipped_file_is_fine_and_has_the_models_of_its_folders_only)
{
    char path[PATH_MAX];
    struct config *c;
    const struct config_value *folders;

    snprintf(path, sizeof path, "%s/etc/fastchat.conf", getenv("FASTCHAT_SOURCE"));
    c = load(path);
    folders = value(c, SUPERVISOR_model_folders);
    cr_assert(eq(sz, folders->n_list, 2));
    cr_expect(eq(str, (char *)folders->list[0], "/usr/share/fastchat/models"));
    cr_expect(eq(str, (char *)folders->list[1], "/var/lib/fastchat/models"));
    for (size_t m = 0; m < c->n_models; m++)
        cr_expect(zero(int, c->models[m]->line));
    config_free(c);
}

/* Takes the comment off every setting, and gives "[a]" examples real files. */
Test(config, the_shipped_file_is_fine_with_every_line_in_force)
{
    BUF_LOCAL text = BUF_INIT;
    BUF_LOCAL errors = BUF_INIT;
    struct config *c = NULL;
    char path[PATH_MAX], line[1024];
    bool in_listen = false, in_models = false;
    FILE *f;

    snprintf(path, sizeof path, "%s/etc/fastchat.conf", getenv("FASTCHAT_SOURCE"));
    f = fopen(path, "r");
    cr_assert(f != NULL);
    while (fgets(line, sizeof line, f)) {
        char *at = line + strspn(line, " #");
        char *equals = strstr(at, " = ");

        in_listen |= strstr(line, "In full, an entry") != NULL;
        in_listen &= strcmp(line, "\n") != 0;
        in_models |= strncmp(line, "models:", 7) == 0 || strncmp(line, "templates:", 10) == 0;
        if (strchr(line, '#') && equals && strcspn(at, " ") == (size_t)(equals - at) && !in_listen && !in_models &&
            strncmp(at, "group", 5) && strncmp(at, "model_dirs", 10))
            buf_adds(&text, at);
        else
            buf_adds(&text, line);
    }
    fclose(f);
    cr_expect(zero(int, config_load(config_write_text("fastchat.conf", buf_str(&text)), &c, &errors)), "%s", buf_str(&errors));
    config_free(c);
}
