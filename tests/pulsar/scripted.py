"""Pulsar brokers whose answers are written by the test, for cases that a real broker does not produce on demand.

    async with ScriptedPulsar("10.0.0.1", "10.0.0.2") as pulsar:      # in virtual time; they listen on port 6650
        async with PulsarClient(pulsar.url) as client: ...

- Without a script they answer as Pulsar does: a lookup names the `owners` entry of the topic, else the first broker, and
  loads the topic there; PRODUCER and SUBSCRIBE of a topic that was not looked up before are refused. SEND is stored
  (`pulsar.stored[topic]`) and acknowledged with the entry's id. FLOW is counted (`connection.permits`). Messages are pushed
  only by the test: `connection.push_entry(consumer_id, b"value")`.
- `broker.script[CommandSend] = answerer` replaces the answer of a broker, `pulsar.script[...]` that of all; `answerer(call)`
  may use `call.answer(command)`, `call.succeed()`, `call.refuse(code, text)`, `call.default()`, `call.cut()`, `call.write(bytes)`,
  or nothing. Ready ones: `no_answer`, `refuse(code)`, `late(seconds)`, `in_turn(first, second, …)`: the last one stays.
- `pulsar.received` has each command with its time, broker and connection; `pulsar.commands(CommandSend)` filters them.
- `pulsar.move(topic, host)` makes another broker the owner, and closes what is attached to it; with `assigned=True` the client
  is sent there. `pulsar.unload(topic)` only closes. `broker.redirects[topic] = host` makes a lookup go on there.
- `broker.connections` are those that are open: `connection.push(command)`, `.push_entry(...)`, `.cut()`, and what is registered:
  `.producers`, `.consumers`. `broker.freeze()` keeps what arrives until `broker.thaw()`; `await broker.stop()`, `await broker.start()`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self, TypeVar

from asyncgroup.pulsar.connection.requests import ANSWERS
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.pulsar.wire.frames import decode_frame, encode_frame, encode_send, payload_bounds
from asyncgroup.pulsar.wire.metadata import MessageMetadata, SingleMessageMetadata
from asyncgroup.pulsar.wire.topic_name import TopicName

__all__ = [
    "PORT",
    "BrokerConnection",
    "Call",
    "ReceivedCommand",
    "ScriptedPulsar",
    "ScriptedPulsarBroker",
    "StoredEntry",
    "in_turn",
    "late",
    "no_answer",
    "refuse",
]

PORT = 6650
TLS_PORT = 6651
LEDGER = 7
SERVICE_NOT_READY = 6
TOPIC_NOT_FOUND = 11
FEATURES = c.FeatureFlags(
    supports_topic_watchers=True,
    supports_get_partitioned_metadata_without_auto_creation=True,
    supports_repl_dedup_by_lid_and_eid=True,
    supports_topic_watcher_reconcile=True,
)

C = TypeVar("C", bound=c.Command)


class ReceivedCommand(NamedTuple):
    """A command that a broker received; `time` is loop time."""

    time: float
    host: str
    connection: BrokerConnection
    command: Any
    payload: bytes
    """What follows the command in its frame: of SEND the checksum, metadata and payload."""


class StoredEntry(NamedTuple):
    """What a SEND has stored."""

    id: c.MessageIdData
    command: c.CommandSend
    metadata: MessageMetadata
    body: bytes


class Call:
    """A received command, with the means to answer it, correctly or not."""

    def __init__(self, connection: BrokerConnection, command: Any, payload: bytes) -> None:
        self.connection = connection
        self.broker = connection.broker
        self.command = command
        self.payload = payload

    @property
    def request_id(self) -> int:
        number: int = self.command.request_id
        return number

    def answer(self, command: c.Command) -> None:
        self.connection.push(command)

    def succeed(self) -> None:
        """Answer SUCCESS."""
        self.answer(c.CommandSuccess(request_id=self.request_id))

    def refuse(self, code: int, text: str = "refused by the test") -> None:
        """Answer with an error, in the form that this command needs."""
        answer = _refusal(self.command, code, text)
        self.answer(answer)

    def default(self) -> None:
        """Answer as without a script."""
        self.broker.answer(self)

    def write(self, data: bytes) -> None:
        """Write arbitrary bytes to the client."""
        self.connection.write(data)

    def cut(self) -> None:
        """Abort the connection."""
        self.connection.cut()


Answerer = Callable[[Call], Any]


def _refusal(command: Any, code: int, text: str) -> c.Command:
    match command:
        case c.CommandLookupTopic():
            return c.CommandLookupTopicResponse(
                request_id=command.request_id, response=2, error=code, message=text
            )
        case c.CommandPartitionedTopicMetadata():
            return c.CommandPartitionedTopicMetadataResponse(
                request_id=command.request_id, response=1, error=code, message=text
            )
        case c.CommandSend():
            return c.CommandSendError(
                producer_id=command.producer_id, sequence_id=command.sequence_id, error=code, message=text
            )
        case c.CommandAck():
            return c.CommandAckResponse(
                consumer_id=command.consumer_id, request_id=command.request_id, error=code, message=text
            )
        case c.CommandConnect():
            return c.CommandError(request_id=c.NO_REQUEST, error=code, message=text)
        case (
            c.CommandNewTxn()
            | c.CommandAddPartitionToTxn()
            | c.CommandAddSubscriptionToTxn()
            | c.CommandEndTxn()
            | c.CommandEndTxnOnPartition()
            | c.CommandEndTxnOnSubscription()
        ):
            return ANSWERS[type(command)](request_id=command.request_id, error=code, message=text)
    return c.CommandError(request_id=command.request_id, error=code, message=text)


def no_answer(call: Call) -> None:
    """Send no answer."""


def refuse(code: int, text: str = "refused by the test") -> Answerer:
    """Return an answerer that refuses each command."""
    return lambda call: call.refuse(code, text)


def late(seconds: float, then: Answerer = Call.default) -> Answerer:
    """Return an answerer that does as `then`, but later."""
    return lambda call: asyncio.get_running_loop().call_later(seconds, then, call)


def in_turn(*answerers: Answerer) -> Answerer:
    """Return an answerer that does as each of these, one for each command; the last one stays."""
    left = list(answerers)
    return lambda call: (left.pop(0) if len(left) > 1 else left[0])(call)


class BrokerConnection(asyncio.Protocol):
    """The broker's side of a connection."""

    transport: asyncio.Transport

    def __init__(self, broker: ScriptedPulsarBroker) -> None:
        self.broker = broker
        self.number = broker.accepted
        """Counts the connections of its broker, from 0."""
        broker.accepted += 1
        self.producers: dict[int, c.CommandProducer] = {}
        self.consumers: dict[int, c.CommandSubscribe] = {}
        self.permits: defaultdict[int, int] = defaultdict(int)
        """Of each consumer: granted, minus pushed messages; entries that were pushed without permits make it negative."""
        self._data = bytearray()
        self._kept: list[bytes] = []

    def __repr__(self) -> str:
        return f"<connection {self.number} of {self.broker.host}>"

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.broker.connections.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.broker.connections.remove(self)

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= 4 and len(self._data) >= 4 + (size := int.from_bytes(self._data[:4], "big")):
            frame = bytes(self._data[4 : 4 + size])
            del self._data[: 4 + size]
            if self.broker.is_frozen:
                self._kept.append(frame)
            else:
                self.handle(frame)

    def thaw(self) -> None:
        """Handle what has arrived since the broker was frozen."""
        kept, self._kept = self._kept, []
        for frame in kept:
            self.handle(frame)

    def handle(self, frame: bytes) -> None:
        command, end = decode_frame(frame)
        assert command is not None, frame
        loop, broker = asyncio.get_running_loop(), self.broker
        broker.pulsar.received.append(ReceivedCommand(loop.time(), broker.host, self, command, frame[end:]))
        call = Call(self, command, frame[end:])
        script = broker.script.get(type(command)) or broker.pulsar.script.get(type(command))
        (script or broker.answer)(call)

    # --- to the client ------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)

    def push(self, command: c.Command) -> None:
        """Send a command."""
        self.write(encode_frame(command))

    def push_entry(
        self,
        consumer_id: int,
        *values: bytes,
        entry_id: int = 0,
        ledger_id: int = LEDGER,
        redelivery_count: int = 0,
        ack_set: Sequence[int] = (),
        epoch: int | None = None,
        singles: Sequence[SingleMessageMetadata] = (),
        is_batch: bool | None = None,
        partition: int = -1,
        **metadata: Any,
    ) -> None:
        """Send MESSAGE: one message, or a batch of `values`; `singles` have their metadata, `metadata` that of the entry."""
        as_batch = len(values) != 1 or bool(singles) if is_batch is None else is_batch
        body = values[0] if values else b""
        if as_batch:
            body = _batch_body(values, singles)
            metadata = {"num_messages_in_batch": len(values), **metadata}
        made = MessageMetadata(
            **{"producer_name": "scripted", "sequence_id": entry_id, "publish_time": 1, **metadata}
        )
        command: Any = c.CommandMessage(
            consumer_id=consumer_id,
            message_id=c.MessageIdData(ledger_id=ledger_id, entry_id=entry_id, partition=partition),
            redelivery_count=redelivery_count,
            ack_set=ack_set,
            consumer_epoch=epoch,
        )
        self.permits[consumer_id] -= len(values)
        self.write(b"".join(encode_send(command, made.encode(), body)))

    def close_attached(self, topic: str, assigned_url: str | None = None) -> None:
        """Send CLOSE_PRODUCER and CLOSE_CONSUMER to what is attached to a topic."""
        for number, producer in list(self.producers.items()):
            if producer.topic == topic:
                del self.producers[number]
                self.push(
                    c.CommandCloseProducer(
                        producer_id=number,
                        request_id=c.NO_REQUEST,
                        assigned_broker_service_url=assigned_url,
                    )
                )
        for number, consumer in list(self.consumers.items()):
            if consumer.topic == topic:
                del self.consumers[number]
                self.permits.pop(number, None)
                self.push(
                    c.CommandCloseConsumer(
                        consumer_id=number,
                        request_id=c.NO_REQUEST,
                        assigned_broker_service_url=assigned_url,
                    )
                )

    def cut(self) -> None:
        """Abort the connection."""
        self.transport.abort()


def _batch_body(values: Sequence[bytes], singles: Sequence[SingleMessageMetadata]) -> bytes:
    parts = list[bytes]()
    for index, value in enumerate(values):
        single = singles[index] if singles else SingleMessageMetadata(payload_size=0)
        single.payload_size = len(value)
        encoded = single.encode()
        parts += [len(encoded).to_bytes(4, "big"), encoded, value]
    return b"".join(parts)


class ScriptedPulsarBroker:
    """A broker, or a proxy: then the script of LOOKUP answers with `proxy_through_service_url`."""

    def __init__(self, pulsar: ScriptedPulsar, host: str, port: int = PORT) -> None:
        self.pulsar = pulsar
        self.host = host
        self.port = port
        self.script: dict[type[c.Command], Answerer] = {}
        self.redirects: dict[str, str] = {}
        """Topics whose lookup goes on at another host."""
        self.loaded: set[str] = set()
        """Topics that were looked up, so that producers and consumers are accepted."""
        self.max_message_size = 5 << 20
        self.server_version = "Pulsar scripted"
        self.features = FEATURES
        self.connections: list[BrokerConnection] = []
        self.accepted = 0
        """Number of connections so far."""
        self.is_frozen = False
        self._server: Any = None

    def __repr__(self) -> str:
        return f"<broker {self.host}: {len(self.connections)} connections>"

    @property
    def url(self) -> str:
        return f"pulsar://{self.host}:{self.port}"

    @property
    def tls_url(self) -> str:
        return f"pulsar+ssl://{self.host}:{TLS_PORT}"

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: BrokerConnection(self), self.host, self.port)

    async def stop(self) -> None:
        """Close the listener and abort every connection; no topic is loaded any more."""
        self.loaded.clear()
        if self._server is not None:
            self._server.close()
            self.cut()
            await self._server.wait_closed()
            self._server = None

    def cut(self) -> None:
        """Abort every connection."""
        for connection in list(self.connections):
            connection.cut()

    def freeze(self) -> None:
        """Handle nothing that arrives from now on."""
        self.is_frozen = True

    def thaw(self) -> None:
        """Handle what has arrived."""
        self.is_frozen = False
        for connection in list(self.connections):
            connection.thaw()

    # --- default answers ----------------------------------------------------------------------------------------------

    def answer(self, call: Call) -> None:
        """Answer as without a script."""
        name = type(call.command).__name__.removeprefix("Command")
        getattr(self, f"answer_{name}", no_answer)(call)

    def answer_Connect(self, call: Call) -> None:
        call.answer(
            c.CommandConnected(
                server_version=self.server_version,
                protocol_version=min(call.command.protocol_version, c.PROTOCOL_VERSION),
                max_message_size=self.max_message_size,
                feature_flags=self.features,
            )
        )

    def answer_Ping(self, call: Call) -> None:
        call.answer(c.CommandPong())

    def answer_LookupTopic(self, call: Call) -> None:
        topic = call.command.topic
        host = self.redirects.get(topic)
        owner = self.pulsar[host or self.pulsar.owner_of(topic)]
        if host is None:
            owner.loaded.add(topic)
        call.answer(
            c.CommandLookupTopicResponse(
                request_id=call.request_id,
                broker_service_url=owner.url,
                broker_service_url_tls=owner.tls_url,
                response=1 if host is None else 0,
                authoritative=True,
            )
        )

    def answer_PartitionedTopicMetadata(self, call: Call) -> None:
        count = self.pulsar.partitions.get(call.command.topic, 0)
        call.answer(
            c.CommandPartitionedTopicMetadataResponse(
                request_id=call.request_id, partitions=count, response=0
            )
        )

    def answer_GetTopicsOfNamespace(self, call: Call) -> None:
        prefix = f"persistent://{call.command.namespace}/"
        names = [name for name in self.pulsar.topics if name.startswith(prefix)]
        call.answer(
            c.CommandGetTopicsOfNamespaceResponse(
                request_id=call.request_id, topics=names, topics_hash="scripted"
            )
        )

    def answer_WatchTopicList(self, call: Call) -> None:
        call.answer(
            c.CommandWatchTopicListSuccess(
                request_id=call.request_id,
                watcher_id=call.command.watcher_id,
                topic=self.pulsar.topics,
                topics_hash="scripted",
            )
        )

    def answer_WatchTopicListClose(self, call: Call) -> None:
        call.succeed()

    def answer_Producer(self, call: Call) -> None:
        if self._is_not_ready(call):
            return
        call.connection.producers[call.command.producer_id] = call.command
        name = call.command.producer_name or f"scripted-{self.pulsar.next_producer()}"
        last = self.pulsar.last_sequence_id
        call.answer(
            c.CommandProducerSuccess(request_id=call.request_id, producer_name=name, last_sequence_id=last)
        )

    def answer_Subscribe(self, call: Call) -> None:
        if self._is_not_ready(call):
            return
        call.connection.consumers[call.command.consumer_id] = call.command
        call.connection.permits[call.command.consumer_id] = 0
        call.succeed()

    def _is_not_ready(self, call: Call) -> bool:
        if call.command.topic in self.loaded:
            return False
        call.refuse(SERVICE_NOT_READY, "The topic was not looked up, or is at another broker")
        return True

    def answer_Send(self, call: Call) -> None:
        """Store the entry and acknowledge it; without a registered producer Pulsar closes the connection."""
        producer = call.connection.producers.get(call.command.producer_id)
        if producer is None:
            call.cut()
            return
        entry = self.pulsar.store(producer.topic, call.command, call.payload)
        call.answer(
            c.CommandSendReceipt(
                producer_id=call.command.producer_id,
                sequence_id=call.command.sequence_id,
                message_id=entry.id,
                highest_sequence_id=call.command.highest_sequence_id,
            )
        )

    def answer_CloseProducer(self, call: Call) -> None:
        call.connection.producers.pop(call.command.producer_id, None)
        call.succeed()

    def answer_CloseConsumer(self, call: Call) -> None:
        call.connection.consumers.pop(call.command.consumer_id, None)
        call.succeed()

    def answer_Unsubscribe(self, call: Call) -> None:
        call.connection.consumers.pop(call.command.consumer_id, None)
        call.succeed()

    def answer_Flow(self, call: Call) -> None:
        call.connection.permits[call.command.consumer_id] += call.command.message_permits

    def answer_Ack(self, call: Call) -> None:
        if call.command.request_id is not None:
            call.answer(
                c.CommandAckResponse(consumer_id=call.command.consumer_id, request_id=call.command.request_id)
            )

    def answer_TcClientConnectRequest(self, call: Call) -> None:
        call.answer(c.CommandTcClientConnectResponse(request_id=call.request_id))

    def answer_NewTxn(self, call: Call) -> None:
        answer = c.CommandNewTxnResponse(
            request_id=call.request_id,
            txnid_most_bits=call.command.tc_id,
            txnid_least_bits=self.pulsar.next_transaction(),
        )
        call.answer(answer)

    def answer_AddPartitionToTxn(self, call: Call) -> None:
        call.answer(c.CommandAddPartitionToTxnResponse(request_id=call.request_id))

    def answer_AddSubscriptionToTxn(self, call: Call) -> None:
        call.answer(c.CommandAddSubscriptionToTxnResponse(request_id=call.request_id))

    def answer_EndTxn(self, call: Call) -> None:
        call.answer(c.CommandEndTxnResponse(request_id=call.request_id))

    def answer_EndTxnOnPartition(self, call: Call) -> None:
        call.answer(c.CommandEndTxnOnPartitionResponse(request_id=call.request_id))

    def answer_EndTxnOnSubscription(self, call: Call) -> None:
        call.answer(c.CommandEndTxnOnSubscriptionResponse(request_id=call.request_id))

    def answer_Seek(self, call: Call) -> None:
        """Accept it; Pulsar then also closes the consumer, which a test may do by `close_attached`."""
        call.succeed()

    def answer_GetLastMessageId(self, call: Call) -> None:
        consumer = call.connection.consumers.get(call.command.consumer_id)
        stored = self.pulsar.stored[consumer.topic] if consumer is not None else []
        last = stored[-1].id if stored else c.MessageIdData(ledger_id=c.NO_REQUEST, entry_id=c.NO_REQUEST)
        call.answer(c.CommandGetLastMessageIdResponse(last_message_id=last, request_id=call.request_id))


class ScriptedPulsar:
    """Brokers with common topics. Names of topics are taken in any form, and kept in the long one."""

    def __init__(self, *hosts: str) -> None:
        self.received: list[ReceivedCommand] = []
        self.script: dict[type[c.Command], Answerer] = {}
        self.brokers = {host: ScriptedPulsarBroker(self, host) for host in hosts}
        self.owners: dict[str, str] = {}
        """The host of each topic; without an entry it is the first one."""
        self.partitions: dict[str, int] = {}
        self.topics: list[str] = []
        """What GET_TOPICS_OF_NAMESPACE and a watch answer."""
        self.stored: defaultdict[str, list[StoredEntry]] = defaultdict(list)
        self.last_sequence_id = -1
        """What a producer gets at its registration: with deduplication the last number that was stored."""
        self._producers = 0
        self._transactions = -1

    async def __aenter__(self) -> Self:
        for broker in self.brokers.values():
            await broker.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for broker in self.brokers.values():
            await broker.stop()

    def __getitem__(self, host: str) -> ScriptedPulsarBroker:
        return self.brokers[host]

    @property
    def first(self) -> ScriptedPulsarBroker:
        return next(iter(self.brokers.values()))

    @property
    def url(self) -> str:
        """The service URL with all brokers."""
        return "pulsar://" + ",".join(f"{one.host}:{one.port}" for one in self.brokers.values())

    def commands(self, kind: type[C], host: str | None = None) -> list[C]:
        """Return the received commands of a type, at one broker or at all."""
        return [
            one.command for one in self.received if isinstance(one.command, kind) and host in (None, one.host)
        ]

    def times(self, kind: type[c.Command], host: str | None = None) -> list[float]:
        """Return when they were received."""
        return [
            one.time for one in self.received if isinstance(one.command, kind) and host in (None, one.host)
        ]

    @property
    def connections(self) -> list[BrokerConnection]:
        """The open connections of all brokers."""
        return [each for broker in self.brokers.values() for each in broker.connections]

    def connection_of(self, *, producer: int | None = None, consumer: int | None = None) -> BrokerConnection:
        """Return the open connection at which a producer or consumer is registered."""
        (found,) = [
            each for each in self.connections if producer in each.producers or consumer in each.consumers
        ]
        return found

    # --- topics -------------------------------------------------------------------------------------------------------

    def own(self, topic: str, host: str) -> None:
        """Make a broker the owner of a topic."""
        self.owners[str(TopicName.parse(topic))] = host

    def owner_of(self, topic: str) -> str:
        return self.owners.get(topic) or self.first.host

    def set_partitions(self, topic: str, count: int) -> None:
        self.partitions[str(TopicName.parse(topic))] = count

    def move(self, topic: str, host: str, *, assigned: bool = False) -> None:
        """Make another broker the owner; `assigned`: it is loaded there, and clients are sent there (PIP-307)."""
        name = str(TopicName.parse(topic))
        self.owners[name] = host
        if assigned:
            self[host].loaded.add(name)
        for broker in self.brokers.values():
            if broker.host != host:
                broker.loaded.discard(name)
                for connection in list(broker.connections):
                    connection.close_attached(name, self[host].url if assigned else None)

    def unload(self, topic: str) -> None:
        """Close what is attached to a topic; the next lookup loads it again."""
        name = str(TopicName.parse(topic))
        for broker in self.brokers.values():
            broker.loaded.discard(name)
            for connection in list(broker.connections):
                connection.close_attached(name)

    def store(self, topic: str, command: c.CommandSend, payload: bytes) -> StoredEntry:
        """Store what a SEND has brought. Raises ChecksumError, DecodeError."""
        bounds = payload_bounds(payload, 0)
        stored = self.stored[topic]
        entry = StoredEntry(
            c.MessageIdData(ledger_id=LEDGER, entry_id=len(stored)),
            command,
            MessageMetadata.decode(payload, *bounds.metadata),
            payload[bounds.payload :],
        )
        stored.append(entry)
        return entry

    def next_transaction(self) -> int:
        """Return the number of a new transaction."""
        self._transactions += 1
        return self._transactions

    def next_producer(self) -> int:
        """Return a number for a producer without a name."""
        self._producers += 1
        return self._producers
