"""The running parts of an embedded cluster: built from its options, started and stopped together."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any
from uuid import UUID

from asyncgroup.broker.clock import LoopTimers, WallClock
from asyncgroup.broker.control.call import CallService
from asyncgroup.broker.control.injection import KafkaInjection
from asyncgroup.broker.control.message_fields import topic_names_in
from asyncgroup.broker.control.options import ClusterOptions, features_of
from asyncgroup.broker.control.recorder import ExchangeRecorder
from asyncgroup.broker.control.static_configs import static_configs
from asyncgroup.broker.groups.shared.interfaces import CoordinatorConfig, GroupOptions
from asyncgroup.broker.metadata.config_repository import ConfigRepository
from asyncgroup.broker.metadata.controller import Controller
from asyncgroup.broker.metadata.journal import Journal
from asyncgroup.broker.metadata.topics import Partition, Topic
from asyncgroup.broker.net.listener import Endpoint, ListenerOptions
from asyncgroup.broker.net.sasl import Authenticator
from asyncgroup.broker.net.security import passwords_of
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.net.tls import connection_factory
from asyncgroup.broker.node import ClusterState, Node
from asyncgroup.broker.storage.data_directory import DataDirectory
from asyncgroup.broker.storage.log_cleaner import LogCleaner
from asyncgroup.broker.storage.restore import restore_controller, restored_transactions
from asyncgroup.broker.storage.retention import ClusterLogs, Retention
from asyncgroup.broker.traffic.injection import Injector
from asyncgroup.broker.transactions.completion import MarkerWriter, TransactionMarker
from asyncgroup.broker.transactions.coordinator import TransactionCoordinator
from asyncgroup.errors import UsageError
from asyncgroup.wire.loading import load_compiled

__all__ = ["ClusterRuntime"]


class ClusterRuntime:
    """The state, nodes, recorded requests and injected faults of a cluster with these options; it can be started once."""

    def __init__(self, options: ClusterOptions) -> None:
        self.options = options
        # absolute, as the process may change its working directory
        self._data_dir = None if options.data_dir is None else Path(options.data_dir).absolute()
        self.data: DataDirectory | None = None
        """The data directory while it is open; None for a cluster in memory."""
        self.moving = asyncio.Lock()
        """Held while a node is being stopped or started."""
        self.advertised_host = options.advertised_host or options.host
        self._rng = random.Random(options.seed)
        self.state = ClusterState(
            controller=_new_controller(options, self._rng),
            rng=self._rng,
            coordinator_config=_coordinator_config(options),
            auto_create_topics=options.auto_create_topics,
            listeners=self._listener_options(),
            new_service=lambda node: CallService(node, self.recorder, self.injector),
            static_configs=static_configs(options),
        )
        self.recorder = ExchangeRecorder(
            options.history_limit, max_bytes=options.history_bytes, payloads=options.history_payloads
        )
        self.injector: Injector[KafkaInjection] = Injector()
        if options.security is not None:
            self.state.controller.scram_users.add_passwords(passwords_of(options.security), self._rng)
        self._entered = False

    def __repr__(self) -> str:
        return f"<ClusterRuntime {len(self.state.nodes)} nodes>"

    def _listener_options(self) -> ListenerOptions:
        """Raise ConfigError for certificates that cannot be read."""
        options = self.options
        return ListenerOptions(
            connect=connection_factory(options.security),
            new_authenticator=self._new_authenticator,
            protocol="PLAINTEXT" if options.security is None else options.security.protocol,
            queued_max_request_bytes=options.queued_max_request_bytes,
            connections_max_idle=options.connections_max_idle,
        )

    def _new_authenticator(self) -> Authenticator | None:
        security = self.options.security
        if security is None or not security.sasl:
            return None
        users, time = self.state.controller.scram_users, asyncio.get_running_loop().time
        return Authenticator(security, users, self._rng, time)

    # -- start and stop --------------------------------------------------------------------------------------

    async def start(self, seed: Callable[[], None]) -> None:
        """Start all nodes; `seed` is called before they accept clients."""
        if self._entered:
            raise UsageError("an EmbeddedCluster can be entered only once; create a new one")
        _check_asyncio()
        self._entered = True
        await load_compiled()
        state = self.state
        state.clock = WallClock(asyncio.get_running_loop().time, self.options.start_time)
        state.transactions = self._new_transactions()
        self.retention = self._new_retention()
        try:
            if self._data_dir is not None:
                self.data = DataDirectory(self._data_dir, fsync=self.options.fsync)
                state.log_dir = str(self._data_dir)
                restore_controller(self.data, state.controller)
            await self._open_nodes()
            state.controller.coordinators.assign_evenly(state.controller.alive)
            if self.data is not None:
                state.transactions.restore(restored_transactions(self.data))
            seed()
            for node in state.nodes.values():  # last: clients must not see a cluster that is half started
                await node.listen()
        except BaseException:
            await self.stop()
            raise

    async def _open_nodes(self) -> None:
        options, node_ids = self.options, self.state.controller.node_ids
        ports = options.ports or [0] * options.nodes
        racks = options.racks or [None] * options.nodes
        for node_id, port, rack in zip(node_ids, ports, racks, strict=True):
            endpoint = Endpoint(options.host, self.advertised_host, port)
            node = Node(node_id, self.state, endpoint, rack=rack)
            self.state.nodes[node_id] = node
            await node.open()

    def _new_transactions(self) -> TransactionCoordinator:
        """Transaction state belongs to the cluster and survives its nodes, as `__transaction_state` does in Kafka."""
        controller = self.state.controller
        self._timers = LoopTimers(asyncio.get_running_loop())
        markers = MarkerWriter(
            controller, self._offsets_ended, self.complete_delayed_operations, self.state.clock
        )
        delay = self.options.transaction_markers_delay
        return TransactionCoordinator(controller, self._timers, markers, delay)

    def _new_retention(self) -> Retention:
        logs = ClusterLogs(
            self.state.controller,
            self._timers,
            self.state.clock,
            self.complete_delayed_operations,
            all_topics=self._data_dir is not None,
        )
        retention = Retention(logs, self.options.retention_check_interval)
        cleaner = LogCleaner(logs)

        def configs_changed(topic: Topic) -> None:
            retention.configs_changed(topic)
            cleaner.configs_changed(topic)

        logs.controller.configs_changed = configs_changed
        return retention

    async def stop(self) -> None:
        """Stop all nodes; return when every connection is closed."""
        # All nodes halt in one step without an await, so that even a cancelled exit leaves nothing running.
        self.state.ended = True
        self._timers.clear()
        self.state.controller.journal = Journal()  # leader changes caused by the shutdown are not stored
        halted = [(node, node.halt(reserve_port=False)) for node in self.state.nodes.values()]
        if self.data is not None:
            self.data.close()
        for node, _ in halted:
            node.close()
        for node, rest in halted:
            await node.wait_stopped(rest)
        self.injector.clear()
        self.state.loggers.restore()

    # -- partitions and requests -------------------------------------------------------------------------------

    def complete_delayed_operations(self, partition: Partition) -> None:
        """Check the requests parked for the partition on all nodes, after its log has changed."""
        next(iter(self.state.nodes.values())).complete_delayed_operations(partition)

    def _offsets_ended(self, partition: int, marker: TransactionMarker) -> None:
        node = self.state.nodes.get(self.state.controller.coordinators.offsets_leaders[partition])
        if node is not None:
            node.coordinator.end_transaction(marker.producer.id, partition, commit=marker.commit)

    def topic_name(self, topic_id: UUID) -> str | None:
        """Return the name of the topic with this id, None if there is none."""
        topic = self.state.controller.topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    def topics_in(self, context: RequestContext, request: Any) -> set[str]:
        """Return the names of the topics in a request, those of its fetch session included."""
        found = topic_names_in(request, self.topic_name)
        if context.api == "Fetch" and request.session_epoch > 0:
            for key, _ in self.state.nodes[context.node_id].fetch_sessions.keys(request.session_id):
                name = key if isinstance(key, str) else self.topic_name(key)
                if name is not None:
                    found.add(name)
        return found


def _check_asyncio() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError(
            "an EmbeddedCluster needs a running asyncio event loop, and there is none (is this trio?); "
            "asyncgroup.testing.KafkaServer runs one in a thread, for any kind of client"
        ) from None


def _new_controller(options: ClusterOptions, rng: random.Random) -> Controller:
    factor = options.default_replication_factor
    return Controller(
        range(1, options.nodes + 1),
        rng,
        default_partitions=options.default_partitions,
        settings=ConfigRepository.from_static(options.settings or {}),
        features=features_of(options),
        default_replication_factor=min(3, options.nodes) if factor is None else factor,
    )


def _coordinator_config(options: ClusterOptions) -> CoordinatorConfig:
    return CoordinatorConfig(**{field.name: getattr(options, field.name) for field in fields(GroupOptions)})
