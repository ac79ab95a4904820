"""The request handlers of a broker, one module per API.

Each module has:
- `VERSIONS`: the first and last version that are served;
- `handle(node, context, request)`, which returns the response, a future of it, or None for no response;
- `error_response(context, request, code)`, which returns a response with this error only
  (`AbstractRequest.getErrorResponse`).

The first line of each module's docstring names the API, its key and its versions.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, Final, NamedTuple

from asyncgroup.broker.handlers import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    alter_user_scram_credentials,
    api_versions,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sasl_authenticate,
    sasl_handshake,
    sync_group,
    txn_offset_commit,
    update_features,
    write_txn_markers,
)
from asyncgroup.wire import messages as m
from asyncgroup.wire.protocol import API_BY_NAME
from asyncgroup.wire.schema import VersionRange

__all__ = ["HANDLERS", "ApiHandler", "unsupported_api_versions"]


class ApiHandler(NamedTuple):
    """An API that the broker serves."""

    name: str
    key: int
    versions: VersionRange
    handle: Callable[..., Any]
    error_response: Callable[..., Any]


_MODULES: Final[dict[str, ModuleType]] = {
    "AddOffsetsToTxn": add_offsets_to_txn,
    "AddPartitionsToTxn": add_partitions_to_txn,
    "AlterClientQuotas": alter_client_quotas,
    "AlterConfigs": alter_configs,
    "AlterPartitionReassignments": alter_partition_reassignments,
    "AlterReplicaLogDirs": alter_replica_log_dirs,
    "AlterUserScramCredentials": alter_user_scram_credentials,
    "ApiVersions": api_versions,
    "CreateAcls": create_acls,
    "CreatePartitions": create_partitions,
    "CreateTopics": create_topics,
    "DeleteAcls": delete_acls,
    "DeleteGroups": delete_groups,
    "DeleteRecords": delete_records,
    "DeleteTopics": delete_topics,
    "DescribeAcls": describe_acls,
    "DescribeClientQuotas": describe_client_quotas,
    "DescribeCluster": describe_cluster,
    "DescribeConfigs": describe_configs,
    "DescribeGroups": describe_groups,
    "DescribeLogDirs": describe_log_dirs,
    "DescribeProducers": describe_producers,
    "DescribeQuorum": describe_quorum,
    "DescribeTopicPartitions": describe_topic_partitions,
    "DescribeTransactions": describe_transactions,
    "DescribeUserScramCredentials": describe_user_scram_credentials,
    "ElectLeaders": elect_leaders,
    "EndTxn": end_txn,
    "Fetch": fetch,
    "FindCoordinator": find_coordinator,
    "Heartbeat": heartbeat,
    "IncrementalAlterConfigs": incremental_alter_configs,
    "InitProducerId": init_producer_id,
    "JoinGroup": join_group,
    "LeaveGroup": leave_group,
    "ListConfigResources": list_config_resources,
    "ListGroups": list_groups,
    "ListOffsets": list_offsets,
    "ListPartitionReassignments": list_partition_reassignments,
    "ListTransactions": list_transactions,
    "Metadata": metadata,
    "OffsetCommit": offset_commit,
    "OffsetDelete": offset_delete,
    "OffsetFetch": offset_fetch,
    "OffsetForLeaderEpoch": offset_for_leader_epoch,
    "Produce": produce,
    "SaslAuthenticate": sasl_authenticate,
    "SaslHandshake": sasl_handshake,
    "SyncGroup": sync_group,
    "TxnOffsetCommit": txn_offset_commit,
    "UpdateFeatures": update_features,
    "WriteTxnMarkers": write_txn_markers,
}


def _handlers() -> dict[int, ApiHandler]:
    found = {}
    for name, module in _MODULES.items():
        key = API_BY_NAME[name].key
        found[key] = ApiHandler(
            name, key, VersionRange(*module.VERSIONS), module.handle, module.error_response
        )
    return found


HANDLERS: Final[dict[int, ApiHandler]] = _handlers()
"""All handlers, by API key."""


def _advertised() -> list[m.ApiVersionsResponse.ApiVersion]:
    ranges = []
    for key in sorted(HANDLERS):
        low, high = HANDLERS[key].versions
        # Kafka advertises Produce from version 0, although it serves 3 and up: otherwise older librdkafka versions turn
        # compression off (KAFKA-18659).
        ranges.append(m.ApiVersionsResponse.ApiVersion(key, 0 if key == 0 else low, high))
    return ranges


api_versions.ADVERTISED.extend(_advertised())


def unsupported_api_versions() -> m.ApiVersionsResponse:
    """Return the response to an ApiVersions request of an unsupported version; it is sent in version 0."""
    return api_versions.unsupported_version()
