"""A simulated program with a consumer: what it does with a message follows from its seed."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from asyncgroup.errors import AsyncGroupError
from asyncgroup.pulsar import (
    EARLIEST,
    LATEST,
    MessageId,
    PulsarClient,
    PulsarConsumerConfig,
    PulsarMessage,
    PulsarTopicConsumer,
)
from tests.simulate_pulsar.oracle import MessagePlace, PartitionOracle, place_of
from tests.simulate_pulsar.plan import ConsumerSpec
from tests.simulate_pulsar.program import PulsarProgram
from tests.simulation.story import Violation

if TYPE_CHECKING:
    from tests.simulate_pulsar.world import PulsarWorld

__all__ = ["SimConsumer"]

IDLE: Final = 0.5
"""Seconds without a message after which those that are held are acknowledged."""

HELD: Final = 5
"""Messages that a consumer with late acknowledgements holds."""

ARRIVES: Final = 0.5
"""Seconds within which a command reaches the broker, if nothing is disturbed."""


class SimConsumer(PulsarProgram):
    """The program of a consumer."""

    def __init__(self, world: PulsarWorld, spec: ConsumerSpec, host: str) -> None:
        super().__init__(world, spec.name, host)
        self.spec = spec
        self.subscription = world.plan.setting.subscriptions[spec.subscription]
        self.oracle = world.oracles[spec.subscription]
        self.is_calm = False
        """Whether it nacks no more."""
        self.consumer: PulsarTopicConsumer | None = None
        self.is_paused = False
        self.may_repeat = False
        """Whether messages that were pushed before a redelivery of everything may arrive beside the new ones."""
        self._seeks: deque[str] = deque()
        self._held: list[PulsarMessage] = []
        self._last: PulsarMessage | None = None
        # since the last seek of this consumer: what it has acknowledged, and up to where
        self._acked: set[tuple[PartitionOracle, MessagePlace]] = set()
        self._acked_up_to: dict[PartitionOracle, MessagePlace] = {}
        self._floors: dict[PartitionOracle, MessagePlace] = {}
        self._unconfirmed: list[tuple[PartitionOracle, MessagePlace, bool]] = []
        self._since_flush = 0

    async def work(self, client: PulsarClient) -> None:
        """Consume until it is to stop."""
        spec = self.spec
        config = PulsarConsumerConfig(
            consumer_name=self.name,
            initial_position="earliest",
            receiver_queue_size=spec.queue_size,
            receiver_queue_bytes=spec.queue_bytes,
            ack_group_time=spec.ack_group_time,
            index_acks=spec.index_acks,
            nack_delay=spec.nack_delay,
            priority_level=spec.priority,
            max_pending_chunked=0,
            start_paused=self.is_paused,
        )
        topic, kind = self.subscription.topic, self.subscription.kind
        async with client.subscribe(topic, spec.subscription, type=kind, config=config) as consumer:
            self._begin(consumer)
            try:
                await self._until_stopping(
                    asyncio.create_task(self._consume(consumer), name=f"{self.name} reads")
                )
            finally:
                self.consumer = None
            if self.rng.random() < 0.5:
                self._ack_held(consumer)
        if self.world.plan.is_orderly:
            self._confirm(self._unconfirmed)

    def _begin(self, consumer: PulsarTopicConsumer) -> None:
        self.consumer = consumer
        self.pause(self.is_paused)  # perhaps it was changed while the consumer was opened
        self._last = None
        self._floors.clear()
        self._forget_acks()
        for part in self.oracle.partitions.values():
            part.begin()
        self.write("is subscribed")

    def _forget_acks(self, of: PartitionOracle | None = None) -> None:
        """Forget what is held and acknowledged of a partition; by default of all."""
        self._held = [each for each in self._held if of is not None and self.oracle.of(each) is not of]
        self._acked = {each for each in self._acked if of is not None and each[0] is not of}
        self._unconfirmed = [each for each in self._unconfirmed if of is not None and each[0] is not of]
        if of is None:
            self._acked_up_to.clear()
        else:
            self._acked_up_to.pop(of, None)

    # --- messages ---------------------------------------------------------------------------------------------------------

    async def _consume(self, consumer: PulsarTopicConsumer) -> None:
        while True:
            await self.gate.wait()
            if self._seeks:
                await self._seek(consumer, self._seeks.popleft())
            messages = await self._next(consumer)
            for message in messages:
                self._receive(message)
            for message in messages:
                await self._handle(consumer, message)
            if not messages:
                self._ack_held(consumer)
            if self._since_flush >= self.spec.flush_every:
                await self._flush(consumer)

    async def _next(self, consumer: PulsarTopicConsumer) -> list[PulsarMessage]:
        try:
            async with asyncio.timeout(IDLE):
                if self.spec.style == "batch":
                    return await consumer.receive_batch(max_messages=7, max_wait=0.05)
                if self.spec.style == "iterate":
                    return [await anext(consumer)]
                return [await consumer.receive()]
        except TimeoutError:
            return []

    def _receive(self, message: PulsarMessage) -> None:
        """A message has arrived: check that it may."""
        if self.is_dead:
            raise asyncio.CancelledError
        oracle, place = self.oracle.of(message), place_of(message)
        self.world.story.count("messages")
        up_to = self._acked_up_to.get(oracle)
        is_acked = (oracle, place) in self._acked or (up_to is not None and place <= up_to)
        if is_acked and not (
            self.spec.by_id or self.may_repeat
        ):  # an id does not say whether it has come again, and is queued
            text = f"{self.name} gets {message.value!r:.30} at {tuple(place)} of {oracle.topic}"
            self.fail(Violation("a consumer does not get what it has acknowledged", text))
        floor = self._floors.get(oracle)
        if floor is not None and place < floor:
            text = f"{self.name} gets {tuple(place)} of {oracle.topic}, and has moved to {tuple(floor)}"
            self.fail(Violation("nothing of before a seek", text))
        try:
            oracle.receive(self.name, message, is_exact=self.world.plan.is_exact(self.spec.subscription))
        except Violation as violation:
            self.fail(violation)
        self._last = message

    async def _handle(self, consumer: PulsarTopicConsumer, message: PulsarMessage) -> None:
        rng, spec = self.rng, self.spec
        if spec.work_seconds and rng.random() < 0.5:
            await asyncio.sleep(spec.work_seconds * rng.uniform(0.2, 1.5))
        self._since_flush += 1
        if rng.random() < spec.nacks and not self.is_calm:
            self.world.story.count("nacks")
            consumer.nack(message, rng.choice([None, 0.0, 0.3, 2.0]))
        elif spec.acks == "each":
            self._ack(consumer, message)
        else:
            self._held.append(message)
            if len(self._held) >= HELD:
                self._ack_held(consumer)

    # --- acknowledgements -------------------------------------------------------------------------------------------------

    def _ack(self, consumer: PulsarTopicConsumer, message: PulsarMessage) -> None:
        if self.is_dead:
            raise asyncio.CancelledError
        oracle, place = self.oracle.of(message), place_of(message)
        consumer.ack(message.message_id if self.spec.by_id else message)
        if self._is_sent(oracle, message):
            oracle.ack([place], self.world.loop.time(), self.spec.ack_group_time + ARRIVES)
            self._acked.add((oracle, place))
            self._unconfirmed.append((oracle, place, False))

    def _ack_held(self, consumer: PulsarTopicConsumer) -> None:
        held, self._held = self._held, []
        if self.spec.acks != "cumulative":
            self.rng.shuffle(held)
            for message in held:
                self._ack(consumer, message)
            return
        last: dict[PartitionOracle, PulsarMessage] = {}
        for message in held:
            oracle = self.oracle.of(message)
            if oracle not in last or place_of(message) > place_of(last[oracle]):
                last[oracle] = message
        for oracle, message in last.items():
            self._ack_up_to(consumer, oracle, message)

    def _ack_up_to(
        self, consumer: PulsarTopicConsumer, oracle: PartitionOracle, message: PulsarMessage
    ) -> None:
        if self.is_dead:
            raise asyncio.CancelledError
        place = place_of(message)
        consumer.ack_cumulative(message.message_id if self.spec.by_id else message)
        if self._is_sent(oracle, message):
            places = [each for each in oracle.received if each <= place]
            oracle.ack(places, self.world.loop.time(), self.spec.ack_group_time + ARRIVES)
            before = self._acked_up_to.get(oracle)
            self._acked_up_to[oracle] = place if before is None else max(before, place)
            self._unconfirmed.append((oracle, place, True))

    def _is_sent(self, oracle: PartitionOracle, message: PulsarMessage) -> bool:
        """Return whether an acknowledgement is sent before those of all messages of its batch."""
        found = message.message_id
        return found.batch_index < 0 or (self.spec.index_acks and found[:2] not in oracle.whole)

    async def _flush(self, consumer: PulsarTopicConsumer) -> None:
        self._since_flush = 0
        sent = list(self._unconfirmed)
        try:
            async with asyncio.timeout(10.0):
                await consumer.flush()
        except (AsyncGroupError, TimeoutError) as error:
            self.write(f"flush failed: {error!r}")
        else:
            self._confirm(sent)
            self._unconfirmed = [each for each in self._unconfirmed if each not in sent]

    def _confirm(self, acks: list[tuple[PartitionOracle, MessagePlace, bool]]) -> None:
        if self.is_dead:
            return
        for oracle, place, is_cumulative in acks:
            (oracle.confirm_up_to if is_cumulative else oracle.confirm)(place)

    # --- actions ----------------------------------------------------------------------------------------------------------

    def seek(self, target: str) -> None:
        """Move the subscription before the next message."""
        self._seeks.append(target)

    def pause(self, is_paused: bool) -> None:
        """Ask for no more messages, or ask again."""
        self.is_paused = is_paused
        if self.consumer is not None:
            (self.consumer.pause if is_paused else self.consumer.resume)()

    def redeliver_all(self) -> None:
        """Have everything delivered again that is not acknowledged."""
        if self.consumer is not None:
            self.consumer.redeliver_all()
            self.may_repeat = not self.subscription.in_order  # the others have epochs

    async def _seek(self, consumer: PulsarTopicConsumer, target: str) -> None:
        message, inclusive = self._last, self.rng.random() < 0.5
        if target == "message" and message is None:
            return
        where: MessageId | PulsarMessage | int = EARLIEST if target == "earliest" else LATEST
        if target == "message" and message is not None:
            where = message
        elif target == "time":
            where = max(0, self.world.now_ms() - self.rng.choice([0, 2_000, 10_000]))
        self.write(f"seeks to {target} {where!r:.60}")
        of = self.oracle.of(message) if target == "message" and message is not None else None
        self._floors.clear()
        try:
            await consumer.seek(where, inclusive=inclusive)
        except AsyncGroupError as error:
            self.write(f"seek failed: {error!r}")
            if target == "message" and message is not None:
                self._may_have_moved_to(message, inclusive=inclusive)
        else:
            self.world.story.count("seeks")
            if target == "message" and message is not None:
                self._moved_to(message, inclusive=inclusive)
            elif target == "earliest":
                for oracle in self.oracle.partitions.values():
                    oracle.restart(None)
        self._forget_acks(of)

    def _moved_to(self, message: PulsarMessage, *, inclusive: bool) -> None:
        """The subscription was moved to a message."""
        oracle, first = self.oracle.of(message), _first_after_seek(message, inclusive=inclusive)
        oracle.restart(first)
        if message.first_chunk_id is None:
            self._floors[oracle] = first
            if message.message_id.batch_index >= 0:
                oracle.leave_out(first)

    def _may_have_moved_to(self, message: PulsarMessage, *, inclusive: bool) -> None:
        """A seek has failed, perhaps after the broker has moved the subscription: it waits then for the broker to accept the consumer."""
        oracle, first = self.oracle.of(message), _first_after_seek(message, inclusive=inclusive)
        entry = message.first_chunk_id or message.message_id
        oracle.may_begin_at(first, (entry.ledger_id, entry.entry_id))
        if message.message_id.batch_index >= 0:
            oracle.leave_out(first)


def _first_after_seek(message: PulsarMessage, *, inclusive: bool) -> MessagePlace:
    """Return the first place that must be received after a seek to a message."""
    place = place_of(message)
    if inclusive and message.first_chunk_id is None:
        return place
    return place._replace(index=place.index + 1)  # chunks of other values may be between its own
