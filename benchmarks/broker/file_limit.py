"""Raise the limit of open files: thousands of connections exceed the default of many systems, 1,024."""

from __future__ import annotations

from typing import Final

__all__ = ["raise_file_limit"]

WANTED: Final = 16_384


def raise_file_limit() -> None:
    """Allow this process `WANTED` open files, or as many as the system's hard limit."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < WANTED:
        most = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
