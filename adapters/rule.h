/* rule.h - whether what is known of a model fits a rule in words.
 *
 *     rule     ""              anything
 *              A B | C         A and B, or C
 *     word     mistral         it has this, in any case
 *              !chat           it has not, in any case
 *              'ReaLM          it has this, written so
 *              =bard           it is this, written so
 *              ~p2l            it is this, in any case
 *              *vigogne        it has this, as a regular expression that is blind to case finds it
 *              +metharme       the same in what lower case makes of it
 *              /v0             its last component has this, written so; one slash at the end does not count
 *              @FILE           its folder has a file of this name
 *     within   [2-9]           one character from 2 to 9
 *
 * Words are ASCII without spaces; what they are compared with may be any bytes. "Any case" is
 * Python's str.lower(): of characters outside ASCII only the Kelvin sign and the I with a dot become (or begin with) one
 * of ASCII. Case-blind regular expressions there also take the dotless i and the long s for i and s.
 *
 * Threads  any
 */
#ifndef ADAPTERS_RULE_H
#define ADAPTERS_RULE_H

#include <stdbool.h>

struct rule_subject {
    const char *text;
    const char *folder;         /* where @FILE is looked for; NULL: there is none, and no file in it */
};

bool rule_holds(const char *rule, const struct rule_subject *subject);

#endif
