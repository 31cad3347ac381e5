/* model_store.h - a folder of models: what lies in it and where it came from.
 *
 * A model is one or more files and, where `fastchat pull` brought it, a manifest
 * NAME.fastchat.json beside them. GGUF files lie flat in the folder, where
 * supervisor.model_folders and `fastchat run` find them; models of other kinds
 * have a folder of their own in it. A file that is not whole yet is FILE.part,
 * what it is a part of is in FILE.part.json.
 *
 * The folder may belong to the service's user while root writes to it, so no
 * symbolic link in it is followed and no path out of it is taken.
 */
#ifndef CLI_MODEL_STORE_H
#define CLI_MODEL_STORE_H

#include "base/buf.h"
#include "cli/digest.h"
#include "cli/hub.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct err;

enum { STORE_MAX_FILES = 4096, STORE_SOURCE_BYTES = HUB_URL_BYTES };
#define STORE_SYSTEM "/var/lib/fastchat/models"
#define STORE_MANIFEST ".fastchat.json"
#define STORE_PART ".part"
#define STORE_STATE ".part.json"

struct manifest_file {
    char *path;                  /* in the folder */
    char *from;                  /* in the repository; the same as the source for a URL */
    int64_t size;
    char sha256[SHA256_HEX + 1];
};

struct manifest {
    char *name, *source;         /* "ORG/NAME" or a URL without query */
    char *revision, *commit;     /* "" for a URL */
    char *pulled;                /* "2026-01-31T12:00:00Z" */
    struct manifest_file *files;
    size_t n_files;
};

void manifest_fini(struct manifest *m);
/* 0 and a manifest to manifest_fini(); -EINVAL, -E2BIG, -ENOMEM with a sentence. */
int manifest_parse(const char *text, size_t len, struct manifest *ret, struct err *err);
void manifest_write(const struct manifest *m, struct buf *out);
/* Adds a file; -ENOMEM. */
int manifest_add(struct manifest *m, const char *path, const char *from, int64_t size, const char *sha256, struct err *err);

struct store {
    int fd;
    char path[PATH_MAX];
    bool shared; /* everybody may read what is put there, whatever the umask says */
};

/* The folder that a pull goes to without --to: the service's, for whoever may write
 * there, else $FASTCHAT_CACHE/models, else ~/.cache/fastchat/models. 0 or -ENOENT. */
int store_default(char ret[PATH_MAX], struct err *err);
/* `create` makes it with its parents. 0 or -errno. */
int store_open(const char *path, bool create, struct store *ret, struct err *err);
void store_close(struct store *s);

/* The folder of the file `path`, made where it is missing; *ret_name points into
 * path. 0 or -errno. */
int store_folder_of(const struct store *s, const char *path, bool create, int *ret_fd, const char **ret_name, struct err *err);
/* Size of the regular file; -ENOENT, -errno. */
int64_t store_size(const struct store *s, const char *path);
/* 0: opened for reading; -ENOENT, -errno. */
int store_read(const struct store *s, const char *path, int *ret_fd, struct err *err);
/* A small file, whole. 0, -ENOENT, -E2BIG, -errno. */
int store_read_text(int folder_fd, const char *name, size_t limit, struct buf *ret, struct err *err);
/* Replaces a small file in one step. */
int store_write_text(const struct store *s, int folder_fd, const char *name, const struct buf *text, struct err *err);
/* Removes the file and then the folders in the store that this leaves empty. 0 or -errno. */
int store_remove(const struct store *s, const char *path, struct err *err);

/* 0; -ENOENT when there is none of this name. */
int store_manifest(const struct store *s, const char *name, struct manifest *ret, struct err *err);
int store_put_manifest(const struct store *s, const struct manifest *m, struct err *err);

/* A model of the folder: with a manifest, a loose GGUF, or only parts of a pull. */
struct store_entry {
    struct manifest m;   /* of a loose one: name and files without checksums */
    bool pulled;         /* it has a manifest */
    bool bad;            /* it has one that can not be read */
    bool missing;        /* a file of it is not there, or has another size */
    int64_t size;        /* of what is there */
    int64_t partial;     /* bytes of parts */
};
struct store_list {
    struct store_entry *entries;
    size_t n;
};
int store_list(const struct store *s, struct store_list *ret, struct err *err);
void store_list_fini(struct store_list *l);

/* Bytes that can still be written there; -1: nobody knows. */
int64_t store_free_bytes(const struct store *s);

#endif
