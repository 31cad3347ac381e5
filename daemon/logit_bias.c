#include "daemon/logit_bias.h"

#include "base/err.h"
#include "base/json.h"

#include <errno.h>

static int read_token(const char *name, int32_t *ret)
{
    int64_t n = 0;
    const char *c = name;

    for (; *c >= '0' && *c <= '9' && n <= INT32_MAX; c++)
        n = n * 10 + (*c - '0');
    if (c == name || *c || n > INT32_MAX || (name[0] == '0' && name[1]))
        return -EINVAL;
    *ret = (int32_t)n;
    return 0;
}

int logit_bias_read(const cJSON *member, int32_t *ret_token, float *ret_bias, struct err *err)
{
    if (read_token(member->string, ret_token) < 0)
        return err_set(err, -EINVAL, "'logit_bias': '%.32s' is not a token id", member->string);
    if (!cJSON_IsNumber(member))
        return err_set(err, -EINVAL, "'logit_bias.%s' must be a number, but is %s", member->string,
                       json_type_name(member));
    if (!(member->valuedouble >= -LOGIT_BIAS_MOST && member->valuedouble <= LOGIT_BIAS_MOST))
        return err_set(err, -EINVAL, "'logit_bias.%s' must be between %d and %d, but is %g", member->string,
                       -LOGIT_BIAS_MOST, LOGIT_BIAS_MOST, member->valuedouble);
    *ret_bias = (float)member->valuedouble;
    return 0;
}

int logit_bias_check(const cJSON *obj, struct err *err)
{
    const cJSON *member;
    size_t n = 0;

    cJSON_ArrayForEach(member, obj) {
        int32_t token;
        float bias;
        int r = logit_bias_read(member, &token, &bias, err);

        if (r < 0)
            return r;
        if (++n > LOGIT_BIAS_MAX)
            return err_set(err, -EINVAL, "'logit_bias' may hold at most %d tokens", LOGIT_BIAS_MAX);
    }
    return 0;
}
