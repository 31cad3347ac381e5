#include "cli/setting_rows.h"

const struct config_row setting_rows[CONFIG_N_KEYS] = {
#define CONFIG(section, key, type, applies, def, unit, min, max, doc)                              \
    { CONFIG_##section, #key, CONFIG_##type, CONFIG_##applies, def, unit, min, max, doc },
#include "daemon/supervisor/config.def"
#undef CONFIG
};

bool setting_is_number(enum config_key k)
{
    return setting_rows[k].type == CONFIG_INT || setting_rows[k].type == CONFIG_FLOAT;
}
