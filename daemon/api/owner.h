/* owner.h - whose a request is, as far as a worker must know it. No I/O.
 *
 * A worker shares what it computed of prompts between requests of one salt only,
 * and lets tenants take turns. Both are made from the key that a request brings,
 * `Authorization: Bearer KEY` or `x-api-key: KEY`: halves of hashes, the same in
 * every process, which say nothing about the key and nothing about each other.
 * A `cache_salt` of the request's own (as at vLLM) divides a key's further.
 * Without a key there is no tenant, and without both no salt.
 */
#ifndef DAEMON_API_OWNER_H
#define DAEMON_API_OWNER_H

enum { OWNER_TENANT_HEX = 16, OWNER_SALT_HEX = 32 };

struct owner {
    char tenant[OWNER_TENANT_HEX + 1], salt[OWNER_SALT_HEX + 1];        /* "": none */
};

/* Each may be NULL. */
void owner_of(const char *authorization, const char *x_api_key, const char *cache_salt, struct owner *ret);

#endif
