"""Configuration of producers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, Protocol

from asyncgroup.checks import DURATION, FLAG, OPTIONAL_DURATION_OR_ZERO, SIZE, TEXT, Rule, one_of
from asyncgroup.config.client import KIB, MIB, ClientConfig
from asyncgroup.errors import ConfigError

__all__ = ["COMPRESSION_LEVELS", "PARTITIONERS", "ProducerConfig"]

COMPRESSION_LEVELS = {"gzip": range(1, 10), "lz4": range(1, 18), "zstd": range(-131_072, 23)}
"""The compression levels of the codecs that have some (KIP-390)."""

DEFAULT_LINGER = 0.005
"""Seconds that records linger if `linger` is None; Java's default since 4.0 (KIP-1030)."""

PARTITIONERS = (
    *("default", "murmur2_random", "murmur2", "fnv1a_random", "fnv1a", "consistent_random", "consistent"),
    *("sticky", "random", "round_robin", "timed_round_robin", "single_partition", "manual"),
)
"""The names of partitioners; `asyncgroup.producer.partitioners` describes them."""

FLAG_OR_NONE: Rule = ((lambda value: value is None or isinstance(value, bool)), "True, False or None")

RECORDS_OR_NONE: Rule = (
    (lambda value: value is None or (type(value) is int and value > 0)),
    "None or a number of records above 0",
)


_ACKS: Final[Mapping[object, object]] = {"-1": "all", -1: "all", "0": 0, "1": 1}
"""Kafka's other words for values of `acks`."""


def _acks(value: object) -> object:
    """Return the value of `acks` that Kafka's word means; others unchanged, as 1.0 and True, which are equal to 1."""
    # by `type`: True and 1.0 are equal to 1, and would find its entry
    return _ACKS.get(value, value) if type(value) in (str, int) else value


class Partitioner(Protocol):
    """What `asyncgroup.producer.Partitioner` describes; producers are not imported here."""

    def for_topic(self, topic: str, /) -> Callable[[bytes | None, int, Sequence[int]], int]: ...


@dataclass(frozen=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """Configuration of a producer.

    - `acks`: which replicas must have written a record before it is acknowledged: `all` in-sync replicas (Kafka's -1), the
      leader (1), or none (0). Numbers may be text (`"1"`), and -1 is kept as `all`.
    - `enable_idempotence`: whether brokers recognize a batch that is sent again, so that each record is written once
      (KIP-98). None means yes with `acks="all"`, which it needs.
    - `linger`: seconds to wait for more records of a partition before a batch is sent. None means 0.005, but a record whose
      caller waits for its result (`send`) is sent at once if no request with records of its partition is in flight. Unless
      it is 0, it becomes up to 0.25 s while sending takes most of the event loop's time.
    - `batch_records`: records at which a batch is full and sent at once; None for no limit.
    - `batch_size`: bytes at which a batch is full; `max_request_size`: largest request, and largest record, in bytes.
    - `batching`: whether several records are sent in one batch. None means yes unless `chunking` is on; with False,
      `linger` has no effect.
    - `chunking`: whether a larger record is split into several with a part of its value each (chunks, as in Pulsar).
      Consumers with `chunks="assemble"` put them together; others read each as a record. It excludes batching.
    - `max_chunk_size`: with `chunking`, bytes of key, value and headers above which a record is split, and most bytes of
      a chunk; None means the largest record that `max_request_size` allows.
    - `buffer_bytes`: bytes of unacknowledged records; when full, `send` and `enqueue` wait and `send_nowait` raises.
    - `max_pending_records`: unacknowledged records; when reached, callers wait as with `buffer_bytes`. None for no limit.
    - `max_pending_records_per_partition`, `max_pending_bytes_per_partition`: the same for each partition; records that wait
      for the metadata of their topic or partition are not counted. None for no limit.
    - `compression_type`: `none`, `gzip`, `snappy`, `lz4` or `zstd`.
    - `compression_level`: 1 to 9 for gzip, 1 to 17 for lz4, -131072 to 22 for zstd; None means Java's defaults: 6, the fast
      algorithm, 3 (KIP-390).
    - `delivery_timeout`: seconds from `send` to the final result; a batch is not retried after that. A record that
      failed with RequestTimedOut may be in the log only if its `may_be_written` says so.
    - `close_timeout`: seconds to wait for acknowledgements when the producer is closed.
    - `metadata_max_idle`: seconds after which a topic that nothing was produced to is no longer refreshed; the next
      record for it looks it up again.
    - `transactional_id`: identifies the producer over restarts, and makes it write in transactions only (KIP-98); a new
      producer with the same id fences the former one. None for a producer without transactions.
    - `transaction_timeout`: seconds after which the coordinator aborts an open transaction; the broker's limit is
      `transaction.max.timeout.ms`.
    - `partitioner`: a name of `asyncgroup.producer.partitioners`, a function `(key, partitions) -> partition`, or an
      object with `for_topic`. `default` is Java's: murmur2 of the key; without one, one partition after another for
      `batch_size` bytes each (KIP-794).
    - `adaptive_partitioning`: whether records without a key prefer partitions with fewer waiting batches (KIP-794).
    """

    acks: Literal["all", "-1", "0", "1"] | int = "all"
    enable_idempotence: bool | None = None
    linger: float | None = None
    batch_records: int | None = None
    batch_size: int = 128 * KIB
    max_request_size: int = MIB
    batching: bool | None = None
    chunking: bool = False
    max_chunk_size: int | None = None
    buffer_bytes: int = 32 * MIB
    max_pending_records: int | None = None
    max_pending_records_per_partition: int | None = None
    max_pending_bytes_per_partition: int | None = None
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none"
    compression_level: int | None = None
    delivery_timeout: float = 120.0
    close_timeout: float = 30.0
    metadata_max_idle: float = 300.0
    transactional_id: str | None = None
    transaction_timeout: float = 60.0
    partitioner: str | Callable[[bytes | None, int], int] | Partitioner = "default"
    adaptive_partitioning: bool = True

    _CHECKS: ClassVar[Mapping[str, Rule]] = {
        "acks": (
            (lambda value: value == "all" or (type(value) is int and value in (0, 1))),
            "'all' (or -1), 1 or 0",
        ),
        "enable_idempotence": FLAG_OR_NONE,
        "linger": OPTIONAL_DURATION_OR_ZERO,
        "batch_records": RECORDS_OR_NONE,
        "batch_size": SIZE,
        "max_request_size": SIZE,
        "batching": FLAG_OR_NONE,
        "chunking": FLAG,
        "max_chunk_size": (
            (lambda value: value is None or (SIZE[0](value) and value >= KIB)),
            f"None or a whole number of bytes, {KIB} or more",
        ),
        "buffer_bytes": SIZE,
        "max_pending_records": RECORDS_OR_NONE,
        "max_pending_records_per_partition": RECORDS_OR_NONE,
        "max_pending_bytes_per_partition": (
            (lambda value: value is None or SIZE[0](value)),
            f"None or {SIZE[1]}",
        ),
        "compression_type": one_of("none", "gzip", "snappy", "lz4", "zstd"),
        "compression_level": (
            (lambda value: value is None or type(value) is int),
            "None or a whole number",
        ),
        "delivery_timeout": DURATION,
        "close_timeout": DURATION,
        "metadata_max_idle": DURATION,
        "transactional_id": (
            (lambda value: value is None or (value != "" and TEXT[0](value))),
            f"None, or {TEXT[1]} that is not empty",
        ),
        "transaction_timeout": DURATION,
        # a class is callable, and would be called for each record in place of its object
        "partitioner": (
            (
                lambda value: (
                    value in PARTITIONERS
                    if isinstance(value, str)
                    else not isinstance(value, type) and (callable(value) or hasattr(value, "for_topic"))
                )
            ),
            f"one of {', '.join(PARTITIONERS)}, a function (key, partitions), or an object with for_topic",
        ),
        "adaptive_partitioning": FLAG,
    }

    _NORMALIZERS: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"acks": _acks}

    @property
    def effective_enable_idempotence(self) -> bool:
        """`enable_idempotence`, or by `acks` if it is None."""
        return self.acks == "all" if self.enable_idempotence is None else self.enable_idempotence

    @property
    def effective_batching(self) -> bool:
        """`batching`, or by `chunking` if it is None."""
        return not self.chunking if self.batching is None else self.batching

    @property
    def effective_batch_records(self) -> int | None:
        """`batch_records`; 1 without batching."""
        return self.batch_records if self.effective_batching else 1

    @property
    def effective_linger(self) -> float:
        """`linger`, or 5 ms if it is None; 0 without batching."""
        if not self.effective_batching:
            return 0.0
        return DEFAULT_LINGER if self.linger is None else self.linger

    def _check_together(self) -> None:
        # single values are right from here on: only pairs of them are checked
        super()._check_together()
        self._check_chunking()
        # None is fine with any acks: idempotence is off then, unless acks="all"
        if self.enable_idempotence and self.acks != "all":
            raise ConfigError(
                "enable_idempotence", True, f"None or False with acks={self.acks!r}: it needs acks='all'"
            )
        # the coordinator knows a producer by its id and epoch, which idempotence gives it (KIP-98)
        if self.transactional_id is not None and not self.effective_enable_idempotence:
            raise ConfigError(
                "transactional_id",
                self.transactional_id,
                "only with acks='all' and without enable_idempotence=False",
            )
        self._check_level()
        # as in Java (KIP-91): the first attempt of a record that lingers has to end before its time does
        shortest = self.request_timeout + self.effective_linger
        if self.delivery_timeout < shortest:
            limit = f"at least linger={self.effective_linger!r} + request_timeout={self.request_timeout!r}"
            raise ConfigError("delivery_timeout", self.delivery_timeout, limit)

    def _check_chunking(self) -> None:
        """Check that batching and chunking are not asked for together (`ProducerBuilderImpl` of Pulsar)."""
        if self.chunking and self.batching:
            raise ConfigError("batching", True, "None or False with chunking=True")
        if not self.effective_batching and self.batch_records not in (None, 1):
            reason = "chunking=True, which excludes batching" if self.chunking else "batching=False"
            raise ConfigError("batch_records", self.batch_records, f"None or 1 with {reason}")
        # chunks would count one by one: a value of more chunks than the limit could never be sent
        for key in ("max_pending_records_per_partition", "max_pending_bytes_per_partition"):
            if self.chunking and getattr(self, key) is not None:
                raise ConfigError(
                    key, getattr(self, key), "None with chunking=True; max_pending_records counts chunks"
                )
        if self.max_chunk_size is None:
            return
        if not self.chunking:
            raise ConfigError("max_chunk_size", self.max_chunk_size, "None without chunking=True")
        # a chunk is sent as a record
        if self.max_chunk_size > self.max_request_size:
            raise ConfigError(
                "max_chunk_size", self.max_chunk_size, f"at most max_request_size={self.max_request_size}"
            )

    def _check_level(self) -> None:
        level, codec = self.compression_level, self.compression_type
        allowed = COMPRESSION_LEVELS.get(codec)
        if level is None or (allowed is not None and level in allowed):
            return
        rule = f"{allowed.start} to {allowed.stop - 1}" if allowed else "None, there are no levels"
        raise ConfigError("compression_level", level, f"{rule} with compression_type={codec!r}")
