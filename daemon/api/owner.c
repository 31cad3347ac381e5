#include "daemon/api/owner.h"

#include "base/sha256.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* "" where there is none. */
static const char *key_of(const char *authorization, const char *x_api_key)
{
    static const char scheme[] = "Bearer ";
    const char *key = x_api_key ? x_api_key : "";

    if (authorization && strncasecmp(authorization, scheme, sizeof scheme - 1) == 0)
        key = authorization + sizeof scheme - 1;
    return key + strspn(key, " \t");
}

/* Each part with its NUL, so that no two lists of parts are the same bytes. */
static void hash(const char *purpose, const char *key, const char *more, char *ret_hex, size_t n_hex)
{
    uint8_t bytes[SHA256_BYTES];
    struct sha256 s;

    sha256_begin(&s);
    sha256_add(&s, purpose, strlen(purpose) + 1);
    sha256_add(&s, key, strlen(key) + 1);
    sha256_add(&s, more, strlen(more) + 1);
    sha256_end(&s, bytes);
    for (size_t i = 0; i < n_hex / 2; i++)
        snprintf(ret_hex + 2 * i, 3, "%02x", bytes[i]);
}

void owner_of(const char *authorization, const char *x_api_key, const char *cache_salt, struct owner *ret)
{
    const char *key = key_of(authorization, x_api_key), *salt = cache_salt ? cache_salt : "";

    *ret = (struct owner){ 0 };
    if (key[0])
        hash("fastchat tenant", key, "", ret->tenant, OWNER_TENANT_HEX);
    if (key[0] || salt[0])
        hash("fastchat prefix", key, salt, ret->salt, OWNER_SALT_HEX);
}
