"""What brokers say of the cluster and of themselves: nodes, log directories, the controller quorum, features."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.requests.fan_out import request_apart, request_each, request_one
from asyncgroup.cluster.requests.results import Results
from asyncgroup.cluster.requests.routes import ByController, ByNode, Target, ToAnyNode, ToNode, ToOneTarget
from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode, UnsupportedVersionError
from asyncgroup.model import TopicPartition
from asyncgroup.net.backoff import RetryLoop
from asyncgroup.topic_partition import by_topic
from asyncgroup.version import __version__
from asyncgroup.wire import messages as m

__all__ = [
    "FeatureChangeRequested",
    "LogDir",
    "describe_cluster",
    "describe_features",
    "describe_log_dirs",
    "describe_quorum",
    "update_features",
]

TIMEOUT_MS: Final = 30_000
"""Milliseconds that the controller may wait until a change has reached all brokers."""

FENCED_VERSION: Final = 2
"""The first DescribeCluster version that includes fenced brokers (KIP-1073, Kafka 4.0)."""
DRY_RUN_VERSION: Final = 1
"""The first UpdateFeatures version with a dry run and kinds of downgrades (KIP-778, Kafka 3.3)."""

UPGRADE: Final = 1
"""`FeatureUpdate.UpgradeType` in Kafka; 2 and 3 are safe and unsafe downgrades."""

METADATA_TOPIC: Final = "__cluster_metadata"

LogDir: TypeAlias = "m.DescribeLogDirsResponse.DescribeLogDirsResult"


class FeatureChangeRequested(NamedTuple):
    """A new level of a feature."""

    level: int
    upgrade_type: int = UPGRADE


async def describe_cluster(
    cluster: ClusterClient, *, include_fenced: bool = False, retry: RetryLoop | None = None
) -> m.DescribeClusterResponse:
    """Return the cluster's id, controller and brokers (KIP-700, Kafka 2.8).

    Raises BrokerError, UnsupportedVersionError, and what `request_one` raises.
    """

    def build(version: int) -> m.DescribeClusterRequest:
        if include_fenced and version < FENCED_VERSION:
            raise UnsupportedVersionError("this broker does not list fenced brokers (Kafka 4.0 does)")
        return m.DescribeClusterRequest(include_fenced_brokers=include_fenced)

    async def ask(target: Target) -> m.DescribeClusterResponse:
        response = await target.request(m.DescribeClusterRequest, build)
        if response.error_code:
            raise BrokerError(response.error_code, "describing the cluster", response.error_message)
        return response

    return await request_one(ToOneTarget(ToAnyNode(cluster)), ask, api="DescribeCluster", retry=retry)


async def describe_log_dirs(
    cluster: ClusterClient,
    nodes: Iterable[int],
    partitions: Iterable[TopicPartition] | None = None,
    *,
    retry: RetryLoop | None = None,
) -> Results[int, list[LogDir]]:
    """Return the log directories of each of these nodes, with the replicas of these partitions, or all (KIP-113).

    The error of a single directory is in its description. Raises ClosedError.
    """
    topics = None
    if partitions is not None:
        describable = m.DescribeLogDirsRequest.DescribableLogDirTopic
        topics = [describable(*each) for each in by_topic(partitions).items()]

    async def ask(target: Target, asked: list[int]) -> Results[int, list[LogDir]]:
        response = await target.request(m.DescribeLogDirsRequest, lambda _: m.DescribeLogDirsRequest(topics))
        code = response.error_code
        if (
            not code and not response.results
        ):  # before version 3 a refusal has no code (as in KafkaAdminClient.java)
            code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        if code:
            return Results.failed(asked, BrokerError(code, f"log directories of {target}"))
        return Results(dict.fromkeys(asked, response.results))

    return await request_apart(nodes, ByNode(cluster), ask, api="DescribeLogDirs", retry=retry)


async def describe_quorum(
    cluster: ClusterClient, *, retry: RetryLoop | None = None
) -> m.DescribeQuorumResponse:
    """Return the state of the metadata quorum, which has exactly one partition (KIP-836, Kafka 3.3).

    Raises BrokerError, UnsupportedVersionError, and what `request_one` raises.
    """
    topic = m.DescribeQuorumRequest.TopicData(METADATA_TOPIC, [m.DescribeQuorumRequest.PartitionData(0)])
    what = "describing the metadata quorum"

    async def ask(target: Target) -> m.DescribeQuorumResponse:
        response = await target.request(m.DescribeQuorumRequest, lambda _: m.DescribeQuorumRequest([topic]))
        if response.error_code:
            raise BrokerError(response.error_code, what, response.error_message)
        found = [
            part for each in response.topics if each.topic_name == METADATA_TOPIC for part in each.partitions
        ]
        if len(found) != 1:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, what, "not one partition in the response")
        if found[0].error_code:
            raise BrokerError(found[0].error_code, what, found[0].error_message)
        return response

    return await request_one(ToOneTarget(ToAnyNode(cluster)), ask, api="DescribeQuorum", retry=retry)


async def describe_features(
    cluster: ClusterClient, *, node: int | None = None, retry: RetryLoop | None = None
) -> m.ApiVersionsResponse:
    """Return the features that this node, or any one, supports, with the cluster's finalized ones (KIP-584, Kafka 2.7).

    Raises BrokerError, and what `request_one` raises.
    """
    request = m.ApiVersionsRequest(client_software_name="asyncgroup", client_software_version=__version__)

    async def ask(target: Target) -> m.ApiVersionsResponse:
        response = await target.request(m.ApiVersionsRequest, lambda _: request)
        if response.error_code:
            raise BrokerError(response.error_code, f"describing the features of {target}")
        return response

    target = ToAnyNode(cluster) if node is None else ToNode(cluster, node)
    return await request_one(ToOneTarget(target), ask, api="ApiVersions", retry=retry)


async def update_features(
    cluster: ClusterClient,
    changes: Mapping[str, FeatureChangeRequested],
    *,
    validate_only: bool = False,
    retry: RetryLoop | None = None,
) -> Results[str, None]:
    """Change the finalized levels of features (KIP-584); since Kafka 4.0 all or none. Raises ClosedError.

    With `validate_only` the controller only checks the changes (Kafka 3.3; older ones have UnsupportedVersionError).
    """

    async def ask(target: Target, asked: list[str]) -> Results[str, None]:
        def build(version: int) -> m.UpdateFeaturesRequest:
            if validate_only and version < DRY_RUN_VERSION:
                raise UnsupportedVersionError("this broker has no dry run for features (Kafka 3.3 has)")
            updates = [_update(name, changes[name], version) for name in asked]
            return m.UpdateFeaturesRequest(TIMEOUT_MS, updates, validate_only)

        timeout = max(cluster.config.request_timeout, TIMEOUT_MS / 1000 + 1)
        response = await target.request(m.UpdateFeaturesRequest, build, timeout=timeout)
        if response.error_code:
            errors: dict[str, AsyncGroupError] = {
                name: _refused(name, response.error_code, response.error_message) for name in asked
            }
            return Results(errors=errors)
        results: Results[str, None] = Results(dict.fromkeys(asked))
        for found in response.results:
            if found.error_code:
                results.values.pop(found.feature, None)
                results.errors[found.feature] = _refused(found.feature, found.error_code, found.error_message)
        return results

    return await request_each(changes, ByController(cluster), ask, api="UpdateFeatures", retry=retry)


def _update(
    name: str, change: FeatureChangeRequested, version: int
) -> m.UpdateFeaturesRequest.FeatureUpdateKey:
    if version < DRY_RUN_VERSION:
        is_downgrade = change.upgrade_type != UPGRADE
        return m.UpdateFeaturesRequest.FeatureUpdateKey(name, change.level, allow_downgrade=is_downgrade)
    return m.UpdateFeaturesRequest.FeatureUpdateKey(name, change.level, upgrade_type=change.upgrade_type)


def _refused(name: str, code: int, detail: str | None) -> BrokerError:
    return BrokerError(code, f"updating feature {name!r}", detail)
