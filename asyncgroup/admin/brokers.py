"""`admin.brokers`: the cluster's nodes, their log directories, the metadata quorum, and features."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from asyncgroup.admin.arguments import INT16_MAX, INT32_MAX, check_number, check_text, several
from asyncgroup.admin.broker_values import (
    BrokerDescription,
    ClusterDescription,
    FeaturesDescription,
    FeatureUpdate,
    LogDirDescription,
    LogDirReplica,
    QuorumDescription,
    QuorumEndpoint,
    QuorumReplica,
)
from asyncgroup.admin.denied import explained, needs
from asyncgroup.admin.results import AdminResults
from asyncgroup.checks import check_partitions, wrong_type
from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.requests import brokers as requests
from asyncgroup.cluster.requests.brokers import FeatureChangeRequested, LogDir
from asyncgroup.cluster.requests.budget import RequestBudget
from asyncgroup.cluster.requests.results import Results
from asyncgroup.errors import BrokerError, ConfigError, UnsupportedVersionError
from asyncgroup.topic_partition import Partitions, TopicPartition
from asyncgroup.wire import messages as m
from asyncgroup.wire.message import NO_UUID

__all__ = ["AdminBrokers"]

UPGRADE_TYPES: Final = {"UPGRADE": 1, "SAFE_DOWNGRADE": 2, "UNSAFE_DOWNGRADE": 3}
"""`FeatureUpdate.UpgradeType` in Kafka, by name."""


class AdminBrokers:
    """The brokers of the cluster: `admin.brokers`. As Kafka's `kafka-cluster.sh`, `kafka-log-dirs.sh`, `kafka-metadata-quorum.sh` and `kafka-features.sh`.

    cluster = await admin.brokers.describe()
    for node, directories in (await admin.brokers.log_dirs()).values_by_name.items():
        print(node, sum(replica.size for each in directories for replica in each.replicas))
    """

    def __init__(self, client: ClusterClient, budget: Callable[[], RequestBudget]) -> None:
        self._client = client
        self._budget = budget

    def __repr__(self) -> str:
        return f"<AdminBrokers of {self._client!r}>"

    @needs("DESCRIBE on the cluster")
    async def describe(self, *, include_fenced: bool = False) -> ClusterDescription:
        """Return the cluster's id, its controller and its brokers; with `include_fenced` those that are registered but not active as well.

        Raises UnsupportedVersionError for fenced brokers before Kafka 4.0 (KIP-1073), NoBrokersError, BrokerError.
        """
        budget = self._budget()
        try:
            found = await requests.describe_cluster(
                self._client, include_fenced=include_fenced, retry=budget.retry()
            )
        except UnsupportedVersionError:
            if include_fenced:
                raise
            await budget.limit(self._client.refresh())  # before Kafka 2.8, as KafkaAdminClient.java does
            return self._by_metadata()
        return _cluster(found)

    def _by_metadata(self) -> ClusterDescription:
        view = self._client.view
        found = (
            BrokerDescription(each.node_id, each.host, each.port, each.rack) for each in view.brokers.values()
        )
        return ClusterDescription(view.cluster_id, _known(view.controller_id), _by_node(found))

    @needs("DESCRIBE on the cluster")
    async def log_dirs(
        self, nodes: int | Iterable[int] | None = None, *, partitions: Partitions | None = None
    ) -> AdminResults[int, tuple[LogDirDescription, ...]]:
        """Return the log directories of each of these nodes, or of all, with the sizes of their replicas (KIP-113).

        With `partitions` only their replicas; one that does not exist is left out. A node that does not answer within 5 s has an
        error. Raises ConfigError for invalid node ids and partitions, NoBrokersError.
        """
        places = None if partitions is None else check_partitions(partitions)
        wanted = None if nodes is None else [_checked_node(each) for each in several("nodes", nodes)]
        budget = self._budget()
        await budget.limit(self._client.refresh())  # a new node has log directories as well
        asked = sorted(self._client.view.brokers) if wanted is None else list(dict.fromkeys(wanted))
        found = await requests.describe_log_dirs(self._client, asked, places, retry=budget.node_retry())
        values = {node: tuple(map(_log_dir, dirs)) for node, dirs in found.values.items()}
        return AdminResults(Results(values, found.errors))

    @needs("DESCRIBE on the cluster")
    async def quorum(self) -> QuorumDescription:
        """Return the active controller, and how far voters and observers of the metadata log are (KIP-836, Kafka 3.3).

        Raises UnsupportedVersionError without KRaft, NoBrokersError, BrokerError.
        """
        return _quorum(await requests.describe_quorum(self._client, retry=self._budget().retry()))

    async def features(self, *, broker: int | None = None) -> FeaturesDescription:
        """Return the features that this broker, or any one, supports, and those of the cluster.

        Raises ConfigError for an invalid node id, NoBrokersError, or the error of the broker.
        """
        node = None if broker is None else _checked_node(broker)
        found = await requests.describe_features(self._client, node=node, retry=self._budget().retry())
        return FeaturesDescription(
            supported={each.name: (each.min_version, each.max_version) for each in found.supported_features},
            finalized={each.name: each.max_version_level for each in found.finalized_features},
            epoch=_known(found.finalized_features_epoch),
        )

    @needs("ALTER on the cluster")
    async def update_features(
        self, wanted: Mapping[str, FeatureUpdate | int], *, validate_only: bool = False
    ) -> AdminResults[str, None]:
        """Change the levels of features that the cluster uses: for each name its level, or FeatureUpdate.

        All are changed or none, since Kafka 4.0. With `validate_only` the controller only checks the changes. INVALID_UPDATE_VERSION
        for a level that a broker does not support, and for a lower one that is not called a downgrade. Raises ConfigError for
        wrong values.
        """
        if not isinstance(wanted, Mapping):
            raise wrong_type("wanted", wanted, "a mapping from each feature to its level")
        checked = {_checked_feature(name): _change(name, each) for name, each in wanted.items()}
        updated = await requests.update_features(
            self._client, checked, validate_only=validate_only, retry=self._budget().retry()
        )
        return AdminResults(updated)


# --- arguments ----------------------------------------------------------------------------------------------------------


def _checked_node(node: object) -> int:
    return check_number("broker", node, INT32_MAX)


def _checked_feature(name: object) -> str:
    return check_text("feature", name, "Kafka's name, as text")


def _change(name: str, wanted: object) -> FeatureChangeRequested:
    update = wanted if isinstance(wanted, FeatureUpdate) else FeatureUpdate(wanted)  # type: ignore[arg-type]
    level = check_number(f"level of {name}", update.level, INT16_MAX)
    number = UPGRADE_TYPES.get(update.upgrade_type)
    if number is None:
        raise ConfigError("upgrade_type", update.upgrade_type, f"one of {', '.join(UPGRADE_TYPES)}")
    return FeatureChangeRequested(level, number)


# --- responses ----------------------------------------------------------------------------------------------------------


def _known(number: int) -> int | None:
    """Return the number; None for -1, which means unknown in the protocol."""
    return number if number >= 0 else None


def _by_node(found: Iterable[BrokerDescription]) -> tuple[BrokerDescription, ...]:
    return tuple(sorted(found, key=lambda each: each.node_id))


def _cluster(found: m.DescribeClusterResponse) -> ClusterDescription:
    brokers = (
        BrokerDescription(each.broker_id, each.host, each.port, each.rack, each.is_fenced)
        for each in found.brokers
    )
    return ClusterDescription(found.cluster_id, _known(found.controller_id), _by_node(brokers))


def _log_dir(found: LogDir) -> LogDirDescription:
    replicas = [
        LogDirReplica(
            TopicPartition(topic.name, part.partition_index),
            part.partition_size,
            part.offset_lag,
            part.is_future_key,
        )
        for topic in found.topics
        for part in topic.partitions
    ]
    replicas.sort(key=lambda each: (each.partition, each.is_future))
    error = BrokerError(found.error_code, f"log directory {found.log_dir!r}") if found.error_code else None
    return LogDirDescription(
        path=found.log_dir,
        replicas=tuple(replicas),
        total_bytes=_known(found.total_bytes),
        usable_bytes=_known(found.usable_bytes),
        is_cordoned=found.is_cordoned,
        error=None if error is None else explained(error, "DESCRIBE on the cluster"),
    )


def _quorum(found: m.DescribeQuorumResponse) -> QuorumDescription:
    (part,) = (part for topic in found.topics for part in topic.partitions)
    return QuorumDescription(
        leader=_known(part.leader_id),
        leader_epoch=part.leader_epoch,
        high_watermark=_known(part.high_watermark),
        voters=_replicas(part.current_voters),
        observers=_replicas(part.observers),
        endpoints={
            node.node_id: tuple(QuorumEndpoint(each.name, each.host, each.port) for each in node.listeners)
            for node in found.nodes
        },
    )


def _replicas(states: Iterable[m.DescribeQuorumResponse.ReplicaState]) -> tuple[QuorumReplica, ...]:
    found = (
        QuorumReplica(
            node_id=each.replica_id,
            log_end_offset=_known(each.log_end_offset),
            last_fetch_timestamp=_known(each.last_fetch_timestamp),
            last_caught_up_timestamp=_known(each.last_caught_up_timestamp),
            directory_id=None if each.replica_directory_id == NO_UUID else each.replica_directory_id,
        )
        for each in states
    )
    return tuple(sorted(found, key=lambda each: each.node_id))
