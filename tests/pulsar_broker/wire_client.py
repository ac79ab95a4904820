"""A client without rules: it sends commands, and keeps what comes, to compare what brokers do with them.

async with WireClient.of(service_url) as client:
    producer = await client.produce_to("t")
    await producer.send(b"x", transaction=(0, 1))
    consumer = await client.subscribe("t", "s", SubType.SHARED)
    assert await consumer.received(1) == ["0:x"]
"""

from __future__ import annotations

import asyncio
import struct
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from asyncgroup.pulsar.wire import commands as c
from asyncgroup.pulsar.wire.ack_set import bits_of, set_of, words_of
from asyncgroup.pulsar.wire.batch import append_message
from asyncgroup.pulsar.wire.enums import AckType, SubType, TxnAction
from asyncgroup.pulsar.wire.frames import decode_frame, encode_frame, encode_send, payload_bounds
from asyncgroup.pulsar.wire.metadata import MessageMetadata, SingleMessageMetadata
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar.wire.topic_name import TopicName

__all__ = ["COORDINATORS", "WireClient", "WireConsumer", "WireProducer", "outcome"]

COORDINATORS = TopicName.parse("persistent://pulsar/system/transaction_coordinator_assign")
TransactionId = tuple[int, int]

LIMIT = 60.0
QUIET = 0.5
"""Seconds without a message after which none is expected any more."""


def outcome(answer: Any) -> str:
    """Return the name of an answer's error, or `ok`."""
    error = getattr(answer, "error", None)
    return "ok" if error is None else ServerError(error).published_name


class WireClient:
    """A connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._ids = count(1)
        self._waiting: dict[Any, asyncio.Future[Any]] = {}
        self.arrived: defaultdict[int, list[tuple[c.CommandMessage, MessageMetadata, bytes]]] = defaultdict(
            list
        )
        """Messages by consumer."""
        self._task = asyncio.get_running_loop().create_task(self._read())

    @staticmethod
    @asynccontextmanager
    async def of(url: str, **connect: Any) -> AsyncIterator[WireClient]:
        """Connect to the first broker of a service URL; `connect` has further fields of CONNECT."""
        host, _, port = url.removeprefix("pulsar://").partition(",")[0].rpartition(":")
        client = WireClient(*await asyncio.open_connection(host, int(port)))
        try:
            client.write(c.CommandConnect(client_version="wire", protocol_version=21, **connect))
            await client.wait("connected")
            yield client
        finally:
            client._task.cancel()
            client._writer.close()

    def write(self, command: c.Command) -> None:
        self._writer.write(encode_frame(command))

    async def wait(self, key: Any) -> Any:
        future = self._waiting.setdefault(key, asyncio.get_running_loop().create_future())
        async with asyncio.timeout(LIMIT):
            return await future

    async def request(self, cls: Any, **fields: Any) -> Any:
        """Send a command with a request id, and return its answer, also an error."""
        number = next(self._ids)
        self.write(cls(request_id=number, **fields))
        return await self.wait(number)

    async def _read(self) -> None:
        try:
            while True:
                (size,) = struct.unpack(">I", await self._reader.readexactly(4))
                self._handle(await self._reader.readexactly(size))
        except Exception as error:
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(error)
            raise

    def _handle(self, frame: bytes) -> None:
        command, at = decode_frame(frame)
        if isinstance(command, c.CommandPing):
            self.write(c.CommandPong())
        elif isinstance(command, c.CommandMessage):
            bounds = payload_bounds(frame, at)
            metadata = MessageMetadata.decode(frame, *bounds.metadata)
            self.arrived[command.consumer_id].append((command, metadata, frame[bounds.payload :]))
        elif isinstance(command, c.CommandConnected):
            self._answer("connected", command)
        elif isinstance(command, (c.CommandSendReceipt, c.CommandSendError)):
            self._answer(("send", command.producer_id, command.sequence_id), command)
        elif isinstance(getattr(command, "request_id", None), int):
            self._answer(command.request_id, command)  # type: ignore[union-attr]

    def _answer(self, key: Any, command: Any) -> None:
        future = self._waiting.pop(key, None)
        if future is None:  # it is waited for later
            self._waiting[key] = future = asyncio.get_running_loop().create_future()
        if not future.done():
            future.set_result(command)

    # --- what it opens ----------------------------------------------------------------------------------------------------

    async def lookup(self, topic: TopicName) -> Any:
        return await self.request(c.CommandLookupTopic, topic=str(topic))

    async def produce_to(self, topic: str, name: str | None = None) -> WireProducer:
        full = TopicName.parse(topic)
        await self.lookup(full)
        number = next(self._ids)
        answer = await self.request(
            c.CommandProducer, topic=str(full), producer_id=number, txn_enabled=True, producer_name=name
        )
        assert isinstance(answer, c.CommandProducerSuccess), answer
        return WireProducer(self, number, answer.producer_name)

    async def subscribe(
        self, topic: str, name: str, kind: SubType, permits: int = 1000, *, is_early: bool = True
    ) -> WireConsumer:
        """Subscribe from the beginning of the topic, or from its end."""
        full = TopicName.parse(topic)
        await self.lookup(full)
        number = next(self._ids)
        answer = await self.request(
            c.CommandSubscribe,
            topic=str(full),
            subscription=name,
            sub_type=kind,
            consumer_id=number,
            initial_position=int(is_early),
        )
        assert isinstance(answer, c.CommandSuccess), answer
        consumer = WireConsumer(self, number)
        consumer.flow(permits)
        return consumer

    # --- transactions -----------------------------------------------------------------------------------------------------

    async def connect_coordinator(self, number: int = 0) -> str:
        """Connect to a coordinator that may be loading."""
        async with asyncio.timeout(LIMIT):
            while True:
                await self.lookup(COORDINATORS.of_partition(number))
                answer = await self.request(c.CommandTcClientConnectRequest, tc_id=number)
                if outcome(answer) == "ok":
                    return "ok"
                await asyncio.sleep(0.2)

    async def begin(self, *topics: str, ttl: int = 60_000) -> TransactionId:
        """Open a transaction that writes to topics."""
        answer = await self.request(c.CommandNewTxn, txn_ttl_seconds=ttl, tc_id=0)
        assert outcome(answer) == "ok", answer
        transaction = answer.txnid_most_bits, answer.txnid_least_bits
        for topic in topics:
            assert await self.add_partition(transaction, topic) == "ok"
        return transaction

    async def add_partition(self, transaction: TransactionId, topic: str) -> str:
        most, least = transaction
        answer = await self.request(
            c.CommandAddPartitionToTxn,
            txnid_most_bits=most,
            txnid_least_bits=least,
            partitions=[str(TopicName.parse(topic))],
        )
        return outcome(answer)

    async def add_subscription(self, transaction: TransactionId, topic: str, name: str) -> str:
        most, least = transaction
        subscription = c.SubscriptionOfTxn(topic=str(TopicName.parse(topic)), subscription=name)
        answer = await self.request(
            c.CommandAddSubscriptionToTxn,
            txnid_most_bits=most,
            txnid_least_bits=least,
            subscription=[subscription],
        )
        return outcome(answer)

    async def end(self, transaction: TransactionId, action: TxnAction) -> str:
        most, least = transaction
        answer = await self.request(
            c.CommandEndTxn, txnid_most_bits=most, txnid_least_bits=least, txn_action=action
        )
        return outcome(answer)

    async def abort_on_partition(self, transaction: TransactionId, topic: str) -> str:
        most, least = transaction
        answer = await self.request(
            c.CommandEndTxnOnPartition,
            txnid_most_bits=most,
            txnid_least_bits=least,
            topic=str(TopicName.parse(topic)),
            txn_action=TxnAction.ABORT,
            txnid_least_bits_of_low_watermark=(1 << 64) - 1,
        )
        return outcome(answer)

    async def abort_on_subscription(self, transaction: TransactionId, topic: str, name: str) -> str:
        most, least = transaction
        answer = await self.request(
            c.CommandEndTxnOnSubscription,
            txnid_most_bits=most,
            txnid_least_bits=least,
            subscription=c.SubscriptionOfTxn(topic=str(TopicName.parse(topic)), subscription=name),
            txn_action=TxnAction.ABORT,
            txnid_least_bits_of_low_watermark=(1 << 64) - 1,
        )
        return outcome(answer)

    async def commit(self, transaction: TransactionId) -> str:
        return await self.end(transaction, TxnAction.COMMIT)

    async def abort(self, transaction: TransactionId) -> str:
        return await self.end(transaction, TxnAction.ABORT)


class WireProducer:
    """A producer of a WireClient."""

    def __init__(self, client: WireClient, number: int, name: str) -> None:
        self.client = client
        self.id = number
        self.name = name
        self._sequence_ids = count()

    async def send(
        self, *values: bytes, transaction: TransactionId | None = None, chunk: tuple[int, int] | None = None
    ) -> str | int:
        """Send a message, or a batch of several; return the id of the entry, or the error.

        With `chunk` it is one of so many of a value, counted from 0; all of a producer are of the same value.
        """
        sequence_id = next(self._sequence_ids)
        most, least = (None, None) if transaction is None else transaction
        metadata = MessageMetadata(
            producer_name=self.name,
            sequence_id=sequence_id,
            publish_time=1,
            txnid_most_bits=most,
            txnid_least_bits=least,
        )
        body = bytearray()
        if chunk is not None:
            metadata.uuid, metadata.total_chunk_msg_size = f"{self.name}-value", 10
            metadata.chunk_id, metadata.num_chunks_from_msg = chunk
        if len(values) > 1:
            metadata.num_messages_in_batch = len(values)
            for value in values:
                append_message(body, value)
        else:
            body += values[0]
        command = c.CommandSend(
            producer_id=self.id,
            sequence_id=sequence_id,
            num_messages=len(values),
            txnid_most_bits=most,
            txnid_least_bits=least,
        )
        self.client._writer.write(b"".join(encode_send(command, metadata.encode(), body)))
        answer = await self.client.wait(("send", self.id, sequence_id))
        if isinstance(answer, c.CommandSendError):
            return ServerError(answer.error).published_name
        entry: int = answer.message_id.entry_id
        return entry


class WireConsumer:
    """A consumer of a WireClient."""

    def __init__(self, client: WireClient, number: int) -> None:
        self.client = client
        self.id = number
        self._ledger = -1

    def flow(self, permits: int) -> None:
        self.client.write(c.CommandFlow(consumer_id=self.id, message_permits=permits))

    async def received(self, count: int = 0) -> list[str]:
        """Return what has come since the last call, after at least `count` messages and then none for a while.

        `entry:value`, of batches the values that are not acknowledged, with `+n` after n redeliveries.
        """
        arrived = self.client.arrived[self.id]
        async with asyncio.timeout(LIMIT):
            while len(arrived) < count:
                await asyncio.sleep(0.02)
        before = -1
        while before != len(arrived):
            before = len(arrived)
            await asyncio.sleep(QUIET)
        found = [self._shown(*each) for each in arrived]
        arrived.clear()
        return found

    def _shown(self, command: c.CommandMessage, metadata: MessageMetadata, body: bytes) -> str:
        self._ledger = command.message_id.ledger_id
        values = [body.decode()] if metadata.num_messages_in_batch is None else _batch_values(body)
        if command.ack_set:
            left = bits_of(command.ack_set)
            values = [value for index, value in enumerate(values) if left >> index & 1]
        times = f"+{command.redelivery_count}" if command.redelivery_count else ""
        return f"{command.message_id.entry_id}:{','.join(values)}{times}"

    async def ack(
        self,
        *entries: int,
        transaction: TransactionId | None = None,
        index: int | None = None,
        size: int | None = None,
        cumulative: bool = False,
    ) -> str:
        """Acknowledge entries of the ledger of the last message, with `index` one message of a batch, or up to it."""
        ack_set: Sequence[int] = ()
        if index is not None and size is not None:
            acked = range(index + 1) if cumulative else (index,)
            ack_set = words_of(set_of(set(range(size)).difference(acked), size))
        most, least = (None, None) if transaction is None else transaction
        answer = await self.client.request(
            c.CommandAck,
            consumer_id=self.id,
            ack_type=AckType.CUMULATIVE if cumulative else AckType.INDIVIDUAL,
            message_id=[
                c.MessageIdData(ledger_id=self._ledger, entry_id=entry, ack_set=ack_set, batch_size=size)
                for entry in entries
            ],
            txnid_most_bits=most,
            txnid_least_bits=least,
        )
        return outcome(answer)

    def redeliver(self, *entries: int) -> None:
        ids = [c.MessageIdData(ledger_id=self._ledger, entry_id=entry) for entry in entries]
        self.client.write(c.CommandRedeliverUnacknowledgedMessages(consumer_id=self.id, message_ids=ids))

    async def last_id(self) -> str:
        """Return the entry, and of a batch the index, of the topic's last message."""
        answer = await self.client.request(c.CommandGetLastMessageId, consumer_id=self.id)
        found = answer.last_message_id
        if found.entry_id >= 1 << 63:
            return "none"
        return f"{found.entry_id}" if found.batch_index < 0 else f"{found.entry_id}/{found.batch_index}"

    async def seek_to_earliest(self) -> None:
        """Move the subscription; its consumers are closed."""
        earliest = c.MessageIdData(ledger_id=(1 << 64) - 1, entry_id=(1 << 64) - 1)
        await self.client.request(c.CommandSeek, consumer_id=self.id, message_id=earliest)

    async def seek(self, entry: int, left: Sequence[int] | None, size: int) -> None:
        """Move the subscription to an entry, of whose batch these messages are left."""
        await self.seek_to(entry, () if left is None else words_of(set_of(left, size)))

    async def seek_to(self, entry: int, ack_set: Sequence[int]) -> None:
        """As `seek`, with the words of an ack set."""
        position = c.MessageIdData(ledger_id=self._ledger, entry_id=entry, ack_set=ack_set)
        answer = await self.client.request(c.CommandSeek, consumer_id=self.id, message_id=position)
        assert outcome(answer) == "ok", answer

    async def unsubscribe(self) -> None:
        await self.client.request(c.CommandUnsubscribe, consumer_id=self.id)

    async def close(self) -> None:
        await self.client.request(c.CommandCloseConsumer, consumer_id=self.id)


def _batch_values(body: bytes) -> list[str]:
    values, at = [], 0
    while at < len(body):
        (size,) = struct.unpack_from(">I", body, at)
        single = SingleMessageMetadata.decode(body, at + 4, at + 4 + size)
        at += 4 + size
        values.append(body[at : at + single.payload_size].decode())
        at += single.payload_size
    return values
