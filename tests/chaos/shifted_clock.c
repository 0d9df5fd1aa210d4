/* Shifts the time of day of a process by the seconds (a double) in a file, read at every call. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile double *seconds;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CHAOS_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *there = mmap(NULL, sizeof(double), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (there != MAP_FAILED)
        seconds = there;
}

int clock_gettime(clockid_t id, struct timespec *out) {
    int result = syscall(SYS_clock_gettime, id, out);
    if (result == 0 && seconds && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        double off = *seconds, whole = floor(off);
        out->tv_sec += (time_t)whole;
        out->tv_nsec += (long)((off - whole) * 1e9);
        if (out->tv_nsec >= 1000000000L) {
            out->tv_nsec -= 1000000000L;
            out->tv_sec += 1;
        }
    }
    return result;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    (void)zone;
    struct timespec now;
    int result = clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return result;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}
