"""What connections and the handlers of commands need of a node."""

from __future__ import annotations

from typing import Any, Protocol, Self

from asyncgroup.pulsar.wire.commands import Command
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.pulsar_broker.net.handshake import ClientHandshake
from asyncgroup.pulsar_broker.subscriptions.subscription import TopicSubscription
from asyncgroup.pulsar_broker.topics.namespaces import Namespaces
from asyncgroup.pulsar_broker.topics.topic import BrokerTopic
from asyncgroup.pulsar_broker.transactions.transaction_coordinators import TransactionCoordinators

__all__ = ["ConnectedClient", "NodeServices"]


class ConnectedClient(Protocol):
    """A connection, as the handlers see it."""

    handshake: ClientHandshake
    """Which client it is, and its credential."""
    producers: dict[int, Any]
    """What `producer_requests` keeps of its producers, by id."""
    consumers: dict[int, Any]
    """What `consumer_requests` keeps of its consumers, by id."""

    def send(self, command: Command, payload: bytes = b"") -> None:
        """Write a command that is no answer, and what follows it in its frame."""
        ...

    def reply(self, request: Command, answer: Command) -> None:
        """Write the answer to a request."""
        ...

    def hold(self, seconds: float) -> None:
        """Serve no further request for a time."""
        ...


class NodeServices(Protocol):
    """A node."""

    namespaces: Namespaces
    coordinators: TransactionCoordinators
    max_unacked: int
    service_url_tls: str | None

    @property
    def service_url(self) -> str:
        """Its address."""
        ...

    def owner_of(self, name: TopicName) -> Self:
        """Return the node that owns a topic, or loads it now."""
        ...

    def owns(self, name: TopicName) -> bool:
        """Whether it has loaded a topic."""
        ...

    def load(self, name: TopicName) -> None:
        """Own a topic."""
        ...

    def loaded(self, text: str, *, creates: bool = True) -> BrokerTopic:
        """Return a topic that it owns. Raises ServerFailure."""
        ...

    def close_consumers(self, subscription: TopicSubscription) -> None:
        """Close the consumers of a subscription."""
        ...

    def new_name(self) -> str:
        """Return a name for a producer or consumer that has none."""
        ...
