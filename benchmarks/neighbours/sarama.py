"""sarama: a small program in Go (`benchmarks/peers/sarama`), built when Go is at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchmarks.common import ROOT
from benchmarks.go_program import GoProgram, GoProgramUnavailable

__all__ = ["ROOT", "SOURCES", "SaramaUnavailable", "build", "version"]

_PROGRAM: Final = GoProgram("sarama", "github.com/IBM/sarama")
SOURCES: Final = _PROGRAM.sources
SaramaUnavailable = GoProgramUnavailable
"""Why sarama cannot be measured here."""


def version() -> str:
    """The version of sarama that the program is pinned to."""
    return _PROGRAM.version()


async def build() -> Path:
    """The program, built if it is not in the cache; raises SaramaUnavailable, saying why."""
    return await _PROGRAM.build()
