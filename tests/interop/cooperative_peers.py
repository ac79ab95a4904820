"""Members of a group in processes of their own: Java's consumer, librdkafka, franz-go, sarama.

Each is a program that prints what it is assigned and the records that it handles, and leaves when its standard input ends.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from asyncgroup.java import require_java
from asyncgroup.testing.apache_kafka import kafka_jars
from asyncgroup.testing.java_server.class_archive import ClassArchive
from tests.interop.go_clients import build_go_clients
from tests.java_programs import java_command

__all__ = ["CONSUMERS", "PEERS", "CooperativePeer"]

HERE: Final = Path(__file__).parent
LEAVE_LIMIT: Final = 30.0
"""Seconds from the end of its standard input to the end of a program."""


_JAVA_ASSIGNORS: Final = "org.apache.kafka.clients.consumer."


class PeerProgram(NamedTuple):
    """A program, and what its arguments have besides the bootstrap servers, the topic and the group."""

    command: Callable[[], list[str]]
    """Returns the command; may block. Skips the test if the program is not available."""
    mode: tuple[str, ...] = ()
    """Arguments after the bootstrap servers."""
    assignors: tuple[str, ...] = ()
    """Arguments after the group."""


def _java() -> list[str]:
    java, jars = require_java("run Kafka's consumer"), kafka_jars()
    # the archive contains the classes that a broker has in common with a consumer
    return java_command(
        HERE / "CooperativeMember.java", f"{jars}/*", options=["-Xmx128m", *ClassArchive(java, jars).options]
    )


def _librdkafka() -> list[str]:
    return [sys.executable, str(HERE / "peers" / "confluent_member.py")]


def _go() -> list[str]:
    return [str(build_go_clients())]


PEERS: Final[Mapping[str, PeerProgram]] = MappingProxyType(
    {
        "java": PeerProgram(_java, assignors=(f"{_JAVA_ASSIGNORS}CooperativeStickyAssignor",)),
        # its default, with which it is eager: the first round of a rolling upgrade
        "java-upgrading": PeerProgram(
            _java, assignors=(f"{_JAVA_ASSIGNORS}RangeAssignor,{_JAVA_ASSIGNORS}CooperativeStickyAssignor",)
        ),
        "librdkafka": PeerProgram(_librdkafka),
        "franz-go": PeerProgram(_go, mode=("cooperative", "franz-go")),
        "sarama": PeerProgram(_go, mode=("cooperative", "sarama")),
    }
)
"""By name."""

CONSUMERS: Final[Mapping[str, PeerProgram]] = MappingProxyType(
    {
        "java-consumer": PeerProgram(_java, assignors=("consumer",)),
        "librdkafka-consumer": PeerProgram(_librdkafka, assignors=("consumer",)),
        "franz-go-consumer": PeerProgram(_go, mode=("consumer", "franz-go")),
    }
)
"""Members with the consumer protocol (KIP-848), by name."""


class CooperativePeer:
    """A running program. `report` is called after each line that it prints."""

    def __init__(self, name: str, report: Callable[[], None]) -> None:
        self.name = name
        self.assigned: set[int] = set()
        self.handled: list[tuple[int, int]] = []
        """(partition, offset) in the order of their handling."""
        self._report = report
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    async def start(self, bootstrap_servers: str, topic: str, group_id: str) -> None:
        """Start the program; it joins the group."""
        program = {**PEERS, **CONSUMERS}[self.name]
        command = await asyncio.to_thread(program.command)
        self._process = await asyncio.create_subprocess_exec(
            *(*command, bootstrap_servers, *program.mode, topic, group_id, *program.assignors),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        self._reader = asyncio.create_task(self._read(), name=f"reader of {self.name}")

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            kind, *numbers = line.decode().split()
            if kind == "assigned":
                self.assigned = {int(number) for number in numbers}
            else:
                partition, offset = map(int, numbers)
                self.handled.append((partition, offset))
            self._report()

    async def stop(self) -> None:
        """Leave the group; safe to call twice."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert self._reader is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(LEAVE_LIMIT):
                await self._reader
                code = await process.wait()
        except BaseException:
            process.kill()
            await process.wait()
            raise
        self.assigned = set()
        assert code == 0, f"{self.name} ended with {code}"
