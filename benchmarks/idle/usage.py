"""What a measured process uses while its members are idle."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Settings", "UsageMeter"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a measured process: one member for each of `group_ids`, all in this process.

    When every member has its assignment the process waits for `settle` seconds, then it is measured for `seconds`.
    """

    bootstrap_servers: str
    topic: str
    group_ids: Sequence[str]
    settle: float
    seconds: float


class UsageMeter:
    """Measures this process, all threads together, from its creation to `figures()`."""

    def __init__(self) -> None:
        self._started_at = time.perf_counter()
        self._cpu = time.process_time()
        self._wake_ups = _wake_ups()

    def figures(self) -> dict[str, float]:
        """Return seconds, CPU seconds (user and system), wake-ups, and the number of threads that run now."""
        return {
            "seconds": time.perf_counter() - self._started_at,
            "cpu_seconds": time.process_time() - self._cpu,
            "wake_ups": _wake_ups() - self._wake_ups,
            "threads": _threads(),
        }


def _wake_ups() -> int:
    """Return how often a thread of this process has waited and run again: its voluntary context switches."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def _threads() -> int:
    """Return the number of threads, with those of libraries in C if the system has /proc."""
    try:
        return len(list(Path("/proc/self/task").iterdir()))
    except OSError:
        return threading.active_count()
