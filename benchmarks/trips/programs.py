"""The programs whose trips are traced: each runs on this thread, what it talks to on another one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from asyncgroup import Claim, ConsumerConfig, ConsumerGroup, Handler, Producer, Session
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.testing import KafkaServer
from asyncgroup.workqueue import Delivery, WorkQueue
from benchmarks.trips.trace import RECEIVED, WRITTEN, Trace, Trip

__all__ = ["TRIPS", "TripCase", "follow"]

TOPIC: Final = "trips"
GROUP: Final = "trips"
RECORDS: Final = 20
"""Records that are traced, one after the other."""

PAUSE: Final = 0.05
"""Seconds between two records, so that each one makes its trip by itself."""

LIMIT: Final = 60.0
"""Seconds for a program."""

COMMITTED: Final = f"{WRITTEN}8"
PRODUCED: Final = f"{WRITTEN}0"
"""Points at which OffsetCommit and Produce requests are written."""

REBALANCES: Final = 5
HEARTBEAT: Final = 0.1
"""Seconds."""

EAGER: Final = ConsumerConfig(assignors=("range",), heartbeat_interval=HEARTBEAT)

HANDLER: Final = "the handler begins"
HANDLED: Final = "the handler ends"
SETUP: Final = "setup"
SEND: Final = "send"
REBALANCE: Final = "the session ends"
"""Points that the programs mark."""


@dataclass(frozen=True)
class TripCase:
    """A trip between two points of a program."""

    title: str
    program: Callable[[Trace], Coroutine[Any, Any, None]]
    start: str
    end: str
    is_last: bool = False
    """Whether it starts at the last point `start` before its end, else at the first one after the end before it."""
    rooms: tuple[str, ...] = ("",)
    """How the paths of its files begin; others belong to another trip."""
    goal: int = field(kw_only=True)
    """The largest number of files."""
    backs: int | None = None
    """The largest number of times that control comes back, if there is a limit."""


@contextmanager
def _server() -> Iterator[KafkaServer]:
    with KafkaServer(initial_rebalance_delay=0.0) as server:
        server.create_topic(TOPIC, 1)
        yield server


async def _one_by_one(server: KafkaServer) -> None:
    for _ in range(RECORDS):
        await asyncio.to_thread(server.produce, TOPIC, b"value")
        await asyncio.sleep(PAUSE)


async def consume(trace: Trace) -> None:
    """Records go one by one to the handler of a group."""

    class Marking(Handler):
        async def consume_claim(self, session: Session, claim: Claim) -> None:  # noqa: ARG002  the signature of the base class
            async for record in claim:
                trace.point(HANDLER)
                claim.mark(record)
                trace.point(HANDLED)

    config = ConsumerConfig(auto_offset_reset="earliest", auto_commit_interval=0.01)
    with _server() as server:
        async with ConsumerGroup(server.bootstrap_servers, GROUP, config) as group:
            running = asyncio.create_task(group.run(TOPIC, Marking()))
            with trace:
                await _one_by_one(server)
            await group.aclose()
            await running


async def queue(trace: Trace) -> None:
    """Records go one by one to the handler of a work queue."""

    async def handle(delivery: Delivery) -> None:  # noqa: ARG001  the signature of a handler
        trace.point(HANDLER)
        await asyncio.sleep(0)
        trace.point(HANDLED)

    with _server() as server:
        async with WorkQueue(
            server.bootstrap_servers, GROUP, TOPIC, ack_group_time=0.01, initial_position="earliest"
        ) as queue:
            running = asyncio.create_task(queue.run(handle))
            with trace:
                await _one_by_one(server)
            await queue.aclose()
            await running


async def rebalance(trace: Trace) -> None:
    """Another member joins a group of the eager protocol, and leaves it."""

    class Marking(Handler):
        async def setup(self, session: Session) -> None:  # noqa: ARG002  the signature of the base class
            trace.point(SETUP)

        async def consume_claim(self, session: Session, claim: Claim) -> None:  # noqa: ARG002  as above
            await session.wait_ended()
            trace.point(REBALANCE, before=RECEIVED)

    with _server() as server:
        async with ConsumerGroup(server.bootstrap_servers, GROUP, EAGER) as group:
            running = asyncio.create_task(group.run(TOPIC, Marking()))
            await asyncio.sleep(1.0)
            with trace:
                for _ in range(REBALANCES):
                    await asyncio.to_thread(asyncio.run, _join_and_leave(server.bootstrap_servers))
            await group.aclose()
            await running


async def _join_and_leave(servers: str) -> None:
    class Idle(Handler):
        async def consume_claim(self, session: Session, claim: Claim) -> None:  # noqa: ARG002  as above
            await session.wait_ended()

    async with ConsumerGroup(servers, GROUP, EAGER) as group:
        running = asyncio.create_task(group.run(TOPIC, Idle()))
        await asyncio.sleep(5 * HEARTBEAT)
        await group.aclose()
        await running
    await asyncio.sleep(5 * HEARTBEAT)


async def send(trace: Trace) -> None:
    """One caller awaits `send` in a loop."""
    with _server() as server:
        async with Producer(server.bootstrap_servers) as producer:
            await producer.send(TOPIC, b"first")
            with trace:
                for _ in range(RECORDS):
                    trace.point(SEND)
                    await producer.send(TOPIC, b"value")


async def append(trace: Trace) -> None:
    """The broker appends the records of a client."""
    async with EmbeddedCluster() as cluster:
        cluster.create_topic(TOPIC, 1)
        with trace:
            await asyncio.to_thread(asyncio.run, _produce(cluster.bootstrap_servers))


async def _produce(servers: str) -> None:
    async with Producer(servers) as producer:
        for _ in range(RECORDS):
            await producer.send(TOPIC, b"value")
            await asyncio.sleep(PAUSE)


_RECORD: Final = ("cluster/", "wire/", "consumer/", "group/")
"""Rooms of a record's trip: the bytes of a connection, events of hooks and tables of codes are those of every request."""

_MARK: Final = ("group/", "offsets/")
"""Rooms of a mark's trip: the next fetch, which goes out before the commit, belongs to the fetcher, and the sending of a
request to every request."""

_SEND: Final = ("producer/",)
"""Rooms of a send: how a request is sent to a broker belongs to every request."""

_REBALANCE: Final = ("group/",)
"""Rooms of a rebalance: the claims of the next session, which begin to fetch, and the last commit have trips of their own."""

_BROKER: Final = ("broker/",)
"""Rooms of the broker's trips: how messages and batches are read and written belongs to `wire/`."""

_QUEUE: Final = ("workqueue/", "group/", "offsets/")
"""Rooms of a queue's trips: before the record and after the commit it is that of a consumer."""

TRIPS: Final = {
    "record": TripCase(
        "record: socket to handler", consume, RECEIVED, HANDLER, is_last=True, rooms=_RECORD, goal=12
    ),
    "mark": TripCase("mark to OffsetCommit", consume, HANDLED, COMMITTED, rooms=_MARK, goal=10),
    "rebalance": TripCase(
        "eager rebalance of a member", rebalance, REBALANCE, SETUP, rooms=_REBALANCE, goal=12
    ),
    "append": TripCase(
        "Produce in the broker", append, RECEIVED, WRITTEN, is_last=True, rooms=_BROKER, goal=10
    ),
    "send": TripCase("producer.send to Produce", send, SEND, PRODUCED, rooms=_SEND, goal=12),
    "delivery": TripCase(
        "queue: delivery to handler", queue, RECEIVED, HANDLER, is_last=True, rooms=_QUEUE, goal=12, backs=4
    ),
    "ack": TripCase(
        "queue: end of the handler to OffsetCommit", queue, HANDLED, COMMITTED, rooms=_QUEUE, goal=10, backs=4
    ),
}


def follow(name: str) -> Trip:
    """Run the program of a trip, and return the trip with the median number of files."""
    case, trace = TRIPS[name], Trace()
    asyncio.run(asyncio.wait_for(case.program(trace), LIMIT))
    found = trace.trips(case.start, case.end, last=case.is_last)
    trips = sorted((Trip.of(events, case.rooms) for events in found), key=lambda trip: len(trip.files))
    if not trips:
        raise ValueError(f"{case.title}: no trip from {case.start!r} to {case.end!r}")
    return trips[len(trips) // 2]
