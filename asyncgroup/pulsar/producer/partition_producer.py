"""PartitionProducer: the producer of one topic without partitions, or of one partition, at its broker (Java's `ProducerImpl`).

Its registration keeps it at the broker, and it lets its queue write there. The queue has the messages; this class has the room
that is reserved for messages, and the answers of the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from asyncgroup.errors import ClosedError, ConnectionLost, InvalidRecordError, QueueFull, RequestTimedOut
from asyncgroup.lifecycle import copy_error
from asyncgroup.memory.buffer_memory import BufferMemory
from asyncgroup.memory.memory_budget import MemoryBudget
from asyncgroup.memory.pending_limits import PendingLimit, PendingLimits
from asyncgroup.model import MillisClock
from asyncgroup.pulsar.connection.connection import PulsarConnection
from asyncgroup.pulsar.connection.listeners import SendsCommands
from asyncgroup.pulsar.core import ClientCore
from asyncgroup.pulsar.errors import PulsarServerError
from asyncgroup.pulsar.producer.batch_container import KeyBasedContainer, OneBatchContainer
from asyncgroup.pulsar.producer.batch_reports import batch_reports
from asyncgroup.pulsar.producer.config import PulsarProducerConfig
from asyncgroup.pulsar.producer.encoding import ChunkedValue, MessageEncoder
from asyncgroup.pulsar.producer.interceptors import SendPromise
from asyncgroup.pulsar.producer.outgoing import OutgoingMessage
from asyncgroup.pulsar.producer.producer_registration import ProducerRegistration
from asyncgroup.pulsar.producer.send_queue import SendQueue
from asyncgroup.pulsar.producer.send_timers import SendTimers
from asyncgroup.pulsar.producer.sequence_ids import SequenceIds
from asyncgroup.pulsar.wire.commands import CommandProducerSuccess, CommandSendError, CommandSendReceipt
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar.wire.topic_name import TopicName

__all__ = ["OnLost", "PartitionProducer"]


OnLost = Callable[[TopicName, int, Exception], None]
"""Is called with the number of messages that have failed without a caller that waits for them."""


class PartitionProducer:
    """Create it in a running event loop, then `start`; after `on_refused` and `aclose` it accepts nothing.

    `name` is that of the partitions before it, None if the broker is to choose one. `limit` is of its pending messages.
    """

    def __init__(
        self,
        core: ClientCore,
        topic: TopicName,
        config: PulsarProducerConfig,
        clock: MillisClock,
        on_lost: OnLost,
        *,
        name: str | None,
        limit: int | None,
    ) -> None:
        self.topic = topic
        self._config = config
        self._on_lost = on_lost
        self._core = core
        producer_id = core.new_id()
        self._loop = asyncio.get_running_loop()
        self._connection: PulsarConnection | None = None
        self._encoder = MessageEncoder(producer_id, config.compression, config.compression_min_size, clock)
        self._limits = _limits(core.memory, topic, limit)
        self._limit = limit
        self.queue = self._new_queue()
        self.timers = SendTimers(
            self.queue, config.batching_max_delay, config.send_timeout, self._timeout_error
        )
        self._registration = ProducerRegistration(
            core, topic, producer_id, config, self, name=name, attempt_at=lambda: self.timers.last_attempt_at
        )
        self._reports_starts = core.hooks.with_listener("on_send_start", "on_send_end") is not None
        self._end: Exception | None = None  # why nothing is accepted any more
        self.last_error: Exception | None = None
        """The last failure of a connection or registration, None while it is registered."""

    def __repr__(self) -> str:
        return f"<PartitionProducer {self.topic} {self.name!r}: {self._registration.state}, {self.queue!r}>"

    @property
    def name(self) -> str | None:
        """Unique among the producers of the topic; None until the broker has chosen it."""
        return self._registration.name

    def _new_queue(self) -> SendQueue:
        config = self._config
        container = KeyBasedContainer if config.key_based_batching else OneBatchContainer
        return SendQueue(
            self._encoder,
            SequenceIds(config.initial_sequence_id),
            container(config.batching_max_messages, config.batching_max_bytes) if config.batching else None,
            self._on_done,
            partition=self.topic.partition,
            max_batch_size=config.batching_max_bytes,
            by_key=config.key_based_batching,
            reports=batch_reports(self._core.hooks, self.topic, self._loop.time),
        )

    # --- its life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to connect."""
        # a caller of any producer of the client that waits for memory needs what is in the open batches
        self._core.memory._inner.add_listener(self.timers.close_batch)
        self._registration.start()

    async def wait_ready(self) -> None:
        """Wait until the broker has registered it. Raises PulsarServerError, TransportError, ClosedError."""
        await self._registration.wait_ready()

    @property
    def is_connected(self) -> bool:
        """Whether messages are written at once."""
        return self.queue.writer is not None

    def check_open(self) -> None:
        """Raise why nothing is accepted, if so."""
        if self._end is not None:
            raise copy_error(self._end)

    def refuse(self, error: Exception) -> None:
        """Accept nothing more, and fail the callers that wait for room; what was accepted goes on."""
        if self._end is None:
            self._end = error
            self._limits.fail(lambda: copy_error(error))

    async def aclose(self, why: str) -> None:
        """Fail what is not acknowledged, leave the broker, and make no more connections. Safe to call twice."""
        self.refuse(ClosedError(f"producer of {self.topic}: it is closed"))
        self._stop_timers()
        self.queue.fail_all(
            lambda: ClosedError(f"producer of {self.topic}: closed before the receipt: {why}")
        )
        self.timers.after_receipt()
        try:
            await self._registration.leave()
        finally:
            self.queue.detach()
            await self._registration.aclose()

    # --- messages -----------------------------------------------------------------------------------------------------

    def try_send(self, message: OutgoingMessage, *, is_awaited: bool = False) -> bool | None:
        """Accept a message; None if there is no room for it, else whether sends were written because of it.

        Raises InvalidRecordError, and why nothing is accepted.
        """
        if self._end is not None:
            raise copy_error(self._end)
        if self._takes_chunks(message) and (value := self._cut(message)).chunks > 1:
            if not self._limits.try_reserve(message.size, value.chunks):
                return None
            self._add_chunks(message, value)
            return True
        if not self._limits.try_reserve(message.size):
            return None
        return self._add(message, is_awaited=is_awaited)

    async def send_waiting(self, message: OutgoingMessage, *, is_awaited: bool = False) -> None:
        """Accept a message as soon as there is room for it. A caller that is cancelled while it waits has sent nothing."""
        chunks = self._chunks_of(message)
        self.queue.close_batch()  # its room comes back the sooner
        await self._limits.reserve(message.size, chunks)
        self.send_reserved(message, chunks, is_awaited=is_awaited)

    def try_reserve(self, message: OutgoingMessage) -> int | None:
        """Reserve room for a message that `send_reserved` sends later; return its number of chunks, None if there is no room.

        Raises InvalidRecordError, and why nothing is accepted.
        """
        self.check_open()
        chunks = self._chunks_of(message)
        return chunks if self._limits.try_reserve(message.size, chunks) else None

    def release(self, message: OutgoingMessage, chunks: int) -> None:
        """Free the room of a message that is not sent."""
        self._limits.release(message.size, chunks)

    def send_reserved(self, message: OutgoingMessage, chunks: int, *, is_awaited: bool = False) -> None:
        """Accept a message that has room for this number of chunks. Raises as `try_send`; its room is free then."""
        try:
            self.check_open()
            value = self._cut(message) if chunks > 1 else None
            if (
                value is not None and value.chunks > chunks
            ):  # the broker's limit has become smaller during the wait
                raise InvalidRecordError(
                    "size", message.size, "a value of as many chunks as before the reconnect: send it again"
                )
        except BaseException:
            self._limits.release(message.size, chunks)
            raise
        if value is None:
            self._add(message, is_awaited=is_awaited)
            return
        self._limits.release(0, chunks - value.chunks)
        self._add_chunks(message, value)

    def no_room(self, message: OutgoingMessage) -> QueueFull:
        """Return the error for a message for which there is no room."""
        shortage = self._limits.shortage(message.size, self._chunks_of(message))
        return QueueFull(f"no room for {message.size} bytes: {shortage}")

    async def drain(self) -> None:
        """Wait while the connection's write buffer is full."""
        connection = self._connection
        if connection is not None:
            await connection.drain()

    def _chunks_of(self, message: OutgoingMessage) -> int:
        return self._cut(message).chunks if self._takes_chunks(message) else 1

    def _takes_chunks(self, message: OutgoingMessage) -> bool:
        return self._config.chunking and message.size > min(
            self._chunk_limit, self._config.batching_max_bytes
        )

    @property
    def _chunk_limit(self) -> int:
        limit = self.queue.max_message_size
        given = self._config.chunk_max_size
        return limit if given is None else min(limit, given)

    def _cut(self, message: OutgoingMessage) -> ChunkedValue:
        value = self._encoder.cut(message, self._chunk_limit)
        if self._limit is not None and value.chunks > self._limit:
            allowed = f"at most {self._limit} chunks (max_pending_messages), not {value.chunks}"
            raise InvalidRecordError("size", message.size, allowed)
        return value

    def _add(self, message: OutgoingMessage, *, is_awaited: bool) -> bool:
        if self._reports_starts:
            _report_start(message)
        try:
            is_written = self.queue.add(message, self._loop.time())
        except BaseException:
            self._limits.release(message.size)
            raise
        self.timers.after_message(is_awaited=is_awaited)
        return is_written

    def _add_chunks(self, message: OutgoingMessage, value: ChunkedValue) -> None:
        if self._reports_starts:
            _report_start(message)
        try:
            self.queue.add_chunks(message, value, self._loop.time())
        except BaseException:
            self._limits.release(message.size, value.chunks)
            raise
        self.timers.after_message(is_awaited=False)

    def _on_done(self, count: int, size: int, lost: int, error: Exception | None) -> None:
        self._limits.release(size, count)
        if lost and error is not None:
            self._on_lost(self.topic, lost, error)

    def _timeout_error(self) -> RequestTimedOut:
        why = f": {self.last_error}" if self.last_error is not None else ""
        timeout = self._config.send_timeout
        return RequestTimedOut(f"producer of {self.topic}: no receipt within send_timeout={timeout:g} s{why}")

    def _stop_timers(self) -> None:
        self._core.memory._inner.remove_listener(self.timers.close_batch)
        self.timers.cancel()

    # --- what the broker says: ProducerListener -----------------------------------------------------------------------

    def on_receipt(self, receipt: CommandSendReceipt) -> None:
        """What was sent is stored."""
        if not self.queue.receive(receipt):
            connection = self._connection
            if connection is not None:
                connection.close(
                    ConnectionLost(
                        f"producer of {self.topic}: a receipt before {receipt.sequence_id} was lost"
                    )
                )
            return
        self.timers.after_receipt()

    def on_send_error(self, error: CommandSendError) -> None:
        """What was sent is not stored."""
        failure = PulsarServerError(error.error, f"producer of {self.topic}", error.message)
        if error.error in (ServerError.TOPIC_TERMINATED_ERROR, ServerError.PRODUCER_FENCED):
            self._registration.fail(failure)
        elif error.error == ServerError.NOT_ALLOWED_ERROR or self._is_damaged_here(error):
            self.queue.refuse(error.sequence_id, lambda: copy_error(failure))
            self.timers.after_receipt()
        else:
            # the frame was damaged on its way, or the broker cannot write now: register again, and send all again
            if error.error == ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION:
                self.fail_pending(failure)
            self._registration.register_again(failure)

    def _is_damaged_here(self, error: CommandSendError) -> bool:
        """Whether a message was damaged before it was written: the others go on (Java's `ProducerImpl.recoverChecksumError`)."""
        return error.error == ServerError.CHECKSUM_ERROR and self.queue.is_damaged(error.sequence_id)

    def on_broker_close(self, connection: SendsCommands, assigned_url: str | None) -> None:
        """The broker has given the topic away."""
        error = ConnectionLost(f"producer of {self.topic}: the broker has closed it")
        self._registration.lost(connection, error, assigned_url)

    def on_migrated(self, url: str) -> None:
        """The topic is in the cluster of a service URL from now on: what has no receipt is sent there."""
        self._registration.migrate(url)

    def on_connection_lost(self, connection: SendsCommands, error: Exception) -> None:
        """The connection has ended."""
        self._registration.lost(connection, error)

    # --- what its registration calls: RegisteredProducer ---------------------------------------------------------------

    def on_registered(self, connection: PulsarConnection, answer: CommandProducerSuccess) -> None:
        """Send again what is pending."""
        self._connection = connection
        self._encoder.producer_name = self.name or answer.producer_name
        self.queue.ids.register(answer.last_sequence_id)
        if answer.last_sequence_id < 0:
            self.queue.fail_unanswered_in_transactions(self._lost_receipt_error)
        self.last_error = None
        self.queue.attach(connection)
        self.timers.after_receipt()

    def _lost_receipt_error(self) -> ConnectionLost:
        """Return why a message of a transaction fails: a broker that does not deduplicate might store it twice.

        One that does has a last number of this producer as soon as it has stored something (`MessageDeduplication`). Java's client sends
        again in both cases, and may commit a message twice.
        """
        return ConnectionLost(
            f"producer of {self.topic}: the receipt was lost with the connection. The broker does not deduplicate, "
            "so a message of a transaction is not sent again: it might be stored twice"
        )

    def on_unregistered(self, error: Exception) -> None:
        """Keep what is pending for the next connection."""
        self._connection = None
        self.last_error = error
        self.queue.detach()

    def on_refused(self, error: Exception) -> None:
        """No connection follows: fail everything."""
        self._connection = None
        self.last_error = error
        self.queue.detach()
        self.refuse(error)
        self._stop_timers()
        self.fail_pending(error)

    def fail_pending(self, error: Exception) -> None:
        """Fail what is not confirmed."""
        self.queue.fail_all(lambda: copy_error(error))
        self.timers.after_receipt()

    def on_error(self, error: Exception) -> None:
        """Another attempt to register follows."""
        self.last_error = error


def _report_start(message: OutgoingMessage) -> None:
    """There is room for a message: its hooks get it before a failure may follow."""
    if isinstance(message.receiver, SendPromise):
        message.receiver.report_start()


def _limits(budget: MemoryBudget, topic: TopicName, limit: int | None) -> PendingLimits:
    limits = [PendingLimit(budget._inner.memory, budget=budget)]
    if limit is not None:
        messages = BufferMemory(limit, f"{topic}: max_pending_messages", "messages")
        limits.insert(0, PendingLimit(messages, counts_records=True))
    return PendingLimits(limits)
