"""PulsarRuntime: the running parts of an embedded Pulsar: its brokers, its topics and where they are, time, and what clients do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from itertools import count

from asyncgroup.broker.traffic.injection import Injection, Injector
from asyncgroup.errors import UsageError
from asyncgroup.hashing.key_ranges import murmur3_32
from asyncgroup.lifecycle import wait_shielded
from asyncgroup.model import clock_of_loop
from asyncgroup.pulsar.wire.enums import InitialPosition
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.pulsar_broker.admin.server import AdminServer
from asyncgroup.pulsar_broker.control.options import PulsarOptions, pulsar_topic_seeds
from asyncgroup.pulsar_broker.control.policy_timer import PolicyTimer
from asyncgroup.pulsar_broker.control.seeding import MessageSeeder
from asyncgroup.pulsar_broker.credentials import AcceptedCredentials
from asyncgroup.pulsar_broker.errors import ServerFailure
from asyncgroup.pulsar_broker.net.server_connection import Traffic
from asyncgroup.pulsar_broker.node import NodeAddress, PulsarNode, SharedByNodes
from asyncgroup.pulsar_broker.subscriptions.subscription import TopicSubscription
from asyncgroup.pulsar_broker.timing import Timing
from asyncgroup.pulsar_broker.topics.namespaces import Namespaces
from asyncgroup.pulsar_broker.topics.topic import BrokerTopic
from asyncgroup.pulsar_broker.traffic import PulsarRecorder
from asyncgroup.pulsar_broker.transactions.transaction_coordinators import TransactionCoordinators

__all__ = ["PulsarRuntime"]


class PulsarRuntime:
    """The state, brokers, recorded requests and injected faults of an EmbeddedPulsar with these options; it starts once."""

    def __init__(self, options: PulsarOptions) -> None:
        self.options = options
        self.recorder = PulsarRecorder(options.history_limit, options.history_bytes)
        self.injector: Injector[Injection] = Injector()
        self.moving = asyncio.Lock()
        """Held while a broker is being stopped or started."""
        self.timing = Timing(_time_before_start, self._wake, self._after_change)
        self.namespaces = Namespaces(
            self.timing,
            creates_topics=options.auto_create_topics,
            default_partitions=options.default_partitions,
        )
        """Which topics there are."""
        self.namespaces.broker_policies.deduplication = options.deduplication
        self.namespaces.broker_policies.retention = options.retention
        for name in options.namespaces:
            self.namespaces.add_namespace(name)
        self._policy_timer = PolicyTimer(self.namespaces, self._close_producers, self._after_policy_interval)
        self.namespaces.on_policies.append(self._policy_timer.policies_changed)
        self.coordinators = TransactionCoordinators(
            options.transaction_coordinators, self.namespaces, self._load, self.timing
        )
        """The open transactions."""
        self.credentials = AcceptedCredentials(options.tokens, options.users)
        """Those that clients need."""
        self.nodes = self._create_nodes()
        """The brokers, by number."""
        self.seeder = MessageSeeder(self._now)
        self.admin: AdminServer | None = None
        if options.admin:
            self.admin = AdminServer(self, options.host, options.admin_port)
        self._owners: dict[TopicName, int] = {}
        self._timers: set[asyncio.TimerHandle] = set()
        self._entered = False

    def __repr__(self) -> str:
        return f"<PulsarRuntime {len(self.nodes)} brokers, {len(self.namespaces.topics)} topics>"

    def _create_nodes(self) -> Mapping[int, PulsarNode]:
        shared = SharedByNodes(
            self.namespaces,
            self.coordinators,
            self.owner_of,
            Traffic(self.recorder, self.injector),
            count(1).__next__,
            self.credentials,
            self.options.credential_interval,
            self.options.max_message_size,
        )
        advertised = self.options.advertised_host
        return {
            number: PulsarNode(number, NodeAddress(host, port, advertised or host), shared)
            for number, (host, port) in enumerate(self.options.addresses, 1)
        }

    # --- start and stop ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Create the topics of the options, and start all brokers."""
        if self._entered:
            raise UsageError("an EmbeddedPulsar can be entered only once; create a new one")
        _check_asyncio()
        self._entered = True
        self._loop = asyncio.get_running_loop()
        self.timing.now = clock_of_loop()
        try:
            self._seed()
            self._policy_timer.policies_changed()
            for node in self.nodes.values():
                await node.start()
            if self.admin is not None:
                await self.admin.start()
        except BaseException:
            await self.stop()
            raise

    def _seed(self) -> None:
        for text, seed in pulsar_topic_seeds(self.options.topics).items():
            name = TopicName.parse(text)
            self.namespaces.create(name, seed.partitions)
            parts = self.namespaces.parts_of(name)
            for subscription in seed.subscriptions:
                self.create_subscription(name, subscription, InitialPosition.EARLIEST)
            self.seeder.append(parts, seed.messages, partition=None, properties=None, event_time=None)

    async def stop(self) -> None:
        """Stop all brokers; return when every connection is closed."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        stops = [node.stop() for node in self.nodes.values()]
        if self.admin is not None:
            stops.append(self.admin.stop())
        await wait_shielded(asyncio.gather(*stops))

    @property
    def admin_url(self) -> str:
        """The address of the admin API. Raises UsageError without one."""
        if self.admin is None:
            raise UsageError("this EmbeddedPulsar has no admin API: EmbeddedPulsar(admin=True)")
        return self.admin.url

    # --- topics -----------------------------------------------------------------------------------------------------------

    def topic(self, topic: str) -> BrokerTopic:
        """Return a topic without partitions, or a partition. Raises ServerFailure."""
        return self.namespaces.topic(TopicName.parse(topic), creates=False)

    def subscription(self, topic: str, name: str) -> TopicSubscription:
        """Return a subscription of a topic without partitions, or of a partition."""
        return self.topic(topic).subscriptions[name]

    def create_subscription(self, topic: TopicName, name: str, position: InitialPosition) -> None:
        """Create a subscription of a topic, with its partitions; a topic that does not exist is created."""
        for each in self._parts(topic):
            self.namespaces.topic(each).subscription(name, position)

    def unload(self, topic: str, to: int | None = None) -> None:
        """Move a topic, with its partitions, to another broker, or have it loaded again by the same one."""
        for name in self._parts(TopicName.parse(topic)):
            for node in self.nodes.values():
                node.unload(name)
            if to is not None:
                self._owners[name] = to

    def close_consumers(self, subscription: TopicSubscription) -> None:
        """Close the consumers of a subscription; they come back."""
        for node in self.nodes.values():
            node.close_consumers(subscription)

    def _close_producers(self, topic: BrokerTopic) -> None:
        for node in self.nodes.values():
            node.close_producers(topic)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, with its partitions, its producers and its consumers."""
        for found in self.namespaces.delete(TopicName.parse(topic)):
            for node in self.nodes.values():
                node.unload(found.name)
                node.evict(found)

    def migrate(self, topic: str, to_url: str) -> None:
        """Send the clients of a topic, with its partitions, to another cluster."""
        for found in self.namespaces.parts_of(TopicName.parse(topic)):
            found.migrated_to = to_url
            for node in self.nodes.values():
                node.migrate(found)

    def _parts(self, name: TopicName) -> list[TopicName]:
        partitions = self.namespaces.partitions_of(name, creates=True)
        return [name.of_partition(number) for number in range(partitions)] if partitions else [name]

    def owner_of(self, name: TopicName) -> PulsarNode:
        """Return the broker that owns a topic: one of those that run, chosen by its name. Raises ServerFailure if none runs."""
        running = [number for number, node in self.nodes.items() if node.is_running]
        if not running:
            raise ServerFailure(ServerError.SERVICE_NOT_READY, "no broker is running")
        number = self._owners.get(name)
        if number is None or number not in running:
            # not hash(): it differs from process to process, and with it where a test's topics are
            number = running[murmur3_32(str(name).encode()) % len(running)]
            self._owners[name] = number
        return self.nodes[number]

    def _load(self, name: TopicName) -> None:
        self.owner_of(name).load(name)

    def loaded_at(self, name: TopicName) -> int | None:
        """Return the number of the broker that has a topic loaded; None if none has."""
        return next((number for number, node in self.nodes.items() if node.owns(name)), None)

    # --- time -------------------------------------------------------------------------------------------------------------

    def _now(self) -> int:
        return self.timing.now()

    def _wake(self, time: int, call: Callable[[], None]) -> None:
        self._after(max(time - self.timing.now(), 0) / 1000, call)

    def _after_change(self, call: Callable[[], None]) -> None:
        self._after(self.options.failover_delay, call)

    def _after_policy_interval(self, call: Callable[[], None]) -> None:
        self._after(self.options.policy_interval, call)

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        def due() -> None:
            self._timers.discard(timer)
            call()

        timer = self._loop.call_later(seconds, due)
        self._timers.add(timer)


def _time_before_start() -> int:
    raise UsageError("this EmbeddedPulsar is not open: use it inside its `async with` block")


def _check_asyncio() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError(
            "an EmbeddedPulsar needs a running asyncio event loop, and there is none (is this trio?); "
            "asyncgroup.testing.PulsarServer runs one in a thread, for any kind of client"
        ) from None
