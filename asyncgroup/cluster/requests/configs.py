"""Describe and alter configurations: of a broker at that broker, of a group at its coordinator, of a topic at any node."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.connection_pool import Node
from asyncgroup.cluster.requests.actions import ERRORS, ErrorTable
from asyncgroup.cluster.requests.fan_out import request_apart, request_each
from asyncgroup.cluster.requests.results import Results
from asyncgroup.cluster.requests.routes import Located, Shard, Target, ToAnyNode, ToNode
from asyncgroup.errors import BrokerError
from asyncgroup.net.backoff import RetryLoop
from asyncgroup.wire import messages as m

__all__ = [
    "BROKER",
    "GROUP",
    "TOPIC",
    "ConfigChange",
    "ConfigResource",
    "Configs",
    "DescribedConfig",
    "alter_configs",
    "describe_all_configs",
    "describe_configs",
]

TOPIC: Final = 2
BROKER: Final = 4
GROUP: Final = 32
"""The types of resources in DescribeConfigs (`ConfigResource.Type` in Kafka)."""

_SUBJECTS: Final = {TOPIC: "topic {!r}", BROKER: "broker {}", GROUP: "group {!r}"}

Configs: TypeAlias = dict[str, str | None]
"""Values by name; that of a secret is None."""


DescribedConfig: TypeAlias = "m.DescribeConfigsResponse.DescribeConfigsResourceResult"


class ConfigChange(NamedTuple):
    """A change of one configuration of a resource."""

    name: str
    operation: int
    """0 set, 1 delete, 2 append, 3 subtract (`AlterConfigOp.OpType` in Kafka)."""
    value: str | None


class ConfigResource(NamedTuple):
    """What is configured."""

    kind: int
    """`TOPIC`, `BROKER` or `GROUP`."""
    name: str
    """A topic, a node id, or a group id."""

    def __str__(self) -> str:
        # a broker may answer for a kind that nothing asked for
        return _SUBJECTS.get(self.kind, f"{{!r}} of kind {self.kind}").format(self.name)


async def describe_configs(
    cluster: ClusterClient,
    resources: Iterable[ConfigResource],
    keys: Collection[str] | None = None,
    *,
    timeout: float | None = None,
    retry: RetryLoop | None = None,
) -> Results[ConfigResource, Configs]:
    """Return the configuration of each resource: these keys, or all. Raises ClosedError.

    A key that the broker does not know is left out. `timeout` is that of one request in seconds, default `request_timeout`.
    """
    described = await describe_all_configs(
        cluster, resources, keys, synonyms=False, timeout=timeout, retry=retry
    )
    values = {
        resource: {config.name: config.value for config in configs}
        for resource, configs in described.values.items()
    }
    return Results(values, described.errors)


async def describe_all_configs(
    cluster: ClusterClient,
    resources: Iterable[ConfigResource],
    keys: Collection[str] | None = None,
    *,
    synonyms: bool = True,
    timeout: float | None = None,
    retry: RetryLoop | None = None,
    table: ErrorTable = ERRORS,
) -> Results[ConfigResource, list[DescribedConfig]]:
    """As `describe_configs`, with all that the broker says of each configuration."""

    async def ask(
        target: Target, asked: list[ConfigResource]
    ) -> Results[ConfigResource, list[DescribedConfig]]:
        wanted = [
            m.DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=each.kind,
                resource_name=each.name,
                configuration_keys=None if keys is None else list(keys),
            )
            for each in asked
        ]
        request = m.DescribeConfigsRequest(resources=wanted, include_synonyms=synonyms)
        response = await target.request(m.DescribeConfigsRequest, lambda _: request, timeout=timeout)
        results: Results[ConfigResource, list[DescribedConfig]] = Results()
        for found in response.results:
            resource = ConfigResource(found.resource_type, found.resource_name)
            if found.error_code:
                what = f"configuration of {resource}"
                results.errors[resource] = BrokerError(found.error_code, what, found.error_message)
            else:
                results.values[resource] = list(found.configs)
        return results

    return await request_apart(
        resources, _ByResource(cluster), ask, api="DescribeConfigs", retry=retry, table=table
    )


async def alter_configs(
    cluster: ClusterClient,
    wanted: Mapping[ConfigResource, Sequence[ConfigChange]],
    *,
    validate_only: bool = False,
    retry: RetryLoop | None = None,
    table: ErrorTable = ERRORS,
) -> Results[ConfigResource, None]:
    """Change these configurations and leave the others as they are (KIP-339, Kafka 2.3). Raises ClosedError.

    Each resource is changed completely or not at all. With `validate_only` the changes are only checked.
    """

    async def ask(target: Target, asked: list[ConfigResource]) -> Results[ConfigResource, None]:
        changed = [_altered(each, wanted[each]) for each in asked]
        request = m.IncrementalAlterConfigsRequest(changed, validate_only)
        response = await target.request(m.IncrementalAlterConfigsRequest, lambda _: request)
        results: Results[ConfigResource, None] = Results()
        for found in response.responses:
            resource = ConfigResource(found.resource_type, found.resource_name)
            if found.error_code:
                what = f"altering the configuration of {resource}"
                results.errors[resource] = BrokerError(found.error_code, what, found.error_message)
            else:
                results.values[resource] = None
        return results

    route = _ByResource(cluster)
    return await request_each(wanted, route, ask, api="IncrementalAlterConfigs", retry=retry, table=table)


def _altered(
    resource: ConfigResource, changes: Sequence[ConfigChange]
) -> m.IncrementalAlterConfigsRequest.AlterConfigsResource:
    request = m.IncrementalAlterConfigsRequest
    configs = [request.AlterableConfig(change.name, change.operation, change.value) for change in changes]
    return request.AlterConfigsResource(resource.kind, resource.name, configs)


class _ByResource:
    """A broker describes only its own static configuration, and a group's is asked for where its members are."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster

    async def locate(self, keys: Sequence[ConfigResource]) -> Located[ConfigResource]:
        """See `RequestRoute`."""
        groups = {each.name: each for each in keys if each.kind == GROUP}
        addresses, errors = await self._cluster.coordinators.locate_each(groups) if groups else ({}, {})
        by_node: dict[Node | None, list[ConfigResource]] = {}
        for each in keys:
            if each.kind == BROKER:
                by_node.setdefault(int(each.name), []).append(each)
            elif each.kind != GROUP:
                by_node.setdefault(None, []).append(each)
            elif each.name in addresses:
                by_node.setdefault(addresses[each.name], []).append(each)
        shards = [
            Shard(ToAnyNode(self._cluster) if node is None else ToNode(self._cluster, node), part)
            for node, part in by_node.items()
        ]
        return Located(shards, {groups[name]: error for name, error in errors.items()})

    def forget(self, shard: Shard[ConfigResource], key: ConfigResource) -> None:
        """See `RequestRoute`. Any node answers for a group: one that does not is no reason to look its coordinator up."""
