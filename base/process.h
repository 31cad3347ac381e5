/* process.h - what a process that was just forked does before it becomes another
 * program.
 */
#ifndef BASE_PROCESS_H
#define BASE_PROCESS_H

/* Every signal has its default action and none is blocked; what systemd said to
 * the parent (NOTIFY_SOCKET, WATCHDOG_*, LISTEN_*) is not in the environment. */
void process_fresh(void);

#endif
