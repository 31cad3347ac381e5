/* real_files.h - where tests find what is too big for the tree.
 *
 * A test that needs a file and does not have it says so and skips; with CI=true
 * in the environment a missing model is a failure.
 */
#ifndef TESTS_LOADERS_REAL_FILES_H
#define TESTS_LOADERS_REAL_FILES_H

#include "base/json.h"

/* SmolLM2-135M-Instruct.Q4_1.gguf: $FASTCHAT_SMOLLM2, else in $FASTCHAT_CACHE or
 * ~/.cache/fastchat, under models/. Skips (or fails) the test when there is none. */
const char *real_smollm2(void);
/* A file of the golden data: $FASTCHAT_GOLDEN, else ../shared/golden beside the source. Skips the
 * test when there is none. */
const char *real_golden(const char *name);
/* A file of tests/golden/, which is in the tree. */
const char *real_committed(const char *name);

/* The whole file, NUL behind it; aborts the test when it can not be read. free() it. */
char *real_read(const char *path, size_t *ret_len);
/* fn for every line of a JSONL file; the tree is gone afterwards. Gives the number of lines. */
size_t real_lines(const char *path, void (*fn)(const cJSON *line, void *user), void *user);

#endif
