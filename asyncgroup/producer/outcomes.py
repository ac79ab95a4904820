"""What a producer does about each answer to a batch: a table from error code to action."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from asyncgroup.error_codes import is_retriable
from asyncgroup.errors import ErrorCode

__all__ = ["ACTIONS", "Action", "action_for"]


class Action(Enum):
    """What becomes of a batch."""

    DONE = "the records are in the log"
    RETRY = "send it again after a pause"
    REFRESH = "ask who leads the partition now, and send it again"
    FAIL = "tell the caller; another try would get the same answer"


ACTIONS: Final[Mapping[int, Action]] = {
    ErrorCode.NONE: Action.DONE,
    # an earlier try of the same batch did arrive (only idempotent producers are told)
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: Action.DONE,
    # the subclasses of Kafka's InvalidMetadataException: whoever was asked is not the leader, or knows less than others
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Action.REFRESH,
    ErrorCode.LEADER_NOT_AVAILABLE: Action.REFRESH,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: Action.REFRESH,
    ErrorCode.REPLICA_NOT_AVAILABLE: Action.REFRESH,
    ErrorCode.NETWORK_EXCEPTION: Action.REFRESH,
    ErrorCode.KAFKA_STORAGE_ERROR: Action.REFRESH,
    ErrorCode.LISTENER_NOT_FOUND: Action.REFRESH,
    ErrorCode.FENCED_LEADER_EPOCH: Action.REFRESH,
    ErrorCode.UNKNOWN_LEADER_EPOCH: Action.REFRESH,
    ErrorCode.UNKNOWN_TOPIC_ID: Action.REFRESH,
    ErrorCode.INCONSISTENT_TOPIC_ID: Action.REFRESH,
}
"""Codes that are not named here are retried if Kafka calls them retriable, and final otherwise."""


def action_for(code: int) -> Action:
    """The action for the error code of a partition in a Produce response."""
    found = ACTIONS.get(code)
    if found is not None:
        return found
    return Action.RETRY if is_retriable(code) else Action.FAIL
