/* nearest.h - the name that somebody meant who wrote another one.
 *
 *     struct nearest n = nearest_to("relaod");
 *     for each known name: nearest_try(&n, name);
 *     n.name                                       "reload"; NULL: none is near
 *
 * Near is what two changes make of the word, or a third of its length: insert,
 * delete, replace, swap two neighbours. Beyond that a guess is no help.
 */
#ifndef BASE_NEAREST_H
#define BASE_NEAREST_H

#include <stdbool.h>
#include <stddef.h>

struct nearest {
    const char *to, *name;      /* both stay the caller's */
    size_t distance;
};

struct nearest nearest_to(const char *word);
/* True: it is nearer than those before. */
bool nearest_try(struct nearest *n, const char *name);

#endif
