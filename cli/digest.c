#include "cli/digest.h"

#include "base/err.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct digest {
    EVP_MD_CTX *sha256, *blob; /* blob NULL: not asked for */
    bool failed;
};

void digest_free(struct digest *d)
{
    if (!d)
        return;
    EVP_MD_CTX_free(d->sha256);
    EVP_MD_CTX_free(d->blob);
    free(d);
}

static EVP_MD_CTX *begin(const EVP_MD *kind)
{
    EVP_MD_CTX *c = EVP_MD_CTX_new();

    if (c && EVP_DigestInit_ex(c, kind, NULL) != 1) {
        EVP_MD_CTX_free(c);
        return NULL;
    }
    return c;
}

int digest_new(int64_t blob_size, struct digest **ret, struct err *err)
{
    CLEANUP(digest_free) struct digest *d = calloc(1, sizeof *d);
    char head[40];
    int n;

    if (!d)
        return err_set(err, -ENOMEM, "no memory");
    d->sha256 = begin(EVP_sha256());
    if (blob_size >= 0)
        d->blob = begin(EVP_sha1());
    if (!d->sha256 || (blob_size >= 0 && !d->blob))
        return err_set(err, -ENOTSUP, "libcrypto has no %s here", d->sha256 ? "SHA-1" : "SHA-256");
    if (d->blob) {
        n = snprintf(head, sizeof head, "blob %lld", (long long)blob_size);
        d->failed = EVP_DigestUpdate(d->blob, head, (size_t)n + 1) != 1;
    }
    *ret = STEAL(d);
    return 0;
}

void digest_add(struct digest *d, const void *data, size_t len)
{
    if (EVP_DigestUpdate(d->sha256, data, len) != 1 || (d->blob && EVP_DigestUpdate(d->blob, data, len) != 1))
        d->failed = true;
}

static bool finish(EVP_MD_CTX *c, char *out, size_t hex)
{
    unsigned char bytes[EVP_MAX_MD_SIZE];
    unsigned n = 0;

    if (EVP_DigestFinal_ex(c, bytes, &n) != 1 || 2 * n != hex)
        return false;
    for (unsigned i = 0; i < n; i++)
        sprintf(out + 2 * i, "%02x", bytes[i]);
    return true;
}

int digest_end(struct digest *d, char sha256[SHA256_HEX + 1], char blob[SHA1_HEX + 1], struct err *err)
{
    blob[0] = 0;
    if (d->failed || !finish(d->sha256, sha256, SHA256_HEX) || (d->blob && !finish(d->blob, blob, SHA1_HEX)))
        return err_set(err, -EIO, "libcrypto could not make a checksum");
    return 0;
}

bool digest_is_hex(const char *text, size_t len)
{
    return strlen(text) == len && strspn(text, "0123456789abcdef") == len;
}
