"""The faults of the benchmark, applied to a cluster of three brokers.

Two brokers lead the topic's partitions; the third is the coordinator of all groups and leads no partition, so that
faults of a partition leader and faults of the group coordinator are measured separately.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from asyncgroup import Cluster
from asyncgroup.testing.apache_kafka import ApacheKafka
from asyncgroup.wire import messages as m
from benchmarks.member_process import MemberProcess

__all__ = ["FAULTS", "Fault", "Place"]

DOWN: Final = 8.0
"""Seconds that a killed broker stays down."""
FROZEN: Final = 15.0
"""Seconds that a broker is suspended (SIGSTOP): longer than the session timeouts of brokers and members."""


@dataclass(frozen=True)
class Place:
    """What a fault acts on: `leaders` are the partition leaders, `seconds` the second member of each client, if any."""

    kafka: ApacheKafka
    cluster: Cluster
    topic: str
    leaders: tuple[int, int]
    coordinator: int
    seconds: Sequence[MemberProcess]


@dataclass(frozen=True)
class Fault:
    """A fault: `begin` and `heal` are called `seconds` apart; each client runs `members` members."""

    title: str
    seconds: float
    begin: Callable[[Place], Awaitable[None]]
    heal: Callable[[Place], Awaitable[None]]
    members: int = 1


async def _nothing(_: Place) -> None:
    pass


def _kill(find: Callable[[Place], int]) -> Callable[[Place], Awaitable[None]]:
    async def kill(place: Place) -> None:
        await asyncio.to_thread(place.kafka.kill, find(place))

    return kill


def _start(find: Callable[[Place], int]) -> Callable[[Place], Awaitable[None]]:
    async def start(place: Place) -> None:
        await asyncio.to_thread(place.kafka.start_node, find(place))

    return start


def _suspend(find: Callable[[Place], int]) -> Callable[[Place], Awaitable[None]]:
    async def suspend(place: Place) -> None:
        place.kafka.suspend(find(place))

    return suspend


def _resume(find: Callable[[Place], int]) -> Callable[[Place], Awaitable[None]]:
    async def resume(place: Place) -> None:
        place.kafka.resume(find(place))

    return resume


async def _restart(place: Place) -> None:
    await asyncio.to_thread(place.kafka.restart, place.leaders[0])


async def _move(place: Place) -> None:
    """Make the second leader the leader of all partitions of the first one: reassign the replicas, then elect leaders."""
    first, second = place.leaders
    await place.cluster.refresh()
    known = place.cluster.view.topics[place.topic].partitions
    led = [number for number in sorted(known) if known[number].leader == first]
    alter = m.AlterPartitionReassignmentsRequest
    replicas = [second, first, place.coordinator]
    wanted = [alter.ReassignablePartition(number, replicas) for number in led]
    request = alter(timeout_ms=20_000, topics=[alter.ReassignableTopic(place.topic, wanted)])
    await place.cluster.request_any(alter, lambda _: request)
    elect = m.ElectLeadersRequest
    election = elect(election_type=0, topic_partitions=[elect.TopicPartitions(place.topic, led)])
    await place.cluster.request_any(elect, lambda _: election)


async def _kill_members(place: Place) -> None:
    for member in place.seconds:
        member.signal(signal.SIGKILL)


def _leader(place: Place) -> int:
    return place.leaders[0]


def _coordinator(place: Place) -> int:
    return place.coordinator


FAULTS: Final[Mapping[str, Fault]] = {
    "leader-killed": Fault("leader killed (SIGKILL)", DOWN, _kill(_leader), _start(_leader)),
    "leader-frozen": Fault("leader frozen (SIGSTOP, 15 s)", FROZEN, _suspend(_leader), _resume(_leader)),
    "leader-moved": Fault("leaders moved (election)", 3.0, _move, _nothing),
    "leader-restarted": Fault("leader restarted (SIGTERM)", 3.0, _restart, _nothing),
    "coordinator-killed": Fault("coordinator killed", DOWN, _kill(_coordinator), _start(_coordinator)),
    "coordinator-frozen": Fault(
        "coordinator frozen (15 s)", FROZEN, _suspend(_coordinator), _resume(_coordinator)
    ),
    "member-killed": Fault("one of two members killed", 14.0, _kill_members, _nothing, members=2),
}
