/* fastchatd: without arguments that name a role, the supervisor. */
#include "daemon/roles.h"

#include <string.h>

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "controller") == 0)
        return controller_main(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "api") == 0)
        return api_main(argc - 1, argv + 1);
    return supervisor_main(argc, argv);
}
