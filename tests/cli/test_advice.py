"""Advice about errors: each error that a call of Admin can get is one line with what to do, and no command refers to itself."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from typing import Final

import pytest

from asyncgroup.admin.denied import DENIALS
from asyncgroup.cli.advice import ADVICE, with_advice
from asyncgroup.cli.app import ADMINISTRATION, _parser
from asyncgroup.errors import (
    AsyncGroupError,
    AuthenticationError,
    BrokerError,
    ErrorCode,
    NoBrokersError,
    RequestTimedOut,
    UnsupportedVersionError,
    UsageError,
)

_LEADER: Final = """LEADER_NOT_AVAILABLE NOT_LEADER_OR_FOLLOWER REPLICA_NOT_AVAILABLE KAFKA_STORAGE_ERROR FENCED_LEADER_EPOCH
    UNKNOWN_LEADER_EPOCH"""
_COORDINATOR: Final = "COORDINATOR_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS NOT_COORDINATOR"
_GROUP: Final = f"{_COORDINATOR} INVALID_GROUP_ID GROUP_AUTHORIZATION_FAILED"

CODES: Final[Mapping[str, str]] = {
    "any": """UNKNOWN_SERVER_ERROR REQUEST_TIMED_OUT UNSUPPORTED_VERSION SASL_AUTHENTICATION_FAILED NETWORK_EXCEPTION
        CLUSTER_AUTHORIZATION_FAILED INVALID_REQUEST""",
    "Metadata": "",
    "Metadata of topics": """UNKNOWN_TOPIC_OR_PARTITION UNKNOWN_TOPIC_ID INVALID_TOPIC_EXCEPTION TOPIC_AUTHORIZATION_FAILED
        LISTENER_NOT_FOUND""",
    "CreateTopics": """TOPIC_ALREADY_EXISTS INVALID_TOPIC_EXCEPTION INVALID_PARTITIONS INVALID_REPLICATION_FACTOR
        INVALID_REPLICA_ASSIGNMENT INVALID_CONFIG POLICY_VIOLATION THROTTLING_QUOTA_EXCEEDED NOT_CONTROLLER
        TOPIC_AUTHORIZATION_FAILED BROKER_ID_NOT_REGISTERED""",
    "DeleteTopics": """UNKNOWN_TOPIC_OR_PARTITION TOPIC_DELETION_DISABLED THROTTLING_QUOTA_EXCEEDED NOT_CONTROLLER
        TOPIC_AUTHORIZATION_FAILED INVALID_TOPIC_EXCEPTION""",
    "CreatePartitions": """UNKNOWN_TOPIC_OR_PARTITION INVALID_PARTITIONS INVALID_REPLICA_ASSIGNMENT INVALID_REPLICATION_FACTOR
        REASSIGNMENT_IN_PROGRESS THROTTLING_QUOTA_EXCEEDED NOT_CONTROLLER TOPIC_AUTHORIZATION_FAILED POLICY_VIOLATION""",
    "DeleteRecords": f"{_LEADER} UNKNOWN_TOPIC_OR_PARTITION OFFSET_OUT_OF_RANGE POLICY_VIOLATION TOPIC_AUTHORIZATION_FAILED",
    "DescribeConfigs": """UNKNOWN_TOPIC_OR_PARTITION INVALID_TOPIC_EXCEPTION TOPIC_AUTHORIZATION_FAILED
        GROUP_AUTHORIZATION_FAILED""",
    "IncrementalAlterConfigs": """UNKNOWN_TOPIC_OR_PARTITION INVALID_TOPIC_EXCEPTION INVALID_CONFIG POLICY_VIOLATION NOT_CONTROLLER
        TOPIC_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED BROKER_ID_NOT_REGISTERED""",
    "ListOffsets": f"""{_LEADER} UNKNOWN_TOPIC_OR_PARTITION OFFSET_NOT_AVAILABLE UNSUPPORTED_FOR_MESSAGE_FORMAT
        TOPIC_AUTHORIZATION_FAILED""",
    "ListGroups": "COORDINATOR_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS",
    "DescribeGroups": f"{_GROUP} GROUP_ID_NOT_FOUND",
    "OffsetFetch": f"""{_GROUP} GROUP_ID_NOT_FOUND UNSTABLE_OFFSET_COMMIT UNKNOWN_TOPIC_OR_PARTITION TOPIC_AUTHORIZATION_FAILED
        UNKNOWN_MEMBER_ID STALE_MEMBER_EPOCH""",
    "OffsetCommit": f"""{_GROUP} GROUP_ID_NOT_FOUND UNKNOWN_MEMBER_ID ILLEGAL_GENERATION STALE_MEMBER_EPOCH REBALANCE_IN_PROGRESS
        FENCED_INSTANCE_ID OFFSET_METADATA_TOO_LARGE INVALID_COMMIT_OFFSET_SIZE UNKNOWN_TOPIC_OR_PARTITION
        TOPIC_AUTHORIZATION_FAILED""",
    "OffsetDelete": f"""{_GROUP} GROUP_ID_NOT_FOUND NON_EMPTY_GROUP GROUP_SUBSCRIBED_TO_TOPIC UNKNOWN_TOPIC_OR_PARTITION
        TOPIC_AUTHORIZATION_FAILED""",
    "LeaveGroup": f"{_GROUP} GROUP_ID_NOT_FOUND UNKNOWN_MEMBER_ID FENCED_INSTANCE_ID",
    "DeleteGroups": f"{_GROUP} GROUP_ID_NOT_FOUND NON_EMPTY_GROUP",
    "ListTransactions": f"{_COORDINATOR} INVALID_REGULAR_EXPRESSION",
    "DescribeTransactions": f"{_COORDINATOR} TRANSACTIONAL_ID_NOT_FOUND TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "DescribeProducers": f"{_LEADER} UNKNOWN_TOPIC_OR_PARTITION INVALID_TOPIC_EXCEPTION TOPIC_AUTHORIZATION_FAILED",
    "WriteTxnMarkers": f"""{_LEADER} UNKNOWN_TOPIC_OR_PARTITION INVALID_PRODUCER_EPOCH UNKNOWN_PRODUCER_ID INVALID_TXN_STATE
        TRANSACTION_COORDINATOR_FENCED CONCURRENT_TRANSACTIONS TRANSACTIONAL_ID_NOT_FOUND""",
    "Acls": "SECURITY_DISABLED NOT_CONTROLLER",
    "DescribeUserScramCredentials": "RESOURCE_NOT_FOUND DUPLICATE_RESOURCE",
    "AlterUserScramCredentials": "DUPLICATE_RESOURCE UNACCEPTABLE_CREDENTIAL UNSUPPORTED_SASL_MECHANISM NOT_CONTROLLER",
    "AlterUserScramCredentials, deletions": "RESOURCE_NOT_FOUND",
    "ClientQuotas": "NOT_CONTROLLER",
    "DescribeCluster": "MISMATCHED_ENDPOINT_TYPE UNSUPPORTED_ENDPOINT_TYPE",
    "DescribeQuorum": "UNKNOWN_TOPIC_OR_PARTITION NOT_LEADER_OR_FOLLOWER LEADER_NOT_AVAILABLE BROKER_NOT_AVAILABLE",
    "UpdateFeatures": "INVALID_UPDATE_VERSION FEATURE_UPDATE_FAILED NOT_CONTROLLER",
    "DescribeLogDirs": "KAFKA_STORAGE_ERROR LOG_DIR_NOT_FOUND",
    "AlterReplicaLogDirs": """LOG_DIR_NOT_FOUND KAFKA_STORAGE_ERROR REPLICA_NOT_AVAILABLE UNKNOWN_TOPIC_OR_PARTITION
        INVALID_TOPIC_EXCEPTION""",
    "ElectLeaders": """PREFERRED_LEADER_NOT_AVAILABLE ELIGIBLE_LEADERS_NOT_AVAILABLE ELECTION_NOT_NEEDED UNKNOWN_TOPIC_OR_PARTITION
        NOT_CONTROLLER INVALID_TOPIC_EXCEPTION""",
    "ListPartitionReassignments": "UNKNOWN_TOPIC_OR_PARTITION NOT_CONTROLLER",
    "AlterPartitionReassignments": """NO_REASSIGNMENT_IN_PROGRESS INVALID_REPLICA_ASSIGNMENT INVALID_REPLICATION_FACTOR
        REASSIGNMENT_IN_PROGRESS UNKNOWN_TOPIC_OR_PARTITION NOT_CONTROLLER""",
}
"""Error codes by the API that answers them: the `errors` of Kafka's message specifications (clients/src/main/resources/common/message),
and the exceptions of KafkaApis, ControllerApis, ReplicationControlManager, GroupCoordinatorService, ScramControlManager,
FeatureControlManager and TransactionCoordinator (Kafka 4.3)."""

APIS: Final[Mapping[str, tuple[str, ...]]] = {
    "topics list": ("Metadata",),
    "topics describe": ("Metadata of topics",),
    "topics create": ("CreateTopics",),
    "topics delete": ("DeleteTopics",),
    "topics add-partitions": ("CreatePartitions",),
    "topics delete-records": ("Metadata of topics", "DeleteRecords"),
    "configs describe": ("DescribeConfigs",),
    "configs alter": ("IncrementalAlterConfigs",),
    "groups list": ("ListGroups",),
    "groups describe": ("ListGroups", "DescribeGroups"),
    "groups lag": ("ListGroups", "DescribeGroups", "OffsetFetch", "ListOffsets"),
    "groups reset": ("Metadata of topics", "DescribeGroups", "OffsetFetch", "ListOffsets", "OffsetCommit"),
    "groups remove-members": ("DescribeGroups", "LeaveGroup"),
    "groups delete": ("DeleteGroups",),
    "offsets list": ("OffsetFetch",),
    "offsets alter": ("OffsetCommit",),
    "offsets delete": ("OffsetFetch", "OffsetDelete"),
    "offsets earliest": ("Metadata of topics", "ListOffsets"),
    "offsets latest": ("Metadata of topics", "ListOffsets"),
    "offsets at": ("Metadata of topics", "ListOffsets"),
    "transactions list": ("ListTransactions",),
    "transactions describe": ("DescribeTransactions",),
    "transactions producers": ("Metadata of topics", "DescribeProducers"),
    "transactions find-hanging": ("Metadata of topics", "DescribeProducers", "ListTransactions"),
    "transactions abort": ("DescribeProducers", "WriteTxnMarkers"),
    "acls list": ("Acls",),
    "acls create": ("Acls",),
    "acls delete": ("Acls",),
    "users list": ("DescribeUserScramCredentials",),
    "users set": ("AlterUserScramCredentials",),
    "users delete": ("AlterUserScramCredentials", "AlterUserScramCredentials, deletions"),
    "quotas list": ("ClientQuotas",),
    "quotas alter": ("ClientQuotas",),
    "cluster describe": ("DescribeCluster",),
    "cluster quorum": ("DescribeQuorum",),
    "cluster features": ("Metadata",),
    "cluster set-features": ("UpdateFeatures",),
    "cluster log-dirs": ("DescribeLogDirs",),
    "cluster elect-leaders": ("Metadata of topics", "ElectLeaders"),
    "cluster reassignments": ("Metadata of topics", "ListPartitionReassignments"),
    "cluster reassign": ("AlterPartitionReassignments",),
    "cluster alter-log-dirs": ("AlterReplicaLogDirs",),
    "cluster cancel-reassignments": ("Metadata of topics", "AlterPartitionReassignments"),
}
"""The APIs of each command that can answer its errors."""

COMMAND: Final = re.compile(r"`asyncgroup ([a-z]+ [a-z-]+)([^`]*)`")


def choices(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def verbs() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for subject, parser in choices(_parser()).items():
        if subject in ADMINISTRATION:
            for action, each in choices(parser).items():
                yield f"{subject} {action}", each


def codes_of(apis: tuple[str, ...]) -> set[ErrorCode]:
    return {ErrorCode[name] for api in ("any", *apis) for name in CODES[api].split()}


def test_the_table_has_every_command_and_api() -> None:
    assert set(APIS) == {name for name, _ in verbs()}
    assert {api for apis in APIS.values() for api in apis} | {"any"} == set(CODES)


@pytest.mark.parametrize("command", APIS)
def test_every_error_of_a_command_says_what_to_do(command: str) -> None:
    for code in codes_of(APIS[command]) - DENIALS:
        error = BrokerError(code, "topic 'a'", "because")
        line = with_advice(error)
        assert line.startswith(f"topic 'a': {code.name} ({code.value}): because; "), code.name
        assert "\n" not in line
        assert command not in [name for name, _ in COMMAND.findall(line)], f"{code.name}: {line}"


def test_no_advice_is_for_an_error_that_no_command_gets() -> None:
    assert set(ADVICE) <= {code for apis in APIS.values() for code in codes_of(apis)}


@pytest.mark.parametrize("text", sorted(set(ADVICE.values())))
def test_the_commands_of_an_advice_exist(text: str) -> None:
    parsers = dict(verbs())
    for name, rest in COMMAND.findall(text):
        assert set(re.findall(r"--[a-z-]+", rest)) <= set(parsers[name]._option_string_actions)
    assert text.count("`asyncgroup") == len(COMMAND.findall(text))


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (NoBrokersError("no broker answered"), "check -b/--bootstrap-servers and the security options"),
        (AuthenticationError("SASL"), "check -b/--bootstrap-servers and the security options"),
        (RequestTimedOut("no response."), "try again, with a longer --timeout"),
        (UnsupportedVersionError("no version"), "it needs a newer Kafka"),
        (UsageError("closed"), None),
        (BrokerError(ErrorCode.OFFSET_NOT_AVAILABLE, "a"), "try again"),
        (BrokerError(ErrorCode.MEMBER_ID_REQUIRED, "a"), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_without_a_code(error: AsyncGroupError, advice: str | None) -> None:
    text = str(error)
    assert with_advice(error) == (text if advice is None else f"{text.rstrip('.')}; {advice}")
