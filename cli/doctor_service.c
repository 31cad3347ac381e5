/* The service itself: its unit, its answer, its programs, its configuration, its
 * processes and its API. */
#include "cli/doctor.h"

#include "base/cleanup.h"
#include "cli/daemon.h"
#include "cli/fetch.h"
#include "cli/program.h"
#include "cli/settings.h"
#include "ipc/address.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEALTH_MS = 5000 };

static const char *text_of(const cJSON *obj, const char *key)
{
    const char *v = "";

    json_get_string(obj, key, &v, NULL);
    return v;
}

/* ---- unit ---- */

/* The value of KEY=VALUE, a line of systemctl's. */
static const char *property(const char *lines, const char *key, char *ret, size_t size)
{
    size_t n = strlen(key);

    ret[0] = '\0';
    for (const char *at = lines; at; at = strchr(at, '\n')) {
        at += *at == '\n';
        if (strncmp(at, key, n) == 0 && at[n] == '=')
            snprintf(ret, size, "%.*s", (int)strcspn(at + n + 1, "\n"), at + n + 1);
    }
    return ret;
}

static void say_unit(struct doctor *d, const char *lines)
{
    char load[64], active[64], sub[64], file[64], result[64];

    property(lines, "ActiveState", active, sizeof active);
    property(lines, "SubState", sub, sizeof sub);
    property(lines, "Result", result, sizeof result);
    property(lines, "UnitFileState", file, sizeof file);
    if (strcmp(property(lines, "LoadState", load, sizeof load), "masked") == 0) {
        doctor_say(d, DOCTOR_FAIL, "'systemctl unmask fastchat'", "fastchat.service is masked");
        return;
    }
    if (strcmp(load, "loaded") != 0) {
        doctor_say(d, DOCTOR_INFO, "", "there is no fastchat.service (%s)", load);
        return;
    }
    if (strcmp(active, "failed") == 0)
        doctor_say(d, DOCTOR_FAIL, "'fastchat logs' says why; then 'systemctl restart fastchat'", "fastchat.service has failed (%s)", result);
    else if (strcmp(active, "inactive") == 0)
        doctor_say(d, d->status ? DOCTOR_INFO : DOCTOR_FAIL, d->status ? "" : "'systemctl start fastchat'", "fastchat.service is not started%s",
                   d->status ? "; the service runs without it" : "");
    else if (strcmp(file, "enabled") != 0 && strcmp(file, "static") != 0)
        doctor_say(d, DOCTOR_WARN, "'systemctl enable fastchat'", "fastchat.service is %s (%s), and %s: it will not start with the machine",
                   active, sub, file);
    else
        doctor_say(d, strcmp(active, "active") == 0 ? DOCTOR_OK : DOCTOR_WARN, "", "fastchat.service is %s (%s), %s", active, sub, file);
}

void doctor_unit(struct doctor *d)
{
    const char *const ask[] = { "systemctl", "show", "fastchat.service", "--property=LoadState,ActiveState,SubState,Result,UnitFileState", NULL };
    BUF_LOCAL lines = BUF_INIT;

    if (!d->systemd)
        doctor_say(d, DOCTOR_INFO, "", "this machine is not run by systemd");
    else if (program_run(ask, &lines, PROGRAM_ERRORS_NOWHERE, NULL) != 0)
        doctor_say(d, DOCTOR_WARN, "", "systemctl does not answer");
    else
        say_unit(d, buf_str(&lines));
}

/* ---- service ---- */

void doctor_service(struct doctor *d)
{
    if (d->status)
        doctor_say(d, DOCTOR_OK, "", "process %d answers in %s, as user %s", (int)d->pid, service_runtime_dir(&d->service), d->has_user ? d->user.name : "?");
    else
        doctor_say(d, DOCTOR_FAIL, "", "%s", err_text(&d->down));
    if (!d->has_user)
        doctor_say(d, DOCTOR_WARN, "'systemd-sysusers', or install the package again", "there is no user _fastchat for it to run as");
}

/* ---- version ---- */

void doctor_version(struct doctor *d)
{
    BUF_LOCAL out = BUF_INIT;
    struct err err = { 0 };
    char path[64], exe[PATH_MAX], installed[64] = "";
    const char *running = text_of(d->status, "version");
    ssize_t n;

    if (daemon_run((const char *const[]){ "--version", NULL }, &out, &err) != 0 || sscanf(buf_str(&out), "fastchatd %63s", installed) != 1) {
        doctor_say(d, DOCTOR_FAIL, "install the package again", "%s", err_is_set(&err) ? err_text(&err) : "fastchatd --version says nothing");
        return;
    }
    snprintf(path, sizeof path, "/proc/%d/exe", (int)d->pid);
    n = d->status ? readlink(path, exe, sizeof exe - 1) : -1;
    exe[n > 0 ? n : 0] = '\0';
    if (strcmp(installed, FASTCHAT_VERSION) != 0)
        doctor_say(d, DOCTOR_WARN, "install them from one package", "this command is %s, and fastchatd beside it %s", FASTCHAT_VERSION, installed);
    if (d->status && strcmp(running, installed) != 0)
        doctor_say(d, DOCTOR_WARN, "'fastchat upgrade'", "the service runs %s, installed is %s", running, installed);
    else if (n > 10 && strcmp(exe + n - 10, " (deleted)") == 0)
        doctor_say(d, DOCTOR_WARN, "'fastchat upgrade'", "the service runs a program that was replaced since");
    else
        doctor_say(d, DOCTOR_OK, "", "%s", installed);
}

/* ---- configuration ---- */

/* The first line of several. */
static void say_faults(struct doctor *d, const char *text)
{
    size_t n = strcspn(text, "\n");
    bool more = text[n] && text[n + 1];

    doctor_say(d, DOCTOR_FAIL, d->status ? "the service goes on with what it read before" : "it will not start", "%.*s%s", (int)n, text,
               more ? " … ('fastchat config check' shows all)" : "");
}

static void check_running(struct doctor *d)
{
    CLEANUP(json_delete) cJSON *plan = NULL;
    CLEANUP(mem_free) char *faults = NULL;
    const cJSON *changes = NULL, *processes = NULL;
    struct err err = { 0 };
    int n, r = service_ask(&d->service, "{\"command\":\"plan\"}", &plan, NULL, &faults, &err);

    json_get_array(plan, "changes", &changes, NULL);
    json_get_array(plan, "processes", &processes, NULL);
    n = cJSON_GetArraySize(changes) + cJSON_GetArraySize(processes);
    if (r < 0)
        doctor_say(d, DOCTOR_WARN, "", "%s", err_text(&err));
    else if (r == SERVICE_REFUSED)
        say_faults(d, faults);
    else if (text_of(plan, "refused")[0])
        doctor_say(d, DOCTOR_WARN, "", "%s", text_of(plan, "refused"));
    else if (n > 0)
        doctor_say(d, DOCTOR_WARN, "'fastchat config diff' shows what, 'fastchat reload' uses it", "%s is fine, and not what is in force", d->config);
    else
        doctor_say(d, DOCTOR_OK, "", "%s is fine and in force", d->config);
}

void doctor_config(struct doctor *d)
{
    BUF_LOCAL out = BUF_INIT;
    struct err err = { 0 };
    int r;

    if (d->status) {
        check_running(d);
        return;
    }
    r = daemon_run((const char *const[]){ "--check-config", "--config", d->config, NULL }, &out, &err);
    if (r < 0)
        doctor_say(d, DOCTOR_FAIL, "", "%s", err_text(&err));
    else if (r != 0)
        say_faults(d, buf_str(&out));
    else
        doctor_say(d, DOCTOR_OK, "", "%s is fine", d->config);
}

/* ---- processes ---- */

static void name_of(const cJSON *child, char *ret, size_t size)
{
    const char *model = text_of(child, "model");
    int64_t replica = 0;

    json_get_int(child, "replica", 0, INT_MAX, &replica, NULL);
    snprintf(ret, size, model[0] ? "%s %s/%d" : "%s", text_of(child, "role"), model, (int)replica);
}

void doctor_processes(struct doctor *d)
{
    const cJSON *children = NULL, *child;
    int n = 0, n_bad = 0;

    if (!d->status)
        return;
    json_get_array(d->status, "children", &children, NULL);
    cJSON_ArrayForEach(child, children)
    {
        const char *state = text_of(child, "state");
        bool failed = strcmp(state, "failed") == 0;
        int64_t restarts = 0;
        char name[200];

        n++;
        name_of(child, name, sizeof name);
        json_get_int(child, "restarts", 0, INT64_MAX / 2, &restarts, NULL);
        if (failed || strcmp(state, "restarting") == 0)
            doctor_say(d, failed ? DOCTOR_FAIL : DOCTOR_WARN, failed ? "correct that, then 'fastchat reload'" : "it is tried again", "%s is %s: %s",
                       name, state, text_of(child, "reason"));
        else if (restarts > 0)
            doctor_say(d, DOCTOR_WARN, "'fastchat logs' has the times", "%s was started again %lld times, at last: %s", name, (long long)restarts,
                       text_of(child, "last_reason"));
        else
            continue;
        n_bad++;
    }
    if (n_bad == 0)
        doctor_say(d, DOCTOR_OK, "", "%d as they should be", n);
}

/* ---- api ---- */

static void ask_health(struct doctor *d, const char *text)
{
    struct target target;
    struct fetch f = { .target = &target, .path = "/health", .timeout_ms = HEALTH_MS, .interrupt_fd = -1 };
    struct err err = { 0 };
    char address[256];
    int r;

    service_reachable(text, address, sizeof address);
    r = target_parse(address, &target, &err);
    if (r == 0)
        r = fetch_run(&f, &err);
    if (r == -EACCES)
        doctor_say(d, DOCTOR_INFO, "", "%s: not for this user", text);
    else if (r != 0)
        doctor_say(d, DOCTOR_FAIL, "", "%s: %s", text, err_text(&err));
    else if (f.status == 200)
        doctor_say(d, DOCTOR_OK, "", "%s answers", text);
    else
        doctor_say(d, DOCTOR_WARN, "'fastchat status' shows what is under way", "%s answers /health with status %d", text, f.status);
    buf_fini(&f.answer);
}

/* Could it be bound? Ports only: to try a Unix socket would replace its file. */
static void try_port(struct doctor *d, const char *text)
{
    struct address a;
    struct err err = { 0 };
    int fd = -1, r = address_parse(text, &a, &err);

    if (r == 0 && a.is_unix)
        return;
    if (r == 0)
        r = address_listen(&a, 1, 0, (gid_t)-1, &fd, &err);
    if (r == 0)
        doctor_say(d, DOCTOR_OK, "", "%s is free for it", text);
    else
        doctor_say(d, DOCTOR_FAIL, r == -EADDRINUSE ? "end that, or let one of them use another port" : "", "%s", err_text(&err));
    fd_close(fd);
}

void doctor_api(struct doctor *d)
{
    const cJSON *list = NULL, *item;
    const char *at = buf_str(&d->dump), *part;
    char address[256];

    json_get_array(d->status, "listeners", &list, NULL);
    cJSON_ArrayForEach(item, list)
        if (cJSON_IsString(item))
            ask_health(d, item->valuestring);
    while (!d->status && (part = settings_next_listener(&at)))
        if (settings_part_get(part, "address", address, sizeof address))
            try_port(d, address);
    if (!d->status && settings_get(buf_str(&d->dump), "controller", "listen", address, sizeof address))
        try_port(d, address);
}

/* ---- open files ---- */

/* Requests that workers take at most, each with a connection between api and worker. */
static int64_t count_requests(const struct doctor *d)
{
    const char *at = buf_str(&d->dump), *part;
    int64_t n = 0;

    while ((part = settings_next_model(&at)))
        n += settings_part_int(part, "replicas", 1) * (settings_part_int(part, "parallel", 0) + settings_part_int(part, "queue", 0));
    return n;
}

void doctor_files(struct doctor *d)
{
    int64_t connections = settings_int(buf_str(&d->dump), "api", "max_connections", 0), need;
    char path[64], text[4096];
    const char *line;
    long long limit;

    if (!d->status || !connections)
        return;
    snprintf(path, sizeof path, "/proc/%d/limits", (int)d->pid);
    line = strstr(doctor_read(path, text, sizeof text), "Max open files");
    if (!line || sscanf(line, "Max open files %*s %lld", &limit) != 1)
        return;                 /* unlimited, or not for us to see */
    need = connections + count_requests(d) + 64;
    if (limit < need)
        doctor_say(d, DOCTOR_WARN, "a larger LimitNOFILE= in the unit, or less connections",
                   "%lld descriptors a process are few for api.max_connections = %lld, which can need %lld", limit, (long long)connections, (long long)need);
    else
        doctor_say(d, DOCTOR_OK, "", "%lld descriptors a process are enough for %lld connections", limit, (long long)connections);
}
