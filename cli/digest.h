/* digest.h - checksums while bytes pass: SHA-256, and beside it, where a hub
 * names a small file by its git blob, the SHA-1 that git gives that blob.
 *
 * Source  git's object format: sha1("blob " + decimal size + NUL + content)
 */
#ifndef CLI_DIGEST_H
#define CLI_DIGEST_H

#include "base/cleanup.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct digest;

enum { SHA256_HEX = 64, SHA1_HEX = 40 };

/* blob_size -1: only SHA-256. 0 and a digest to digest_free(), or -ENOMEM,
 * -ENOTSUP with a sentence. */
int digest_new(int64_t blob_size, struct digest **ret, struct err *err);
void digest_free(struct digest *d); /* NULL is fine */
DEFINE_CLEANUP(struct digest *, digest_free)

void digest_add(struct digest *d, const void *data, size_t len);

/* Ends it: nothing can be added after. blob is "" without one. 0 or -EIO. */
int digest_end(struct digest *d, char sha256[SHA256_HEX + 1], char blob[SHA1_HEX + 1], struct err *err);

/* True for `len` lower-case hexadecimal digits and nothing else. */
bool digest_is_hex(const char *text, size_t len);

#endif
