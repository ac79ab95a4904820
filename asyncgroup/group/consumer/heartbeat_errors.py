"""What the error codes of ConsumerGroupHeartbeat mean to a member (KIP-848)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from asyncgroup.error_codes import is_retriable
from asyncgroup.errors import BrokerError, ErrorCode
from asyncgroup.group.membership import HeartbeatResult
from asyncgroup.group.topics.subscription_pattern import SubscriptionPattern
from asyncgroup.wire import messages as m

__all__ = [
    "CONSUMER_HEARTBEAT_ACTIONS",
    "RESULTS",
    "HeartbeatAction",
    "heartbeat_action",
    "heartbeat_refusal",
]


class HeartbeatAction(Enum):
    """What to do after the response to a heartbeat."""

    CONTINUE = "no error"
    RETRY = "the coordinator is not ready: back off, send all fields"
    FIND_COORDINATOR = "look up the coordinator again, back off, send all fields"
    REJOIN = "give up all partitions, join with epoch 0 and the same member id"
    REJOIN_WITH_NEW_ID = "give up all partitions, join with epoch 0 and another member id"
    WAIT_FOR_RELEASE = "the instance id still belongs to the member that was fenced: back off, join again"
    WAIT_FOR_GENERATION = "the classic group may be in its first rebalance: back off, join again"
    FAIL = "raise: not retriable"


CONSUMER_HEARTBEAT_ACTIONS: Final[Mapping[int, HeartbeatAction]] = {
    ErrorCode.NONE: HeartbeatAction.CONTINUE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: HeartbeatAction.RETRY,
    ErrorCode.NOT_COORDINATOR: HeartbeatAction.FIND_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: HeartbeatAction.FIND_COORDINATOR,
    ErrorCode.UNKNOWN_MEMBER_ID: HeartbeatAction.REJOIN_WITH_NEW_ID,
    ErrorCode.FENCED_MEMBER_EPOCH: HeartbeatAction.REJOIN,
    ErrorCode.STALE_MEMBER_EPOCH: HeartbeatAction.REJOIN,
    ErrorCode.UNRELEASED_INSTANCE_ID: HeartbeatAction.WAIT_FOR_RELEASE,
    ErrorCode.FENCED_INSTANCE_ID: HeartbeatAction.FAIL,
    ErrorCode.UNSUPPORTED_ASSIGNOR: HeartbeatAction.FAIL,
    ErrorCode.UNSUPPORTED_VERSION: HeartbeatAction.FAIL,
    ErrorCode.GROUP_MAX_SIZE_REACHED: HeartbeatAction.FAIL,
    ErrorCode.GROUP_ID_NOT_FOUND: HeartbeatAction.FAIL,
    ErrorCode.INVALID_GROUP_ID: HeartbeatAction.FAIL,
    ErrorCode.INVALID_REQUEST: HeartbeatAction.FAIL,
    ErrorCode.INVALID_REGULAR_EXPRESSION: HeartbeatAction.FAIL,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: HeartbeatAction.FAIL,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: HeartbeatAction.FAIL,
}
"""As `AbstractHeartbeatRequestManager.onErrorResponse` in Kafka, with three differences: UNKNOWN_MEMBER_ID takes another id,
UNRELEASED_INSTANCE_ID is retried after a fence, and other codes, all fatal in Java, are RETRY if they are retriable, else FAIL.

Two more differences depend on the state of the member (`ConsumerMemberState.on_error`); Java's member gives up in both cases.
UNKNOWN_SERVER_ERROR to a member that joins is retried: a classic group has no protocol before its first generation, so that
Kafka 4.3.1 cannot make it a consumer group, and fails (`ConsumerGroup.fromClassicGroup`). After GROUP_ID_NOT_FOUND to a member
of the group it joins again: the coordinator has removed it, and the group of the others became a classic one."""

RESULTS: Final[Mapping[HeartbeatAction, HeartbeatResult]] = {
    HeartbeatAction.CONTINUE: HeartbeatResult.ALIVE,
    HeartbeatAction.RETRY: HeartbeatResult.RETRY,
    HeartbeatAction.FIND_COORDINATOR: HeartbeatResult.COORDINATOR_MOVED,
    HeartbeatAction.REJOIN: HeartbeatResult.LOST,
    HeartbeatAction.REJOIN_WITH_NEW_ID: HeartbeatResult.LOST,
    HeartbeatAction.WAIT_FOR_RELEASE: HeartbeatResult.LOST,
    HeartbeatAction.WAIT_FOR_GENERATION: HeartbeatResult.LOST,
    HeartbeatAction.FAIL: HeartbeatResult.FATAL,
}
"""What each action means for the session."""


def heartbeat_action(code: int) -> HeartbeatAction:
    """Return the action for the error code of a response."""
    default = HeartbeatAction.RETRY if is_retriable(code) else HeartbeatAction.FAIL
    return CONSUMER_HEARTBEAT_ACTIONS.get(code, default)


def heartbeat_refusal(
    response: m.ConsumerGroupHeartbeatResponse,
    group_id: str,
    member_id: str,
    regex: str,
    remote_assignor: str | None,
) -> BrokerError:
    """Return the error of a response to this member: it names the setting that was refused, if it was one."""
    code, detail = response.error_code, response.error_message
    what = f"heartbeat of member {member_id!r} in group {group_id!r}"
    if code == ErrorCode.INVALID_REGULAR_EXPRESSION:
        what = f"topics={SubscriptionPattern(regex)!r} of group {group_id!r}"
    elif code == ErrorCode.UNSUPPORTED_ASSIGNOR:
        what = f"remote_assignor={remote_assignor!r} of group {group_id!r}"
        detail = (
            f"{detail or 'the broker does not have it'} (brokers list theirs in group.consumer.assignors)"
        )
    return BrokerError(code, what, detail)
