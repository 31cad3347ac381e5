/* hub_access.h - which hub is asked, and as whom. The names are those that the
 * hub's own programs read.
 *
 *     address   $HF_ENDPOINT, else https://huggingface.co
 *     token     $HF_TOKEN, $HUGGING_FACE_HUB_TOKEN, the systemd credential hf-token,
 *               the file $HF_TOKEN_PATH, $HF_HOME/token, else
 *               ${XDG_CACHE_HOME:-~/.cache}/huggingface/token
 *     offline   $HF_HUB_OFFLINE is 1, on, yes or true
 */
#ifndef CLI_HUB_ACCESS_H
#define CLI_HUB_ACCESS_H

#include <stdbool.h>

struct err;

struct hub_access {
    char endpoint[512]; /* without a slash at the end */
    char token[512];    /* "": none */
};

/* 0; -EINVAL for an address or a token that can be none. */
int hub_access_read(struct hub_access *ret, struct err *err);
bool hub_access_is_offline(void);

#endif
