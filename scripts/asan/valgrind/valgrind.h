/* See memcheck.h: all there is of valgrind's requests is in it. */
#include <valgrind/memcheck.h>
