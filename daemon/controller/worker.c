#include "daemon/controller/worker.h"

#include "base/err.h"
#include "base/json.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/un.h>

bool worker_url_is_plain(const char *text)
{
    static const char scheme[] = "http://";
    const char *host = text + sizeof scheme - 1, *end;
    unsigned long port = 0;

    if (strncmp(text, scheme, sizeof scheme - 1) != 0 || strlen(text) > WORKER_NAME)
        return false;
    if (*host == '[') {
        end = host + 1 + strspn(host + 1, "0123456789abcdefABCDEF:.");
        if (end == host + 1 || *end++ != ']')
            return false;
    } else {
        end = host +
              strspn(host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_");
        if (end == host)
            return false;
    }
    if (*end++ != ':')
        return false;
    for (size_t n = 0; *end; end++, n++) {
        if (!isdigit((unsigned char)*end) || n == 5)
            return false;
        port = port * 10 + (unsigned long)(*end - '0');
    }
    return port >= 1 && port <= 65535;
}

static bool has_control(const char *text)
{
    for (; *text; text++)
        if (iscntrl((unsigned char)*text))
            return true;
    return false;
}

static bool unix_path_is_plain(const char *path)
{
    return path[0] == '/' && strlen(path) < sizeof((struct sockaddr_un *)NULL)->sun_path &&
           !has_control(path);
}

static int copy_string(const char *text, char **ret)
{
    *ret = strdup(text);
    return *ret ? 0 : -ENOMEM;
}

static void models_free(char **models, size_t n)
{
    for (size_t i = 0; models && i < n; i++)
        free(models[i]);
    free(models);
}

void worker_free(struct worker *w)
{
    if (!w)
        return;
    models_free(w->models, w->n_models);
    free(w->name);
    free(w->unix_path);
    free(w);
}

static int models_check(const cJSON *list, size_t *ret_n, size_t *ret_bytes, struct err *err)
{
    const cJSON *item;
    size_t n = 0, bytes = 0;

    cJSON_ArrayForEach(item, list)
    {
        size_t len;

        if (!cJSON_IsString(item))
            return err_set(err, -EINVAL, "'model_names' must be strings, but one is %s",
                           json_type_name(item));
        len = strlen(item->valuestring);
        bytes += len;
        n++;
        if (len == 0 || len > WORKER_MODEL_NAME)
            return err_set(err, WORKER_REFUSED, "a model name of %zu bytes (1 to %d are allowed)",
                           len, WORKER_MODEL_NAME);
        if (has_control(item->valuestring))
            return err_set(err, WORKER_REFUSED, "a model name with control characters");
    }
    if (n > WORKER_MODELS || bytes > WORKER_MODEL_BYTES)
        return err_set(err, WORKER_REFUSED, "%zu model names of %zu bytes (%d of %d are allowed)",
                       n, bytes, WORKER_MODELS, WORKER_MODEL_BYTES);
    *ret_n = n;
    *ret_bytes = bytes;
    return 0;
}

static int models_copy(const cJSON *list, size_t n, char ***ret)
{
    char **models = calloc(n ? n : 1, sizeof *models);
    const cJSON *item;
    size_t i = 0;

    if (!models)
        return -ENOMEM;
    cJSON_ArrayForEach(item, list)
    {
        models[i] = strdup(item->valuestring);
        if (!models[i++]) {
            models_free(models, n);
            return -ENOMEM;
        }
    }
    *ret = models;
    return 0;
}

int worker_apply_status(struct worker *w, const cJSON *status, struct err *err)
{
    const cJSON *list = NULL;
    char **models;
    double speed, queue;
    size_t n = 0, bytes = 0;
    int r;

    if (!cJSON_IsObject(status))
        return err_set(err, -EINVAL, "the status must be an object, but is %s",
                       json_type_name(status));
    if ((r = json_get_array(status, "model_names", &list, err)) != 0 ||
        (r = json_get_number(status, "speed", &speed, err)) != 0 ||
        (r = json_get_number(status, "queue_length", &queue, err)) != 0)
        return r < 0
                   ? r
                   : err_set(err, -EINVAL, "the status needs model_names, speed and queue_length");
    r = models_check(list, &n, &bytes, err);
    if (r != 0)
        return r;
    if (!isfinite(speed) || speed < 0 || speed > 1e9)
        return err_set(err, WORKER_REFUSED, "a speed that is not within 0 and 1e9");
    if (!isfinite(queue) || queue < 0 || queue > WORKER_QUEUE_MAX)
        return err_set(err, WORKER_REFUSED, "a queue length that is not within 0 and %d",
                       WORKER_QUEUE_MAX);
    r = models_copy(list, n, &models);
    if (r < 0)
        return err_set(err, r, "no memory for %zu model names", n);
    models_free(w->models, w->n_models);
    w->models = models;
    w->n_models = n;
    w->model_bytes = bytes;
    w->speed = speed;
    w->queue_length = (int64_t)queue;
    return 0;
}

/* The identity. The name is all that a foreign client will call, so it is held
 * to one of two shapes. */
static int read_name(struct worker *w, const cJSON *body, struct err *err)
{
    const char *name;
    int r = json_get_string(body, "worker_name", &name, err);

    if (r != 0)
        return r < 0 ? r : err_set(err, -EINVAL, "'worker_name' is missing");
    w->has_url = worker_url_is_plain(name);
    if (!w->has_url) {
        if (!w->local)
            return err_set(err, WORKER_REFUSED, "the address is no plain http://host:port");
        if (strncmp(name, "unix:", 5) != 0 || !unix_path_is_plain(name + 5))
            return err_set(err, WORKER_REFUSED,
                           "the address is neither http://host:port nor unix:/PATH");
        if (copy_string(name + 5, &w->unix_path) < 0)
            return -ENOMEM;
    }
    return copy_string(name, &w->name);
}

/* What only our own workers say. */
static int read_native(struct worker *w, const cJSON *body, struct err *err)
{
    const cJSON *own = NULL;
    const char *path = NULL;
    int64_t version = 0, lease_ms = 0, context_length = 0, parallel = 0;
    int r = json_get_object(body, "fastchat", &own, err);

    if (r != 0)
        return r < 0 ? r : 0;
    if (json_get_int(own, "version", 1, INT32_MAX, &version, err) < 0 ||
        json_get_string(own, "unix", &path, err) < 0 ||
        json_get_int(own, "lease_ms", 0, INT32_MAX, &lease_ms, err) < 0 ||
        json_get_int(own, "context_length", 0, INT32_MAX, &context_length, err) < 0 ||
        json_get_int(own, "parallel", 0, INT32_MAX, &parallel, err) < 0 ||
        json_get_int(own, "instance", 0, INT64_MAX, &w->instance, err) < 0)
        return -EINVAL;
    w->native = version >= 1;
    w->version = version;
    w->context_length = (uint32_t)context_length;
    w->parallel = (uint32_t)parallel;
    if (lease_ms > 0) {
        if (lease_ms < WORKER_LEASE_MIN_MS)
            lease_ms = WORKER_LEASE_MIN_MS;
        if (lease_ms > WORKER_LEASE_MAX_MS)
            lease_ms = WORKER_LEASE_MAX_MS;
        w->lease_us = (uint64_t)lease_ms * 1000;
    }
    if (!path || !w->local || w->unix_path)
        return 0;
    if (!unix_path_is_plain(path))
        return err_set(err, WORKER_REFUSED,
                       "'unix' is no absolute path that fits a socket address");
    return copy_string(path, &w->unix_path);
}

/* As Python sees it: null, {}, [], "", 0 and false all mean "ask for it". */
static bool is_falsy(const cJSON *v)
{
    return !v || cJSON_IsNull(v) || cJSON_IsFalse(v) ||
           (cJSON_IsNumber(v) && v->valuedouble == 0) ||
           (cJSON_IsString(v) && !v->valuestring[0]) ||
           ((cJSON_IsObject(v) || cJSON_IsArray(v)) && !v->child);
}

int worker_from_json(const cJSON *body, bool local, struct worker **ret, struct err *err)
{
    CLEANUP(worker_free) struct worker *w = calloc(1, sizeof *w);
    const cJSON *status = json_find(body, "worker_status");
    int r;

    if (!w)
        return err_set(err, -ENOMEM, "no memory for a worker");
    w->local = local;
    r = json_get_bool(body, "check_heart_beat", &w->check_heart_beat, err);
    if (r != 0)
        return r < 0 ? r : err_set(err, -EINVAL, "'check_heart_beat' is missing");
    if ((r = json_get_bool(body, "multimodal", &w->multimodal, err)) < 0 ||
        (r = read_name(w, body, err)) != 0 || (r = read_native(w, body, err)) != 0)
        return r;
    if (is_falsy(status)) {
        *ret = STEAL(w);
        return WORKER_NEEDS_STATUS;
    }
    r = worker_apply_status(w, status, err);
    if (r == 0)
        *ret = STEAL(w);
    return r;
}

bool worker_serves(const struct worker *w, const char *model)
{
    for (size_t i = 0; i < w->n_models; i++)
        if (strcmp(w->models[i], model) == 0)
            return true;
    return false;
}
