/* run.c - `fastchat run`: one model without a configuration.
 *
 * A model that the running service offers is talked to there. Anything else is a
 * file, and gets a service of its own (private_service.h) with a configuration
 * that is made here: each setting of a model that makes sense for one is an
 * option of the same name, taken from the rows of config.def.
 */
#include "cli/commands.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/utf8.h"
#include "cli/chat.h"
#include "cli/fetch.h"
#include "cli/model_dirs.h"
#include "cli/models.h"
#include "cli/private_service.h"
#include "cli/service.h"
#include "cli/setting_rows.h"
#include "cli/term.h"
#include "daemon/model_name.h"
#include "ipc/address.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const enum config_key settings[] = {
#define SETTING(command, key) DEFAULTS_##key,
#include "cli/commands.def"
};
enum { N_SETTINGS = sizeof settings / sizeof settings[0], N_OWN = 9 };

struct run {
    const struct command *cmd;
    struct service_args service;
    struct chat_args chat;
    const char *operand, *name, *listen;
    bool serve, log;
    const char *texts[CONFIG_N_KEYS]; /* of the settings, where given */
    struct arg_number numbers[CONFIG_N_KEYS];

    char model[MODEL_NAME_MAX + 1];
    char path[PATH_MAX];
};

/* ---- the command line ---- */

/* The option of a setting; its name, with dashes, is written to `name`. */
static struct arg_row setting_row(enum config_key k, char name[32])
{
    const struct config_row *row = &setting_rows[k];
    struct arg_row a = { name, 0, ARG_TEXT, row->unit, row->min, row->max, row->doc };

    snprintf(name, 32, "%s", row->name);
    for (char *c = name; *c; c++)
        if (*c == '_')
            *c = '-';
    if (setting_is_number(k)) {
        a.kind = row->type == CONFIG_INT ? ARG_COUNT : ARG_NUMBER;
        a.value = row->type == CONFIG_INT ? "N" : "X";
    }
    return a;
}

static int parse(struct run *run, int argc, char **argv)
{
    static char names[N_SETTINGS][32];
    static struct arg_row of_settings[N_SETTINGS];
    const struct arg own[N_OWN] = {
        ARG(listen, &run->listen),
        ARG(log, &run->log),
        ARG(message, &run->chat.message),
        ARG(multiline, &run->chat.multiline),
        ARG(name, &run->name),
        ARG(no_history, &run->chat.no_history),
        ARG(runtime_dir, &run->service.runtime_dir),
        ARG(serve, &run->serve),
        ARG(system, &run->chat.system),
    };
    struct arg args[N_OWN + N_SETTINGS];

    memcpy(args, own, sizeof own);
    for (size_t i = 0; i < N_SETTINGS; i++) {
        enum config_key k = settings[i];

        of_settings[i] = setting_row(k, names[i]);
        args[N_OWN + i].row = &of_settings[i];
        args[N_OWN + i].to = setting_is_number(k) ? (void *)&run->numbers[k] : (void *)&run->texts[k];
    }
    return args_parse(run->cmd, args, N_OWN + N_SETTINGS, argc, argv, &run->operand, 1);
}

static bool is_choice(const char *text, const char *choices)
{
    size_t len = strlen(text);

    for (const char *at = choices; *at;) {
        size_t n = strcspn(at, "|");

        if (n == len && memcmp(at, text, n) == 0)
            return true;
        at += n + (at[n] == '|');
    }
    return false;
}

static bool is_name(const char *text)
{
    size_t n = strlen(text);

    for (const char *c = text; *c; c++)
        if (!model_name_char(*c))
            return false;
    return n > 0 && n <= MODEL_NAME_MAX;
}

static int check(const struct run *run)
{
    const struct command *cmd = run->cmd;
    struct address address;
    struct err err = { 0 };

    if (!run->operand || !run->operand[0])
        return args_mistake(cmd, "needs a model: a file, or a name");
    if (run->listen && !run->serve)
        return args_mistake(cmd, "--listen needs --serve");
    if (run->serve && run->chat.message)
        return args_mistake(cmd, "--serve and --message exclude each other");
    if (run->listen && address_parse(run->listen, &address, &err) < 0)
        return args_mistake(cmd, "--listen: %s", err_text(&err));
    if (run->listen && address.is_unix)
        return args_mistake(cmd, "--listen needs HOST:PORT");
    if (run->name && !is_name(run->name))
        return args_mistake(cmd, "--name: a name has up to %d letters, digits and " MODEL_NAME_EXTRA, MODEL_NAME_MAX);
    for (size_t i = 0; i < N_SETTINGS; i++) {
        const struct config_row *row = &setting_rows[settings[i]];
        const char *text = run->texts[settings[i]];

        if (text && row->type == CONFIG_CHOICE && !is_choice(text, row->unit))
            return args_mistake(cmd, "--%s can be %s, not '%s'", row->name, row->unit, text);
    }
    return ARGS_RUN;
}

/* ---- the file ---- */

static bool is_there(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && !S_ISDIR(st.st_mode);
}

/* FOLDER/NAME, else FOLDER/NAME.gguf, to run->path. */
static bool find_in(struct run *run, const char *folder)
{
    static const char *const ends[] = { "", ".gguf" };

    for (size_t i = 0; i < 2; i++)
        if (snprintf(run->path, sizeof run->path, "%s/%s%s", folder, run->operand, ends[i]) < (int)sizeof run->path &&
            is_there(run->path))
            return true;
    return false;
}

static bool find_in_model_dir(const char *folder, void *user)
{
    return find_in(user, folder);
}

/* A wrong one is refused here, where the sentence can be short; what is inside
 * is the worker's to judge. */
static int check_file(const struct run *run, struct err *err)
{
    CLEANUP(fd_close) int fd = open(run->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    const char *device = run->texts[DEFAULTS_device];
    char magic[4] = "";
    struct stat st;

    if (!utf8_is_valid(run->path, strlen(run->path)))
        return err_set(err, -EINVAL, "%s: its name is not UTF-8", run->operand);
    for (const char *c = run->path; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7F)
            return err_set(err, -EINVAL, "%s: its name holds a control character", run->operand);
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_errno(err, -errno, "%s", run->operand);
    if (!S_ISREG(st.st_mode))
        return err_set(err, -EINVAL, "%s: is no regular file", run->path);
    if (device && strcmp(device, "scripted") == 0)
        return 0;
    if (read(fd, magic, 4) != 4 || memcmp(magic, "GGUF", 4) != 0)
        return err_set(err, -EINVAL, "%s: is no GGUF file", run->path);
    return 0;
}

static int find_file(struct run *run, struct err *err)
{
    char real[PATH_MAX];
    bool is_path = strchr(run->operand, '/') != NULL;

    if (is_path || is_there(run->operand))
        snprintf(run->path, sizeof run->path, "%s", run->operand);
    else if (!find_in(run, ".") && !model_dirs_each(find_in_model_dir, run))
        return err_set(err, -ENOENT,
                       "there is no model '%s': no running service offers it, and there is no such file here or in "
                       "the folders of supervisor.model_dirs. 'fastchat pull' fetches models",
                       run->operand);
    if (!realpath(run->path, real))
        return err_errno(err, -errno, "%s", run->operand);
    strcpy(run->path, real);
    return check_file(run, err);
}

static int find_name(struct run *run, struct err *err)
{
    if (run->name)
        snprintf(run->model, sizeof run->model, "%s", run->name);
    else if (!model_name_of_file(run->operand, run->model))
        return err_set(err, -EINVAL, "%s: nothing in this can be the name of a model; give one with --name",
                       run->operand);
    return 0;
}

/* ---- the configuration ---- */

static void put_setting(struct buf *out, const struct run *run, enum config_key k)
{
    if (setting_is_number(k) ? !run->numbers[k].given : !run->texts[k])
        return;
    buf_printf(out, "    %s = ", setting_rows[k].name);
    if (setting_rows[k].type == CONFIG_INT)
        buf_printf(out, "%lld", (long long)run->numbers[k].value);
    else if (setting_rows[k].type == CONFIG_FLOAT)
        buf_printf(out, "%.9f", run->numbers[k].value);
    else
        buf_quote(out, run->texts[k]);
    buf_adds(out, ";\n");
}

static void write_config(const struct run *run, const char *dir, struct buf *out)
{
    buf_adds(out, "supervisor: {\n  runtime_dir = ");
    buf_quote(out, dir);
    buf_printf(out, ";\n  log_level = \"%s\";\n  drain_s = 5;\n  bus = \"none\";\n};\n", run->log ? "info" : "warning");
    buf_adds(out, "api: {\n  listen = ( { address = \"unix:api.sock\"; mode = \"0600\"; }");
    if (run->serve) {
        buf_adds(out, ", ");
        buf_quote(out, run->listen ? run->listen : setting_rows[API_listen].def);
    }
    buf_adds(out, " );\n};\nmodels: (\n  {\n    name = ");
    buf_quote(out, run->model);
    buf_adds(out, ";\n    path = ");
    buf_quote(out, run->path);
    buf_adds(out, ";\n");
    for (size_t i = 0; i < N_SETTINGS; i++)
        put_setting(out, run, settings[i]);
    buf_adds(out, "  }\n);\n");
}

/* ---- what is done with it ---- */

/* Blocks until a signal ends it; 0 when that was asked for. */
static int stay(struct private_service *p, struct err *err)
{
    int r;

    while ((r = private_check(p, err)) == 0) {
        struct pollfd fd = { .fd = term_interrupts(), .events = POLLIN };

        if (poll(&fd, 1, -1) > 0 && term_was_interrupted())
            return private_check(p, err);
    }
    return r;
}

static int serve(const struct run *run, struct private_service *p, const struct service_args *args)
{
    BUF_LOCAL url = BUF_INIT;
    struct err err = { 0 };

    if (service_url(args, &url, &err) < 0)
        return service_failed(&err);
    printf("%s is served at %s\n"
           "Ctrl-C stops it; 'fastchat status --runtime-dir %s' shows how it is.\n",
           run->model, buf_str(&url), args->runtime_dir);
    fflush(stdout);
    return stay(p, &err) < 0 ? service_failed(&err) : CLI_DONE;
}

static int run_private(struct run *run)
{
    CLEANUP(private_stop) struct private_service *p = NULL;
    struct service_args args = { 0 };
    BUF_LOCAL config = BUF_INIT;
    struct target api;
    struct err err = { 0 };
    int r, code;

    if (find_file(run, &err) < 0 || find_name(run, &err) < 0 || private_open(&p, &err) < 0)
        return service_failed(&err);
    args.runtime_dir = private_dir(p);
    write_config(run, args.runtime_dir, &config);
    if (config.failed)
        err_set(&err, -ENOMEM, "no memory");
    r = config.failed ? -ENOMEM : private_start(p, buf_str(&config), run->log, &err);
    if (r == 0)
        r = private_wait(p, run->model, &err);
    if (r == PRIVATE_INTERRUPTED)
        return CLI_FAILED;
    if (r < 0)
        return service_failed(&err);
    if (run->serve)
        return serve(run, p, &args);
    if (service_api(&args, &api, &err) < 0)
        return service_failed(&err);
    code = chat_with(&api, run->model, &run->chat);
    return private_check(p, &err) < 0 ? service_failed(&err) : code;
}

/* True when the running service offers a model of this name. */
static bool is_offered(const struct run *run, struct target *ret_api)
{
    struct err ignored = { 0 };

    bool is_file = strchr(run->operand, '/') && access(run->operand, F_OK) == 0;

    return !is_file && !run->listen && !run->name && service_api(&run->service, ret_api, &ignored) == 0 &&
           models_has(ret_api, run->operand);
}

/* Sampling goes with each request; the rest is the service's. */
static int run_offered(struct run *run, const struct target *api)
{
    static const enum config_key of_requests[] = { DEFAULTS_max_tokens, DEFAULTS_temperature, DEFAULTS_top_p };
    struct arg_number *const to[] = { &run->chat.max_tokens, &run->chat.temperature, &run->chat.top_p };
    BUF_LOCAL url = BUF_INIT;
    struct err err = { 0 };

    if (run->serve) {
        if (service_url(&run->service, &url, &err) < 0)
            return service_failed(&err);
        printf("%s is served already at %s\n", run->operand, buf_str(&url));
        return CLI_DONE;
    }
    for (size_t i = 0; i < sizeof of_requests / sizeof of_requests[0]; i++) {
        *to[i] = run->numbers[of_requests[i]];
        run->numbers[of_requests[i]].given = false;
    }
    for (size_t i = 0; i < N_SETTINGS; i++)
        if (run->numbers[settings[i]].given || run->texts[settings[i]])
            term_error("the running service offers %s, with its own %s", run->operand, setting_rows[settings[i]].name);
    return chat_with(api, run->operand, &run->chat);
}

int run_run(const struct command *cmd, int argc, char **argv)
{
    struct run run = { .cmd = cmd };
    struct target api;
    int r = parse(&run, argc, argv);

    if (r == ARGS_RUN)
        r = check(&run);
    if (r != ARGS_RUN)
        return r;
    term_catch_end();
    return is_offered(&run, &api) ? run_offered(&run, &api) : run_private(&run);
}
