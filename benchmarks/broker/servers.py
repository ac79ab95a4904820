"""The brokers that are compared, each in a separate process."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.common import ClientFailed, started_process
from benchmarks.go_program import GoProgram

__all__ = ["KFAKE", "SERVERS", "Server", "ServerKind", "is_compatible", "started_server"]

KFAKE: Final = GoProgram("kfake", "github.com/twmb/franz-go/pkg/kfake")
ANSWER_LIMIT: Final = 30.0
"""Seconds that a broker may take to start, or to report its CPU time while it is busy."""


class ServerKind(NamedTuple):
    """A broker and the Python distribution that contains it (None: it is written in Go)."""

    name: str
    distribution: str | None


SERVERS: Final = {
    kind.name: kind
    for kind in (
        ServerKind("asyncgroup", "asyncgroup"),
        ServerKind("librdkafka-mock", "confluent-kafka"),
        ServerKind("kfake", None),
    )
}


class Server:
    """A running broker with one node."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.bootstrap_servers = ""
        self._process = process

    def __repr__(self) -> str:
        return f"<Server {self.name} at {self.bootstrap_servers}>"

    async def start(self) -> None:
        """Wait until the broker listens."""
        self.bootstrap_servers = str((await self._read())["bootstrap_servers"])

    async def cpu(self) -> float:
        """Return the CPU seconds that the process has used so far, all threads together."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        return float((await self._read())["cpu_seconds"])

    async def _read(self) -> dict[str, str | float]:
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(ANSWER_LIMIT):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise ClientFailed(f"{self.name} did not answer within {ANSWER_LIMIT:g} s") from None
        if not line:
            assert self._process.stderr is not None
            raise ClientFailed(f"{self.name} ended:\n{(await self._process.stderr.read()).decode()}")
        answer: dict[str, str | float] = json.loads(line)
        return answer


def is_compatible(client: str, server: str) -> bool:
    """Return whether a client can connect to a broker.

    librdkafka's mock cluster (2.16) answers an ApiVersions version that it does not know with an error code followed by
    bytes that are invalid in every version: librdkafka ignores them, asyncgroup raises an error.
    """
    return (client, server) != ("asyncgroup", "librdkafka-mock")


@asynccontextmanager
async def started_server(
    name: str, topics: Mapping[str, int], program: Path | None = None
) -> AsyncIterator[Server]:
    """Start a broker with these topics (name to number of partitions); `program` is the path of kfake's program."""
    module = (sys.executable, "-m", "benchmarks.broker.server_process", name)
    command = (str(program),) if name == "kfake" else module
    async with started_process(*command, json.dumps({"topics": dict(topics)})) as process:
        server = Server(name, process)
        await server.start()
        yield server
