/* blocks.h - random blocks of the quantised types of GGUF, for tests. */
#ifndef TESTS_GEN_BLOCKS_H
#define TESTS_GEN_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

/* The quantised types that can be computed with. */
enum { BLOCK_TYPES = 13 };
extern const uint32_t block_types[BLOCK_TYPES];     /* enum ggml_type */

/* Sets the scales of one block, whose other bytes are random, so that its values reach
 * about from -size to size. */
void block_scale(uint32_t ggml_type, uint8_t *block, double size);

#endif
