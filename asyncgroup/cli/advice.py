"""What an operator can do about an error of an administrative command, by its error code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from asyncgroup.errors import BrokerError, ErrorCode, NoBrokersError, UnsupportedVersionError

__all__ = ["with_advice"]

_PERMISSION: Final = "`asyncgroup acls list` shows the permissions that exist"

_ADVICE: Final[Mapping[int, str]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "`asyncgroup topics describe` shows the topics and partitions that exist",
    ErrorCode.TOPIC_ALREADY_EXISTS: "--if-not-exists accepts a topic that exists",
    ErrorCode.INVALID_REPLICATION_FACTOR: "it is 1 or more, and at most the number of brokers",
    ErrorCode.INVALID_PARTITIONS: "the number of partitions can only grow; `asyncgroup topics list` shows it",
    ErrorCode.OFFSET_OUT_OF_RANGE: "`asyncgroup offsets latest` shows the ends of the partitions",
    ErrorCode.GROUP_ID_NOT_FOUND: "`asyncgroup groups list` shows the groups that exist",
    ErrorCode.NON_EMPTY_GROUP: "stop its members first; `asyncgroup groups describe --members` shows them",
    ErrorCode.UNKNOWN_MEMBER_ID: "`asyncgroup groups describe --members` shows the members; offsets are altered without members only",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "stop the members that subscribe to the topic first",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: _PERMISSION,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: _PERMISSION,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: _PERMISSION,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _PERMISSION,
    ErrorCode.SECURITY_DISABLED: "the brokers have no authorizer: set authorizer.class.name",
    ErrorCode.INVALID_CONFIG: "`asyncgroup configs describe --all` shows the names and values",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "`asyncgroup transactions list` shows the transactions",
}


def with_advice(error: BaseException) -> str:
    """Return the text of an error on one line, and what to do about it if that is known."""
    text = str(error) or type(error).__name__
    if isinstance(error, BrokerError):
        found = _ADVICE.get(error.code)
    elif isinstance(error, NoBrokersError):
        found = "check -b/--bootstrap-servers and the security options"
    elif isinstance(error, UnsupportedVersionError):
        found = "it needs a newer Kafka"
    else:
        found = None
    return text if found is None else f"{text.rstrip('.')}; {found}"
