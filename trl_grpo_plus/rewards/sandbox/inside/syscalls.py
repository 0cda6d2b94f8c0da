"""System call numbers of x86_64 and aarch64, and what a confined program may do with each.

A name that an architecture lacks (aarch64 has no `open`, `fork`, `stat`) is left out there: the C library uses its
successor. What is in none of the lists is refused. Numbers: Linux `asm/unistd_64.h` and `asm-generic/unistd.h`.
"""

from __future__ import annotations

# fmt: off
X86_64 = {
    "read": 0, "write": 1, "close": 3, "fstat": 5, "lseek": 8, "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12,
    "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "pread64": 17, "pwrite64": 18, "readv": 19,
    "writev": 20, "access": 21, "pipe": 22, "pipe2": 293, "select": 23, "pselect6": 270, "poll": 7, "ppoll": 271,
    "sched_yield": 24, "mremap": 25, "msync": 26, "mincore": 27, "madvise": 28, "dup": 32, "dup2": 33, "dup3": 292,
    "pause": 34, "nanosleep": 35, "getitimer": 36, "alarm": 37, "setitimer": 38, "getpid": 39, "sendfile": 40,
    "recvfrom": 45, "shutdown": 48, "getsockname": 51, "getpeername": 52, "getsockopt": 55, "setsockopt": 54,
    "exit": 60, "exit_group": 231, "wait4": 61, "waitid": 247, "uname": 63, "flock": 73, "fsync": 74, "fdatasync": 75,
    "ftruncate": 77, "getdents": 78, "getdents64": 217, "getcwd": 79, "chdir": 80, "fchdir": 81, "readlink": 89,
    "readlinkat": 267, "umask": 95, "gettimeofday": 96, "getrlimit": 97, "getrusage": 98, "sysinfo": 99, "times": 100,
    "getuid": 102, "getgid": 104, "geteuid": 107, "getegid": 108, "getppid": 110, "getpgrp": 111, "getgroups": 115,
    "getresuid": 118, "getresgid": 120, "getpgid": 121, "getsid": 124, "rt_sigpending": 127, "rt_sigtimedwait": 128,
    "rt_sigsuspend": 130, "sigaltstack": 131, "getpriority": 140, "sched_getparam": 143, "sched_getscheduler": 145,
    "sched_get_priority_max": 146, "sched_get_priority_min": 147, "gettid": 186, "time": 201, "futex": 202,
    "sched_getaffinity": 204, "set_tid_address": 218, "restart_syscall": 219, "fadvise64": 221, "clock_gettime": 228,
    "clock_getres": 229, "clock_nanosleep": 230, "epoll_create": 213, "epoll_create1": 291, "epoll_ctl": 233,
    "epoll_wait": 232, "epoll_pwait": 281, "epoll_pwait2": 441, "stat": 4, "lstat": 6, "newfstatat": 262,
    "statx": 332, "faccessat": 269, "faccessat2": 439, "statfs": 137, "fstatfs": 138, "set_robust_list": 273,
    "get_robust_list": 274, "timerfd_create": 283, "timerfd_settime": 286, "timerfd_gettime": 287, "eventfd": 284,
    "eventfd2": 290, "preadv": 295, "pwritev": 296, "getcpu": 309, "getrandom": 318, "membarrier": 324,
    "copy_file_range": 326, "rseq": 334, "futex_waitv": 449, "get_mempolicy": 239, "setrlimit": 160, "truncate": 76,
    "rename": 82, "mkdir": 83, "rmdir": 84, "creat": 85, "unlink": 87, "symlink": 88, "link": 86, "mkdirat": 258,
    "unlinkat": 263, "renameat": 264, "renameat2": 316, "symlinkat": 266, "linkat": 265, "chmod": 90, "fchmod": 91,
    "fchmodat": 268, "utimensat": 280, "fchmodat2": 452, "utime": 132, "utimes": 235, "futimesat": 261, "open": 2,
    "openat": 257, "clone": 56, "clone3": 435, "openat2": 437, "socketpair": 53, "sendto": 44, "ioctl": 16,
    "fcntl": 72, "kill": 62, "tgkill": 234, "prctl": 157, "prlimit64": 302,
}

AARCH64 = {
    "read": 63, "write": 64, "close": 57, "fstat": 80, "newfstatat": 79, "lseek": 62, "mmap": 222, "mprotect": 226,
    "munmap": 215, "brk": 214, "rt_sigaction": 134, "rt_sigprocmask": 135, "rt_sigreturn": 139, "pread64": 67,
    "pwrite64": 68, "readv": 65, "writev": 66, "pipe2": 59, "pselect6": 72, "ppoll": 73, "sched_yield": 124,
    "mremap": 216, "msync": 227, "mincore": 232, "madvise": 233, "dup": 23, "dup3": 24, "nanosleep": 101,
    "getitimer": 102, "setitimer": 103, "getpid": 172, "sendfile": 71, "recvfrom": 207, "shutdown": 210,
    "getsockname": 204, "getpeername": 205, "getsockopt": 209, "setsockopt": 208, "exit": 93, "exit_group": 94,
    "wait4": 260, "waitid": 95, "uname": 160, "flock": 32, "fsync": 82, "fdatasync": 83, "ftruncate": 46,
    "getdents64": 61, "getcwd": 17, "chdir": 49, "fchdir": 50, "readlinkat": 78, "umask": 166, "gettimeofday": 169,
    "getrlimit": 163, "getrusage": 165, "sysinfo": 179, "times": 153, "getuid": 174, "getgid": 176, "geteuid": 175,
    "getegid": 177, "getppid": 173, "getgroups": 158, "getresuid": 148, "getresgid": 150, "getpgid": 155,
    "getsid": 156, "rt_sigpending": 136, "rt_sigtimedwait": 137, "rt_sigsuspend": 133, "sigaltstack": 132,
    "getpriority": 141, "sched_getparam": 121, "sched_getscheduler": 120, "sched_get_priority_max": 125,
    "sched_get_priority_min": 126, "gettid": 178, "futex": 98, "sched_getaffinity": 123, "set_tid_address": 96,
    "restart_syscall": 128, "fadvise64": 223, "clock_gettime": 113, "clock_getres": 114, "clock_nanosleep": 115,
    "epoll_create1": 20, "epoll_ctl": 21, "epoll_pwait": 22, "epoll_pwait2": 441, "statx": 291, "faccessat": 48,
    "faccessat2": 439, "statfs": 43, "fstatfs": 44, "set_robust_list": 99, "get_robust_list": 100,
    "timerfd_create": 85, "timerfd_settime": 86, "timerfd_gettime": 87, "eventfd2": 19, "preadv": 69, "pwritev": 70,
    "getcpu": 168, "getrandom": 278, "membarrier": 283, "copy_file_range": 285, "rseq": 293, "futex_waitv": 449,
    "get_mempolicy": 236, "setrlimit": 164, "truncate": 45, "mkdirat": 34, "unlinkat": 35, "renameat": 38,
    "renameat2": 276, "symlinkat": 36, "linkat": 37, "fchmod": 52, "fchmodat": 53, "utimensat": 88, "fchmodat2": 452,
    "openat": 56, "clone": 220, "clone3": 435, "openat2": 437, "socketpair": 199, "sendto": 206, "ioctl": 29,
    "fcntl": 25, "kill": 129, "tgkill": 131, "prctl": 167, "prlimit64": 261,
}
# fmt: on


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Harmless: they work on what the process has already.
PLAIN = _words(
    "read write close fstat lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn pread64 pwrite64 "
    "readv writev access pipe pipe2 select pselect6 poll ppoll sched_yield mremap msync mincore madvise dup dup2 dup3 "
    "pause nanosleep getitimer alarm setitimer getpid sendfile recvfrom shutdown getsockname getpeername getsockopt "
    "setsockopt exit exit_group wait4 waitid uname flock fsync fdatasync ftruncate getdents getdents64 getcwd chdir "
    "fchdir readlink readlinkat umask gettimeofday getrlimit getrusage sysinfo times getuid getgid geteuid getegid "
    "getppid getpgrp getgroups getresuid getresgid getpgid getsid rt_sigpending rt_sigtimedwait rt_sigsuspend "
    "sigaltstack getpriority sched_getparam sched_getscheduler sched_get_priority_max sched_get_priority_min gettid "
    "time futex sched_getaffinity set_tid_address restart_syscall fadvise64 clock_gettime clock_getres "
    "clock_nanosleep epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 stat lstat newfstatat "
    "statx faccessat faccessat2 statfs fstatfs set_robust_list get_robust_list timerfd_create timerfd_settime "
    "timerfd_gettime eventfd eventfd2 preadv pwritev getcpu getrandom membarrier copy_file_range rseq futex_waitv "
    "get_mempolicy setrlimit"
)

# They change the file tree: allowed only in a private one, read-only outside the scratch directory. Elsewhere there is
# nothing to change, and Landlock does not cover all of them: never the second line, `truncate` from its version 3 on.
CHANGES = _words(
    "truncate rename mkdir rmdir creat unlink symlink link mkdirat unlinkat renameat renameat2 symlinkat linkat "
    "chmod fchmod fchmodat fchmodat2 utimensat utime utimes futimesat"
)

# The C library falls back to an older call when it is told that these do not exist.
MISSING = ("clone3", "openat2")

# The highest number in these tables' kernels; a later call "does not exist" (ENOSYS) instead of being forbidden.
LAST_KNOWN = 462

TABLES = {"x86_64": X86_64, "aarch64": AARCH64}
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446  # the same everywhere
