#include "cli/fetch.h"

#include "base/err.h"
#include "base/json.h"

#include <ctype.h>
#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { ANSWER_BYTES = 64 << 20, CONNECT_MS = 10000 };

static int parse_unix(const char *path, struct target *t, struct err *err)
{
    if (!path[0] || strlen(path) >= sizeof t->unix_path)
        return err_set(err, -EINVAL, "'unix:%.200s': the path must have 1 to %zu bytes", path,
                       sizeof t->unix_path - 1);
    strcpy(t->unix_path, path);
    strcpy(t->url, "http://localhost");
    return 0;
}

int target_parse(const char *text, struct target *ret, struct err *err)
{
    struct target t = { 0 };
    bool has_scheme = strncmp(text, "http://", 7) == 0 || strncmp(text, "https://", 8) == 0;
    size_t len;

    if (strlen(text) + sizeof "http://" > sizeof t.url)
        return err_set(err, -EINVAL, "the address is too long: '%.60s…'", text);
    strcpy(t.text, text);
    for (const char *c = text; *c; c++)
        if (iscntrl((unsigned char)*c))
            return err_set(err, -EINVAL, "'%s' is no address", text);
    if (strncmp(text, "unix:", 5) == 0) {
        if (parse_unix(text + 5, &t, err) < 0)
            return -EINVAL;
        *ret = t;
        return 0;
    }
    snprintf(t.url, sizeof t.url, "%s%s", has_scheme ? "" : "http://", text);
    len = strlen(t.url);
    while (t.url[len - 1] == '/')
        t.url[--len] = '\0';
    if (len > 3 && strcmp(t.url + len - 3, "/v1") == 0)
        t.url[len -= 3] = '\0';
    if (strchr(text, ' ') || (!has_scheme && !strchr(text, ':')))
        return err_set(err, -EINVAL, "'%s' is no address: http://host:port or unix:PATH", text);
    *ret = t;
    return 0;
}

struct exchange {
    struct fetch *f;
    CURL *easy;
    bool stopped; /* by on_data */
    char text[CURL_ERROR_SIZE];
};

static size_t on_data(char *data, size_t size, size_t n, void *user)
{
    struct exchange *x = user;
    struct fetch *f = x->f;
    long status = 0;

    curl_easy_getinfo(x->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status == 200 && f->on_data) {
        if (f->on_data(data, n, f->user))
            return n;
        x->stopped = true;
        return 0;
    }
    buf_add(&f->answer, data, n);
    return f->answer.failed ? 0 : n;
}

static int to_errno(CURLcode code)
{
    switch (code) {
    case CURLE_COULDNT_CONNECT:
    case CURLE_COULDNT_RESOLVE_HOST: return -ECONNREFUSED;
    case CURLE_OPERATION_TIMEDOUT: return -ETIMEDOUT;
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL: return -EINVAL;
    case CURLE_OUT_OF_MEMORY: return -ENOMEM;
    default: return -ECONNRESET;
    }
}

static void set_up(struct exchange *x, const char *url, struct curl_slist *headers)
{
    const struct fetch *f = x->f;

    curl_easy_setopt(x->easy, CURLOPT_URL, url);
    curl_easy_setopt(x->easy, CURLOPT_ERRORBUFFER, x->text);
    curl_easy_setopt(x->easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(x->easy, CURLOPT_PROXY, "");
    curl_easy_setopt(x->easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(x->easy, CURLOPT_USERAGENT, "FastChat Client");
    curl_easy_setopt(x->easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(x->easy, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    curl_easy_setopt(x->easy, CURLOPT_TIMEOUT_MS, (long)f->timeout_ms);
    curl_easy_setopt(x->easy, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(x->easy, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(x->easy, CURLOPT_WRITEDATA, x);
    if (f->target->unix_path[0])
        curl_easy_setopt(x->easy, CURLOPT_UNIX_SOCKET_PATH, f->target->unix_path);
    if (f->body) {
        curl_easy_setopt(x->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(f->body));
        curl_easy_setopt(x->easy, CURLOPT_POSTFIELDS, f->body);
    }
}

/* Turns the transfer until it ends or somebody interrupts. The multi interface,
 * because it waits for a descriptor of ours too. */
static int turn(CURLM *multi, const struct fetch *f, CURLcode *ret)
{
    int running = 1, left;
    CURLMsg *msg;

    while (running) {
        struct curl_waitfd wait = { .fd = f->interrupt_fd, .events = CURL_WAIT_POLLIN };

        if (curl_multi_perform(multi, &running) != CURLM_OK)
            return -EIO;
        if (running &&
            curl_multi_poll(multi, &wait, f->interrupt_fd >= 0 ? 1 : 0, 1000, NULL) != CURLM_OK)
            return -EIO;
        if (wait.revents)
            return FETCH_INTERRUPTED;
    }
    while ((msg = curl_multi_info_read(multi, &left)))
        if (msg->msg == CURLMSG_DONE)
            *ret = msg->data.result;
    return 0;
}

static int exchange_run(struct exchange *x, CURLM *multi, struct err *err)
{
    CURLcode code = CURLE_FAILED_INIT;
    long status = 0;
    int r;

    curl_multi_add_handle(multi, x->easy);
    r = turn(multi, x->f, &code);
    curl_easy_getinfo(x->easy, CURLINFO_RESPONSE_CODE, &status);
    x->f->status = (int)status;
    curl_multi_remove_handle(multi, x->easy);
    if (r != 0 || code == CURLE_OK || x->stopped)
        return r;
    if (code == CURLE_COULDNT_CONNECT)
        return err_set(err, to_errno(code), "nobody answers at %s", x->f->target->text);
    return err_set(err, to_errno(code), "%s: %s", x->f->target->text,
                   x->text[0] ? x->text : curl_easy_strerror(code));
}

int fetch_run(struct fetch *f, struct err *err)
{
    struct exchange x = { .f = f, .easy = curl_easy_init() };
    CURLM *multi = curl_multi_init();
    struct curl_slist *headers = curl_slist_append(NULL, "Expect:");
    BUF_LOCAL url = BUF_INIT;
    int r = -ENOMEM;

    if (headers && f->body)
        curl_slist_append(headers, "Content-Type: application/json");
    buf_printf(&url, "%s%s", f->target->url, f->path);
    f->answer.limit = ANSWER_BYTES;
    if (x.easy && multi && headers && !url.failed) {
        set_up(&x, buf_str(&url), headers);
        r = exchange_run(&x, multi, err);
    } else {
        err_set(err, r, "no memory for a request");
    }
    curl_easy_cleanup(x.easy);
    curl_multi_cleanup(multi);
    curl_slist_free_all(headers);
    return r;
}

int fetch_refusal(const struct fetch *f, struct err *err)
{
    static const char *const keys[] = { "message", "detail", "text" };
    CLEANUP(json_delete) cJSON *tree = NULL;
    const cJSON *at;
    const char *text;

    json_parse(buf_str(&f->answer), f->answer.len, NULL, &tree, NULL);
    at = json_find(tree, "error");
    if (!cJSON_IsObject(at))
        at = tree;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (json_get_string(at, keys[i], &text, NULL) == 0)
            return err_set(err, -EPROTO, "%s (status %d)", text, f->status);
    return err_set(err, -EPROTO, "%s answered with status %d", f->target->text, f->status);
}
