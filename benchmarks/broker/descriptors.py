"""Room for a thousand connections in a process: many systems allow 1,024 files unless asked for more."""

from __future__ import annotations

from typing import Final

__all__ = ["allow_many"]

WANTED: Final = 8192


def allow_many() -> None:
    """Let this process have as many files open as a large group needs, as far as the system lets it."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < WANTED:
        most = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
