/* roles.h - the entry points of the roles that live in fastchatd. Each returns
 * the process's exit code. argv[0] is the role's name.
 */
#ifndef DAEMON_ROLES_H
#define DAEMON_ROLES_H

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_CONFIG = 78 };

int supervisor_main(int argc, char **argv);
int controller_main(int argc, char **argv);
int api_main(int argc, char **argv);

#endif
