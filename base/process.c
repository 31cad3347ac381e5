#include "base/process.h"

#include <signal.h>
#include <stddef.h>
#include <stdlib.h>

static const char *const private_variables[] = {
    "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES",
};

void process_fresh(void)
{
    sigset_t none;

    for (int i = 1; i < NSIG; i++)
        signal(i, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    for (size_t i = 0; i < sizeof private_variables / sizeof private_variables[0]; i++)
        unsetenv(private_variables[i]);
}
