"""Configuration of clients, consumers and producers: frozen, keyword-only dataclasses that validate their values.

Durations are seconds (float), sizes bytes (int). Defaults are sarama's (`config.go`) where sarama has the key, Java's
otherwise. An invalid value raises ConfigError, which names the key, the value and what is allowed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias

from asyncgroup.checks import (
    BACKOFF,
    COUNT,
    DURATION,
    DURATION_OR_ZERO,
    FLAG,
    KEEPALIVE,
    OPTIONAL_DURATION,
    RETENTION,
    SIZE,
    TEXT,
    Rule,
    is_legal_name,
    one_of,
    seconds_hint,
    wrong_type,
)
from asyncgroup.errors import ConfigError

if TYPE_CHECKING:
    import socket

    from asyncgroup.properties.reader import FromProperties
    from asyncgroup.security import Security

__all__ = [
    "AutoOffsetReset",
    "ClientConfig",
    "Connector",
    "ConsumerConfig",
    "ProducerConfig",
]

AutoOffsetReset: TypeAlias = Literal["earliest", "latest", "error"] | timedelta
"""Where to start without a valid offset; a timedelta means the first record not older than that (KIP-1106)."""

Connector: TypeAlias = "Callable[[str, int], Awaitable[socket.socket]]"
"""Opens a TCP connection to a host and port, for example through a proxy (python-socks), and returns its socket."""

KIB = 1024
MIB = 1024 * KIB

COMPRESSION_LEVELS = {"gzip": range(1, 10), "lz4": range(1, 18), "zstd": range(-131_072, 23)}
"""The compression levels of the codecs that have some (KIP-390)."""

MAX_SECONDS = 3600.0
"""The longest duration that most keys allow, in seconds: a larger number was almost certainly meant as milliseconds."""


def _none_or_security(value: object) -> bool:
    if value is None:
        return True
    from asyncgroup.security import Security

    return isinstance(value, Security)


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """Configuration that every client of a cluster shares: connections, requests, metadata.

    - `client_id`: sent with every request; brokers show it in logs and group descriptions.
    - `connect_timeout`: seconds to establish a connection: TCP, TLS, ApiVersions and SASL together.
    - `request_timeout`: seconds to write a request and receive its response; there are no separate limits for the two.
    - `max_in_flight_requests`: requests that may wait for their responses on one connection; further ones are queued.
    - `retry_backoff`, `retry_backoff_max`: the pause after the n-th failure (0, 1, …) is `retry_backoff * 2**n`
      seconds, at most `retry_backoff_max`, with 20 % jitter (KIP-580). A group member waits at most a tenth of
      `session_timeout` before it connects again.
    - `metadata_refresh_interval`: seconds between metadata refreshes; 0 refreshes only after a failure.
    - `metadata_retry_max`: how often a metadata lookup of a connected client is retried before its error is raised; at
      the start every bootstrap server is tried once. `metadata_retry_backoff`: a function (failures) -> seconds to wait
      after the n-th failure (0, 1, …); None means the pause that `retry_backoff` describes. `metadata_timeout`: seconds
      for a lookup with all of its retries; None sets no limit.
    - `metadata_full`: whether metadata of all topics of the cluster is kept, or only of topics in use (the default
      here; sarama's default is all).
    - `max_response_size`: bytes; a larger response closes the connection instead of exhausting memory. A record batch
      that decompresses to more raises `CorruptRecordsError`, see `on_corrupt_batch`.
    - `connections_max_idle`: seconds after which an unused connection is closed.
    - `allow_auto_topic_creation`: whether a metadata request may create an unknown topic, if the broker is configured
      for that. As in Java, a topic that is deleted while in use is then created again, empty, by the next refresh;
      with False it stays deleted.
    - `tcp_keepalive`: seconds of silence before TCP sends keepalive probes; None turns them off.
    - `local_address`: the address of this machine to connect from.
    - `connector`: an async function (host, port) -> socket that opens each connection; it also resolves the host name.
    - `client_dns_lookup`: `use_all_dns_ips` tries every address of a name; `resolve_canonical_bootstrap_servers_only`
      also replaces each bootstrap name by the canonical names of its addresses.
    - `security`: TLS and SASL; None means plaintext.
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
        "retry_backoff": DURATION_OR_ZERO,
        "retry_backoff_max": DURATION_OR_ZERO,
        "metadata_refresh_interval": DURATION_OR_ZERO,
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
        "security": (_none_or_security, "None or an asyncgroup.security.Security"),
    }

    def __new__(cls, *_: Any, **keys: Any) -> Self:
        """Raise ConfigError for an unknown key, with the keys that may be meant (the TypeError of a dataclass has none)."""
        known = [field.name for field in fields(cls)]
        for key, value in keys.items():
            if key not in known:
                # imported here, because their tables of names are needed only for an error
                from asyncgroup.properties.reader import is_secret
                from asyncgroup.properties.suggestions import suggest_key
                from asyncgroup.secret import HIDDEN

                allowed = suggest_key(cls.__name__, key, value, {**_keys(), cls.__name__: known})
                raise ConfigError(key, HIDDEN if is_secret(key) else value, allowed)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for cls in type(self).__mro__:
            for key, (check, allowed) in vars(cls).get("_CHECKS", {}).items():
                value = getattr(self, key)
                if not check(value):
                    if key == "security":  # a value of the wrong type may still hold a password
                        raise wrong_type(key, value, allowed)
                    raise ConfigError(key, value, allowed)
                if (
                    check in _DURATION_CHECKS
                    and (value or 0) > MAX_SECONDS
                    and key not in _MAY_EXCEED_MAX_SECONDS
                ):
                    raise ConfigError(
                        key, value, f"at most {MAX_SECONDS:g}{_INSTEAD.get(key) or seconds_hint(value)}"
                    )
        self._check_together()

    def _check_together(self) -> None:
        """Check rules that involve several keys; subclasses add theirs."""
        if self.retry_backoff > self.retry_backoff_max:
            limit = f"at most retry_backoff_max={self.retry_backoff_max!r}"
            raise ConfigError("retry_backoff", self.retry_backoff, limit + seconds_hint(self.retry_backoff))
        for key, default in (("local_address", None), ("client_dns_lookup", "use_all_dns_ips")):
            if self.connector is not None and getattr(self, key) != default:
                raise ConfigError(key, getattr(self, key), f"{default!r}: connector opens the sockets")

    @classmethod
    def from_properties(cls, properties: Mapping[str, object], **keys: Any) -> FromProperties[Self]:
        """Create a configuration from Kafka's property names (`asyncgroup.properties.reader`); `keys` of this class win.

            config, rest = ConsumerConfig.from_properties({"session.timeout.ms": "10000", "group.id": "orders"})

        `rest` holds the properties that are arguments here: `bootstrap.servers` and `group.id`. A property that other
        Kafka clients have and that has no effect here is logged as a warning. Raises ConfigError for an unknown
        property, an invalid value, and properties that contradict each other.
        """
        from asyncgroup.properties.reader import from_properties

        return from_properties(cls, properties, keys, _keys())

    @classmethod
    def of(cls, config: object) -> Self:
        """Return the `config` argument of a constructor, or the defaults for None; raise ConfigError for other types."""
        if config is None:
            return cls()
        if not isinstance(config, cls):
            allowed = f"a {cls.__name__} or None"
            if isinstance(config, ClientConfig):  # its repr would be long
                raise wrong_type("config", config, allowed)
            raise ConfigError("config", config, allowed)
        return config

    def client(self) -> dict[str, Any]:
        """Return the keys of ClientConfig alone, for another client's configuration."""
        return {field.name: getattr(self, field.name) for field in fields(ClientConfig)}


def _keys() -> dict[str, frozenset[str]]:
    """Return the keys of each configuration class, by class name."""
    classes = (ClientConfig, ConsumerConfig, ProducerConfig)
    return {cls.__name__: frozenset(field.name for field in fields(cls)) for cls in classes}


_DURATION_CHECKS = (DURATION[0], DURATION_OR_ZERO[0], OPTIONAL_DURATION[0])
_MIN_FETCH_WAIT = 0.001
"""Seconds: the protocol field is in whole milliseconds."""

_MAY_EXCEED_MAX_SECONDS = frozenset(
    {
        *("metadata_refresh_interval", "metadata_max_idle", "connections_max_idle", "offset_retention"),
        "tcp_keepalive",
    }
)

_INSTEAD = {
    "max_poll_interval": " seconds; for longer work call claim.renew(seconds); max_poll_interval=0 turns it off"
}
"""What to do instead of a longer duration, for keys that may be meant to be so long."""


def _is_reset(value: object) -> bool:
    return value in ("earliest", "latest", "error") or (isinstance(value, timedelta) and value > timedelta())


_RESETS = "'earliest', 'latest', 'error' or a timedelta above 0"


CLASSIC_KEYS = {
    "session_timeout": "set the group's consumer.session.timeout.ms at the brokers",
    "heartbeat_interval": "set the group's consumer.heartbeat.interval.ms at the brokers",
    "assignors": "the coordinator assigns, see remote_assignor",
}
"""The keys of the classic protocol, each with what to do instead by the consumer protocol (KIP-848)."""


def _are_assignors(value: object) -> bool:
    """Check the names; a ConsumerGroup checks the objects, because their protocol belongs to it."""
    return value is None or (
        isinstance(value, tuple)
        and bool(value)
        and all(each in ASSIGNOR_NAMES for each in value if isinstance(each, str))
    )


ASSIGNOR_NAMES = ("range", "roundrobin", "sticky", "cooperative-sticky")
"""The assignors that can be given by name."""

_ASSIGNORS = (
    f'None, or a tuple such as ("range",), of names ({", ".join(ASSIGNOR_NAMES)}) or objects with `name` and '
    "`assign(members, counts)`"
)


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """Configuration of a consumer, with or without a group.

    Group membership:

    - `group_protocol`: `classic`; `consumer` (KIP-848: the coordinator assigns, Kafka 4.0 or newer); or `auto`, which is
      `consumer` if the cluster supports it (level 1 or more of its finalized feature group.version).
    - `session_timeout`, `heartbeat_interval`: the coordinator expels a member that is silent for `session_timeout`
      seconds; it must be larger than `heartbeat_interval`. None means 10 s and 3 s. With `group_protocol="consumer"` they
      are settings of the group at the brokers and must be None; with `auto` they count only if `classic` is chosen.
      `rebalance_timeout`: seconds that the group waits for a member to rejoin; the handler of a revoked claim has that
      time less a fifth (at most 5 s), counted from the last heartbeat before the rebalance.
    - `assignors`: names or assignor objects in order of preference (`range`, `roundrobin`, `sticky`,
      `cooperative-sticky`); None means `range`. As for `session_timeout`, `consumer` requires None.
    - `balance_by_rack`: whether the leader prefers members in whose rack (`rack_id`) there is a replica, without making the
      loads less even (KIP-881): with `range`, `sticky`, `cooperative-sticky` and assignors that have `assign_by_rack`. Set
      it for all members, as any can be the leader. It has no effect with `consumer`.
    - `remote_assignor`: with `consumer`, the name of the coordinator's assignor (`uniform`, `range`); None means that the
      coordinator chooses. It has no effect with `classic`, as in Java.
    - `group_instance_id`: makes the member static (KIP-345).
    - `max_poll_interval`: seconds after which a claim is stuck if its handler works on a record and does not ask for the
      next one, mark, seek, pause, or call `claim.renew()`. The member then leaves its group, so that others get its
      partitions, and `run()` joins again once the handlers have ended. 0 turns that off. For work that takes longer than an
      hour, the largest value, call `claim.renew(seconds)`.
    - `heartbeat_thread`: whether a thread sends the heartbeats while the event loop is blocked by code that does not await,
      at most for `max_poll_interval`. It has connections of its own, so `connector` and token providers are called in it.
      Without it, a block longer than the session timeout loses the membership: marks since the last commit are dropped and
      their records delivered again, so a record that always blocks for that long is delivered again and again. Such a block
      is still reported, but only when the event loop runs again, and not where it was blocked.
    - `rejoin_backoff`, `rejoin_retry_max`: the longest pause in seconds before a failed join is retried, and how often
      it is retried.
    - `close_timeout`: seconds for a close or a cancellation as a whole: handlers, `cleanup`, the last commit and
      LeaveGroup. Handlers are cancelled a fifth of it (at most 5 s) before its end.
    - `user_data`: bytes sent to the group leader with the subscription, for assignors that supply none of their own.

    Offsets:

    - `auto_offset_reset`: where a partition without a committed offset starts: `earliest`, `latest`, `error`, or a
      timedelta (the first record not older than that). A partition that is added to a topic while the member consumes
      it always starts at `earliest`.
    - `out_of_range_reset`: the same for an offset outside the log, at the start of a claim or later; None means the
      value of `auto_offset_reset`.
    - `auto_commit` commits marked offsets every `auto_commit_interval` seconds. A failed commit is retried
      `commit_retry_max` times.
    - `offset_retention`: seconds that brokers older than 2.1 keep commits (OffsetCommit 2 to 4); None means the
      broker's setting.

    Fetching:

    - `fetch_min_bytes`, `fetch_max_wait`: a broker answers a fetch when this many bytes are available or this many
      seconds have passed.
    - `max_partition_fetch_bytes`, `fetch_max_bytes`: limits of one fetch response, per partition and in total (KIP-74).
      A response is also limited to an eighth of `buffer_bytes`, because it is in memory in addition to the buffers.
    - `buffer_bytes`: bytes that all claims of a member may buffer undelivered; each claim is guaranteed one batch.
    - `max_processing_time`: seconds. A claim is stalled if its handler takes no record for one to two such periods
      while records are buffered: nothing more is fetched for it until half of its share of the buffer is free.
    - `check_crcs`: whether the checksum of each record batch is verified. `on_corrupt_batch`: whether an unreadable
      batch is an `error` for the reader, or is skipped and reported (`skip`).
    - `isolation_level`: `read_committed` delivers no records of open or aborted transactions (KIP-98).
    - `rack_id`: the rack of this client, so that brokers may choose a nearer replica to read from (KIP-392). A
      preferred read replica that does not answer, or refuses the request, is replaced by the leader for a minute.
    - `fetch_retry_max`: how many fetch attempts of a partition may fail in a row before its reader gets the error; None
      sets no limit. `fetch_retry_backoff`: a function (failures) -> seconds to wait after the n-th failure (0, 1, …);
      None means the pause that `retry_backoff` describes.
    - `error_buffer`: how many errors are kept for a reader of `errors()` before the oldest are dropped.
    """

    group_protocol: Literal["classic", "consumer", "auto"] = "classic"
    session_timeout: float | None = None
    heartbeat_interval: float | None = None
    rebalance_timeout: float = 60.0
    assignors: tuple[Any, ...] | None = None
    balance_by_rack: bool = False
    remote_assignor: str | None = None
    group_instance_id: str | None = None
    max_poll_interval: float = 300.0
    heartbeat_thread: bool = True
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
        "group_protocol": one_of("classic", "consumer", "auto"),
        "session_timeout": OPTIONAL_DURATION,
        "heartbeat_interval": OPTIONAL_DURATION,
        # before rebalance_timeout: max.poll.interval.ms sets both
        "max_poll_interval": DURATION_OR_ZERO,
        "rebalance_timeout": DURATION,
        "balance_by_rack": FLAG,
        "remote_assignor": (
            (lambda value: value is None or (TEXT[0](value) and bool(value))),
            "None, or the name of an assignor of the coordinator: 'uniform', 'range'",
        ),
        "assignors": (_are_assignors, _ASSIGNORS),
        "group_instance_id": (
            (lambda value: value is None or (isinstance(value, str) and is_legal_name(value))),
            "None, or 1 to 249 of the characters a-z A-Z 0-9 . _ -, and neither '.' nor '..'",
        ),
        "heartbeat_thread": FLAG,
        "rejoin_backoff": DURATION_OR_ZERO,
        "rejoin_retry_max": COUNT,
        "close_timeout": DURATION,
        "user_data": ((lambda value: value is None or isinstance(value, bytes)), "None or bytes"),
        "auto_offset_reset": (_is_reset, _RESETS),
        "out_of_range_reset": ((lambda value: value is None or _is_reset(value)), f"None, {_RESETS}"),
        "auto_commit": FLAG,
        "auto_commit_interval": DURATION,
        "commit_retry_max": COUNT,
        "offset_retention": RETENTION,
        # as in sarama: with 0 a broker would answer every fetch at once, empty, and the fetcher would spin
        "fetch_min_bytes": SIZE,
        "fetch_max_wait": (
            (lambda value: DURATION[0](value) and value >= _MIN_FETCH_WAIT),
            f"a number of seconds, {_MIN_FETCH_WAIT} or more",
        ),
        "fetch_max_bytes": SIZE,
        "max_partition_fetch_bytes": SIZE,
        "buffer_bytes": SIZE,
        "max_processing_time": DURATION,
        "check_crcs": FLAG,
        "on_corrupt_batch": one_of("error", "skip"),
        "isolation_level": one_of("read_uncommitted", "read_committed"),
        "rack_id": TEXT,
        "fetch_retry_max": ((lambda value: value is None or COUNT[0](value)), "None or a number, 0 or more"),
        "fetch_retry_backoff": BACKOFF,
        "error_buffer": SIZE,
    }

    @property
    def effective_session_timeout(self) -> float:
        """`session_timeout`, or the default for None: 10 s, with `group_protocol="consumer"` the brokers' 45 s."""
        default = 45.0 if self.group_protocol == "consumer" else 10.0
        return default if self.session_timeout is None else self.session_timeout

    @property
    def effective_heartbeat_interval(self) -> float:
        """`heartbeat_interval`, or the default for None: 3 s, with `group_protocol="consumer"` the brokers' 5 s."""
        default = 5.0 if self.group_protocol == "consumer" else 3.0
        return default if self.heartbeat_interval is None else self.heartbeat_interval

    @property
    def effective_assignors(self) -> tuple[Any, ...]:
        """`assignors`, or the default for None: `("range",)`. For the classic protocol."""
        return ("range",) if self.assignors is None else self.assignors

    def _check_together(self) -> None:
        super()._check_together()
        self._check_protocol()
        self._check_interval()
        if self.fetch_max_wait >= self.request_timeout:
            limit = f"below request_timeout={self.request_timeout!r}"
            raise ConfigError(
                "fetch_max_wait", self.fetch_max_wait, limit + seconds_hint(self.fetch_max_wait)
            )

    def _check_interval(self) -> None:
        """Check the heartbeat interval; an error names the key that was given rather than a default."""
        interval, session = self.effective_heartbeat_interval, self.effective_session_timeout
        its_default = ", its default" if self.heartbeat_interval is None else ""
        if interval >= session and its_default:
            raise ConfigError(
                "session_timeout", session, f"it must be above heartbeat_interval={interval!r}{its_default}"
            )
        if interval >= session:
            default = ", its default" if self.session_timeout is None else ""
            limit = f"it must be below session_timeout={session!r}{default}"
            raise ConfigError("heartbeat_interval", interval, limit + seconds_hint(interval))
        if self.rebalance_timeout <= interval and self.group_protocol != "consumer":
            # a member learns of a rebalance from its next heartbeat, so it would always rejoin too late
            limit = f"it must be above heartbeat_interval={interval!r}{its_default}"
            raise ConfigError("rebalance_timeout", self.rebalance_timeout, limit)

    def _check_protocol(self) -> None:
        """Check that no key of the other group protocol is given."""
        if self.group_protocol == "consumer":
            for key, instead in CLASSIC_KEYS.items():
                if getattr(self, key) is not None:
                    allowed = f"it must be None with group_protocol='consumer': {instead}"
                    raise ConfigError(key, getattr(self, key), allowed)


@dataclass(frozen=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """Configuration of a producer.

    - `acks`: which replicas must have written a record before it is acknowledged: `all` in-sync replicas, the leader
      (1), or none (0).
    - `enable_idempotence`: whether brokers recognize a batch that is sent again, so that each record is written once
      (KIP-98). None means yes with `acks="all"`, which it needs.
    - `linger`: seconds to wait for more records of a partition before a batch is sent.
    - `batch_records`: records at which a batch is full and sent at once; None for no limit.
    - `batch_size`: bytes at which a batch is full; `max_request_size`: largest request, and largest record, in bytes.
    - `buffer_bytes`: bytes of unacknowledged records; when full, `send` and `enqueue` wait and `send_nowait` raises.
    - `compression_type`: `none`, `gzip`, `snappy`, `lz4` or `zstd`.
    - `compression_level`: 1 to 9 for gzip, 1 to 17 for lz4, -131072 to 22 for zstd; None means Java's defaults: 6, the fast
      algorithm, 3 (KIP-390).
    - `delivery_timeout`: seconds from `send` to the final result; a batch is not retried after that. A record that
      failed with RequestTimedOut may be in the log all the same.
    - `close_timeout`: seconds to wait for acknowledgements when the producer is closed.
    - `metadata_max_idle`: seconds after which a topic that nothing was produced to is no longer refreshed; the next
      record for it looks it up again.
    - `partitioner`: `(key, partitions) -> partition`; None means Java's default (murmur2 of the key, sticky without
      one).
    """

    acks: Literal["all"] | int = "all"
    enable_idempotence: bool | None = None
    linger: float = 0.005
    batch_records: int | None = None
    batch_size: int = 128 * KIB
    max_request_size: int = MIB
    buffer_bytes: int = 32 * MIB
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none"
    compression_level: int | None = None
    delivery_timeout: float = 120.0
    close_timeout: float = 30.0
    metadata_max_idle: float = 300.0
    partitioner: Callable[[bytes | None, int], int] | None = None

    _CHECKS: ClassVar[Mapping[str, Rule]] = {
        "acks": (
            (lambda value: value in ("all", 0, 1) and not isinstance(value, bool)),
            "'all' (Kafka's -1), 1 or 0",
        ),
        "enable_idempotence": (
            (lambda value: value is None or isinstance(value, bool)),
            "True, False or None",
        ),
        "linger": DURATION_OR_ZERO,
        "batch_records": (
            (lambda value: value is None or (type(value) is int and value > 0)),
            "None or a number of records above 0",
        ),
        "batch_size": SIZE,
        "max_request_size": SIZE,
        "buffer_bytes": SIZE,
        "compression_type": one_of("none", "gzip", "snappy", "lz4", "zstd"),
        "compression_level": (
            (lambda value: value is None or type(value) is int),
            "None or a whole number",
        ),
        "delivery_timeout": DURATION,
        "close_timeout": DURATION,
        "metadata_max_idle": DURATION,
        "partitioner": (
            (lambda value: value is None or callable(value)),
            "None or a function (key, partitions)",
        ),
    }

    @property
    def effective_enable_idempotence(self) -> bool:
        """`enable_idempotence`, or by `acks` if it is None."""
        return self.acks == "all" if self.enable_idempotence is None else self.enable_idempotence

    def _check_together(self) -> None:
        super()._check_together()
        if self.enable_idempotence and self.acks != "all":
            raise ConfigError(
                "enable_idempotence", True, f"None or False with acks={self.acks!r}: it needs acks='all'"
            )
        self._check_level()
        if self.delivery_timeout < self.request_timeout + self.linger:
            limit = f"at least linger + request_timeout = {self.request_timeout + self.linger!r}"
            raise ConfigError("delivery_timeout", self.delivery_timeout, limit)

    def _check_level(self) -> None:
        level, codec = self.compression_level, self.compression_type
        allowed = COMPRESSION_LEVELS.get(codec)
        if level is None or (allowed is not None and level in allowed):
            return
        rule = f"{allowed.start} to {allowed.stop - 1}" if allowed else "None, there are no levels"
        raise ConfigError("compression_level", level, f"{rule} with compression_type={codec!r}")
