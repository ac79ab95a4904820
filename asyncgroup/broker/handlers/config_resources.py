"""Shared implementation of AlterConfigs and IncrementalAlterConfigs.

Kafka's `ConfigAdminManager` and `ConfigurationControlManager`. Configs of topics, nodes and groups and levels of loggers can
be altered; configs of client metrics are refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple, Protocol

from asyncgroup.broker.errors import Refused
from asyncgroup.broker.log.topic_config_keys import TOPIC_CONFIG_KEYS, ConfigKey, ConfigType
from asyncgroup.broker.log.topic_configs import check_configs
from asyncgroup.broker.loggers import LEVELS, ROOT, BrokerLoggers
from asyncgroup.broker.metadata.broker_config_keys import BROKER_CONFIG_KEYS
from asyncgroup.broker.metadata.config_repository import BROKER, GROUP
from asyncgroup.broker.metadata.group_config_keys import GROUP_CONFIG_KEYS
from asyncgroup.broker.metadata.topics import Topic, check_topic_name
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode

__all__ = [
    "BROKER",
    "BROKER_LOGGER",
    "CLIENT_METRICS",
    "GROUP",
    "TOPIC",
    "AlterConfigOp",
    "AlterResult",
    "OpType",
    "RequestedResource",
    "alter_all",
    "apply_changes",
    "check_node",
    "refuse_all",
    "replace_configs",
]

TOPIC: Final = 2
BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
"""Resource types besides BROKER and GROUP of `config_repository` (`ConfigResource.Type`)."""


class OpType(IntEnum):
    """Operations on a config (`AlterConfigOp.OpType`)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class AlterConfigOp(NamedTuple):
    """A change of one config of a resource; `operation` is an `OpType`, or unknown."""

    name: str
    operation: int
    value: str | None


Resource = tuple[int, str]
"""Type and name."""

ConfigMerge = Callable[
    [Mapping[str, str | None], Mapping[str, ConfigKey], Sequence[AlterConfigOp]], dict[str, str | None]
]
"""Computes a resource's new configs from its present ones, the rules for each and the changes."""


class AlterResult(NamedTuple):
    """The result of altering a resource, in the order of the fields in responses."""

    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str


class RequestedResource(Protocol):
    """A resource in a request."""

    resource_type: int
    resource_name: str

    @property
    def configs(self) -> Sequence[Any]:
        """The changes of its configs."""


def refuse_all(resources: Iterable[RequestedResource], code: int) -> list[AlterResult]:
    """Return the error for each resource."""
    name = ErrorCode(code).name
    return [AlterResult(code, name, each.resource_type, each.resource_name) for each in resources]


def alter_all(
    node: Node,
    context: RequestContext,
    resources: Sequence[RequestedResource],
    operation: Callable[[Any], AlterConfigOp],
    changed: ConfigMerge,
    *,
    validate_only: bool,
) -> list[AlterResult]:
    """Alter the resources, each completely or not at all; return the results in the order of the request.

    `operation` takes one of the `configs` of a resource.
    """
    wanted = [
        ((each.resource_type, each.resource_name), [operation(config) for config in each.configs])
        for each in resources
    ]
    # counted before anything is altered: each of the two is refused, not only the second
    counts = Counter(resource for resource, _ in wanted)
    results: list[AlterResult] = []
    for resource, changes in wanted:
        try:
            if counts[resource] > 1:
                raise Refused(ErrorCode.INVALID_REQUEST, "each resource may be named only once")
            # as in Kafka, before the resource is looked up: a wrong change hides a missing topic
            _check_changes(changes)
            _alter(node, context, resource, changes, changed, validate_only=validate_only)
        except Refused as error:
            results.append(AlterResult(error.code, str(error), *resource))
        else:
            results.append(AlterResult(ErrorCode.NONE, None, *resource))
    return results


def _alter(
    node: Node,
    context: RequestContext,
    resource: Resource,
    changes: Sequence[AlterConfigOp],
    changed: ConfigMerge,
    *,
    validate_only: bool,
) -> None:
    kind, name = resource
    if kind in (BROKER, GROUP):
        # the empty name is the default of all nodes, which each of them may change
        if name and kind == BROKER:
            check_node(node, name)
            # "01" is this node as well, and its configs are kept by one name
            name = str(node.id)
            if any(change.operation not in _OPERATIONS for change in changes):
                raise Refused(
                    ErrorCode.INVALID_REQUEST, "unknown operation; 0 (SET) to 3 (SUBTRACT) are allowed"
                )
        settings = node.controller.configs
        rules = _BROKER_RULES if kind == BROKER else _GROUP_RULES
        before = settings.of(kind, name)
        wanted = changed(before, rules, changes)
        # after the changes: their errors come first in Kafka
        if kind == GROUP and not name:
            raise Refused(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
        # only what changes is checked: a config of the start may be one that cannot be altered
        names = {*before, *wanted}
        kept = settings.check(kind, name, wanted, [n for n in names if before.get(n) != wanted.get(n)])
        if not validate_only:
            node.controller.alter_configs(kind, name, kept)
    elif kind == BROKER_LOGGER:
        _alter_loggers(node, name, changes, replaces=changed is replace_configs, validate_only=validate_only)
    else:
        topic = _topic(node, context, resource)
        # the configs as a whole: a value may be valid beside some others only
        configs = changed(topic.configs, TOPIC_CONFIG_KEYS, changes)
        check_configs(configs)
        if not validate_only:
            node.controller.configure_topic(topic, configs)


_OPERATIONS: Final = frozenset(OpType)
_BROKER_RULES: Final = {name: key.rule for name, key in BROKER_CONFIG_KEYS.items()}
_GROUP_RULES: Final = {name: key.rule for name, key in GROUP_CONFIG_KEYS.items()}


def replace_configs(
    _configs: Mapping[str, str | None], _rules: Mapping[str, ConfigKey], changes: Sequence[AlterConfigOp]
) -> dict[str, str | None]:
    """Return the configs after AlterConfigs: exactly those in `changes`."""
    return {change.name: change.value for change in changes}


def _alter_loggers(
    node: Node, name: str, changes: Sequence[AlterConfigOp], *, replaces: bool, validate_only: bool
) -> None:
    """Set the levels of loggers, all or none (`RuntimeLoggerManager`)."""
    # it would reset all loggers that it does not name: Kafka has only the incremental request for them (KIP-412)
    if replaces:
        raise Refused(ErrorCode.INVALID_REQUEST, f"Unknown resource type {BROKER_LOGGER}")
    check_node(node, name)
    for change in changes:
        # all of them before the first level is set: none is set if one is refused
        _check_level(node.loggers, change)
    if not validate_only:
        for change in changes:
            node.loggers.set_level(change.name, None if change.operation == OpType.DELETE else change.value)


def _check_level(loggers: BrokerLoggers, change: AlterConfigOp) -> None:
    if change.operation in (OpType.APPEND, OpType.SUBTRACT):
        what = OpType(change.operation).name
        text = f"{what} operation is not allowed for the BROKER_LOGGER resource"
        raise Refused(ErrorCode.INVALID_REQUEST, text)
    if change.operation not in _OPERATIONS:
        raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, f"unknown operation {change.operation}")
    if not loggers.exists(change.name):
        raise Refused(ErrorCode.INVALID_CONFIG, f"Logger {change.name} does not exist!")
    if change.operation == OpType.DELETE:
        if change.name == ROOT:
            text = f"Removing the log level of the {ROOT} logger is not allowed"
            raise Refused(ErrorCode.INVALID_REQUEST, text)
    elif change.value not in LEVELS:
        raise Refused(
            ErrorCode.INVALID_CONFIG,
            f"Cannot set the log level of {change.name} to {change.value} as it is not a supported log level. "
            f"Valid log levels are {', '.join(LEVELS)}",
        )


def _check_changes(changes: Sequence[AlterConfigOp]) -> None:
    if len({change.name for change in changes}) < len(changes):
        raise Refused(ErrorCode.INVALID_REQUEST, "a config is named more than once")
    nulls = [change.name for change in changes if change.operation != OpType.DELETE and change.value is None]
    if nulls:
        raise Refused(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}")


def _topic(node: Node, context: RequestContext, resource: Resource) -> Topic:
    kind, name = resource
    if kind == CLIENT_METRICS:
        raise Refused(ErrorCode.INVALID_REQUEST, "this broker does not collect client metrics")
    if kind != TOPIC:
        raise Refused(ErrorCode.INVALID_REQUEST, f"unknown resource type {kind}")
    if not name:
        raise Refused(ErrorCode.INVALID_REQUEST, "a topic config resource needs a topic name")
    check_topic_name(name)
    context.check_topic(name)
    topic = node.controller.topics.get(name)
    if topic is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    return topic


def check_node(node: Node, name: str) -> None:
    """Raise Refused(INVALID_REQUEST) unless `name` is the id of this node: a node serves only its own configs."""
    try:
        number = int(name)
    except ValueError:  # also raised for numbers of more than 4300 digits
        raise Refused(ErrorCode.INVALID_REQUEST, f"a node id must be a number, not {name!r}") from None
    if number != node.id:
        raise Refused(ErrorCode.INVALID_REQUEST, f"this is node {node.id}; send the request to node {name}")


def apply_changes(
    configs: Mapping[str, str | None], rules: Mapping[str, ConfigKey], changes: Sequence[AlterConfigOp]
) -> dict[str, str | None]:
    """Return the configs after IncrementalAlterConfigs (KIP-339).

    Raise Refused: INVALID_CONFIG for APPEND or SUBTRACT on a config that is not a list, UNKNOWN_SERVER_ERROR for an
    unknown operation (Kafka's answer).
    """
    result = dict(configs)
    for name, operation, value in changes:
        if operation == OpType.SET:
            result[name] = value
        elif operation == OpType.DELETE:
            result.pop(name, None)
        elif operation in (OpType.APPEND, OpType.SUBTRACT):
            result[name] = _change_list(result.get(name), name, rules.get(name), operation, value or "")
        else:
            raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, f"unknown operation {operation}")
    return result


def _change_list(current: str | None, name: str, key: ConfigKey | None, operation: int, value: str) -> str:
    if key is None or key.type != ConfigType.LIST:
        what = "APPEND" if operation == OpType.APPEND else "SUBTRACT"
        raise Refused(ErrorCode.INVALID_CONFIG, f"Can't {what} to key {name} because its type is not LIST.")
    # the default counts as the present value of a list that is not set
    parts = [part for part in (key.default if current is None else current).split(",") if part]
    for part in value.split(","):
        if operation == OpType.SUBTRACT and part in parts:
            parts.remove(part)
        elif operation == OpType.APPEND and part not in parts:
            parts.append(part)
    return ",".join(parts)
