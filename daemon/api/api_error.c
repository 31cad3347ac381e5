#include "daemon/api/api_error.h"

#include "base/buf.h"
#include "base/json.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int api_error_set(struct api_error *e, int status, const char *code, const char *param,
                  const char *fmt, ...)
{
    va_list ap;

    if (e->status)
        return -EINVAL;
    e->status = status;
    snprintf(e->code, sizeof e->code, "%s", code ? code : "");
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    va_start(ap, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, ap);
    va_end(ap);
    return -EINVAL;
}

void api_error_of_worker(struct api_error *e, int status, const cJSON *body)
{
    const cJSON *error = NULL;
    const char *message = NULL, *code = NULL, *param = NULL;

    if (json_get_object(body, "error", &error, NULL) == 0) {
        json_get_string(error, "message", &message, NULL);
        json_get_string(error, "code", &code, NULL);
        json_get_string(error, "param", &param, NULL);
    }
    switch (status) {
    case 400:
    case 413:
    case 429:
    case 500:
    case 501:
    case 503: break;
    default: status = 502;
    }
    if (message)
        api_error_set(e, status, code, param, "%s", message);
    else
        api_error_set(e, status, "worker_error", NULL, "The model's worker failed.");
}

const char *api_error_type(int status)
{
    switch (status) {
    case 401: return "authentication_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 501: return "not_supported_error";
    case 503: return "unavailable_error";
    default: return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

void api_error_write(const struct api_error *e, struct buf *out)
{
    struct json_writer w = json_writer(out);

    json_open(&w, '{');
    json_key(&w, "error");
    json_open(&w, '{');
    json_kstr(&w, "message", e->message);
    json_kstr(&w, "type", api_error_type(e->status));
    json_kstr(&w, "param", e->param[0] ? e->param : NULL);
    if (e->status == 503)
        json_kint(&w, "code", 503);
    else
        json_kstr(&w, "code", e->code[0] ? e->code : NULL);
    json_close(&w, '}');
    json_close(&w, '}');
}

unsigned api_retry_after_s(const char *header)
{
    unsigned long s = header ? strtoul(header, NULL, 10) : 0;

    return s > 0 && s <= 3600 ? (unsigned)s : 1;
}
