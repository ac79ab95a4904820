"""Java's client: a small program (`benchmarks/peers/pulsar`) with the jars that `ApachePulsar` downloads."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from asyncgroup.errors import AsyncGroupError
from asyncgroup.testing.apache_pulsar import PULSAR_VERSION, pulsar_jars
from benchmarks.queue.installation import JavaProgram, PeerUnavailable

__all__ = ["command"]


class _PulsarJars:
    version = PULSAR_VERSION

    def __repr__(self) -> str:
        return f"pulsar {self.version}"

    async def jars(self) -> Path:
        """Return the directory with the jars. Raises PeerUnavailable."""
        try:
            return await asyncio.to_thread(pulsar_jars)
        except AsyncGroupError as error:
            raise PeerUnavailable(str(error)) from error


_PROGRAM: Final = JavaProgram("pulsar", _PulsarJars())
_OPTIONS: Final = (
    "-Xmx1g",
    "-Dslf4j.provider=org.slf4j.simple.SimpleServiceProvider",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
)


async def command() -> list[str]:
    """Return the command without settings; compile the program first if needed. Raises PeerUnavailable."""
    return await _PROGRAM.command("PulsarBenchmark", *_OPTIONS)
