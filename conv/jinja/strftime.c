/* strftime in the C locale, as glibc has it behind Python's datetime: what it writes does not depend on this process's locale. */
#include "conv/jinja/value.h"

#include <stdio.h>

static const char *const days[] = { "Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday" };
static const char *const months[] = { "January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
                                      "November", "December" };

struct field { char flag; bool colon; int width; bool trusted; };

static void text(struct rt *r, const char *s, int len, const struct field *f)
{
    for (int i = 0; i < len; i++) {
        char c = s[i];

        if (f->flag == '^' && c >= 'a' && c <= 'z')
            c = (char)(c - 32);
        if (f->flag == '#' && c >= 'A' && c <= 'Z')
            c = (char)(c + 32);
        out_add(r, &c, 1, f->trusted);
    }
}

static void number(struct rt *r, long v, int digits, char fill, const struct field *f)
{
    char out[64];
    int n;

    if (f->width > digits)
        digits = f->width < 40 ? f->width : 40;
    if (f->flag == '-')
        fill = '\0';
    if (f->flag == '_')
        fill = ' ';
    if (f->flag == '0')
        fill = '0';
    n = !fill ? snprintf(out, sizeof out, "%ld", v) : fill == '0' ? snprintf(out, sizeof out, "%0*ld", digits, v)
                                                                  : snprintf(out, sizeof out, "%*ld", digits, v);
    out_add(r, out, (size_t)n, f->trusted);
}

/* ISO 8601 week: its number, and its year. */
static int iso_week(const struct tm *tm, int *ret_year)
{
    int year = tm->tm_year + 1900, monday = (tm->tm_wday + 6) % 7, week = (tm->tm_yday - monday + 10) / 7;
    bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0, before = ((year - 1) % 4 == 0 && (year - 1) % 100 != 0) || (year - 1) % 400 == 0;

    if (week < 1) {
        *ret_year = year - 1;
        return (tm->tm_yday + 365 + before - monday + 10) / 7;
    }
    if (week == 53 && tm->tm_yday - monday + 3 >= 365 + leap) {
        *ret_year = year + 1;
        return 1;
    }
    *ret_year = year;
    return week;
}

static bool one(struct rt *r, const struct tm *tm, char c, struct field f);

static void several(struct rt *r, const struct tm *tm, const char *fmt, bool trusted)
{
    for (; *fmt; fmt++) {
        if (*fmt == '%')
            one(r, tm, *++fmt, (struct field){ .trusted = trusted });
        else
            out_add(r, fmt, 1, trusted);
    }
}

static bool one(struct rt *r, const struct tm *tm, char c, struct field f)
{
    int hour12 = tm->tm_hour % 12 ? tm->tm_hour % 12 : 12, year = tm->tm_year + 1900, iso_year, week = iso_week(tm, &iso_year);
    const char *name;

    switch (c) {
    case 'a': text(r, days[tm->tm_wday], 3, &f); break;
    case 'A': text(r, days[tm->tm_wday], (int)strlen(days[tm->tm_wday]), &f); break;
    case 'b': case 'h': text(r, months[tm->tm_mon], 3, &f); break;
    case 'B': text(r, months[tm->tm_mon], (int)strlen(months[tm->tm_mon]), &f); break;
    case 'c': several(r, tm, "%a %b %e %H:%M:%S %Y", f.trusted); break;
    case 'C': number(r, year / 100, 2, '0', &f); break;
    case 'd': number(r, tm->tm_mday, 2, '0', &f); break;
    case 'D': case 'x': several(r, tm, "%m/%d/%y", f.trusted); break;
    case 'e': number(r, tm->tm_mday, 2, ' ', &f); break;
    case 'f': number(r, 0, 6, '0', &f); break;
    case 'F': several(r, tm, "%Y-%m-%d", f.trusted); break;
    case 'g': number(r, iso_year % 100, 2, '0', &f); break;
    case 'G': number(r, iso_year, 4, '0', &f); break;
    case 'H': number(r, tm->tm_hour, 2, '0', &f); break;
    case 'I': number(r, hour12, 2, '0', &f); break;
    case 'j': number(r, tm->tm_yday + 1, 3, '0', &f); break;
    case 'k': number(r, tm->tm_hour, 2, ' ', &f); break;
    case 'l': number(r, hour12, 2, ' ', &f); break;
    case 'm': number(r, tm->tm_mon + 1, 2, '0', &f); break;
    case 'M': number(r, tm->tm_min, 2, '0', &f); break;
    case 'n': out_add(r, "\n", 1, f.trusted); break;
    case 'p': case 'P':
        name = tm->tm_hour < 12 ? "AM" : "PM";
        if (c == 'P')
            f.flag = '#';
        text(r, name, 2, &f);
        break;
    case 'r': several(r, tm, "%I:%M:%S %p", f.trusted); break;
    case 'R': several(r, tm, "%H:%M", f.trusted); break;
    case 's': number(r, (long)mktime(&(struct tm){ .tm_sec = tm->tm_sec, .tm_min = tm->tm_min, .tm_hour = tm->tm_hour, .tm_mday = tm->tm_mday,
                                                   .tm_mon = tm->tm_mon, .tm_year = tm->tm_year, .tm_isdst = -1 }), 1, '0', &f); break;
    case 'S': number(r, tm->tm_sec, 2, '0', &f); break;
    case 't': out_add(r, "\t", 1, f.trusted); break;
    case 'T': case 'X': several(r, tm, "%H:%M:%S", f.trusted); break;
    case 'u': number(r, tm->tm_wday ? tm->tm_wday : 7, 1, '0', &f); break;
    case 'U': number(r, (tm->tm_yday + 7 - tm->tm_wday) / 7, 2, '0', &f); break;
    case 'V': number(r, week, 2, '0', &f); break;
    case 'w': number(r, tm->tm_wday, 1, '0', &f); break;
    case 'W': number(r, (tm->tm_yday + 7 - (tm->tm_wday + 6) % 7) / 7, 2, '0', &f); break;
    case 'y': number(r, year % 100, 2, '0', &f); break;
    case 'Y': number(r, year, 1, '0', &f); break;
    case 'z': case 'Z': break;                  /* datetime.now() knows no zone */
    case '%': out_add(r, "%", 1, f.trusted); break;
    default: return false;
    }
    return true;
}

void out_strftime(struct rt *r, const struct tm *tm, struct str *fmt)
{
    for (size_t at = 0; at < fmt->len; ) {
        const char *percent = memchr(fmt->text + at, '%', fmt->len - at);
        size_t from = percent ? (size_t)(percent - fmt->text) : fmt->len, p = from + 1;
        struct field f = { .trusted = percent && str_trusted_at(fmt, from) };

        out_sub(r, fmt, at, from);
        if (!percent)
            break;
        while (p < fmt->len && fmt->text[p] && strchr("-_0^#", fmt->text[p]))
            f.flag = fmt->text[p++];
        for (; p < fmt->len && fmt->text[p] >= '0' && fmt->text[p] <= '9'; p++)
            f.width = f.width < 100 ? f.width * 10 + fmt->text[p] - '0' : f.width;
        if (p < fmt->len && one(r, tm, fmt->text[p], f))
            at = p + 1;
        else {
            out_sub(r, fmt, from, p < fmt->len ? p + 1 : fmt->len);     /* glibc leaves what it does not know */
            at = p < fmt->len ? p + 1 : fmt->len;
        }
    }
}
