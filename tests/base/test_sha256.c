#include "base/sha256.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <string.h>

static const struct { const char *text; size_t times; const char *digest; } examples[] = {
    /* FIPS 180-2, appendix B, and the empty text */
    { "", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" },
    { "abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" },
    { "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1,
      "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1" },
    { "a", 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0" },
};

static void digest(const char *text, size_t times, char hex[2 * SHA256_BYTES + 1])
{
    uint8_t bytes[SHA256_BYTES];
    struct sha256 s;

    sha256_begin(&s);
    for (size_t i = 0; i < times; i++)
        sha256_add(&s, text, strlen(text));
    sha256_end(&s, bytes);
    for (int i = 0; i < SHA256_BYTES; i++)
        snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
}

Test(sha256, the_examples_of_the_standard)
{
    for (size_t i = 0; i < sizeof examples / sizeof examples[0]; i++) {
        char hex[2 * SHA256_BYTES + 1];

        digest(examples[i].text, examples[i].times, hex);
        cr_expect(eq(str, hex, (char *)examples[i].digest));
    }
}

Test(sha256, pieces_of_any_length_are_one_text)
{
    char whole[1001], one[2 * SHA256_BYTES + 1], two[2 * SHA256_BYTES + 1];
    uint8_t bytes[SHA256_BYTES];

    for (size_t i = 0; i < 1000; i++)
        whole[i] = (char)('a' + i % 26);
    whole[1000] = 0;
    digest(whole, 1, one);
    for (size_t piece = 1; piece < 200; piece += 7) {
        struct sha256 s;

        sha256_begin(&s);
        for (size_t at = 0; at < 1000; at += piece)
            sha256_add(&s, whole + at, piece < 1000 - at ? piece : 1000 - at);
        sha256_end(&s, bytes);
        for (int i = 0; i < SHA256_BYTES; i++)
            snprintf(two + 2 * i, 3, "%02x", bytes[i]);
        cr_assert(eq(str, one, two));
    }
}
