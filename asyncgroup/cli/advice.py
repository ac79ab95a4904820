"""What an operator can do about an error of an administrative command, by its error code."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from asyncgroup.errors import (
    AuthenticationError,
    BrokerError,
    ErrorCode,
    NoBrokersError,
    RequestTimedOut,
    UnsupportedVersionError,
)

__all__ = ["ADVICE", "with_advice"]

_CONNECTION: Final = "check -b/--bootstrap-servers and the security options"
_TIMEOUT: Final = "try again, with a longer --timeout"
_LATER: Final = "try again"
_NEWER_KAFKA: Final = "it needs a newer Kafka"

_TOPICS: Final = "`asyncgroup topics list` shows the topics and their numbers of partitions"
_GROUPS: Final = "`asyncgroup groups list` shows the groups that exist"
_MEMBERS: Final = "`asyncgroup groups describe --members` shows the members"
_HANGING: Final = "`asyncgroup transactions find-hanging` shows what hangs now"
_BROKERS: Final = "`asyncgroup cluster describe` shows the brokers"
_LEADERLESS: Final = (
    "try again; `asyncgroup topics describe --unavailable` shows the partitions without a leader"
)
_COORDINATOR: Final = (
    "try again; it is the leader of a partition of __consumer_offsets or __transaction_state"
)
_VALUES: Final = "correct the values; --help describes them"

ADVICE: Final[Mapping[int, str]] = MappingProxyType(
    {
        # names and places
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: _TOPICS,
        ErrorCode.UNKNOWN_TOPIC_ID: _TOPICS,
        ErrorCode.INVALID_TOPIC_EXCEPTION: "a topic's name has 1 to 249 letters, digits, '.', '_' and '-'",
        ErrorCode.GROUP_ID_NOT_FOUND: _GROUPS,
        ErrorCode.INVALID_GROUP_ID: "the id of a group is not empty",
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "`asyncgroup transactions list` shows the transactions",
        ErrorCode.RESOURCE_NOT_FOUND: "the user has no such credential; `asyncgroup users set` makes one",
        ErrorCode.LOG_DIR_NOT_FOUND: "the brokers' log.dirs has the directories",
        # topics and records
        ErrorCode.TOPIC_ALREADY_EXISTS: "--if-not-exists accepts a topic that exists",
        ErrorCode.INVALID_REPLICATION_FACTOR: "it is 1 or more, and at most the number of brokers",
        ErrorCode.INVALID_PARTITIONS: "the number of partitions can only grow; `asyncgroup topics list` shows it",
        ErrorCode.INVALID_REPLICA_ASSIGNMENT: (
            "each partition needs different brokers, the same number for all; `asyncgroup cluster describe` shows the brokers"
        ),
        ErrorCode.OFFSET_OUT_OF_RANGE: "`asyncgroup offsets latest` shows the ends of the partitions",
        ErrorCode.POLICY_VIOLATION: "the topic's cleanup.policy or a policy of the brokers does not allow it",
        ErrorCode.TOPIC_DELETION_DISABLED: "the brokers' delete.topic.enable is false",
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: "the topic's records have no timestamps",
        ErrorCode.INVALID_CONFIG: "`asyncgroup configs describe --all` shows the names and values",
        ErrorCode.INVALID_REQUEST: _VALUES,
        # groups and their offsets
        ErrorCode.NON_EMPTY_GROUP: f"stop its members first; {_MEMBERS}",
        ErrorCode.UNKNOWN_MEMBER_ID: f"{_MEMBERS}; offsets are altered without members only",
        ErrorCode.ILLEGAL_GENERATION: f"offsets are altered without members only; {_MEMBERS}",
        ErrorCode.STALE_MEMBER_EPOCH: f"offsets are altered without members only; {_MEMBERS}",
        ErrorCode.FENCED_INSTANCE_ID: _MEMBERS,
        ErrorCode.REBALANCE_IN_PROGRESS: _LATER,
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "stop the members that subscribe to the topic first",
        ErrorCode.UNSTABLE_OFFSET_COMMIT: f"a transaction is open; {_HANGING}",
        ErrorCode.OFFSET_METADATA_TOO_LARGE: "the brokers' offset.metadata.max.bytes is the limit",
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE: "alter fewer offsets at a time",
        # transactions
        ErrorCode.INVALID_PRODUCER_EPOCH: _HANGING,
        ErrorCode.UNKNOWN_PRODUCER_ID: _HANGING,
        ErrorCode.INVALID_TXN_STATE: _HANGING,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED: f"give a newer --coordinator-epoch; {_HANGING}",
        ErrorCode.CONCURRENT_TRANSACTIONS: _LATER,
        ErrorCode.INVALID_REGULAR_EXPRESSION: "it is a regular expression of RE2",
        # access, users, quotas, features
        ErrorCode.SECURITY_DISABLED: "the brokers have no authorizer: set authorizer.class.name",
        ErrorCode.UNSUPPORTED_SASL_MECHANISM: "SCRAM-SHA-256 and SCRAM-SHA-512 exist",
        ErrorCode.UNACCEPTABLE_CREDENTIAL: "--iterations is 4096 to 16384, and a user has a name",
        ErrorCode.DUPLICATE_RESOURCE: "name each user and mechanism once",
        ErrorCode.INVALID_UPDATE_VERSION: "`asyncgroup cluster features` shows the levels that all nodes support; a lower level needs --downgrade",
        ErrorCode.FEATURE_UPDATE_FAILED: "`asyncgroup cluster features` shows the levels that each node supports",
        # replicas
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: _BROKERS,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: f"no replica in sync is up; {_BROKERS}; --unclean may lose records",
        ErrorCode.ELECTION_NOT_NEEDED: "the partition has its leader already",
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: "`asyncgroup cluster reassignments` shows those in progress",
        ErrorCode.REASSIGNMENT_IN_PROGRESS: "`asyncgroup cluster reassignments` shows its progress",
        # brokers
        ErrorCode.BROKER_NOT_AVAILABLE: "start the broker, or remove it from the request",
        ErrorCode.BROKER_ID_NOT_REGISTERED: "start the broker, or remove it from the request",
        ErrorCode.KAFKA_STORAGE_ERROR: "a disk of the broker fails, or a log directory is offline; the broker's log has the reason",
        ErrorCode.UNKNOWN_SERVER_ERROR: "the broker's log has the reason",
        ErrorCode.MISMATCHED_ENDPOINT_TYPE: "-b/--bootstrap-servers names controllers; give brokers",
        ErrorCode.UNSUPPORTED_ENDPOINT_TYPE: "-b/--bootstrap-servers names controllers; give brokers",
        ErrorCode.UNSUPPORTED_VERSION: _NEWER_KAFKA,
        ErrorCode.SASL_AUTHENTICATION_FAILED: _CONNECTION,
        # they were retried until the timeout had passed
        ErrorCode.REQUEST_TIMED_OUT: _TIMEOUT,
        ErrorCode.NOT_CONTROLLER: "try again; `asyncgroup cluster quorum` shows the controllers",
        ErrorCode.COORDINATOR_NOT_AVAILABLE: _COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: _COORDINATOR,
        ErrorCode.NOT_COORDINATOR: _COORDINATOR,
        ErrorCode.LEADER_NOT_AVAILABLE: _LEADERLESS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER: _LEADERLESS,
        ErrorCode.REPLICA_NOT_AVAILABLE: _LEADERLESS,
        ErrorCode.LISTENER_NOT_FOUND: "all brokers need the listener that -b/--bootstrap-servers has",
        ErrorCode.THROTTLING_QUOTA_EXCEEDED: "a quota limits changes of topics: try again later; `asyncgroup quotas list` shows it",
    }
)
"""By error code. A denial is not among them: Admin itself says which operation is needed, and who can allow it."""


def with_advice(error: BaseException) -> str:
    """Return the text of an error on one line, and what to do about it if that is known."""
    text = str(error) or type(error).__name__
    found: str | None
    match error:
        case BrokerError():
            found = ADVICE.get(error.code, _LATER if error.retriable else None)
        case NoBrokersError() | AuthenticationError():
            found = _CONNECTION
        case RequestTimedOut():
            found = _TIMEOUT
        case UnsupportedVersionError():
            found = _NEWER_KAFKA
        case _:
            found = None
    return text if found is None else f"{text.rstrip('.')}; {found}"
