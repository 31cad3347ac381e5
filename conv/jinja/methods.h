/* methods.h - the methods of Python's types that a template may name: one row each, and the types that have it.
 *
 * A method that changes its object exists, but calling it is refused (the sandbox is an immutable one).
 */
#ifndef CONV_JINJA_METHODS_H
#define CONV_JINJA_METHODS_H

enum { OF_STR = 1, OF_LIST = 2, OF_DICT = 4, OF_TUPLE = 8, OF_INT = 16, OF_FLOAT = 32, OF_RANGE = 64, OF_CYCLER = 128, OF_LOOP = 256,
       OF_BYTES = 512 };

/* id, name, types that have it, types on which it is unsafe */
#define JINJA_METHODS(M)                                                                                                        \
    M(APPEND, "append", OF_LIST, OF_LIST)                                                                                      \
    M(BIT_LENGTH, "bit_length", OF_INT, 0)                                                                                     \
    M(CAPITALIZE, "capitalize", OF_STR, 0)                                                                                     \
    M(CASEFOLD, "casefold", OF_STR, 0)                                                                                         \
    M(CENTER, "center", OF_STR, 0)                                                                                             \
    M(CHANGED, "changed", OF_LOOP, 0)                                                                                          \
    M(CLEAR, "clear", OF_LIST | OF_DICT, OF_LIST | OF_DICT)                                                                    \
    M(COPY, "copy", OF_LIST | OF_DICT, 0)                                                                                      \
    M(COUNT, "count", OF_STR | OF_LIST | OF_TUPLE | OF_RANGE, 0)                                                               \
    M(CYCLE, "cycle", OF_LOOP, 0)                                                                                              \
    M(DECODE, "decode", OF_BYTES, 0)                                                                                           \
    M(ENCODE, "encode", OF_STR, 0)                                                                                             \
    M(ENDSWITH, "endswith", OF_STR, 0)                                                                                         \
    M(EXPANDTABS, "expandtabs", OF_STR, 0)                                                                                     \
    M(EXTEND, "extend", OF_LIST, OF_LIST)                                                                                      \
    M(FIND, "find", OF_STR, 0)                                                                                                 \
    M(FORMAT, "format", OF_STR, 0)                                                                                             \
    M(FORMAT_MAP, "format_map", OF_STR, 0)                                                                                     \
    M(FROMKEYS, "fromkeys", OF_DICT, 0)                                                                                        \
    M(GET, "get", OF_DICT, 0)                                                                                                  \
    M(INDEX, "index", OF_STR | OF_LIST | OF_TUPLE | OF_RANGE, 0)                                                               \
    M(INSERT, "insert", OF_LIST, OF_LIST)                                                                                      \
    M(IS_INTEGER, "is_integer", OF_FLOAT, 0)                                                                                   \
    M(ISALNUM, "isalnum", OF_STR, 0)                                                                                           \
    M(ISALPHA, "isalpha", OF_STR, 0)                                                                                           \
    M(ISASCII, "isascii", OF_STR, 0)                                                                                           \
    M(ISDECIMAL, "isdecimal", OF_STR, 0)                                                                                       \
    M(ISDIGIT, "isdigit", OF_STR, 0)                                                                                           \
    M(ISIDENTIFIER, "isidentifier", OF_STR, 0)                                                                                 \
    M(ISLOWER, "islower", OF_STR, 0)                                                                                           \
    M(ISNUMERIC, "isnumeric", OF_STR, 0)                                                                                       \
    M(ISPRINTABLE, "isprintable", OF_STR, 0)                                                                                   \
    M(ISSPACE, "isspace", OF_STR, 0)                                                                                           \
    M(ISTITLE, "istitle", OF_STR, 0)                                                                                           \
    M(ISUPPER, "isupper", OF_STR, 0)                                                                                           \
    M(ITEMS, "items", OF_DICT, 0)                                                                                              \
    M(JOIN, "join", OF_STR, 0)                                                                                                 \
    M(KEYS, "keys", OF_DICT, 0)                                                                                                \
    M(LJUST, "ljust", OF_STR, 0)                                                                                               \
    M(LOWER, "lower", OF_STR, 0)                                                                                               \
    M(LSTRIP, "lstrip", OF_STR, 0)                                                                                             \
    M(NEXT, "next", OF_CYCLER, 0)                                                                                              \
    M(PARTITION, "partition", OF_STR, 0)                                                                                       \
    M(POP, "pop", OF_LIST | OF_DICT, OF_LIST | OF_DICT)                                                                        \
    M(POPITEM, "popitem", OF_DICT, OF_DICT)                                                                                    \
    M(REMOVE, "remove", OF_LIST, OF_LIST)                                                                                      \
    M(REMOVEPREFIX, "removeprefix", OF_STR, 0)                                                                                 \
    M(REMOVESUFFIX, "removesuffix", OF_STR, 0)                                                                                 \
    M(REPLACE, "replace", OF_STR, 0)                                                                                           \
    M(RESET, "reset", OF_CYCLER, 0)                                                                                            \
    M(REVERSE, "reverse", OF_LIST, OF_LIST)                                                                                    \
    M(RFIND, "rfind", OF_STR, 0)                                                                                               \
    M(RINDEX, "rindex", OF_STR, 0)                                                                                             \
    M(RJUST, "rjust", OF_STR, 0)                                                                                               \
    M(RPARTITION, "rpartition", OF_STR, 0)                                                                                     \
    M(RSPLIT, "rsplit", OF_STR, 0)                                                                                             \
    M(RSTRIP, "rstrip", OF_STR, 0)                                                                                             \
    M(SETDEFAULT, "setdefault", OF_DICT, OF_DICT)                                                                              \
    M(SORT, "sort", OF_LIST, OF_LIST)                                                                                          \
    M(SPLIT, "split", OF_STR, 0)                                                                                               \
    M(SPLITLINES, "splitlines", OF_STR, 0)                                                                                     \
    M(STARTSWITH, "startswith", OF_STR, 0)                                                                                     \
    M(STRIP, "strip", OF_STR, 0)                                                                                               \
    M(SWAPCASE, "swapcase", OF_STR, 0)                                                                                         \
    M(TITLE, "title", OF_STR, 0)                                                                                               \
    M(UPDATE, "update", OF_DICT, OF_DICT)                                                                                      \
    M(UPPER, "upper", OF_STR, 0)                                                                                               \
    M(VALUES, "values", OF_DICT, 0)                                                                                            \
    M(ZFILL, "zfill", OF_STR, 0)

#define METHOD_ID(id, name, types, unsafe) METHOD_##id,
enum method { METHOD_NONE, JINJA_METHODS(METHOD_ID) METHOD_COUNT_ };
#undef METHOD_ID

#endif
