"""Configuration values: frozen, keyword-only, checked when made.

Durations are seconds (float), sizes bytes (int). Defaults are sarama's (`config.go`) where sarama has the key, Java's
otherwise. A value that is not allowed raises ConfigError naming key, value and what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Self, TypeAlias

from asyncgroup.checks import COUNT, DURATION, FLAG, PAUSE, SIZE, TEXT, Rule, is_name, one_of
from asyncgroup.errors import ConfigError

__all__ = [
    "AutoOffsetReset",
    "ClientConfig",
    "ConsumerConfig",
    "ProducerConfig",
]

AutoOffsetReset: TypeAlias = Literal["earliest", "latest", "error"]

KIB = 1024
MIB = 1024 * KIB

MAX_SECONDS = 3600.0
"""A longer duration was meant in milliseconds, all but surely."""


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """What every client of a cluster needs: connections, requests, metadata.

    - `client_id`: goes with every request; brokers show it in logs and group descriptions.
    - `connect_timeout`, `request_timeout`: seconds for a connection to stand, for a request to be answered.
    - `retry_backoff`, `retry_backoff_max`: the pause after the n-th failure is `retry_backoff * 2**n`, at most
      `retry_backoff_max`, with jitter of a fifth (KIP-580).
    - `metadata_refresh_interval`: seconds between refreshes; 0 refreshes only when something failed.
    - `metadata_retry_max`: how often a lookup is tried again before its error is raised.
    - `max_response_size`: a larger response closes the connection instead of filling the memory.
    - `connections_max_idle`: seconds after which an unused connection is closed.
    - `allow_auto_topic_creation`: whether asking for an unknown topic may make the broker create it.
    """

    client_id: str = "asyncgroup"
    connect_timeout: float = 10.0
    request_timeout: float = 30.0
    retry_backoff: float = 0.1
    retry_backoff_max: float = 2.0
    metadata_refresh_interval: float = 600.0
    metadata_retry_max: int = 5
    max_response_size: int = 100 * MIB
    connections_max_idle: float = 540.0
    allow_auto_topic_creation: bool = True

    _CHECKS: ClassVar[Mapping[str, Rule]] = {
        "client_id": TEXT,
        "connect_timeout": DURATION,
        "request_timeout": DURATION,
        "retry_backoff": PAUSE,
        "retry_backoff_max": PAUSE,
        "metadata_refresh_interval": PAUSE,
        "metadata_retry_max": COUNT,
        "max_response_size": SIZE,
        "connections_max_idle": DURATION,
        "allow_auto_topic_creation": FLAG,
    }

    def __post_init__(self) -> None:
        for cls in type(self).__mro__:
            for key, (check, allowed) in vars(cls).get("_CHECKS", {}).items():
                value = getattr(self, key)
                if not check(value):
                    raise ConfigError(key, value, allowed)
                if (check in _SECONDS) and value > MAX_SECONDS and key not in _LONG:
                    raise ConfigError(
                        key, value, f"at most {MAX_SECONDS:g}; durations are seconds: {value / 1000}?"
                    )
        self._check_together()

    def _check_together(self) -> None:
        """Rules over several keys; subclasses add theirs."""
        if self.retry_backoff > self.retry_backoff_max:
            limit = f"at most retry_backoff_max={self.retry_backoff_max!r}"
            raise ConfigError("retry_backoff", self.retry_backoff, limit + _ask_unit(self.retry_backoff))

    @classmethod
    def of(cls, config: object) -> Self:
        """What a constructor was given as its `config`, None being the defaults; raises ConfigError for other types."""
        if config is None:
            return cls()
        if not isinstance(config, cls):
            raise ConfigError("config", config, f"a {cls.__name__} or None")
        return config

    def client(self) -> dict[str, Any]:
        """The keys of ClientConfig alone, to make another client's configuration of."""
        return {field.name: getattr(self, field.name) for field in fields(ClientConfig)}


def _ask_unit(value: float) -> str:
    """The question whether a duration that is too long was meant in milliseconds."""
    return f"; durations are seconds: {value / 1000}?" if value >= 100 else ""


_SECONDS = (DURATION[0], PAUSE[0])
LEAST_WAIT = 0.001
"""The wire counts whole milliseconds."""

_LONG = frozenset({"metadata_refresh_interval", "connections_max_idle"})


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """A consumer's configuration, with or without a group.

    Group membership:

    - `session_timeout`, `heartbeat_interval`: a member that is silent for the first is expelled; it must be larger
      than the second. `rebalance_timeout`: how long the group waits for a member to rejoin, and a revoked claim's
      handler has to end.
    - `assignors`: names or assignor objects in order of preference (`range`, `roundrobin`).
    - `group_instance_id`: makes the member static (KIP-345).
    - `rejoin_backoff`, `rejoin_retry_max`: the longest pause before a failed join is tried again, and how often it is.
    - `close_timeout`: seconds for handlers to end, and for the last commit and the leave, on close or cancellation.

    Offsets: `auto_offset_reset` decides where a partition without a committed (or with an invalid) offset starts:
    `earliest`, `latest`, or `error`. `auto_commit` commits marked offsets every `auto_commit_interval` seconds.
    A commit that fails is tried again `commit_retry_max` times.

    Fetching:

    - `fetch_min_bytes`, `fetch_max_wait`: a broker answers once so many bytes are there or so many seconds over.
    - `max_partition_fetch_bytes`, `fetch_max_bytes`: limits of one answer, per partition and in all (KIP-74).
    - `buffer_bytes`: bytes that all claims of a member may hold undelivered; each is guaranteed one batch.
    - `max_processing_time`: a claim whose handler takes no record for one to two such periods while records wait is
      stalled: nothing more is fetched for it until half of its share is free.
    - `check_crcs`: whether the checksum of each record batch is verified.
    """

    session_timeout: float = 10.0
    heartbeat_interval: float = 3.0
    rebalance_timeout: float = 60.0
    assignors: tuple[Any, ...] = ("range",)
    group_instance_id: str | None = None
    rejoin_backoff: float = 2.0
    rejoin_retry_max: int = 4
    close_timeout: float = 30.0

    auto_offset_reset: AutoOffsetReset = "latest"
    auto_commit: bool = True
    auto_commit_interval: float = 1.0
    commit_retry_max: int = 3

    fetch_min_bytes: int = 1
    fetch_max_wait: float = 0.5
    fetch_max_bytes: int = 50 * MIB
    max_partition_fetch_bytes: int = MIB
    buffer_bytes: int = 64 * MIB
    max_processing_time: float = 0.1
    check_crcs: bool = True

    _CHECKS: ClassVar[Mapping[str, Rule]] = {
        "session_timeout": DURATION,
        "heartbeat_interval": DURATION,
        "rebalance_timeout": DURATION,
        "assignors": (
            (lambda value: isinstance(value, tuple) and bool(value)),
            "a tuple of at least one assignor",
        ),
        "group_instance_id": (
            (lambda value: value is None or (isinstance(value, str) and is_name(value))),
            "None, or 1 to 249 of the characters a-z A-Z 0-9 . _ -, and neither '.' nor '..'",
        ),
        "rejoin_backoff": PAUSE,
        "rejoin_retry_max": COUNT,
        "close_timeout": DURATION,
        "auto_offset_reset": one_of("earliest", "latest", "error"),
        "auto_commit": FLAG,
        "auto_commit_interval": DURATION,
        "commit_retry_max": COUNT,
        # as in sarama: with 0 a broker answers at once with nothing, and the fetcher asks again without a pause
        "fetch_min_bytes": SIZE,
        "fetch_max_wait": (
            (lambda value: DURATION[0](value) and value >= LEAST_WAIT),
            f"a number of seconds, {LEAST_WAIT} or more",
        ),
        "fetch_max_bytes": SIZE,
        "max_partition_fetch_bytes": SIZE,
        "buffer_bytes": SIZE,
        "max_processing_time": DURATION,
        "check_crcs": FLAG,
    }

    def _check_together(self) -> None:
        super()._check_together()
        if self.heartbeat_interval >= self.session_timeout:
            limit = f"below session_timeout={self.session_timeout!r}"
            raise ConfigError(
                "heartbeat_interval", self.heartbeat_interval, limit + _ask_unit(self.heartbeat_interval)
            )
        if self.fetch_max_wait >= self.request_timeout:
            limit = f"below request_timeout={self.request_timeout!r}"
            raise ConfigError("fetch_max_wait", self.fetch_max_wait, limit + _ask_unit(self.fetch_max_wait))


@dataclass(frozen=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """A producer's configuration.

    - `acks`: `all`, 1 or 0: whose copies must stand before a record counts as written.
    - `linger`: seconds to wait for more records of a partition before a batch is sent.
    - `batch_size`: bytes at which a batch is full; `max_request_size`: bytes of one request, and of one record.
    - `buffer_bytes`: bytes of records not yet acknowledged; beyond it `send` and `enqueue` wait, `send_nowait` raises.
    - `compression_type`: `none`, `gzip`, `snappy`, `lz4` or `zstd`.
    - `delivery_timeout`: seconds from `send` to the final answer; retries end then. A batch's own order is kept: a
      partition has one batch under way at a time.
    - `close_timeout`: seconds for what is not yet acknowledged when the producer closes.
    - `partitioner`: `(key, partitions) -> partition`; None is Java's (murmur2 of the key, sticky without one).
    """

    acks: Literal["all"] | int = "all"
    linger: float = 0.005
    batch_size: int = 128 * KIB
    max_request_size: int = MIB
    buffer_bytes: int = 32 * MIB
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none"
    delivery_timeout: float = 120.0
    close_timeout: float = 30.0
    partitioner: Callable[[bytes | None, int], int] | None = None

    _CHECKS: ClassVar[Mapping[str, Rule]] = {
        "acks": ((lambda value: value in ("all", 0, 1) and not isinstance(value, bool)), "'all', 1 or 0"),
        "linger": PAUSE,
        "batch_size": SIZE,
        "max_request_size": SIZE,
        "buffer_bytes": SIZE,
        "compression_type": one_of("none", "gzip", "snappy", "lz4", "zstd"),
        "delivery_timeout": DURATION,
        "close_timeout": DURATION,
        "partitioner": (
            (lambda value: value is None or callable(value)),
            "None or a function (key, partitions)",
        ),
    }

    def _check_together(self) -> None:
        super()._check_together()
        if self.delivery_timeout < self.request_timeout + self.linger:
            limit = f"at least linger + request_timeout = {self.request_timeout + self.linger!r}"
            raise ConfigError("delivery_timeout", self.delivery_timeout, limit)
