"""The error table: what to do after a request has failed with an error code, or without a response."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from asyncgroup.cluster.coordinators import CoordinatorMoved
from asyncgroup.errors import BrokerError, ErrorCode, TransportError

__all__ = ["ERRORS", "ErrorTable", "RequestAction", "action_of"]


class RequestAction(IntEnum):
    """What to do after an attempt. Of several in one response, the highest counts."""

    DONE = 0
    """The request succeeded."""
    REPEAT = 1
    """Send it again without a pause."""
    RETRY = 2
    """Send it again after a backoff."""
    LOOK_UP = 3
    """Send it again after a backoff, to the node that a new lookup returns."""
    FAIL = 4
    """The error is final."""


ErrorTable = Mapping[int, RequestAction]

ERRORS: Final[ErrorTable] = {
    ErrorCode.NONE: RequestAction.DONE,
    # the coordinator is another node, or is being elected
    ErrorCode.NOT_COORDINATOR: RequestAction.LOOK_UP,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: RequestAction.LOOK_UP,
    # it has the partition already, and reads its log: another lookup would return the same node
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: RequestAction.RETRY,
    ErrorCode.NOT_CONTROLLER: RequestAction.LOOK_UP,
    # the partition's leader is another node, is being elected, or is known to the client with another epoch
    ErrorCode.NOT_LEADER_OR_FOLLOWER: RequestAction.LOOK_UP,
    ErrorCode.LEADER_NOT_AVAILABLE: RequestAction.LOOK_UP,
    ErrorCode.FENCED_LEADER_EPOCH: RequestAction.LOOK_UP,
    ErrorCode.UNKNOWN_LEADER_EPOCH: RequestAction.LOOK_UP,
    ErrorCode.REPLICA_NOT_AVAILABLE: RequestAction.LOOK_UP,
    ErrorCode.KAFKA_STORAGE_ERROR: RequestAction.LOOK_UP,
    # a broker knows a new partition late, and a new leader may know it
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: RequestAction.LOOK_UP,
    ErrorCode.UNKNOWN_TOPIC_ID: RequestAction.LOOK_UP,
}
"""Of every request that is bound to a coordinator, the controller, a leader or a node. Codes that are not listed are retried
if Kafka calls them retriable; a request for which a code means something else has a table of its differences."""


def action_of(error: BaseException | None, table: ErrorTable = ERRORS) -> RequestAction:
    """Return what to do after this error of an attempt; `table` is asked before `ERRORS`."""
    if error is None:
        return RequestAction.DONE
    if isinstance(error, BrokerError):
        action = table.get(error.code, ERRORS.get(error.code))
        if action is not None:
            return action
    elif isinstance(error, CoordinatorMoved):
        return RequestAction.REPEAT
    elif isinstance(error, TransportError):
        return RequestAction.LOOK_UP
    return RequestAction.RETRY if getattr(error, "retriable", False) else RequestAction.FAIL
