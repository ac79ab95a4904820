"""Map each error code of a Produce response to the producer's action."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from asyncgroup.error_codes import is_retriable
from asyncgroup.errors import ErrorCode

__all__ = ["PRODUCE_ACTIONS", "ProduceAction", "produce_action"]


class ProduceAction(Enum):
    """What to do with a batch after the response."""

    DONE = "the records are in the log"
    RETRY = "send it again after a backoff"
    REFRESH = "refresh the metadata to find the leader, and send it again"
    FAIL = "fail it: sending it again would get the same response"


PRODUCE_ACTIONS: Final[Mapping[int, ProduceAction]] = {
    ErrorCode.NONE: ProduceAction.DONE,
    # an earlier attempt of the same batch is in the log (only returned to idempotent producers)
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: ProduceAction.DONE,
    # Kafka's InvalidMetadataException and its subclasses: the broker is not the leader, or the metadata of client and
    # broker differ
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ProduceAction.REFRESH,
    ErrorCode.LEADER_NOT_AVAILABLE: ProduceAction.REFRESH,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ProduceAction.REFRESH,
    ErrorCode.REPLICA_NOT_AVAILABLE: ProduceAction.REFRESH,
    ErrorCode.NETWORK_EXCEPTION: ProduceAction.REFRESH,
    ErrorCode.KAFKA_STORAGE_ERROR: ProduceAction.REFRESH,
    ErrorCode.LISTENER_NOT_FOUND: ProduceAction.REFRESH,
    ErrorCode.FENCED_LEADER_EPOCH: ProduceAction.REFRESH,
    ErrorCode.UNKNOWN_LEADER_EPOCH: ProduceAction.REFRESH,
    ErrorCode.UNKNOWN_TOPIC_ID: ProduceAction.REFRESH,
    ErrorCode.INCONSISTENT_TOPIC_ID: ProduceAction.REFRESH,
}
"""Codes that are not listed are RETRY if Kafka defines them as retriable, else FAIL."""


def produce_action(code: int) -> ProduceAction:
    """Return the action for the error code of a partition in a Produce response."""
    action = PRODUCE_ACTIONS.get(code)
    if action is not None:
        return action
    return ProduceAction.RETRY if is_retriable(code) else ProduceAction.FAIL
