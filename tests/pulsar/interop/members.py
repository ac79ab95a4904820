"""Consumers of one subscription: ours, Java's and C++'s, with the same face, so that a test may combine them."""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import pulsar as pulsar_library

from asyncgroup.lifecycle import cancel_and_wait, start_task
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
from asyncgroup.pulsar.consumer.topic_consumer import PulsarTopicConsumer
from tests.apache_pulsar import RunningPulsar
from tests.pulsar.java_client import pulsar_java_command

__all__ = [
    "MEMBERS",
    "CppMember",
    "JavaMember",
    "Member",
    "OurMember",
    "Received",
    "packed",
    "unpacked",
    "until",
]

PROGRAM: Final = Path(__file__).with_name("SubscriptionMember.java")
LIMIT: Final = 60.0
"""Seconds for anything that a member does; on a busy machine Java starts slowly."""
POLL: Final = 50
"""Milliseconds that a C++ consumer waits for a message before it looks whether it is to end."""

_JAVA_TYPES: Final = {
    "shared": "Shared",
    "key_shared": "Key_Shared",
    "failover": "Failover",
    "exclusive": "Exclusive",
}
_CPP_TYPES: Final = {
    "shared": pulsar_library.ConsumerType.Shared,
    "key_shared": pulsar_library.ConsumerType.KeyShared,
    "failover": pulsar_library.ConsumerType.Failover,
    "exclusive": pulsar_library.ConsumerType.Exclusive,
}


class Received(NamedTuple):
    """A message as a member got it."""

    member: str
    value: bytes
    key: bytes | None
    redelivery_count: int
    topic: str
    properties: Mapping[str, str]


Report = Callable[[Received], None]
"""Is called for each message, in the order in which they arrive."""


class Member(Protocol):
    """A consumer. Messages are named by their values."""

    name: str

    async def start(self) -> None:
        """Subscribe."""

    async def ack(self, value: bytes) -> None:
        """Acknowledge; return when the broker has it."""

    async def nack(self, value: bytes) -> None:
        """Have it delivered again after 0.1 s."""

    async def close(self) -> None:
        """Leave. Safe to call twice."""


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait until something has happened in the tasks of the members."""
    try:
        async with asyncio.timeout(LIMIT):
            while not condition():
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {LIMIT:g} s: {what}") from None


class OurMember:
    """PulsarTopicConsumer."""

    def __init__(
        self,
        server: RunningPulsar,
        topic: str,
        kind: str,
        report: Report,
        *,
        acks: bool = False,
        name: str | None = None,
    ) -> None:
        self.name = "ours"
        self._kind = kind
        self._report = report
        self._acks = acks
        self._client = PulsarClient(server.service_url)
        self._config = PulsarConsumerConfig(
            initial_position="earliest", ack_group_time=0.0, consumer_name=name
        )
        self._topic = topic
        self._received: dict[bytes, PulsarMessage] = {}
        self._task: asyncio.Task[None] | None = None
        self.consumer: PulsarTopicConsumer

    async def start(self) -> None:
        await self._client.__aenter__()
        self.consumer = self._client.subscribe(self._topic, "s", type=self._kind, config=self._config)
        await self.consumer.__aenter__()
        self._task = start_task(self._read())

    async def _read(self) -> None:
        async for message in self.consumer:
            value = message.value or b""
            self._received[value] = message
            self._report(
                Received(
                    self.name,
                    value,
                    message.key,
                    message.redelivery_count,
                    message.topic,
                    message.properties,
                )
            )
            if self._acks:
                self.consumer.ack(message)

    @property
    def is_active(self) -> bool:
        return all(each.is_active for each in self.consumer.partitions)

    async def ack(self, value: bytes) -> None:
        self.consumer.ack(self._received[value])
        await self.consumer.flush()

    async def nack(self, value: bytes) -> None:
        self.consumer.nack(self._received[value], 0.1)

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            await cancel_and_wait(task)
            await self.consumer.aclose()
            await self._client.aclose()


class CppMember:
    """The consumer of pulsar-client, on a thread."""

    def __init__(
        self,
        server: RunningPulsar,
        topic: str,
        kind: str,
        report: Report,
        *,
        acks: bool = False,
        name: str | None = None,
        **options: Any,
    ) -> None:
        self.name = "cpp"
        self._url = server.service_url
        self._topic = topic
        self._kind = kind
        self._report = report
        self._acks = acks
        self._options = {"consumer_name": name, **options}
        self._received: dict[bytes, Any] = {}
        self._loop = asyncio.get_running_loop()
        self._ends = False
        self._client: Any = None
        self._consumer: Any = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        logger = pulsar_library.ConsoleLogger(pulsar_library.LoggerLevel.Error)
        self._client = pulsar_library.Client(self._url, logger=logger)
        self._consumer = await asyncio.to_thread(
            self._client.subscribe,
            self._topic,
            "s",
            consumer_type=_CPP_TYPES[self._kind],
            initial_position=pulsar_library.InitialPosition.Earliest,
            negative_ack_redelivery_delay_ms=100,
            batch_index_ack_enabled=True,
            **self._options,
        )
        self._reading = start_task(asyncio.to_thread(self._read))

    def _read(self) -> None:
        while not self._ends:
            try:
                message = self._consumer.receive(timeout_millis=POLL)
            except pulsar_library.Timeout:
                continue
            key = message.partition_key()
            found = Received(
                self.name,
                message.data(),
                key.encode() if key else None,
                message.redelivery_count(),
                message.topic_name(),
                message.properties(),
            )
            self._received[found.value] = message
            self._loop.call_soon_threadsafe(self._report, found)
            if self._acks:
                self._consumer.acknowledge(message)

    async def ack(self, value: bytes) -> None:
        await asyncio.to_thread(self._consumer.acknowledge, self._received[value])

    async def nack(self, value: bytes) -> None:
        await asyncio.to_thread(self._consumer.negative_acknowledge, self._received[value])

    async def close(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            self._ends = True
            await reading
            await asyncio.to_thread(self._client.close)


class JavaMember:
    """The consumer of Pulsar's Java client, in a process: see `SubscriptionMember.java`."""

    def __init__(
        self,
        server: RunningPulsar,
        topic: str,
        kind: str,
        report: Report,
        *,
        acks: bool = False,
        name: str | None = None,
        **options: object,
    ) -> None:
        self.name = "java"
        self.is_active = False
        self._arguments = [server.service_url, topic, "s", _JAVA_TYPES[kind]]
        given = options | ({"ack": "true"} if acks else {}) | ({"name": name} if name else {})
        self._arguments += [f"{key}={value}" for key, value in given.items()]
        self._report = report
        self._done: dict[str, asyncio.Future[None]] = {"ready": asyncio.get_running_loop().create_future()}
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        command = await asyncio.to_thread(pulsar_java_command, PROGRAM)
        self._process = await asyncio.create_subprocess_exec(
            *command,
            *self._arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        self._reading = start_task(self._read())
        await asyncio.wait_for(self._done["ready"], LIMIT)

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            words = line.decode().split()
            match words[0]:
                case "message":
                    self._report(self._parsed(words[1:]))
                case "active" | "inactive":
                    self.is_active = words[0] == "active"
                case _:
                    self._done[" ".join(words)].set_result(None)
        for waiting in self._done.values():
            if not waiting.done():
                waiting.set_exception(RuntimeError("Java's consumer has ended"))

    def _parsed(self, words: list[str]) -> Received:
        value, key, redeliveries, topic, _, *properties = words
        pairs = dict(
            tuple((unpacked(part) or b"").decode() for part in each.split(":")) for each in properties
        )
        return Received(self.name, unpacked(value) or b"", unpacked(key), int(redeliveries), topic, pairs)

    async def _command(self, *words: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        line = " ".join(words)
        waiting = self._done[line] = asyncio.get_running_loop().create_future()
        self._process.stdin.write(f"{line}\n".encode())
        await asyncio.wait_for(waiting, LIMIT)

    async def ack(self, value: bytes) -> None:
        await self._command("ack", packed(value))

    async def nack(self, value: bytes) -> None:
        await self._command("nack", packed(value))

    async def later(self, value: bytes, seconds: float) -> None:
        """Send it to the retry letter topic."""
        await self._command("later", packed(value), str(round(seconds * 1000)))

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is None or self._reading is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(self._reading, LIMIT)
        finally:
            if not self._reading.done() or self._reading.cancelled():
                process.kill()
        assert await process.wait() == 0


MEMBERS: Final[Mapping[str, Callable[..., Member]]] = {
    "ours": OurMember,
    "java": JavaMember,
    "cpp": CppMember,
}
"""By name."""


def packed(value: bytes) -> str:
    """Return bytes as the Java programs have them."""
    return "b" + b64encode(value).decode()


def unpacked(text: str) -> bytes | None:
    """Return the bytes of a field of the Java programs; None for `-`."""
    return None if text == "-" else b64decode(text.removeprefix("b"))
