"""Log events: stable names for the main lines of the log, with fields, for logs that a program reads.

A line of the table has the attributes `event`, and of `FIELDS` those that it knows (`extra` of `logging`). The text of a line may
change between versions, its event does not. No line has the key or the value of a record.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from asyncgroup.error_types import error_type
from asyncgroup.errors import CommitFailedError
from asyncgroup.topic_partition import TopicPartition

__all__ = ["FIELDS", "LOG_EVENTS", "LogEvent", "commit_failed_fields", "log_fields"]

LogEvent: TypeAlias = Literal[
    "joined",
    "assigned",
    "revoked",
    "lost",
    "handler_failed",
    "commit_failed",
    "offset_reset",
    "delivery_failed",
    "copy_failed",
    "dead_letter",
]
"""The names of the events."""

LOG_EVENTS: Final = MappingProxyType[LogEvent, str](
    {
        "joined": "The member has joined a generation of its group.",
        "assigned": "Partitions were assigned to the member.",
        "revoked": "Partitions were revoked, or the session ends.",
        "lost": "The membership was lost: nothing more is committed.",
        "handler_failed": "A handler of a group has raised, or a second failure came at the same time.",
        "commit_failed": "Offsets could not be committed.",
        "offset_reset": "A position was outside the log, or the log has changed: reading continues elsewhere.",
        "delivery_failed": "The handler of a work queue has raised; at most one line a second.",
        "copy_failed": "A record could not be copied to a retry or dead letter topic; the copy is tried again.",
        "dead_letter": "A record was copied to the dead letter topic.",
    }
)
"""What each event means."""

FIELDS: Final = ("event", "group", "topic", "partition", "offset", "generation", "partitions", "error")
"""The attributes of a line, in the order of a structured log."""


def log_fields(
    event: LogEvent,
    *,
    group: str | None = None,
    tp: TopicPartition | None = None,
    offset: int | None = None,
    generation: int | None = None,
    partitions: Iterable[TopicPartition] | None = None,
    error: BaseException | None = None,
) -> dict[str, object]:
    """Return the `extra` of a log call: the event, and the fields that are known.

    `error` becomes its `error_type`.
    """
    fields: dict[str, object] = {"event": event}
    if group is not None:
        fields["group"] = group
    if tp is not None:
        fields |= {"topic": tp.topic, "partition": tp.partition}
    if offset is not None:
        fields["offset"] = offset
    if generation is not None:
        fields["generation"] = generation
    if partitions is not None:
        fields["partitions"] = [f"{each.topic}-{each.partition}" for each in partitions]
    if error is not None:
        fields["error"] = error_type(error)
    return fields


def commit_failed_fields(error: CommitFailedError) -> dict[str, object]:
    """Return the `extra` of a commit that failed: its partitions, and the error of the first one."""
    first = next(iter(error.errors.values()), error)
    return log_fields("commit_failed", group=error.group_id, partitions=sorted(error.errors), error=first)
