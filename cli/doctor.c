/* doctor.c - `fastchat doctor`: what usually goes wrong, looked at one after the
 * other.
 *
 * Each check says one line, a few where several things can be wrong at once,
 * with what to do. All of them are made also when the service is down: then the
 * file is read by fastchatd here, and the user is that of the unit. A check that
 * cannot be made for want of permission says so and is no failure.
 */
#include "cli/doctor.h"

#include "base/cleanup.h"
#include "cli/commands.h"
#include "cli/daemon.h"
#include "cli/term.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { NAME_WIDTH = 14 };

/* ---- findings ---- */

static void write_finding(struct doctor *d, const char *verdict, const char *text, const char *todo)
{
    json_open(&d->writer, '{');
    json_kstr(&d->writer, "check", d->check);
    json_kstr(&d->writer, "result", verdict);
    json_kstr(&d->writer, "text", text);
    if (todo[0])
        json_kstr(&d->writer, "todo", todo);
    json_close(&d->writer, '}');
}

static void print_finding(struct doctor *d, enum verdict verdict, const char *name, const char *text, const char *todo)
{
    const char *paint[] = { term_green(), "", term_yellow(), term_red() };

    buf_printf(&d->out, "%s%-4s%s  %-*s ", paint[verdict], name, paint[verdict][0] ? term_plain() : "", NAME_WIDTH, d->check);
    term_put(&d->out, text);
    if (todo[0]) {
        buf_adds(&d->out, "; ");
        term_put(&d->out, todo);
    }
    buf_addc(&d->out, '\n');
}

void doctor_say(struct doctor *d, enum verdict verdict, const char *todo, const char *fmt, ...)
{
    static const char *const names[] = { [DOCTOR_OK] = "ok", [DOCTOR_INFO] = "info", [DOCTOR_WARN] = "warn", [DOCTOR_FAIL] = "fail" };
    BUF_LOCAL text = BUF_INIT;
    va_list ap;

    va_start(ap, fmt);
    buf_vprintf(&text, fmt, ap);
    va_end(ap);
    d->n_failed += verdict == DOCTOR_FAIL;
    if (d->json)
        write_finding(d, names[verdict], buf_str(&text), todo);
    else
        print_finding(d, verdict, names[verdict], buf_str(&text), todo);
    if (!d->json) {             /* a check may take a while: each line when it is there */
        fwrite(buf_str(&d->out), 1, d->out.len, stdout);
        fflush(stdout);
        buf_clear(&d->out);
    }
}

/* ---- looking ---- */

const char *doctor_read(const char *path, char *ret, size_t size)
{
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(ret, 1, size - 1, f) : 0;

    if (f)
        fclose(f);
    ret[n] = '\0';
    return ret;
}

/* ---- what is known beforehand ---- */

static void find_config(struct doctor *d)
{
    const char *path = d->file ? d->file : DAEMON_CONFIG;

    json_get_string(d->status, "config", &path, NULL);
    snprintf(d->config, sizeof d->config, "%s", path);
}

/* In force; from the file where nobody answers, or an older service does not know the
 * question. */
static void find_settings(struct doctor *d)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    CLEANUP(mem_free) char *refusal = NULL;
    const char *text = NULL;
    struct err ignored = { 0 };

    if (d->status && service_ask(&d->service, "{\"command\":\"config\"}", &tree, NULL, &refusal, &ignored) == 0 &&
        json_get_string(tree, "text", &text, NULL) == 0)
        buf_adds(&d->dump, text);
    else if (daemon_run((const char *const[]){ "--dump-config", "--config", d->config, NULL }, &d->dump, &ignored) != 0)
        buf_clear(&d->dump);
}

static void find_user(struct doctor *d)
{
    struct err ignored = { 0 };

    d->has_user = d->pid ? reach_process(d->pid, &d->user, &ignored) == 0 : reach_named("_fastchat", &d->user, &ignored) == 0;
    if (!d->has_user && geteuid() != 0)
        d->has_user = reach_self(&d->user, &ignored) == 0;
}

static void look_around(struct doctor *d)
{
    int64_t pid = 0;

    d->systemd = access("/run/systemd/system", F_OK) == 0;
    if (service_status(&d->service, &d->status, NULL, &d->down) == 0)
        json_get_int(d->status, "pid", 1, INT_MAX, &pid, NULL);
    d->pid = (pid_t)pid;
    find_config(d);
    find_settings(d);
    find_user(d);
}

/* ---- the command ---- */

static void run_checks(struct doctor *d)
{
    static const struct { const char *name; void (*fn)(struct doctor *); } checks[] = {
#define DOCTOR_CHECK(id, text) { text, doctor_##id },
        DOCTOR_CHECKS(DOCTOR_CHECK)
#undef DOCTOR_CHECK
    };

    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++) {
        d->check = checks[i].name;
        checks[i].fn(d);
    }
}

static void doctor_fini(struct doctor *d)
{
    cJSON_Delete(d->status);
    reach_fini(&d->user);
    buf_fini(&d->dump);
    buf_fini(&d->out);
}

int doctor_run(const struct command *cmd, int argc, char **argv)
{
    struct doctor d = { 0 };
    int r, code;
    const struct arg args[] = {
        ARG(config, &d.file),
        ARG(doctor_json, &d.json),
        ARG(runtime_dir, &d.service.runtime_dir),
    };

    r = args_parse(cmd, args, sizeof args / sizeof args[0], argc, argv, NULL, 0);
    if (r != ARGS_RUN)
        return r;
    d.writer = json_writer(&d.out);
    look_around(&d);
    if (d.json) {
        json_open(&d.writer, '{');
        json_key(&d.writer, "checks");
        json_open(&d.writer, '[');
    }
    run_checks(&d);
    if (d.json) {
        json_close(&d.writer, ']');
        json_kbool(&d.writer, "ok", d.n_failed == 0);
        json_close(&d.writer, '}');
        printf("%s\n", buf_str(&d.out));
    }
    code = d.n_failed ? CLI_FAILED : CLI_DONE;
    doctor_fini(&d);
    return code;
}
