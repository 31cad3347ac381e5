/* model_dirs.h - the folders in which models are looked for: the default of
 * supervisor.model_dirs, as its row in config.def says.
 */
#ifndef CLI_MODEL_DIRS_H
#define CLI_MODEL_DIRS_H

#include <stdbool.h>

/* Calls fn with each, $NAME and ~ replaced, until one gives true; that is returned.
 * What is no absolute path then is left out. */
bool model_dirs_each(bool (*fn)(const char *folder, void *user), void *user);

#endif
