"""The brokers that are compared, each started as a process."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.go_program import GoProgram
from benchmarks.running import ClientFailed, worker

__all__ = ["KFAKE", "SERVERS", "Server", "ServerKind", "serving", "understands"]

KFAKE: Final = GoProgram("kfake", "github.com/twmb/franz-go/pkg/kfake")
ANSWER_LIMIT: Final = 30.0
"""Seconds that a broker may take to start, or to tell its CPU time while it is busy."""


class ServerKind(NamedTuple):
    """A broker, and the distribution that it comes with (None: Go's)."""

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
    """A broker that runs, with one node."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.bootstrap_servers = ""
        self._process = process

    def __repr__(self) -> str:
        return f"<Server {self.name} at {self.bootstrap_servers}>"

    async def start(self) -> None:
        """Wait until it listens."""
        self.bootstrap_servers = str((await self._read())["bootstrap_servers"])

    async def cpu(self) -> float:
        """Seconds of CPU that its process has used so far, all threads together."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        return float((await self._read())["cpu_seconds"])

    async def _read(self) -> dict[str, str | float]:
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(ANSWER_LIMIT):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise ClientFailed(f"{self.name} was silent for {ANSWER_LIMIT:g} s") from None
        if not line:
            assert self._process.stderr is not None
            raise ClientFailed(f"{self.name} ended:\n{(await self._process.stderr.read()).decode()}")
        answer: dict[str, str | float] = json.loads(line)
        return answer


def understands(client: str, server: str) -> bool:
    """Whether a client can talk to a broker at all.

    The mock cluster answers ApiVersions in a version that it does not know with bytes that have no meaning in any
    version behind the error (librdkafka 2.16): its own client looks no further, ours calls them malformed.
    """
    return (client, server) != ("asyncgroup", "librdkafka-mock")


@asynccontextmanager
async def serving(name: str, topics: Mapping[str, int], program: Path | None = None) -> AsyncIterator[Server]:
    """A broker with these topics (names to numbers of partitions); `program` is kfake's."""
    module = (sys.executable, "-m", "benchmarks.broker.served", name)
    command = (str(program),) if name == "kfake" else module
    async with worker(*command, json.dumps({"topics": dict(topics)})) as process:
        server = Server(name, process)
        await server.start()
        yield server
