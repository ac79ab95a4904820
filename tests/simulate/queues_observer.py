"""Observe what queues have no hook for: claims from their assignment to their end; and the clock of a simulation."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from asyncgroup import Producer, ProducerConfig, Session, TopicPartition
from asyncgroup.workqueue.engine import OpenQueue
from asyncgroup.workqueue.group_engine import engine
from asyncgroup.workqueue.group_engine.claim_feed import ClaimFeed
from asyncgroup.workqueue.group_engine.engine import ConsumerGroupEngine
from asyncgroup.workqueue.group_engine.queue_handler import QueueHandler
from tests.simulate.queues_member import SimQueue

if TYPE_CHECKING:
    from tests.simulate.world import World

__all__ = ["observing_queues"]


@contextmanager
def observing_queues(world: World) -> Iterator[None]:
    """Observe the queues of a run, and take their clocks and random choices from the simulation."""
    setting = world.plan.queues
    assert setting is not None
    seeds = random.Random(f"{world.plan.seed} copies")
    queues: dict[object, SimQueue] = {}  # by OpenQueue
    feeds: dict[ClaimFeed, SimQueue] = {}
    revoked = QueueHandler.on_revoked
    opened, begin, drain, forget = (
        ConsumerGroupEngine.open,
        ClaimFeed.__init__,
        ClaimFeed._drain,
        ClaimFeed.forget,
    )

    async def observed_open(self: ConsumerGroupEngine, queue: OpenQueue) -> None:
        member = world.members[self._config.client_id]
        assert isinstance(member, SimQueue)
        queues[queue] = member
        member.prepare(self)
        await opened(self, queue)

    def observed_begin(self: ClaimFeed, parts: Any, session: Session, claim: Any) -> None:
        begin(self, parts, session, claim)
        feeds[self] = queues[parts.queue]
        feeds[self].feed_began(self)

    async def observed_revoked(
        self: QueueHandler, session: Session, partitions: Sequence[TopicPartition]
    ) -> None:
        await revoked(self, session, partitions)
        if not session.ended:
            queues[self._parts.queue].settled(session, partitions)

    async def observed_drain(self: ClaimFeed) -> None:
        feeds[self].feed_revoked(self)
        await drain(self)

    def observed_forget(self: ClaimFeed) -> None:
        forget(self)
        feeds[self].feed_ended(self)

    def make_producer(cluster: Any, config: ProducerConfig) -> Producer:
        return Producer(cluster, config, rng=random.Random(seeds.random()))

    async def limit(_cluster: object) -> int:
        return setting.metadata_limit

    with (
        patch.object(ConsumerGroupEngine, "open", observed_open),
        patch.object(QueueHandler, "on_revoked", observed_revoked),
        patch.object(ClaimFeed, "__init__", observed_begin),
        patch.object(ClaimFeed, "_drain", observed_drain),
        patch.object(ClaimFeed, "forget", observed_forget),
        patch.object(engine, "Producer", make_producer),
        patch.object(engine, "fetch_metadata_limit", limit),
        patch("asyncgroup.model.time", _Clock(world)),
    ):
        yield


class _Clock:
    """The time of day of a simulation, in place of the module `time`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def time_ns(self) -> int:
        """Return nanoseconds since 1970."""
        return self._world.loop.wall_clock() * 1_000_000
