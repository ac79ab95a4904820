"""PulsarNode, one broker: its listener, its connections, and the topics that it owns (Pulsar's `BrokerService`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from itertools import count
from typing import Final, NamedTuple

from asyncgroup.net.servers import close_server
from asyncgroup.pulsar.wire.commands import Command
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.pulsar_broker.credentials import CREDENTIAL_INTERVAL, AcceptedCredentials
from asyncgroup.pulsar_broker.errors import ServerFailure
from asyncgroup.pulsar_broker.net.server_connection import PulsarServerConnection, Traffic
from asyncgroup.pulsar_broker.requests.broker_requests import BrokerRequests
from asyncgroup.pulsar_broker.requests.topic_names import parse_topic
from asyncgroup.pulsar_broker.subscriptions.subscribed_consumer import MAX_UNACKED
from asyncgroup.pulsar_broker.subscriptions.subscription import TopicSubscription
from asyncgroup.pulsar_broker.topics.namespaces import Namespaces
from asyncgroup.pulsar_broker.topics.topic import BrokerTopic
from asyncgroup.pulsar_broker.transactions.transaction_coordinators import TransactionCoordinators

__all__ = ["NodeAddress", "PulsarNode", "SharedByNodes"]

KEEP_ALIVE: Final = 30.0
"""Seconds between two pings of a connection (`keepAliveIntervalSeconds`)."""


class NodeAddress(NamedTuple):
    """Where a broker listens, and the host in its answers to lookups."""

    host: str
    port: int
    advertised_host: str


class SharedByNodes(NamedTuple):
    """What all brokers of an EmbeddedPulsar have in common."""

    namespaces: Namespaces
    coordinators: TransactionCoordinators
    owner_of: Callable[[TopicName], PulsarNode]
    """Returns the node that owns a topic, or loads it now. Raises ServerFailure."""
    traffic: Traffic
    new_number: Callable[[], int]
    """Returns the number of another connection."""
    credentials: AcceptedCredentials
    """Those that clients need."""
    credential_interval: float = CREDENTIAL_INTERVAL
    """Seconds between two looks at whether those of connected clients have expired."""
    max_message_size: int = 5 << 20
    """Bytes of a message with its metadata."""


class PulsarNode:
    """A broker of an EmbeddedPulsar."""

    def __init__(self, number: int, address: NodeAddress, shared: SharedByNodes) -> None:
        self.number = number
        self.host, self.port, self.advertised_host = address
        self.delay = 0.0
        """Seconds by which each request is delayed."""
        self.namespaces = shared.namespaces
        self.coordinators = shared.coordinators
        self.max_message_size = shared.max_message_size
        self.max_unacked = MAX_UNACKED
        self.server_version = "asyncgroup embedded Pulsar 4.2"
        self.credentials = shared.credentials
        self.service_url_tls: str | None = None
        """Its address with TLS, which lookups answer: that of a relay, as it has none itself."""
        self.connections: list[PulsarServerConnection] = []
        self.requests = BrokerRequests(self)
        self.is_running = False
        self.traffic = shared.traffic
        self._shared = shared
        self._owned: set[TopicName] = set()
        self._names = count()
        self._server: asyncio.Server | None = None
        self._next_pings: asyncio.TimerHandle | None = None
        self._next_check: asyncio.TimerHandle | None = None  # of credentials

    def __repr__(self) -> str:
        return f"<PulsarNode {self.number} at {self.host}:{self.port}: {len(self.connections)} connections>"

    @property
    def service_url(self) -> str:
        """Its address for clients."""
        host = f"[{self.advertised_host}]" if ":" in self.advertised_host else self.advertised_host
        return f"pulsar://{host}:{self.port}"

    # --- life -------------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        self.is_running = True
        self._next_pings = loop.call_later(KEEP_ALIVE, self._ping)
        if self.credentials.are_required:
            self._next_check = loop.call_later(self._shared.credential_interval, self._check_credentials)

    def _check_credentials(self) -> None:
        """Ask clients whose credential has expired for another one: one timer for all connections."""
        for connection in list(self.connections):
            connection.handshake.check_credential()
        loop = asyncio.get_running_loop()
        self._next_check = loop.call_later(self._shared.credential_interval, self._check_credentials)

    def _ping(self) -> None:
        """Ping all clients; the connections of those that have not answered the last one end: one timer for all."""
        for connection in list(self.connections):
            connection.ping()
        self._next_pings = asyncio.get_running_loop().call_later(KEEP_ALIVE, self._ping)

    def _accept(self) -> asyncio.BaseProtocol:
        connection = PulsarServerConnection(self, self._shared.new_number())
        self.connections.append(connection)
        return connection.protocol

    async def stop(self) -> None:
        """Abort all connections and stop listening; another node loads its topics when they are looked up."""
        self.is_running = False
        self.release_all()
        for timer in (self._next_pings, self._next_check):
            if timer is not None:
                timer.cancel()
        server, self._server = self._server, None
        if server is not None:
            closed = asyncio.get_running_loop().create_future()
            close_server(server, lambda: closed.set_result(None))
            await closed
            self.cut()
            await server.wait_closed()

    def cut(self) -> None:
        """Abort all connections."""
        for connection in list(self.connections):
            connection.cut()

    def handle(
        self, connection: PulsarServerConnection, command: Command, frame: bytes | bytearray, at: int
    ) -> None:
        """Serve a command, whose payload begins at `at`. Raises ServerFailure."""
        self.requests.handle(connection, command, frame, at)

    def connection_lost(self, connection: PulsarServerConnection) -> None:
        """A connection has ended, and its producers and consumers with it."""
        self.connections.remove(connection)
        self.requests.producers.connection_lost(connection)
        for number in list(connection.consumers):
            self.requests.consumers.forget(connection, number)
        self.requests.topic_lists.forget(connection)

    # --- topics -----------------------------------------------------------------------------------------------------------

    def owner_of(self, name: TopicName) -> PulsarNode:
        """Return the node that owns a topic, or loads it now."""
        return self._shared.owner_of(name)

    @property
    def owned(self) -> Collection[TopicName]:
        """The topics and partitions that it has loaded."""
        return self._owned

    def owns(self, name: TopicName) -> bool:
        """Whether it has loaded a topic."""
        return name in self._owned

    def load(self, name: TopicName) -> None:
        """Own a topic: a lookup was for it."""
        if name not in self._owned:
            self._owned.add(name)
            topic = self.namespaces.topics.get(name)
            if topic is not None:
                topic.log.roll(topic.now())

    def loaded(self, text: str, *, creates: bool = True) -> BrokerTopic:
        """Return a topic that this node owns. Raises ServerFailure."""
        name = parse_topic(text)
        if name not in self._owned:
            raise ServerFailure(
                ServerError.SERVICE_NOT_READY,
                f"Namespace bundle for topic ({name}) not served by this instance:{self.host}:{self.port}. "
                "Please redo the lookup.",
            )
        return self.namespaces.topic(name, creates=creates)

    def unload(self, name: TopicName) -> None:
        """Give up a topic, and close its producers and consumers."""
        if name not in self._owned:
            return
        self._owned.discard(name)
        self.requests.transactions.close(name)
        topic = self.namespaces.topics.get(name)
        if topic is not None:
            self.evict(topic)

    def close_producers(self, topic: BrokerTopic) -> None:
        """Close the producers of a topic."""
        self.requests.producers.evict(topic)

    def evict(self, topic: BrokerTopic) -> None:
        """Close the producers and consumers of a topic."""
        self.close_producers(topic)
        for subscription in list(topic.subscriptions.values()):
            self.close_consumers(subscription)

    def migrate(self, topic: BrokerTopic) -> None:
        """Send the producers of a topic to the cluster to which it has migrated, and consumers that have acknowledged all."""
        self.requests.producers.evict(topic)
        for subscription in list(topic.subscriptions.values()):
            if not subscription.backlog:
                self.requests.consumers.evict(subscription, topic.migrated_to)

    def release_all(self) -> None:
        """Own no topic any more."""
        for name in self._owned:
            self.requests.transactions.close(name)
        self._owned.clear()

    def close_consumers(self, subscription: TopicSubscription) -> None:
        """Close the consumers of a subscription."""
        self.requests.consumers.evict(subscription)

    def new_name(self) -> str:
        """Return a name for a producer or consumer that has none."""
        return f"embedded-{self.number}-{next(self._names)}"
