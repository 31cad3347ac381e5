/* Loaded before libfaketime, which takes the time of every absolute timerfd for
 * one of the wall clock and moves it with that: timers on the monotonic clock
 * go to the kernel as they are. */
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

__attribute__((visibility("default")))
int timerfd_settime(int fd, int flags, const struct itimerspec *value, struct itimerspec *old)
{
    return (int)syscall(SYS_timerfd_settime, fd, flags, value, old);
}
