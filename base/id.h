/* id.h - identifiers that nobody can guess.
 *
 * The short form is FastChat's shortuuid: 22 symbols of an alphabet of 57
 * without look-alikes, about 128 bits.
 */
#ifndef BASE_ID_H
#define BASE_ID_H

#include <stddef.h>
#include <stdint.h>

enum { ID_SHORT = 22 };

/* Writes prefix + 22 symbols + NUL; out must hold strlen(prefix) + 23. */
void id_short(const char *prefix, char *out, size_t size);
uint64_t id_random_u64(void);

#endif
