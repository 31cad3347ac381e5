#include "cli/settings.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

static const char dump[] =
    "# read: f.conf\n"
    "supervisor:\n{\n  runtime_dir = \"/run/fast;chat\";    # default\n  # group is not set\n  memory_mb = 0;    # default\n};\n"
    "controller:\n{\n  # listen is not set\n};\n"
    "api:\n{\n"
    "  listen = (\n    {\n      address = \"127.0.0.1:8000\";    # default\n    },\n"
    "    {\n      address = \"unix:/x\";    # f.conf:3\n      mode = \"0600\";    # f.conf:3\n    }\n  );\n"
    "  processes = 1;    # default\n  max_connections = 10000;    # default\n};\n"
    "defaults:\n{\n  context = 0;    # default\n};\n"
    "models:\n(\n"
    "  {\n    name = \"m\";    # f.conf:5\n    aliases = ( \"a\", \"b\" );    # f.conf:5\n    path = \"/a \\\"q\\\" \\\\b\";    # f.conf:5\n  },\n"
    "  {\n    name = \"n\";    # f.conf:6\n    replicas = 3;    # f.conf:6\n  }\n"
    ");\n";

Test(settings, a_value_is_found_in_its_section)
{
    char text[64];

    cr_assert(settings_get(dump, "supervisor", "runtime_dir", text, sizeof text));
    cr_expect(eq(str, text, "/run/fast;chat"));
    cr_expect(eq(i64, settings_int(dump, "api", "max_connections", -1), 10000));
    cr_expect(eq(i64, settings_int(dump, "api", "context", -1), -1));
    cr_expect(eq(i64, settings_int(dump, "defaults", "context", -1), 0));
    cr_expect(not(settings_get(dump, "controller", "listen", text, sizeof text)));
    cr_expect(not(settings_get(dump, "none", "listen", text, sizeof text)));
    cr_expect(not(settings_get("", "api", "listen", text, sizeof text)));
}

Test(settings, a_value_that_is_too_long_is_none)
{
    char text[8];

    cr_expect(not(settings_get(dump, "supervisor", "runtime_dir", text, sizeof text)));
}

Test(settings, models_and_listeners_come_one_by_one)
{
    const char *at = dump, *part;
    char text[64];

    part = settings_next_model(&at);
    cr_assert(part && settings_part_get(part, "name", text, sizeof text));
    cr_expect(eq(str, text, "m"));
    cr_assert(settings_part_get(part, "path", text, sizeof text));
    cr_expect(eq(str, text, "/a \"q\" \\b"));
    cr_expect(eq(i64, settings_part_int(part, "replicas", 1), 1));      /* the next one's is not its */
    part = settings_next_model(&at);
    cr_assert(part && settings_part_get(part, "name", text, sizeof text));
    cr_expect(eq(str, text, "n"));
    cr_expect(eq(i64, settings_part_int(part, "replicas", 1), 3));
    cr_expect(eq(ptr, (void *)settings_next_model(&at), NULL));

    at = dump;
    part = settings_next_listener(&at);
    cr_assert(part && settings_part_get(part, "address", text, sizeof text));
    cr_expect(eq(str, text, "127.0.0.1:8000"));
    cr_expect(not(settings_part_get(part, "mode", text, sizeof text)));
    part = settings_next_listener(&at);
    cr_assert(part && settings_part_get(part, "mode", text, sizeof text));
    cr_expect(eq(str, text, "0600"));
    cr_expect(eq(ptr, (void *)settings_next_listener(&at), NULL));
    at = "";
    cr_expect(eq(ptr, (void *)settings_next_model(&at), NULL));
}
