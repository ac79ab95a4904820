"""Read the options of a query into `ReadSettings`: `parser` is the entrance, see the package for the options' meaning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal

from asyncgroup.checks import is_legal_name
from asyncgroup.spark.source.errors import OptionError
from asyncgroup.spark.source.options import offsets_json, values
from asyncgroup.spark.source.options.kafka_options import KafkaOptions, read_kafka
from asyncgroup.spark.source.options.offset_options import read_ending, read_starting
from asyncgroup.spark.source.options.patterns import java_pattern
from asyncgroup.spark.source.options.settings import (
    Assign,
    FromGroup,
    ReadSettings,
    Strategy,
    Subscribe,
    SubscribePattern,
)
from asyncgroup.spark.source.options.values import STRATEGIES, Options, check_names

__all__ = ["read_include_headers", "read_settings"]

_STREAM_OPTIONS: Final = (
    *("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger"),
    *("commitOffsets", "commitFailure", "commitInterval", "missingCommits"),
)
_POSITIVE_INT: Final = values.integer(1, values.INT32_MAX)
_POSITIVE_LONG: Final = values.integer(1, values.INT64_MAX)


def read_settings(options: Mapping[str, str], *, stream: bool) -> ReadSettings:
    """Return the settings of a streaming query (`stream`) or a batch query.

    Raises OptionError, a ValueError that names the option, its value and what is allowed; SourceArgumentError, also a
    ValueError, if starting and ending offsets contradict each other.
    """
    given = Options(options)
    check_names(given)
    strategy = _strategy(given)
    kafka = read_kafka(given.kafka())
    starting = read_starting(given, strategy, stream=stream)
    ending = read_ending(given, strategy, starting, stream=stream)
    _check_group(given, kafka, from_group=isinstance(starting, FromGroup))
    ignored = () if stream else tuple(name for name in _STREAM_OPTIONS if name in given)
    min_offsets = given.read("minOffsetsPerTrigger", values.integer(0, values.INT64_MAX), None)
    max_offsets = given.read("maxOffsetsPerTrigger", _POSITIVE_LONG, None)
    if min_offsets is not None and max_offsets is not None and min_offsets > max_offsets:
        raise OptionError("minOffsetsPerTrigger", min_offsets, f"at most maxOffsetsPerTrigger={max_offsets}")
    count = values.integer(0, values.INT32_MAX)
    fetch = values.size(minimum=1, maximum=values.INT32_MAX)
    return ReadSettings(
        bootstrap_servers=kafka.bootstrap_servers,
        config=kafka.config,
        strategy=strategy,
        starting=starting,
        ending=ending,
        fail_on_data_loss=given.read("failOnDataLoss", values.boolean, True),
        include_headers=given.read("includeHeaders", values.boolean, False),
        max_offsets_per_trigger=max_offsets,
        min_offsets_per_trigger=min_offsets,
        max_trigger_delay=given.read("maxTriggerDelay", values.duration(minimum=0, default_unit="ms"), 900.0),
        max_bytes_per_trigger=given.read(
            "maxBytesPerTrigger", values.size(minimum=1, maximum=values.INT64_MAX), None
        ),
        min_partitions=given.read("minPartitions", _POSITIVE_INT, None),
        max_records_per_partition=given.read("maxRecordsPerPartition", _POSITIVE_LONG, None),
        tasks=given.read("tasks", _tasks, None),
        group_id=kafka.group_id,
        commit_offsets=given.read("commitOffsets", values.choice(auto=True, off=False), True),
        commit_failure=given.read("commitFailure", values.choice(warn="warn", fail="fail"), "warn"),
        trusts_checkpoint=given.read("missingCommits", values.choice(check=False, ignore=True), False),
        commit_interval=given.read("commitInterval", values.duration(minimum=0.001, default_unit=None), 60.0),
        poll_timeout=given.read("kafkaConsumer.pollTimeoutMs", values.milliseconds, 120.0),
        api_timeout=kafka.api_timeout,
        offset_retries=given.read("fetchOffset.numRetries", count, 3),
        offset_retry_interval=given.read("fetchOffset.retryIntervalMs", count, 1000) / 1000,
        fetch_bytes=given.read("fetchBytes", fetch, kafka.fetch_bytes or ReadSettings.fetch_bytes),
        warnings=(*kafka.warnings, *(f"option {name} is ignored in batch queries" for name in ignored)),
    )


def _tasks(text: str) -> int | Literal["auto"]:
    if text.strip().lower() == "auto":
        return "auto"
    try:
        return _POSITIVE_INT(text)
    except ValueError as error:
        raise ValueError(f"auto, or {error}") from None


def read_include_headers(options: Mapping[str, str]) -> bool:
    """Return `includeHeaders` alone, which determines the schema; raise OptionError."""
    return Options(options).read("includeHeaders", values.boolean, False)


# --- what is read -----------------------------------------------------------------------------------------------------


def _strategy(options: Options) -> Strategy:
    found = [name for name in STRATEGIES if name in options]
    if len(found) != 1:
        what = " and ".join(found) + " are set" if found else "none is set"
        raise OptionError(f"exactly one of the options {', '.join(STRATEGIES)} must be set; {what}")
    read: Mapping[str, Callable[[str], Strategy]] = {
        "subscribe": _subscribe,
        "subscribePattern": _subscribe_pattern,
        "assign": _assign,
    }
    strategy = options.read(found[0], read[found[0]], None)
    assert strategy is not None
    return strategy


def _subscribe(text: str) -> Subscribe:
    topics = tuple(dict.fromkeys(topic for item in text.split(",") if (topic := item.strip())))
    if not topics:
        raise ValueError("topic names, separated by commas")
    for topic in topics:
        if not is_legal_name(topic):
            raise ValueError(f"topic names, separated by commas; {topic!r} is not a valid topic name")
    return Subscribe(topics)


def _subscribe_pattern(text: str) -> SubscribePattern:
    pattern = text.strip()
    if not pattern:
        raise ValueError("a regular expression, not an empty one")
    java_pattern(pattern)
    return SubscribePattern(pattern)


def _assign(text: str) -> Assign:
    example = 'partitions as in {"topicA":[0,1],"topicB":[0,1]}'
    try:
        partitions = offsets_json.parse_partitions(text)
    except ValueError as error:
        raise ValueError(f"{example}; {error}") from None
    if not partitions:
        raise ValueError(f"{example}; it names no partitions")
    return Assign(partitions)


# --- groups -----------------------------------------------------------------------------------------------------------


def _check_group(options: Options, kafka: KafkaOptions, *, from_group: bool) -> None:
    """Raise OptionError for options about a group without `kafka.group.id`, or `groupFallback` without its option."""
    if from_group and kafka.group_id is None:
        raise OptionError(
            "startingOffsets", "group", "only together with kafka.group.id, which names the group"
        )
    if "groupFallback" in options and not from_group:
        raise OptionError(
            "groupFallback", options.get("groupFallback"), "only together with startingOffsets=group"
        )
    commits = options.get("commitOffsets")
    if commits is not None and commits.strip().lower() == "auto" and kafka.group_id is None:
        raise OptionError(
            "commitOffsets", commits, "only together with kafka.group.id, the group to commit to"
        )
