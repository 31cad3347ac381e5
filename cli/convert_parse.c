/* One command: which program it is, and its flags by the rows of flags.def.
 *
 * Python's argparse takes any unambiguous beginning of a name and --name=value;
 * vLLM also takes '_' for '-', --no-NAME and --name.key; llama.cpp none of these.
 */
#include "cli/convert_parts.h"

#include "base/arena.h"
#include "base/err.h"
#include "base/nearest.h"
#include "cli/convert.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

enum takes { NO, ONE, MANY, MAYBE };
enum action { KEY, ROLE, OURS, LOST, SECRET };

static const struct flag {
    unsigned programs;
    const char *names;
    enum takes takes;
    enum action action;
    const char *target, *note;
} flags[] = {
#define FLAG(programs, names, takes, action, target, note) { programs, names, takes, action, target, note },
#include "cli/flags.def"
#undef FLAG
};

enum { N_FLAGS = sizeof flags / sizeof flags[0], SHOWN = 200 };

/* ---- what was said ---- */

const char *said_last(const struct said *s, enum convert_role role, const char *otherwise)
{
    return s->roles[role].n ? s->roles[role].value[s->roles[role].n - 1] : otherwise;
}

/* Enough of it to know it again. */
static void put_short(struct buf *out, const char *text)
{
    size_t n = 0;

    while (n < SHOWN && text[n])
        n++;
    while (n < strlen(text) && ((unsigned char)text[n] & 0xC0) == 0x80)
        n++;                    /* whole characters */
    buf_add(out, text, n);
    buf_adds(out, text[n] ? " …" : "");
}

static void put_note(struct said *s, const char *flag, const char *value, const char *why)
{
    buf_adds(&s->notes, "#   ");
    put_short(&s->notes, flag ? flag : "?");
    if (value) {
        buf_addc(&s->notes, ' ');
        put_short(&s->notes, value);
    }
    buf_printf(&s->notes, ": %s\n", why);
}

void said_note(struct said *s, const char *flag, const char *value, const char *why)
{
    put_note(s, flag, value, why);
    s->n_lost++;
}

static void warn(struct said *s, const char *what, const char *word)
{
    buf_printf(s->warnings, "%s: %s '", s->title, what);
    put_short(s->warnings, word);
    buf_adds(s->warnings, "'\n");
}

/* ---- which program ---- */

static const struct { const char *module; enum convert_program program; } modules[] = {
    { "fastchat.serve.controller", FC_CONTROLLER },
    { "fastchat.serve.launch_all_serve", FC_LAUNCH },
    { "fastchat.serve.model_worker", FC_WORKER },
    { "fastchat.serve.multi_model_worker", FC_MULTI },
    { "fastchat.serve.openai_api_server", FC_API },
    { "fastchat.serve.vllm_worker", FC_VLLM },
    { "vllm.entrypoints.openai.api_server", VLLM },
};

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

static bool set_module(struct said *s, const char *name)
{
    for (size_t i = 0; i < sizeof modules / sizeof modules[0]; i++)
        if (strcmp(modules[i].module, name) == 0) {
            s->program = modules[i].program;
            s->title = modules[i].module;
            return true;
        }
    return false;
}

/* …/fastchat/serve/model_worker.py */
static bool set_script(struct said *s, const char *path)
{
    const char *file = file_name(path);
    char name[128];
    size_t n = strlen(file);

    if (n < 4 || n > 64 || strcmp(file + n - 3, ".py") != 0 || !strstr(path, "fastchat"))
        return false;
    snprintf(name, sizeof name, "fastchat.serve.%.*s", (int)(n - 3), file);
    return set_module(s, name);
}

static bool is_assignment(const char *word)
{
    size_t n = 0;

    while (isalnum((unsigned char)word[n]) || word[n] == '_')
        n++;
    return n > 0 && !isdigit((unsigned char)word[0]) && word[n] == '=';
}

static bool is_wrapper(const char *word)
{
    static const char *const names[] = { "command", "env", "exec", "nohup", "setsid", "sudo", "time" };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(file_name(word), names[i]) == 0)
            return true;
    return false;
}

/* `python -u -m MODULE`, `python PATH.py` at words[i]. The place behind; 0: another
 * program. */
static size_t take_python(struct said *s, const char *const *words, size_t n, size_t i)
{
    while (++i < n && words[i][0] == '-' && strcmp(words[i], "-m") != 0)
        ;
    if (i + 1 < n && strcmp(words[i], "-m") == 0)
        return set_module(s, words[i + 1]) ? i + 2 : 0;
    return i < n && set_script(s, words[i]) ? i + 1 : 0;
}

/* `docker run … IMAGE`: what is in front of the image is docker's. */
static size_t take_container(struct said *s, const char *const *words, size_t n, size_t i)
{
    while (++i < n) {
        bool vllm = strstr(words[i], "vllm/vllm-") || strstr(words[i], "vllm-openai"), llama = strstr(words[i], "llama.cpp");

        if (words[i][0] == '-' || !(vllm || llama))
            continue;
        s->program = vllm ? VLLM : LLAMA;
        s->title = vllm ? "vllm serve" : "llama-server";
        said_note(s, "docker run", NULL, "options of the container (ports, volumes, GPUs) are not looked at; paths are those inside it");
        return i + 1;
    }
    return 0;
}

static bool is_server(const char *name)
{
    return strcmp(name, "llama-server") == 0 || strcmp(name, "llama-server.exe") == 0;
}

/* The place of the first flag; 0: it is no program that is known. */
static size_t take_program(struct said *s, const char *const *words, size_t n)
{
    size_t i = 0;
    const char *name;

    for (; i < n && (is_assignment(words[i]) || is_wrapper(words[i])); i++)
        if (is_assignment(words[i]))
            said_note(s, arena_strndup(s->arena, words[i], strcspn(words[i], "=")), NULL, "the environment is not looked at");
    if (i == n)
        return 0;
    name = file_name(words[i]);
    if (strncmp(name, "python", 6) == 0)
        return take_python(s, words, n, i);
    if (strcmp(name, "docker") == 0 || strcmp(name, "podman") == 0)
        return take_container(s, words, n, i);
    if (set_script(s, words[i]))
        return i + 1;
    s->program = is_server(name) ? LLAMA : VLLM;
    s->title = is_server(name) ? "llama-server" : "vllm serve";
    if (is_server(name))
        return i + 1;
    return strcmp(name, "vllm") == 0 && i + 1 < n && strcmp(words[i + 1], "serve") == 0 ? i + 2 : 0;
}

/* ---- flags ---- */

/* The flag that somebody may have meant, or NULL. */
static const char *find_nearest(const struct said *s, const char *word)
{
    struct nearest n = nearest_to(word);

    for (size_t i = 0; i < N_FLAGS; i++)
        for (const char *at = flags[i].programs & s->program ? flags[i].names : ""; *at;) {
            size_t len = strcspn(at, " ");
            const char *name = arena_strndup(s->arena, at, len);

            if (name && len > 4)
                nearest_try(&n, name);
            at += len + strspn(at + len, " ");
        }
    return n.name;
}

/* Is `name` of `len` bytes one of `names`, or, with `begins`, the beginning of one? */
static bool is_named(const char *names, const char *name, size_t len, bool begins)
{
    for (const char *at = names; *at;) {
        size_t n = strcspn(at, " ");

        if ((n == len || (begins && n > len)) && memcmp(at, name, len) == 0)
            return true;
        at += n + strspn(at + n, " ");
    }
    return false;
}

static const struct flag *find_exact(const struct said *s, const char *name, size_t len)
{
    for (size_t i = 0; i < N_FLAGS; i++)
        if (flags[i].programs & s->program && is_named(flags[i].names, name, len, false))
            return &flags[i];
    return NULL;
}

static const struct flag *find_beginning(const struct said *s, const char *name, size_t len)
{
    const struct flag *found = NULL;

    if (s->program == LLAMA || len < 4)
        return NULL;
    for (size_t i = 0; i < N_FLAGS; i++)
        if (flags[i].programs & s->program && is_named(flags[i].names, name, len, true)) {
            if (found)
                return NULL;
            found = &flags[i];
        }
    return found;
}

/* `word` up to its '=' or '.', in the spelling of the rows. `ret_no`: it is --no-NAME of one. */
static const struct flag *find_flag(const struct said *s, const char *word, bool *ret_no)
{
    char name[64];
    size_t len = strcspn(word, s->program == LLAMA ? "" : "=");
    const struct flag *f;

    *ret_no = false;
    if (s->program == VLLM && strcspn(word, ".") < len)
        len = strcspn(word, ".");
    if (len >= sizeof name)
        return NULL;
    snprintf(name, sizeof name, "%.*s", (int)len, word);
    for (char *c = name + 2; s->program != LLAMA && len > 2 && *c; c++)
        if (*c == '_')
            *c = '-';
    f = find_exact(s, name, len);
    if (!f)
        f = find_beginning(s, name, len);
    if (!f && strncmp(name, "--no-", 5) == 0) {
        memmove(name + 2, name + 5, len - 5 + 1);
        f = find_exact(s, name, len - 3);
        *ret_no = f != NULL;
    }
    return f;
}

static bool is_number(const char *word)
{
    return word[0] == '-' && (isdigit((unsigned char)word[1]) || word[1] == '.');
}

static bool is_flag(const char *word)
{
    return word[0] == '-' && word[1] && !is_number(word);
}

static bool is_truth(const char *word)
{
    static const char *const words[] = { "0", "1", "False", "True", "auto", "false", "off", "on", "true" };

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(words[i], word) == 0)
            return true;
    return false;
}

/* How many of the n words behind a flag are its values. */
static size_t count_values(const struct flag *f, const char *const *words, size_t n)
{
    size_t k = 0;

    switch (f->takes) {
    case NO:
        return 0;
    case ONE:
        return n > 0 && (!is_flag(words[0]) || strncmp(words[0], "--", 2) != 0);
    case MAYBE:
        return n > 0 && is_truth(words[0]);
    case MANY:
        while (k < n && !is_flag(words[k]))
            k++;
        return k;
    }
    return 0;
}

static enum convert_role role_of(const char *target)
{
    static const char *const names[] = {
#define CONVERT_ROLE(name) #name,
        CONVERT_ROLES(CONVERT_ROLE)
#undef CONVERT_ROLE
    };
    size_t i = 0;

    while (strcmp(names[i], target) != 0)
        i++;
    return (enum convert_role)i;
}

static enum config_key key_of(const char *target)
{
    size_t k = 0;

    while (setting_rows[k].section != CONFIG_DEFAULTS || strcmp(setting_rows[k].name, target) != 0)
        k++;
    return (enum config_key)k;
}

static void add_role(struct said *s, enum convert_role role, const char *value, const char *flag)
{
    if (s->roles[role].n == SAID_MAX)
        said_note(s, flag, value, "too many of these");
    else
        s->roles[role].value[s->roles[role].n++] = value;
}

static void apply(struct said *s, const struct flag *f, const char *flag, const char *const *values, size_t n)
{
    const char *value = n ? values[0] : NULL;

    switch (f->action) {
    case KEY:
        s->values[key_of(f->target)] = value;
        s->flags[key_of(f->target)] = flag;
        if (f->note[0])
            put_note(s, flag, value, f->note);
        break;
    case ROLE:
        for (size_t i = 0; i < n; i++)
            add_role(s, role_of(f->target), values[i], flag);
        if (f->takes == NO)
            add_role(s, role_of(f->target), "", flag);
        break;
    case OURS:
        put_note(s, flag, value, f->note);
        break;
    case LOST:
        said_note(s, flag, value, f->note);
        break;
    case SECRET:
        said_note(s, flag, NULL, f->note);
        break;
    }
}

/* Takes the flag at words[0] and its values; how many words that were. */
static size_t take_flag(struct said *s, const char *const *words, size_t n)
{
    bool no;
    const struct flag *f = find_flag(s, words[0], &no);
    const char *equals = s->program == LLAMA ? NULL : strchr(words[0], '=');
    const char *name = equals ? arena_strndup(s->arena, words[0], (size_t)(equals - words[0])) : words[0], *value = equals ? equals + 1 : NULL;
    size_t used;

    if (!f) {
        bool takes = !equals && n > 1 && !is_flag(words[1]);

        const char *near = name ? find_nearest(s, name) : NULL;

        warn(s, "unknown flag", name ? name : words[0]);
        if (near)
            buf_printf(s->warnings, "%s: did you mean '%s'?\n", s->title, near);
        said_note(s, name ? name : words[0], equals ? value : takes ? words[1] : NULL, "nothing is known about this flag");
        return takes ? 2 : 1;
    }
    if (no) {
        said_note(s, words[0], NULL, f->note);
        return 1;
    }
    if (equals) {
        apply(s, f, name ? name : words[0], &value, 1);
        return 1;
    }
    used = count_values(f, words + 1, n - 1);
    if (used == 0 && (f->takes == ONE || f->takes == MANY)) {
        warn(s, "there is no value for", words[0]);
        said_note(s, words[0], NULL, "its value is missing");
        return 1;
    }
    apply(s, f, words[0], words + 1, used);
    return 1 + used;
}

int convert_parse(struct said *s, const char *const *words, size_t n, struct err *err)
{
    size_t i;

    s->title = "the command";
    i = take_program(s, words, n);
    if (i == 0)
        return err_set(err, CONVERT_FOREIGN, "'%.60s%s%.60s' starts no server of FastChat, vLLM or llama.cpp that is known here", n ? words[0] : "",
                       n > 1 ? " " : "", n > 1 ? words[1] : "");
    while (i < n) {
        if (is_flag(words[i])) {
            i += take_flag(s, words + i, n - i);
        } else if (s->program == VLLM && s->roles[SAID_model].n == 0) {
            add_role(s, SAID_model, words[i++], "");
        } else {
            warn(s, "a word that belongs to no flag,", words[i]);
            said_note(s, words[i++], NULL, "it belongs to no flag");
        }
    }
    return s->notes.failed || s->warnings->failed ? err_set(err, -ENOMEM, "no memory") : 0;
}
