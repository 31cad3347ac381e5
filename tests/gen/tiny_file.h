/* tiny_file.h - a tiny random model with a tokenizer, as a file that an engine
 * opens.
 *
 * Vocabulary: 256 bytes, 5 merges, then <|im_start|> (261), <|im_end|> (262, ends
 * an answer), <|extra|> (263). Trained for 2048 tokens.
 */
#ifndef TESTS_GEN_TINY_FILE_H
#define TESTS_GEN_TINY_FILE_H

#include <stdbool.h>
#include <stdint.h>

struct tiny_file {
    uint64_t seed;
    bool not_finite;                /* its logits are NaN */
    const char *chat_template;      /* NULL: none in the file */
};

void tiny_file_write(const char *path, const struct tiny_file *t);

#endif
