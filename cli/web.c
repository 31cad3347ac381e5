#include "cli/web.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/id.h"
#include "cli/progress.h"
#include "cli/term.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    MAX_REDIRECTS = 8,
    CHUNK_BYTES = 256 << 10,
    SLOW_BYTES = 64,        /* a second, over timeout_s: it stands still */
    REFUSAL_BYTES = 64 << 10,
    FIRST_WAIT_MS = 500,
    LONGEST_WAIT_MS = 30000,
    LONGEST_RETRY_AFTER_S = 300,
};

struct web {
    struct web_options o;
    CURL *easy;
    CURLM *multi;
    bool ever_answered; /* so a name that is not known is a passing trouble */
    char text[CURL_ERROR_SIZE];
};

/* One request, over its redirects. */
struct exchange {
    struct web *w;
    const struct web_request *r;
    struct web_answer *a;
    struct err *err;
    size_t received;
    bool begun;
    int failed; /* -errno of a callback */
};

int web_open(const struct web_options *o, struct web **ret, struct err *err)
{
    CLEANUP(web_close) struct web *w = calloc(1, sizeof *w);

    if (w) {
        w->o = *o;
        w->easy = curl_easy_init();
        w->multi = curl_multi_init();
    }
    if (!w || !w->easy || !w->multi)
        return err_set(err, -ENOMEM, "no memory for a request");
    *ret = STEAL(w);
    return 0;
}

void web_close(struct web *w)
{
    if (!w)
        return;
    curl_easy_cleanup(w->easy);
    curl_multi_cleanup(w->multi);
    free(w);
}

/* ---- addresses ---- */

DEFINE_CLEANUP(CURLU *, curl_url_cleanup)
DEFINE_CLEANUP(char *, curl_free)

static CURLU *parse_url(const char *text)
{
    CURLU *u = curl_url();

    if (u && curl_url_set(u, CURLUPART_URL, text, 0) != CURLUE_OK) {
        curl_url_cleanup(u);
        return NULL;
    }
    return u;
}

/* A part in `out`, "" when it is not there. */
static void url_part(CURLU *u, CURLUPart part, unsigned flags, char *out, size_t size)
{
    CLEANUP(curl_free) char *text = NULL;

    if (!u || curl_url_get(u, part, &text, flags) != CURLUE_OK)
        out[0] = 0;
    else
        snprintf(out, size, "%s", text);
}

bool web_same_origin(const char *a, const char *b)
{
    static const CURLUPart parts[] = { CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT };
    CLEANUP(curl_url_cleanup) CURLU *first = parse_url(a);
    CLEANUP(curl_url_cleanup) CURLU *second = parse_url(b);

    for (size_t i = 0; i < 3; i++) {
        char x[300], y[300];

        url_part(first, parts[i], CURLU_DEFAULT_PORT, x, sizeof x);
        url_part(second, parts[i], CURLU_DEFAULT_PORT, y, sizeof y);
        if (!x[0] || strcasecmp(x, y) != 0)
            return false;
    }
    return true;
}

bool web_is_private(const char *url)
{
    CLEANUP(curl_url_cleanup) CURLU *u = parse_url(url);
    char scheme[16], host[300];
    struct in_addr v4;

    url_part(u, CURLUPART_SCHEME, 0, scheme, sizeof scheme);
    url_part(u, CURLUPART_HOST, 0, host, sizeof host);
    return strcasecmp(scheme, "https") == 0 || strcasecmp(host, "localhost") == 0 || strcmp(host, "[::1]") == 0 ||
           (inet_pton(AF_INET, host, &v4) == 1 && ntohl(v4.s_addr) >> 24 == 127);
}

/* Where a redirect leads; -EPROTO for what is not followed. */
static int resolve_redirect(const char *from, const char *location, struct buf *ret, struct err *err)
{
    CLEANUP(curl_url_cleanup) CURLU *u = parse_url(from);
    CLEANUP(curl_free) char *text = NULL;
    char before[16], after[16];

    url_part(u, CURLUPART_SCHEME, 0, before, sizeof before);
    if (!u || !location[0] || curl_url_set(u, CURLUPART_URL, location, CURLU_NON_SUPPORT_SCHEME) != CURLUE_OK ||
        curl_url_get(u, CURLUPART_URL, &text, 0) != CURLUE_OK)
        return err_set(err, -EPROTO, "%.200s: is redirected to no address", from);
    url_part(u, CURLUPART_SCHEME, 0, after, sizeof after);
    if (strcmp(after, "https") != 0 && (strcmp(after, "http") != 0 || strcmp(before, "http") != 0))
        return err_set(err, -EPROTO, "%.150s: a redirect to %.150s is not followed", from, text);
    buf_clear(ret);
    buf_adds(ret, text);
    return ret->failed ? err_set(err, -ENOMEM, "no memory") : 0;
}

/* ---- headers ---- */

static void put_text(char *to, size_t size, const char *value, size_t len)
{
    /* one that does not fit says nothing: half a validator is a wrong one */
    snprintf(to, size, "%.*s", len < size ? (int)len : 0, value);
}

static int64_t number(const char *value, size_t len)
{
    int64_t v = 0;

    if (len == 0)
        return -1;
    for (size_t i = 0; i < len; i++)
        if (value[i] < '0' || value[i] > '9' || __builtin_mul_overflow(v, 10, &v) ||
            __builtin_add_overflow(v, value[i] - '0', &v))
            return -1;
    return v;
}

/* "bytes 5-9/10"; a total of "*" is none. */
static void put_range(struct web_answer *a, const char *value, size_t len)
{
    const char *dash, *slash;

    if (len < 6 || strncasecmp(value, "bytes ", 6) != 0)
        return;
    value += 6;
    len -= 6;
    dash = memchr(value, '-', len);
    slash = memchr(value, '/', len);
    if (!dash || !slash || slash < dash)
        return;
    a->range_from = number(value, (size_t)(dash - value));
    a->range_total = number(slash + 1, (size_t)(value + len - slash - 1));
}

static void put_etag(char *to, size_t size, const char *value, size_t len)
{
    if (len > 2 && strncmp(value, "W/", 2) == 0) {
        value += 2;
        len -= 2;
    }
    if (len >= 2 && value[0] == '"' && value[len - 1] == '"') {
        value++;
        len -= 2;
    }
    put_text(to, size, value, len);
}

/* RateLimit: "api";r=0;t=55 - nothing is left, and in 55 s there is again. */
static void put_rate_limit(struct web_answer *a, const char *value, size_t len)
{
    const char *left = memmem(value, len, ";r=0;", 5), *t = left ? memmem(left, (size_t)(value + len - left), ";t=", 3) : NULL;
    size_t n = 0;

    if (!t)
        return;
    t += 3;
    while (t + n < value + len && t[n] >= '0' && t[n] <= '9')
        n++;
    a->limit_reset_s = number(t, n);
}

static void take_header(struct web_answer *a, const char *name, size_t name_len, const char *value, size_t len)
{
    const struct {
        const char *name;
        char *to;
        size_t size;
    } texts[] = {
        { "content-encoding", a->encoding, sizeof a->encoding },
        { "etag", a->etag, sizeof a->etag },
        { "last-modified", a->last_modified, sizeof a->last_modified },
        { "link", a->link, sizeof a->link },
        { "location", a->location, sizeof a->location },
        { "x-error-code", a->error_code, sizeof a->error_code },
        { "x-error-message", a->error_message, sizeof a->error_message },
        { "x-repo-commit", a->commit, sizeof a->commit },
    };
#define IS(text) (name_len == sizeof(text) - 1 && strncasecmp(name, text, name_len) == 0)
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (name_len == strlen(texts[i].name) && strncasecmp(name, texts[i].name, name_len) == 0)
            put_text(texts[i].to, texts[i].size, value, len);
    if (IS("content-length"))
        a->length = number(value, len);
    else if (IS("content-range"))
        put_range(a, value, len);
    else if (IS("ratelimit"))
        put_rate_limit(a, value, len);
    else if (IS("x-linked-size"))
        a->linked_size = number(value, len);
    else if (IS("x-linked-etag"))
        put_etag(a->linked_etag, sizeof a->linked_etag, value, len);
#undef IS
}

/* Before the headers of each answer; what the hub said of the file stays. */
static void clear_answer(struct web_answer *a)
{
    a->status = 0;
    a->error_code[0] = a->error_message[0] = a->etag[0] = a->last_modified[0] = a->encoding[0] = 0;
    a->location[0] = a->link[0] = 0;
    a->length = a->range_from = a->range_total = a->retry_after_s = a->limit_reset_s = -1;
}

static size_t on_header(char *line, size_t size, size_t n, void *user)
{
    struct exchange *x = user;
    const char *colon = memchr(line, ':', n), *value;
    size_t len;

    if (n > 5 && strncmp(line, "HTTP/", 5) == 0) {
        clear_answer(x->a);
        return n;
    }
    if (!colon)
        return n;
    value = colon + 1;
    len = n - (size_t)(value - line);
    while (len > 0 && strchr(" \t", *value)) {
        value++;
        len--;
    }
    while (len > 0 && strchr(" \t\r\n", value[len - 1]))
        len--;
    if (!memchr(value, 0, len))
        take_header(x->a, line, (size_t)(colon - line), value, len);
    return n;
}

/* ---- one hop ---- */

static int begin(struct exchange *x)
{
    if (x->begun)
        return 0;
    x->begun = true;
    if (x->a->encoding[0] && strcasecmp(x->a->encoding, "identity") != 0)
        return err_set(x->err, -EPROTO, "the server sends it encoded (%s), which was not asked for", x->a->encoding);
    return x->r->on_begin ? x->r->on_begin(x->a, x->r->user, x->err) : 0;
}

static size_t on_data(char *data, size_t size, size_t n, void *user)
{
    struct exchange *x = user;
    long status = 0;

    curl_easy_getinfo(x->w->easy, CURLINFO_RESPONSE_CODE, &status);
    x->a->status = (int)status;
    if (status / 100 != 2) {
        /* of a refusal the headers say enough; a body without end is left unread */
        x->received += n;
        return x->received > REFUSAL_BYTES ? 0 : n;
    }
    x->failed = begin(x);
    if (x->failed == 0 && x->r->limit && (x->received += n) > x->r->limit)
        x->failed = err_set(x->err, -E2BIG, "the answer has over %zu bytes", x->r->limit);
    if (x->failed == 0)
        x->failed = x->r->on_data(data, n, x->r->user, x->err);
    return x->failed == 0 ? n : 0;
}

static const char *from_env(const char *name)
{
    const char *v = getenv(name);

    return v && v[0] ? v : NULL;
}

static void set_authorities(struct web *w)
{
    const char *file = w->o.cacert, *dir = from_env("SSL_CERT_DIR");

    if (!file)
        file = from_env("CURL_CA_BUNDLE");
    if (!file)
        file = from_env("SSL_CERT_FILE");
    if (!file)
        file = from_env("REQUESTS_CA_BUNDLE");
    if (file)
        curl_easy_setopt(w->easy, CURLOPT_CAINFO, file);
    if (dir)
        curl_easy_setopt(w->easy, CURLOPT_CAPATH, dir);
}

static int make_headers(const struct exchange *x, const char *url, struct curl_slist **ret, struct err *err)
{
    const struct web_options *o = &x->w->o;
    char line[2048];
    struct curl_slist *list = curl_slist_append(NULL, "Accept-Encoding: identity");

#define ADD(...)                                                                                   \
    do {                                                                                           \
        snprintf(line, sizeof line, __VA_ARGS__);                                                  \
        if (list && !curl_slist_append(list, line)) {                                              \
            curl_slist_free_all(list);                                                             \
            list = NULL;                                                                           \
        }                                                                                          \
    } while (0)
    if (x->r->from > 0) {
        ADD("Range: bytes=%lld-", (long long)x->r->from);
        if (x->r->if_range && x->r->if_range[0])
            ADD("If-Range: %s", x->r->if_range);
    }
    if (o->token && web_same_origin(url, o->home) && web_is_private(url))
        ADD("Authorization: Bearer %s", o->token);
#undef ADD
    *ret = list;
    return list ? 0 : err_set(err, -ENOMEM, "no memory for a request");
}

static void set_up(struct exchange *x, const char *url, struct curl_slist *headers)
{
    struct web *w = x->w;

    curl_easy_reset(w->easy);
    w->text[0] = 0;
    curl_easy_setopt(w->easy, CURLOPT_URL, url);
    curl_easy_setopt(w->easy, CURLOPT_ERRORBUFFER, w->text);
    curl_easy_setopt(w->easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(w->easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(w->easy, CURLOPT_USERAGENT, "fastchat/" FASTCHAT_VERSION);
    curl_easy_setopt(w->easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(w->easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    curl_easy_setopt(w->easy, CURLOPT_CONNECTTIMEOUT, (long)w->o.timeout_s);
    curl_easy_setopt(w->easy, CURLOPT_LOW_SPEED_LIMIT, (long)SLOW_BYTES);
    curl_easy_setopt(w->easy, CURLOPT_LOW_SPEED_TIME, (long)w->o.timeout_s);
    curl_easy_setopt(w->easy, CURLOPT_BUFFERSIZE, (long)CHUNK_BYTES);
    curl_easy_setopt(w->easy, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(w->easy, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(w->easy, CURLOPT_HEADERDATA, x);
    curl_easy_setopt(w->easy, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(w->easy, CURLOPT_WRITEDATA, x);
    set_authorities(w);
}

static int turn(struct web *w, CURLcode *ret)
{
    int running = 1, left;
    CURLMsg *msg;

    while (running) {
        struct curl_waitfd wait = { .fd = w->o.interrupt_fd, .events = CURL_WAIT_POLLIN };

        if (curl_multi_perform(w->multi, &running) != CURLM_OK)
            return -EIO;
        if (running && curl_multi_poll(w->multi, &wait, w->o.interrupt_fd >= 0, 1000, NULL) != CURLM_OK)
            return -EIO;
        if (wait.revents && term_was_interrupted())
            return WEB_INTERRUPTED;
    }
    while ((msg = curl_multi_info_read(w->multi, &left)))
        if (msg->msg == CURLMSG_DONE)
            *ret = msg->data.result;
    return 0;
}

/* What libcurl's code means for another try, with a sentence. */
static int explain(struct web *w, const char *url, CURLcode code, struct err *err)
{
    const char *text = w->text[0] ? w->text : curl_easy_strerror(code);
    CLEANUP(curl_url_cleanup) CURLU *u = parse_url(url);
    char host[200];

    url_part(u, CURLUPART_HOST, 0, host, sizeof host);
    switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
        return err_set(err, w->ever_answered ? -EAGAIN : -EHOSTUNREACH,
                       "%s can not be reached: %s. Where there is no network, --offline answers from what is here", host, text);
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
        return err_set(err, -EPROTO,
                       "the certificate of %s is not trusted: %s. --cacert FILE or SSL_CERT_FILE names a file of authorities",
                       host, text);
    case CURLE_OPERATION_TIMEDOUT:
        return err_set(err, -EAGAIN, "%s sent nothing for %u s", host, w->o.timeout_s);
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_SSL_CONNECT_ERROR:
        return err_set(err, -EAGAIN, "%s broke off: %s", host, text);
    case CURLE_OUT_OF_MEMORY:
        return err_set(err, -ENOMEM, "no memory for a request");
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
        return err_set(err, -EINVAL, "%.300s is no http(s) address: %s", url, text);
    default:
        return err_set(err, -EPROTO, "%s: %s", host[0] ? host : url, text);
    }
}

static int hop(struct exchange *x, const char *url)
{
    struct web *w = x->w;
    struct curl_slist *headers = NULL;
    CURLcode code = CURLE_FAILED_INIT;
    curl_off_t after = 0;
    long status = 0;
    int r = make_headers(x, url, &headers, x->err);

    if (r < 0)
        return r;
    clear_answer(x->a);
    x->received = 0;
    x->begun = false;
    set_up(x, url, headers);
    curl_multi_add_handle(w->multi, w->easy);
    r = turn(w, &code);
    curl_easy_getinfo(w->easy, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(w->easy, CURLINFO_RETRY_AFTER, &after);
    curl_multi_remove_handle(w->multi, w->easy);
    curl_slist_free_all(headers);
    x->a->status = (int)status;
    if (after > 0)
        x->a->retry_after_s = (int64_t)after;
    else if (status == 429)
        x->a->retry_after_s = x->a->limit_reset_s;
    w->ever_answered |= status > 0;
    if (r < 0)
        return err_errno(x->err, r, "the transfer");
    if (r != 0 || x->failed < 0)
        return r ? r : x->failed;
    if (code == CURLE_OK)
        return status / 100 == 2 ? begin(x) : 0;
    /* a refusal's body does not matter */
    return status >= 300 ? 0 : explain(w, url, code, x->err);
}

static bool is_redirect(int status)
{
    return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

int web_run(struct web *w, const struct web_request *r, struct web_answer *ret, struct err *err)
{
    struct exchange x = { .w = w, .r = r, .a = ret, .err = err };
    BUF_LOCAL url = BUF_INIT;
    int code;

    *ret = (struct web_answer){ .linked_size = -1 };
    buf_adds(&url, r->url);
    for (int i = 0; i <= MAX_REDIRECTS; i++) {
        if (url.failed)
            return err_set(err, -ENOMEM, "no memory for a request");
        code = hop(&x, buf_str(&url));
        if (code != 0 || !is_redirect(ret->status))
            return code;
        code = resolve_redirect(buf_str(&url), ret->location, &url, err);
        if (code < 0)
            return code;
        ret->foreign = !web_same_origin(buf_str(&url), r->url);
    }
    return err_set(err, -EPROTO, "%.300s: is redirected more than %d times", r->url, MAX_REDIRECTS);
}

/* ---- trying again ---- */

bool web_is_passing(const struct web_answer *a)
{
    /* the content network's addresses are signed and expire */
    return a->status == 408 || a->status == 425 || a->status == 429 || a->status >= 500 ||
           (a->foreign && a->status == 403);
}

static int pause_ms(const struct web *w, int64_t ms)
{
    uint64_t until = clock_mono_ms() + (uint64_t)ms;

    for (;;) {
        struct pollfd p = { .fd = w->o.interrupt_fd, .events = POLLIN };
        uint64_t now = clock_mono_ms();

        if (now >= until)
            return 0;
        if (poll(&p, 1, (int)(until - now)) > 0 && term_was_interrupted())
            return WEB_INTERRUPTED;
    }
}

int web_wait(struct web *w, unsigned *tries, int64_t retry_after_s, const char *why, struct err *err)
{
    int64_t ms = FIRST_WAIT_MS;

    if (retry_after_s > LONGEST_RETRY_AFTER_S)
        return err_set(err, -ETIMEDOUT, "%s; the server asks to come back in %lld s", why, (long long)retry_after_s);
    if (*tries >= w->o.retries)
        return err_set(err, -ETIMEDOUT, "%s; given up after %u tries", why, *tries + 1);
    for (unsigned i = 0; i < *tries && ms < LONGEST_WAIT_MS; i++)
        ms *= 2;
    ++*tries;
    /* many that were cut off together come back apart */
    ms += (int64_t)(id_random_u64() % (uint64_t)(ms / 2));
    if (retry_after_s >= 0 && retry_after_s * 1000 > ms)
        ms = retry_after_s * 1000;
    progress_note(w->o.progress, "%s; trying again in %lld.%lld s", why, (long long)ms / 1000, (long long)ms % 1000 / 100);
    return pause_ms(w, ms);
}

static int add_text(const char *data, size_t len, void *user, struct err *err)
{
    struct buf *body = user;

    buf_add(body, data, len);
    return body->failed ? err_set(err, -ENOMEM, "no memory for the answer") : 0;
}

int web_text(struct web *w, const char *url, size_t limit, struct buf *ret_body, struct web_answer *ret, struct err *err)
{
    const struct web_request request = { .url = url, .limit = limit, .on_data = add_text, .user = ret_body };
    unsigned tries = 0;

    for (;;) {
        struct err why = { 0 };
        int r;

        buf_clear(ret_body);
        r = web_run(w, &request, ret, &why);
        if (r == 0 && !web_is_passing(ret))
            return 0;
        if (r == 0)
            err_set(&why, -EAGAIN, "%.200s answered with status %d", w->o.home, ret->status);
        else if (r != -EAGAIN)
            return r < 0 ? err_set(err, r, "%s", err_text(&why)) : r;
        r = web_wait(w, &tries, ret->retry_after_s, err_text(&why), err);
        if (r != 0)
            return r;
    }
}
