"""Builds the sandbox's seccomp filter (classic BPF), which rejects dangerous system calls.

Rejected: new processes (prevents fork bombs and processes that outlive the sandbox; threads are allowed), all sockets,
memory that resource limits do not count, access to other processes' memory, and changes of mounts, namespaces or the
kernel.
"""

from __future__ import annotations

import errno
import platform
import struct

LOAD, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
NUMBER, ARCH, FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data; arguments are little-endian
THREAD = 0x00010000  # CLONE_THREAD
X32 = 0x40000000

# Numbers above 423 are equal on all architectures.
_COMMON = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_open": 434, "pidfd_getfd": 438,
    "mount_setattr": 442, "memfd_secret": 447,
}  # fmt: skip
_X86_64 = {
    "shmget": 29, "socket": 41, "socketpair": 53, "fork": 57, "vfork": 58, "semget": 64, "msgget": 68, "ptrace": 101,
    "syslog": 103, "personality": 135, "pivot_root": 155, "chroot": 161, "acct": 163, "settimeofday": 164,
    "mount": 165, "umount2": 166, "swapon": 167, "reboot": 169, "iopl": 172, "ioperm": 173, "init_module": 175,
    "delete_module": 176, "quotactl": 179, "mq_open": 240, "kexec_load": 246, "add_key": 248, "request_key": 249,
    "keyctl": 250, "unshare": 272, "perf_event_open": 298, "name_to_handle_at": 303, "open_by_handle_at": 304,
    "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "finit_module": 313,
    "memfd_create": 319, "bpf": 321, "userfaultfd": 323,
}  # fmt: skip
_AARCH64 = {
    "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "quotactl": 60, "acct": 89, "personality": 92,
    "kexec_load": 104, "init_module": 105, "delete_module": 106, "syslog": 116, "ptrace": 117, "reboot": 142,
    "settimeofday": 170, "mq_open": 180, "msgget": 186, "semget": 190, "shmget": 194, "socket": 198,
    "socketpair": 199, "add_key": 217, "request_key": 218, "keyctl": 219, "swapon": 224, "perf_event_open": 241,
    "name_to_handle_at": 264, "open_by_handle_at": 265, "setns": 268, "process_vm_readv": 270,
    "process_vm_writev": 271, "kcmp": 272, "finit_module": 273, "memfd_create": 279, "bpf": 280,
    "userfaultfd": 282, "unshare": 97,
}  # fmt: skip
# By machine: the AUDIT_ARCH value, the number of clone, and the rejected system calls.
_MACHINES = {"x86_64": (0xC000003E, 56, _X86_64), "aarch64": (0xC00000B7, 220, _AARCH64)}
CLONE3 = 435


def seccomp_filter(machine: str = platform.machine()) -> bytes | None:
    """The filter for `bwrap --seccomp`; None for architectures other than x86_64 and aarch64."""
    if machine not in _MACHINES:
        return None
    arch, clone, refused = _MACHINES[machine]
    program = [
        (LOAD, 0, 0, ARCH),
        (JUMP_EQUAL, 1, 0, arch),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER),
        (JUMP_AT_LEAST, 0, 1, X32),
        (RETURN, 0, 0, KILL),
    ]
    for number in sorted((refused | _COMMON).values()):
        program += [(JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, ERRNO | errno.EPERM)]
    program += [
        (JUMP_EQUAL, 0, 1, CLONE3),  # a filter cannot read its flags in memory; ENOSYS makes libc use clone
        (RETURN, 0, 0, ERRNO | errno.ENOSYS),
        (JUMP_EQUAL, 0, 3, clone),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        (JUMP_ANY_BIT, 1, 0, THREAD),
        (RETURN, 0, 0, ERRNO | errno.EPERM),
        (RETURN, 0, 0, ALLOW),
    ]
    return b"".join(struct.pack("<HBBI", *step) for step in program)
