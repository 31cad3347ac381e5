/* logs.c - `fastchat logs`: what the service has said, of all of it or of one model
 * or process.
 *
 * journalctl reads the journal: it knows rotated files, boots, --since and
 * who may read what, and it belongs to the journal's own version; libsystemd's
 * reader would bring compression libraries into a program that has none, and
 * cannot read a newer journal's files where this one is a static build. It is
 * told which lines (unit and fields) and gives JSON, which is shown here with the process
 * that each line is from.
 *
 * The unit is that of the process that answers; when none does, fastchat.service,
 * since the log matters most then. A service that systemd did not start logs to
 * its stderr, and where that leads is said.
 */
#include "cli/commands.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "base/process.h"
#include "cli/service.h"
#include "cli/term.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

enum { MAX_ARGS = 40, DEFAULT_LINES = 100, LINE_BYTES = 1 << 20, EXIT_NO_PROGRAM = 127 };

struct logs {
    struct service_args service;
    struct arg_number lines;
    const char *since, *child;      /* child: a model, or a process; NULL: all */
    bool follow, json;

    char unit[256];
    bool of_user;                   /* it is a unit of somebody's own systemd */
    char model[160];                /* whose alias `child` is; "": none's */
    size_t n_shown;
};

/* ---- whose lines ---- */

static ssize_t read_proc(pid_t pid, const char *name, char *ret, size_t size)
{
    char path[64];
    ssize_t n = -1;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    f = fopen(path, "re");
    if (f) {
        n = (ssize_t)fread(ret, 1, size - 1, f);
        fclose(f);
    }
    ret[n > 0 ? n : 0] = '\0';
    return n;
}

/* The last ".service" of a path such as /system.slice/fastchat.service/supervisor. */
static bool find_unit(const char *cgroup, struct logs *l)
{
    const char *path = strstr(cgroup, "0::");
    size_t n;

    l->unit[0] = '\0';
    for (const char *at = path ? path + 3 : ""; *at && *at != '\n'; at += n) {
        at += *at == '/';
        n = strcspn(at, "/\n");
        if (n <= 8 || n >= sizeof l->unit || memcmp(at + n - 8, ".service", 8) != 0)
            continue;
        l->of_user |= strncmp(at, "user@", 5) == 0;
        snprintf(l->unit, sizeof l->unit, "%.*s", (int)n, at);
    }
    return l->unit[0] && strncmp(l->unit, "user@", 5) != 0;
}

/* Is this descriptor what systemd gave it as the journal's stream? */
static bool is_journal(pid_t pid, const char *link)
{
    CLEANUP(mem_free) char *environment = malloc(1 << 18);
    unsigned long long dev, ino, own;
    ssize_t n = environment ? read_proc(pid, "environ", environment, 1 << 18) : -1;

    if (sscanf(link, "socket:[%llu]", &own) != 1)
        return false;
    for (const char *at = environment; n > 0 && at < environment + n; at += strlen(at) + 1)
        if (sscanf(at, "JOURNAL_STREAM=%llu:%llu", &dev, &ino) == 2)
            return ino == own;
    return n <= 0;              /* nobody lets us look: it may be */
}

/* Where the log of a running service is. 0, or -ENOENT with a sentence. */
static int find_log(pid_t pid, struct logs *l, struct err *err)
{
    char path[64], link[PATH_MAX], cgroup[4096];
    ssize_t n;

    snprintf(path, sizeof path, "/proc/%d/fd/2", (int)pid);
    n = readlink(path, link, sizeof link - 1);
    link[n > 0 ? n : 0] = '\0';
    if (n > 0 && !is_journal(pid, link)) {
        if (link[0] == '/' && strncmp(link, "/dev/", 5) != 0)
            return err_set(err, -ENOENT, "the service (process %d) was not started by systemd; its log is the file %s", (int)pid, link);
        return err_set(err, -ENOENT, "the service (process %d) was not started by systemd; its log goes to %s", (int)pid,
                       strcmp(link, "/dev/null") == 0 ? "/dev/null and is lost" : link);
    }
    if (read_proc(pid, "cgroup", cgroup, sizeof cgroup) <= 0 || !find_unit(cgroup, l))
        return err_set(err, -ENOENT, "the service (process %d) belongs to no unit of systemd; its log goes where its standard error does", (int)pid);
    return 0;
}

/* The name of the model that has this alias. */
static void resolve(const cJSON *status, struct logs *l)
{
    const cJSON *models = NULL, *model, *aliases, *alias;

    json_get_array(status, "models", &models, NULL);
    cJSON_ArrayForEach(model, models)
    {
        const char *name = "";

        aliases = NULL;
        json_get_string(model, "name", &name, NULL);
        json_get_array(model, "aliases", &aliases, NULL);
        cJSON_ArrayForEach(alias, aliases)
            if (cJSON_IsString(alias) && strcmp(alias->valuestring, l->child) == 0)
                snprintf(l->model, sizeof l->model, "%s", name);
    }
}

static int find(struct logs *l, struct err *err)
{
    CLEANUP(json_delete) cJSON *status = NULL;
    struct err nobody = { 0 };
    int64_t pid = 0;

    if (service_status(&l->service, &status, NULL, &nobody) < 0) {
        snprintf(l->unit, sizeof l->unit, "fastchat.service");
        return 0;
    }
    if (l->child)
        resolve(status, l);
    json_get_int(status, "pid", 1, INT_MAX, &pid, NULL);
    return find_log((pid_t)pid, l, err);
}

/* ---- the question ---- */

struct question {
    const char *argv[MAX_ARGS + 1];
    size_t n;
    char lines[32], matches[6][300];
};

static void add(struct question *q, const char *arg)
{
    if (q->n < MAX_ARGS)
        q->argv[q->n++] = arg;
}

/* Any of these fields; what is in front of them (the unit) must hold too. */
static void add_matches(struct question *q, const struct logs *l)
{
    static const char *const fields[] = { "FASTCHAT_MODEL=", "FASTCHAT_ROLE=", "FASTCHAT_CHILD=", "FASTCHAT_ROLE=worker ",
                                          "FASTCHAT_CHILD=worker " };
    enum { N = sizeof fields / sizeof fields[0] };

    for (size_t i = 0; i < N; i++) {
        snprintf(q->matches[i], sizeof q->matches[i], "%s%s", fields[i], l->child);
        if (i > 0)
            add(q, "+");
        add(q, q->matches[i]);
    }
    if (l->model[0]) {
        snprintf(q->matches[N], sizeof q->matches[N], "FASTCHAT_MODEL=%s", l->model);
        add(q, "+");
        add(q, q->matches[N]);
    }
}

static void make_question(struct question *q, const struct logs *l)
{
    add(q, "journalctl");
    add(q, "--no-pager");
    add(q, "--output=json");
    add(q, l->of_user ? "--user-unit" : "--unit");
    add(q, l->unit);
    if (l->follow)
        add(q, "--follow");
    if (l->lines.given || !l->since) {
        snprintf(q->lines, sizeof q->lines, "--lines=%d", l->lines.given ? (int)l->lines.value : DEFAULT_LINES);
        add(q, q->lines);
    }
    if (l->since) {
        add(q, "--since");
        add(q, l->since);
    }
    if (l->child)
        add_matches(q, l);
}

/* ---- the lines ---- */

/* Text that is not UTF-8 comes as a list of bytes. */
static void put_field(const cJSON *line, const char *name, struct buf *out)
{
    const cJSON *field = json_find(line, name), *byte;

    if (cJSON_IsString(field))
        buf_adds(out, field->valuestring);
    cJSON_ArrayForEach(byte, field) buf_addc(out, (char)(cJSON_IsNumber(byte) ? byte->valueint : '?'));
}

static const char *paint_of(int priority)
{
    if (priority <= LOG_ERR)
        return term_red();
    return priority == LOG_WARNING ? term_yellow() : priority == LOG_NOTICE ? term_bold() : "";
}

static int number_of(const cJSON *line, const char *name, int otherwise)
{
    const char *text = "";

    return json_get_string(line, name, &text, NULL) == 0 && text[0] ? atoi(text) : otherwise;
}

/* "Nov 30 11:22:33 worker m/0: text" */
static void show_line(const cJSON *line)
{
    const char *us = "0", *paint = paint_of(number_of(line, "PRIORITY", LOG_INFO));
    BUF_LOCAL text = BUF_INIT;
    BUF_LOCAL out = BUF_INIT;
    time_t at;
    struct tm tm;
    char stamp[32];

    json_get_string(line, "__REALTIME_TIMESTAMP", &us, NULL);
    at = (time_t)(strtoull(us, NULL, 10) / 1000000);
    localtime_r(&at, &tm);
    strftime(stamp, sizeof stamp, "%b %d %H:%M:%S", &tm);
    put_field(line, json_find(line, "FASTCHAT_ROLE") ? "FASTCHAT_ROLE" : "SYSLOG_IDENTIFIER", &text);
    buf_adds(&text, ": ");
    put_field(line, "MESSAGE", &text);
    buf_printf(&out, "%s %s", stamp, paint);
    term_put(&out, buf_str(&text));
    buf_printf(&out, "%s\n", paint[0] ? term_plain() : "");
    fwrite(buf_str(&out), 1, out.len, stdout);
}

/* False: nobody reads what we print. */
static bool take_line(struct logs *l, const char *line, size_t len)
{
    CLEANUP(json_delete) cJSON *tree = NULL;

    if (len == 0 || line[0] != '{')
        return true;            /* "-- No entries --" */
    l->n_shown++;
    if (l->json)
        fwrite(line, 1, len, stdout);
    else if (json_parse(line, len, NULL, &tree, NULL) == 0)
        show_line(tree);
    if (l->json)
        putchar('\n');
    return !ferror(stdout);
}

static void take_lines(struct logs *l, int fd)
{
    BUF_LOCAL all = { .limit = 64 << 20 };
    char *room;
    ssize_t n;

    while ((room = buf_room(&all, LINE_BYTES))) {
        const char *newline;

        n = read(fd, room, LINE_BYTES);
        if (n == 0 || (n < 0 && errno != EINTR))
            return;
        buf_grew(&all, n > 0 ? (size_t)n : 0);
        while (all.len && (newline = memchr(all.data, '\n', all.len))) {
            size_t len = (size_t)(newline - all.data);

            if (!take_line(l, all.data, len))
                return;
            buf_drop(&all, len + 1);
        }
        if (fflush(stdout))
            return;
    }
}

static _Noreturn void become(const struct question *q, int out, pid_t parent)
{
    process_fresh();
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent || dup2(out, STDOUT_FILENO) < 0)
        _exit(1);
    execvp(q->argv[0], (char *const *)q->argv);
    _exit(EXIT_NO_PROGRAM);
}

/* journalctl's exit code, or -errno. */
static int ask(struct logs *l, const struct question *q, struct err *err)
{
    pid_t parent = getpid(), child;
    int fds[2], status;

    if (pipe2(fds, O_CLOEXEC) < 0)
        return err_errno(err, -errno, "a pipe");
    fflush(stdout);
    child = fork();
    if (child == 0)
        become(q, fds[1], parent);
    close(fds[1]);
    if (child > 0)
        take_lines(l, fds[0]);
    close(fds[0]);              /* if it still writes, it ends by that */
    if (child < 0)
        return err_errno(err, -EAGAIN, "journalctl");
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return err_errno(err, -errno, "journalctl");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static int finish(const struct logs *l, int code)
{
    if (code == EXIT_NO_PROGRAM) {
        term_error("there is no journalctl here, and it reads the journal: without systemd the log is what the service writes to standard error");
        return CLI_FAILED;
    }
    if (l->n_shown == 0)
        term_error("the journal has no lines of %s%s%s%s", l->unit, l->child ? " about " : "", l->child ? l->child : "",
                   geteuid() == 0 ? "" : " that you may read: use sudo, or join the group systemd-journal");
    return code == 0 ? CLI_DONE : CLI_FAILED;
}

int logs_run(const struct command *cmd, int argc, char **argv)
{
    struct logs l = { 0 };
    struct question q = { 0 };
    struct err err = { 0 };
    int r;
    const struct arg args[] = {
        ARG(follow, &l.follow),
        ARG(logs_json, &l.json),
        ARG(lines, &l.lines),
        ARG(runtime_dir, &l.service.runtime_dir),
        ARG(since, &l.since),
    };

    r = args_parse(cmd, args, sizeof args / sizeof args[0], argc, argv, &l.child, 1);
    if (r != ARGS_RUN)
        return r;
    if (l.child && strlen(l.child) > 200)
        return args_mistake(cmd, "no model or process has such a long name");
    r = find(&l, &err);
    if (r == 0) {
        make_question(&q, &l);
        r = ask(&l, &q, &err);
    }
    if (r < 0) {
        term_error("%s", err_text(&err));
        return CLI_FAILED;
    }
    return finish(&l, r);
}
