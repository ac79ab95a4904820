"""What a producer does about each answer to a batch: a table from error code to action."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from asyncgroup.error_codes import is_retriable
from asyncgroup.errors import ErrorCode

__all__ = ["PRODUCE_ACTIONS", "ProduceAction", "produce_action"]


class ProduceAction(Enum):
    """What becomes of a batch."""

    DONE = "the records are in the log"
    RETRY = "send it again after a pause"
    REFRESH = "ask who leads the partition now, and send it again"
    FAIL = "tell the caller; another try would get the same answer"


PRODUCE_ACTIONS: Final[Mapping[int, ProduceAction]] = {
    ErrorCode.NONE: ProduceAction.DONE,
    # an earlier try of the same batch did arrive (only idempotent producers are told)
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: ProduceAction.DONE,
    # the subclasses of Kafka's InvalidMetadataException: whoever was asked is not the leader, or knows less than others
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
"""Codes that are not named here are retried if Kafka calls them retriable, and final otherwise."""


def produce_action(code: int) -> ProduceAction:
    """The action for the error code of a partition in a Produce response."""
    found = PRODUCE_ACTIONS.get(code)
    if found is not None:
        return found
    return ProduceAction.RETRY if is_retriable(code) else ProduceAction.FAIL
