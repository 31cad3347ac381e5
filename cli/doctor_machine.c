/* What the service stands on: the model files, memory, processor, disk, clock. */
#include "cli/doctor.h"

#include "base/cleanup.h"
#include "cli/settings.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <time.h>
#include <unistd.h>

enum { MB = 1 << 20 };

/* ---- models ---- */

static void check_model(struct doctor *d, const char *name, const char *path)
{
    struct err err = { 0 };
    struct stat st;
    int r = d->has_user ? reach_read(path, &d->user, &err) : 0;

    if (r == 0 && stat(path, &st) < 0)
        r = err_errno(&err, -errno, "%s", path);
    if (r == -EACCES && geteuid() != 0 && strncmp(err.text, "user ", 5) != 0)
        doctor_say(d, DOCTOR_INFO, "ask again as root", "%s: %s cannot be looked at from here", name, path);
    else if (r < 0)
        doctor_say(d, DOCTOR_FAIL, "", "%s: %s: %s", name, path, err_text(&err));
    else
        doctor_say(d, DOCTOR_OK, "", "%s: %s (%lld MB)%s%s", name, path, (long long)st.st_size / MB, d->has_user ? ", readable for " : "",
                   d->has_user ? d->user.name : "");
}

void doctor_models(struct doctor *d)
{
    const char *at = buf_str(&d->dump), *part;
    char name[160], path[PATH_MAX];
    int n = 0;

    if (!d->dump.len)
        return;                 /* what is wrong with the configuration was said */
    for (; (part = settings_next_model(&at)); n++)
        if (settings_part_get(part, "name", name, sizeof name) && settings_part_get(part, "path", path, sizeof path))
            check_model(d, name, path);
    if (n == 0)
        doctor_say(d, DOCTOR_WARN, "'apt install fastchat-model-smollm2', or 'fastchat pull' one", "there is no model");
}

/* ---- memory ---- */

/* Of /proc/meminfo, in MB; -1: it does not say. */
static int64_t meminfo_mb(const char *key)
{
    char text[8192];
    const char *line = strstr(doctor_read("/proc/meminfo", text, sizeof text), key);
    long long kb;

    return line && sscanf(line + strlen(key), ": %lld", &kb) == 1 ? kb / 1024 : -1;
}

static int64_t file_mb(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 ? (st.st_size + MB - 1) / MB : 0;
}

/* A model's weights are the least that its worker needs. */
static int64_t check_limit(struct doctor *d, const char *part, int64_t size_mb)
{
    int64_t limit = settings_part_int(part, "memory_max_mb", 0);
    char name[160] = "";

    settings_part_get(part, "name", name, sizeof name);
    if (limit && size_mb > limit)
        doctor_say(d, DOCTOR_FAIL, "a larger memory_max_mb", "%s: its file has %lld MB, and memory_max_mb is %lld", name, (long long)size_mb, (long long)limit);
    return settings_part_int(part, "replicas", 1) * size_mb;
}

void doctor_memory(struct doctor *d)
{
    int64_t total = meminfo_mb("MemTotal"), need = 0, largest = 0;
    int64_t budget = settings_int(buf_str(&d->dump), "supervisor", "memory_mb", 0);
    const char *at = buf_str(&d->dump), *part;
    char load[32], path[PATH_MAX];

    while (d->dump.len && (part = settings_next_model(&at))) {
        int64_t size = settings_part_get(part, "path", path, sizeof path) ? file_mb(path) : 0, all = check_limit(d, part, size);

        if (settings_part_get(part, "load", load, sizeof load) && strcmp(load, "always") == 0)
            need += all;
        if (size > largest)
            largest = size;
    }
    if (total < 0 || !d->dump.len)
        return;
    if (need > total || largest > total)
        doctor_say(d, DOCTOR_FAIL, "fewer or smaller models, or load = \"on-demand\"", "the models that stay loaded need at least %lld MB (the largest file has %lld MB), the machine has %lld",
                   (long long)need, (long long)largest, (long long)total);
    else if (budget && (need > budget || largest > budget))
        doctor_say(d, DOCTOR_FAIL, "a larger supervisor.memory_mb, or fewer models", "the models that stay loaded need at least %lld MB (the largest file has %lld MB), supervisor.memory_mb is %lld",
                   (long long)need, (long long)largest, (long long)budget);
    else if (need > total / 10 * 8)
        doctor_say(d, DOCTOR_WARN, "leave more for requests", "the models that stay loaded need at least %lld of %lld MB", (long long)need, (long long)total);
    else
        doctor_say(d, DOCTOR_OK, "", "models that stay loaded need at least %lld of %lld MB, %lld are free now", (long long)need, (long long)total,
                   (long long)meminfo_mb("MemAvailable"));
}

/* ---- processor, gpu ---- */

/* A word of the line "flags" (x86) or "Features" (arm64). */
static bool has_flag(const char *flags, const char *word)
{
    size_t n = strlen(word), line = strcspn(flags, "\n");

    for (const char *at = flags; (at = strstr(at, word)) && at < flags + line; at += n)
        if (at[-1] == ' ' && (at[n] == ' ' || at[n] == '\n'))
            return true;
    return false;
}

void doctor_cpu(struct doctor *d)
{
    static const struct { const char *line, *flag, *means; } sets[] = {
        { "\nflags", "avx512_vnni", "AVX-512 with VNNI" }, { "\nflags", "avx2", "AVX2" }, { "\nflags", "sse4_1", "SSE4.1" },
        { "\nFeatures", "i8mm", "NEON with I8MM" }, { "\nFeatures", "asimddp", "NEON with dot products" }, { "\nFeatures", "asimd", "NEON" },
    };
    char text[16384];
    long n = sysconf(_SC_NPROCESSORS_ONLN);

    doctor_read("/proc/cpuinfo", text, sizeof text);
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        const char *flags = strstr(text, sets[i].line);

        if (flags && has_flag(flags + 1, sets[i].flag)) {
            doctor_say(d, DOCTOR_OK, "", "%ld CPUs with %s", n, sets[i].means);
            return;
        }
    }
    doctor_say(d, DOCTOR_WARN, "in a virtual machine, pass the host's processor through", "%ld CPUs without fast instructions for models: answers will be slow", n);
}

static bool has_driver_library(void)
{
    static const char *const places[] = {
        "/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib/aarch64-linux-gnu/libcuda.so.1", "/usr/lib64/libcuda.so.1", "/usr/lib/libcuda.so.1",
        "/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/local/cuda/compat/libcuda.so.1",
    };

    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        if (access(places[i], F_OK) == 0)
            return true;
    return false;
}

void doctor_gpu(struct doctor *d)
{
    bool device = access("/dev/nvidiactl", F_OK) == 0, library = has_driver_library();

    if (device && library)
        doctor_say(d, DOCTOR_INFO, "", "an NVIDIA driver is here; models are computed on the CPU");
    else if (device || library)
        doctor_say(d, DOCTOR_INFO, "", "an NVIDIA driver is here in part (%s is missing); models are computed on the CPU", device ? "libcuda.so.1" : "/dev/nvidiactl");
    else
        doctor_say(d, DOCTOR_INFO, "", "no NVIDIA driver; models are computed on the CPU");
}

/* ---- disk ---- */

void doctor_disk(struct doctor *d)
{
    static const char folder[] = "/var/lib/fastchat";
    struct statvfs fs;
    unsigned long long free_mb;

    if (statvfs(folder, &fs) < 0) {
        doctor_say(d, DOCTOR_INFO, "", "%s: %s", folder, strerror(errno));
        return;
    }
    free_mb = (unsigned long long)fs.f_bavail * fs.f_frsize / MB;
    doctor_say(d, free_mb < 1024 ? DOCTOR_WARN : DOCTOR_OK, free_mb < 1024 ? "models that are pulled need more" : "", "%llu MB are free in %s", free_mb, folder);
}

/* ---- clock ---- */

void doctor_clock(struct doctor *d)
{
    struct timex t = { 0 };
    time_t now = time(NULL);
    struct tm tm;
    char text[64];

    gmtime_r(&now, &tm);
    strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &tm);
    if (tm.tm_year + 1900 < 2024)
        doctor_say(d, DOCTOR_FAIL, "set it, or let systemd-timesyncd or chrony do so", "it shows %s: certificates will not be valid", text);
    else if (adjtimex(&t) == TIME_ERROR)
        doctor_say(d, DOCTOR_WARN, "'timedatectl set-ntp true'", "it shows %s, and nothing synchronises it", text);
    else
        doctor_say(d, DOCTOR_OK, "", "%s, synchronised", text);
}

/* ---- journal ---- */

void doctor_journal(struct doctor *d)
{
    char id[64], path[128];

    if (!d->systemd)
        return;
    doctor_read("/etc/machine-id", id, sizeof id);
    snprintf(path, sizeof path, "/var/log/journal/%.*s", (int)strcspn(id, "\n"), id);
    if (id[0] && access(path, F_OK) == 0)
        doctor_say(d, DOCTOR_OK, "", "it is kept over a restart of the machine");
    else
        doctor_say(d, DOCTOR_WARN, "'mkdir /var/log/journal' and 'systemctl restart systemd-journald' keep it", "the journal is lost with each restart of the machine");
}
