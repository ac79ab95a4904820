"""A simulated program with a work queue on Pulsar: what becomes of a delivery follows from the message."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from asyncgroup.pulsar import PulsarClient, PulsarMessage
from asyncgroup.workqueue import Backoff, Delivery, PulsarSource, WorkQueue
from tests.simulate_pulsar.plan import ConsumerSpec, QueueRules
from tests.simulate_pulsar.program import PulsarProgram
from tests.simulation.story import Violation

if TYPE_CHECKING:
    from tests.simulate_pulsar.world import PulsarWorld

__all__ = ["LONGEST_WORK", "NACK_BACKOFF", "InjectedFailure", "SimQueueMember", "is_poison", "name_of_value"]

NACK_BACKOFF: Final = Backoff(0.2, 2.0, 2.0)
"""The pauses before the deliveries of a message after its failures."""

LONGEST_WORK: Final = 1.5
"""Most of its `work_seconds` that a handler takes."""


class InjectedFailure(Exception):
    """A handler has failed on purpose."""


def name_of_value(value: bytes | None) -> bytes:
    """Return the part of a value that names its message."""
    return (value or b"").split(b".")[0]


def is_poison(seed: int, rules: QueueRules, value: bytes | None) -> bool:
    """Return whether each delivery of a message fails."""
    return random.Random(f"{seed} {name_of_value(value)!r} is poison").random() < rules.poison


class SimQueueMember(PulsarProgram):
    """The program of a work queue."""

    def __init__(self, world: PulsarWorld, spec: ConsumerSpec, host: str) -> None:
        super().__init__(world, spec.name, host)
        self.spec = spec
        self.subscription = world.plan.setting.subscriptions[spec.subscription]
        assert self.subscription.queue is not None
        self.rules = self.subscription.queue
        self.oracle = world.oracles[spec.subscription]
        self.is_calm = False

    async def work(self, client: PulsarClient) -> None:
        """Handle deliveries until it is to stop."""
        subscription, spec, rules = self.subscription, self.spec, self.rules
        source = PulsarSource(
            client,
            subscription.name,
            subscription.topic,
            index_acks=spec.index_acks,
            close_timeout=4.0,
            dead_letter_subscription="keeps",
        )
        queue = WorkQueue(
            source,
            mode=subscription.kind,
            name=self.name,
            initial_position="earliest",
            dead_letter=rules.max_redeliveries,
            retry=rules.has_retry or None,
            nack_backoff=NACK_BACKOFF,
            clock=self.world.now_ms,
            receiver_queue=spec.queue_size,
            ack_group_time=spec.ack_group_time,
            concurrency=self.rng.choice([1, 4, 20]),
        )
        async with queue:
            self.write("is open")
            await self._until_stopping(asyncio.create_task(queue.run(self._handle), name=f"{self.name} runs"))

    async def _handle(self, delivery: Delivery) -> None:
        if self.is_dead:
            raise asyncio.CancelledError
        message = delivery.record
        assert isinstance(message, PulsarMessage)
        self.world.story.count("deliveries")
        name = name_of_value(delivery.value)
        if message.topic == self.world.topic_name(self.subscription.topic):
            self._check_order(message)
        self._check_attempt(delivery)
        rng = random.Random(f"{self.world.plan.seed} {name!r} {delivery.attempt}")
        if self.spec.work_seconds and rng.random() < 0.5:
            await asyncio.sleep(self.spec.work_seconds * rng.uniform(0.2, LONGEST_WORK))
        await self.gate.wait()
        if self.is_dead:
            raise asyncio.CancelledError
        if is_poison(self.world.plan.seed, self.rules, delivery.value):
            self._fail(name)
        if delivery.attempt == 1 and rng.random() < self.rules.failing:
            if self.rules.has_retry and rng.random() < 0.5:
                self.world.story.count("reconsumed")
                await delivery.reconsume_later(delay=rng.choice([0.1, 1.0]))
                return
            self._fail(name)
        self.oracle.handled.add(name)

    def _fail(self, name: bytes) -> None:
        self.world.story.count("failed deliveries")
        self.oracle.failures[name] += 1
        raise InjectedFailure("injected by the simulation")

    def _check_order(self, message: PulsarMessage) -> None:
        try:
            self.oracle.of(message).receive(self.name, message, is_exact=False)
        except Violation as violation:
            self.fail(violation)

    def _check_attempt(self, delivery: Delivery) -> None:
        if delivery.attempt > self.rules.max_redeliveries + 1:
            text = f"{self.name} gets {delivery.value!r:.30} for the {delivery.attempt}. time"
            self.fail(Violation("a message has no more deliveries than allowed", text))
