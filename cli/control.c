/* control.c - `fastchat drain`, `load`, `reload`, `unload`, `upgrade`: what the
 * running service is to do. The subcommand's name is the command's. */
#include "cli/commands.h"

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "cli/service.h"
#include "cli/term.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static void write_command(const char *name, const char *model, struct buf *out)
{
    struct json_writer w = json_writer(out);

    json_open(&w, '{');
    json_kstr(&w, "command", name);
    if (model)
        json_kstr(&w, "model", model);
    json_close(&w, '}');
}

static int finish(int r, const char *message)
{
    if (r == SERVICE_REFUSED) {
        term_complain(message);
        return CLI_FAILED;
    }
    if (message && message[0]) {
        term_write(message, strlen(message));
        putchar('\n');
    }
    return CLI_DONE;
}

static int control(const struct command *cmd, int argc, char **argv)
{
    struct service_args service = { 0 };
    CLEANUP(mem_free) char *message = NULL;
    const char *model = NULL;
    BUF_LOCAL json = BUF_INIT;
    struct err err = { 0 };
    bool no_wait = false, takes_model = cmd->operands[0], needs_model = cmd->operands[0] == 'M';
    int r;
    const struct arg args[] = {
        ARG(no_wait, &no_wait),
        ARG(runtime_dir, &service.runtime_dir),
    };

    r = args_parse(cmd, args, sizeof args / sizeof args[0], argc, argv, &model, takes_model);
    if (r != ARGS_RUN)
        return r;
    if (needs_model && !model)
        return args_mistake(cmd, "needs a model's name");
    write_command(cmd->name, model, &json);
    r = json.failed ? err_set(&err, -ENOMEM, "no memory")
                    : service_command(&service, buf_str(&json), no_wait ? -1 : term_interrupts(),
                                      no_wait ? NULL : &message, &err);
    if (r < 0)
        return service_failed(&err);
    if (r == SERVICE_LEFT) {
        term_error("not waited for; the service goes on with it");
        return CLI_FAILED;
    }
    return finish(r, message);
}

int drain_run(const struct command *cmd, int argc, char **argv)
{
    return control(cmd, argc, argv);
}

int load_run(const struct command *cmd, int argc, char **argv)
{
    return control(cmd, argc, argv);
}

int reload_run(const struct command *cmd, int argc, char **argv)
{
    return control(cmd, argc, argv);
}

int unload_run(const struct command *cmd, int argc, char **argv)
{
    return control(cmd, argc, argv);
}

int upgrade_run(const struct command *cmd, int argc, char **argv)
{
    return control(cmd, argc, argv);
}
