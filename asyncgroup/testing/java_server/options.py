"""Java options of servers that tests start."""

from __future__ import annotations

from typing import Final

__all__ = ["QUICK_START"]

QUICK_START: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Java options with which a server starts sooner and leaves the cores to the tests: one garbage collector thread, and
only the first stage of the compiler. A benchmark that the server could limit should pass `java_options=()`.
"""
