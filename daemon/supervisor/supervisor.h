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

struct buf;
struct config;
struct err;

struct supervisor_options {
    const char *program;            /* run as PROGRAM controller and PROGRAM api */
    const char *worker_program;     /* run as WORKER_PROGRAM MODEL REPLICA */
    char **argv;                    /* of this process: an upgrade runs PROGRAM with them */
    int handover;                   /* a service to take over from another image; 0: a new one */
};

/* The variable in which an image leaves the descriptor of the handover to the
 * next one. */
#define SUPERVISOR_HANDOVER "FASTCHAT_HANDOVER"
/* The last line of --check-config when it could take that over too: a program
 * that only ends well is not one to become. */
#define SUPERVISOR_UNDERSTOOD "the running service can be taken over"

/* Runs until it is told to stop or has to; returns the process's exit code
 * (daemon/roles.h). The configuration becomes the supervisor's, which reads it
 * again from its path for a reload. The caller has opened the log. */
int supervisor_run(struct config *config, const struct supervisor_options *options);

/* Could a service be taken over from that file? 0 or -errno with a sentence. */
int supervisor_check_handover(int fd, struct err *err);
/* The configuration that was in force there, as config_dump() writes it. 0 or
 * -errno with a sentence. */
int supervisor_handover_config(int fd, struct buf *out, struct err *err);

#endif
