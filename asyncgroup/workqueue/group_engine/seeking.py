"""The target of `WorkQueue.seek`: offsets by partition, or one position for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from asyncgroup.checks import check_offset
from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.requests.list_offsets import LATEST, Isolation
from asyncgroup.consumer.list_offsets import StartOffset, look_up_each, parse_start
from asyncgroup.errors import AsyncGroupError, ConfigError
from asyncgroup.model import TopicPartition, wall_clock

__all__ = ["SeekTarget", "find_offsets", "known_offsets"]

SeekTarget: TypeAlias = StartOffset | Mapping[TopicPartition, int] | Mapping[tuple[str, int], int]
"""A position for all partitions (`earliest`, `latest`, an aware datetime, or a timedelta before now), or offsets by partition."""


def known_offsets(
    target: SeekTarget, owned: Iterable[TopicPartition], *, inclusive: bool
) -> dict[TopicPartition, int] | None:
    """Return the new fetch positions if they are known without a lookup. Raises as `find_offsets`."""
    if isinstance(target, Mapping):
        return _named(target, sorted(owned), inclusive=inclusive)
    start = parse_start(target, wall_clock)
    return None if start.timestamp is not None else dict.fromkeys(owned, start.offset + (not inclusive))


async def find_offsets(
    cluster: ClusterClient,
    target: SeekTarget,
    owned: Iterable[TopicPartition],
    isolation: Isolation,
    *,
    inclusive: bool,
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, AsyncGroupError]]:
    """Return the new fetch positions of those owned partitions that the target names, and errors of failed lookups.

    Raises ConfigError for another target and for a partition that is not owned, TransportError.
    """
    partitions = sorted(owned)
    if (known := known_offsets(target, partitions, inclusive=inclusive)) is not None:
        return known, {}
    timestamp = parse_start(target, wall_clock).timestamp
    assert timestamp is not None
    listed, errors = await look_up_each(cluster, dict.fromkeys(partitions, timestamp), isolation)
    after_last = [tp for tp, at in listed.items() if at.offset < 0]
    if after_last:  # no record has that time or a later one
        ends, more = await look_up_each(cluster, dict.fromkeys(after_last, LATEST), isolation)
        listed, errors = listed | ends, errors | more
    return {tp: at.offset for tp, at in listed.items() if tp not in errors}, errors


def _named(
    target: Mapping[Any, int], owned: list[TopicPartition], *, inclusive: bool
) -> dict[TopicPartition, int]:
    offsets = {}
    for key, offset in target.items():
        if not isinstance(key, tuple) or len(key) != 2:
            raise ConfigError("position", key, "offsets by TopicPartition or (topic, partition)")
        tp = TopicPartition(*key)
        if tp not in owned:
            raise ConfigError(
                "position",
                str(tp),
                f"partitions that this consumer has: {', '.join(map(str, owned)) or 'none'}",
            )
        offsets[tp] = check_offset(offset) + (0 if inclusive else 1)
    return offsets
