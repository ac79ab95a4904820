"""QueueSettings: how a work queue delivers. Each setting is written here once: its type, default, rule, and command line option.

`WorkQueue` takes the fields as keyword arguments, in the spellings of QueueOptions; what belongs to the place that records come
from (servers, topics, configurations) is part of a source, see `sources`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypedDict

from asyncgroup.checks import (
    CLOCK,
    DURATION_OR_ZERO,
    FLAG,
    OPTIONAL_DURATION,
    TEXT,
    Rule,
    one_of,
    seconds_hint,
)
from asyncgroup.errors import ConfigError
from asyncgroup.model import MillisClock, Record, wall_clock
from asyncgroup.workqueue.modes import Mode, as_mode
from asyncgroup.workqueue.policies import (
    Backoff,
    DeadLetter,
    RetryTopic,
    as_backoff,
    as_dead_letter,
    as_retry_topic,
)

__all__ = ["MIN_ACK_TIMEOUT", "CommandLineOption", "OnAckTimeout", "QueueOptions", "QueueSettings"]

MIB: Final = 1024 * 1024

MIN_ACK_TIMEOUT: Final = 1.0
"""The shortest ack timeout in seconds, as in Pulsar's Java client."""

MAX_ACK_TIMEOUT: Final = 3600.0
"""The longest ack timeout in seconds: a larger number was almost certainly meant as milliseconds."""

DEFAULT_MAX_REDELIVERIES: Final = 16
"""Redeliveries of a queue with a retry topic and no dead letter policy, as in Pulsar's Java client."""

OnAckTimeout: TypeAlias = Literal["cancel", "redeliver"]
"""What happens to the handler of `run` whose delivery has expired: it is cancelled before the record is delivered again, or it
goes on, as in Pulsar, so that two handlers may have the same record."""

InitialPosition: TypeAlias = Literal["earliest", "latest"]


class CommandLineOption(NamedTuple):
    """The option of `asyncgroup work` for a setting."""

    name: str
    kind: Literal["choice", "count", "seconds", "seconds or zero", "flag", "count or zero"]
    help: str
    """Without the default, which follows in parentheses."""
    metavar: str | None = None
    default: str | None = None
    """The default in words, if it is None or another value than that of the setting."""


# --- rules ------------------------------------------------------------------------------------------------------------------


def _whole(value: Any, lowest: int) -> bool:
    return type(value) is int and lowest <= value <= 0x7FFFFFFF


_COUNT: Final[Rule] = (lambda value: _whole(value, 1), "a whole number, 1 or more")
_COUNT_OR_ZERO: Final[Rule] = (lambda value: _whole(value, 0), "a whole number, 0 or more")
_INITIAL_POSITION: Final[Rule] = (
    lambda value: value in (None, "earliest", "latest"),
    "None, 'earliest' or 'latest'",
)
_FUNCTION: Final[Rule] = (
    lambda value: value is None or callable(value),
    "None or a function (record) -> object",
)
_KEY_FUNCTION: Final[Rule] = (
    lambda value: value is None or callable(value),
    "None or a function (record) -> bytes or None",
)
_SHARE: Final[Rule] = (
    lambda value: isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1,
    "a number above 0, at most 1",
)
_CHECKED: Final[Rule] = (lambda _value: True, "")
"""The conversion has checked the value."""


def _is_ack_timeout(value: Any) -> bool:
    return bool(OPTIONAL_DURATION[0](value)) and (
        value is None or MIN_ACK_TIMEOUT <= value <= MAX_ACK_TIMEOUT
    )


_ACK_TIMEOUT: Final[Rule] = (
    _is_ack_timeout,
    f"None or a number of seconds from {MIN_ACK_TIMEOUT:g} to {MAX_ACK_TIMEOUT:g}; longer work calls delivery.renew()",
)


def _is_group_time(value: Any) -> bool:
    is_in_ms = type(value) is int and value >= 100 and value % 100 == 0  # as Pulsar's default, 100
    return bool(DURATION_OR_ZERO[0](value)) and not is_in_ms


_GROUP_TIME: Final[Rule] = (_is_group_time, "a number of seconds, 0 or more; hundreds as a float")


def _setting(
    default: Any,
    rule: Rule = _CHECKED,
    *,
    convert: Callable[[str, Any], Any] | None = None,
    option: CommandLineOption | None = None,
) -> Any:
    """Return a field; `convert(name, value)` makes the stored value of what a user gives, before it is checked."""
    return field(default=default, metadata={"rule": rule, "convert": convert, "option": option})


# --- the settings -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class QueueSettings:
    """How a WorkQueue delivers. Raises ConfigError for invalid values, and for settings that have no meaning in the mode."""

    mode: Mode = _setting(
        Mode.SHARED,
        convert=as_mode,
        option=CommandLineOption(
            "--mode", "choice", "how records are distributed, as Pulsar's subscription types"
        ),
    )
    """How records are distributed among the consumers of the subscription, see Mode; also its name."""
    concurrency: int = _setting(
        100,
        _COUNT,
        option=CommandLineOption(
            "--concurrency", "count", "the maximum number of handlers that run concurrently", "N"
        ),
    )
    """The maximum number of handlers that `run` runs concurrently."""
    initial_position: InitialPosition | None = _setting(
        None,
        _INITIAL_POSITION,
        option=CommandLineOption(
            "--from",
            "choice",
            "where to start in partitions without a committed offset",
            default="auto.offset.reset, or latest",
        ),
    )
    """Where a subscription begins that has no position yet; None: as its source says (`auto_offset_reset` of a group)."""
    ack_timeout: float | None = _setting(
        None,
        _ACK_TIMEOUT,
        option=CommandLineOption(
            "--ack-timeout",
            "seconds",
            "deliver a record again that was not acknowledged within S seconds",
            "S",
            "no timeout",
        ),
    )
    """Seconds after which a delivery that was not ended has failed, from when the handler or the task gets it; None: never."""
    on_ack_timeout: OnAckTimeout = _setting("cancel", one_of("cancel", "redeliver"))
    """Whether `run` cancels the handler first, or lets it go on, as Pulsar does."""
    nack_backoff: Backoff = _setting(
        Backoff(60.0, 1.0, 60.0),
        convert=as_backoff,
        option=CommandLineOption(
            "--nack-delay",
            "seconds or zero",
            "seconds before a record whose handler raised is delivered again",
            "S",
            "60",
        ),
    )
    """The delay before a nacked record is delivered again; also a number of seconds."""
    retry: RetryTopic | None = _setting(
        None,
        convert=as_retry_topic,
        option=CommandLineOption("--retry", "flag", "allow delivery.reconsume_later(), by a retry topic"),
    )
    """The topic of `Delivery.reconsume_later`, which the queue also reads; True for RetryTopic(), a name for RetryTopic(name)."""
    dead_letter: DeadLetter | None = _setting(
        None,
        convert=as_dead_letter,
        option=CommandLineOption(
            "--max-redeliveries",
            "count or zero",
            "copy a record to the dead letter topic when its delivery number N + 1 has failed",
            "N",
            "deliver it again without limit",
        ),
    )
    """After how many redeliveries a record is copied to which topic; also the number alone, True for Pulsar's 16.

    With `retry` alone it is DeadLetter(16), as in Pulsar; without both a record is delivered until it is acknowledged. A copy
    that cannot be written is tried again; the record is acknowledged when the broker has acknowledged the copy.
    """
    ack_group_time: float = _setting(0.1, _GROUP_TIME)
    """Seconds after an acknowledgement at which it is committed with all others; 0: each is committed at once."""
    ack_group_size: int = _setting(1000, _COUNT)
    """The number of acknowledgements after which they are committed before that time.

    With acknowledgements of more than 64 partitions it is the number for each 64 of them, unless one partition has as many: a
    commit costs in proportion to its partitions.
    """
    receiver_queue: int = _setting(1000, _COUNT_OR_ZERO)
    """Records of a partition that are prefetched; more are fetched when half of them are delivered.

    0 prefetches none: a record is fetched when a task waits for one.
    """
    receiver_queue_total: int = _setting(50_000, _COUNT)
    """The most records that are prefetched, of all partitions: each has at most its part."""
    receive_buffer_bytes: int = _setting(64 * MIB, _COUNT)
    """Memory of all records that were received and are not acknowledged, and of copies that are being written.

    About 560 bytes more are counted for each record. Each partition has its part and gets at least one record; at its limit it
    gets no more until some are acknowledged, and the others go on.
    """
    retry_share: float = _setting(0.3, _SHARE)
    """The largest share of deliveries and handlers for records that were delivered before, while there are others."""
    allow_out_of_order: bool = _setting(False, FLAG)
    """With Mode.KEY_SHARED, whether the next record of a key is delivered while an earlier one waits after a nack."""
    ordering_key: Callable[[Record], bytes | None] | None = _setting(None, _KEY_FUNCTION)
    """With Mode.KEY_SHARED, the function (record) -> bytes or None whose result orders records, the same each time.

    None: the header `ag-ordering-key`, or else the record's key; records without a key have no order. If the function raises,
    the record goes to the dead letter topic; without `dead_letter` the queue ends with that error.
    """
    priority: int = _setting(0, _COUNT_OR_ZERO)
    """With Mode.FAILOVER, which consumer is active: 0 is the highest priority, see FailoverAssignor."""
    name: str = _setting("", TEXT)
    """With Mode.FAILOVER, the name by which consumers of the same priority are ordered."""
    decode: Callable[[Record], object] | None = _setting(None, _FUNCTION)
    """A function (record) -> object whose result is `Delivery.decoded`.

    A record for which it raises is copied to the dead letter topic at once, with its bytes as they are; without such a topic it
    is nacked.
    """
    interceptors: tuple[object, ...] = _setting(())
    """Objects with methods of QueueInterceptor, called in their order."""
    clock: MillisClock = _setting(wall_clock, CLOCK)
    """Returns the time of day in ms, which delivery times are compared with."""

    def __post_init__(self) -> None:
        for each in fields(self):
            self._check(each.name, **each.metadata)
        for key in _REFUSED[self.mode]:
            if (value := getattr(self, key)) != getattr(QueueSettings, key):
                raise ConfigError(
                    key, value, f"{getattr(QueueSettings, key)!r} in {self.mode}: {_REASONS[key]}"
                )

    def _check(self, key: str, rule: Rule, convert: Callable[[str, Any], Any] | None, option: object) -> None:  # noqa: ARG002
        value = getattr(self, key)
        if convert is not None:
            value = convert(key, value)
            object.__setattr__(self, key, value)
        is_allowed, allowed = rule
        if not is_allowed(value):
            hint = seconds_hint(value) if "second" in allowed and isinstance(value, int | float) else ""
            raise ConfigError(key, value, allowed + hint)

    @property
    def dead_letter_policy(self) -> DeadLetter | None:
        """`dead_letter`, or with a retry topic only Pulsar's default for that."""
        if self.dead_letter is None and self.retry is not None:
            return DeadLetter(DEFAULT_MAX_REDELIVERIES)
        return self.dead_letter


class QueueOptions(TypedDict, total=False):
    """The keyword arguments of WorkQueue, one for each field of QueueSettings, in all spellings that are accepted."""

    mode: Mode | str
    concurrency: int
    initial_position: InitialPosition | None
    ack_timeout: float | None
    on_ack_timeout: OnAckTimeout
    nack_backoff: Backoff | float
    retry: RetryTopic | bool | str | None
    dead_letter: DeadLetter | bool | int | None
    ack_group_time: float
    ack_group_size: int
    receiver_queue: int
    receiver_queue_total: int
    receive_buffer_bytes: int
    retry_share: float
    allow_out_of_order: bool
    ordering_key: Callable[[Record], bytes | None] | None
    priority: int
    name: str
    decode: Callable[[Record], object] | None
    interceptors: Iterable[object]
    clock: MillisClock


# --- settings that have no meaning in a mode --------------------------------------------------------------------------------

_REFUSED: Final[Mapping[Mode, tuple[str, ...]]] = {
    Mode.EXCLUSIVE: ("allow_out_of_order", "ordering_key", "priority"),
    Mode.FAILOVER: ("allow_out_of_order", "ordering_key"),
    Mode.SHARED: ("allow_out_of_order", "ordering_key", "priority"),
    Mode.KEY_SHARED: ("priority",),
}

_REASONS: Final[Mapping[str, str]] = {
    "allow_out_of_order": "only Mode.KEY_SHARED has an order of keys",
    "ordering_key": "only Mode.KEY_SHARED has an order of keys",
    "priority": (
        "between processes only Mode.FAILOVER has priorities; those of `queue.consumer(priority=…)` hold in one process"
    ),
}
