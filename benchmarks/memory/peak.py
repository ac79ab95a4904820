"""The largest memory that this process has had."""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Settings", "peak_bytes"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a measured process is told: it reads for `seconds` after its first record (or its assignment, if there is
    none); handlers of partitions with a number below `alive` read on, all others stop at their first record.
    """

    bootstrap_servers: str
    group_id: str
    topic: str
    alive: int
    seconds: float


def peak_bytes() -> int:
    """The peak of this process's resident memory.

    From /proc where there is one: getrusage's figure begins with the memory of the parent at the fork.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
