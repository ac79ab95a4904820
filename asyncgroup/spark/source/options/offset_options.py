"""Read the options for starting and ending offsets and timestamps (Spark's `getKafkaOffsetRangeLimit`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

from asyncgroup.model import TopicPartition
from asyncgroup.spark.source.errors import OptionError, SourceArgumentError
from asyncgroup.spark.source.options import offsets_json, values
from asyncgroup.spark.source.options.patterns import java_pattern
from asyncgroup.spark.source.options.settings import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    Assign,
    AtTimestamp,
    ByTimestamp,
    Earliest,
    FromGroup,
    Latest,
    OffsetLimit,
    Specific,
    Strategy,
    Subscribe,
)
from asyncgroup.spark.source.options.values import Options

__all__ = ["read_ending", "read_starting"]

_OnNoMatch: TypeAlias = Literal["error", "latest"]
_Parsed: TypeAlias = tuple[dict[TopicPartition, int], dict[str, int]]
_Parse: TypeAlias = Callable[[str], _Parsed]


class _OptionNames(NamedTuple):
    """The options for the start or the end, in order of precedence."""

    timestamp: str
    by_timestamp: str
    offsets: str


_STARTING: Final = _OptionNames("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_ENDING: Final = _OptionNames("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")

_on_no_match: Final[Callable[[str], _OnNoMatch]] = values.choice(error="error", latest="latest")
_fallback: Final[Callable[[str], Literal["earliest", "latest", "error"]]] = values.choice(
    earliest="earliest", latest="latest", error="error"
)

_WORDS: Final[Mapping[str, OffsetLimit]] = {
    "earliest": Earliest(),
    "latest": Latest(),
    "group": FromGroup("error"),  # replaced with the fallback option's value later
}


def read_starting(options: Options, strategy: Strategy, *, stream: bool) -> OffsetLimit:
    """Return where a new query starts; raise OptionError."""
    default: OffsetLimit = Latest() if stream else Earliest()
    on_no_match: _OnNoMatch = options.read("startingOffsetsByTimestampStrategy", _on_no_match, "error")
    limit = _read(options, _STARTING, strategy, default, on_no_match)
    if isinstance(limit, FromGroup):
        return FromGroup(options.read("groupFallback", _fallback, "latest" if stream else "earliest"))
    if not stream and isinstance(limit, Latest):
        raise OptionError(
            _STARTING.offsets, "latest", "earliest, group or JSON with offsets in batch queries"
        )
    if not stream and isinstance(limit, Specific):
        _refuse(options, _STARTING.offsets, limit, LATEST_OFFSET, "the latest (-1) in batch queries")
    return limit


def read_ending(options: Options, strategy: Strategy, starting: OffsetLimit, *, stream: bool) -> OffsetLimit:
    """Return where a batch query ends; raise OptionError, or SourceArgumentError if it is before the start."""
    if stream:
        for name in _ENDING:
            if name in options:
                raise OptionError(name, options.get(name), "leave it out: streaming queries have no end")
        return Latest()
    # an ending timestamp after the last record is no error: the partition is read to its end
    limit = _read(options, _ENDING, strategy, Latest(), "latest")
    if isinstance(limit, FromGroup):
        raise OptionError(_ENDING.offsets, options.get(_ENDING.offsets), "latest, or JSON with offsets")
    if isinstance(limit, Earliest):
        raise OptionError(_ENDING.offsets, "earliest", "latest, or JSON with offsets")
    if isinstance(limit, Specific):
        _refuse(options, _ENDING.offsets, limit, EARLIEST_OFFSET, "the earliest (-2)")
    _check_order(starting, limit)
    return limit


def _read(
    options: Options, names: _OptionNames, strategy: Strategy, default: OffsetLimit, on_no_match: _OnNoMatch
) -> OffsetLimit:
    if (text := options.get(names.timestamp)) is not None:
        return AtTimestamp(_timestamp(names.timestamp, text), on_no_match)
    if (text := options.get(names.by_timestamp)) is not None:
        return ByTimestamp(_timestamps(names.by_timestamp, text, strategy), on_no_match)
    if (text := options.get(names.offsets)) is None:
        return default
    word = _WORDS.get(text.strip().lower())
    return _offsets(names.offsets, text, strategy) if word is None else word


# --- values -----------------------------------------------------------------------------------------------------------


def _timestamp(name: str, text: str) -> int:
    try:
        return values.integer(0, values.INT64_MAX)(text.strip())
    except ValueError:
        raise OptionError(name, text, "a time in milliseconds since 1970, 0 or more") from None


def _timestamps(name: str, text: str, strategy: Strategy) -> Mapping[TopicPartition, int]:
    example = 'times in milliseconds since 1970, as in {"topicA":{"0":1700000000000}}'
    found, _ = _parsed(name, text, strategy, example, lambda json: (offsets_json.parse(json), {}))
    for tp, timestamp in found.items():
        if timestamp < 0:
            raise OptionError(name, text, f"{example}; {tp} has {timestamp}")
    return found


def _offsets(name: str, text: str, strategy: Strategy) -> Specific:
    words = "earliest, latest or group" if name == _STARTING.offsets else "latest"
    example = f'{words}, or offsets as in {{"topicA":{{"0":23,"1":-1}}}} (-1: latest, -2: earliest)'
    found, topics = _parsed(name, text, strategy, example, offsets_json.parse_limits)
    for tp, offset in found.items():
        if offset < EARLIEST_OFFSET:
            raise OptionError(name, text, f"{example}; {tp} has {offset}")
    return Specific(found, topics)


def _parsed(name: str, text: str, strategy: Strategy, example: str, parse: _Parse) -> _Parsed:
    try:
        found, topics = parse(text.strip())
    except ValueError as error:
        raise OptionError(name, text, f"{example}; {error}") from None
    if not found and not topics:
        raise OptionError(name, text, f"{example}; it names no partitions")
    if wrong := _unknown(found, topics, strategy):
        raise OptionError(name, text, f"{example}; {wrong}")
    return found, topics


def _unknown(partitions: Iterable[TopicPartition], topics: Iterable[str], strategy: Strategy) -> str:
    """Return a text about partitions and topics that the query does not read, as far as known without brokers; "" if none.

    Spark checks this when the query runs (`KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED`). So does `resolve_offsets` for the
    rest: partitions that do not exist, or are not named.
    """
    named = sorted({*topics, *(tp.topic for tp in partitions)})
    if isinstance(strategy, Assign):
        assigned, there = set(strategy.partitions), {tp.topic for tp in strategy.partitions}
        strange = [str(tp) for tp in sorted(partitions) if tp not in assigned]
        strange += [topic for topic in topics if topic not in there]
        where = "assign"
    elif isinstance(strategy, Subscribe):
        strange, where = [topic for topic in named if topic not in strategy.topics], "subscribe"
    else:
        pattern = java_pattern(strategy.pattern)
        strange, where = [topic for topic in named if not pattern.search(topic)], "subscribePattern"
    return f"{', '.join(strange)} is not in {where}" if strange else ""


# --- contradictions ---------------------------------------------------------------------------------------------------


def _refuse(options: Options, name: str, limit: Specific, offset: int, what: str) -> None:
    for one, wanted in [*limit.offsets.items(), *limit.topics.items()]:
        if wanted == offset:
            raise OptionError(name, options.get(name), f"offsets other than {what}; {one} has it")


def _check_order(starting: OffsetLimit, ending: OffsetLimit) -> None:
    """If start and end are of the same kind, check that they name the same partitions and that none ends before it starts."""
    if isinstance(starting, Specific) and isinstance(ending, Specific):
        if starting.topics or ending.topics:
            return  # the partitions of a topic are not known yet
        _check_pairs(starting.offsets, ending.offsets, "offset")
    elif isinstance(starting, ByTimestamp) and isinstance(ending, ByTimestamp):
        _check_pairs(starting.timestamps, ending.timestamps, "timestamp")


def _check_pairs(
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    kind: Literal["offset", "timestamp"],
) -> None:
    if starts.keys() != ends.keys():
        raise SourceArgumentError(
            "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET",
            tpsForStartOffset=starts.keys(),
            tpsForEndOffset=ends.keys(),
        )
    for tp, start in starts.items():
        if 0 <= ends[tp] < start:
            names = "Offsets" if kind == "offset" else "OffsetsByTimestamp"
            raise SourceArgumentError(
                "UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
                options=f"starting{names} and ending{names}",
                offsetType=kind,
                startOffset=start,
                endOffset=ends[tp],
                topic=tp.topic,
                partition=tp.partition,
            )
