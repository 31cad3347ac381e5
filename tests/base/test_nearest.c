#include "base/nearest.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

static const char *guess(const char *word)
{
    static const char *const names[] = { "load", "models", "reload", "unload", "upgrade" };
    struct nearest n = nearest_to(word);

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        nearest_try(&n, names[i]);
    return n.name;
}

Test(nearest, two_changes_or_a_third_of_the_word_are_near)
{
    static const struct { const char *word, *want; } cases[] = {
        { "relaod", "reload" }, { "lod", "load" }, { "model", "models" }, { "upgarde", "upgrade" }, { "reload", "reload" },
        { "unlaod", "unload" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_assert(guess(cases[i].word) != NULL, "%s", cases[i].word);
        cr_expect(eq(str, (char *)guess(cases[i].word), (char *)cases[i].want));
    }
}

Test(nearest, what_is_far_from_all_has_no_guess)
{
    char longest[200];

    memset(longest, 'l', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    cr_expect(guess("") == NULL);
    cr_expect(guess("status-report") == NULL);
    cr_expect(guess(longest) == NULL);
}
