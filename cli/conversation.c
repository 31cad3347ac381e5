#include "cli/conversation.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { FILE_BYTES = 32 << 20, MESSAGES = 100000 };

struct message {
    bool user;
    char *text;
};

struct conversation {
    char *template_name, *system, *roles[2]; /* roles: of the assistant, of the user */
    struct message *messages;
    size_t n, cap;
    int64_t offset; /* messages at the start that are examples */
};

void conversation_free(struct conversation *c)
{
    if (!c)
        return;
    while (c->n)
        conversation_drop(c);
    free(c->messages);
    free(c->template_name);
    free(c->system);
    free(c->roles[0]);
    free(c->roles[1]);
    free(c);
}

DEFINE_CLEANUP(struct conversation *, conversation_free)

static struct conversation *make(const char *template_name, const char *system, const char *user,
                                 const char *assistant)
{
    CLEANUP(conversation_free) struct conversation *c = calloc(1, sizeof *c);

    if (!c)
        return NULL;
    c->template_name = strdup(template_name);
    c->system = strdup(system ? system : "");
    c->roles[0] = strdup(assistant);
    c->roles[1] = strdup(user);
    if (!c->template_name || !c->system || !c->roles[0] || !c->roles[1])
        return NULL;
    return STEAL(c);
}

struct conversation *conversation_new(const char *system)
{
    return make("api_based_default", system, "user", "assistant");
}

int conversation_add(struct conversation *c, bool user, const char *text)
{
    char *copy = strdup(text);

    if (copy && c->n == c->cap) {
        size_t cap = c->cap ? 2 * c->cap : 16;
        struct message *more = reallocarray(c->messages, cap, sizeof *more);

        if (more) {
            c->messages = more;
            c->cap = cap;
        }
    }
    if (!copy || c->n == c->cap) {
        free(copy);
        return -ENOMEM;
    }
    c->messages[c->n++] = (struct message){ .user = user, .text = copy };
    return 0;
}

size_t conversation_count(const struct conversation *c)
{
    return c->n;
}

const char *conversation_last(const struct conversation *c, bool *ret_user)
{
    if (c->n == 0)
        return NULL;
    *ret_user = c->messages[c->n - 1].user;
    return c->messages[c->n - 1].text;
}

void conversation_drop(struct conversation *c)
{
    if (c->n)
        free(c->messages[--c->n].text);
}

char *conversation_drop_pair(struct conversation *c)
{
    if (c->n && !c->messages[c->n - 1].user)
        conversation_drop(c);
    return c->n && c->messages[c->n - 1].user ? c->messages[--c->n].text : NULL;
}

void conversation_each(const struct conversation *c, void (*fn)(bool user, const char *text))
{
    for (size_t i = 0; i < c->n; i++)
        fn(c->messages[i].user, c->messages[i].text);
}

static void write_message(struct json_writer *w, const char *role, const char *text)
{
    json_open(w, '{');
    json_kstr(w, "role", role);
    json_kstr(w, "content", text);
    json_close(w, '}');
}

void conversation_write(const struct conversation *c, struct json_writer *w)
{
    json_open(w, '[');
    if (c->system[0])
        write_message(w, "system", c->system);
    for (size_t i = 0; i < c->n; i++)
        write_message(w, c->messages[i].user ? "user" : "assistant", c->messages[i].text);
    json_close(w, ']');
}

/* The file */

static void write_file(const struct conversation *c, struct buf *out)
{
    struct json_writer w = json_writer(out);

    json_open(&w, '{');
    json_kstr(&w, "template_name", c->template_name);
    json_kstr(&w, "system_message", c->system);
    json_key(&w, "roles");
    json_open(&w, '[');
    json_str(&w, c->roles[true]);
    json_str(&w, c->roles[false]);
    json_close(&w, ']');
    json_key(&w, "messages");
    json_open(&w, '[');
    for (size_t i = 0; i < c->n; i++) {
        json_open(&w, '[');
        json_str(&w, c->roles[c->messages[i].user]);
        json_str(&w, c->messages[i].text);
        json_close(&w, ']');
    }
    json_close(&w, ']');
    json_kint(&w, "offset", c->offset);
    json_close(&w, '}');
    buf_addc(out, '\n');
}

int conversation_save(const struct conversation *c, const char *name, char *used, size_t size,
                      struct err *err)
{
    BUF_LOCAL text = BUF_INIT;
    FILE *f;
    bool done;

    if ((size_t)snprintf(used, size, "%s%s", name, strchr(name, '.') ? "" : ".json") >= size)
        return err_set(err, -ENAMETOOLONG, "the name is too long");
    write_file(c, &text);
    if (text.failed)
        return err_set(err, -ENOMEM, "no memory");
    f = fopen(used, "we");
    if (!f)
        return err_errno(err, -errno, "%s", used);
    done = fwrite(text.data, 1, text.len, f) == text.len;
    if (fclose(f) != 0 || !done)
        return err_errno(err, -EIO, "%s", used);
    return 0;
}

static int read_file(const char *path, struct buf *out, struct err *err)
{
    CLEANUP(fd_close) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    ssize_t n;

    if (fd < 0)
        return err_errno(err, -errno, "%s", path);
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return err_set(err, -EINVAL, "%s is no file", path);
    out->limit = FILE_BYTES;
    do {
        char *room = buf_room(out, 65536);

        if (!room)
            return err_set(err, -E2BIG, "%s is over %d MB", path, FILE_BYTES >> 20);
        n = read(fd, room, 65536);
        if (n > 0)
            buf_grew(out, (size_t)n);
    } while (n > 0);
    return n < 0 ? err_errno(err, -errno, "%s", path) : 0;
}

/* [role, text]; an open turn (null) is left out. */
static int take_message(struct conversation *c, const cJSON *item, size_t i, struct err *err)
{
    const cJSON *role = cJSON_GetArrayItem(item, 0), *text = cJSON_GetArrayItem(item, 1);
    bool user;

    if (!cJSON_IsArray(item) || !cJSON_IsString(role) ||
        (!cJSON_IsString(text) && !cJSON_IsNull(text)))
        return err_set(err, -EINVAL, "messages[%zu] must be [role, text]", i);
    user = strcmp(role->valuestring, c->roles[true]) == 0;
    if (!user && strcmp(role->valuestring, c->roles[false]) != 0)
        return err_set(err, -EINVAL, "messages[%zu] is by '%.60s', who is not in 'roles'", i,
                       role->valuestring);
    if (cJSON_IsNull(text))
        return 0;
    return conversation_add(c, user, text->valuestring) < 0 ? err_set(err, -ENOMEM, "no memory")
                                                            : 0;
}

static int from_tree(const cJSON *tree, struct conversation **ret, struct err *err)
{
    CLEANUP(conversation_free) struct conversation *c = NULL;
    const cJSON *roles = NULL, *list = NULL, *item;
    const char *template_name = "", *system = "";
    int64_t offset = 0;
    size_t i = 0;

    if (!cJSON_IsObject(tree))
        return err_set(err, -EINVAL, "is no conversation");
    if (json_get_string(tree, "template_name", &template_name, err) < 0 ||
        json_get_string(tree, "system_message", &system, err) < 0 ||
        json_get_array(tree, "roles", &roles, err) < 0 ||
        json_get_array(tree, "messages", &list, err) < 0 ||
        json_get_int(tree, "offset", 0, MESSAGES, &offset, err) < 0)
        return -EINVAL;
    if (!list || !cJSON_IsString(cJSON_GetArrayItem(roles, 0)) ||
        !cJSON_IsString(cJSON_GetArrayItem(roles, 1)))
        return err_set(err, -EINVAL, "is no conversation: it needs 'messages' and two 'roles'");
    c = make(template_name, system, cJSON_GetArrayItem(roles, 0)->valuestring,
             cJSON_GetArrayItem(roles, 1)->valuestring);
    if (!c)
        return err_set(err, -ENOMEM, "no memory");
    c->offset = offset;
    cJSON_ArrayForEach(item, list)
    {
        int r = i == MESSAGES ? err_set(err, -E2BIG, "more than %d messages", MESSAGES)
                              : take_message(c, item, i, err);

        if (r < 0)
            return r;
        i++;
    }
    *ret = STEAL(c);
    return 0;
}

int conversation_load(const char *name, struct conversation **ret, char *used, size_t size,
                      struct err *err)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    BUF_LOCAL text = BUF_INIT;
    int r;

    if ((size_t)snprintf(used, size, "%s%s", name, access(name, F_OK) == 0 ? "" : ".json") >= size)
        return err_set(err, -ENAMETOOLONG, "the name is too long");
    if (access(used, F_OK) < 0)
        return err_set(err, -ENOENT, "file not found: %s", name);
    r = read_file(used, &text, err);
    if (r < 0)
        return r;
    r = json_parse(buf_str(&text), text.len, NULL, &tree, err);
    if (r == 0)
        r = from_tree(tree, ret, err);
    if (r < 0)
        err_place(err, "%s", used);
    return r;
}
