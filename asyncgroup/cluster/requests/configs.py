"""Describe configurations: of a broker at that broker, of a group at its coordinator, of a topic at any node."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.connection_pool import Node
from asyncgroup.cluster.requests.fan_out import request_each
from asyncgroup.cluster.requests.results import Results
from asyncgroup.cluster.requests.routes import Located, Shard, Target, ToAnyNode, ToNode
from asyncgroup.errors import BrokerError
from asyncgroup.net.backoff import RetryLoop
from asyncgroup.wire import messages as m

__all__ = ["BROKER", "GROUP", "TOPIC", "ConfigResource", "Configs", "describe_configs"]

TOPIC: Final = 2
BROKER: Final = 4
GROUP: Final = 32
"""The types of resources in DescribeConfigs (`ConfigResource.Type` in Kafka)."""

_SUBJECTS: Final = {TOPIC: "topic {!r}", BROKER: "broker {}", GROUP: "group {!r}"}

Configs: TypeAlias = dict[str, str | None]
"""Values by name; that of a secret is None."""


class ConfigResource(NamedTuple):
    """What is configured."""

    kind: int
    """`TOPIC`, `BROKER` or `GROUP`."""
    name: str
    """A topic, a node id, or a group id."""

    def __str__(self) -> str:
        return _SUBJECTS[self.kind].format(self.name)


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

    async def ask(target: Target, asked: list[ConfigResource]) -> Results[ConfigResource, Configs]:
        wanted = [
            m.DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=each.kind,
                resource_name=each.name,
                configuration_keys=None if keys is None else list(keys),
            )
            for each in asked
        ]
        request = m.DescribeConfigsRequest(resources=wanted)
        response = await target.request(m.DescribeConfigsRequest, lambda _: request, timeout=timeout)
        results: Results[ConfigResource, Configs] = Results()
        for found in response.results:
            resource = ConfigResource(found.resource_type, found.resource_name)
            if found.error_code:
                what = f"configuration of {resource}"
                results.errors[resource] = BrokerError(found.error_code, what, found.error_message)
            else:
                results.values[resource] = {config.name: config.value for config in found.configs}
        return results

    return await request_each(resources, _ByResource(cluster), ask, api="DescribeConfigs", retry=retry)


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
