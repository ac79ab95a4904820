"""One broker while a story is told to it: connections, what was asked, and what was answered."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias
from uuid import UUID

from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m
from asyncgroup.wire.message import Message
from asyncgroup.wire.protocol import API_BY_NAME, APIS
from tests.broker.client import Client, Disconnected
from tests.interop.parity.plain import Names, plain

__all__ = [
    "CLOSED",
    "NOT_YET",
    "TYPED_PRODUCER",
    "Pick",
    "Ranges",
    "Scene",
    "Story",
    "picked",
    "ranges_of",
    "shared_ranges",
]

Pick: TypeAlias = Literal["lowest", "middle", "highest"]
Address: TypeAlias = tuple[str, int]
Ranges: TypeAlias = Mapping[str, tuple[int, int]]
"""Lowest and highest version by API."""

CLOSED: Final = "the connection is closed"
"""Kept instead of an answer where the broker hung up."""

LIMIT: Final = 20.0
"""Seconds that anything may take."""

PAUSE: Final = 0.02
"""Seconds between two looks at something that a real broker does in the background."""

NOT_YET: Final = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}

Story: TypeAlias = Callable[["Scene"], Awaitable[None]]
Until: TypeAlias = Callable[[Any], bool]


async def ranges_of(address: Address) -> dict[str, tuple[int, int]]:
    """The versions that a broker offers, of the APIs that are known here."""
    async with _client(*address) as client:
        answer = await client.ask(m.ApiVersionsRequest(), 0)
    names = {api.key: api for api in APIS.values()}
    return {
        names[one.api_key].name: (max(one.min_version, names[one.api_key].versions.low), one.max_version)
        for one in answer.api_keys
        if one.api_key in names
    }


def shared_ranges(ours: Ranges, theirs: Ranges) -> Ranges:
    """What both brokers offer; that the ranges differ is found by the story about ApiVersions."""
    return {
        name: (max(ours[name][0], theirs[name][0]), min(ours[name][1], theirs[name][1]))
        for name in ours.keys() & theirs.keys()
    }


def picked(low: int, high: int) -> dict[Pick, int]:
    """What `pick` means for an API with these versions."""
    return {"lowest": low, "middle": (low + high + 1) // 2, "highest": high}


@contextlib.asynccontextmanager
async def _client(host: str, port: int) -> AsyncIterator[Client]:
    client = await _connected(host, port)
    try:
        yield client
    finally:
        await client.close()


async def _connected(host: str, port: int) -> Client:
    reader, writer = await asyncio.open_connection(host, port)
    return Client(reader, writer, "parity")


@dataclass(frozen=True)
class Sent:
    """A request whose answer has not been received yet."""

    label: str
    request: Any
    version: int
    correlation_id: int
    via: str


class Scene:
    """Asks one broker and keeps the answers, as plain values by label, in `answers`.

    Requests go out in the version that `pick` says, of those that both brokers offer. `via` names connections; each is
    opened when it is first used, to node 1 unless the story has placed it elsewhere. `topic_ids` are those of the topics
    that the story has made, `ranges` the versions that both offer, `asked` the APIs and versions of its requests.
    """

    def __init__(self, addresses: Mapping[int, Address], ranges: Ranges, pick: Pick, suffix: str) -> None:
        self.pick: Pick = pick
        self.places: dict[str, int] = {}
        self.answers: dict[str, Any] = {}
        self.asked: set[tuple[str, int]] = set()
        self.topic_ids: dict[str, UUID] = {}
        self._addresses, self.ranges, self._suffix = addresses, ranges, suffix
        self._names = Names(suffix)
        self._clients: dict[str, Client] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self.topic_ids:  # a broker that others share is left as it was found
            await self.quietly(m.DeleteTopicsRequest(topic_names=list(self.topic_ids), timeout_ms=20_000), 5)
        for client in self._clients.values():
            await client.close()

    def serves(self, api: str) -> bool:
        """Whether both brokers serve an API that the wire room knows."""
        return api in self.ranges

    def version(self, api: str) -> int:
        """The version in which requests of an API go out."""
        return picked(*self.ranges[api])[self.pick]

    def named(self, name: str) -> str:
        """A name that no other story uses."""
        return name + self._suffix

    # -- asking ------------------------------------------------------------------------------------------------

    async def send(self, label: str, request: Any, *, via: str = "main", version: int | None = None) -> Sent:
        """Send a request whose answer is waited for later."""
        name = APIS[request.API_KEY].name
        chosen = self.version(name) if version is None else version
        self.asked.add((name, chosen))
        client = await self.client(via)
        return Sent(label, request, *client.send(request, chosen), via)

    async def receive(self, sent: Sent) -> Any:
        """The answer to what was sent, kept under its label; None if the broker hung up."""
        answer = await self._receive(sent)
        self.keep(sent.label, answer, sent.version)
        return answer

    async def ask(
        self,
        label: str,
        request: Any,
        *,
        via: str = "main",
        version: int | None = None,
        until: Until | None = None,
    ) -> Any:
        """Send, receive and keep. With `until` again and again, until it is content with the answer or time is up.

        A real broker changes some things in the background: metadata, configurations, transaction markers.
        """
        async with asyncio.timeout(2 * LIMIT):
            deadline = asyncio.get_running_loop().time() + LIMIT
            while True:
                sent = await self.send(label, request, via=via, version=version)
                answer = await self._receive(sent)
                late = asyncio.get_running_loop().time() > deadline
                if until is None or answer is None or late or until(answer):
                    self.keep(label, answer, sent.version)
                    return answer
                await asyncio.sleep(PAUSE)

    async def quietly(self, request: Any, version: int | None = None) -> Any:
        """Ask without keeping the answer, on a connection of its own."""
        sent = await self.send("", request, via="quiet", version=version)
        return await self._receive(sent)

    async def peek(self, sent: Sent) -> Any:
        """The answer to what was sent, not kept."""
        return await self._receive(sent)

    async def _receive(self, sent: Sent) -> Any:
        client = self._clients[sent.via]
        try:
            async with asyncio.timeout(LIMIT):
                return await client.receive(sent.request, sent.version, sent.correlation_id)
        except Disconnected:
            await self.hang_up(sent.via)
            return None

    async def client(self, via: str = "main") -> Client:
        """The connection of this name."""
        if via not in self._clients:
            self._clients[via] = await _connected(*self._addresses[self.places.get(via, 1)])
        return self._clients[via]

    async def hang_up(self, via: str = "main") -> None:
        """Close a connection; the next request opens another one."""
        await self._clients.pop(via).close()

    def keep(self, label: str, answer: object, version: int | None = None) -> None:
        """Keep something under a label that is not taken yet."""
        assert label not in self.answers, label
        told = f"{label} v{version}" if version is not None else label
        value = (
            CLOSED
            if answer is None
            else plain(answer, self._names)
            if isinstance(answer, Message)
            else answer
        )
        self.answers[label] = {told: value}

    # -- places ------------------------------------------------------------------------------------------------

    async def topic(self, name: str, partitions: int = 2, **configs: str) -> str:
        """Make a topic and wait until it has leaders; its full name. Dots of settings are written as underscores.

        It keeps its records, old as their timestamps are, and in one segment: no Fetch reads beyond the end of one.
        """
        cls, full = m.CreateTopicsRequest, self.named(name)
        kept = {"retention.ms": "-1", "segment.ms": str(1 << 60)} | {
            key.replace("_", "."): value for key, value in configs.items()
        }
        settings = [cls.CreatableTopicConfig(*setting) for setting in kept.items()]
        wanted = cls.CreatableTopic(full, partitions, 1, configs=settings)
        answer = await self.quietly(
            cls(topics=[wanted], timeout_ms=20_000), API_BY_NAME["CreateTopics"].versions.high
        )
        assert not answer.topics[0].error_code, answer
        await self.until_led(full, partitions)
        return full

    async def until_led(self, full: str, partitions: int) -> None:
        """Wait until every partition of a topic has a leader; keeps its id."""
        request = m.MetadataRequest(
            [m.MetadataRequest.MetadataRequestTopic(name=full)], allow_auto_topic_creation=False
        )
        async with asyncio.timeout(LIMIT):
            while True:
                (topic,) = (await self.quietly(request, 12)).topics
                known = not topic.error_code and len(topic.partitions) == partitions
                if known and await self._led(full, partitions):
                    self.topic_ids[full] = topic.topic_id
                    return
                await asyncio.sleep(PAUSE)

    async def _led(self, full: str, partitions: int) -> bool:
        """Whether the leaders know it themselves: a broker's metadata is ahead of its replicas."""
        cls = m.ListOffsetsRequest
        asked = [cls.ListOffsetsPartition(index, timestamp=-1) for index in range(partitions)]
        answer = await self.quietly(cls(-1, topics=[cls.ListOffsetsTopic(full, asked)]), 4)
        return all(not p.error_code for t in answer.topics for p in t.partitions)

    async def group(self, name: str) -> str:
        """A group's full name, once its coordinator is ready."""
        full = self.named(name)
        await self._find(full, 0)
        await self._ready(m.HeartbeatRequest(full, -1, "nobody"), 3)
        return full

    async def transactional_id(self, name: str) -> str:
        """A transactional id, once its coordinator is ready."""
        full = self.named(name)
        await self._find(full, 1)
        await self._ready(m.EndTxnRequest(full, TYPED_PRODUCER, 0, False), 3)
        return full

    async def _find(self, key: str, key_type: int) -> None:
        await self._ready(m.FindCoordinatorRequest(key, key_type), 3)

    async def _ready(self, request: Any, version: int) -> None:
        async with asyncio.timeout(LIMIT):
            while (await self.quietly(request, version)).error_code in NOT_YET:
                await asyncio.sleep(PAUSE)


TYPED_PRODUCER: Final = 5_000_000_000
"""A producer id that no broker has given out."""
