"""Peak memory of a measured process."""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Settings", "peak_bytes"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a measured process.

    It runs for `seconds` after its first record, or after its assignment if the topic is empty. Handlers of partitions
    with a number below `alive` continue to read, all others stop at their first record.
    """

    bootstrap_servers: str
    group_id: str
    topic: str
    alive: int
    seconds: float


def peak_bytes() -> int:
    """Return the peak resident memory of this process in bytes.

    Read from /proc if available: the value of getrusage includes the memory of the parent at the fork.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
