"""Faults of the three brokers in the chaos story, and a record of the group's members during them."""

from __future__ import annotations

import asyncio
import itertools
import random
import time

from asyncgroup.errors import AsyncGroupError
from asyncgroup.testing.apache_kafka import ApacheKafka
from asyncgroup.wire import messages as m
from tests.real.chaos.checker import Evidence
from tests.stories.admin import Admin

__all__ = ["Brokers"]

SETTLE = 6.0
"""Seconds between two faults of brokers, so that replicas are in sync again before the next."""
STALE = 5.0
"""Seconds after its resumption in which a broker may still describe groups that have moved to another broker."""


class Brokers:
    """Runs one fault at a time: with two of three brokers no acknowledged record is lost and the cluster is writable."""

    def __init__(
        self,
        kafka: ApacheKafka,
        admin: Admin,
        group_id: str,
        topic: str,
        evidence: Evidence,
        rng: random.Random,
    ) -> None:
        self._kafka = kafka
        self._admin = admin
        self._group_id = group_id
        self._topic = topic
        self._evidence = evidence
        self._random = rng
        self._doubtful: dict[int, float] = {}  # the time until which a node's descriptions are not trusted
        self.counts: dict[str, int] = {}
        """The number of times of each fault."""

    async def storm(self, coordinator_freezes: int, ending: asyncio.Event) -> None:
        """Run faults in turn until `ending` is set; all brokers run then. A round has `coordinator_freezes` freezes."""
        faults = [self._freeze_coordinator] * coordinator_freezes
        faults += [self._kill_coordinator, self._kill_any, self._restart_any]
        self._random.shuffle(faults)
        for fault in itertools.cycle(faults):
            if ending.is_set():
                return
            name = fault.__name__.strip("_")
            await fault()
            self.counts[name] = self.counts.get(name, 0) + 1
            await asyncio.sleep(SETTLE)

    async def _coordinator(self) -> int:
        while True:
            self._admin.cluster.coordinators.mark_unknown(self._group_id)
            try:
                return await self._admin.coordinator(self._group_id)
            except AsyncGroupError:
                await asyncio.sleep(0.2)

    async def _freeze_coordinator(self) -> None:
        """SIGSTOP for longer than the session timeout: another broker becomes coordinator, then the first continues."""
        node = await self._coordinator()
        self._doubtful[node] = float("inf")
        self._kafka.suspend(node)
        try:
            await asyncio.sleep(self._random.uniform(10, 14))
        finally:
            self._kafka.resume(node)
            self._doubtful[node] = time.monotonic() + STALE

    async def _kill_coordinator(self) -> None:
        await self._kill(await self._coordinator())

    async def _kill_any(self) -> None:
        await self._kill(self._random.choice(self._kafka.node_ids))

    async def _kill(self, node: int) -> None:
        await asyncio.to_thread(self._kafka.kill, node)
        await asyncio.sleep(self._random.uniform(3, 6))
        await asyncio.to_thread(self._kafka.start_node, node)

    async def _restart_any(self) -> None:
        await asyncio.to_thread(self._kafka.restart, self._random.choice(self._kafka.node_ids))

    async def elect(self) -> None:
        """Elect the preferred leaders of partitions, which faults have changed, until cancelled."""
        elect = m.ElectLeadersRequest
        request = elect(election_type=0, topic_partitions=None, timeout_ms=10_000)
        while True:
            await asyncio.sleep(self._random.uniform(5, 12))
            try:
                await self._admin.cluster.network.request_any(elect, lambda _: request)
            except AsyncGroupError:
                continue
            self.counts["elect"] = self.counts.get("elect", 0) + 1

    async def watch(self) -> None:
        """Ask the coordinator for the group's members, and record trustworthy responses, until cancelled."""
        while True:
            await asyncio.sleep(0.3)
            asked = time.monotonic()
            try:
                async with asyncio.timeout(3):
                    node = await self._admin.coordinator(self._group_id)
                    group = await self._admin.describe(self._group_id)
            except (TimeoutError, AsyncGroupError):
                self._admin.cluster.coordinators.mark_unknown(self._group_id)
                continue
            if group is not None and asked > self._doubtful.get(node, 0.0):
                self._evidence.described.append((asked, frozenset(group.members)))
