/* ids_of.h - the ids of a text as a text, which a test can compare and a person read.
 */
#ifndef TESTS_LOADERS_IDS_OF_H
#define TESTS_LOADERS_IDS_OF_H

#include "loaders/tokenizer.h"

/* "15 0 23"; the next call writes over it. Aborts the test when the text can not be encoded. */
const char *ids_of(const struct tokenizer *t, const char *text, bool special);

#endif
