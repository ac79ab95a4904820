"""Log events: stable names for the main lines of the log, with fields, for logs that a program reads.

A line of the table has the attributes `event`, and of `FIELDS` those that it knows (`extra` of `logging`). The text of a line may
change between versions, its event does not. No line has the key or the value of a record.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from asyncgroup.error_types import error_type
from asyncgroup.errors import ClaimStuck, CommitFailedError
from asyncgroup.topic_partition import TopicPartition

__all__ = ["FIELDS", "LOG_EVENTS", "LogEvent", "claim_stuck_fields", "commit_failed_fields", "log_fields"]

LogEvent: TypeAlias = Literal[
    "joined",
    "assigned",
    "revoked",
    "lost",
    "handler_failed",
    "claim_stuck",
    "loop_blocked",
    "join_stalled",
    "coordinator_silent",
    "commit_failed",
    "offset_reset",
    "delivery_failed",
    "copy_failed",
    "dead_letter",
    "transaction_failed",
    "producer_failed",
    "attached",
    "detached",
    "ack_failed",
]
"""The names of the events."""

LOG_EVENTS: Final = MappingProxyType[LogEvent, str](
    {
        "joined": "The member has joined a generation of its group.",
        "assigned": "Partitions were assigned to the member.",
        "revoked": "Partitions were revoked, or the session ends.",
        "lost": "The membership was lost: nothing more is committed.",
        "handler_failed": "A handler of a group has raised, or a second failure came at the same time.",
        "claim_stuck": "A handler held a record for max_poll_interval without a sign of progress: the member leaves its group.",
        "loop_blocked": "The event loop ran nothing for a second or longer.",
        "join_stalled": "A join is not complete after 10 s.",
        "coordinator_silent": "The coordinator is not found, or has not answered, for 5 s.",
        "commit_failed": "Offsets could not be committed.",
        "offset_reset": "A position was outside the log, or the log has changed: reading continues elsewhere.",
        "delivery_failed": "The handler of a work queue has raised; at most one line a second.",
        "copy_failed": "A record could not be copied to a retry or dead letter topic; the copy is tried again.",
        "dead_letter": "A record was copied to the dead letter topic.",
        "transaction_failed": "A transaction must be aborted because of an error, which its caller gets (INFO), or was not aborted.",
        "producer_failed": "A transactional producer can only be closed: fenced, denied, or the outcome of a transaction is unknown. Its callers get the error (INFO).",
        "attached": "A producer or consumer of Pulsar is registered at its broker again, or after attempts that failed.",
        "detached": "A producer or consumer of Pulsar has lost its broker, or its first attempt has failed; it connects again.",
        "ack_failed": "Acknowledgements of a subscription of Pulsar have failed, and are sent again; one line until they succeed.",
    }
)
"""What each event means."""

FIELDS: Final = (
    "event",
    "group",
    "topic",
    "partition",
    "offset",
    "generation",
    "partitions",
    "transactional_id",
    "error",
)
"""The attributes of a line, in the order of a structured log. `group` is also a subscription of Pulsar."""


def log_fields(
    event: LogEvent,
    *,
    group: str | None = None,
    tp: TopicPartition | None = None,
    offset: int | None = None,
    generation: int | None = None,
    partitions: Iterable[TopicPartition] | None = None,
    transactional_id: str | None = None,
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
    if transactional_id is not None:
        fields["transactional_id"] = transactional_id
    if error is not None:
        fields["error"] = error_type(error)
    return fields


def claim_stuck_fields(error: ClaimStuck) -> dict[str, object]:
    """Return the `extra` of a claim that is stuck."""
    tp = TopicPartition(error.topic, error.partition)
    return log_fields("claim_stuck", group=error.group_id, tp=tp, error=error)


def commit_failed_fields(error: CommitFailedError) -> dict[str, object]:
    """Return the `extra` of a commit that failed: its partitions, and the error of the first one."""
    first = next(iter(error.errors.values()), error)
    return log_fields("commit_failed", group=error.group_id, partitions=sorted(error.errors), error=first)
