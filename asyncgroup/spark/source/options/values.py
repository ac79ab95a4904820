"""Options as given: names in any case, the check for unknown ones, and parsers of values.

Values are read like Spark: numbers like Scala's toInt and toLong, durations and sizes like JavaUtils. Parsers return the value
or raise ValueError whose text says what is allowed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, TypeVar

from asyncgroup.properties.reader import is_secret
from asyncgroup.security import HIDDEN
from asyncgroup.spark.option_words import KAFKA_PREFIX
from asyncgroup.spark.source.errors import OptionError

__all__ = [
    "ALL_OPTIONS",
    "INT32_MAX",
    "INT64_MAX",
    "STRATEGIES",
    "Options",
    "boolean",
    "check_names",
    "choice",
    "duration",
    "integer",
    "milliseconds",
    "size",
]

INT32_MAX: Final = 0x7FFFFFFF
INT64_MAX: Final = 0x7FFFFFFFFFFFFFFF

T = TypeVar("T")

STRATEGIES: Final = ("subscribe", "subscribePattern", "assign")
"""A query must have exactly one of these."""

SPARK_OPTIONS: Final = (
    *STRATEGIES,
    *(
        "startingOffsets",
        "startingTimestamp",
        "startingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy",
    ),
    *("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
    *("failOnDataLoss", "includeHeaders", "minPartitions", "maxRecordsPerPartition"),
    *("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
    *("kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs"),
    *("groupIdPrefix", "partition.metadata.cache.ttl.ms"),
)
"""The options of Spark's Kafka source; the last two have no effect here, see `options`."""

OWN_OPTIONS: Final = (
    *("groupFallback", "commitOffsets", "commitFailure", "commitInterval", "missingCommits"),
    *("maxBytesPerTrigger", "tasks", "fetchBytes"),
)

SINK_OPTIONS: Final = ("topic", "transactional.id.prefix")

ALL_OPTIONS: Final[Mapping[str, str]] = {
    name.lower(): name for name in (*SPARK_OPTIONS, *OWN_OPTIONS, *SINK_OPTIONS, "checkpointLocation")
}
"""The options of the source and of the sink, by lower case."""

_FOREIGN_NAMES: Final = frozenset(
    {
        # added by Spark to the options of load(path) and of tables
        *("path", "paths", "provider", "location", "owner", "external", "is_managed_location", "comment"),
        *("collation", "serialization.format"),
        # options of writers and of other sources: one dictionary is often used for all
        *("checkpointlocation", "queryname", "name", "timezone"),
    }
)
"""Names (in lower case) that are options of neither the source nor the sink, but are accepted."""

_MATCH_CUTOFF: Final = 0.6


class Options:
    """Options with case-insensitive names; of two names that differ only in case the later one wins, as in Spark."""

    def __init__(self, given: Mapping[str, object]) -> None:
        if not isinstance(given, Mapping):
            raise OptionError("options", type(given).__name__, "a mapping of names to values")
        self._names: dict[str, str] = {}
        self._values: dict[str, str] = {}
        for name, value in given.items():
            if not isinstance(name, str):
                raise OptionError("options", name, "names that are strings")
            if value is not None:  # None means that the option is not set, as in Spark
                self._names[name.lower()] = name
                self._values[name.lower()] = _text(value)

    def get(self, name: str) -> str | None:
        """Return the value, None if the option is not set."""
        return self._values.get(name.lower())

    def read(self, name: str, parse: Callable[[str], T], default: T) -> T:
        """Return the parsed value, `default` if the option is not set; raise OptionError."""
        text = self.get(name)
        if text is None:
            return default
        try:
            return parse(text)
        except ValueError as error:
            raise OptionError(name, text, str(error)) from None

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def kafka(self) -> dict[str, str]:
        """Return the Kafka properties without prefix, in lower case like all of Kafka's names."""
        found = {
            name.removeprefix(KAFKA_PREFIX): value
            for name, value in self._values.items()
            if name.startswith(KAFKA_PREFIX)
        }
        return {name: value for name, value in found.items() if name}

    def as_given(self) -> Mapping[str, str]:
        """Return the names as the user wrote them, by lower case."""
        return self._names


def check_names(options: Options, *, sink: bool = False) -> None:
    """Raise OptionError for a name that is not an option, with the options of the source, or of the sink, that it resembles.

    Spark's source ignores unknown names, and so spelling mistakes: with `maxOffsetPerTrigger` a query runs without limit,
    with `startingOffset` it skips existing records, and a sink without its `transactional.id.prefix` writes without
    transactions. Here unknown names are errors, except those that Spark adds (`path`). Source and sink accept each other's
    options, as the same options are often used for both.
    """
    source_options = (*SPARK_OPTIONS, *OWN_OPTIONS)
    accepted = ALL_OPTIONS.keys() | _FOREIGN_NAMES
    own = SINK_OPTIONS if sink else source_options
    for lower, name in options.as_given().items():
        if lower in accepted or lower.startswith((KAFKA_PREFIX, "_", "spark.", "option.")):
            continue
        raise OptionError(name, HIDDEN if is_secret(lower) else options.get(lower), _suggestion(name, own))


def _suggestion(name: str, options: Iterable[str]) -> str:
    known = {each.lower(): each for each in options}
    near = [known[each] for each in difflib.get_close_matches(name.lower(), known, n=2, cutoff=_MATCH_CUTOFF)]
    if near:
        return f"there is no such option; did you mean {' or '.join(near)}?"
    if "." in name:
        return f"there is no such option; did you mean {KAFKA_PREFIX}{name}, a property of Kafka's client?"
    return f"there is no such option; there are {', '.join(sorted(known.values(), key=str.lower))}"


def _text(value: object) -> str:
    """Convert a value to a string as pyspark does."""
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- values -----------------------------------------------------------------------------------------------------------

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,30}", re.ASCII)
_DURATION: Final = re.compile(r"([0-9]{1,18})([a-z]+)?", re.ASCII)
_SIZE: Final = re.compile(r"([0-9]{1,18})([a-z]+)?", re.ASCII)

_UNITS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_BINARY: Final[Mapping[str, int]] = {
    unit: 1024**power
    for power, units in enumerate((["b"], ["k", "kb"], ["m", "mb"], ["g", "gb"], ["t", "tb"], ["p", "pb"]))
    for unit in units
}


def integer(minimum: int, maximum: int) -> Callable[[str], int]:
    """Return a parser of decimal integers, without surrounding spaces."""

    def read(text: str) -> int:
        if not _INTEGER.fullmatch(text) or not minimum <= (number := int(text)) <= maximum:
            raise ValueError(f"a whole number, {minimum} to {maximum}")
        return number

    return read


def boolean(text: str) -> bool:
    """Parse true or false, in any case."""
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def choice(**words: T) -> Callable[[str], T]:
    """Return a parser of one of these words, in any case, which returns the word's value."""

    def read(text: str) -> T:
        try:
            return words[text.strip().lower()]
        except KeyError:
            raise ValueError(" or ".join(words)) from None

    return read


def milliseconds(text: str, least: int = 1) -> float:
    """Parse milliseconds, `least` or more; return seconds."""
    try:
        return integer(least, INT32_MAX)(text) / 1000
    except ValueError as error:
        raise ValueError(f"{error} (milliseconds)") from None


def duration(*, minimum: float, default_unit: Literal["ms"] | None) -> Callable[[str], float]:
    """Return a parser of durations (`JavaUtils.timeStringAs`) such as `15m`, `1000ms` or `10s`, which returns seconds.

    `default_unit` is the unit of a number without one; None: a unit is required, because the meaning is not obvious.
    """
    with_unit = "a duration such as 500ms, 10s or 15m (us, ms, s, m, min, h, d)"
    allowed = with_unit if minimum == 0 else f"{with_unit}, at least {minimum:g}s"

    def read(text: str) -> float:
        found = _DURATION.fullmatch(text.strip().lower())
        unit = _UNITS.get(found[2] or default_unit or "") if found else None
        if found is None or unit is None or not (seconds := int(found[1]) * unit) >= minimum:
            raise ValueError(allowed)
        return seconds

    return read


def size(*, minimum: int, maximum: int) -> Callable[[str], int]:
    """Return a parser of sizes (`JavaUtils.byteStringAs`) such as `64m`, `64mb` or `512k`, which returns bytes.

    The units b, k, m, g, t, p are powers of 1024.
    """

    def read(text: str) -> int:
        found = _SIZE.fullmatch(text.strip().lower())
        unit = _BINARY.get(found[2] or "b") if found else None
        if found is None or unit is None or not minimum <= (number := int(found[1]) * unit) <= maximum:
            raise ValueError(f"a size such as 512k or 64m (b, k, m, g, t, p), {minimum} to {maximum} bytes")
        return number

    return read
