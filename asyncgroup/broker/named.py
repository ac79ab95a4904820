"""What a request or response names: groups, topics, error codes, wherever its message keeps them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias
from uuid import UUID

from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import ConfigError
from asyncgroup.wire.message import Message

__all__ = ["TopicName", "error_named", "errors_in", "groups_of", "topics_of"]

TopicName: TypeAlias = Callable[[UUID], str | None]
"""The name of a topic with this id, if there is one."""

_KNOWN = {code.value: code for code in ErrorCode}


def groups_of(request: Any) -> list[str]:
    """The group ids that a request names, whatever its message calls them."""
    found = [getattr(request, "group_id", None)]
    if getattr(request, "key_type", None) == 0:  # FindCoordinator for groups
        found += [request.key, *request.coordinator_keys]
    found += getattr(request, "groups_names", [])
    for group in getattr(request, "groups", []):
        found.append(group if isinstance(group, str) else group.group_id)
    return [group for group in found if group]


def topics_of(message: Any, topic_name: TopicName) -> set[str]:
    """The names of the topics that a request or response names, by name or by id."""
    found: set[str] = set(getattr(message, "topic_names", None) or [])
    listed = [*(getattr(message, "topics", None) or []), *(getattr(message, "topic_data", None) or [])]
    for part in ("v3_and_below_topics", "topic_partitions", "responses"):
        listed += getattr(message, part, None) or []
    for part in ("groups", "transactions", "markers"):
        for one in getattr(message, part, None) or []:
            listed += getattr(one, "topics", None) or []
    for topic in listed:
        name = getattr(topic, "name", None) or getattr(topic, "topic", None)
        topic_id = getattr(topic, "topic_id", None)
        name = name or (topic_name(topic_id) if topic_id is not None else None)
        if name:
            found.add(name)
    return found


def error_named(error: int | str, key: str) -> ErrorCode:
    """The error of this code or this name; ConfigError, about the argument `key`, if there is none."""
    try:
        return ErrorCode[error] if isinstance(error, str) else ErrorCode(error)
    except (KeyError, ValueError):
        raise ConfigError(key, error, "one of Kafka's error codes or its name") from None


def errors_in(response: Any) -> list[ErrorCode]:
    """Every error that a response tells, anywhere in it, in the order of its fields."""
    return [code for code in _codes(response) if code != ErrorCode.NONE]


def _codes(value: object) -> Iterator[ErrorCode]:
    if isinstance(value, Message):
        for name in value.__slots__:
            field = getattr(value, name)
            if name.endswith("error_code"):  # partition_error_code, too
                yield _KNOWN.get(field, ErrorCode.UNKNOWN_SERVER_ERROR)
            elif isinstance(field, (Message, list)):
                yield from _codes(field)
    elif isinstance(value, list):
        for one in value:
            yield from _codes(one)
