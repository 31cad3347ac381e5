/* setting_rows.h - the rows of config.def, for commands that write configurations. */
#ifndef CLI_SETTING_ROWS_H
#define CLI_SETTING_ROWS_H

#include "daemon/supervisor/config.h"

#include <stdbool.h>

extern const struct config_row setting_rows[CONFIG_N_KEYS];

/* Is its value a number? */
bool setting_is_number(enum config_key k);

#endif
