#include "daemon/supervisor/unit_limits.h"

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "daemon/supervisor/supervisor_parts.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

static const struct {
    enum config_key key;
    unsigned controller;        /* 0: none needed */
} rows[LIMIT_N] = {
    [LIMIT_MEMORY] = { DEFAULTS_memory_max_mb, CGROUP_MEMORY },
    [LIMIT_CPU] = { DEFAULTS_cpu_quota, CGROUP_CPU },
    [LIMIT_PIDS] = { DEFAULTS_pids_max, CGROUP_PIDS },
    [LIMIT_NICE] = { DEFAULTS_nice, 0 },
    [LIMIT_CPUS] = { DEFAULTS_cpus, 0 },
    [LIMIT_NODE] = { DEFAULTS_numa_node, 0 },
};

enum { PERIOD_US = 100000 };

/* ---- what is asked for ---- */

static struct limits asked(const struct unit *u)
{
    const struct config_group *g = u->role == UNIT_WORKER ? models_group(u) : NULL;
    struct limits l = { .value = { [LIMIT_NODE] = -1 }, .nice = getpriority(PRIO_PROCESS, 0) };

    for (int i = 0; g && i < LIMIT_N; i++) {
        const struct config_value *v = &g->values[rows[i].key];

        l.value[i] = i == LIMIT_NICE || i == LIMIT_CPUS ? v->set : v->i;
    }
    if (l.value[LIMIT_NICE])
        l.nice = (int)g->values[DEFAULTS_nice].i;
    return l;
}

static bool is_asked(const struct limits *l, enum limit i)
{
    return l->value[i] != (i == LIMIT_NODE ? -1 : 0);
}

/* ---- what does not hold ---- */

static const char *why(const struct unit *u, enum limit i)
{
    const struct supervisor *s = u->sup;

    if (rows[i].controller && !s->cgroup)
        return s->no_cgroup;
    if (rows[i].controller && !(cgroup_controllers(s->cgroup) & rows[i].controller))
        return "its control group has no such controller";
    if ((i == LIMIT_CPUS || i == LIMIT_NODE) && u->limits.fault[i] == -EINVAL)
        return "the service's own cpuset has none of these CPUs";
    return strerror(-u->limits.fault[i]);
}

static void put_faults(const struct unit *u, struct json_writer *w, const char *before)
{
    for (int i = 0; u->pid && i < LIMIT_N; i++) {
        char text[ERR_TEXT + 256];

        if (!u->limits.fault[i])
            continue;
        snprintf(text, sizeof text, "%s%s%s: %s", before[0] ? u->name : "", before, config_rows[rows[i].key].name, why(u, i));
        json_str(w, text);
    }
}

void limits_notes(const struct unit *u, struct json_writer *w)
{
    put_faults(u, w, " runs without its ");
}

void limits_status(const struct unit *u, struct json_writer *w)
{
    json_kstr(w, "cgroup", u->leaf[0] ? u->leaf : NULL);
    json_key(w, "not_enforced");
    json_open(w, '[');
    put_faults(u, w, "");
    json_close(w, ']');
}

static void say_faults(const struct unit *u, const struct limits *before)
{
    for (int i = 0; i < LIMIT_N; i++)
        if (u->limits.fault[i] && u->limits.fault[i] != before->fault[i])
            log_event(LOG_WARNING, "limits", (const char *[]){ "FASTCHAT_CHILD", u->name, "FASTCHAT_MODEL", u->model, NULL },
                      "%s runs without its %s: %s", u->name, config_rows[rows[i].key].name, why(u, i));
}

/* ---- the service's group ---- */

static bool is_used(const char *leaf, void *user)
{
    const struct supervisor *s = user;

    for (size_t i = 0; i < s->n_units; i++)
        if (s->units[i]->pid && strcmp(s->units[i]->leaf, leaf) == 0)
            return true;
    return false;
}

void limits_open(struct supervisor *s)
{
    struct err err = { 0 };

    if (cgroup_open("/proc/self/cgroup", "/sys/fs/cgroup", &s->cgroup, &err)) {
        snprintf(s->no_cgroup, sizeof s->no_cgroup, "%s", err_text(&err));
        log_debug("no control groups: %s", s->no_cgroup);
        return;
    }
    cgroup_sweep(s->cgroup, true, is_used, s);
}

void limits_tick(struct supervisor *s)
{
    if (s->cgroup)
        cgroup_sweep(s->cgroup, false, is_used, s);
}

/* ---- leaves ---- */

/* One that no other process is in. */
static void name_leaf(struct unit *u)
{
    for (unsigned n = 0; !u->leaf[0]; n++) {
        BUF_LOCAL name = BUF_INIT;

        if (u->role == UNIT_WORKER)
            config_worker_id(u->model, u->replica, n, &name);
        else
            buf_printf(&name, n ? "%s-%d.%u" : "%s-%d", unit_role_name(u->role), u->replica, n);
        if (!is_used(buf_str(&name), u->sup))
            snprintf(u->leaf, sizeof u->leaf, "%s", buf_str(&name));
    }
}

static int put(struct unit *u, const char *file, const char *value)
{
    return cgroup_write(u->sup->cgroup, u->leaf, file, value);
}

/* "max" stands for none. */
static int put_number(struct unit *u, const char *file, int64_t v)
{
    char text[32] = "max";

    if (v)
        snprintf(text, sizeof text, "%" PRIi64, v);
    return put(u, file, text);
}

static int put_memory(struct unit *u, int64_t mb)
{
    int r = put_number(u, "memory.max", mb << 20);

    /* Without swap in the kernel there is no such file, and no need. */
    put(u, "memory.swap.max", mb ? "0" : "max");
    put(u, "memory.oom.group", "1");
    return r;
}

static int put_cpu(struct unit *u, int64_t percent)
{
    char text[64];

    if (!percent)
        return put(u, "cpu.max", "max");
    snprintf(text, sizeof text, "%" PRIi64 " %d", percent * (PERIOD_US / 100), PERIOD_US);
    return put(u, "cpu.max", text);
}

static int put_limit(struct unit *u, enum limit i)
{
    if (!u->sup->cgroup || !(cgroup_controllers(u->sup->cgroup) & rows[i].controller))
        return -ENOENT;
    switch (i) {
    case LIMIT_MEMORY:
        return put_memory(u, u->limits.value[i]);
    case LIMIT_CPU:
        return put_cpu(u, u->limits.value[i]);
    default:
        return put_number(u, "pids.max", u->limits.value[i]);
    }
}

static void put_limits(struct unit *u)
{
    for (int i = 0; i < LIMIT_N; i++)
        if (rows[i].controller) {
            int r = put_limit(u, i);

            u->limits.fault[i] = is_asked(&u->limits, i) ? r : 0;
        }
}

static void leaf_faults(struct unit *u, int r)
{
    for (int i = 0; i < LIMIT_N; i++)
        if (rows[i].controller)
            u->limits.fault[i] = is_asked(&u->limits, i) ? r : 0;
}

static uint64_t n_ooms(const struct unit *u, const char *which)
{
    return u->leaf[0] ? cgroup_read(u->sup->cgroup, u->leaf, "memory.events", which) : 0;
}

/* How often it had come to that before this process: a leaf whose last process
 * has just ended may be used again. */
static void count_ooms(struct unit *u)
{
    u->ooms = n_ooms(u, "oom");
    u->oom_kills = n_ooms(u, "oom_kill");
}

void limits_leave(struct unit *u)
{
    if (u->leaf[0] && u->sup->cgroup)
        cgroup_remove(u->sup->cgroup, u->leaf);
    u->leaf[0] = 0;
}

static void enter_leaf(struct unit *u, struct place *place)
{
    struct supervisor *s = u->sup;
    struct err err = { 0 };
    int r;

    name_leaf(u);
    r = cgroup_make(s->cgroup, u->leaf, &err);
    if (r == 0) {
        put_limits(u);
        count_ooms(u);
        r = cgroup_entrance(s->cgroup, u->leaf);
    }
    if (r >= 0) {
        place->entrance = r;
        return;
    }
    log_warning("%s gets no control group of its own: %s", u->name, err_is_set(&err) ? err_text(&err) : strerror(-r));
    limits_leave(u);
    leaf_faults(u, r);
}

/* ---- at a start ---- */

/* Of its list, and of its node. */
static void place_cpus(const struct unit *u, const struct config_value *list, struct place *place)
{
    struct cpu_list node;

    if (u->limits.value[LIMIT_CPUS])
        place->has_cpus = cpu_list_parse(list->s, &place->cpus, NULL) == 0;
    if (u->limits.value[LIMIT_NODE] < 0)
        return;
    place->numa_node = (int)u->limits.value[LIMIT_NODE];
    if (cpu_list_of_node(place->numa_node, &node) || cpu_list_is_empty(&node))
        return;
    place->cpus = place->has_cpus ? cpu_list_and(&place->cpus, &node) : node;
    place->has_cpus = true;
}

void limits_place(struct unit *u, struct place *place)
{
    const struct config_group *g = u->role == UNIT_WORKER ? models_group(u) : NULL;

    *place = (struct place){ .entrance = -1, .numa_node = -1 };
    u->limits = asked(u);
    u->leaf[0] = 0;
    if (g)
        place_cpus(u, &g->values[DEFAULTS_cpus], place);
    place->has_nice = u->limits.value[LIMIT_NICE];
    place->nice = u->limits.nice;
    if (u->sup->cgroup)
        enter_leaf(u, place);
    else
        leaf_faults(u, -ENOENT);
}

void limits_placed(struct unit *u, struct place *place, const struct place_faults *faults, pid_t pid)
{
    struct limits *l = &u->limits;

    fd_close(STEAL_FD(place->entrance));
    if (pid < 0) {
        limits_leave(u);
        return;
    }
    if (faults->entrance) {
        limits_leave(u);
        leaf_faults(u, faults->entrance);
    }
    l->fault[LIMIT_NICE] = faults->nice;
    l->fault[LIMIT_CPUS] = l->value[LIMIT_CPUS] ? faults->cpus : 0;
    l->fault[LIMIT_NODE] = l->value[LIMIT_NODE] < 0 ? 0 : faults->numa_node ? faults->numa_node : faults->cpus;
    say_faults(u, &u->said);
    u->said = *l;
}

/* ---- while it runs ---- */

/* Below what it uses now the kernel would end it in the middle of an answer; one
 * that begins under the new limit shows first whether it can work. */
static bool is_above_use(struct unit *u, int64_t mb)
{
    return !mb || !u->leaf[0] || cgroup_read(u->sup->cgroup, u->leaf, "memory.current", NULL) <= (uint64_t)mb << 20;
}

/* Its group of processes has all its threads, and nobody else's. Without
 * privileges a process can not become more important again. */
static bool renew_nice(struct unit *u, const struct limits *now)
{
    if (now->nice != u->limits.nice && setpriority(PRIO_PGRP, (id_t)u->pid, now->nice) < 0)
        return false;
    if (now->nice != u->limits.nice)
        u->limits.fault[LIMIT_NICE] = 0;
    u->limits.nice = now->nice;
    u->limits.value[LIMIT_NICE] = now->value[LIMIT_NICE];
    return true;
}

bool limits_renew(struct unit *u)
{
    struct limits now = asked(u), before = u->limits;
    bool other_memory = now.value[LIMIT_MEMORY] != before.value[LIMIT_MEMORY];

    if (u->pid == 0 || u->role != UNIT_WORKER)
        return true;
    if ((other_memory && !is_above_use(u, now.value[LIMIT_MEMORY])) || !renew_nice(u, &now))
        return false;
    if (!other_memory && now.value[LIMIT_PIDS] == before.value[LIMIT_PIDS])
        return true;
    u->limits.value[LIMIT_MEMORY] = now.value[LIMIT_MEMORY];
    u->limits.value[LIMIT_PIDS] = now.value[LIMIT_PIDS];
    if (u->leaf[0])
        put_limits(u);
    else if (u->sup->cgroup)
        return false;           /* it runs in none, another one will not */
    else
        leaf_faults(u, -ENOENT);
    say_faults(u, &before);
    u->said = u->limits;
    return true;
}

int64_t limits_memory_kb(const struct unit *u)
{
    const struct supervisor *s = u->sup;

    return s->cgroup && cgroup_controllers(s->cgroup) & CGROUP_MEMORY ? asked(u).value[LIMIT_MEMORY] * 1024 : 0;
}

/* ---- its end ---- */

bool limits_ran_out(const struct unit *u, const siginfo_t *si, char *reason, size_t size)
{
    if (si->si_code != CLD_KILLED || si->si_status != SIGKILL || n_ooms(u, "oom_kill") <= u->oom_kills)
        return false;
    if (u->role != UNIT_WORKER)
        snprintf(reason, size, "was ended by the kernel: the machine, or the service's own limit (MemoryMax), had no memory left");
    else if (u->limits.value[LIMIT_MEMORY] && n_ooms(u, "oom") > u->ooms)
        snprintf(reason, size, "needed more memory than its limit memory_max_mb = %" PRIi64
                 " of model '%s': raise it, or lower context, parallel or kv_tokens", u->limits.value[LIMIT_MEMORY], u->model);
    else
        snprintf(reason, size, "was ended by the kernel: the machine, or the service's own limit (MemoryMax), had no memory left;"
                 " lower context, parallel or kv_tokens of model '%s', or load fewer models", u->model);
    return true;
}

void limits_explain(const struct unit *u, char *reason, size_t size)
{
    size_t n = strlen(reason);

    if (u->leaf[0] && u->limits.value[LIMIT_PIDS] && cgroup_read(u->sup->cgroup, u->leaf, "pids.events", "max") > 0)
        snprintf(reason + n, size - n, "; it has met its limit pids_max = %" PRIi64 " of model '%s'", u->limits.value[LIMIT_PIDS], u->model);
}
