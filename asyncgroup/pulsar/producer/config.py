"""PulsarProducerConfig: configuration of one producer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from asyncgroup.checks import (
    DURATION_OR_ZERO,
    FLAG,
    SIZE,
    Rule,
    one_of,
    seconds_hint,
    timedelta_hint,
    wrong_type,
)
from asyncgroup.errors import ConfigError
from asyncgroup.pulsar.config import KnownKeys
from asyncgroup.pulsar.producer.routing import HASHINGS, ROUTINGS
from asyncgroup.pulsar.wire.compression import COMPRESSIONS
from asyncgroup.pulsar.wire.enums import ProducerAccessMode
from asyncgroup.pulsar.wire.varint import is_encodable

if TYPE_CHECKING:
    from asyncgroup.properties.reader import FromProperties

__all__ = ["ACCESS_MODES", "PulsarProducerConfig"]

ACCESS_MODES: Final = {mode.name.lower(): mode.value for mode in ProducerAccessMode}
"""Numbers of `ProducerAccessMode` by name."""

_KIB: Final = 1 << 10
_INT64_MAX: Final = 2**63 - 1
_TEXT_OR_NONE: Final[Rule] = (
    (lambda value: value is None or (isinstance(value, str) and bool(value) and is_encodable(value))),
    "None or a string, not empty, of Unicode text",
)
_COUNT: Final[Rule] = ((lambda value: type(value) is int and value > 0), "a whole number, 1 or more")
_COUNT_OR_NONE: Final[Rule] = (
    (lambda value: value is None or (type(value) is int and value > 0)),
    "None or a number of messages, 1 or more",
)


def _properties(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(each, str) and is_encodable(each) for pair in value.items() for each in pair
    )


@dataclass(frozen=True, kw_only=True)
class PulsarProducerConfig(KnownKeys):
    """Configuration of a producer. Durations are in seconds, sizes in bytes; the defaults are those of Java's client.

    - `producer_name`: unique among the producers of a topic; None lets the broker choose one. Deduplication goes by it.
    - `access_mode`: `shared` with other producers of the topic; `exclusive`: fails if there is another one;
      `wait_for_exclusive`: waits until there is none; `exclusive_with_fencing`: ends the others.
    - `send_timeout`: a message without receipt after this time fails, also while the client reconnects; it may be stored
      nevertheless. 0 means never, which is right with deduplication: what has failed is not known to be missing.
    - `batching`: whether messages are sent in batches, which are closed at `batching_max_messages`, at
      `batching_max_bytes`, or `batching_max_delay` after their first message. A message that its caller waits for (`send`)
      while nothing is in flight is not delayed.
    - `key_based_batching`: one batch for each key, so that consumers of a Key_Shared subscription can divide them.
    - `compression`: `none`, `lz4`, `zlib`, `zstd` or `snappy`, for bodies above `compression_min_size`.
    - `routing`: the partition of a message without a key: `round_robin`, `single_partition`, or a function
      (message, number of partitions) -> partition, which then decides about all messages.
    - `routing_switch_frequency`: the round robin moves on after this number of `batching_max_delay`.
    - `hashing`: of keys: `java_string_hash` or `murmur3_32`.
    - `base64_keys`: write each key that is `bytes` in base64, as Java's `keyBytes`. By default only those that are not UTF-8.
    - `max_pending_messages`: without receipt, for each partition; None for no limit but the client's `memory_limit`.
    - `max_pending_messages_across_partitions`: of all partitions together; each has an equal part of it.
    - `chunking`: split a value that is too large for one frame; consumers put it together. Only for persistent topics.
    - `chunk_max_size`: the largest frame of a chunk; None for the broker's limit.
    - `initial_sequence_id`: the number of the last message that an earlier producer of this name has sent; the first message
      has the next one. None continues after the broker's last one if it deduplicates, else begins with 0.
    - `properties`: of the producer, shown in the topic's statistics.
    - `initial_subscription`: a subscription that is created with the topic, so that no message is missed.
    - `close_timeout`: how long `aclose` waits for the receipts of messages.
    - `encryption_keys`: refused; this client does not encrypt messages.
    """

    producer_name: str | None = None
    access_mode: str = "shared"
    send_timeout: float = 30.0
    batching: bool = True
    batching_max_messages: int = 1000
    batching_max_bytes: int = 128 * _KIB
    batching_max_delay: float = 0.001
    key_based_batching: bool = False
    compression: str = "none"
    compression_min_size: int = 4 * _KIB
    routing: str | Callable[[Any, int], int] = "round_robin"
    routing_switch_frequency: int = 10
    hashing: str = "java_string_hash"
    base64_keys: bool = False
    max_pending_messages: int | None = None
    max_pending_messages_across_partitions: int | None = None
    chunking: bool = False
    chunk_max_size: int | None = None
    initial_sequence_id: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    initial_subscription: str | None = None
    close_timeout: float = 30.0
    encryption_keys: Sequence[str] = ()

    _CHECKS: ClassVar[Mapping[str, Rule]] = {
        "producer_name": _TEXT_OR_NONE,
        "access_mode": one_of(*ACCESS_MODES),
        "send_timeout": DURATION_OR_ZERO,
        "batching": FLAG,
        "batching_max_messages": _COUNT,
        "batching_max_bytes": SIZE,
        "batching_max_delay": DURATION_OR_ZERO,
        "key_based_batching": FLAG,
        "compression": one_of(*COMPRESSIONS),
        "compression_min_size": (
            lambda value: value == 0 or SIZE[0](value),
            "a whole number of bytes, 0 or more",
        ),
        "routing": (
            lambda value: value in ROUTINGS if isinstance(value, str) else callable(value),
            f"{', '.join(ROUTINGS)} or a function (message, number of partitions)",
        ),
        "routing_switch_frequency": _COUNT,
        "hashing": one_of(*HASHINGS),
        "base64_keys": FLAG,
        "max_pending_messages": _COUNT_OR_NONE,
        "max_pending_messages_across_partitions": _COUNT_OR_NONE,
        "chunking": FLAG,
        "chunk_max_size": (
            lambda value: value is None or SIZE[0](value),
            "None or a number of bytes, 1 or more",
        ),
        "initial_sequence_id": (
            lambda value: value is None or (type(value) is int and -1 <= value <= _INT64_MAX),
            "None, or a whole number, -1 or more",
        ),
        "properties": (_properties, "a mapping of str to str"),
        "initial_subscription": _TEXT_OR_NONE,
        "close_timeout": DURATION_OR_ZERO,
        "encryption_keys": (
            lambda value: not value,
            "no keys; this client does not encrypt messages: encrypt the values before you send them",
        ),
    }

    @classmethod
    def _suggest(cls, key: str, known: tuple[str, ...]) -> str:
        # imported here, because its tables of names are needed only for an error
        from asyncgroup.pulsar.producer.foreign_names import suggest_producer_key

        return suggest_producer_key(key, known)

    def __post_init__(self) -> None:
        for each in fields(self):
            self._check(each.name, getattr(self, each.name))
        if self.chunk_max_size is not None and not self.chunking:
            raise ConfigError("chunk_max_size", self.chunk_max_size, "None without chunking=True")

    def _check(self, key: str, value: Any) -> None:
        is_allowed, allowed = self._CHECKS[key]
        try:
            fits = is_allowed(value)
        except TypeError:
            raise wrong_type(key, value, allowed) from None
        if not fits:
            hint = seconds_hint(value) if "seconds" in allowed and isinstance(value, int | float) else ""
            raise ConfigError(key, value, allowed + hint + timedelta_hint(value, allowed))

    @classmethod
    def from_properties(cls, properties: Mapping[str, object], **keys: Any) -> FromProperties[Self]:
        """Create a configuration from the names of Java's client (`ProducerConfigurationData`); `keys` win.

            config, rest = PulsarProducerConfig.from_properties({"topicName": "orders", "sendTimeoutMs": 0})

        `rest` has the `topic`, if it is given. A name that has no effect here is
        logged as a warning. Raises ConfigError for an unknown name, an invalid value, and a feature that this client lacks.
        """
        from asyncgroup.pulsar.java_properties import read_java_properties
        from asyncgroup.pulsar.producer.producer_properties import PRODUCER_NAMES

        known = tuple(each.name for each in fields(cls))
        return read_java_properties(cls, PRODUCER_NAMES, properties, keys, known)

    @classmethod
    def of(cls, config: object) -> Self:
        """Return the `config` argument of a producer, or the defaults for None; raise ConfigError for other types."""
        if config is None:
            return cls()
        if not isinstance(config, cls):
            raise wrong_type("config", config, f"a {cls.__name__} or None")
        return config

    def pending_limit(self, partitions: int) -> int | None:
        """Return how many messages each of a number of partitions may have pending; None without a limit."""
        across = self.max_pending_messages_across_partitions
        if across is None:
            return self.max_pending_messages
        part = max(1, across // max(1, partitions))
        return part if self.max_pending_messages is None else min(self.max_pending_messages, part)
