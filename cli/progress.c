#include "cli/progress.h"

#include "base/buf.h"
#include "base/clock.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { DRAW_MS = 200, RATE_MS = 500, BAR = 20, NARROW = 60 };

const char *size_text(int64_t bytes, char ret[SIZE_TEXT])
{
    static const char *const units[] = { "bytes", "kB", "MB", "GB", "TB", "PB" };
    double v = (double)bytes;
    size_t u = 0;

    /* 999.95 would be shown as 1000.0 */
    while (v >= (u ? 999.95 : 1000) && u + 1 < sizeof units / sizeof units[0]) {
        v /= 1000;
        u++;
    }
    snprintf(ret, SIZE_TEXT, u ? "%.1f %s" : "%.0f %s", v, units[u]);
    return ret;
}

void progress_init(struct progress *p, bool quiet)
{
    *p = (struct progress){ .quiet = quiet, .tty = isatty(STDERR_FILENO) };
}

static int width(void)
{
    struct winsize size = { 0 };

    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

static void erase(struct progress *p)
{
    if (p->drawn)
        fputs("\r\033[K", stderr);
    p->drawn = false;
}

static void put_time(struct buf *out, double s)
{
    if (s >= 3600)
        buf_printf(out, "%d:%02d h", (int)(s / 3600), (int)s / 60 % 60);
    else
        buf_printf(out, "%d:%02d", (int)s / 60, (int)s % 60);
}

/* Text that a server chose can not drive the terminal: file names were checked, this
 * is for what was not. */
static void put_label(struct buf *out, const char *label, int room)
{
    int n = 0;

    for (const char *c = label; *c; c++) {
        if (((unsigned char)*c & 0xc0) != 0x80 && n++ == room) {
            buf_adds(out, "…");
            return;
        }
        buf_addc(out, (unsigned char)*c < 0x20 || *c == 0x7f ? '?' : *c);
    }
}

static void put_figures(struct buf *out, const struct progress *p)
{
    char have[SIZE_TEXT], all[SIZE_TEXT];

    buf_printf(out, " %s", size_text(p->at, have));
    if (p->total >= 0)
        buf_printf(out, " of %s", size_text(p->total, all));
    if (p->rate > 0) {
        buf_printf(out, "  %s/s", size_text((int64_t)p->rate, all));
        if (p->total >= p->at) {
            buf_adds(out, "  ");
            put_time(out, (double)(p->total - p->at) / p->rate);
            buf_adds(out, " left");
        }
    }
}

static void draw(struct progress *p)
{
    BUF_LOCAL figures = BUF_INIT;
    BUF_LOCAL line = BUF_INIT;
    int columns = width(), part = p->total > 0 ? (int)(100.0 * (double)p->at / (double)p->total) : 0;
    bool bar = p->total > 0 && columns > NARROW + BAR;
    int room;

    put_figures(&figures, p);
    room = columns - 2 - (int)figures.len - (bar ? BAR + 8 : p->total > 0 ? 6 : 0);
    put_label(&line, p->label, room > 8 ? room : 8);
    if (p->total > 0)
        buf_printf(&line, " %3d %%", part);
    if (bar) {
        buf_adds(&line, " ");
        for (int i = 0; i < BAR; i++)
            buf_adds(&line, i < part * BAR / 100 ? "#" : ".");
    }
    buf_add(&line, buf_str(&figures), figures.len);
    erase(p);
    fputs(buf_str(&line), stderr);
    fflush(stderr);
    p->drawn = true;
}

void progress_total(struct progress *p, int64_t total, int64_t have)
{
    p->total = total;
    p->at = p->shown_at = have;
    p->drawn_ms = p->shown_ms = clock_mono_ms();
    p->rate = 0;
    p->tenths = total > 0 ? (int)(10.0 * (double)have / (double)total) : 0;
}

void progress_begin(struct progress *p, const char *verb, const char *label, int64_t total, int64_t have)
{
    char have_text[SIZE_TEXT], all[SIZE_TEXT];

    p->verb = verb;
    p->label = label;
    progress_total(p, total, have);
    if (p->quiet || p->tty)
        return;
    if (have > 0)
        fprintf(stderr, "%s %s: %s of %s are here\n", verb, label, size_text(have, have_text),
                total >= 0 ? size_text(total, all) : "an unknown size");
    else
        fprintf(stderr, "%s %s%s%s\n", verb, label, total >= 0 ? ", " : "", total >= 0 ? size_text(total, all) : "");
}

static void measure(struct progress *p, uint64_t now)
{
    double s = (double)(now - p->shown_ms) / 1000, rate;

    if (now - p->shown_ms < RATE_MS)
        return;
    rate = (double)(p->at - p->shown_at) / s;
    p->rate = p->rate > 0 ? 0.8 * p->rate + 0.2 * rate : rate;
    p->shown_ms = now;
    p->shown_at = p->at;
}

void progress_at(struct progress *p, int64_t at)
{
    uint64_t now = clock_mono_ms();
    int tenths = p->total > 0 ? (int)(10.0 * (double)at / (double)p->total) : 0;

    p->at = at;
    if (p->quiet)
        return;
    measure(p, now);
    if (p->tty) {
        if (!p->drawn || now - p->drawn_ms >= DRAW_MS) {
            p->drawn_ms = now;
            draw(p);
        }
    } else if (tenths > p->tenths && tenths < 10) {
        fprintf(stderr, "%s %s: %d %%\n", p->verb, p->label, tenths * 10);
        p->tenths = tenths;
    }
}

void progress_end(struct progress *p, bool done)
{
    char all[SIZE_TEXT];

    erase(p);
    if (done && !p->quiet && p->label)
        fprintf(stderr, "%s %s: done, %s\n", p->verb, p->label, size_text(p->at, all));
    p->label = NULL;
}

void progress_note(struct progress *p, const char *fmt, ...)
{
    BUF_LOCAL text = BUF_INIT;
    BUF_LOCAL clean = BUF_INIT;
    va_list ap;

    if (p->quiet)
        return;
    va_start(ap, fmt);
    buf_vprintf(&text, fmt, ap);
    va_end(ap);
    put_label(&clean, buf_str(&text), 1000);
    erase(p);
    fprintf(stderr, "%s\n", buf_str(&clean));
}
