"""CPU time of a process with all that it has started: Spark is a tree of Python, Java, and Python again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

__all__ = ["cpu_by_process", "tree_cpu"]

PROCESSES: Final = Path("/proc")
PPID, TIMES, OWN_TIMES = 1, slice(11, 15), slice(11, 13)
"""Fields of /proc/PID/stat behind the program's name: the parent; utime, stime, and those of the children waited for."""


def tree_cpu(root: int) -> float | None:
    """Seconds of CPU that a process and its descendants, living and waited for, have used; None where nobody can tell."""
    found = _seconds(root, TIMES)
    return None if found is None else sum(found.values())


def cpu_by_process(root: int) -> dict[int, float] | None:
    """Seconds of CPU of a process and each living descendant, without children that ended; None where nobody can tell.

    To compare two moments: the time of a process whose parent did not wait for it is in no sum any more.
    """
    return _seconds(root, OWN_TIMES)


def _seconds(root: int, times: slice) -> dict[int, float] | None:
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in PROCESSES.glob("[0-9]*"):
        try:
            # the name may hold blanks and parentheses
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended; its parent tells its time
        pid = int(entry.name)
        parents[pid] = int(fields[PPID])
        ticks[pid] = sum(map(int, fields[times]))
    if root not in ticks:
        return None
    second = os.sysconf("SC_CLK_TCK")
    return {pid: own / second for pid, own in ticks.items() if _descends(pid, root, parents)}


def _descends(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid != root and pid in parents:
        pid = parents[pid]
    return pid == root
