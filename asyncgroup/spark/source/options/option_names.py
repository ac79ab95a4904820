"""The names of the source's options, and the check for unknown names."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Final

from asyncgroup.properties.reader import is_secret
from asyncgroup.security import HIDDEN
from asyncgroup.spark.source.errors import OptionError

__all__ = ["KAFKA_PREFIX", "STRATEGIES", "Options", "check_names"]

KAFKA_PREFIX: Final = "kafka."
"""The prefix of Kafka client properties."""

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

_FOREIGN_NAMES: Final = frozenset(
    {
        # added by Spark to the options of load(path) and of tables
        *("path", "paths", "provider", "location", "owner", "external", "is_managed_location", "comment"),
        *("collation", "serialization.format"),
        # options of the sink, of writers and of other sources: one dictionary is often used for all
        *("topic", "checkpointlocation", "queryname", "name", "timezone"),
    }
)
"""Names (in lower case) that are not options of this source, but are accepted."""

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


def check_names(options: Options) -> None:
    """Raise OptionError for a name that is not an option.

    Spark's source ignores unknown names, and so spelling mistakes: with `maxOffsetPerTrigger` a query runs without limit,
    with `startingOffset` it skips existing records. Here unknown names are errors, except those that Spark adds (`path`)
    and those of sinks and writers, as the same options are often used for both.
    """
    known = {name.lower(): name for name in (*SPARK_OPTIONS, *OWN_OPTIONS)}
    for lower, name in options.as_given().items():
        if (
            lower in known
            or lower.startswith((KAFKA_PREFIX, "_", "spark.", "option."))
            or lower in _FOREIGN_NAMES
        ):
            continue
        near = [known[each] for each in difflib.get_close_matches(lower, known, n=2, cutoff=_MATCH_CUTOFF)]
        raise OptionError(name, HIDDEN if is_secret(lower) else options.get(lower), _suggestion(name, near))


def _suggestion(name: str, near: list[str]) -> str:
    if near:
        return f"there is no such option; did you mean {' or '.join(near)}?"
    if "." in name:
        return f"there is no such option; did you mean {KAFKA_PREFIX}{name}, a property of Kafka's client?"
    return f"there is no such option; there are {', '.join(sorted((*SPARK_OPTIONS, *OWN_OPTIONS), key=str.lower))}"


def _text(value: object) -> str:
    """Convert a value to a string as pyspark does."""
    return str(value).lower() if isinstance(value, bool) else str(value)
