"""Run a story on one broker: its connections, requests and responses."""

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
from asyncgroup.wire.apis import API_BY_NAME, APIS
from asyncgroup.wire.message import Message
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
"""Lowest and highest version, by API."""

CLOSED: Final = "the connection is closed"
"""Kept instead of a response if the broker closed the connection."""

LIMIT: Final = 20.0
"""Seconds after which a request or wait fails."""

PAUSE: Final = 0.02
"""Seconds between two polls for background work of a real broker."""

GROUP_CONFIGS: Final = ("consumer.assignment.interval.ms", "streams.num.standby.replicas")
"""What `Scene.consumer_group` sets to 0. The second one is 0 anyway: a broker that shows it has applied the first one.

A broker shows a configuration a moment before it applies it, and applies one change after the other.
"""

GROUP_CONFIG: Final = 8
"""The source of a value that was set for one group."""

NOT_YET: Final = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}

Story: TypeAlias = Callable[["Scene"], Awaitable[None]]
Until: TypeAlias = Callable[[Any], bool]


async def ranges_of(address: Address) -> dict[str, tuple[int, int]]:
    """Return the versions that a broker advertises, of the APIs that this package knows."""
    async with _client(*address) as client:
        answer = await client.ask(m.ApiVersionsRequest(), 0)
    names = {api.key: api for api in APIS.values()}
    return {
        names[one.api_key].name: (max(one.min_version, names[one.api_key].versions.low), one.max_version)
        for one in answer.api_keys
        if one.api_key in names
    }


def shared_ranges(ours: Ranges, theirs: Ranges) -> Ranges:
    """Return the versions that both brokers serve; the story about ApiVersions finds different ranges."""
    return {
        name: (max(ours[name][0], theirs[name][0]), min(ours[name][1], theirs[name][1]))
        for name in ours.keys() & theirs.keys()
    }


def picked(low: int, high: int) -> dict[Pick, int]:
    """Return the version of each `Pick` for an API with these versions."""
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
    """A request whose response has not been received yet."""

    label: str
    request: Any
    version: int
    correlation_id: int
    via: str


class Scene:
    """Sends requests to one broker and keeps the responses.

    Requests are sent in the version that `pick` selects, of those that both brokers serve. `via` names a
    connection, which is opened at its first use.
    """

    def __init__(self, addresses: Mapping[int, Address], ranges: Ranges, pick: Pick, suffix: str) -> None:
        self.pick: Pick = pick
        self.places: dict[str, int] = {}
        """The node of each connection, by its name; node 1 if not set."""
        self.answers: dict[str, Any] = {}
        """Responses as plain values, by label."""
        self.asked: set[tuple[str, int]] = set()
        """The APIs and versions of all requests."""
        self.topic_ids: dict[str, UUID] = {}
        """The ids of the topics that the story has created."""
        self.ranges = ranges
        """The versions that both brokers serve."""
        self._addresses = addresses
        self._suffix = suffix
        self._names = Names(suffix)
        self._clients: dict[str, Client] = {}
        self._configured_groups: list[str] = []  # their configs are removed at the end

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self.topic_ids:  # other tests share the broker: clean up
            await self.quietly(m.DeleteTopicsRequest(topic_names=list(self.topic_ids), timeout_ms=20_000), 5)
        if kind is None and self._configured_groups:
            for name in GROUP_CONFIGS:
                await self._configure_groups(self._configured_groups, 1, name, None)
        for client in self._clients.values():
            await client.close()

    def serves(self, api: str) -> bool:
        """Whether both brokers serve an API."""
        return api in self.ranges

    def version(self, api: str) -> int:
        """Return the version in which requests of an API are sent."""
        return picked(*self.ranges[api])[self.pick]

    def named(self, name: str) -> str:
        """Return a name that no other story uses."""
        return name + self._suffix

    # -- asking ------------------------------------------------------------------------------------------------

    async def send(self, label: str, request: Any, *, via: str = "main", version: int | None = None) -> Sent:
        """Send a request; its response is received later."""
        name = APIS[request.API_KEY].name
        chosen = self.version(name) if version is None else version
        self.asked.add((name, chosen))
        client = await self.client(via)
        return Sent(label, request, *client.send(request, chosen), via)

    async def receive(self, sent: Sent) -> Any:
        """Return the response and keep it under the request's label; None if the broker closed the connection."""
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
        """Send a request and keep the response. With `until` repeat this until it returns True; fail when time is up.

        A real broker changes some things in the background: metadata, configurations, transaction markers.
        """
        async with asyncio.timeout(2 * LIMIT):
            deadline = asyncio.get_running_loop().time() + LIMIT
            while True:
                sent = await self.send(label, request, via=via, version=version)
                answer = await self._receive(sent)
                if until is None or answer is None or until(answer):
                    self.keep(label, answer, sent.version)
                    return answer
                assert asyncio.get_running_loop().time() < deadline, f"{label}: {answer}"
                await asyncio.sleep(PAUSE)

    async def quietly(self, request: Any, version: int | None = None) -> Any:
        """Send a request on a separate connection, without keeping the response."""
        sent = await self.send("", request, via="quiet", version=version)
        return await self._receive(sent)

    async def peek(self, sent: Sent) -> Any:
        """Return the response without keeping it."""
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
        """Return the connection with this name."""
        if via not in self._clients:
            self._clients[via] = await _connected(*self._addresses[self.places.get(via, 1)])
        return self._clients[via]

    async def hang_up(self, via: str = "main") -> None:
        """Close a connection; the next request opens another one."""
        await self._clients.pop(via).close()

    def keep(self, label: str, answer: object, version: int | None = None) -> None:
        """Keep a response or value under a new label."""
        assert label not in self.answers, label
        full_label = f"{label} v{version}" if version is not None else label
        value = (
            CLOSED
            if answer is None
            else plain(answer, self._names)
            if isinstance(answer, Message)
            else answer
        )
        self.answers[label] = {full_label: value}

    # -- places ------------------------------------------------------------------------------------------------

    async def topic(self, name: str, partitions: int = 2, **configs: str) -> str:
        """Create a topic and wait until it has leaders; return its full name.

        Dots in setting names are written as underscores.

        Its records are never deleted, whatever their timestamps, and stay in one segment: a Fetch does not read
        past a segment.
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
        """Wait until every partition of a topic has a leader; remember the topic id."""
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

    async def until_left(self, full: str, partitions: int) -> None:
        """Wait until the leaders of a deleted topic serve it no longer: a broker's metadata is ahead of its replicas."""
        async with asyncio.timeout(LIMIT):
            while await self._led(full, partitions):
                await asyncio.sleep(PAUSE)

    async def _led(self, full: str, partitions: int) -> bool:
        """Whether the leaders serve requests: a broker's metadata is ahead of its replicas."""
        cls = m.ListOffsetsRequest
        asked = [cls.ListOffsetsPartition(index, timestamp=-1) for index in range(partitions)]
        answer = await self.quietly(cls(-1, topics=[cls.ListOffsetsTopic(full, asked)]), 4)
        return all(not p.error_code for t in answer.topics for p in t.partitions)

    async def group(self, name: str) -> str:
        """Wait until the group's coordinator is ready; return the group's full name."""
        full = self.named(name)
        await self._find(full, 0)
        await self._ready(m.HeartbeatRequest(full, -1, "nobody"), 3)
        return full

    async def consumer_group(self, name: str) -> str:
        """As `group`, for the consumer protocol: the group's target is computed at every change, without a pause."""
        full = await self.group(name)
        self._configured_groups.append(full)
        for config in GROUP_CONFIGS:
            await self._configure_groups([full], 0, config, "0")
            await self._until_configured(full, config)
        return full

    async def _configure_groups(
        self, groups: list[str], operation: int, name: str, value: str | None
    ) -> None:
        cls = m.IncrementalAlterConfigsRequest
        config = cls.AlterableConfig(name, operation, value)
        await self.quietly(cls([cls.AlterConfigsResource(32, group, [config]) for group in groups]), 1)

    async def _until_configured(self, group: str, name: str) -> None:
        """Wait until the broker shows that the group has its own value of this configuration."""
        cls = m.DescribeConfigsRequest
        request = cls([cls.DescribeConfigsResource(32, group, [name])])
        async with asyncio.timeout(LIMIT):
            while (await self.quietly(request, 4)).results[0].configs[0].config_source != GROUP_CONFIG:
                await asyncio.sleep(PAUSE)

    async def transactional_id(self, name: str) -> str:
        """Wait until the transactional id's coordinator is ready; return the full transactional id."""
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
"""A producer id that no broker has generated."""
