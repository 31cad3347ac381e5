#include "cli/hub.h"

#include "base/err.h"
#include "base/json.h"
#include "base/utf8.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PART_BYTES = 200, MAX_DEPTH = 16, REPO_PART_BYTES = 96 };

static const struct json_limits answer_limits = {
    .bytes = 32u << 20, .depth = 16, .string_bytes = 1u << 20, .values = 1000000,
};

static bool starts(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

static bool ends(const char *text, const char *with)
{
    size_t n = strlen(text), m = strlen(with);

    return n >= m && strcmp(text + n - m, with) == 0;
}

/* Of ASCII, whatever the locale says. */
static bool alphanumeric(char c)
{
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
}

/* ---- what somebody wrote ---- */

/* Puts text[0..len) into `to`; false: it does not fit. */
static bool put(char *to, size_t size, const char *text, size_t len)
{
    if (len >= size)
        return false;
    memcpy(to, text, len);
    to[len] = 0;
    return true;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* In place, up to a query or fragment; false: a "%" without two digits, or a NUL. */
static bool decode(char *text)
{
    char *to = text;

    for (const char *at = text; *at && *at != '?' && *at != '#'; at++) {
        int high, low;

        if (*at != '%') {
            *to++ = *at;
            continue;
        }
        high = hex_digit(at[1]);
        low = high < 0 ? -1 : hex_digit(at[2]);
        if (low < 0 || high * 16 + low == 0)
            return false;
        *to++ = (char)(high * 16 + low);
        at += 2;
    }
    *to = 0;
    return true;
}

static bool repo_part(const char *at, size_t n)
{
    if (n == 0 || n > REPO_PART_BYTES || at[0] == '.' || at[0] == '-')
        return false;
    for (size_t i = 0; i < n; i++)
        if ((!alphanumeric(at[i]) && !strchr("._-", at[i])) || (i > 0 && at[i] == at[i - 1] && strchr(".-", at[i])))
            return false;
    return true;
}

static bool is_plain(const char *text)
{
    if (!utf8_is_valid(text, strlen(text)))
        return false;
    for (const char *c = text; *c; c++)
        if ((unsigned char)*c <= 0x20 || *c == 0x7f)
            return false;
    return true;
}

static size_t revision_len(const char *at)
{
    size_t n = 0;

    /* refs/pr/7 and refs/convert/parquet hold slashes */
    if (starts(at, "refs/"))
        for (int slashes = 0; at[n] && at[n] != ':'; n++)
            if (at[n] == '/' && ++slashes == 3)
                return n;
    return n ? n : strcspn(at, ":/");
}

/* "/tree/REV…" of a web address, with the revision and the path. 0 or -EINVAL. */
static bool take_web_path(const char *at, struct hub_source *s)
{
    static const char *const kinds[] = { "/tree/", "/blob/", "/raw/", "/resolve/" };

    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        size_t n;

        if (!starts(at, kinds[i]))
            continue;
        at += strlen(kinds[i]);
        n = starts(at, "refs/") ? revision_len(at) : strcspn(at, "/");
        if (n == 0 || !put(s->revision, sizeof s->revision, at, n))
            return false;
        at += n;
        /* a folder of a tree is no file, so it stands for the whole */
        return i == 0 || at[0] == 0 || put(s->path, sizeof s->path, at + 1, strlen(at + 1));
    }
    return put(s->path, sizeof s->path, at + 1, strlen(at + 1));
}

/* [@REVISION][:TAG][/PATH], the first two in either order. */
static bool take_rest(const char *at, struct hub_source *s)
{
    while (*at == '@' || *at == ':') {
        bool tag = *at++ == ':';
        size_t n = tag ? strcspn(at, "@:/") : revision_len(at);
        char *to = tag ? s->tag : s->revision;

        if (n == 0 || to[0] || !put(to, tag ? sizeof s->tag : sizeof s->revision, at, n))
            return false;
        at += n;
    }
    return *at == 0 || strcmp(at, "/") == 0 || take_web_path(at, s);
}

static int parse_repo(const char *text, const char *at, struct hub_source *s, struct err *err)
{
    size_t org = strcspn(at, "/"), name = at[org] ? strcspn(at + org + 1, "@:/") : 0;

    if (starts(at, "datasets/") || starts(at, "spaces/"))
        return err_set(err, -EINVAL, "'%.200s' is a %s, not a model", text, at[0] == 'd' ? "dataset" : "space");
    if (!repo_part(at, org) || name == 0 || !repo_part(at + org + 1, name))
        return err_set(err, -EINVAL,
                       "'%.200s' names no repository: write ORGANISATION/NAME[@REVISION][:QUANTISATION], or the URL "
                       "of a file",
                       text);
    put(s->repo, sizeof s->repo, at, org + 1 + name);
    if (!take_rest(at + org + 1 + name, s) || !is_plain(s->revision) || !is_plain(s->tag) || strstr(s->revision, ".."))
        return err_set(err, -EINVAL,
                       "'%.200s': what follows %s is not [@REVISION][:QUANTISATION][/FILE]", text, s->repo);
    if (s->path[0] && !hub_path_is_safe(s->path))
        return err_set(err, -EINVAL, "'%.200s': the file's name can not be one here", text);
    return 0;
}

/* Behind the address of a hub, else NULL. *ret_web: it is a URL. */
static const char *behind_hub(const char *text, const char *endpoint, bool *ret_web)
{
    static const char *const hosts[] = { "huggingface.co/", "www.huggingface.co/", "hf.co/" };
    const char *at = text;
    size_t n = strlen(endpoint);

    *ret_web = false;
    if (starts(text, "hf://"))
        return text + 5;
    if (starts(text, "hf:"))
        return text + 3;
    if (strncmp(text, endpoint, n) == 0 && text[n] == '/') {
        *ret_web = true;
        return text + n + 1;
    }
    at += starts(at, "https://") ? 8 : starts(at, "http://") ? 7 : 0;
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++)
        if (starts(at, hosts[i])) {
            *ret_web = true;
            return at + strlen(hosts[i]);
        }
    return at == text ? text : NULL;
}

int hub_source_parse(const char *text, const char *endpoint, struct hub_source *ret, struct err *err)
{
    struct hub_source s = { 0 };
    char decoded[HUB_URL_BYTES];
    bool web;
    const char *at = behind_hub(text, endpoint, &web);
    int r;

    if (strlen(text) >= sizeof s.url)
        return err_set(err, -EINVAL, "the source has over %zu bytes", sizeof s.url - 1);
    if (!text[0] || !is_plain(text))
        return err_set(err, -EINVAL, "'%.200s' is no source: it is empty, or holds a space or a control character", text);
    if (at) {
        strcpy(decoded, at);
        if (web && !decode(decoded))
            return err_set(err, -EINVAL, "'%.200s': a '%%' without two hexadecimal digits", text);
        r = parse_repo(text, decoded, &s, err);
        if (r < 0)
            return r;
    } else {
        strcpy(s.url, text);
    }
    *ret = s;
    return 0;
}

/* ---- answers ---- */

void hub_listing_fini(struct hub_listing *l)
{
    for (size_t i = 0; i < l->n_files; i++)
        free(l->files[i].path);
    free(l->files);
    *l = (struct hub_listing){ 0 };
}

int hub_parse_revision(const char *text, size_t len, struct hub_listing *l, struct err *err)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    const char *commit = "";
    struct err why = { 0 };

    if (json_parse(text, len, &answer_limits, &tree, &why) < 0)
        return err_set(err, -EPROTO, "the hub's answer about the revision is no JSON: %s", err_text(&why));
    if (json_get_string(tree, "sha", &commit, &why) < 0 || !digest_is_hex(commit, SHA1_HEX))
        return err_set(err, -EPROTO, "the hub's answer about the revision names no commit");
    strcpy(l->commit, commit);
    return 0;
}

static int put_file(const cJSON *item, struct hub_file *f, struct err *err)
{
    const char *path = "", *oid = "";
    const cJSON *lfs = NULL;
    struct err why = { 0 };
    bool large;

    json_get_object(item, "lfs", &lfs, &why);
    large = lfs != NULL;
    if (json_get_string(item, "path", &path, &why) != 0 || !path[0])
        return err_set(err, -EPROTO, "the hub lists a file without a path");
    if (json_get_int(large ? lfs : item, "size", 0, INT64_MAX / 4, &f->size, &why) != 0 ||
        json_get_string(large ? lfs : item, "oid", &oid, &why) != 0 || err_is_set(&why) ||
        !digest_is_hex(oid, large ? SHA256_HEX : SHA1_HEX))
        return err_set(err, -EPROTO, "the hub lists %.200s without a size and a checksum", path);
    strcpy(large ? f->sha256 : f->blob, oid);
    f->path = strdup(path);
    return f->path ? 0 : err_set(err, -ENOMEM, "no memory");
}

int hub_parse_tree(const char *text, size_t len, struct hub_listing *l, struct err *err)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    const cJSON *item;
    struct err why = { 0 };
    struct hub_file *more;
    int r;

    if (json_parse(text, len, &answer_limits, &tree, &why) < 0)
        return err_set(err, -EPROTO, "the hub's list of files is no JSON: %s", err_text(&why));
    if (!cJSON_IsArray(tree))
        return err_set(err, -EPROTO, "the hub's list of files is %s", json_type_name(tree));
    more = reallocarray(l->files, l->n_files + (size_t)cJSON_GetArraySize(tree) + 1, sizeof *l->files);
    if (!more)
        return err_set(err, -ENOMEM, "no memory");
    l->files = more;
    cJSON_ArrayForEach(item, tree)
    {
        const char *type = "";

        json_get_string(item, "type", &type, NULL);
        if (strcmp(type, "file") != 0)
            continue;
        if (l->n_files == HUB_MAX_FILES)
            return err_set(err, -E2BIG, "the repository has over %d files", HUB_MAX_FILES);
        l->files[l->n_files] = (struct hub_file){ 0 };
        r = put_file(item, &l->files[l->n_files], err);
        if (r < 0)
            return r;
        l->n_files++;
    }
    return 0;
}

/* RFC 8288: <URL>; param; param="value", <URL>… */
bool hub_next_link(const char *header, char ret[HUB_URL_BYTES])
{
    for (const char *at = header; (at = strchr(at, '<'));) {
        const char *url = at + 1, *close = strchr(url, '>');
        size_t n;
        bool next;

        if (!close)
            return false;
        at = close + 1;
        n = strcspn(at, "<");
        next = memmem(at, n, "rel=\"next\"", 10) || memmem(at, n, "rel=next", 8);
        if (next)
            return close > url && put(ret, HUB_URL_BYTES, url, (size_t)(close - url));
    }
    return false;
}

/* ---- addresses ---- */

static void quote(struct buf *out, const char *text, const char *plain)
{
    for (const char *c = text; *c; c++) {
        if (alphanumeric(*c) || strchr(plain, *c))
            buf_addc(out, *c);
        else
            buf_printf(out, "%%%02X", (unsigned char)*c);
    }
}

void hub_url_revision(const char *endpoint, const struct hub_source *s, struct buf *ret)
{
    buf_printf(ret, "%s/api/models/%s/revision/", endpoint, s->repo);
    quote(ret, s->revision[0] ? s->revision : "main", "-._~");
}

void hub_url_tree(const char *endpoint, const struct hub_source *s, const char *commit, struct buf *ret)
{
    buf_printf(ret, "%s/api/models/%s/tree/%s?recursive=true", endpoint, s->repo, commit);
}

void hub_url_file(const char *endpoint, const struct hub_source *s, const char *commit, const char *path, struct buf *ret)
{
    buf_printf(ret, "%s/%s/resolve/%s/", endpoint, s->repo, commit);
    quote(ret, path, "-._~/");
}

bool hub_path_is_safe(const char *path)
{
    return hub_path_stays_inside(path) && !ends(path, ".part") && !ends(path, ".part.json") && !ends(path, ".fastchat.json");
}

bool hub_path_stays_inside(const char *path)
{
    size_t depth = 0;

    if (!path[0] || strlen(path) >= HUB_PATH_BYTES || !utf8_is_valid(path, strlen(path)) || strchr(path, '\\'))
        return false;
    for (const char *c = path; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            return false;
    for (const char *at = path;;) {
        size_t n = strcspn(at, "/");

        if (n == 0 || n > PART_BYTES || ++depth > MAX_DEPTH || (n == 1 && at[0] == '.') ||
            (n == 2 && at[0] == '.' && at[1] == '.'))
            return false;
        if (!at[n])
            return true;
        at += n + 1;
    }
}

/* ---- refusals ---- */

static int not_there(const struct hub_refusal *r, struct err *err)
{
    const struct hub_source *s = r->source;

    if (r->with_token)
        return err_set(err, -ENOENT,
                       "%s: there is no repository %s, or the token may not see it. Check the name and the token's rights",
                       r->endpoint, s->repo);
    return err_set(err, -ENOENT,
                   "%s: there is no repository %s, or it is private. Check the name; for a private one put a token into "
                   "HF_TOKEN (%s/settings/tokens)",
                   r->endpoint, s->repo, r->endpoint);
}

static int gated(const struct hub_refusal *r, struct err *err)
{
    if (r->with_token)
        return err_set(err, -EACCES,
                       "%s is gated, and the token's account has no access. Ask for it at %s/%s, then pull again",
                       r->source->repo, r->endpoint, r->source->repo);
    return err_set(err, -EACCES,
                   "%s is gated. Ask for access at %s/%s, put a token from %s/settings/tokens into HF_TOKEN, and pull again",
                   r->source->repo, r->endpoint, r->source->repo, r->endpoint);
}

int hub_explain(const struct hub_refusal *r, struct err *err)
{
    const char *revision = r->source->revision[0] ? r->source->revision : "main";

    if (strcmp(r->code, "GatedRepo") == 0)
        return gated(r, err);
    if (strcmp(r->code, "RevisionNotFound") == 0)
        return err_set(err, -ENOENT, "%s has no revision %s: name a branch, tag or commit of %s/%s/tree/main",
                       r->source->repo, revision, r->endpoint, r->source->repo);
    if (strcmp(r->code, "EntryNotFound") == 0)
        return err_set(err, -ENOENT, "%s has no file %s at %s", r->source->repo, r->path ? r->path : "of this name",
                       revision);
    if (starts(r->message, "Invalid credentials") || (r->status == 401 && r->with_token && !r->code[0]))
        return err_set(err, -EACCES, "%s does not accept the token. Make a new one at %s/settings/tokens", r->endpoint,
                       r->endpoint);
    if (starts(r->message, "Access to this resource is disabled"))
        return err_set(err, -EACCES, "%s is disabled by the hub", r->source->repo);
    if (strcmp(r->code, "RepoNotFound") == 0 || r->status == 401 || (r->status == 404 && !r->path))
        return not_there(r, err);
    if (r->status == 404)
        return err_set(err, -ENOENT, "%s: %s is not there (status 404)", r->endpoint, r->path);
    if (r->status == 403)
        return err_set(err, -EACCES, "%s forbids this%s%.200s. Check the token's rights", r->endpoint,
                       r->message[0] ? ": " : "", r->message);
    return err_set(err, -EPROTO, "%s answered with status %d%s%.200s", r->endpoint, r->status, r->message[0] ? ": " : "",
                   r->message);
}
