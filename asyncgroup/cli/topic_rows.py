"""Rows and columns of `asyncgroup topics`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from asyncgroup.cli.tables import Column, Row

if TYPE_CHECKING:
    from asyncgroup.admin import ConfigDescription, PartitionDescription, TopicDescription

__all__ = ["DESCRIBE_COLUMNS", "LIST_COLUMNS", "OVERRIDE_COLUMNS", "override_rows", "partition_row"]

LIST_COLUMNS: Final = (
    Column("topic", is_name=True, can_shrink=True),
    Column("partitions", is_number=True),
    Column("internal"),
    Column("topic_id", can_shrink=True),
)

DESCRIBE_COLUMNS: Final = (
    Column("topic", is_name=True, can_shrink=True),
    Column("partition", is_number=True, is_name=True),
    Column("leader", is_number=True),
    Column("leader_epoch", is_number=True),
    Column("replicas"),
    Column("isr"),
    Column("offline"),
    Column("elr", is_wide=True),
    Column("last_known_elr", is_wide=True),
)

OVERRIDE_COLUMNS: Final = (
    Column("topic", is_name=True, can_shrink=True),
    Column("partitions", is_number=True),
    Column("replication_factor", is_number=True),
    Column("configs", can_shrink=True),
)

TOPIC_SOURCE: Final = "DYNAMIC_TOPIC_CONFIG"


def partition_row(topic: TopicDescription, partition: PartitionDescription, min_isr: int | None) -> Row:
    """Return the row of a partition; `min_isr`, which only filters need, is in no column."""
    return {
        "topic": topic.name,
        "partition": partition.partition,
        "leader": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replicas": partition.replicas,
        "isr": partition.isr,
        "offline": partition.offline_replicas,
        "elr": partition.elr,
        "last_known_elr": partition.last_known_elr,
        "min_isr": min_isr,
    }


def override_rows(
    topics: Mapping[str, TopicDescription], described: Mapping[str, Mapping[str, ConfigDescription]]
) -> list[Row]:
    """Return a row for each topic whose configurations override the defaults, as `kafka-topics --topics-with-overrides`."""
    rows: list[Row] = []
    for name, topic in topics.items():
        configs = {
            config: each.value
            for config, each in sorted(described.get(name, {}).items())
            if each.source == TOPIC_SOURCE
        }
        if configs:
            factor = len(topic.partitions[0].replicas) if topic.partitions else 0
            row = {"topic": name, "partitions": len(topic.partitions), "replication_factor": factor}
            rows.append({**row, "configs": configs})
    return rows
