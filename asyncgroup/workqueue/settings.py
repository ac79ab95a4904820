"""QueueSettings: how a work queue delivers, checked; and which modes, engines and group protocols go together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from asyncgroup.checks import DURATION_OR_ZERO, FLAG, OPTIONAL_DURATION, TEXT, Rule, one_of, seconds_hint
from asyncgroup.config import ConsumerConfig
from asyncgroup.errors import ConfigError
from asyncgroup.model import Record
from asyncgroup.workqueue.group_engine.exclusive_assignor import ExclusiveAssignor
from asyncgroup.workqueue.group_engine.failover_assignor import FailoverAssignor
from asyncgroup.workqueue.modes import Mode
from asyncgroup.workqueue.policies import Backoff, DeadLetter, RetryTopic

__all__ = ["MIN_ACK_TIMEOUT", "OnAckTimeout", "QueueSettings", "consumer_config"]

MIN_ACK_TIMEOUT: Final = 1.0
"""The shortest ack timeout in seconds, as in Pulsar's Java client."""

MAX_ACK_TIMEOUT: Final = 3600.0
"""The longest ack timeout in seconds: a larger number was almost certainly meant as milliseconds."""

DEFAULT_MAX_REDELIVERIES: Final = 16
"""Redeliveries of a queue with a retry topic and no dead letter policy, as in Pulsar's Java client."""

OnAckTimeout: TypeAlias = Literal["cancel", "redeliver"]
"""What happens to the handler of `run` whose delivery has expired: it is cancelled before the record is delivered again, or it
goes on, as in Pulsar, so that two handlers may have the same record."""


def _whole(value: Any, lowest: int) -> bool:
    return type(value) is int and lowest <= value <= 0x7FFFFFFF


_COUNT: Final[Rule] = (lambda value: _whole(value, 1), "a whole number, 1 or more")
_COUNT_OR_ZERO: Final[Rule] = (lambda value: _whole(value, 0), "a whole number, 0 or more")


def _optional(kind: type) -> Rule:
    return (lambda value: value is None or isinstance(value, kind)), f"None or {kind.__name__}(…)"


def _is_ack_timeout(value: Any) -> bool:
    return bool(OPTIONAL_DURATION[0](value)) and (
        value is None or MIN_ACK_TIMEOUT <= value <= MAX_ACK_TIMEOUT
    )


def _is_group_time(value: Any) -> bool:
    is_in_ms = type(value) is int and value >= 100 and value % 100 == 0  # as Pulsar's default, 100
    return bool(DURATION_OR_ZERO[0](value)) and not is_in_ms


@dataclass(frozen=True, kw_only=True)
class QueueSettings:
    """The settings of a WorkQueue, which describes them."""

    mode: Mode
    concurrency: int
    ack_timeout: float | None
    on_ack_timeout: OnAckTimeout
    nack_backoff: Backoff
    retry: RetryTopic | None
    dead_letter: DeadLetter | None
    transactional_copies: bool
    ack_group_time: float
    ack_group_size: int
    receiver_queue: int
    receiver_queue_total: int
    receive_buffer_bytes: int
    max_waiting: int
    retry_share: float
    allow_out_of_order: bool
    ordering_key: Callable[[Record], bytes | None] | None
    priority: int
    name: str
    migrate_from: Literal["parallel-consumer"] | None
    engine: Literal["group"]

    def __post_init__(self) -> None:
        for key, (is_allowed, allowed) in _CHECKS.items():
            value = getattr(self, key)
            if not is_allowed(value):
                hint = seconds_hint(value) if "second" in allowed and isinstance(value, int | float) else ""
                raise ConfigError(key, value, allowed + hint)
        if self.transactional_copies and self.dead_letter_policy is None:
            raise ConfigError(
                "transactional_copies", True, "False without retry and dead_letter: there are no copies"
            )
        rules = _MODES[self.mode]
        for key in rules.refused:
            if getattr(self, key) != _NEUTRAL[key]:
                raise ConfigError(
                    key, getattr(self, key), f"{_NEUTRAL[key]!r} in {self.mode}: {_REASONS[key]}"
                )

    @property
    def dead_letter_policy(self) -> DeadLetter | None:
        """`dead_letter`, or with a retry topic only Pulsar's default for that."""
        if self.dead_letter is None and self.retry is not None:
            return DeadLetter(DEFAULT_MAX_REDELIVERIES)
        return self.dead_letter


_CHECKS: Final[Mapping[str, Rule]] = {
    "mode": (
        (lambda value: isinstance(value, Mode)),
        "Mode.SHARED, Mode.KEY_SHARED, Mode.FAILOVER or Mode.EXCLUSIVE",
    ),
    "concurrency": _COUNT,
    "ack_timeout": (
        _is_ack_timeout,
        f"None or a number of seconds from {MIN_ACK_TIMEOUT:g} to {MAX_ACK_TIMEOUT:g}; longer work calls delivery.renew()",
    ),
    "on_ack_timeout": one_of("cancel", "redeliver"),
    "nack_backoff": ((lambda value: isinstance(value, Backoff)), "Backoff(…), or seconds"),
    "retry": _optional(RetryTopic),
    "dead_letter": _optional(DeadLetter),
    "transactional_copies": FLAG,
    "ack_group_time": (_is_group_time, "a number of seconds, 0 or more; hundreds as a float"),
    "ack_group_size": _COUNT,
    "receiver_queue": _COUNT_OR_ZERO,
    "receiver_queue_total": _COUNT,
    "receive_buffer_bytes": _COUNT,
    "max_waiting": _COUNT,
    "retry_share": (
        (lambda value: isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1),
        "a number above 0, at most 1",
    ),
    "allow_out_of_order": FLAG,
    "ordering_key": (
        (lambda value: value is None or callable(value)),
        "None or a function (record) -> bytes or None",
    ),
    "priority": _COUNT_OR_ZERO,
    "name": TEXT,
    "engine": (
        (lambda value: value == "group"),
        "'group', a consumer group; share groups (KIP-932) are not built",
    ),
    "migrate_from": (
        (lambda value: value in (None, "parallel-consumer")),
        "None or 'parallel-consumer'",
    ),
}


# --- modes, engines and group protocols -----------------------------------------------------------------------------------


class _ModeRules(NamedTuple):
    """What a mode needs of the group, and the settings that have no meaning in it."""

    needs_classic: str | None
    """Why it needs the classic protocol; None for any protocol."""
    refused: tuple[str, ...]


_MODES: Final[Mapping[Mode, _ModeRules]] = {
    Mode.EXCLUSIVE: _ModeRules(
        "its assignor, which gives all partitions to one member, runs in a member",
        ("allow_out_of_order", "ordering_key", "priority"),
    ),
    Mode.FAILOVER: _ModeRules(
        "its assignor, which knows priorities and names, runs in a member",
        ("allow_out_of_order", "ordering_key"),
    ),
    Mode.SHARED: _ModeRules(None, ("allow_out_of_order", "ordering_key", "priority")),
    Mode.KEY_SHARED: _ModeRules(None, ("priority",)),
}

_NEUTRAL: Final[Mapping[str, Any]] = {"allow_out_of_order": False, "ordering_key": None, "priority": 0}

_REASONS: Final[Mapping[str, str]] = {
    "allow_out_of_order": "only Mode.KEY_SHARED has an order of keys",
    "ordering_key": "only Mode.KEY_SHARED has an order of keys",
    "priority": (
        "between processes only Mode.FAILOVER has priorities; those of `queue.consumer(priority=…)` hold in one process"
    ),
}


def consumer_config(
    config: ConsumerConfig | None,
    settings: QueueSettings,
    since_ms: int,
    initial_position: Literal["earliest", "latest"] | None = None,
) -> ConsumerConfig:
    """Return the configuration of the queue's group.

    Without one of the user, values in chunks are put together, and with `transactional_copies` aborted copies are not read.
    Without a setting for it, rebalances are cooperative (KIP-429), and an offset outside the log is reset to the earliest
    record. `since_ms` is the time of day in ms at which an exclusive consumer began to wait. Raises ConfigError for what
    does not go together.
    """
    if config is None:
        config = ConsumerConfig(
            chunks="assemble",
            isolation_level="read_committed" if settings.transactional_copies else "read_uncommitted",
        )
    elif not isinstance(config, ConsumerConfig):
        raise ConfigError("config", config, "None or ConsumerConfig(…)")
    if (
        settings.transactional_copies
        and settings.retry is not None
        and config.isolation_level != "read_committed"
    ):
        allowed = "'read_committed' with transactional_copies and a retry topic, else aborted copies are also delivered"
        raise ConfigError("isolation_level", config.isolation_level, allowed)
    if not config.auto_commit:
        allowed = "True: a work queue commits acknowledgements by itself; see ack_group_time"
        raise ConfigError("auto_commit", config.auto_commit, allowed)
    if initial_position is not None:
        if initial_position not in ("earliest", "latest"):
            raise ConfigError("initial_position", initial_position, "None, 'earliest' or 'latest'")
        config = replace(config, auto_offset_reset=initial_position)
    if config.out_of_range_reset is None:
        # an unacknowledged record can hold back the commit until retention deletes what follows: what is left is delivered
        config = replace(config, out_of_range_reset="earliest")
    needs_classic = _MODES[settings.mode].needs_classic
    if needs_classic is None:
        if config.assignors is None and config.group_protocol != "consumer":
            config = replace(config, assignors=("cooperative-sticky",))
        return config
    if config.group_protocol == "consumer":
        allowed = f"'classic' in {settings.mode}: {needs_classic}"
        raise ConfigError("group_protocol", config.group_protocol, allowed)
    if config.assignors is not None and config.assignors != ("cooperative-sticky",):
        raise ConfigError("assignors", config.assignors, f"None in {settings.mode}: {needs_classic}")
    assignor: ExclusiveAssignor | FailoverAssignor
    if settings.mode is Mode.EXCLUSIVE:
        assignor = ExclusiveAssignor(since_ms)
    else:
        assignor = FailoverAssignor(settings.priority, settings.name)
    return replace(config, group_protocol="classic", assignors=(assignor,))
