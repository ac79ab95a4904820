"""Spark's JSON format of offsets in checkpoints, `startingOffsets` and similar options, and `assign` (`JsonUtils`).

    {"orders":{"0":23,"1":-1}}      offsets, or timestamps
    {"orders":"earliest"}           in options only: the same for all partitions of a topic
    {"orders":[0,1]}                partitions

JSON written by Spark is read as Spark reads it, so that both sources can use the same checkpoint. JSON written by users is
checked more strictly: duplicate partitions, quoted numbers and fractions are errors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from asyncgroup.checks import is_legal_name
from asyncgroup.model import TopicPartition, by_topic

__all__ = ["dump", "parse", "parse_limits", "parse_partitions"]

K = TypeVar("K", bound=Hashable)

_INT32_MAX: Final = 0x7FFFFFFF
_INT64_MAX: Final = 0x7FFFFFFFFFFFFFFF
_MAX_CHARACTERS: Final = 64 * 1024 * 1024
_MAX_SHOWN: Final = 200
_MIN_SLOTS: Final = 16
_ENDS: Final = {"earliest": -2, "latest": -1}
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)


def parse(text: str | Mapping[str, Any]) -> dict[TopicPartition, int]:
    """Return offsets or timestamps from JSON, or from the result of `json.loads`; sorted by topic and partition.

    Raises ValueError saying what is wrong. Negative numbers are allowed; the caller interprets them.
    """
    found = {}
    for topic, partitions in sorted(_topics(text)):
        given = _object(partitions, topic)
        for partition, key in sorted((_partition(key, topic), key) for key in given):
            found[TopicPartition(topic, partition)] = _offset(given[key], topic, key)
    return found


def parse_limits(text: str) -> tuple[dict[TopicPartition, int], dict[str, int]]:
    """Return offsets by partition, and by topic for topics with "earliest" (-2) or "latest" (-1) in place of partitions.

    This is the format of `startingOffsets` and `endingOffsets` (SPARK-58774), not of checkpoints. Raises ValueError.
    """
    given = dict(_topics(text))
    topics = {
        topic: offset
        for topic, value in given.items()
        if isinstance(value, str) and (offset := _ENDS.get(value.lower())) is not None
    }
    return parse({topic: value for topic, value in given.items() if topic not in topics}), topics


def parse_partitions(text: str) -> tuple[TopicPartition, ...]:
    """Return the partitions of `assign`'s JSON, sorted, without duplicates; raise ValueError saying what is wrong."""
    found = set()
    for topic, numbers in _topics(text):
        if not isinstance(numbers, list):
            raise ValueError(  # noqa: TRY004  like all other errors in the text
                f"topic {topic!r} needs a list of partitions, as in {{{json.dumps(topic)}:[0,1]}}"
            )
        for number in numbers:
            if not _is_whole(number) or not 0 <= number <= _INT32_MAX:
                raise ValueError(f"{_shown(number)} in topic {topic!r} is not a partition number")
            found.add(TopicPartition(topic, number))
    return tuple(sorted(found))


def dump(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return an object from which `json.dumps` makes Spark's JSON, in the order in which Spark writes it."""
    partitions = by_topic(sorted(offsets))
    # Spark puts a topic into its map once for each of its partitions, so the last topic may be put several times
    again = bool(partitions) and len(partitions[max(partitions)]) > 1
    return {
        topic: {
            str(partition): int(offsets[TopicPartition(topic, partition)])
            for partition in _in_scala_order(partitions[topic], int)
        }
        for topic in _in_scala_order(list(partitions), _java_hash, again=again)
    }


# --- the order of Scala's mutable.HashMap ---------------------------------------------------------------------------


def _in_scala_order(keys: Sequence[K], hash_of: Callable[[K], int], *, again: bool = False) -> Iterable[K]:
    """Return the keys in the iteration order of a Scala `mutable.HashMap` into which they were put in this order.

    The order is by slot, and within a slot by hash. The table doubles when a put would make it three quarters full if the
    key were new; `again` says that the last key was put twice. Spark sorts the keys first, so its order is always the same.
    """
    slots = _MIN_SLOTS
    while (len(keys) + again) * 4 >= slots * 3:
        slots *= 2
    spread = {}
    for key in keys:
        code = hash_of(key) & 0xFFFFFFFF
        spread[key] = code ^ code >> 16
    return sorted(keys, key=lambda key: (spread[key] & slots - 1, _signed(spread[key])))


def _java_hash(text: str) -> int:
    """Return Java's `String.hashCode`; topic names are ASCII."""
    code = 0
    for char in text:
        code = code * 31 + ord(char) & 0xFFFFFFFF
    return code


def _signed(code: int) -> int:
    return code - (code >> 31 << 32)


# --- reading ----------------------------------------------------------------------------------------------------------


def _topics(text: str | Mapping[str, Any]) -> list[tuple[str, Any]]:
    found = _object(_loaded(text) if isinstance(text, str) else text)
    for topic in found:
        if not is_legal_name(topic):
            raise ValueError(f"{_shown(topic)} is not a valid topic name")
    return list(found.items())


def _loaded(text: str) -> Any:
    if len(text) > _MAX_CHARACTERS:
        raise ValueError(f"{len(text)} characters are more than the allowed {_MAX_CHARACTERS}")
    try:
        return json.loads(text, object_pairs_hook=_unique_names, parse_constant=_no_constant)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"not valid JSON: {error}") from None


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dict; raise ValueError for duplicate names, of which `json` would keep only the last."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{_shown(name)} is there twice")
        found[name] = value
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"not valid JSON: {name}")


def _object(value: Any, topic: str | None = None) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        what = "the text" if topic is None else f"topic {topic!r}"
        raise ValueError(f"{what} must be an object in braces, not {_shown(value)}")  # noqa: TRY004
    return value


def _partition(key: object, topic: str) -> int:
    if not isinstance(key, str) or not _NUMBER.fullmatch(key) or int(key) > _INT32_MAX:
        raise ValueError(f"{_shown(key)} in topic {topic!r} is not a partition number")
    return int(key)


def _offset(value: Any, topic: str, key: str) -> int:
    if not _is_whole(value) or abs(value) > _INT64_MAX:
        raise ValueError(f"{_shown(value)} of {topic}-{key} is not a 64-bit integer")
    return int(value)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: object) -> str:
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"
