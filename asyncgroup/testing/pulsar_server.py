"""The embedded Pulsar for blocking code: it runs in a separate thread and has plain, thread-safe methods.

with PulsarServer(topics={"orders": 6}) as pulsar:
    ...  # any client at pulsar.service_url: pulsar-client, Java
    pulsar.restart_broker(1)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, Unpack

from asyncgroup.broker.arguments import SeedRecord
from asyncgroup.foreign_names import add_foreign_names
from asyncgroup.pulsar.wire.message_id import MessageId
from asyncgroup.pulsar_broker.control.options import PulsarKeywords, PulsarOptions
from asyncgroup.pulsar_broker.control.stored_messages import StoredMessage
from asyncgroup.pulsar_broker.control.views import (
    BrokerView,
    PulsarTopicView,
    PulsarTransactionView,
    SubscriptionView,
)
from asyncgroup.pulsar_broker.embedded import EmbeddedPulsar
from asyncgroup.pulsar_broker.foreign_names import FOREIGN_MEMBERS
from asyncgroup.pulsar_broker.traffic import PulsarExchange
from asyncgroup.testing.pulsar_fault_options import PulsarFaultOptions, make_pulsar_fault
from asyncgroup.testing.server_facades import InjectedFaults, ServerFault, ServerHistory
from asyncgroup.testing.threaded_server import ThreadedServer

__all__ = ["PulsarServer", "PulsarServerFault", "PulsarServerFaults"]


class PulsarServerFault(ServerFault):
    """A fault of a `PulsarServer`; created by `PulsarServerFaults.on`."""

    _options: ClassVar = frozenset(PulsarFaultOptions.__annotations__)
    _example: ClassVar = ("a PulsarServer", "Send")


class PulsarServerFaults(InjectedFaults):
    """The faults of a `PulsarServer`."""

    def on(self, api: str | None = None, **options: Unpack[PulsarFaultOptions]) -> PulsarServerFault:
        """Create a fault in one call: `faults.on("Send", topic="orders", nth=2, error="ServiceNotReady")`.

        Functions (`where`, `answer`, `mutate`, `observe`) run on the broker's thread.
        """
        fault = self._call(lambda pulsar: make_pulsar_fault(pulsar.faults, api, **options))
        return PulsarServerFault(self._call, fault)


class PulsarServer(ThreadedServer[EmbeddedPulsar]):
    """An `EmbeddedPulsar` on an event loop in a separate thread; options are those of `EmbeddedPulsar`.

    `faults` and `history` are as there, but a fault is created in one call, `faults.on("Send", nth=2, delay=1.0)` (the
    options: `asyncgroup.testing.pulsar_fault_options.PulsarFaultOptions`), and `wait_hit` and `wait_for` have a `timeout`.

    A context manager that can be entered once. Every method may be called from any thread and blocks until it is done.
    `call` gives access to the other methods. Leaving the context raises what leaving the EmbeddedPulsar raises, such as
    `UnusedFaults` for a fault that was never hit.
    """

    def __init__(self, brokers: int | PulsarOptions = 1, **options: Unpack[PulsarKeywords]) -> None:
        super().__init__(EmbeddedPulsar(brokers, **options))
        self.faults: Final = PulsarServerFaults(self._thread.call)
        """Faults to inject: `pulsar.faults.on("Send", topic="orders", error="ServiceNotReady")`."""
        self.history: Final = ServerHistory[PulsarExchange](self._thread.call)
        """The requests and answers so far."""

    # --- brokers ----------------------------------------------------------------------------------------------------------

    @property
    def service_url(self) -> str:
        """`pulsar://host:port,host:port,…` of all brokers, including stopped ones."""
        return self.call(lambda pulsar: pulsar.service_url)

    @property
    def admin_url(self) -> str:
        """The address of the admin API. Raises UsageError without one."""
        return self.call(lambda pulsar: pulsar.admin_url)

    @property
    def brokers(self) -> dict[int, BrokerView]:
        """Snapshots of the brokers by id (from 1), including stopped ones."""
        return self.call(lambda pulsar: pulsar.brokers)

    def stop_broker(self, broker: int) -> None:
        """Kill a broker; see `EmbeddedPulsar.stop_broker`."""
        self.call(lambda pulsar: pulsar.stop_broker(broker))

    def start_broker(self, broker: int) -> None:
        """Start a stopped broker, on the same port as before."""
        self.call(lambda pulsar: pulsar.start_broker(broker))

    def restart_broker(self, broker: int) -> None:
        """Kill a broker, and start it on its port."""
        self.call(lambda pulsar: pulsar.restart_broker(broker))

    def slow_broker(self, broker: int, delay: float) -> None:
        """Delay every request of a broker by `delay` seconds; 0 removes the delay."""
        self.call(lambda pulsar: pulsar.slow_broker(broker, delay))

    def cut(self, broker: int | None = None) -> None:
        """Abort all connections, or those to one broker."""
        self.call(lambda pulsar: pulsar.cut(broker))

    def accept_token(self, token: str, role: str) -> None:
        """Accept another token; see `EmbeddedPulsar.accept_token`."""
        self.call(lambda pulsar: pulsar.accept_token(token, role))

    def expire_token(self, token: str) -> None:
        """Let a token expire; see `EmbeddedPulsar.expire_token`."""
        self.call(lambda pulsar: pulsar.expire_token(token))

    # --- topics -----------------------------------------------------------------------------------------------------------

    def create_topic(self, topic: str, partitions: int = 0) -> None:
        """Create a topic; 0 partitions is one without any. Raises `ServerFailure`."""
        self.call(lambda pulsar: pulsar.create_topic(topic, partitions))

    def update_partitions(self, topic: str, total: int) -> None:
        """Increase a topic's partitions to `total`."""
        self.call(lambda pulsar: pulsar.update_partitions(topic, total))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its messages and subscriptions, and close its producers and consumers."""
        self.call(lambda pulsar: pulsar.delete_topic(topic))

    def terminate(self, topic: str) -> None:
        """Let a topic accept no message any more."""
        self.call(lambda pulsar: pulsar.terminate(topic))

    def migrate(self, topic: str, to_url: str) -> None:
        """Let a topic go on in another cluster; see `EmbeddedPulsar.migrate`."""
        self.call(lambda pulsar: pulsar.migrate(topic, to_url))

    def unload(self, topic: str, to: int | None = None) -> None:
        """Move a topic to the broker `to`, or have it loaded again by the same one."""
        self.call(lambda pulsar: pulsar.unload(topic, to))

    @property
    def topics(self) -> list[str]:
        """The full names of all topics; those with partitions are one topic."""
        return self.call(lambda pulsar: pulsar.topics)

    def topic(self, topic: str) -> PulsarTopicView:
        """Return a snapshot of a topic, or of one partition by its name."""
        return self.call(lambda pulsar: pulsar.topic(topic))

    def produce(
        self,
        topic: str,
        *messages: SeedRecord,
        partition: int | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: int | None = None,
    ) -> list[MessageId]:
        """Append messages to a topic directly, without a client; see `EmbeddedPulsar.produce`."""
        return self.call(
            lambda pulsar: pulsar.produce(
                topic, *messages, partition=partition, properties=properties, event_time=event_time
            )
        )

    def messages(self, topic: str, partition: int | None = None) -> list[StoredMessage]:
        """Return the messages of a topic or of one partition, decoded, ordered by partition and position."""
        return self.call(lambda pulsar: pulsar.messages(topic, partition))

    # --- subscriptions ----------------------------------------------------------------------------------------------------

    def create_subscription(self, topic: str, name: str, *, position: str = "latest") -> None:
        """Create a subscription of a topic, with its partitions, at the `"latest"` or `"earliest"` message."""
        self.call(lambda pulsar: pulsar.create_subscription(topic, name, position=position))

    def subscription(self, topic: str, name: str) -> SubscriptionView:
        """Return a snapshot of a subscription."""
        return self.call(lambda pulsar: pulsar.subscription(topic, name))

    @property
    def transactions(self) -> dict[str, PulsarTransactionView]:
        """Snapshots of the transactions that have not ended, by the text of their ids."""
        return self.call(lambda pulsar: pulsar.transactions)


add_foreign_names(PulsarServer, FOREIGN_MEMBERS)
