/* status_view.h - the supervisor's answer to CONTROL_STATUS as a person reads it.
 *
 * A row a child, then what is wrong, so that it is what one sees also when the
 * rows scroll away. Where there is little room the columns that matter least are
 * left out.
 */
#ifndef CLI_STATUS_VIEW_H
#define CLI_STATUS_VIEW_H

#include <cjson/cJSON.h>

struct buf;

/* Lines with colour as term.h has it; `room`: columns there are, 0: any number. */
void status_view(const cJSON *tree, int room, struct buf *out);

#endif
