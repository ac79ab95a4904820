"""Validation of values given by a user: rules for configuration keys, and checks of names, offsets and addresses."""

from __future__ import annotations

import functools
import inspect
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Final, TypeAlias

from asyncgroup.errors import ConfigError
from asyncgroup.topic_partition import TopicPartition

__all__ = [
    "BACKOFF",
    "CLOCK",
    "COUNT",
    "DURATION",
    "DURATION_OR_ZERO",
    "FLAG",
    "KEEPALIVE",
    "OPTIONAL_DURATION",
    "OPTIONAL_DURATION_OR_ZERO",
    "RETENTION",
    "SECONDS_HINT",
    "SIZE",
    "TEXT",
    "Rule",
    "check_clock",
    "check_count",
    "check_duration_or_zero",
    "check_group_id",
    "check_leader_epoch",
    "check_metadata",
    "check_offset",
    "check_partition",
    "check_partitions",
    "check_rng",
    "check_topic",
    "is_async",
    "is_legal_name",
    "may_be_async",
    "one_of",
    "parse_servers",
    "seconds_hint",
    "signature_error",
    "timedelta_hint",
    "wrong_type",
]

Rule: TypeAlias = tuple[Callable[[Any], bool], str]
"""A predicate for a value, and the text that says in an error message what is allowed."""

_INT16_MAX: Final = 0x7FFF
_INT32_MAX: Final = 0x7FFFFFFF
_INT64_MAX: Final = 0x7FFFFFFFFFFFFFFF

_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")
_PARTITION: Final = 'as ("orders", 0)'


def _number(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, float) or (isinstance(value, int) and abs(value) <= _INT64_MAX)


def _positive(value: Any) -> bool:
    return _number(value) and value > 0


def _none_or_positive(value: Any) -> bool:
    return value is None or _positive(value)


def _none_or_not_negative(value: Any) -> bool:
    return value is None or _not_negative(value)


_MAX_PAUSE: Final = 3600.0
"""Seconds: a larger number was probably meant as milliseconds."""


def _none_or_backoff(value: Any) -> bool:
    is_object = callable(value) or callable(getattr(value, "delay", None))
    is_pause = _not_negative(value) and value <= _MAX_PAUSE
    return value is None or is_pause or (is_object and not isinstance(value, type))


def _not_negative(value: Any) -> bool:
    return _number(value) and value >= 0


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _INT32_MAX


def _text(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        return len(value.encode()) <= _INT16_MAX
    except UnicodeEncodeError:
        return False


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def one_of(*names: str) -> Rule:
    """Return the rule that allows only these strings."""
    return (lambda value: value in names), "one of " + ", ".join(names)


CLOCK: Final[Rule] = (callable, "a function () -> ms since 1970")
DURATION: Final = (_positive, "a number of seconds above 0")
DURATION_OR_ZERO: Final = (_not_negative, "a number of seconds, 0 or more")
COUNT: Final = (_count, "a whole number, 0 or more")
SIZE: Final = (_size, "a whole number of bytes, 1 to 2147483647")
TEXT: Final = (_text, "a string of at most 32767 bytes")
FLAG: Final = (_flag, "True or False")
OPTIONAL_DURATION: Final = (_none_or_positive, "None or a number of seconds above 0")
OPTIONAL_DURATION_OR_ZERO: Final = (_none_or_not_negative, "None or a number of seconds, 0 or more")
KEEPALIVE: Final = (
    (lambda value: _none_or_positive(value) and (value or 0) <= _INT16_MAX),
    f"None or a number of seconds above 0, at most {_INT16_MAX}",
)
"""A TCP keepalive time: 32767 s is the largest that Linux accepts (`MAX_TCP_KEEPIDLE`)."""
RETENTION: Final = (
    (lambda value: _none_or_positive(value) and (value or 0) <= 10**15),
    "None or a number of seconds above 0, finite",
)
"""A retention time: the protocol field holds it as milliseconds in 64 bits."""
BACKOFF: Final = (
    _none_or_backoff,
    f"None, a number of seconds from 0 to {_MAX_PAUSE:g}, a function (failures) -> seconds, or a Backoff",
)

_MAX_WRAPPERS: Final = 50
"""Functions may wrap themselves, and objects with `__getattr__` have a `__wrapped__` without end."""

SECONDS_HINT: Final = "; durations are seconds: "
"""In an error message, before the duration that is probably meant."""


def seconds_hint(value: float) -> str:
    """Return a hint for an error message if a duration looks like milliseconds."""
    return f"{SECONDS_HINT}{value / 1000}?" if 100 <= value < float("inf") else ""


def timedelta_hint(value: object, allowed: str) -> str:
    """Return a hint for an error message if a timedelta was given where `allowed` names seconds."""
    if isinstance(value, timedelta) and "seconds" in allowed:
        return f"{SECONDS_HINT}{value.total_seconds()}?"
    return ""


def wrong_type(key: str, value: object, allowed: str) -> ConfigError:
    """Return the error for a value of a wrong type; it shows only the type, because the value may be a secret."""
    name = type(value).__name__
    error = ConfigError(f"{key} of type {name} is not allowed: {allowed}")
    error.key, error.value, error.allowed = key, name, allowed
    return error


def is_async(function: object) -> bool:
    """Return whether `function` is an async function, an object with an async `__call__`, or `functools.partial` of one."""
    function = _without_partial(function)
    call = getattr(function, "__call__", None)  # noqa: B004  inspected: an object's `__call__` may be async
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def may_be_async(function: object) -> bool:
    """Return whether `function` is async, or a wrapper of an async function that is not async itself (`functools.wraps`).

    Such a wrapper, as decorators for tracing return it, usually returns the coroutine; that shows only when it is called.
    """
    for _ in range(_MAX_WRAPPERS):
        if is_async(function):
            return True
        function = _without_partial(function)
        call = getattr(function, "__call__", None)  # noqa: B004
        function = getattr(function, "__wrapped__", getattr(call, "__wrapped__", None))
    return False


def _without_partial(function: object) -> object:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def signature_error(function: Callable[..., object], count: int) -> str | None:
    """Return why `function` cannot be called with `count` arguments; None if it can, or if its signature is unknown."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of compiled code
        return None
    try:
        signature.bind(*(None,) * count)
    except TypeError as error:
        return str(error)
    return None


def is_legal_name(name: str) -> bool:
    """Return whether Kafka allows `name` for a topic or a group instance id (`Topic.java`)."""
    return _NAME.match(name) is not None and name not in (".", "..")


def check_group_id(group_id: object) -> str:
    """Return the group id; raise ConfigError if it is not a string, is blank, or is longer than 32767 bytes."""
    if not isinstance(group_id, str) or not group_id.strip():
        raise ConfigError("group_id", group_id, "a string that is not empty")
    if not _text(group_id):
        raise ConfigError("group_id", group_id[:20] + "…", TEXT[1])
    return group_id


def check_topic(topic: object) -> str:
    """Return the topic name; raise ConfigError if Kafka does not allow it (`Topic.java`: 1–249 of a-z A-Z 0-9 . _ -)."""
    if not isinstance(topic, str) or not is_legal_name(topic):
        raise ConfigError(
            "topic", topic, "1 to 249 of the characters a-z A-Z 0-9 . _ -, and neither '.' nor '..'"
        )
    return topic


def check_partitions(partitions: object) -> list[TopicPartition]:
    """Return one or several partitions, each once.

    Raises ConfigError for values that are not partitions, and for invalid topics.
    """
    if isinstance(partitions, str) or not isinstance(partitions, Iterable):
        raise ConfigError("partitions", partitions, f"a partition {_PARTITION}, or several of them")
    if isinstance(partitions, tuple | list) and partitions and isinstance(partitions[0], str):
        partitions = [partitions]  # one place: its topic cannot be one of several partitions
    wanted = dict.fromkeys(check_partition(place) for place in partitions)
    for topic in {tp.topic for tp in wanted}:
        check_topic(topic)
    return list(wanted)


def check_partition(place: object) -> TopicPartition:
    """Return a topic's name and a partition's number as a TopicPartition; raise ConfigError for other values."""
    match place:
        case (str() as topic, int() as number) if 0 <= number < 1 << 31:
            return TopicPartition(topic, number)
    raise ConfigError("partition", place, f"a partition {_PARTITION}")


def check_offset(offset: Any) -> int:
    """Return the offset as an int; raise ConfigError if it is not an integer from 0 to 2**63 - 1.

    A larger offset does not fit its protocol field: once stored, it would fail every fetch and every commit, also those
    of other partitions in the same request.
    """
    try:
        number = operator.index(offset)
    except TypeError:
        number = -1
    if not 0 <= number <= _INT64_MAX:
        raise ConfigError("offset", offset, "0 or more, a whole number of at most 64 bits")
    return number


def check_metadata(metadata: object) -> str:
    """Return the commit metadata; raise ConfigError if it is not a string or is longer than 32767 bytes."""
    if not isinstance(metadata, str) or not _text(metadata):
        shown = metadata[:20] + "…" if isinstance(metadata, str) and len(metadata) > 100 else metadata
        raise ConfigError("metadata", shown, TEXT[1])
    return metadata


def check_leader_epoch(epoch: object) -> int:
    """Return the leader epoch; raise ConfigError if it is neither -1 nor a whole number of at most 32 bits."""
    if not isinstance(epoch, int) or isinstance(epoch, bool) or not -1 <= epoch <= _INT32_MAX:
        raise ConfigError("leader_epoch", epoch, "-1 for none, or a whole number of at most 32 bits")
    return epoch


def check_clock(clock: Any) -> None:
    """Raise ConfigError unless a clock can be called."""
    if not CLOCK[0](clock):
        raise ConfigError("clock", clock, CLOCK[1])


def check_rng(rng: Any) -> None:
    """Raise ConfigError unless a source of random choices is None or has the methods of `random.Random`."""
    if rng is not None and not (callable(getattr(rng, "shuffle", None)) and not isinstance(rng, type)):
        raise ConfigError("rng", rng, "None or a random.Random")


def check_count(key: str, value: Any) -> None:
    """Raise ConfigError unless `value` is an integer, 1 or more."""
    if not _count(value) or value < 1:
        raise ConfigError(key, value, "a whole number, 1 or more")


def check_duration_or_zero(key: str, value: Any) -> None:
    """Raise ConfigError unless `value` is a number of seconds, 0 or more. NaN is refused: it breaks the order of timers."""
    if not _not_negative(value):
        allowed = DURATION_OR_ZERO[1]
        raise ConfigError(key, value, allowed + timedelta_hint(value, allowed))


def parse_servers(servers: object) -> tuple[tuple[str, int], ...]:
    """Parse `host:port,host:port`, or an iterable of `host:port`, into pairs. IPv6 hosts need brackets.

    Raises ConfigError.
    """
    rule = "host:port, several separated by commas"
    if isinstance(servers, Mapping):  # librdkafka's configuration, perhaps with a password
        properties = "from_properties(…) of ConsumerConfig or ProducerConfig reads properties"
        raise ConfigError("bootstrap_servers", "[hidden]", f"{rule}; {properties}")
    if isinstance(servers, str):
        items = servers.split(",")
    elif isinstance(servers, Iterable) and not isinstance(servers, bytes):
        items = [str(item) for item in servers]
    else:
        items = []
    found = [_parse_server(item.strip(), servers, rule) for item in items if item.strip()]
    if not found:
        raise ConfigError("bootstrap_servers", servers, rule)
    return tuple(found)


def _parse_server(item: str, servers: object, rule: str) -> tuple[str, int]:
    if "@" in item:  # a URL with a user and a password in front of the host: the value must not be shown
        raise ConfigError("bootstrap_servers", "[hidden]", f"{rule}; user and password belong to security")
    if "://" in item:
        raise ConfigError("bootstrap_servers", servers, f"{rule}; without a protocol")
    host, _, port = item.rpartition(":")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ConfigError("bootstrap_servers", servers, f"{rule}; an IPv6 host needs brackets")
    host = host.strip("[]")
    if not host or " " in host or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65536:
        raise ConfigError("bootstrap_servers", servers, rule)
    return host, int(port)
