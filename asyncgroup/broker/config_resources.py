"""What AlterConfigs and IncrementalAlterConfigs have in common (Kafka's `ConfigAdminManager`,
`ConfigurationControlManager`).

Settings of topics, of nodes and of groups change here; those of client metrics do not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from asyncgroup.broker.broker_keys import BROKER_KEYS, GROUP_KEYS
from asyncgroup.broker.context import RequestContext
from asyncgroup.broker.errors import Refused
from asyncgroup.broker.node import Node
from asyncgroup.broker.settings import BROKER, GROUP
from asyncgroup.broker.topic_configs import check_configs
from asyncgroup.broker.topic_keys import LIST, TOPIC_KEYS, TopicKey
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
    "replaced",
]

TOPIC: Final = 2
BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
"""Kinds of resources besides those of `settings` (`ConfigResource.Type`)."""

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

Changed = Callable[
    [Mapping[str, str | None], Mapping[str, TopicKey], Sequence[Change]], dict[str, str | None]
]
"""What settings are to be: from those of now, the rules for them and the changes."""


def alter_all(
    node: Node,
    context: RequestContext,
    resources: Sequence[tuple[Resource, Sequence[Change]]],
    changed: Changed,
    *,
    validate_only: bool,
) -> list[tuple[Resource, ErrorCode, str | None]]:
    """Change the resources, each as a whole or not at all: its result in the order of the request."""
    counts = Counter(resource for resource, _ in resources)
    results: list[tuple[Resource, ErrorCode, str | None]] = []
    for resource, changes in resources:
        try:
            if counts[resource] > 1:
                raise Refused(ErrorCode.INVALID_REQUEST, "each resource may be named once only")
            _check_changes(changes)
            _alter(node, context, resource, changes, changed, validate_only=validate_only)
        except Refused as error:
            results.append((resource, error.code, str(error)))
        else:
            results.append((resource, ErrorCode.NONE, None))
    return results


def _alter(
    node: Node,
    context: RequestContext,
    resource: Resource,
    changes: Sequence[Change],
    changed: Changed,
    *,
    validate_only: bool,
) -> None:
    kind, name = resource
    if kind in (BROKER, GROUP):
        if name and kind == BROKER:
            check_node(node, name)
            name = str(node.id)
            if any(change.operation not in _OPERATIONS for change in changes):
                raise Refused(ErrorCode.INVALID_REQUEST, "an operation is unknown")
        settings = node.controller.settings
        rules = _BROKER_RULES if kind == BROKER else _GROUP_RULES
        before = settings.of(kind, name)
        wanted = changed(before, rules, changes)
        if kind == GROUP and not name:
            raise Refused(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
        names = {*before, *wanted}
        kept = settings.check(kind, name, wanted, [n for n in names if before.get(n) != wanted.get(n)])
        if not validate_only:
            node.controller.alter_settings(kind, name, kept)
    elif kind == BROKER_LOGGER:
        _alter_loggers(node, name, changes, replaces=changed is replaced)
    else:
        topic = _topic(node, context, resource)
        configs = changed(topic.configs, TOPIC_KEYS, changes)
        check_configs(configs)
        if not validate_only:
            node.controller.configure_topic(topic, configs)


_OPERATIONS: Final = frozenset({SET, DELETE, APPEND, SUBTRACT})
_BROKER_RULES: Final = {name: key.rule for name, key in BROKER_KEYS.items()}
_GROUP_RULES: Final = {name: key.rule for name, key in GROUP_KEYS.items()}


def replaced(
    _configs: Mapping[str, str | None], _rules: Mapping[str, TopicKey], changes: Sequence[Change]
) -> dict[str, str | None]:
    """The settings after AlterConfigs: those that are named, and no others."""
    return {change.name: change.value for change in changes}


def _alter_loggers(node: Node, name: str, changes: Sequence[Change], *, replaces: bool) -> None:
    """Refuse: this broker has no loggers to alter, like a Kafka that logs without log4j."""
    if replaces:
        raise Refused(ErrorCode.INVALID_REQUEST, f"Unknown resource type {BROKER_LOGGER}")
    check_node(node, name)
    for change in changes:
        if change.operation in (APPEND, SUBTRACT):
            what = "APPEND" if change.operation == APPEND else "SUBTRACT"
            raise Refused(
                ErrorCode.INVALID_REQUEST, f"{what} operation is not allowed for the BROKER_LOGGER resource"
            )
        raise Refused(ErrorCode.INVALID_CONFIG, f"Logger {change.name} does not exist!")


def _check_changes(changes: Sequence[Change]) -> None:
    if len({change.name for change in changes}) < len(changes):
        raise Refused(ErrorCode.INVALID_REQUEST, "one setting is named twice")
    nulls = [change.name for change in changes if change.operation != DELETE and change.value is None]
    if nulls:
        raise Refused(ErrorCode.INVALID_REQUEST, f"these may not be null: {', '.join(nulls)}")


def _topic(node: Node, context: RequestContext, resource: Resource) -> Topic:
    kind, name = resource
    if kind == CLIENT_METRICS:
        raise Refused(ErrorCode.INVALID_REQUEST, "clients are not asked for metrics here")
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


def apply_changes(
    configs: Mapping[str, str | None], rules: Mapping[str, TopicKey], changes: Sequence[Change]
) -> dict[str, str | None]:
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
            result[name] = _change_list(result.get(name), name, rules.get(name), operation, value or "")
        else:
            raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, f"operation {operation} is unknown")
    return result


def _change_list(current: str | None, name: str, key: TopicKey | None, operation: int, value: str) -> str:
    if key is None or key.type != LIST:
        raise Refused(ErrorCode.INVALID_CONFIG, f"{name} is no list")
    parts = [part for part in (key.default if current is None else current).split(",") if part]
    for part in value.split(","):
        if operation == SUBTRACT and part in parts:
            parts.remove(part)
        elif operation == APPEND and part not in parts:
            parts.append(part)
    return ",".join(parts)
