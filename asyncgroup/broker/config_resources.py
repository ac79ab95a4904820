"""What AlterConfigs and IncrementalAlterConfigs have in common (Kafka's `ConfigAdminManager`,
`ConfigurationControlManager`).

Settings of topics change here. Those of nodes, groups and client metrics can be read but not changed: what this
broker does with them is fixed when it starts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from asyncgroup.broker.context import RequestContext
from asyncgroup.broker.errors import Refused
from asyncgroup.broker.node import Node
from asyncgroup.broker.topic_configs import check_configs
from asyncgroup.broker.topic_keys import LIST, TOPIC_KEYS
from asyncgroup.broker.topics import Topic, check_topic_name
from asyncgroup.error_codes import ErrorCode

__all__ = [
    "APPEND",
    "BROKER",
    "BROKER_LOGGER",
    "CLIENT_METRICS",
    "DELETE",
    "GROUP",
    "SET",
    "SUBTRACT",
    "TOPIC",
    "Change",
    "alter_all",
    "apply_changes",
    "check_node",
]

TOPIC: Final = 2
BROKER: Final = 4
BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
GROUP: Final = 32
"""Kinds of resources (`ConfigResource.Type`)."""

SET: Final = 0
DELETE: Final = 1
APPEND: Final = 2
SUBTRACT: Final = 3
"""What to do with a setting (`AlterConfigOp.OpType`)."""


class Change(NamedTuple):
    """One setting of a resource to change."""

    name: str
    operation: int
    value: str | None


Resource = tuple[int, str]
"""Kind and name."""

Changed = Callable[[Topic], Mapping[str, str | None]]
"""What the settings of a topic are to be."""


def alter_all(
    node: Node,
    context: RequestContext,
    resources: Sequence[tuple[Resource, Sequence[Change], Changed]],
    *,
    validate_only: bool,
) -> list[tuple[Resource, ErrorCode, str | None]]:
    """Change the resources, each as a whole or not at all: its result in the order of the request."""
    counts = Counter(resource for resource, _, _ in resources)
    results: list[tuple[Resource, ErrorCode, str | None]] = []
    for resource, changes, changed in resources:
        try:
            if counts[resource] > 1:
                raise Refused(ErrorCode.INVALID_REQUEST, "each resource may be named once only")
            _check_changes(changes)
            if not _resets_node(node, resource, changes):
                topic = _topic(node, context, resource)
                configs = dict(changed(topic))
                check_configs(configs)
                if not validate_only:
                    node.controller.configure_topic(topic, configs)
        except Refused as error:
            results.append((resource, error.code, str(error)))
        else:
            results.append((resource, ErrorCode.NONE, None))
    return results


def _check_changes(changes: Sequence[Change]) -> None:
    if len({change.name for change in changes}) < len(changes):
        raise Refused(ErrorCode.INVALID_REQUEST, "one setting is named twice")
    nulls = [change.name for change in changes if change.operation != DELETE and change.value is None]
    if nulls:
        raise Refused(ErrorCode.INVALID_REQUEST, f"these may not be null: {', '.join(nulls)}")


def _resets_node(node: Node, resource: Resource, changes: Sequence[Change]) -> bool:
    """Whether a node is to have no settings of its own, as it has none: `kafka-reassign-partitions` cleans up so."""
    kind, name = resource
    if kind != BROKER or not changes or any(change.operation != DELETE for change in changes):
        return False
    if name:
        check_node(node, name)
    return True


def _topic(node: Node, context: RequestContext, resource: Resource) -> Topic:
    kind, name = resource
    if kind == BROKER and name:
        check_node(node, name)
    if kind in (BROKER, BROKER_LOGGER, GROUP, CLIENT_METRICS):
        raise Refused(ErrorCode.INVALID_REQUEST, "only settings of topics can be changed here")
    if kind != TOPIC:
        raise Refused(ErrorCode.INVALID_REQUEST, f"resource type {kind} is unknown")
    if not name:
        raise Refused(ErrorCode.INVALID_REQUEST, "there are no default settings of topics")
    check_topic_name(name)
    context.check_topic(name)
    topic = node.controller.topics.get(name)
    if topic is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
    return topic


def check_node(node: Node, name: str) -> None:
    """Raises Refused(INVALID_REQUEST) unless `name` is the id of this node: each speaks for itself only."""
    try:
        number = int(name)
    except ValueError:  # also of numbers that are thousands of digits long
        raise Refused(ErrorCode.INVALID_REQUEST, f"the id of a node is a number, not {name!r}") from None
    if number != node.id:
        raise Refused(ErrorCode.INVALID_REQUEST, f"this is node {node.id}, not {name}")


def apply_changes(configs: Mapping[str, str | None], changes: Sequence[Change]) -> dict[str, str | None]:
    """The settings after some changes (KIP-339).

    Raises Refused: INVALID_CONFIG for adding to what is no list, UNKNOWN_SERVER_ERROR for an operation that does not
    exist (as Kafka answers).
    """
    result = dict(configs)
    for name, operation, value in changes:
        if operation == SET:
            result[name] = value
        elif operation == DELETE:
            result.pop(name, None)
        elif operation in (APPEND, SUBTRACT):
            result[name] = _change_list(result.get(name), name, operation, value or "")
        else:
            raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, f"operation {operation} is unknown")
    return result


def _change_list(current: str | None, name: str, operation: int, value: str) -> str:
    key = TOPIC_KEYS.get(name)
    if key is None or key.type != LIST:
        raise Refused(ErrorCode.INVALID_CONFIG, f"{name} is no list")
    parts = [part for part in (key.default if current is None else current).split(",") if part]
    for part in value.split(","):
        if operation == SUBTRACT and part in parts:
            parts.remove(part)
        elif operation == APPEND and part not in parts:
            parts.append(part)
    return ",".join(parts)
