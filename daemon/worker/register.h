/* register.h - a worker's standing with its controllers (docs/wire.md, part 2;
 * contract 2.7).
 *
 * Each controller is a peer of its own: it is registered with, told a
 * heartbeat, and registered with again whenever it forgot, went or came back,
 * for ever. A controller of ours also gets a watch, a connection whose end is
 * noticed at once by both sides.
 *
 * Environment  FASTCHAT_WORKER_HEART_BEAT_INTERVAL: seconds between heartbeats
 *              to controllers that are not ours (45)
 */
#ifndef DAEMON_WORKER_REGISTER_H
#define DAEMON_WORKER_REGISTER_H

struct err;
struct registrar;
struct worker;

/* Does nothing until registrar_start(). -EINVAL for an address that is none. */
int registrar_open(struct worker *w, struct registrar **ret, struct err *err);
/* Once the model is ready. worker_announce() follows when the first controller
 * has been asked, so that whoever hears of the worker finds it there. */
void registrar_start(struct registrar *r);
/* After names or queue have changed: registers again everywhere, without being
 * taken out in between. Between start and leave. */
void registrar_renew(struct registrar *r);
/* Ends every call and watch: our controllers take the worker out at once. */
void registrar_leave(struct registrar *r);
void registrar_close(struct registrar *r);          /* NULL is fine */

#endif
