/* hub.h - what a Hugging Face hub is asked, and what its answers mean. Text in,
 * text out: web.h does the talking.
 *
 * A repository's commit is asked for first (…/api/models/ORG/NAME/revision/REV),
 * then its files at that commit, page by page (…/tree/COMMIT?recursive=true), so
 * that everything that is fetched belongs together. A file lies at
 * …/ORG/NAME/resolve/COMMIT/PATH. What git keeps itself is known by the SHA-1 of
 * its blob, what it keeps in large file storage by its SHA-256.
 *
 * Source  huggingface.co/docs/hub/api; the requests of huggingface_hub 2.4
 */
#ifndef CLI_HUB_H
#define CLI_HUB_H

#include "base/buf.h"
#include "cli/digest.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;

enum {
    HUB_REPO_BYTES = 200,
    HUB_REVISION_BYTES = 200,
    HUB_PATH_BYTES = 1024,
    HUB_TAG_BYTES = 64,
    HUB_URL_BYTES = 4096,
    HUB_MAX_FILES = 20000,
    HUB_MAX_PAGES = 200,
};
#define HUB_ENDPOINT "https://huggingface.co"

/* What somebody wants, as they wrote it:
 *
 *     ORG/NAME[@REVISION][:TAG][/PATH]         also with hf:, hf://, hf.co/ in front
 *     https://huggingface.co/ORG/NAME[/(tree|blob|raw|resolve)/REVISION[/PATH]]
 *     any other http(s) URL: one file
 */
struct hub_source {
    char repo[HUB_REPO_BYTES];         /* "ORG/NAME"; "": a URL */
    char revision[HUB_REVISION_BYTES]; /* "": none was named */
    char tag[HUB_TAG_BYTES];           /* "Q4_K_M"; "": none was named */
    char path[HUB_PATH_BYTES];         /* a file of it; "": none was named */
    char url[HUB_URL_BYTES];
};

/* `endpoint` is the hub's own address, without a slash at the end. 0 or -EINVAL. */
int hub_source_parse(const char *text, const char *endpoint, struct hub_source *ret, struct err *err);

struct hub_file {
    char *path;   /* in the repository; may be anything: see hub_path_is_safe() */
    int64_t size;
    char sha256[SHA256_HEX + 1]; /* "": it is in git itself */
    char blob[SHA1_HEX + 1];     /* "": it is in large file storage */
};

struct hub_listing {
    char commit[SHA1_HEX + 1];
    struct hub_file *files;
    size_t n_files;
};

void hub_listing_fini(struct hub_listing *l);

/* The answer about a revision: fills the commit. 0 or -EPROTO. */
int hub_parse_revision(const char *text, size_t len, struct hub_listing *l, struct err *err);
/* A page of files is added. 0, -EPROTO, -E2BIG, -ENOMEM. */
int hub_parse_tree(const char *text, size_t len, struct hub_listing *l, struct err *err);
/* The URL with rel="next" in a Link header; false: there is none, or it is too long. */
bool hub_next_link(const char *header, char ret[HUB_URL_BYTES]);

/* Addresses. What is not plain in a part is percent-encoded. */
void hub_url_revision(const char *endpoint, const struct hub_source *s, struct buf *ret);
void hub_url_tree(const char *endpoint, const struct hub_source *s, const char *commit, struct buf *ret);
void hub_url_file(const char *endpoint, const struct hub_source *s, const char *commit, const char *path,
                  struct buf *ret);

/* True for a relative path without "..", empty parts, control characters,
 * backslashes, and parts that are too long for a file's name. */
bool hub_path_stays_inside(const char *path);
/* The same, and it is none of those that a pull makes itself (model_store.h). */
bool hub_path_is_safe(const char *path);

/* What an answer that is no success means to a person, and what to do. Gives -EACCES,
 * -ENOENT or -EPROTO. `code` and `message` are the answer's X-Error-Code and
 * X-Error-Message, "" without. */
struct hub_refusal {
    const char *endpoint;
    const struct hub_source *source;
    const char *path; /* the file that was asked for, or NULL */
    const char *code, *message;
    int status;
    bool with_token;
};
int hub_explain(const struct hub_refusal *r, struct err *err);

#endif
