"""The error table of requests: one action for each code and each kind of failure."""

from __future__ import annotations

import pytest

from asyncgroup.cluster.coordinators import CoordinatorMoved
from asyncgroup.cluster.requests.actions import ERRORS, RequestAction, action_of
from asyncgroup.cluster.requests.results import IncompleteResponse
from asyncgroup.error_codes import is_retriable
from asyncgroup.errors import (
    AuthenticationError,
    BrokerError,
    ClosedError,
    ConnectError,
    ConnectionLost,
    ErrorCode,
    NoBrokersError,
    RequestTimedOut,
    UnsupportedVersionError,
)

DONE, REPEAT, RETRY, LOOK_UP, FAIL = RequestAction


@pytest.mark.parametrize(
    ("code", "action"),
    [
        (ErrorCode.NOT_COORDINATOR, LOOK_UP),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, LOOK_UP),
        (ErrorCode.NOT_CONTROLLER, LOOK_UP),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, LOOK_UP),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, RETRY),
        (ErrorCode.THROTTLING_QUOTA_EXCEEDED, RETRY),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, FAIL),
        (ErrorCode.TOPIC_ALREADY_EXISTS, FAIL),
        (ErrorCode.UNKNOWN_SERVER_ERROR, FAIL),
        (12345, FAIL),
    ],
)
def test_codes(code: int, action: RequestAction) -> None:
    assert action_of(BrokerError(code, "a group")) is action


@pytest.mark.parametrize(
    ("error", "action"),
    [
        (None, DONE),
        (CoordinatorMoved("to node 2"), REPEAT),
        (ConnectionLost("cut"), LOOK_UP),
        (ConnectError("refused"), LOOK_UP),
        (RequestTimedOut("30 s"), LOOK_UP),
        (NoBrokersError("none"), LOOK_UP),
        (IncompleteResponse("no entry"), RETRY),
        (UnsupportedVersionError("too old"), FAIL),
        (AuthenticationError("no"), FAIL),
        (ClosedError("closed"), FAIL),
        (ValueError("a bug"), FAIL),
    ],
)
def test_failures_without_a_code(error: Exception | None, action: RequestAction) -> None:
    assert action_of(error) is action


def test_every_code_is_repeated_exactly_if_kafka_calls_it_retriable() -> None:
    codes = [code for code in ErrorCode if code]
    repeated = {code for code in codes if action_of(BrokerError(code, "x")) is not FAIL}
    assert repeated == {code for code in codes if is_retriable(code)}
    assert set(ERRORS) - {ErrorCode.NONE} <= repeated


def test_a_request_overrides_codes_in_a_table_of_its_differences() -> None:
    table = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: FAIL}
    assert action_of(BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "t"), table) is FAIL
    assert action_of(BrokerError(ErrorCode.NOT_CONTROLLER, "t"), table) is LOOK_UP
