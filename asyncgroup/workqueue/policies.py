"""Policies of a work queue: delays before a record is delivered again, retry and dead letter topics, batches.

They are values, checked when they are made: each raises ConfigError that names the field, its value and what is allowed.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, Self

from asyncgroup.checks import is_legal_name, seconds_hint
from asyncgroup.errors import ConfigError
from asyncgroup.named_arguments import NamedArguments
from asyncgroup.workqueue.topic_names import LEGAL_TOPIC, TopicNames, check_topic_names

__all__ = [
    "Backoff",
    "BatchPolicy",
    "Breaker",
    "DeadLetter",
    "QueueArguments",
    "RetryTopic",
    "as_backoff",
    "as_dead_letter",
    "as_retry_topic",
    "check_seconds",
    "check_unit",
]

MAX_SECONDS: Final = 1e9
"""The longest delay in seconds, about 31 years: a delivery time fits its header, and timers do not overflow."""

_HOUR: Final = 3600
_DAY: Final = 24 * _HOUR
_INT16_MAX: Final = 0x7FFF
_INT32_MAX: Final = 0x7FFFFFFF
_SECONDS: Final = f"a number of seconds from 0 to {MAX_SECONDS:g}"


class QueueArguments(NamedArguments):
    """Base of WorkQueue and of its policies; see `NamedArguments`."""

    __slots__ = ()

    @classmethod
    def _argument_hint(cls, key: str, value: object, known: tuple[str, ...]) -> str:  # noqa: ARG003
        from asyncgroup.config.client import keys_by_class
        from asyncgroup.workqueue.foreign_names import argument_hint

        return argument_hint(key, known, keys_by_class()["ConsumerConfig"])


@dataclass(frozen=True, slots=True)
class Backoff(QueueArguments):
    """The delay before a record is delivered again: `initial` seconds after its first failed delivery, then each time `factor` times as long.

        Backoff(initial=1, factor=2, maximum=600)       # 1 s, 2 s, 4 s, …, 600 s
        Backoff.fixed(60)                               # 60 s after each failure

    The defaults are those of Pulsar's MultiplierRedeliveryBackoff. Raises ConfigError for a negative duration, one
    that looks like milliseconds (`Backoff(1000, 2, 60_000)`), a factor below 1, and an `initial` above `maximum`.
    """

    initial: float = 10.0
    """Seconds after the first failed delivery."""
    factor: float = 2.0
    """The factor between a delay and the next one, 1 or more."""
    maximum: float = 600.0
    """The longest delay in seconds."""

    def __post_init__(self) -> None:
        # limits, then the pair, then the units: each check relies on those before it
        check_seconds("maximum", self.maximum)
        check_seconds("initial", self.initial)
        if self.initial > self.maximum:
            allowed = f"at most maximum={self.maximum:g}{seconds_hint(self.initial)}"
            raise ConfigError("initial", self.initial, allowed)
        check_unit("initial", self.initial)
        check_unit("maximum", self.maximum)
        if not _is_number(self.factor) or not 1 <= self.factor < math.inf:
            raise ConfigError("factor", self.factor, "a number, 1 or more")

    @classmethod
    def fixed(cls, seconds: float) -> Self:
        """Return a backoff with the same delay after each failure. Raises ConfigError for a negative delay."""
        check_seconds("seconds", seconds)
        check_unit("seconds", seconds)
        return cls(seconds, 1.0, seconds)

    def delay(self, failures: int) -> float:
        """Return the delay in seconds after a record's delivery number `failures` has failed, counted from 1.

        It never becomes shorter with more failures, and is at most `maximum` for any number of them.
        """
        # 0 stays 0 also where the power overflows
        if failures <= 1 or self.factor == 1 or self.initial == 0:
            return self.initial
        try:
            return min(self.initial * float(self.factor) ** (failures - 1), self.maximum)
        # a float power overflows after some hundred failures
        except OverflowError:
            return self.maximum


def as_backoff(key: str, value: Any) -> Backoff:
    """Return the value of a setting as a Backoff: a number of seconds is a fixed delay. Raises ConfigError."""
    if isinstance(value, Backoff):
        return value
    if not _is_number(value):
        raise ConfigError(key, value, "Backoff(…), or seconds")
    check_seconds(key, value)
    check_unit(key, value)
    return Backoff(value, 1.0, value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Breaker(QueueArguments):
    """Limit of the dead letter rate: a queue stops when too many of its records are dead letters, as after a bad deployment.

    It trips when at least `minimum` of the records that ended in the last `window` seconds were copied to the dead letter topic,
    and these are more than `share` of all that ended. No further dead letter is written then, and no record is lost: further
    failed records stay unacknowledged. (The limits of arroyo's dead letter queue.)
    """

    share: float = 0.5
    """The largest share of dead letters among the records that ended, from 0 to below 1."""
    minimum: int = 100
    """The number of dead letters below which it never trips."""
    window: float = 60.0
    """Seconds over which records are counted."""

    def __post_init__(self) -> None:
        if not _is_number(self.share) or not 0 <= self.share < 1:
            hint = f"; a share, not percent: {self.share / 100:g}?" if _is_percent(self.share) else ""
            raise ConfigError("share", self.share, f"a number from 0 to below 1{hint}")
        _check_whole("minimum", self.minimum, 1)
        if not _is_number(self.window) or not 0 < self.window <= MAX_SECONDS:
            raise ConfigError("window", self.window, f"a number of seconds above 0, at most {MAX_SECONDS:g}")
        check_unit("window", self.window)


@dataclass(frozen=True, slots=True)
class RetryTopic(QueueArguments):
    """The topic that `Delivery.reconsume_later` copies records to; the queue reads it beside its own topics.

    Without `topic` its name follows from the queue's topic and group (`names`). It is created before the first copy if it does
    not exist and the broker allows that. Raises ConfigError.
    """

    topic: str | None = None
    """The name of the topic; None for the one that `names` gives."""
    _: KW_ONLY
    names: TopicNames = "pulsar"
    """How the topic is named: `pulsar`, `kafka`, `spring`, or a function (topic, group_id) -> name."""
    partitions: int | None = None
    """The number of partitions of a new topic; None means that of the queue's topic."""
    replication_factor: int | None = None
    """The replicas of each partition of a new topic; None means the broker's default."""

    def __post_init__(self) -> None:
        _check_topic("topic", self.topic)
        check_topic_names(self.names)
        _check_new_topic(self.partitions, self.replication_factor)


@dataclass(frozen=True, slots=True)
class DeadLetter(QueueArguments):
    """The topic for records whose deliveries have all failed, or that were rejected. Pulsar's DeadLetterPolicy.

    A record is delivered `max_redeliveries` + 1 times at most, over restarts and retry topics; then it is copied to the
    dead letter topic and acknowledged. Without `topic` its name follows from the queue's topic and group (`names`). It is
    created before the first copy if it does not exist and the broker allows that. Raises ConfigError.
    """

    max_redeliveries: int = 16
    """How often a record is delivered again after its first delivery has failed."""
    _: KW_ONLY
    topic: str | None = None
    """The name of the topic; None for the one that `names` gives."""
    names: TopicNames = "pulsar"
    """How the topic is named: `pulsar`, `kafka`, `spring`, or a function (topic, group_id) -> name."""
    partitions: int | None = None
    """The number of partitions of a new topic; None means that of the queue's topic."""
    replication_factor: int | None = None
    """The replicas of each partition of a new topic; None means the broker's default."""
    breaker: Breaker | None = None
    """The limit of the dead letter rate; None for no limit."""

    def __post_init__(self) -> None:
        _check_whole("max_redeliveries", self.max_redeliveries, 0)
        _check_topic("topic", self.topic)
        check_topic_names(self.names)
        _check_new_topic(self.partitions, self.replication_factor)
        # a type checker has excluded what the check is for
        breaker: object = self.breaker
        if breaker is not None and not isinstance(breaker, Breaker):
            raise ConfigError("breaker", breaker, "None or Breaker(...)")


def as_retry_topic(key: str, value: Any) -> RetryTopic | None:
    """Return the value of a setting as a RetryTopic: True for the defaults, or the name of the topic. Raises ConfigError."""
    if value is None or isinstance(value, RetryTopic):
        return value
    # before str and int: a bool is an int
    if isinstance(value, bool):
        return RetryTopic() if value else None
    if isinstance(value, str):
        return RetryTopic(value)
    raise ConfigError(key, value, "None, True, the name of a topic, or RetryTopic(…)")


def as_dead_letter(key: str, value: Any) -> DeadLetter | None:
    """Return the value of a setting as a DeadLetter: True for the defaults, or the number of redeliveries. Raises ConfigError."""
    if value is None or isinstance(value, DeadLetter):
        return value
    if isinstance(value, bool):
        return DeadLetter() if value else None
    if isinstance(value, int):
        return DeadLetter(value)
    raise ConfigError(key, value, "None, True, the number of redeliveries, or DeadLetter(…)")


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPolicy(QueueArguments):
    """The limits of a batch of `batch_receive`, which ends at the first one that is reached. Pulsar's BatchReceivePolicy.

    The first record is taken in any case, even if it is larger than `max_bytes`. Raises ConfigError if all limits are None.
    """

    max_records: int | None = None
    """The largest number of records; None for no limit."""
    max_bytes: int | None = 10 * 1024 * 1024
    """The most bytes of keys and values; None for no limit."""
    timeout: float | None = 0.1
    """Seconds after the call at which the batch ends; None for no limit."""

    def __post_init__(self) -> None:
        if self.max_records is not None:
            _check_whole("max_records", self.max_records, 1)
        if self.max_bytes is not None:
            _check_whole("max_bytes", self.max_bytes, 1)
        timeout = self.timeout
        if timeout is not None and not (_is_number(timeout) and 0 < timeout <= MAX_SECONDS):
            allowed = f"None or a number of seconds above 0, at most {MAX_SECONDS:g}"
            raise ConfigError("timeout", timeout, allowed)
        # after the type: the check of the unit takes any value
        check_unit("timeout", timeout)
        if self.max_records is None and self.max_bytes is None and timeout is None:
            raise ConfigError("max_records", None, "at least one of max_records, max_bytes and timeout")


# --- checks -----------------------------------------------------------------------------------------------------------------


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_percent(value: Any) -> bool:
    return _is_number(value) and 1 < value <= 100


def check_seconds(key: str, value: Any) -> None:
    """Raise ConfigError unless `value` is a number of seconds from 0 to MAX_SECONDS: an endless delay loses its record."""
    if not _is_number(value) or not 0 <= value <= MAX_SECONDS:
        hint = seconds_hint(value) if _is_number(value) and 0 < value <= 1e15 else ""
        raise ConfigError(key, value, _SECONDS + hint)


def check_unit(key: str, value: Any) -> None:
    """Raise ConfigError if a duration is probably in milliseconds, as Pulsar has them: a whole multiple of 1,000.

    A float is taken as it is, and so are whole hours up to a day and whole days: `5 * 3600` is 18,000.
    """
    if type(value) is not int or value < 1000 or value % 1000:
        return
    # 1000 and 60_000 look like Pulsar's milliseconds; 3600 and 7200 are more likely meant as seconds
    if value % _HOUR or (value > _DAY and value % _DAY):
        raise ConfigError(key, value, f"in seconds{seconds_hint(value)} (for {value} s write {value}.0)")


def _check_whole(key: str, value: Any, lowest: int) -> None:
    if type(value) is not int or not lowest <= value <= _INT32_MAX:
        raise ConfigError(key, value, f"a whole number from {lowest} to {_INT32_MAX}")


def _check_topic(key: str, topic: Any) -> None:
    # the source knows which of both names it can have
    if topic is not None and not (isinstance(topic, str) and (is_legal_name(topic) or "/" in topic)):
        allowed = f"None, or {LEGAL_TOPIC}"
        raise ConfigError(key, topic, allowed)


def _check_new_topic(partitions: Any, replication_factor: Any) -> None:
    for key, value, highest in (
        ("partitions", partitions, _INT32_MAX),
        ("replication_factor", replication_factor, _INT16_MAX),
    ):
        if value is not None and not (type(value) is int and 1 <= value <= highest):
            raise ConfigError(key, value, f"None or a whole number from 1 to {highest}")
