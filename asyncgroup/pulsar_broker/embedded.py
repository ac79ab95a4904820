"""EmbeddedPulsar: a Pulsar in this process, for tests of programs that use Pulsar."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self, Unpack

from asyncgroup.broker.arguments import SeedRecord
from asyncgroup.checks import check_duration_or_zero
from asyncgroup.errors import ConfigError, UsageError
from asyncgroup.foreign_names import add_foreign_names
from asyncgroup.pulsar.wire.enums import InitialPosition
from asyncgroup.pulsar.wire.message_id import MessageId
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.pulsar_broker.control.options import PulsarKeywords, PulsarOptions, pulsar_options_of
from asyncgroup.pulsar_broker.control.runtime import PulsarRuntime
from asyncgroup.pulsar_broker.control.stored_messages import StoredMessage, stored_messages
from asyncgroup.pulsar_broker.control.views import (
    BrokerView,
    PulsarTopicView,
    PulsarTransactionView,
    SubscriptionView,
    view_broker,
    view_pulsar_topic,
    view_pulsar_transaction,
    view_subscription,
)
from asyncgroup.pulsar_broker.foreign_names import FOREIGN_MEMBERS
from asyncgroup.pulsar_broker.node import PulsarNode
from asyncgroup.pulsar_broker.topics.topic import BrokerTopic
from asyncgroup.pulsar_broker.traffic import PulsarFaults, PulsarHistory
from asyncgroup.pulsar_broker.transactions.transaction_coordinators import COORDINATOR_TOPIC
from asyncgroup.secret import HIDDEN

__all__ = ["EmbeddedPulsar"]


class EmbeddedPulsar:
    """One or more brokers that speak Pulsar's protocol, with all data in memory.

        async with EmbeddedPulsar(topics={"orders": 3}) as pulsar:
            async with PulsarProducer(pulsar.service_url, "orders") as producer:
                await producer.send(b"one dozen", key="eggs")
            assert [message.value for message in pulsar.messages("orders")] == [b"one dozen"]

    The options are keyword arguments, or one `PulsarOptions` value in place of `brokers`. Entering the context starts the
    brokers; leaving it stops them and closes all connections. All state changes are steps on the event loop, and only the
    loop's clock is read: on a virtual-time loop it runs in virtual time. Durations are seconds.

    `host` is the address that brokers listen on, `port` that of the first one, and the next ones have the next ports (default:
    any free ports). `hosts` gives each broker an address; those of one host have consecutive ports. `advertised_host` is sent
    to clients (default: the host; required if `host` is 0.0.0.0). A stopped broker keeps its port.

    `topics`: topics to create at the start: `"orders"`, `["orders", "bills"]` (without partitions), `{"orders": 6}`
    (partitions), or `{"orders": {"partitions": 6, "subscriptions": ["billing"], "messages": [b"a book", ("ann", "a lamp")]}}`,
    with messages as for `produce`; the subscriptions begin before them.

    `auto_create_topics`: whether a topic is created when a client uses it, as Pulsar's `allowAutoTopicCreation`;
    `default_partitions`: what such a topic gets, 0 for none. `namespaces`: those that exist besides `public/default`.

    `deduplication`: whether topics drop messages that are stored already (`brokerDeduplicationEnabled`). `failover_delay`: time until
    the next consumer of a Failover subscription gets messages.

    `max_message_size`: bytes of a message with its metadata (`maxMessageSize`). `policy_interval`: the time between two checks of
    the message TTL, the backlog quotas and the retention.

    `retention_time`, in seconds, and `retention_size`, in bytes of a topic or partition, limit what is kept after all
    subscriptions have acknowledged it; whole ledgers are deleted, the oldest first. 0: nothing is kept, which is Pulsar's
    default. Without both, everything is kept.

    `tokens`: the tokens that brokers accept, each with the role of its client; `users`: names with their passwords (basic
    authentication). With either of them clients need a credential, and so do requests to the admin API. `credential_interval`: the time
    between two checks of the tokens of connected clients, see `expire_token` (`authenticationRefreshCheckSeconds`).

    `transaction_coordinators`: how many there are, 1 as in a standalone Pulsar; a cluster has 16 by default. 0: no transactions.

    `admin`: whether there is an admin API at `admin_url`, on `admin_port` (default: any free one). It does not work in virtual time.

    `history_limit`: exchanges kept in `history` (0: none), `history_bytes`: memory that they may take; `history.dropped` counts
    the exchanges dropped at these limits.
    """

    def __init__(self, brokers: int | PulsarOptions = 1, **options: Unpack[PulsarKeywords]) -> None:
        if not isinstance(brokers, PulsarOptions):
            brokers = pulsar_options_of(brokers, options)
        elif options:
            raise UsageError(f"{', '.join(options)}: an option may not be given beside PulsarOptions")
        self._runtime = PulsarRuntime(brokers)
        self._history = PulsarHistory(self._runtime.recorder)
        self._faults = PulsarFaults(self._runtime.injector)

    def __repr__(self) -> str:
        nodes = self._runtime.nodes
        running = [number for number, node in nodes.items() if node.is_running]
        return f"<EmbeddedPulsar brokers {running} of {list(nodes)}>"

    async def __aenter__(self) -> Self:
        """Start all brokers."""
        await self._runtime.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop all brokers; return when every connection is closed.

        Raise `UnusedFaults` if a fault was never hit, or the exception that a fault's own functions raised, unless
        another exception is already propagating.
        """
        try:
            if exc is None:
                self._runtime.injector.check()
        finally:
            await self._runtime.stop()

    # --- brokers ----------------------------------------------------------------------------------------------------------

    @property
    def service_url(self) -> str:
        """`pulsar://host:port,host:port,…` of all brokers, including stopped ones."""
        urls = [node.service_url for node in self._runtime.nodes.values()]
        return ",".join([urls[0], *(url.removeprefix("pulsar://") for url in urls[1:])])

    @property
    def admin_url(self) -> str:
        """The address of the admin API. Raises UsageError without one."""
        return self._runtime.admin_url

    @property
    def brokers(self) -> dict[int, BrokerView]:
        """Snapshots of the brokers by id (from 1), including stopped ones."""
        return {number: view_broker(node) for number, node in self._runtime.nodes.items()}

    async def stop_broker(self, broker: int) -> None:
        """Kill a broker: its connections and its listener are closed; other brokers load its topics at the next lookup."""
        node = self._node(broker)
        async with self._runtime.moving:
            await node.stop()

    async def start_broker(self, broker: int) -> None:
        """Start a stopped broker on its old port. Topics stay where they are."""
        node = self._node(broker)
        async with self._runtime.moving:
            if not node.is_running:
                await node.start()

    async def restart_broker(self, broker: int) -> None:
        """Kill a broker, and start it on its port."""
        await self.stop_broker(broker)
        await self.start_broker(broker)

    def slow_broker(self, broker: int, delay: float) -> None:
        """Delay every request at a broker by `delay` seconds, also after a restart; 0 ends the delay.

        Requests on one connection are delayed one after another, those on different connections concurrently.
        """
        check_duration_or_zero("delay", delay)
        self._node(broker).delay = delay

    def cut(self, broker: int | None = None) -> None:
        """Abort all connections, or those to one broker, as a network does that fails for a moment."""
        for node in self._runtime.nodes.values() if broker is None else [self._node(broker)]:
            node.cut()

    def accept_token(self, token: str, role: str) -> None:
        """Accept another token from now on, with the role of its client. Raises UsageError unless clients need credentials."""
        _check_text("token", token)
        _check_text("role", role)
        self._runtime.credentials.accept_token(token, role)

    def expire_token(self, token: str) -> None:
        """Let a token expire: a new connection with it is refused, and a client that is connected with it is asked for another one.

        It is asked at the next look, within `credential_interval`. Its connection is closed if it has not answered until the
        look after that, or has another role then. Raises UsageError for an unknown token.
        """
        self._runtime.credentials.expire_token(token)

    def _node(self, broker: int) -> PulsarNode:
        node = self._runtime.nodes.get(broker)
        if node is None:
            raise UsageError(f"there is no broker {broker}; the brokers are {sorted(self._runtime.nodes)}")
        return node

    # --- topics -----------------------------------------------------------------------------------------------------------

    def create_topic(self, topic: str, partitions: int = 0) -> None:
        """Create a topic; 0 partitions is one without any. Raises `ServerFailure`."""
        if not isinstance(partitions, int) or partitions < 0:
            raise ConfigError("partitions", partitions, "0 (a topic without partitions) or more")
        self._runtime.namespaces.create(TopicName.parse(topic), partitions)

    def update_partitions(self, topic: str, total: int) -> None:
        """Increase a topic's partitions to `total`. Raises `ServerFailure`."""
        self._runtime.namespaces.add_partitions(TopicName.parse(topic), total)

    def migrate(self, topic: str, to_url: str) -> None:
        """Let the clients of a topic, with its partitions, go on in another cluster (PIP-188), whose service URL is `to_url`.

        Producers go at once, the consumers of a subscription when they have acknowledged everything.
        """
        self._parts(topic)
        self._runtime.migrate(topic, to_url)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its messages and subscriptions, and close its producers and consumers."""
        self._parts(topic)
        self._runtime.delete_topic(topic)

    def terminate(self, topic: str) -> None:
        """Let a topic accept no message any more. Consumers that have read all of it reach its end."""
        for part in self._parts(topic):
            part.terminate()

    def unload(self, topic: str, to: int | None = None) -> None:
        """Move a topic, with its partitions, to the broker `to`, or have it loaded again by the same one."""
        if to is not None:
            self._node(to)
        if TopicName.parse(topic) != COORDINATOR_TOPIC:  # which has no messages
            self._parts(topic)
        self._runtime.unload(topic, to)

    @property
    def topics(self) -> list[str]:
        """The full names of all topics; those with partitions are one topic."""
        return sorted(
            {str(self._runtime.namespaces.known_as(name)) for name in self._runtime.namespaces.topics}
        )

    def topic(self, topic: str) -> PulsarTopicView:
        """Return a snapshot of a topic, or of one partition by its name. Raises UsageError if it does not exist."""
        return view_pulsar_topic(TopicName.parse(topic), self._parts(topic), self._runtime.loaded_at)

    def produce(
        self,
        topic: str,
        *messages: SeedRecord,
        partition: int | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: int | None = None,
    ) -> list[MessageId]:
        """Append messages directly, without a client; return their ids in the order given.

        A message is its value, or a pair of key and value; text is encoded as UTF-8. Messages go to `partition`; without
        it, messages with a key go where Java's client puts them by default, messages without one to the partitions in turn.
        `properties` and `event_time` (ms since 1970) apply to all messages.

        Raises UsageError for a topic or partition that does not exist, ConfigError for an invalid key or value, `ServerFailure`
        where a broker would refuse them.
        """
        return self._runtime.seeder.append(
            self._parts(topic), messages, partition=partition, properties=properties, event_time=event_time
        )

    def messages(self, topic: str, partition: int | None = None) -> list[StoredMessage]:
        """Return the decoded messages of a topic, or of one partition, ordered by partition and position.

        Messages of open and aborted transactions are included, with `committed` False; markers are not.
        """
        parts = self._parts(topic)
        if partition is not None:
            if not 0 <= partition < len(parts):
                raise UsageError(f"topic {topic!r} has partitions 0 to {len(parts) - 1}, not {partition}")
            parts = [parts[partition]]
        return [message for part in parts for message in stored_messages(part)]

    def _parts(self, topic: str) -> Sequence[BrokerTopic]:
        parts = self._runtime.namespaces.find(TopicName.parse(topic))
        if not parts:
            raise UsageError(f"no topic {topic!r}; the topics are {self.topics}")
        return parts

    # --- subscriptions ----------------------------------------------------------------------------------------------------

    def create_subscription(self, topic: str, name: str, *, position: str = "latest") -> None:
        """Create a subscription of a topic, with its partitions, at the `"latest"` or `"earliest"` message."""
        if position not in ("latest", "earliest"):
            raise ConfigError("position", position, '"latest" or "earliest"')
        start = InitialPosition.EARLIEST if position == "earliest" else InitialPosition.LATEST
        self._parts(topic)
        self._runtime.create_subscription(TopicName.parse(topic), name, start)

    def subscription(self, topic: str, name: str) -> SubscriptionView:
        """Return a snapshot of a subscription. Raises UsageError if the topic or the subscription does not exist."""
        parts = self._parts(topic)
        found = [(part, part.subscriptions[name]) for part in parts if name in part.subscriptions]
        if not found:
            known = sorted({each for part in parts for each in part.subscriptions})
            raise UsageError(f"topic {topic!r} has no subscription {name!r}; it has {known}")
        return view_subscription(TopicName.parse(topic), found)

    @property
    def transactions(self) -> dict[str, PulsarTransactionView]:
        """Snapshots of the transactions that have not ended, by the text of their ids."""
        found = map(view_pulsar_transaction, self._runtime.coordinators.transactions)
        return {transaction.id: transaction for transaction in found}

    # --- history and faults -----------------------------------------------------------------------------------------------

    @property
    def history(self) -> PulsarHistory:
        """The requests of clients so far, and their answers."""
        return self._history

    @property
    def faults(self) -> PulsarFaults:
        """The injected faults: `pulsar.faults.on("Send", topic="orders").error("TopicTerminatedError")`."""
        return self._faults

    def on_unknown_topic(self, call: Callable[[str], object]) -> None:
        """Call `call(name)` whenever a client uses a topic that never existed and is not created.

        The retry and dead letter topics of existing topics, as clients name them by default, are created.
        """
        self._runtime.namespaces.watch_unknown_topics(call)


def _check_text(name: str, value: str) -> None:
    """Raise ConfigError for an empty text, and for anything else; the error does not show it."""
    if not isinstance(value, str) or not value:
        raise ConfigError(name, HIDDEN, "a text, not empty")


add_foreign_names(EmbeddedPulsar, FOREIGN_MEMBERS)
