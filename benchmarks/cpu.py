"""The CPU time of processes, as the kernel counts it."""

import os
import resource
from pathlib import Path

_PROC = Path("/proc")
_NANOSECONDS = 1_000_000_000
_PARENT = 1
_USER, _SYSTEM = 11, 12
"""The positions of these fields in /proc/PID/stat (proc(5)), counted after the name."""
_STOLEN = 4
"""The place of steal time, used by other virtual machines, in /proc/stat after user, nice, system."""


def nanoseconds(process_id: int) -> int:
    """Return the CPU time of all threads of a process until now.

    It comes from schedstat (nanoseconds). If that file is missing, it comes from stat (clock
    ticks). The time of an ended thread is lost, so only processes with permanent threads can be
    measured.
    """
    try:
        return sum(
            int((task / "schedstat").read_text().split()[0])
            for task in (_PROC / str(process_id) / "task").iterdir()
        )
    except (FileNotFoundError, PermissionError):
        fields = _stat(process_id)
        ticks = int(fields[_USER]) + int(fields[_SYSTEM])
        return ticks * _NANOSECONDS // os.sysconf("SC_CLK_TCK")


def with_children(process_id: int) -> int:
    """Return the CPU time of a process and its children.

    The result is wrong if a child ends meanwhile.
    """
    return sum(map(nanoseconds, (process_id, *children(process_id))))


def machine_nanoseconds() -> int:
    """Return the CPU time that the whole machine has used or been denied until now."""
    user, nice, system, *rest = (
        int(ticks) for ticks in (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + rest[_STOLEN]) * _NANOSECONDS // os.sysconf("SC_CLK_TCK")


def ended_nanoseconds() -> int:
    """Return the CPU time of this process's children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return int((usage.ru_utime + usage.ru_stime) * _NANOSECONDS)


def children(process_id: int) -> dict[int, str]:
    """Return the process ids of a process's children, and their command lines."""
    found: dict[int, str] = {}
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if int(_stat(int(entry.name))[_PARENT]) == process_id:
                found[int(entry.name)] = (entry / "cmdline").read_bytes().decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue  # the process has ended
    return found


def _stat(process_id: int) -> list[str]:
    # The name may contain blanks and parentheses; the last parenthesis ends it.
    return (_PROC / str(process_id) / "stat").read_text().rpartition(")")[2].split()
