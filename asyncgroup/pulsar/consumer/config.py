"""PulsarConsumerConfig: configuration of a consumer; and the types of subscriptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from asyncgroup.checks import (
    COUNT,
    DURATION_OR_ZERO,
    FLAG,
    SIZE,
    Rule,
    seconds_hint,
    timedelta_hint,
)
from asyncgroup.errors import ConfigError
from asyncgroup.pulsar.config import KnownKeys
from asyncgroup.pulsar.consumer.topics_pattern import REGEX_MODES
from asyncgroup.pulsar.wire.message_id import MessageId, is_message_id
from asyncgroup.pulsar.wire.varint import is_encodable

if TYPE_CHECKING:
    from asyncgroup.properties.reader import FromProperties

__all__ = ["POSITIONS", "SUBSCRIPTION_TYPES", "PulsarConsumerConfig", "SubscriptionType"]


class SubscriptionType(IntEnum):
    """How the consumers of a subscription divide its messages; the numbers are those of the protocol."""

    EXCLUSIVE = 0
    """One consumer; a second one is refused."""
    SHARED = 1
    """Each message goes to any consumer; no order."""
    FAILOVER = 2
    """One consumer of each partition is active, others are ready to follow it."""
    KEY_SHARED = 3
    """Messages with one key go to one consumer, in order."""

    @property
    def in_order(self) -> bool:
        """Whether one consumer gets all messages in order: then acknowledgements may be cumulative."""
        return self in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)


SUBSCRIPTION_TYPES: Final = {each.name.lower(): each for each in SubscriptionType}
"""The types by the names that `subscribe` takes."""

POSITIONS: Final = {"latest": 0, "earliest": 1}
"""Numbers of `InitialPosition` by name."""

MAX_HASH: Final = 65_535

_TEXT_OR_NONE: Final[Rule] = (
    (lambda value: value is None or (isinstance(value, str) and bool(value) and is_encodable(value))),
    "None or a string, not empty, of Unicode text",
)


def _properties(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(each, str) and is_encodable(each) for pair in value.items() for each in pair
    )


def _ranges(value: Any) -> bool:
    if value is None:
        return True
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or not value:
        return False
    pairs = [tuple(each) if isinstance(each, Sequence) else () for each in value]
    if not all(len(pair) == 2 and all(type(number) is int for number in pair) for pair in pairs):
        return False
    if not all(0 <= start <= end <= MAX_HASH for start, end in pairs):
        return False
    return all(before[1] < after[0] for before, after in pairwise(sorted(pairs)))


_PROPERTIES: Final[Rule] = (_properties, "a mapping of strings to strings")


@dataclass(frozen=True, kw_only=True)
class PulsarConsumerConfig(KnownKeys):
    """Configuration of a consumer. Durations are in seconds, sizes in bytes; the defaults are those of Java's client.

    - `consumer_name`: shown in the topic's statistics; in Failover subscriptions the order of names decides which consumer is
      active. None lets the broker choose one.
    - `initial_position`: where a new subscription begins: `latest`, `earliest`, or with `durable=False` a MessageId, which is
      read itself if `start_inclusive`.
    - `priority_level`: 0 is the highest. In Shared subscriptions others get messages when those above have no permits; in
      Failover subscriptions the active consumer is one of the highest.
    - `durable`: whether the broker keeps the position of the subscription. Otherwise it ends with its last consumer.
    - `key_ranges`: of a Key_Shared subscription, the hashes of keys (0 to 65535) that this consumer gets, as (first, last);
      None lets the broker divide them.
    - `allow_out_of_order`: of a Key_Shared subscription, whether a key may move to another consumer at once.
    - `read_compacted`: read the newest message of each key only, of a topic that is compacted.
    - `receiver_queue_size`: messages of a partition that wait for `receive`. 0 asks the broker for a message when a task waits
      for it. `max_total_receiver_queue_size` is the limit for all partitions together.
    - `receiver_queue_bytes`: of all partitions together, of which each has its part, and one batch at least; about, since the
      broker counts messages. None for no limit.
    - `ack_group_time`, `ack_group_size`: acknowledgements are sent together, after this time or number; 0 sends each at once.
    - `index_acks`: acknowledge the messages of a batch one by one (`acknowledgmentAtBatchIndexLevelEnabled` of the broker);
      otherwise a batch when all of its messages are acknowledged.
    - `nack_delay`: after this time a message that was negatively acknowledged is delivered again.
    - `max_pending_chunked`, `chunk_expiry`, `ack_oldest_chunked`: values in chunks that may be incomplete at a time; how long
      they wait for their next chunk (0: without limit) before they are given up, which acknowledges their chunks; and whether
      the oldest one is acknowledged, and not delivered again later, when there are too many.
    - `properties`: of the consumer, shown in the topic's statistics. `subscription_properties`: of a new subscription.
    - `replicate_subscription_state`: whether the position is copied to the other clusters of the topic.
    - `regex_subscription_mode`: of a pattern of topics, `persistent` ones, `non-persistent` ones, or `all`.
    - `pattern_auto_discovery_period`: how often the topics of a pattern are listed if no broker watches them; 0 for never.
    - `start_paused`: ask for no messages before `resume`; readers and table views begin at once.
    - `close_timeout`: how long `aclose` waits for the last acknowledgements, and then for the broker's answer to its leaving.
    """

    consumer_name: str | None = None
    initial_position: str | MessageId = "latest"
    start_inclusive: bool = False
    priority_level: int = 0
    durable: bool = True
    key_ranges: Sequence[tuple[int, int]] | None = None
    allow_out_of_order: bool = False
    read_compacted: bool = False
    receiver_queue_size: int = 1000
    max_total_receiver_queue_size: int = 50_000
    receiver_queue_bytes: int | None = 64 << 20
    ack_group_time: float = 0.1
    ack_group_size: int = 1000
    index_acks: bool = True
    nack_delay: float = 60.0
    max_pending_chunked: int = 10
    chunk_expiry: float = 60.0
    ack_oldest_chunked: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)
    subscription_properties: Mapping[str, str] = field(default_factory=dict)
    replicate_subscription_state: bool | None = None
    regex_subscription_mode: str = "persistent"
    pattern_auto_discovery_period: float = 60.0
    start_paused: bool = False
    close_timeout: float = 10.0

    _CHECKS: ClassVar[Mapping[str, Rule]] = {
        "consumer_name": _TEXT_OR_NONE,
        "initial_position": (
            lambda value: is_message_id(value) or (isinstance(value, str) and value in POSITIONS),
            "'latest', 'earliest' or a MessageId",
        ),
        "start_inclusive": FLAG,
        "priority_level": COUNT,
        "durable": FLAG,
        "key_ranges": (
            _ranges,
            f"None or ranges (first, last) of 0 to {MAX_HASH} that do not overlap",
        ),
        "allow_out_of_order": FLAG,
        "read_compacted": FLAG,
        "receiver_queue_size": COUNT,
        "max_total_receiver_queue_size": COUNT,
        "receiver_queue_bytes": (lambda value: value is None or SIZE[0](value), f"None or {SIZE[1]}"),
        "ack_group_time": DURATION_OR_ZERO,
        "ack_group_size": (lambda value: COUNT[0](value) and value > 0, "a whole number, 1 or more"),
        "index_acks": FLAG,
        "nack_delay": DURATION_OR_ZERO,
        "max_pending_chunked": COUNT,
        "chunk_expiry": DURATION_OR_ZERO,
        "ack_oldest_chunked": FLAG,
        "properties": _PROPERTIES,
        "subscription_properties": _PROPERTIES,
        "replicate_subscription_state": (
            lambda value: value is None or isinstance(value, bool),
            "None, True or False",
        ),
        "regex_subscription_mode": (
            lambda value: isinstance(value, str) and value in REGEX_MODES,
            "one of " + ", ".join(REGEX_MODES),
        ),
        "pattern_auto_discovery_period": DURATION_OR_ZERO,
        "start_paused": FLAG,
        "close_timeout": DURATION_OR_ZERO,
    }

    @classmethod
    def _suggest(cls, key: str, known: tuple[str, ...]) -> str:
        # imported here, because its tables of names are needed only for an error
        from asyncgroup.pulsar.consumer.foreign_names import suggest_consumer_key

        return suggest_consumer_key(key, known)

    def __post_init__(self) -> None:
        for key, (is_allowed, allowed) in self._CHECKS.items():
            value = getattr(self, key)
            if not is_allowed(value):
                hint = timedelta_hint(value, allowed) or (
                    seconds_hint(value)
                    if is_allowed is DURATION_OR_ZERO[0] and isinstance(value, int | float)
                    else ""
                )
                raise ConfigError(key, value, allowed + hint)
        if isinstance(self.initial_position, MessageId) and self.durable:
            raise ConfigError(
                "initial_position",
                self.initial_position,
                "'latest' or 'earliest' unless durable=False: use `seek`",
            )

    @classmethod
    def from_properties(cls, properties: Mapping[str, object], **keys: Any) -> FromProperties[Self]:
        """Create a configuration from the names of Java's client (`ConsumerConfigurationData`); `keys` win.

            config, rest = PulsarConsumerConfig.from_properties({"topicNames": "orders", "subscriptionType": "Shared"})

        `rest` has those of `topic`, `subscription` and `type` that are given, the arguments of `subscribe`. A name that has no effect here is
        logged as a warning. Raises ConfigError for an unknown name, an invalid value, and a feature that this client lacks.
        """
        from asyncgroup.pulsar.consumer.consumer_properties import CONSUMER_NAMES
        from asyncgroup.pulsar.java_properties import read_java_properties

        known = tuple(each.name for each in fields(cls))
        return read_java_properties(cls, CONSUMER_NAMES, properties, keys, known)

    def check_type(self, kind: SubscriptionType) -> None:
        """Raise ConfigError for settings that a type of subscriptions does not have."""
        if kind is not SubscriptionType.KEY_SHARED:
            if self.key_ranges is not None:
                raise ConfigError("key_ranges", self.key_ranges, "None unless the type is key_shared")
            if self.allow_out_of_order:
                raise ConfigError("allow_out_of_order", True, "False unless the type is key_shared")
        if self.read_compacted and not kind.in_order:
            raise ConfigError("read_compacted", True, "False unless the type is exclusive or failover")
