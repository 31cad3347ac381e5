#include "base/err.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>

Test(err, the_first_sentence_wins_and_the_place_goes_in_front)
{
    struct err e = { 0 };

    cr_assert(eq(int, err_set(&e, -EINVAL, "port %d is above 65535", 70000), -EINVAL));
    cr_expect(eq(int, err_set(&e, -ENOMEM, "later"), -ENOMEM));
    err_place(&e, "fastchat.conf:%d", 12);
    cr_expect(eq(str, (char *)err_text(&e), "fastchat.conf:12: port 70000 is above 65535"));
    cr_expect(eq(int, e.code, -EINVAL));
}

Test(err, a_missing_struct_is_fine)
{
    cr_expect(eq(int, err_set(NULL, -EIO, "x"), -EIO));
    cr_expect(eq(str, (char *)err_text(NULL), "unknown error"));
}
