"""Configuration values: frozen, keyword-only, checked when made.

Durations are seconds (float), sizes bytes (int). Defaults are sarama's (`config.go`) where sarama has the key, Java's
otherwise. A value that is not allowed raises ConfigError naming key, value and what is allowed.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, ClassVar, Literal, Self, TypeAlias

from asyncgroup.checks import (
    BACKOFF,
    COUNT,
    DURATION,
    FLAG,
    KEEPALIVE,
    OPTIONAL_DURATION,
    PAUSE,
    RETENTION,
    SIZE,
    TEXT,
    Rule,
    is_name,
    one_of,
)
from asyncgroup.errors import ConfigError
from asyncgroup.properties import FromProperties, from_properties, is_secret
from asyncgroup.security import HIDDEN, Security
from asyncgroup.suggestions import suggest_key

__all__ = [
    "AutoOffsetReset",
    "ClientConfig",
    "Connector",
    "ConsumerConfig",
    "ProducerConfig",
]

AutoOffsetReset: TypeAlias = Literal["earliest", "latest", "error"] | timedelta
"""Where to read without a valid offset; a timedelta means the first record not older than that (KIP-1106)."""

Connector: TypeAlias = Callable[[str, int], Awaitable[socket.socket]]
"""Opens a TCP connection to host and port, through a proxy for example, and gives its socket (python-socks does that)."""

KIB = 1024
MIB = 1024 * KIB

MAX_SECONDS = 3600.0
"""A longer duration was meant in milliseconds, all but surely."""


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """What every client of a cluster needs: connections, requests, metadata.

    - `client_id`: goes with every request; brokers show it in logs and group descriptions.
    - `connect_timeout`: seconds for a connection to stand: TCP, TLS, versions, SASL.
    - `request_timeout`: seconds for a request to be written and answered; there are no limits for the two apart.
    - `max_in_flight_requests`: how many requests of a connection may wait for their answers; further ones wait.
    - `retry_backoff`, `retry_backoff_max`: the pause after the n-th failure is `retry_backoff * 2**n`, at most
      `retry_backoff_max`, with jitter of a fifth (KIP-580). A member of a group waits at most a tenth of `session_timeout`
      before it connects again.
    - `metadata_refresh_interval`: seconds between refreshes; 0 refreshes only when something failed.
    - `metadata_retry_max`: how often a lookup is tried again before its error is raised. `metadata_retry_backoff`:
      seconds to wait after the n-th failure (0, 1, …); None is the pause that `retry_backoff` describes.
      `metadata_timeout`: seconds for a lookup with all of its tries, None sets no limit.
    - `metadata_full`: whether all topics of the cluster are kept, or (sarama's default is otherwise) those in use only.
    - `max_response_size`: a larger response closes the connection instead of filling the memory. Nor is a record batch
      read that holds more when it is decompressed: `CorruptRecordsError`, see `on_corrupt_batch`.
    - `connections_max_idle`: seconds after which an unused connection is closed.
    - `allow_auto_topic_creation`: whether asking for an unknown topic may make the broker create it, if it is set up for
      that. A topic that is deleted while it is in use comes back by the next refresh then, empty, as in Java; with
      False it stays away.
    - `tcp_keepalive`: seconds of silence after which TCP asks whether the other end is there; None turns it off.
    - `local_address`: the address of this machine that connections start from.
    - `connector`: an async function (host, port) that opens each connection's socket; it resolves the name, too.
    - `client_dns_lookup`: `use_all_dns_ips` tries every address of a name; `resolve_canonical_bootstrap_servers_only`
      also replaces each bootstrap name by the canonical names of its addresses.
    - `security`: TLS and SASL; None is plain text.
    """

    client_id: str = "asyncgroup"
    connect_timeout: float = 10.0
    request_timeout: float = 30.0
    max_in_flight_requests: int = 5
    retry_backoff: float = 0.1
    retry_backoff_max: float = 2.0
    metadata_refresh_interval: float = 600.0
    metadata_retry_max: int = 5
    metadata_retry_backoff: Callable[[int], float] | None = None
    metadata_timeout: float | None = None
    metadata_full: bool = False
    max_response_size: int = 100 * MIB
    connections_max_idle: float = 540.0
    allow_auto_topic_creation: bool = True
    tcp_keepalive: float | None = 15.0
    local_address: str | None = None
    connector: Connector | None = None
    client_dns_lookup: Literal["use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"] = (
        "use_all_dns_ips"
    )
    security: Security | None = None

    _CHECKS: ClassVar[Mapping[str, Rule]] = {
        "client_id": TEXT,
        "connect_timeout": DURATION,
        "request_timeout": DURATION,
        "max_in_flight_requests": (
            (lambda value: COUNT[0](value) and value > 0),
            "a whole number, 1 or more",
        ),
        "retry_backoff": PAUSE,
        "retry_backoff_max": PAUSE,
        "metadata_refresh_interval": PAUSE,
        "metadata_retry_max": COUNT,
        "metadata_retry_backoff": BACKOFF,
        "metadata_timeout": OPTIONAL_DURATION,
        "metadata_full": FLAG,
        "max_response_size": SIZE,
        "connections_max_idle": DURATION,
        "allow_auto_topic_creation": FLAG,
        "tcp_keepalive": KEEPALIVE,
        "local_address": (
            (lambda value: value is None or (isinstance(value, str) and bool(value))),
            "None, or an address of this machine",
        ),
        "connector": (
            (lambda value: value is None or callable(value)),
            "None or an async function (host, port) -> socket",
        ),
        "client_dns_lookup": one_of("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
        "security": (
            (lambda value: value is None or isinstance(value, Security)),
            "None or an asyncgroup.security.Security",
        ),
    }

    def __new__(cls, *_: Any, **keys: Any) -> Self:
        """Names an unknown key, and those that it may stand for: a dataclass's own TypeError knows neither."""
        known = [field.name for field in fields(cls)]
        for key, value in keys.items():
            if key not in known:
                allowed = suggest_key(cls.__name__, key, value, {**_keys(), cls.__name__: known})
                raise ConfigError(key, HIDDEN if is_secret(key) else value, allowed)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for cls in type(self).__mro__:
            for key, (check, allowed) in vars(cls).get("_CHECKS", {}).items():
                value = getattr(self, key)
                if not check(value):
                    # what was meant to be the security settings may well hold a password
                    shown = type(value).__name__ if key == "security" else value
                    raise ConfigError(key, shown, allowed)
                if check in _SECONDS and (value or 0) > MAX_SECONDS and key not in _LONG:
                    raise ConfigError(
                        key, value, f"at most {MAX_SECONDS:g}; durations are seconds: {value / 1000}?"
                    )
        self._check_together()

    def _check_together(self) -> None:
        """Rules over several keys; subclasses add theirs."""
        if self.retry_backoff > self.retry_backoff_max:
            limit = f"at most retry_backoff_max={self.retry_backoff_max!r}"
            raise ConfigError("retry_backoff", self.retry_backoff, limit + _ask_unit(self.retry_backoff))
        for key, default in (("local_address", None), ("client_dns_lookup", "use_all_dns_ips")):
            if self.connector is not None and getattr(self, key) != default:
                raise ConfigError(key, getattr(self, key), f"{default!r}: connector opens the sockets")

    @classmethod
    def from_properties(cls, properties: Mapping[str, object], **keys: Any) -> FromProperties[Self]:
        """The configuration that Kafka's own names describe (`asyncgroup.properties`); `keys` are ours, and win.

            config, rest = ConsumerConfig.from_properties({"session.timeout.ms": "10000", "group.id": "orders"})

        `rest` has what is no configuration here: `bootstrap.servers` and `group.id`. A key that Kafka's clients know
        and that means nothing here is named in a warning. Raises ConfigError for any other, for a value that is not
        allowed, and for keys that contradict each other.
        """
        return from_properties(cls, properties, keys, _keys())

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


def _keys() -> dict[str, frozenset[str]]:
    """The keys of each configuration class, by its name."""
    classes = (ClientConfig, ConsumerConfig, ProducerConfig)
    return {cls.__name__: frozenset(field.name for field in fields(cls)) for cls in classes}


def _ask_unit(value: float) -> str:
    """The question whether a duration that is too long was meant in milliseconds."""
    return f"; durations are seconds: {value / 1000}?" if value >= 100 else ""


_SECONDS = (DURATION[0], PAUSE[0], OPTIONAL_DURATION[0])
LEAST_WAIT = 0.001
"""The wire counts whole milliseconds."""

_LONG = frozenset(
    {
        *("metadata_refresh_interval", "metadata_max_idle", "connections_max_idle", "offset_retention"),
        "tcp_keepalive",
    }
)


def _is_reset(value: object) -> bool:
    return value in ("earliest", "latest", "error") or (isinstance(value, timedelta) and value > timedelta())


_RESETS = "'earliest', 'latest', 'error' or a timedelta above 0"


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """A consumer's configuration, with or without a group.

    Group membership:

    - `session_timeout`, `heartbeat_interval`: a member that is silent for the first is expelled; it must be larger
      than the second. `rebalance_timeout`: how long the group waits for a member to rejoin; a revoked claim's handler
      has that time but for a fifth (5 s at most), counted from the last heartbeat before the rebalance.
    - `assignors`: names or assignor objects in order of preference (`range`, `roundrobin`, `sticky`).
    - `group_instance_id`: makes the member static (KIP-345).
    - `rejoin_backoff`, `rejoin_retry_max`: the longest pause before a failed join is tried again, and how often it is.
    - `close_timeout`: seconds that a close or a cancellation may take in all: handlers, `cleanup`, the last commit and
      the leave. Handlers are cancelled a fifth of it (5 s at most) before its end.
    - `user_data`: bytes that go to the group's leader with the subscription, for assignors that have none of their own.

    Offsets:

    - `auto_offset_reset`: where a partition without a committed offset starts: `earliest`, `latest`, `error`, or a
      timedelta (the first record not older than that). A partition added to its topic while the member consumes it
      starts at `earliest` whatever stands here.
    - `out_of_range_reset`: the same for an offset that the log does not hold, at the start of a claim or in the middle
      of it; None means as `auto_offset_reset`.
    - `auto_commit` commits marked offsets every `auto_commit_interval` seconds. A commit that fails is tried again
      `commit_retry_max` times.
    - `offset_retention`: seconds that brokers older than 2.1 keep commits (OffsetCommit 2 to 4); None leaves it to them.

    Fetching:

    - `fetch_min_bytes`, `fetch_max_wait`: a broker answers once so many bytes are there or so many seconds over.
    - `max_partition_fetch_bytes`, `fetch_max_bytes`: limits of one answer, per partition and in all (KIP-74). No answer
      is larger than an eighth of `buffer_bytes`, as it is in memory beside what is buffered.
    - `buffer_bytes`: bytes that all claims of a member may hold undelivered; each is guaranteed one batch.
    - `max_processing_time`: a claim whose handler takes no record for one to two such periods while records wait is
      stalled: nothing more is fetched for it until half of its share is free.
    - `check_crcs`: whether the checksum of each record batch is verified. `on_corrupt_batch`: whether a batch that
      cannot be read is an `error` for the reader, or is left out (`skip`) and reported.
    - `isolation_level`: `read_committed` hands out no record of an open or aborted transaction (KIP-98).
    - `rack_id`: where this client is, so that brokers may name a nearer replica to read from (KIP-392). One that does not
      answer, or refuses what it is asked for, is left for a minute in favour of the leader.
    - `fetch_retry_max`: how many dispatches of a partition may fail one after another before its reader gets the error;
      None tries for ever. `fetch_retry_backoff`: seconds to wait after the n-th failure (0, 1, …); None is the pause
      that `retry_backoff` describes.
    - `error_buffer`: how many errors wait for a reader of `errors()` before the oldest are dropped.
    """

    session_timeout: float = 10.0
    heartbeat_interval: float = 3.0
    rebalance_timeout: float = 60.0
    assignors: tuple[Any, ...] = ("range",)
    group_instance_id: str | None = None
    rejoin_backoff: float = 2.0
    rejoin_retry_max: int = 4
    close_timeout: float = 30.0
    user_data: bytes | None = None

    auto_offset_reset: AutoOffsetReset = "latest"
    out_of_range_reset: AutoOffsetReset | None = None
    auto_commit: bool = True
    auto_commit_interval: float = 1.0
    commit_retry_max: int = 3
    offset_retention: float | None = None

    fetch_min_bytes: int = 1
    fetch_max_wait: float = 0.5
    fetch_max_bytes: int = 50 * MIB
    max_partition_fetch_bytes: int = MIB
    buffer_bytes: int = 64 * MIB
    max_processing_time: float = 0.1
    check_crcs: bool = True
    on_corrupt_batch: Literal["error", "skip"] = "error"
    isolation_level: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"
    rack_id: str = ""
    fetch_retry_max: int | None = None
    fetch_retry_backoff: Callable[[int], float] | None = None
    error_buffer: int = 256

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
        "user_data": ((lambda value: value is None or isinstance(value, bytes)), "None or bytes"),
        "auto_offset_reset": (_is_reset, _RESETS),
        "out_of_range_reset": ((lambda value: value is None or _is_reset(value)), f"None, {_RESETS}"),
        "auto_commit": FLAG,
        "auto_commit_interval": DURATION,
        "commit_retry_max": COUNT,
        "offset_retention": RETENTION,
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
        "on_corrupt_batch": one_of("error", "skip"),
        "isolation_level": one_of("read_uncommitted", "read_committed"),
        "rack_id": ((lambda value: isinstance(value, str)), "text"),
        "fetch_retry_max": ((lambda value: value is None or COUNT[0](value)), "None or a number, 0 or more"),
        "fetch_retry_backoff": BACKOFF,
        "error_buffer": SIZE,
    }

    def _check_together(self) -> None:
        super()._check_together()
        if self.heartbeat_interval >= self.session_timeout:
            limit = f"below session_timeout={self.session_timeout!r}"
            raise ConfigError(
                "heartbeat_interval", self.heartbeat_interval, limit + _ask_unit(self.heartbeat_interval)
            )
        if self.rebalance_timeout <= self.heartbeat_interval:
            # a member hears of a rebalance at its next heartbeat: it would always come too late
            limit = f"above heartbeat_interval={self.heartbeat_interval!r}"
            raise ConfigError("rebalance_timeout", self.rebalance_timeout, limit)
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
    - `metadata_max_idle`: seconds after which a topic that nothing was produced to is forgotten: no refresh asks for it
      any more, and the next record looks it up again.
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
    metadata_max_idle: float = 300.0
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
        "metadata_max_idle": DURATION,
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
