/* The api alone as a program, for test_api_process.py. */
#include "daemon/roles.h"

int main(int argc, char **argv)
{
    return api_main(argc - 1, argv + 1);
}
