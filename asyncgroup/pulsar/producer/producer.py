"""PulsarProducer: send messages to a topic."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Protocol, Self

from asyncgroup.errors import ConfigError, DeliveryFailedError, UsageError
from asyncgroup.escaping import escaping_logger, printable
from asyncgroup.foreign_names import add_foreign_names
from asyncgroup.hooks import Hooks
from asyncgroup.lifecycle import BackgroundTasks, add_note, start_task, wait_shielded
from asyncgroup.model import MillisClock, wall_clock
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.core import ClientCore
from asyncgroup.pulsar.producer.config import PulsarProducerConfig
from asyncgroup.pulsar.producer.foreign_names import PULSAR_PRODUCER
from asyncgroup.pulsar.producer.interceptors import PulsarInterceptor, PulsarInterceptors
from asyncgroup.pulsar.producer.lost_messages import LostMessages
from asyncgroup.pulsar.producer.message_sends import MessageSends, refuse_message
from asyncgroup.pulsar.producer.partition_producer import PartitionProducer
from asyncgroup.pulsar.producer.topic_partitions import TopicPartitions
from asyncgroup.pulsar.producer.transaction_sends import TransactionSends
from asyncgroup.pulsar.service_url import ServiceUrl
from asyncgroup.pulsar.transactions.transaction import PulsarTransaction
from asyncgroup.pulsar.wire.message_id import MessageId
from asyncgroup.pulsar.wire.topic_name import TopicName

__all__ = ["PulsarProducer"]

_log = escaping_logger("asyncgroup.pulsar")


class OpenClient(Protocol):
    """A PulsarClient."""

    @property
    def _inner(self) -> ClientCore: ...


class PulsarProducer:
    """Sends messages to a topic, in batches; an async context manager.

        async with PulsarProducer("pulsar://localhost:6650", "orders") as producer:
            message_id = await producer.send(b"one dozen", key="eggs")

    - `send` waits until the message is stored and returns its id.
    - `send_nowait` never waits: it returns a future, or raises QueueFull when a limit is reached.
    - `enqueue` waits only for room; `flush` or `aclose` raises what fails later.

    `client` is a service URL, or a PulsarClient that is open and stays so; its `memory_limit` is for all its producers.
    Messages of one partition keep their order through reconnects. With deduplication on the broker, a `producer_name` and
    `send_timeout=0` each is stored exactly once. Entering creates the topic if the broker is configured for that, and waits
    until it has registered the producer, with `wait_for_exclusive` until the producer is the only one.

    `interceptors` see each message when it is sent, and when it is stored or has failed. `hooks` (see Hook) are given with a
    service URL only: those of a PulsarClient are for all of its producers. `clock` returns the publish time in
    ms since 1970. `rng` is the source of random choices. Not thread-safe: use it in one event loop only.
    """

    def __init__(
        self,
        client: OpenClient | str,
        topic: str,
        config: PulsarProducerConfig | None = None,
        *,
        interceptors: Iterable[PulsarInterceptor] = (),
        hooks: Iterable[object] = (),
        clock: MillisClock = wall_clock,
        rng: random.Random | None = None,
    ) -> None:
        self.config = PulsarProducerConfig.of(config)
        self.topic = TopicName.parse(topic)
        if self.config.chunking and self.topic.domain != "persistent":
            raise ConfigError("chunking", True, f"False for {self.topic}, which is not persistent")
        if not isinstance(client, str) and (
            isinstance(client, PulsarProducer) or not hasattr(type(client), "_inner")
        ):
            raise ConfigError("client", client, "a PulsarClient, or a service URL as pulsar://localhost:6650")
        self._service = ServiceUrl.parse(client) if isinstance(client, str) else None
        self._client = None if isinstance(client, str) else client
        self._own: ClientCore | None = None  # without a client
        self._own_hooks = self._check_hooks(hooks)
        self._lost = LostMessages()
        self._partitions = TopicPartitions(
            self.topic, self.config, clock, rng or random.Random(), self._lost.add
        )
        base64_keys = self.config.base64_keys
        self._sends = sends = MessageSends(
            self.topic,
            PulsarInterceptors(interceptors),
            clock,
            self._partitions,
            self._lost.add,
            base64_keys=base64_keys,
        )
        self._in_transactions = TransactionSends(
            self.topic, clock, sends.promise, sends.partition_of, base64_keys=base64_keys
        )
        self._tasks = BackgroundTasks(f"producer of {self.topic}")
        self._loop: Any = None
        self._closing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "closed" if self._sends.is_closed else "open" if self._producers else "not open"
        of = printable(str(self.topic))
        return f"<PulsarProducer of {of} {self.name!r}: {state}, {self.pending_messages} messages pending>"

    # --- what it is ---------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str | None:
        """The configured name or, once it is open, the one that the broker has chosen."""
        return self._partitions.name

    @property
    def partitions(self) -> int:
        """The number of partitions that it sends to; 0 for a topic without."""
        return self._partitions.count

    @property
    def is_connected(self) -> bool:
        """Whether messages to all partitions are written at once."""
        return bool(self._producers) and all(each.is_connected for each in self._producers)

    @property
    def last_sequence_id(self) -> int:
        """The largest number of a message that is stored, -1 without any; also from before, if the broker deduplicates."""
        return max((each.queue.ids.last_stored for each in self._producers), default=-1)

    @property
    def pending_messages(self) -> int:
        """Number of messages without receipt."""
        return sum(each.queue.messages for each in self._producers) + self._in_transactions.reserved

    def errors(self) -> dict[str, Exception]:
        """Return for each topic or partition that is not connected the last error."""
        return {str(each.topic): each.last_error for each in self._producers if each.last_error is not None}

    # --- its life -----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Look the topic up, and register at the brokers of all partitions.

        Raises PulsarServerError, TransportError, AuthenticationError; nothing is left open then.
        """
        if self._producers or self._sends.is_closed:
            raise UsageError(f"producer of {self.topic} was entered before: create a new one")
        self._loop = asyncio.get_running_loop()
        if self._service is not None:
            self._own = await ClientCore.open(self._service, PulsarConfig(), self._own_hooks)
        try:
            await self._tasks.start()
            core = self._inner
            self._sends.hooks = core.hooks.with_listener("on_send_start", "on_send_end")
            await self._partitions.open(core)
            if self.partitions and core.config.partitions_update_interval:
                self._tasks.spawn(self._partitions.watch, core)
        except BaseException:
            self._sends.is_closed = True
            await wait_shielded(start_task(self._close_all("it could not be opened")))
            raise
        core.hooks.emit("on_open", self)
        return self

    def _check_hooks(self, hooks: Iterable[object]) -> Hooks:
        if self._client is not None and hooks:
            raise ConfigError("hooks", hooks, "no hooks with a PulsarClient: pass them to the client")
        return Hooks(hooks)

    @property
    def _inner(self) -> ClientCore:
        """What it shares with others of its client."""
        if self._own is not None:
            return self._own
        assert self._client is not None
        return self._client._inner

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        try:
            await self.aclose()
        except DeliveryFailedError as lost:
            if error is None:
                raise
            _log.error("%s", lost)  # raised, it would hide the error of the block
            add_note(error, str(lost))

    async def aclose(self, *, drain: bool = True) -> None:
        """Wait for the receipts of all messages for at most `close_timeout` seconds, then close. Safe to call twice.

        Messages without receipt by then fail with ClosedError, with `drain=False` at once. Raises DeliveryFailedError for
        messages of `enqueue` that were lost since the last `flush`. Runs to its end even if the caller is cancelled.
        """
        if self._closing is None:
            self._closing = start_task(self._close(drain=drain), name=f"producer of {self.topic}: close")
            await wait_shielded(self._closing)
        else:
            await asyncio.wait([self._closing])

    async def _close(self, *, drain: bool) -> None:
        self._sends.is_closed = True
        if drain:
            await self._in_transactions.wait_enlisted(self.config.close_timeout)
        for each in self._producers:
            each.refuse(self._sends.closed_error())
        why = f"close_timeout={self.config.close_timeout:g} s" if drain else "drain=False"
        try:
            if drain:
                await self._drain()
        finally:
            await self._close_all(why)
        if (lost := self._lost.take()) is not None:
            raise lost

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(self.config.close_timeout):
                await self._wait_flushed()
        except TimeoutError:
            _log.warning("%r was closed before all its messages were stored", self)

    async def _close_all(self, why: str) -> None:
        try:
            await self._tasks.stop()
        finally:
            await self._partitions.aclose(why)
            if self._own is not None:
                await self._own.aclose()

    # --- send ---------------------------------------------------------------------------------------------------------

    async def send(
        self,
        value: bytes | None,
        *,
        key: bytes | str | None = None,
        properties: Mapping[str, str] | None = None,
        ordering_key: bytes | str | None = None,
        event_time: datetime | int | None = None,
        deliver_at: datetime | int | None = None,
        deliver_after: float | None = None,
        sequence_id: int | None = None,
        transaction: PulsarTransaction | None = None,
    ) -> MessageId:
        """Send a message and wait until it is stored; return its id.

        A value of None is a null value, which deletes the key in compacted topics. The key decides the partition; a key of
        `bytes` that are valid UTF-8 is the same as the text. Key_Shared subscriptions dispatch by `ordering_key`, or by the
        key without. Times are datetimes or ms since 1970; subscriptions of the types Shared and Key_Shared deliver at
        `deliver_at`, or `deliver_after` seconds from now. `sequence_id` numbers the message for deduplication; without it
        the producer counts. A duplicate that the broker drops has the id (-1, -1).

        A message of a `transaction` is visible when that is committed, see PulsarTransaction. A failure of it makes the
        transaction abort.

        A cancellation while it waits for room withdraws the message; later the message is sent nevertheless.

        Raises InvalidRecordError for a message that cannot be sent, RequestTimedOut after `send_timeout`, PulsarServerError
        if the broker refuses the message or ends the producer (TopicTerminatedError, ProducerFenced), ClosedError. In a transaction
        also NoTransactionError after its end, and PulsarTransactionAborted if it can only be aborted.
        """
        given = (value, key, properties, ordering_key, event_time, deliver_at, deliver_after, sequence_id)
        future: asyncio.Future[MessageId] = self._running_loop().create_future()
        if transaction is not None:
            await self._in_transactions.offer(self._inner, transaction, given, future)
            return await future
        message, partition, is_written = self._sends.offer(given, future, is_awaited=True)
        if is_written is None:
            try:
                await partition.send_waiting(message, is_awaited=True)
            except BaseException as error:
                refuse_message(message, error)
                raise
        return await future

    def send_nowait(
        self,
        value: bytes | None,
        *,
        key: bytes | str | None = None,
        properties: Mapping[str, str] | None = None,
        ordering_key: bytes | str | None = None,
        event_time: datetime | int | None = None,
        deliver_at: datetime | int | None = None,
        deliver_after: float | None = None,
        sequence_id: int | None = None,
        transaction: PulsarTransaction | None = None,
    ) -> asyncio.Future[MessageId]:
        """Send a message as `send` does, but return a future of its id without waiting.

        Raises QueueFull when a limit is reached, InvalidRecordError, ClosedError; in a transaction as `send`. Cancelling the future
        does not withdraw the message.
        """
        given = (value, key, properties, ordering_key, event_time, deliver_at, deliver_after, sequence_id)
        future: asyncio.Future[MessageId] = self._running_loop().create_future()
        if transaction is not None:
            self._in_transactions.offer_nowait(self._inner, transaction, given, future)
            return future
        message, partition, is_written = self._sends.offer(given, future)
        if is_written is None:
            full = partition.no_room(message)
            refuse_message(message, full)
            raise full
        return future

    async def enqueue(
        self,
        value: bytes | None,
        *,
        key: bytes | str | None = None,
        properties: Mapping[str, str] | None = None,
        ordering_key: bytes | str | None = None,
        event_time: datetime | int | None = None,
        deliver_at: datetime | int | None = None,
        deliver_after: float | None = None,
        sequence_id: int | None = None,
        transaction: PulsarTransaction | None = None,
    ) -> None:
        """Send a message, waiting only for room; the fastest way to send many.

        A later failure is raised by `flush`, or by the end of its `transaction`. A cancellation while it waits for room withdraws the message. Raises
        InvalidRecordError, ClosedError.
        """
        given = (value, key, properties, ordering_key, event_time, deliver_at, deliver_after, sequence_id)
        if transaction is not None:
            self._sends.check_open()
            await self._in_transactions.offer(self._inner, transaction, given, None)
            return
        message, partition, is_written = self._sends.offer(given, None)
        if is_written is None:
            try:
                await partition.send_waiting(message)
            except BaseException as error:
                refuse_message(message, error)
                raise
        elif is_written:
            # a batch was written: receipts are read, and a full write buffer delays the caller
            await asyncio.sleep(0)
            await partition.drain()

    async def flush(self) -> None:
        """Send the open batches, and wait until every message before this call is stored or has failed.

        Raises DeliveryFailedError if messages of `enqueue` have failed since the last call, ClosedError.
        """
        self._sends.check_open()
        await self._wait_flushed()
        if (lost := self._lost.take()) is not None:
            raise lost

    async def _wait_flushed(self) -> None:
        await self._in_transactions.wait_enlisted()
        waiting = [done for each in self._producers if (done := each.timers.flushed()) is not None]
        if waiting:
            await asyncio.wait(waiting)

    @property
    def _producers(self) -> list[PartitionProducer]:
        return self._partitions.producers

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        self._sends.check_open()
        loop: asyncio.AbstractEventLoop = self._loop
        return loop


add_foreign_names(PulsarProducer, PULSAR_PRODUCER)
