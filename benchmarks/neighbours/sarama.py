"""sarama: a small Go program (`benchmarks/peers/sarama`), built if Go is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchmarks.common import ROOT
from benchmarks.go_program import GoProgram, GoProgramUnavailable

__all__ = ["ROOT", "SOURCES", "SaramaUnavailable", "build", "version"]

_PROGRAM: Final = GoProgram("sarama", "github.com/IBM/sarama")
SOURCES: Final = _PROGRAM.sources
SaramaUnavailable = GoProgramUnavailable
"""sarama cannot be measured; the message says why."""


def version() -> str:
    """Return the version of sarama that the program uses."""
    return _PROGRAM.version()


async def build() -> Path:
    """Return the path of the program, building it if it is not in the cache. Raises SaramaUnavailable."""
    return await _PROGRAM.build()
