"""The scenario of one fault: members of every client consume a topic, each client in its own group, during the fault."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

from asyncgroup import AsyncGroupError, BrokerError, Cluster
from asyncgroup.testing.apache_kafka import ApacheKafka
from asyncgroup.wire import messages as m
from benchmarks.common import ClientFailed
from benchmarks.member import Settings
from benchmarks.member_process import LIMIT, MemberProcess, start_member
from benchmarks.recovery.faults import Fault, Place

__all__ = ["Load", "Outcome", "Scenario"]

TICK: Final = 0.01
COMMIT_INTERVAL: Final = 0.2
NAME_TRIES: Final = 200
"""Tries to find a group name with a given coordinator; each succeeds with a probability of one third."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """`rate` records per second over `partitions`; `settle` seconds before the fault and after its end."""

    partitions: int
    rate: int
    heartbeat: float
    session_timeout: float
    settle: float


@dataclass
class Outcome:
    """The result of a scenario; all times are `time.monotonic_ns()`.

    `begin` and `end` are of the fault. `acknowledged` maps (partition, offset) to the time of the producer's
    acknowledgement. `receipts` has (partition, offset, time) by client, `commits` the times of commits by client.
    """

    begin: int = 0
    end: int = 0
    acknowledged: dict[tuple[int, int], int] = field(default_factory=dict)
    receipts: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    commits: dict[str, list[int]] = field(default_factory=dict)


class AcknowledgedRecords:
    """An idempotent producer (librdkafka) that records the times of acknowledgements, polled on its own thread."""

    def __init__(self, servers: str, topic: str, load: Load, outcome: Outcome) -> None:
        from confluent_kafka import Producer

        settings: dict[str, str | int | float | bool] = {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "linger.ms": 5,
            "retry.backoff.ms": 50,
            "log_level": 0,
        }
        self._producer = Producer(settings)
        self._topic = topic
        self._load = load
        self._outcome = outcome
        self.failed: list[str] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="acknowledgements", daemon=True)

    def _poll(self) -> None:
        while not self._ending.is_set():
            self._producer.poll(0.1)

    def _delivered(self, error: object, message: object) -> None:
        if error is not None:
            self.failed.append(str(error))
            return
        place = message.partition(), message.offset()  # type: ignore[attr-defined]
        self._outcome.acknowledged[place] = time.monotonic_ns()

    async def run(self) -> None:
        """Produce at an even rate until cancelled."""
        self._thread.start()
        loop = asyncio.get_running_loop()
        begun, count = loop.time(), 0
        while True:
            due = int((loop.time() - begun) * self._load.rate)
            for number in range(count, due):
                partition = number % self._load.partitions
                self._producer.produce(
                    self._topic, b"%d" % number, partition=partition, on_delivery=self._delivered
                )
            count = max(count, due)
            await asyncio.sleep(TICK)

    async def flush(self) -> None:
        """Wait for every acknowledgement. Raises ClientFailed if a record could not be written."""
        left = await asyncio.to_thread(self._producer.flush, LIMIT)
        self._ending.set()
        await asyncio.to_thread(self._thread.join)
        if left or self.failed:
            raise ClientFailed(f"the producer lost {left + len(self.failed)} records: {self.failed[:3]}")


class Scenario:
    """One run of a fault with all clients at the same time."""

    def __init__(self, kafka: ApacheKafka, cluster: Cluster, fault: Fault, load: Load) -> None:
        self._kafka = kafka
        self._cluster = cluster
        self._fault = fault
        self._load = load
        self.outcome = Outcome()

    async def run(self, clients: Sequence[str], say: Callable[[str], None]) -> Outcome:
        """Start the members and the producer, begin the fault, end it, collect the results. Raises ClientFailed."""
        outcome, load, fault = self.outcome, self._load, self._fault
        topic = f"recovery-{uuid4().hex[:12]}"
        coordinator, groups = await self._groups(topic, clients)
        first, second = [node for node in self._kafka.node_ids if node != coordinator]
        await self._create(topic, [[first, second, coordinator], [second, first, coordinator]])
        async with AsyncExitStack() as stack:
            say("starting members")
            members = {
                client: [await self._member(stack, client, topic, group) for _ in range(fault.members)]
                for client, group in zip(clients, groups, strict=True)
            }
            everyone = [member for own in members.values() for member in own]
            await asyncio.gather(*(member.ready() for member in everyone))
            for member in everyone:
                member.tell()
            producer = AcknowledgedRecords(self._kafka.bootstrap_servers, topic, load, outcome)
            producing = asyncio.create_task(producer.run())
            stack.push_async_callback(_cancel, producing)
            await self._assigned(members)
            await asyncio.sleep(load.settle)
            seconds = [own[-1] for own in members.values()] if fault.members > 1 else []
            place = Place(self._kafka, self._cluster, topic, (first, second), coordinator, seconds)
            say("fault")
            outcome.begin = time.monotonic_ns()
            await fault.begin(place)
            await asyncio.sleep(fault.seconds)
            say("healing")
            await fault.heal(place)
            await asyncio.sleep(load.settle)
            outcome.end = time.monotonic_ns()
            await _cancel(producing)
            await producer.flush()
            await asyncio.sleep(load.settle)
            say("gathering")
            for member in everyone:
                if member not in seconds:
                    member.tell()
            for client, own in members.items():
                results = [await member.result() for member in own if member not in seconds]
                outcome.receipts[client] = [
                    (partition, offset, at) for one in results for partition, offset, at in one["receipts"]
                ]
                outcome.commits[client] = sorted(each for one in results for each in one["commits"])
        return outcome

    async def _member(self, stack: AsyncExitStack, client: str, topic: str, group: str) -> MemberProcess:
        load = self._load
        settings = Settings(
            bootstrap_servers=self._kafka.bootstrap_servers,
            group_id=group,
            topic=topic,
            heartbeat=load.heartbeat,
            session_timeout=load.session_timeout,
            commit_interval=COMMIT_INTERVAL,
        )
        return await start_member(stack, client, settings)

    async def _groups(self, topic: str, clients: Sequence[str]) -> tuple[int, list[str]]:
        """Return a coordinator, and for each client a group name that this node coordinates."""
        coordinator = await self._coordinator(f"{topic}-{clients[0]}-0")
        groups = []
        for client in clients:
            for number in range(NAME_TRIES):
                name = f"{topic}-{client}-{number}"
                if await self._coordinator(name) == coordinator:
                    groups.append(name)
                    break
            else:
                raise ClientFailed(f"no group name is coordinated by node {coordinator}")
        return coordinator, groups

    async def _coordinator(self, group: str) -> int:
        """Return the group's coordinator; wait while the cluster elects one."""
        async with asyncio.timeout(LIMIT):
            while True:
                self._cluster.coordinators.mark_unknown(group)  # the previous fault may have moved it
                try:
                    return await self._cluster.coordinators.find(group)
                except AsyncGroupError:
                    await asyncio.sleep(0.2)

    async def _create(self, topic: str, replicas: Sequence[Sequence[int]]) -> None:
        """Create the topic, assigning these replica lists in turn, and wait until every partition has a leader."""
        cls = m.CreateTopicsRequest
        assignments = [
            cls.CreatableReplicaAssignment(number, list(replicas[number % len(replicas)]))
            for number in range(self._load.partitions)
        ]
        created = cls.CreatableTopic(topic, -1, -1, assignments)
        response = await self._cluster.request_any(cls, lambda _: cls([created], timeout_ms=20_000))
        if code := response.topics[0].error_code:
            raise BrokerError(code, f"creating {topic}")
        self._cluster.track([topic])
        async with asyncio.timeout(LIMIT):
            while True:
                known = self._cluster.view.topics.get(topic)
                if known is not None and len(known.writable) == self._load.partitions:
                    return
                await self._cluster.refresh()

    async def _assigned(self, members: dict[str, list[MemberProcess]]) -> None:
        """Wait until the members of every client have all partitions, each its share."""
        share = self._load.partitions // self._fault.members

        def settled(own: list[MemberProcess]) -> bool:
            return all(member.assigned >= share for member in own) and (
                sum(member.assigned for member in own) == self._load.partitions
            )

        try:
            async with asyncio.timeout(LIMIT):
                while not all(map(settled, members.values())):
                    for member in (each for own in members.values() for each in own if each.has_ended):
                        await member.result()
                    await asyncio.sleep(TICK)
        except TimeoutError:
            counts = {client: [each.assigned for each in own] for client, own in members.items()}
            raise ClientFailed(f"no assignment within {LIMIT:g} s: {counts}") from None


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
