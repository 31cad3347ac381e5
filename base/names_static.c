/* names_static.c - where a self-contained program looks up names. Linked into those only (linkage=static).
 *
 * For users, groups and hosts the C library loads whatever modules /etc/nsswitch.conf names. A program that carries its own copy
 * of the C library must not: a module brings the system's copy along, of another version or with another idea of
 * threads, and the program crashes. "files" and "dns" are built in since glibc 2.34, so these are what such a
 * program uses, whatever nsswitch.conf says. Names known only to systemd-resolved, mDNS or LDAP need the shared build. */
#include <nss.h>
#include <stddef.h>

static const char *const sources[][2] = {
    { "group", "files" },
    { "hosts", "files dns" },
    { "initgroups", "files" },
    { "passwd", "files" },
    { "protocols", "files" },
    { "services", "files" },
};

/* Before main, for the setting holds only for look-ups that come after it. */
__attribute__((constructor)) static void use_built_in_sources(void)
{
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++)
        __nss_configure_lookup(sources[i][0], sources[i][1]);
}
