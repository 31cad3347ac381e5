/* model_name.h - what a model may be called, and what one is called whose file
 * nobody has given a name.
 *
 * A name has up to MODEL_NAME_MAX ASCII letters, digits and characters of
 * MODEL_NAME_EXTRA: it goes into URLs, socket names and logs.
 */
#ifndef DAEMON_MODEL_NAME_H
#define DAEMON_MODEL_NAME_H

#include <stdbool.h>

enum { MODEL_NAME_MAX = 128 };
#define MODEL_NAME_EXTRA "-_.:/@+"

bool model_name_char(char c);

/* The file's name without its folder, ".gguf" and the "-00001-of-00003" of a
 * model in several files; what a name may not hold is one '-'. False: nothing is
 * left of it. */
bool model_name_of_file(const char *path, char ret[MODEL_NAME_MAX + 1]);

/* Which part it is of a model in several files; 0: of none. */
unsigned model_file_part(const char *path);

#endif
