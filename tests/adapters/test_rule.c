#include "adapters/rule.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

static bool holds(const char *rule, const char *text)
{
    return rule_holds(rule, &(struct rule_subject){ text, NULL });
}

Test(rule, words_must_all_hold_and_one_alternative)
{
    cr_expect(holds("", "anything"));
    cr_expect(holds("oasst pythia", "OASST-Pythia-12b"));
    cr_expect(not(holds("oasst pythia", "oasst-llama")));
    cr_expect(holds("oasst !pythia", "oasst-llama"));
    cr_expect(not(holds("oasst !pythia", "oasst-pythia")));
    cr_expect(holds("x y | z", "z"));
    cr_expect(holds("z | x y", "xy"));
    cr_expect(not(holds("x y | z", "x")));
}

Test(rule, signs_say_how_a_word_is_compared)
{
    cr_expect(holds("'ReaLM", "my-ReaLM-7b"));
    cr_expect(not(holds("'ReaLM", "my-realm-7b")));
    cr_expect(holds("=bard", "bard"));
    cr_expect(not(holds("=bard", "Bard")));
    cr_expect(not(holds("=bard", "bards")));
    cr_expect(holds("~p2l", "P2L"));
    cr_expect(not(holds("~p2l", "p2l/")));
    cr_expect(holds("'-2.[2-9]", "m-2.9"));
    cr_expect(not(holds("'-2.[2-9]", "m-2.1")));
    cr_expect(not(holds("'-2.[2-9]", "m-2.")));
}

Test(rule, the_last_component_is_what_follows_the_last_slash_but_one_at_the_end)
{
    cr_expect(holds("/v0", "vicuna-v0"));
    cr_expect(holds("/v0", "a/vicuna-v0/"));
    cr_expect(not(holds("/v0", "v0/vicuna")));
    cr_expect(not(holds("/v0", "a/vicuna-v0//")));
    cr_expect(not(holds("/v0", "")));
    cr_expect(not(holds("/v0", "/")));
}

Test(rule, case_beyond_ascii_is_pythons)
{
    cr_expect(holds("koala", "\u212aoala"), "the Kelvin sign is a k");
    cr_expect(not(holds("vicuna", "V\u0130CUNA")), "an I with a dot becomes i and a dot");
    cr_expect(holds("vi", "V\u0130"), "and so begins with i");
    cr_expect(not(holds("~vi", "V\u0130")));
    cr_expect(holds("*vigogne", "v\u0131gogne"));
    cr_expect(holds("*vigostral", "VIGO\u017fTRAL"));
    cr_expect(holds("*vigogne", "V\u0130GOGNE"));
    cr_expect(not(holds("vigogne", "v\u0131gogne")));
    cr_expect(holds("+metharme", "METHARME"));
    cr_expect(not(holds("+pygmalion", "PYGMAL\u0130ON")), "lower case comes first");
    cr_expect(holds("+pygmalion", "pygmal\u0131on"));
}

Test(rule, bytes_that_are_no_utf8_are_none_of_a_word)
{
    cr_expect(holds("llama", "\xff\xc4llama\xe2\x84"));
    cr_expect(not(holds("koala", "\xe2\x84oala")));
}

Test(rule, without_a_folder_no_file_is_there)
{
    cr_expect(not(holds("@adapter_config.json", "/")));
    cr_expect(rule_holds("@tmp", &(struct rule_subject){ "x", "/" }));
    cr_expect(not(rule_holds("@no-such-file", &(struct rule_subject){ "x", "/" })));
}
