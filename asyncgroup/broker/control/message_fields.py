"""Find the group ids, topic names and error codes in a request or response of any API."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias
from uuid import UUID

from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import ConfigError
from asyncgroup.wire.message import Message

__all__ = ["TopicName", "errors_in", "group_ids_in", "parse_error_code", "topic_names_in"]

TopicName: TypeAlias = Callable[[UUID], str | None]
"""Returns the name of the topic with this id, None if there is none."""

_KNOWN = {code.value: code for code in ErrorCode}


def group_ids_in(request: Any) -> list[str]:
    """Return the group ids in a request."""
    found = [getattr(request, "group_id", None)]
    if getattr(request, "key_type", None) == 0:  # FindCoordinator for groups
        found += [request.key, *request.coordinator_keys]
    found += getattr(request, "groups_names", [])
    for group in getattr(request, "groups", []):
        found.append(group if isinstance(group, str) else group.group_id)
    return [group for group in found if group]


def topic_names_in(message: Any, topic_name: TopicName) -> set[str]:
    """Return the names of the topics in a request or response, which has them by name or by id."""
    found: set[str] = set(getattr(message, "topic_names", None) or [])
    found.update(getattr(message, "subscribed_topic_names", None) or [])
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


def parse_error_code(error: int | str, key: str) -> ErrorCode:
    """Return the error with this code or name. Raise ConfigError for the argument `key` if there is none."""
    try:
        return ErrorCode[error] if isinstance(error, str) else ErrorCode(error)
    except (KeyError, ValueError):
        raise ConfigError(key, error, "one of Kafka's error codes or its name") from None


def errors_in(response: Any) -> list[ErrorCode]:
    """Return all errors in a response, in the order of its fields."""
    return [code for code in _codes(response) if code != ErrorCode.NONE]


def _codes(value: object) -> Iterator[ErrorCode]:
    if isinstance(value, Message):
        for name in value.__slots__:
            field = getattr(value, name)
            if name.endswith("error_code"):  # also partition_error_code
                yield _KNOWN.get(field, ErrorCode.UNKNOWN_SERVER_ERROR)
            elif isinstance(field, (Message, list)):
                yield from _codes(field)
    elif isinstance(value, list):
        for one in value:
            yield from _codes(one)
