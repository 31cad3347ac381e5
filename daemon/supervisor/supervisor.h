/* supervisor.h - the parent: starts the others, watches them, starts them anew.
 *
 * It holds the listening sockets and the other end of every control channel,
 * and does nothing else: no model, no HTTP, nothing that a client sent. A child
 * that ends, falls silent or says something wrong is killed with its process
 * group and started again, later each time; over its budget, or with exit code
 * 78, it is failed and stays so. A failed worker is one model less; a failed
 * controller or api ends the service, for whoever started it to try again.
 */
#ifndef DAEMON_SUPERVISOR_SUPERVISOR_H
#define DAEMON_SUPERVISOR_SUPERVISOR_H

struct config;

struct supervisor_options {
    const char *program;            /* run as PROGRAM controller and PROGRAM api */
    const char *worker_program;     /* run as WORKER_PROGRAM MODEL REPLICA */
};

/* Runs until it is told to stop or has to; returns the process's exit code
 * (daemon/roles.h). The caller has opened the log. */
int supervisor_run(const struct config *config, const struct supervisor_options *options);

#endif
