"""Configuration of consumers, with or without a group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

from asyncgroup.checks import (
    BACKOFF,
    COUNT,
    DURATION,
    DURATION_OR_ZERO,
    FLAG,
    OPTIONAL_DURATION,
    RETENTION,
    SIZE,
    TEXT,
    Rule,
    is_legal_name,
    one_of,
    seconds_hint,
)
from asyncgroup.config.client import MIB, ClientConfig, Pauses
from asyncgroup.errors import ConfigError

__all__ = ["ASSIGNOR_NAMES", "CLASSIC_KEYS", "AutoOffsetReset", "ConsumerConfig"]

AutoOffsetReset: TypeAlias = Literal["earliest", "latest", "error"] | timedelta
"""Where to start without a valid offset; a timedelta means the first record not older than that (KIP-1106)."""

_MIN_FETCH_WAIT = 0.001
"""Seconds: the protocol field is in whole milliseconds."""


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
    f'None, or one or several, as ["range"], of the names {", ".join(ASSIGNOR_NAMES)} and of objects with `name` and '
    "`assign(members, counts)`"
)


class Assignor(Protocol):
    """What `asyncgroup.group.Assignor` describes; groups are not imported here."""

    @property
    def name(self) -> str: ...

    def assign(self, members: Any, counts: Any, /) -> Any: ...


def _as_tuple(assignors: object) -> object:
    """Return one assignor or a sequence of them as a tuple, so that the configuration can be hashed."""
    if isinstance(assignors, str) or (hasattr(assignors, "assign") and not isinstance(assignors, type)):
        return (assignors,)
    if isinstance(assignors, Sequence) and not isinstance(assignors, bytes | bytearray):
        return tuple(assignors)
    return assignors


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
    - `assignors`: one or several names or assignor objects in order of preference (`range`, `roundrobin`, `sticky`,
      `cooperative-sticky`), kept as a tuple; None means `range`. As for `session_timeout`, `consumer` requires None.
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
      at most for `max_poll_interval`. It has its own connections, so `connector`, token providers and a function that
      returns the bootstrap servers are called in it. Without it, a block longer than the session timeout loses the
      membership: marks since the last commit are dropped and their records delivered again, so a record that always
      blocks for that long is delivered again and again. Such a block is still reported, but only when the event loop runs
      again, and not where it was blocked.
    - `missing_topics`: whether a topic subscribed to by name that this member has never seen is an `error`, as it may be a
      typo, or is waited for (`wait`) while the others are read. One that is deleted later, or gets an error, is waited for in
      either case. A topic that was missing is read from its start, with any `auto_offset_reset`.
    - `rejoin_backoff`, `rejoin_retry_max`: the longest pause in seconds before a failed join is retried, and how often
      it is retried. Retriable failures are not counted while the member keeps its claims, as cooperative members do.
    - `close_timeout`: seconds for a close or a cancellation as a whole: handlers, `cleanup`, the last commit and
      LeaveGroup. Handlers are cancelled a fifth of it (at most 5 s) before its end.
    - `user_data`: bytes sent to the group leader with the subscription, for assignors that supply none.

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
    - `buffer_bytes`: bytes that all claims of a member may buffer undelivered; each claim is guaranteed one batch. A response
      has at most what is left of it.
    - `max_processing_time`: seconds. A claim is stalled if its handler takes no record for one to two such periods
      while records are buffered: nothing more is fetched for it until half of its share of the buffer is free.
    - `check_crcs`: whether the checksum of each record batch is verified. `on_corrupt_batch`: whether an unreadable
      batch is an `error` for the reader, or is skipped and reported (`skip`).
    - `isolation_level`: `read_committed` delivers no records of open or aborted transactions (KIP-98).
    - `rack_id`: the rack of this client, so that brokers may choose a nearer replica to read from (KIP-392). A
      preferred read replica that does not answer, or refuses the request, is replaced by the leader for a minute.
    - `fetch_retry_max`: how many fetch attempts of a partition may fail in a row before its reader gets the error; None
      sets no limit. `fetch_retry_backoff`: the pause before each retry, as `metadata_retry_backoff`; None means the pause that
      `retry_backoff` describes.
    - `chunks`: whether the chunks of a large value (`ProducerConfig.chunking`) are read as records (`as_is`), or put
      together to one record (`assemble`). The commit does not pass the first chunk of an incomplete value.
    - `max_pending_chunked`, `chunk_buffer_bytes`: how many values of a partition may be incomplete, and how many bytes of them
      are kept; above that the oldest one is given up, and a larger value always. `chunk_expiry`: seconds without a further
      chunk after which an incomplete value is given up, and lost for this consumer. Keep it above the producers'
      `delivery_timeout`, which a chunk may take; the default is twice the default of that, as in Pulsar.
    - `auto_ack_oldest`: whether a value that is given up because others need its place counts as done, as with Pulsar's
      `autoAckOldestChunkedMessageOnQueueFull`. With False the commit does not pass its first chunk, so that it is read again
      after the claim has ended.
    - `error_buffer`: how many errors are kept for a reader of `errors()` before the oldest are dropped.
    """

    group_protocol: Literal["classic", "consumer", "auto"] = "classic"
    session_timeout: float | None = None
    heartbeat_interval: float | None = None
    rebalance_timeout: float = 60.0
    assignors: str | Assignor | Sequence[str | Assignor] | None = None
    balance_by_rack: bool = False
    remote_assignor: str | None = None
    group_instance_id: str | None = None
    max_poll_interval: float = 300.0
    heartbeat_thread: bool = True
    missing_topics: Literal["error", "wait"] = "error"
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
    fetch_retry_backoff: Pauses | None = None
    chunks: Literal["as_is", "assemble"] = "as_is"
    max_pending_chunked: int = 10
    auto_ack_oldest: bool = True
    chunk_buffer_bytes: int = 64 * MIB
    chunk_expiry: float = 240.0
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
        "missing_topics": one_of("error", "wait"),
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
        "chunks": one_of("as_is", "assemble"),
        "max_pending_chunked": (
            (lambda value: COUNT[0](value) and value > 0),
            "a whole number, 1 or more",
        ),
        "auto_ack_oldest": FLAG,
        "chunk_buffer_bytes": SIZE,
        "chunk_expiry": DURATION,
        "error_buffer": SIZE,
    }

    _NORMALIZERS: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"assignors": _as_tuple}

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
        if self.assignors is None:
            return ("range",)
        assert isinstance(self.assignors, tuple)  # by `_as_tuple`
        return self.assignors

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
