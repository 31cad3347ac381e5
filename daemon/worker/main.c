/* fastchat-worker: one model, its engine, and the worker's side of the wire. */
#include "daemon/worker/worker.h"

int main(int argc, char **argv)
{
    return worker_main(argc, argv);
}
