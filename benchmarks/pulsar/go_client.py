"""pulsar-client-go: a small program (`benchmarks/peers/pulsar_go`), built if Go is installed."""

from __future__ import annotations

from typing import Final

from benchmarks.go_program import GoProgram, GoProgramUnavailable
from benchmarks.queue.installation import PeerUnavailable

__all__ = ["command", "version"]

_PROGRAM: Final = GoProgram("pulsar_go", "github.com/apache/pulsar-client-go")


def version() -> str:
    """Return the version of pulsar-client-go that the program uses."""
    return _PROGRAM.version()


async def command() -> list[str]:
    """Return the command without settings; build the program first if needed. Raises PeerUnavailable."""
    try:
        return [str(await _PROGRAM.build())]
    except GoProgramUnavailable as error:
        raise PeerUnavailable(str(error)) from error
