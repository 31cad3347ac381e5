#include "cli/model_store.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/id.h"
#include "base/json.h"
#include "cli/hub_choose.h"
#include "daemon/model_name.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { MANIFEST_BYTES = 4 << 20, VERSION = 1 };

static const struct json_limits manifest_limits = {
    .bytes = MANIFEST_BYTES, .depth = 8, .string_bytes = 16 << 10, .values = 64 << 10,
};

static bool ends(const char *text, const char *with)
{
    size_t n = strlen(text), m = strlen(with);

    return n > m && strcmp(text + n - m, with) == 0;
}

/* ---- manifests ---- */

static void manifest_file_fini(struct manifest_file *f)
{
    free(f->path);
    free(f->from);
}

void manifest_fini(struct manifest *m)
{
    for (size_t i = 0; i < m->n_files; i++)
        manifest_file_fini(&m->files[i]);
    free(m->files);
    free(m->name);
    free(m->source);
    free(m->revision);
    free(m->commit);
    free(m->pulled);
    *m = (struct manifest){ 0 };
}

static void manifest_fini_cleanup(struct manifest *m) { manifest_fini(m); }
#define MANIFEST_LOCAL __attribute__((cleanup(manifest_fini_cleanup))) struct manifest

int manifest_add(struct manifest *m, const char *path, const char *from, int64_t size, const char *sha256, struct err *err)
{
    struct manifest_file *more = reallocarray(m->files, m->n_files + 1, sizeof *more);
    struct manifest_file f = { .path = strdup(path), .from = strdup(from), .size = size };

    if (more)
        m->files = more;
    if (!more || !f.path || !f.from) {
        manifest_file_fini(&f);
        return err_set(err, -ENOMEM, "no memory");
    }
    snprintf(f.sha256, sizeof f.sha256, "%s", sha256);
    m->files[m->n_files++] = f;
    return 0;
}

static int take_text(const cJSON *obj, const char *key, char **ret, struct err *err)
{
    const char *text = "";
    int r = json_get_string(obj, key, &text, err);

    if (r < 0)
        return r;
    *ret = strdup(text);
    return *ret ? 0 : err_set(err, -ENOMEM, "no memory");
}

static int take_file(const cJSON *item, struct manifest *m, struct err *err)
{
    const char *path = "", *from = "", *sha256 = "";
    int64_t size = -1;

    if (json_get_string(item, "path", &path, err) < 0 || json_get_string(item, "from", &from, err) < 0 ||
        json_get_string(item, "sha256", &sha256, err) < 0 || json_get_int(item, "size", 0, INT64_MAX / 4, &size, err) < 0)
        return -EINVAL;
    if (!hub_path_is_safe(path))
        return err_set(err, -EINVAL, "'%.200s' can not be a file's path in the folder", path);
    if (size < 0 || !digest_is_hex(sha256, SHA256_HEX))
        return err_set(err, -EINVAL, "'%.200s' has no size or no sha256", path);
    return manifest_add(m, path, from, size, sha256, err);
}

int manifest_parse(const char *text, size_t len, struct manifest *ret, struct err *err)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    MANIFEST_LOCAL m = { 0 };
    const cJSON *files = NULL, *item;
    int64_t version = 0;
    int r = json_parse(text, len, &manifest_limits, &tree, err);

    if (r < 0)
        return r;
    if (json_get_int(tree, "manifest", 0, INT32_MAX, &version, err) < 0)
        return -EINVAL;
    if (version != VERSION)
        return err_set(err, -EINVAL, "is no manifest of version %d", VERSION);
    if ((r = take_text(tree, "name", &m.name, err)) < 0 || (r = take_text(tree, "source", &m.source, err)) < 0 ||
        (r = take_text(tree, "revision", &m.revision, err)) < 0 || (r = take_text(tree, "commit", &m.commit, err)) < 0 ||
        (r = take_text(tree, "pulled", &m.pulled, err)) < 0 || (r = json_get_array(tree, "files", &files, err)) < 0)
        return r;
    cJSON_ArrayForEach(item, files)
    {
        if (m.n_files == STORE_MAX_FILES)
            return err_set(err, -E2BIG, "has over %d files", STORE_MAX_FILES);
        if ((r = take_file(item, &m, err)) < 0)
            return r;
    }
    if (!m.name[0] || m.n_files == 0)
        return err_set(err, -EINVAL, "names no %s", m.name[0] ? "files" : "model");
    *ret = m;
    m = (struct manifest){ 0 };
    return 0;
}

void manifest_write(const struct manifest *m, struct buf *out)
{
    struct json_writer w = json_writer(out);

    json_open(&w, '{');
    json_kint(&w, "manifest", VERSION);
    json_kstr(&w, "name", m->name);
    json_kstr(&w, "source", m->source);
    json_kstr(&w, "revision", m->revision);
    json_kstr(&w, "commit", m->commit);
    json_kstr(&w, "pulled", m->pulled);
    json_key(&w, "files");
    json_open(&w, '[');
    for (size_t i = 0; i < m->n_files; i++) {
        json_open(&w, '{');
        json_kstr(&w, "path", m->files[i].path);
        json_kstr(&w, "from", m->files[i].from);
        json_kint(&w, "size", m->files[i].size);
        json_kstr(&w, "sha256", m->files[i].sha256);
        json_close(&w, '}');
    }
    json_close(&w, ']');
    json_close(&w, '}');
    buf_addc(out, '\n');
}

/* ---- the folder ---- */

static bool writable(const char *path)
{
    return access(path, W_OK | X_OK) == 0;
}

int store_default(char ret[PATH_MAX], struct err *err)
{
    const char *cache = getenv("FASTCHAT_CACHE"), *home = getenv("HOME");

    if (geteuid() == 0 || writable(STORE_SYSTEM)) {
        strcpy(ret, STORE_SYSTEM);
        return 0;
    }
    if (cache && cache[0] == '/')
        snprintf(ret, PATH_MAX, "%s/models", cache);
    else if (home && home[0] == '/')
        snprintf(ret, PATH_MAX, "%s/.cache/fastchat/models", home);
    else
        return err_set(err, -ENOENT, "neither HOME nor FASTCHAT_CACHE says where models go; say it with --to DIR");
    return 0;
}

/* A folder that was just made. By its descriptor: whoever owns the folder above may
 * have put a link there since. */
static int open_to_all(int above, const char *name)
{
    CLEANUP(fd_close) int fd = openat(above, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);

    return fd < 0 || fchmod(fd, 0755) < 0 ? -errno : 0;
}

static int make_folder(const char *path, bool shared, struct err *err)
{
    char part[PATH_MAX];
    int r;

    for (const char *at = path + (path[0] == '/'); *at;) {
        size_t n = strcspn(at, "/");

        at += n;
        snprintf(part, sizeof part, "%.*s", (int)(at - path), path);
        at += *at == '/';
        if (n == 0 || access(part, F_OK) == 0)
            continue;
        if (mkdir(part, 0777) < 0 && errno != EEXIST)
            return err_errno(err, -errno, "making the folder %s", part);
        if (shared && (r = open_to_all(AT_FDCWD, part)) < 0)
            return err_errno(err, r, "making the folder %s", part);
    }
    return 0;
}

int store_open(const char *path, bool create, struct store *ret, struct err *err)
{
    struct store s = { .fd = -1, .shared = geteuid() == 0 || strcmp(path, STORE_SYSTEM) == 0 };
    int r;

    if (!path[0] || strlen(path) >= sizeof s.path)
        return err_set(err, -EINVAL, "the folder's path must have 1 to %zu bytes", sizeof s.path - 1);
    strcpy(s.path, path);
    for (size_t n = strlen(s.path); n > 1 && s.path[n - 1] == '/'; n--)
        s.path[n - 1] = 0;
    if (create && (r = make_folder(s.path, s.shared, err)) < 0)
        return r;
    s.fd = open(s.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s.fd < 0)
        return err_errno(err, -errno, "%s", s.path);
    *ret = s;
    return 0;
}

void store_close(struct store *s)
{
    fd_close(s->fd);
    s->fd = -1;
}

int store_folder_of(const struct store *s, const char *path, bool create, int *ret_fd, const char **ret_name, struct err *err)
{
    CLEANUP(fd_close) int fd = fcntl(s->fd, F_DUPFD_CLOEXEC, 3);
    char part[NAME_MAX + 1];
    const char *at = path;
    int r = fd < 0 ? -errno : 0;

    if (!hub_path_stays_inside(path))
        return err_set(err, -EINVAL, "'%.200s' can not be a file's path in the folder", path);
    while (r == 0 && strchr(at, '/')) {
        int next;

        snprintf(part, sizeof part, "%.*s", (int)strcspn(at, "/"), at);
        if (create && mkdirat(fd, part, 0777) == 0 && s->shared && (r = open_to_all(fd, part)) < 0)
            break;
        next = openat(fd, part, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (next < 0) {
            r = -errno;
            break;
        }
        close(fd);
        fd = next;
        at = strchr(at, '/') + 1;
    }
    if (r < 0)
        return err_errno(err, r, "the folder of %s/%s", s->path, path);
    *ret_fd = STEAL_FD(fd);
    *ret_name = at;
    return 0;
}

int64_t store_size(const struct store *s, const char *path)
{
    CLEANUP(fd_close) int fd = -1;
    const char *name;
    struct stat st;
    int r = store_folder_of(s, path, false, &fd, &name, NULL);

    if (r < 0)
        return r;
    if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    return S_ISREG(st.st_mode) ? st.st_size : -EINVAL;
}

int store_read(const struct store *s, const char *path, int *ret_fd, struct err *err)
{
    CLEANUP(fd_close) int folder = -1;
    CLEANUP(fd_close) int fd = -1;
    const char *name;
    struct stat st;
    int r = store_folder_of(s, path, false, &folder, &name, err);

    if (r < 0)
        return r;
    fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_errno(err, -errno, "%s/%s", s->path, path);
    if (!S_ISREG(st.st_mode))
        return err_set(err, -EINVAL, "%s/%s is no regular file", s->path, path);
    *ret_fd = STEAL_FD(fd);
    return 0;
}

int store_read_text(int folder_fd, const char *name, size_t limit, struct buf *ret, struct err *err)
{
    CLEANUP(fd_close) int fd = openat(folder_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    ssize_t n = 1;

    if (fd < 0)
        return err_errno(err, -errno, "%s", name);
    while (n > 0) {
        char *room = buf_room(ret, 4096);

        if (!room)
            return err_set(err, -ENOMEM, "no memory");
        n = read(fd, room, 4096);
        if (n < 0 && errno == EINTR)
            n = 1;
        else if (n < 0)
            return err_errno(err, -errno, "%s", name);
        else
            buf_grew(ret, (size_t)n);
        if (ret->len > limit)
            return err_set(err, -E2BIG, "%s has over %zu bytes", name, limit);
    }
    return 0;
}

static int write_all(int fd, const char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, data, len);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        data += n;
        len -= (size_t)n;
    }
    return 0;
}

int store_write_text(const struct store *s, int folder_fd, const char *name, const struct buf *text, struct err *err)
{
    CLEANUP(fd_close) int fd = -1;
    char temporary[ID_SHORT + 8];
    int r;

    if (text->failed)
        return err_set(err, -ENOMEM, "no memory");
    id_short(".new-", temporary, sizeof temporary);
    fd = openat(folder_fd, temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0)
        return err_errno(err, -errno, "writing %s in %s", name, s->path);
    r = write_all(fd, buf_str(text), text->len);
    if (r == 0 && ((s->shared && fchmod(fd, 0644) < 0) || fsync(fd) < 0 || renameat(folder_fd, temporary, folder_fd, name) < 0))
        r = -errno;
    if (r < 0)
        unlinkat(folder_fd, temporary, 0);
    return r < 0 ? err_errno(err, r, "writing %s in %s", name, s->path) : 0;
}

int store_remove(const struct store *s, const char *path, struct err *err)
{
    CLEANUP(fd_close) int fd = -1;
    char folder[HUB_PATH_BYTES];
    const char *name;
    int r = store_folder_of(s, path, false, &fd, &name, err);

    if (r < 0)
        return r;
    if (unlinkat(fd, name, 0) < 0)
        return err_errno(err, -errno, "%s/%s", s->path, path);
    snprintf(folder, sizeof folder, "%s", path);
    for (char *slash; (slash = strrchr(folder, '/'));) {
        CLEANUP(fd_close) int above = -1;

        *slash = 0;
        if (store_folder_of(s, folder, false, &above, &name, NULL) < 0 || unlinkat(above, name, AT_REMOVEDIR) < 0)
            break;
    }
    return 0;
}

int64_t store_free_bytes(const struct store *s)
{
    struct statvfs v;
    uint64_t blocks;
    int64_t bytes;

    if (fstatvfs(s->fd, &v) < 0)
        return -1;
    blocks = geteuid() == 0 ? v.f_bfree : v.f_bavail;
    return __builtin_mul_overflow(blocks, v.f_frsize, &bytes) ? -1 : bytes;
}

/* ---- what lies in it ---- */

static bool manifest_name(const char *name, char ret[NAME_MAX + 1])
{
    return name[0] && !strchr(name, '/') &&
           snprintf(ret, NAME_MAX + 1, "%s" STORE_MANIFEST, name) <= NAME_MAX;
}

int store_manifest(const struct store *s, const char *name, struct manifest *ret, struct err *err)
{
    BUF_LOCAL text = BUF_INIT;
    char file[NAME_MAX + 1];
    int r;

    if (!manifest_name(name, file))
        return err_set(err, -ENOENT, "'%.200s' is no name of a model", name);
    r = store_read_text(s->fd, file, MANIFEST_BYTES, &text, err);
    if (r == 0)
        r = manifest_parse(buf_str(&text), text.len, ret, err);
    if (r < 0)
        err_place(err, "%s", s->path);
    return r;
}

int store_put_manifest(const struct store *s, const struct manifest *m, struct err *err)
{
    BUF_LOCAL text = BUF_INIT;
    char file[NAME_MAX + 1];

    if (!manifest_name(m->name, file))
        return err_set(err, -EINVAL, "'%.200s' can not be the name of a model", m->name);
    manifest_write(m, &text);
    return store_write_text(s, s->fd, file, &text, err);
}

static void entry_fini(struct store_entry *e)
{
    manifest_fini(&e->m);
}

void store_list_fini(struct store_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        entry_fini(&l->entries[i]);
    free(l->entries);
    *l = (struct store_list){ 0 };
}

/* The entry of that name, made if it is not there; NULL: no memory. */
static struct store_entry *entry_named(struct store_list *l, const char *name)
{
    struct store_entry *more, e = { 0 };

    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->entries[i].m.name, name) == 0)
            return &l->entries[i];
    more = reallocarray(l->entries, l->n + 1, sizeof *more);
    if (!more)
        return NULL;
    l->entries = more;
    e.m.name = strdup(name);
    e.m.source = strdup("");
    e.m.revision = strdup("");
    e.m.commit = strdup("");
    e.m.pulled = strdup("");
    if (!e.m.name || !e.m.source || !e.m.revision || !e.m.commit || !e.m.pulled) {
        entry_fini(&e);
        return NULL;
    }
    l->entries[l->n] = e;
    return &l->entries[l->n++];
}

static bool lists(const struct store_list *l, const char *path)
{
    for (size_t i = 0; i < l->n; i++)
        for (size_t k = 0; k < l->entries[i].m.n_files; k++)
            if (strcmp(l->entries[i].m.files[k].path, path) == 0)
                return true;
    return false;
}

static int take_manifest(const struct store *s, const char *file, struct store_list *l, struct err *err)
{
    char name[NAME_MAX + 1];
    struct manifest m = { 0 };
    struct store_entry *e;
    struct err why = { 0 };
    int r;

    snprintf(name, sizeof name, "%.*s", (int)(strlen(file) - strlen(STORE_MANIFEST)), file);
    r = store_manifest(s, name, &m, &why);
    if (r == 0 && strcmp(m.name, name) != 0) {
        manifest_fini(&m);
        r = -EINVAL;
    }
    if (r == -ENOMEM || !(e = entry_named(l, name))) {
        manifest_fini(&m);
        return err_set(err, -ENOMEM, "no memory");
    }
    e->pulled = r == 0;
    e->bad = r < 0;
    if (r < 0)
        return 0;
    manifest_fini(&e->m);
    e->m = m;
    for (size_t i = 0; i < m.n_files; i++) {
        int64_t size = store_size(s, m.files[i].path);
        char part[HUB_PATH_BYTES + 8];
        int64_t partial;

        e->missing |= size != m.files[i].size;
        e->size += size > 0 ? size : 0;
        snprintf(part, sizeof part, "%s" STORE_PART, m.files[i].path);
        partial = store_size(s, part);
        e->partial += partial > 0 ? partial : 0;
    }
    return 0;
}

/* A GGUF file, or a part of one, that no manifest names. */
static int take_loose(const struct store *s, const char *file, struct store_list *l, struct err *err)
{
    char name[MODEL_NAME_MAX + 1], whole[NAME_MAX + 1];
    bool part = ends(file, STORE_PART);
    struct store_entry *e;
    struct stat st;

    snprintf(whole, sizeof whole, "%.*s", (int)(strlen(file) - (part ? strlen(STORE_PART) : 0)), file);
    if (!hub_is_gguf(whole) || !model_name_of_file(whole, name) || fstatat(s->fd, file, &st, 0) < 0 || !S_ISREG(st.st_mode) ||
        lists(l, whole))
        return 0;
    e = entry_named(l, name);
    if (!e)
        return err_set(err, -ENOMEM, "no memory");
    if (part) {
        e->partial += st.st_size;
        return 0;
    }
    e->size += st.st_size;
    return manifest_add(&e->m, file, "", st.st_size, "", err);
}

static int each(const struct store *s, bool manifests, struct store_list *l, struct err *err)
{
    int fd = openat(s->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *d;
    int r = 0;

    if (!dir) {
        r = err_errno(err, -errno, "%s", s->path);
        fd_close(fd);
        return r;
    }
    while (r == 0 && (d = readdir(dir))) {
        if (d->d_name[0] == '.')
            continue;
        if (manifests && ends(d->d_name, STORE_MANIFEST))
            r = take_manifest(s, d->d_name, l, err);
        else if (!manifests)
            r = take_loose(s, d->d_name, l, err);
    }
    closedir(dir);
    return r;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct store_entry *)a)->m.name, ((const struct store_entry *)b)->m.name);
}

int store_list(const struct store *s, struct store_list *ret, struct err *err)
{
    struct store_list l = { 0 };
    int r = each(s, true, &l, err);

    if (r == 0)
        r = each(s, false, &l, err);
    if (r < 0) {
        store_list_fini(&l);
        return r;
    }
    if (l.n > 0)
        qsort(l.entries, l.n, sizeof *l.entries, by_name);
    *ret = l;
    return 0;
}
