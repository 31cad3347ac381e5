/* settings.h - single settings out of a dump (`fastchatd --dump-config`, or the
 * "text" of the supervisor's answer to "config").
 *
 * A dump is written by the daemon, a setting a line, each section and each model in
 * braces of its own, so that no parser is needed where libconfig is not.
 */
#ifndef CLI_SETTINGS_H
#define CLI_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The value of a key in a section ("api", "max_connections"), as it stands there
 * without quotes. False: it is not set, or longer than `size`. */
bool settings_get(const char *dump, const char *section, const char *key, char *ret, size_t size);
int64_t settings_int(const char *dump, const char *section, const char *key, int64_t otherwise);

/* A part of the dump: the next model, or the next listener of api.listen. *at is
 * where it goes on, the whole dump at first. NULL: there is none. */
const char *settings_next_model(const char **at);
const char *settings_next_listener(const char **at);
/* A key of it. */
bool settings_part_get(const char *part, const char *key, char *ret, size_t size);
int64_t settings_part_int(const char *part, const char *key, int64_t otherwise);

#endif
