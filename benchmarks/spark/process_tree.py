"""CPU time of a process and its descendants: Spark consists of Python, Java, and Python workers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

__all__ = ["cpu_by_process", "tree_cpu"]

PROCESSES: Final = Path("/proc")
PPID, TIMES, OWN_TIMES = 1, slice(11, 15), slice(11, 13)
"""Fields of /proc/PID/stat after the program's name: parent; utime, stime, cutime, cstime; utime and stime only."""


def tree_cpu(root: int) -> float | None:
    """Return the CPU seconds of a process and its descendants, including ended children that were waited for.

    None if the system does not provide them.
    """
    found = _seconds(root, TIMES)
    return None if found is None else sum(found.values())


def cpu_by_process(root: int) -> dict[int, float] | None:
    """Return the CPU seconds of a process and each of its living descendants, without children that have ended.

    For comparing two points in time: the time of an ended child that its parent did not wait for is in no sum. None if
    the system does not provide the times.
    """
    return _seconds(root, OWN_TIMES)


def _seconds(root: int, times: slice) -> dict[int, float] | None:
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in PROCESSES.glob("[0-9]*"):
        try:
            # the program's name may contain blanks and parentheses
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # the process has just ended; its time is in its parent's
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
