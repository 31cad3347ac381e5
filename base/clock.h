/* clock.h - the monotonic clock for everything that waits or expires, the wall
 * clock only for what people and protocols read ("created", log lines).
 */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

uint64_t clock_mono_ns(void);
uint64_t clock_mono_us(void);
uint64_t clock_mono_ms(void);
int64_t clock_wall_s(void);         /* seconds since 1970, UTC */

#endif
