/* template.c - `fastchat template`: which template a model's chats are written by, and what it makes of a chat.
 *
 * What the worker does when it loads the model is done here by the same functions, on the same files; no service
 * is needed. Where one runs it is asked for the model's file and the template that its configuration names.
 */
#include "cli/commands.h"

#include "adapters/adapters.h"
#include "adapters/family.h"
#include "base/arena.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/file.h"
#include "base/json.h"
#include "base/nearest.h"
#include "cli/daemon.h"
#include "cli/service.h"
#include "cli/settings.h"
#include "cli/term.h"
#include "conv/chat.h"
#include "conv/conv.h"
#include "loaders/template_files.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { MAX_FILE = 32 << 20, NAME_BYTES = 256 };

/* No system message: so a template shows what it puts there itself. */
static const char default_messages[] = "[{\"role\":\"user\",\"content\":\"Hello!\"},"
                                       "{\"role\":\"assistant\",\"content\":\"Hello. What can I do for you?\"},"
                                       "{\"role\":\"user\",\"content\":\"Tell me a joke.\"}]";

struct ask {
    const struct command *cmd;
    struct service_args service;
    const char *operand, *config, *messages, *tools, *kwargs, *name;
    bool closed, spans, json, text;

    char path[PATH_MAX], model[NAME_BYTES], configured[NAME_BYTES];     /* the model; the latter two "" for a path */
    struct conv_registry *registry;
    struct buf message_file, tool_file, kwarg_file;
    struct chat_input input;
};

/* ---- the model ---- */

/* Whether a dump of the configuration has the model; its path and template. `near` collects names. */
static bool find_in_dump(struct ask *a, const char *dump, struct nearest *near, char near_name[NAME_BYTES])
{
    char name[NAME_BYTES];
    const char *at = dump, *part;

    while ((part = settings_next_model(&at)) != NULL) {
        if (!settings_part_get(part, "name", name, sizeof name))
            continue;
        if (strcmp(name, a->operand) == 0) {
            snprintf(a->model, sizeof a->model, "%s", name);
            if (!settings_part_get(part, "template", a->configured, sizeof a->configured))
                settings_get(dump, "defaults", "template", a->configured, sizeof a->configured);
            return settings_part_get(part, "path", a->path, sizeof a->path);
        }
        if (nearest_try(near, name)) {
            snprintf(near_name, NAME_BYTES, "%s", name);
            near->name = near_name;
        }
    }
    return false;
}

static int by_daemon(const struct ask *a, const char *what, struct buf *out, struct err *err)
{
    const char *const args[] = { what, "--config", a->config ? a->config : DAEMON_CONFIG, NULL };
    int r = daemon_run(args, out, err);

    return r > 0 ? err_set(err, -EINVAL, "%s", buf_str(out)) : r;
}

/* Adds what the configuration has beside the built-in templates. */
static int add_templates(struct ask *a, const cJSON *tree, struct err *err)
{
    const cJSON *list = NULL, *item;
    int r = json_get_array(tree, "templates", &list, err);

    cJSON_ArrayForEach(item, list)
    {
        const char *name = "", *jinja = NULL;

        if (r < 0 || (r = json_get_string(item, "name", &name, err)) < 0 || (r = json_get_string(item, "jinja", &jinja, err)) < 0)
            return r;
        r = conv_registry_add(a->registry, name, json_find(item, "row"), jinja, jinja ? strlen(jinja) : 0, err);
    }
    return r < 0 ? r : 0;
}

/* The settings in force and their templates, or those of the file. 0 or -errno with a sentence. */
static int read_config(struct ask *a, struct buf *dump, struct err *err)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    CLEANUP(mem_free) char *refusal = NULL;
    BUF_LOCAL templates = BUF_INIT;
    const char *text = "";
    struct err silent = { 0 };
    int r = a->config ? -ENOENT : service_ask(&a->service, "{\"command\":\"config\"}", &tree, NULL, &refusal, &silent);

    if (r == 0 && json_get_string(tree, "text", &text, NULL) == 0) {
        buf_adds(dump, text);
        return add_templates(a, tree, err);
    }
    cJSON_Delete(STEAL(tree));
    if ((r = by_daemon(a, "--dump-config", dump, err)) < 0 || (r = by_daemon(a, "--dump-templates", &templates, err)) < 0 ||
        (r = json_parse(buf_str(&templates), templates.len, NULL, &tree, err)) < 0)
        return r;
    return add_templates(a, tree, err);
}

/* "ORGANISATION/NAME": nothing of this machine. */
static bool is_hub_name(const char *text)
{
    const char *slash = strchr(text, '/');

    return slash && slash != text && slash[1] && !strchr(slash + 1, '/') && text[0] != '.';
}

/* A model's name, else a path. What has a slash in it is no model's name. */
static int find_model(struct ask *a, struct err *err)
{
    struct nearest near = nearest_to(a->operand);
    char near_name[NAME_BYTES];
    BUF_LOCAL dump = BUF_INIT;
    struct err silent = { 0 };
    struct stat st;
    bool is_path = strchr(a->operand, '/') != NULL;
    int r = read_config(a, &dump, &silent);

    if (r == 0 && !is_path && find_in_dump(a, buf_str(&dump), &near, near_name))
        return 0;
    if (r < 0 && a->config)
        return err_set(err, r, "%s", err_text(&silent));
    snprintf(a->path, sizeof a->path, "%s", a->operand);
    if (stat(a->path, &st) == 0 || is_hub_name(a->path))
        return 0;
    if (is_path)
        return err_errno(err, -errno, "%s", a->path);
    return err_set(err, -ENOENT, "there is no model '%s', and no such file%s%s%s", a->operand, near.name ? "; did you mean '" : "",
                   near.name ? near.name : "", near.name ? "'?" : "");
}

/* ---- the chat ---- */

static int read_json(const char *path, struct buf *out, cJSON **ret, struct err *err)
{
    bool is_input = strcmp(path, "-") == 0;
    const char *name = is_input ? "standard input" : path;
    int r = is_input ? file_read_fd(STDIN_FILENO, name, MAX_FILE, out, err) : file_read(path, MAX_FILE, out, err);

    if (r == 0 && (r = json_parse(buf_str(out), out->len, NULL, ret, err)) < 0)
        err_place(err, "%s", name);
    return r;
}

/* The value as it is written: numbers and the order of keys reach the template so. */
static void take(const struct buf *file, const cJSON *root, const char *key, const char **ret, size_t *ret_len)
{
    const cJSON *child = json_find(root, key);
    struct json_slice s = json_slice_of(buf_str(file), file->len, root, child);

    if (child) {
        *ret = s.text;
        *ret_len = s.len;
    }
}

static int read_chat(struct ask *a, struct err *err)
{
    CLEANUP(json_delete) cJSON *messages = NULL, *tools = NULL, *kwargs = NULL;
    struct chat_input *in = &a->input;
    int r;

    *in = (struct chat_input){ .messages = default_messages, .messages_len = strlen(default_messages),
                               .add_generation_prompt = !a->closed, .now = time(NULL) };
    if (a->messages) {
        if ((r = read_json(a->messages, &a->message_file, &messages, err)) < 0)
            return r;
        in->messages = buf_str(&a->message_file);
        in->messages_len = a->message_file.len;
        if (cJSON_IsObject(messages)) {
            if (!cJSON_IsArray(json_find(messages, "messages")))
                return err_set(err, -EINVAL, "%s: has no array \"messages\"", a->messages);
            take(&a->message_file, messages, "messages", &in->messages, &in->messages_len);
            take(&a->message_file, messages, "tools", &in->tools, &in->tools_len);
            take(&a->message_file, messages, "documents", &in->documents, &in->documents_len);
            take(&a->message_file, messages, "chat_template_kwargs", &in->kwargs, &in->kwargs_len);
        }
    }
    if (a->tools) {
        if ((r = read_json(a->tools, &a->tool_file, &tools, err)) < 0)
            return r;
        in->tools = buf_str(&a->tool_file);
        in->tools_len = a->tool_file.len;
    }
    if (a->kwargs) {
        if ((r = read_json(a->kwargs, &a->kwarg_file, &kwargs, err)) < 0)
            return r;
        in->kwargs = buf_str(&a->kwarg_file);
        in->kwargs_len = a->kwarg_file.len;
    }
    return 0;
}

/* ---- what is shown ---- */

static const char *const whys[] = {
    [TEMPLATE_CONFIGURED] = "configured", [TEMPLATE_OWN] = "own", [TEMPLATE_FAMILY] = "family",
    [TEMPLATE_ADAPTER] = "adapter", [TEMPLATE_DEFAULT] = "default",
};

static void show(const struct buf *out)
{
    fwrite(buf_str(out), 1, out->len, stdout);
    fflush(stdout);
}

static void put_head(const struct ask *a, const struct template_choice *c, const char *const *stops, struct buf *out)
{
    const struct conv_template *wire = chat_wire(c->chat);

    buf_printf(out, "%smodel%s     ", term_bold(), term_plain());
    if (a->model[0]) {
        term_put(out, a->model);
        buf_adds(out, ", ");
    }
    term_put(out, a->path);
    buf_printf(out, "\n%stemplate%s  ", term_bold(), term_plain());
    term_put(out, chat_name(c->chat));
    buf_printf(out, "\n%swhy%s       ", term_bold(), term_plain());
    term_put(out, c->reason);
    buf_addc(out, '\n');
    if (wire && strcmp(conv_name(wire), chat_name(c->chat)) != 0)
        buf_printf(out, "%sforeign%s   an API server that can not render it is told %s\n", term_bold(), term_plain(), conv_name(wire));
    for (; *stops; stops++) {
        buf_printf(out, "%sstop%s      ", term_bold(), term_plain());
        term_put(out, *stops);
        buf_addc(out, '\n');
    }
    buf_addc(out, '\n');
}

static void put_prompt(const struct ask *a, const struct chat_prompt *p, struct buf *out)
{
    for (size_t i = 0; i < p->n_spans; i++) {
        bool marked = a->spans && !p->spans[i].trusted;
        BUF_LOCAL text = BUF_INIT;

        buf_add(&text, p->spans[i].text, p->spans[i].len);
        if (marked)
            buf_printf(out, "%s⟦", term_green());
        term_put(out, buf_str(&text));
        if (marked)
            buf_printf(out, "⟧%s", term_plain());
    }
    if (p->len == 0 || p->text[p->len - 1] != '\n')
        buf_addc(out, '\n');
}

static void put_json(const struct ask *a, const struct template_choice *c, const struct chat_prompt *p, struct buf *out)
{
    struct json_writer w = json_writer(out);
    const struct conv_template *wire = chat_wire(c->chat);

    json_open(&w, '{');
    json_kstr(&w, "model", a->model[0] ? a->model : NULL);
    json_kstr(&w, "path", a->path);
    json_kstr(&w, "why", whys[c->why]);
    json_kstr(&w, "reason", c->reason);
    json_kstr(&w, "template", chat_name(c->chat));
    json_kstr(&w, "row", wire ? conv_name(wire) : NULL);
    json_key(&w, "prompt");
    json_strn(&w, p->text, p->len);
    json_key(&w, "spans");
    json_open(&w, '[');
    for (size_t i = 0; i < p->n_spans; i++) {
        json_open(&w, '{');
        json_key(&w, "text");
        json_strn(&w, p->spans[i].text, p->spans[i].len);
        json_kbool(&w, "trusted", p->spans[i].trusted);
        json_close(&w, '}');
    }
    json_close(&w, ']');
    json_key(&w, "stop");
    json_open(&w, '[');
    for (const char *const *s = p->stops; *s; s++)
        json_str(&w, *s);
    json_close(&w, ']');
    json_close(&w, '}');
    buf_addc(out, '\n');
}

/* The template itself: its Jinja text, or the row as the contract writes it. */
static void show_text(const struct template_choice *c)
{
    size_t len = 0;
    const char *text = chat_jinja_text(c->chat, NULL, &len);
    BUF_LOCAL out = BUF_INIT;
    struct json_writer w = json_writer(&out);

    if (!text) {
        conv_to_json(chat_wire(c->chat), &w);
        text = buf_str(&out);
        len = out.len;
    }
    term_write(text, len);
    if (len == 0 || text[len - 1] != '\n')
        putchar('\n');
}

static int render(const struct ask *a, const struct template_choice *c, struct err *err)
{
    CLEANUP(arena_free) struct arena *arena = arena_new(0);
    struct chat_prompt prompt;
    const char *param = NULL;
    BUF_LOCAL out = BUF_INIT;
    int r;

    if (!arena)
        return err_set(err, -ENOMEM, "no memory");
    r = chat_render(c->chat, &a->input, arena, &prompt, &param, err);
    if (r < 0) {
        err_place(err, "%s does not take this chat%s%s", chat_name(c->chat), param ? ": " : "", param ? param : "");
        return r;
    }
    if (a->json) {
        put_json(a, c, &prompt, &out);
    } else {
        put_head(a, c, prompt.stops, &out);
        put_prompt(a, &prompt, &out);
    }
    show(&out);
    return out.failed ? err_set(err, -ENOMEM, "no memory for the prompt") : 0;
}

/* ---- the names ---- */

static bool is_added(const struct ask *a, const char *name)
{
    size_t len;

    return conv_registry_jinja(a->registry, name, &len) || conv_find(a->registry, name) != conv_find(NULL, name);
}

static void put_name(const struct ask *a, struct buf *out, const char *name, const char *what)
{
    if (is_added(a, name))
        what = "of the configuration";
    term_put(out, name);
    if (*what)
        buf_printf(out, "%*s%s", (int)(strlen(name) < 34 ? 34 - strlen(name) : 1), "", what);
    buf_addc(out, '\n');
}

static int list(struct ask *a, struct err *err)
{
    BUF_LOCAL dump = BUF_INIT;
    BUF_LOCAL out = BUF_INIT;
    struct err silent = { 0 };
    const char *name;
    int r = read_config(a, &dump, &silent);

    if (r < 0 && a->config)
        return err_set(err, r, "%s", err_text(&silent));
    for (size_t i = 0; family_at(i); i++)
        put_name(a, &out, family_at(i)->name, family_at(i)->who);
    for (size_t i = 0; (name = conv_registry_name(a->registry, i)) != NULL; i++)
        if (!family_named(name))
            put_name(a, &out, name, "");
    show(&out);
    return 0;
}

/* ---- all of it ---- */

static int work(struct ask *a, struct err *err)
{
    CLEANUP(template_files_free) struct template_files *files = NULL;
    struct template_choice choice = { 0 };
    struct err wrong = { 0 };
    int r;

    a->registry = conv_registry_new();
    if (!a->registry)
        return err_set(err, -ENOMEM, "no memory");
    if (strcmp(a->operand, "list") == 0)
        return list(a, err);
    if ((r = find_model(a, err)) < 0 || (r = read_chat(a, err)) < 0)
        return r;
    r = template_files_open(a->path, &files, &wrong);
    if (r == -ENOENT && is_hub_name(a->path))
        fprintf(stderr, "There is no such file here; its name alone is looked at.\n");
    else if (r < 0)
        return err_set(err, r, "%s", err_text(&wrong));
    r = adapters_choose(&(struct template_question){
                            .configured = a->name ? a->name : a->configured, .path = a->path,
                            .model_name = a->model[0] ? a->model : NULL, .files = files,
                            .registry = a->registry }, &choice, err);
    if (r < 0)
        return r;
    if (a->text)
        show_text(&choice);
    else
        r = render(a, &choice, err);
    chat_free(choice.chat);
    return r;
}

int template_run(const struct command *cmd, int argc, char **argv)
{
    struct ask a = { .cmd = cmd };
    struct err err = { 0 };
    const struct arg args[] = {
        ARG(config, &a.config),
        ARG(kwargs, &a.kwargs),
        ARG(messages, &a.messages),
        ARG(no_generation_prompt, &a.closed),
        ARG(runtime_dir, &a.service.runtime_dir),
        ARG(spans, &a.spans),
        ARG(template_json, &a.json),
        ARG(template_name, &a.name),
        ARG(template_text, &a.text),
        ARG(tools, &a.tools),
    };
    int r = args_parse(cmd, args, sizeof args / sizeof args[0], argc, argv, &a.operand, 1);

    if (r != ARGS_RUN)
        return r;
    if (!a.operand || !a.operand[0])
        return args_mistake(cmd, "needs a model: a name, a file or a folder");
    if (a.text && (a.json || a.spans))
        return args_mistake(cmd, "--text renders nothing: no --json and no --spans");
    r = work(&a, &err);
    if (r < 0)
        term_error("%s", err_text(&err));
    conv_registry_free(a.registry);
    buf_fini(&a.message_file);
    buf_fini(&a.tool_file);
    buf_fini(&a.kwarg_file);
    return r < 0 ? CLI_FAILED : CLI_DONE;
}
