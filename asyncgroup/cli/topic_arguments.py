"""Argument types for topics, their partitions and their configurations, in the forms of Kafka's own tools."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from asyncgroup.checks import check_topic
from asyncgroup.cli.common import argument
from asyncgroup.topic_partition import TopicPartition

if TYPE_CHECKING:
    from asyncgroup.admin import Admin
    from asyncgroup.cli.administration import Report

__all__ = [
    "PartitionScope",
    "add_scopes",
    "all_topic_names",
    "merged_configs",
    "parse_assignments",
    "parse_configs",
    "parse_partition",
    "parse_scope",
    "partitions_in",
    "topic_name",
    "whole_64",
]

_PARTITION: Final = re.compile(r"[0-9]{1,10}")
_MOST: Final = 2**31 - 1

topic_name = argument(check_topic)
"""Argument type: the name of a topic."""


# --- partitions -------------------------------------------------------------------------------------------------------


class PartitionScope(NamedTuple):
    """A topic, with all or some of its partitions."""

    topic: str
    partitions: tuple[int, ...] | None
    """None: all partitions."""

    def chosen(self, existing: Iterable[int]) -> list[TopicPartition]:
        """Return the partitions; `existing` are those of the topic."""
        numbers = existing if self.partitions is None else self.partitions
        return [TopicPartition(self.topic, number) for number in numbers]


def parse_scope(text: str) -> PartitionScope:
    """Argument type: `TOPIC`, or `TOPIC:0,1` for some partitions, as for `kafka-consumer-groups`."""
    name, colon, numbers = text.partition(":")
    topic = topic_name(name)
    if not colon:
        return PartitionScope(topic, None)
    parts = [part.strip() for part in numbers.split(",")]
    if not all(_PARTITION.fullmatch(part) and int(part) <= _MOST for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not TOPIC, or TOPIC:0,1 for some of its partitions")
    return PartitionScope(topic, tuple(dict.fromkeys(map(int, parts))))


def add_scopes(parser: argparse.ArgumentParser, *, default: str | None = None) -> None:
    """Add the arguments TOPIC[:PARTITIONS]: at least one, or with `default`, in words, none as well."""
    text = "a topic, or some of its partitions: orders:0,1"
    parser.add_argument(
        "scopes",
        nargs="+" if default is None else "*",
        type=parse_scope,
        metavar="TOPIC[:PARTITIONS]",
        help=text if default is None else f"{text} (default: {default})",
    )


async def partitions_in(
    admin: Admin, report: Report, scopes: Iterable[PartitionScope]
) -> list[TopicPartition]:
    """Return the partitions of the scopes, sorted; topics that do not exist are reported as errors."""
    wanted = list(scopes)
    described = await admin.describe_topics({scope.topic for scope in wanted})
    report.errors(described.errors)
    found: set[TopicPartition] = set()
    for scope in wanted:
        if (topic := described.values_by_name.get(scope.topic)) is not None:
            found.update(scope.chosen(each.partition for each in topic.partitions))
    return sorted(found)


def parse_partition(text: str) -> TopicPartition:
    """Argument type: one partition, `TOPIC:PARTITION`."""
    try:
        topic, numbers = parse_scope(text)
    except argparse.ArgumentTypeError:
        topic, numbers = text, None
    if numbers is None or len(numbers) != 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not TOPIC:PARTITION, such as orders:0")
    return TopicPartition(topic, numbers[0])


def whole_64(text: str) -> int:
    """Argument type: an offset or a producer id."""
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) < 2**63):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 0 or more")
    return int(text)


def parse_assignments(text: str) -> list[list[int]]:
    """Argument type: for each partition the node ids of its replicas, `1:2,2:3` as `--replica-assignment` in Kafka."""
    found = []
    for part in text.split(","):
        nodes = part.strip().split(":")
        if not all(_PARTITION.fullmatch(node) for node in nodes):
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a list of replicas: for each partition node ids such as 1:2, separated by commas"
            )
        found.append([int(node) for node in nodes])
    return found


async def all_topic_names(admin: Admin, given: Iterable[str], *, internal: bool) -> list[str]:
    """Return the given names, or all topics if there are none."""
    names = list(dict.fromkeys(given))
    return names or [topic.name for topic in await admin.list_topics(internal=internal)]


# --- configurations ---------------------------------------------------------------------------------------------------


def parse_configs(text: str) -> dict[str, str]:
    """Argument type: `NAME=VALUE`, or several separated by commas; a value with commas is in brackets, `NAME=[a,b]`.

    As `--add-config` of `kafka-configs`. The error does not contain the text, which may be a password.
    """
    found: dict[str, str] = {}
    for part in _outside_brackets(text):
        name, equals, value = part.partition("=")
        name, value = name.strip(), value.strip()
        if not equals or not name:
            raise argparse.ArgumentTypeError(
                "expected NAME=VALUE, such as retention.ms=60000; a value with commas is in brackets: NAME=[a,b]"
            )
        if name in found:
            raise argparse.ArgumentTypeError(f"{name} is given twice")
        found[name] = value[1:-1] if value.startswith("[") and value.endswith("]") else value
    return found


def _outside_brackets(text: str) -> list[str]:
    """Split a text at the commas that are not in brackets."""
    return re.split(r",(?![^\[\]]*\])", text)


def merged_configs(
    given: Iterable[Mapping[str, str]], option: str, parser: argparse.ArgumentParser
) -> dict[str, str]:
    """Return the configurations of an option that can be repeated; exit with a usage error if a name is given twice."""
    merged: dict[str, str] = {}
    for each in given:
        for name, value in each.items():
            if name in merged:
                parser.error(f"{option}: {name} is given twice")
            merged[name] = value
    return merged
