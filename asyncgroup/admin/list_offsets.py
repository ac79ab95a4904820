"""Offsets of partitions: their ends, offsets at times, and the borders of tiered storage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

from asyncgroup.admin.partitions import existing_partitions
from asyncgroup.checks import check_partition
from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.requests import list_offsets as requests
from asyncgroup.cluster.requests.budget import RequestBudget
from asyncgroup.cluster.requests.list_offsets import ISOLATION_LEVELS, Isolation, ListedOffset, millis_of
from asyncgroup.cluster.requests.results import Results
from asyncgroup.errors import ConfigError
from asyncgroup.topic_partition import TopicPartition

__all__ = [
    "ListOffsetsResultInfo",
    "OffsetSpec",
    "check_isolation",
    "checked_specs",
    "list_offsets",
    "timestamp_of_spec",
]

OffsetSpec: TypeAlias = (
    Literal[
        "earliest", "latest", "max-timestamp", "earliest-local", "latest-tiered", "earliest-pending-upload"
    ]
    | datetime
    | int
)
"""Which offset of a partition is wanted, by the words of Kafka's `kafka-get-offsets.sh --time`:

- `earliest`: the log start offset. `latest`: the high watermark, or with `read_committed` the last stable offset.
- a datetime with a time zone, or ms since 1970: the first record with this timestamp or a later one.
- `max-timestamp`: the record with the largest timestamp (KIP-734).
- `earliest-local`: the first offset on the leader's disk (KIP-405), `latest-tiered`: the last one in tiered storage (KIP-1005),
  `earliest-pending-upload`: the first one that is not there yet (KIP-1023).
"""

_SPECS: Final[Mapping[str, int]] = {
    "earliest": requests.EARLIEST,
    "latest": requests.LATEST,
    "max-timestamp": requests.MAX_TIMESTAMP,
    "earliest-local": requests.EARLIEST_LOCAL,
    "latest-tiered": requests.LATEST_TIERED,
    "earliest-pending-upload": requests.EARLIEST_PENDING_UPLOAD,
}
_ALLOWED: Final = f"{', '.join(map(repr, _SPECS))}, a datetime with a time zone, or ms since 1970 (0 or more)"


@dataclass(frozen=True, slots=True)
class ListOffsetsResultInfo:
    """An offset of a partition; Java's class of the same name."""

    offset: int | None
    """The offset; None if there is no such record, as for a time after the last one."""
    timestamp: int | None
    """The timestamp of the record in ms since 1970, for a lookup by time or of `max-timestamp`; None for the others."""
    leader_epoch: int | None
    """The leader epoch of the record, or of the log's end; None if the broker does not say it."""


def timestamp_of_spec(spec: object) -> int:
    """Return what ListOffsets asks for. Raises ConfigError for anything but an `OffsetSpec`."""
    if isinstance(spec, str):
        if spec in _SPECS:
            return _SPECS[spec]
    elif isinstance(spec, datetime):
        if spec.utcoffset() is not None:
            return millis_of(spec)
        raise ConfigError("offset", spec, f"{_ALLOWED}; this datetime has no time zone: when.astimezone()?")
    elif isinstance(spec, int) and not isinstance(spec, bool) and 0 <= spec < 1 << 63:
        return spec
    raise ConfigError("offset", spec, _ALLOWED)


def checked_specs(wanted: Any) -> dict[TopicPartition, int]:
    """Return what ListOffsets asks for each partition. Raises ConfigError."""
    if not isinstance(wanted, Mapping):
        raise ConfigError("partitions", wanted, "a mapping of partitions to what is wanted, such as 'latest'")
    return {check_partition(tp): timestamp_of_spec(spec) for tp, spec in wanted.items()}


def check_isolation(level: Any) -> Isolation:
    """Return the isolation level. Raises ConfigError for an unknown one."""
    if not isinstance(level, str) or level not in ISOLATION_LEVELS:
        raise ConfigError("isolation_level", level, " or ".join(map(repr, ISOLATION_LEVELS)))
    return level  # type: ignore[return-value]


async def list_offsets(
    cluster: ClusterClient,
    wanted: Mapping[TopicPartition, int],
    isolation: Isolation,
    budget: RequestBudget,
) -> Results[TopicPartition, ListOffsetsResultInfo]:
    """Look up each partition at a timestamp or at a special one of ListOffsets; a silent leader delays no other partition."""
    async with existing_partitions(cluster, wanted, "offset of", budget.deadline) as (found, errors):
        looked_up = await requests.list_offsets_of_leaders(
            cluster, {tp: wanted[tp] for tp in found}, isolation, retry=budget.node_retry()
        )
    values = {tp: _info(looked_up.values[tp]) for tp in found if tp in looked_up.values}
    return Results(values, errors | looked_up.errors)


def _info(found: ListedOffset) -> ListOffsetsResultInfo:
    return ListOffsetsResultInfo(*(None if number < 0 else number for number in found))
