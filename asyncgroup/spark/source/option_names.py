"""The names of the source's options, and what becomes of others."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Final

from asyncgroup.properties import is_secret
from asyncgroup.security import HIDDEN
from asyncgroup.spark.source.errors import OptionError

__all__ = ["KAFKA_PREFIX", "STRATEGIES", "Options", "check_names"]

KAFKA_PREFIX: Final = "kafka."
"""What begins so is a property of Kafka's client."""

STRATEGIES: Final = ("subscribe", "subscribePattern", "assign")
"""Of these a query names exactly one."""

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
"""Those of Spark's Kafka source; the last two ask for nothing here, see `options`."""

OWN_OPTIONS: Final = (
    *("groupFallback", "commitOffsets", "commitFailure", "commitInterval", "missingCommits"),
    *("maxBytesPerTrigger", "tasks", "fetchBytes"),
)

_FOREIGN_NAMES: Final = frozenset(
    {
        # Spark adds them to the options of load(path) and of tables
        *("path", "paths", "provider", "location", "owner", "external", "is_managed_location", "comment"),
        *("collation", "serialization.format"),
        # of the sink, of writers, and of every source: one dictionary often serves them all
        *("topic", "checkpointlocation", "queryname", "name", "timezone"),
    }
)
"""Names that are no options of this source, in lower case, and yet no mistakes."""

_MATCH_CUTOFF: Final = 0.6


class Options:
    """Options by their names in any case; of two that differ in case only the later one counts, as in Spark."""

    def __init__(self, given: Mapping[str, object]) -> None:
        if not isinstance(given, Mapping):
            raise OptionError("options", type(given).__name__, "a mapping of names to values")
        self._names: dict[str, str] = {}
        self._values: dict[str, str] = {}
        for name, value in given.items():
            if not isinstance(name, str):
                raise OptionError("options", name, "names that are text")
            if value is not None:  # as in Spark: not given
                self._names[name.lower()] = name
                self._values[name.lower()] = _text(value)

    def get(self, name: str) -> str | None:
        """The value, None where the option is not given."""
        return self._values.get(name.lower())

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def kafka(self) -> dict[str, str]:
        """Kafka's properties, without their prefix, in lower case as Kafka writes them all."""
        found = {
            name.removeprefix(KAFKA_PREFIX): value
            for name, value in self._values.items()
            if name.startswith(KAFKA_PREFIX)
        }
        return {name: value for name, value in found.items() if name}

    def as_given(self) -> Mapping[str, str]:
        """Lower case → the name as the user wrote it."""
        return self._names


def check_names(options: Options) -> None:
    """Raises OptionError for a name that is no option.

    Spark's source passes over what it does not know, and so over every spelling mistake: with `maxOffsetPerTrigger` a
    query runs without its limit, with `startingOffset` it skips a topic's history. Here each is an error, as a wrong
    value is, but for the names that Spark itself adds (`path`) and those of sinks and writers, as one dictionary of
    options often serves both.
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
    """As pyspark writes values that are no text."""
    return str(value).lower() if isinstance(value, bool) else str(value)
