"""A sample request of each API that the broker supports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.handlers import HANDLERS
from asyncgroup.broker.transactions.metadata import ProducerIdAndEpoch
from asyncgroup.wire import messages as m
from asyncgroup.wire.apis import APIS
from tests.broker.batches import batch
from tests.broker.requests import commit_request, fetch, produce
from tests.broker.transactional import add_partitions, txn_offset_commit, write_markers

__all__ = ["sample"]


def sample(cluster: EmbeddedCluster, api: str, version: int) -> Any:
    """Return a request that names a resource, so that the response has a place for its error.

    The topics are `t` (existing) and `x` (to be created).
    """
    made: dict[str, Callable[[], Any]] = {
        "AlterClientQuotas": lambda: m.AlterClientQuotasRequest(
            [m.AlterClientQuotasRequest.EntryData([m.AlterClientQuotasRequest.EntityData("user", "u")])]
        ),
        "AlterReplicaLogDirs": lambda: m.AlterReplicaLogDirsRequest(
            [
                m.AlterReplicaLogDirsRequest.AlterReplicaLogDir(
                    "memory", [m.AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic("t", [0])]
                )
            ]
        ),
        "AlterUserScramCredentials": lambda: m.AlterUserScramCredentialsRequest(
            [m.AlterUserScramCredentialsRequest.ScramCredentialDeletion("u", 1)]
        ),
        "CreateAcls": lambda: m.CreateAclsRequest(
            [m.CreateAclsRequest.AclCreation(2, "t", 3, "User:u", "*", 3, 3)]
        ),
        "DeleteAcls": lambda: m.DeleteAclsRequest(
            [m.DeleteAclsRequest.DeleteAclsFilter(2, "t", 3, None, None, 1, 1)]
        ),
        "AlterConfigs": lambda: m.AlterConfigsRequest([m.AlterConfigsRequest.AlterConfigsResource(2, "t")]),
        "IncrementalAlterConfigs": lambda: m.IncrementalAlterConfigsRequest(
            [m.IncrementalAlterConfigsRequest.AlterConfigsResource(2, "t")]
        ),
        "DeleteRecords": lambda: m.DeleteRecordsRequest(
            [
                m.DeleteRecordsRequest.DeleteRecordsTopic(
                    "t", [m.DeleteRecordsRequest.DeleteRecordsPartition(0, 0)]
                )
            ]
        ),
        "DescribeProducers": lambda: m.DescribeProducersRequest(
            [m.DescribeProducersRequest.TopicRequest("t", [0])]
        ),
        "DescribeTransactions": lambda: m.DescribeTransactionsRequest(["transaction"]),
        "DescribeTopicPartitions": lambda: m.DescribeTopicPartitionsRequest(
            [m.DescribeTopicPartitionsRequest.TopicRequest("t")]
        ),
        "DescribeLogDirs": lambda: m.DescribeLogDirsRequest(
            [m.DescribeLogDirsRequest.DescribableLogDirTopic("t", [0])]
        ),
        "ElectLeaders": lambda: m.ElectLeadersRequest(
            topic_partitions=[m.ElectLeadersRequest.TopicPartitions("t", [0])]
        ),
        "AlterPartitionReassignments": lambda: m.AlterPartitionReassignmentsRequest(
            topics=[
                m.AlterPartitionReassignmentsRequest.ReassignableTopic(
                    "t", [m.AlterPartitionReassignmentsRequest.ReassignablePartition(0, [1])]
                )
            ]
        ),
        "ListPartitionReassignments": lambda: m.ListPartitionReassignmentsRequest(
            topics=[m.ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics("t", [0])]
        ),
        "AddPartitionsToTxn": lambda: add_partitions(ProducerIdAndEpoch(1, 0), 0, version=version),
        "CreatePartitions": lambda: m.CreatePartitionsRequest(
            [m.CreatePartitionsRequest.CreatePartitionsTopic("t", 9)]
        ),
        "CreateTopics": lambda: m.CreateTopicsRequest([m.CreateTopicsRequest.CreatableTopic("x", 1, 1)]),
        "DeleteGroups": lambda: m.DeleteGroupsRequest(["g"]),
        "DeleteTopics": lambda: m.DeleteTopicsRequest(
            **(
                {"topics": [m.DeleteTopicsRequest.DeleteTopicState("t")]}
                if version >= 6
                else {"topic_names": ["t"]}
            )
        ),
        "DescribeConfigs": lambda: m.DescribeConfigsRequest(
            [m.DescribeConfigsRequest.DescribeConfigsResource(2, "t")]
        ),
        "ConsumerGroupDescribe": lambda: m.ConsumerGroupDescribeRequest(["g"]),
        "ConsumerGroupHeartbeat": lambda: m.ConsumerGroupHeartbeatRequest(
            "g", "one", 0, rebalance_timeout_ms=1000, subscribed_topic_names=["t"], topic_partitions=[]
        ),
        "DescribeGroups": lambda: m.DescribeGroupsRequest(["g"]),
        "Fetch": lambda: fetch(cluster, 0, version=version),
        "FindCoordinator": lambda: m.FindCoordinatorRequest(
            **({"coordinator_keys": ["g"]} if version >= 4 else {"key": "g"})
        ),
        "ListOffsets": lambda: m.ListOffsetsRequest(
            topics=[m.ListOffsetsRequest.ListOffsetsTopic("t", [m.ListOffsetsRequest.ListOffsetsPartition()])]
        ),
        "Metadata": lambda: m.MetadataRequest([m.MetadataRequest.MetadataRequestTopic(name="t")]),
        "OffsetCommit": lambda: commit_request(cluster, version, {0: 1}),
        "OffsetFetch": lambda: (
            m.OffsetFetchRequest(groups=[m.OffsetFetchRequest.OffsetFetchRequestGroup("g")])
            if version >= 8
            else m.OffsetFetchRequest("g", [m.OffsetFetchRequest.OffsetFetchRequestTopic("t", [0])])
        ),
        "OffsetDelete": lambda: m.OffsetDeleteRequest(
            "g",
            [
                m.OffsetDeleteRequest.OffsetDeleteRequestTopic(
                    "t", [m.OffsetDeleteRequest.OffsetDeleteRequestPartition(0)]
                )
            ],
        ),
        "OffsetForLeaderEpoch": lambda: m.OffsetForLeaderEpochRequest(
            topics=[
                m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic(
                    "t", [m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition()]
                )
            ]
        ),
        "Produce": lambda: produce(cluster, batch(), version=version),
        "InitProducerId": lambda: m.InitProducerIdRequest(transactional_id=None),
        "TxnOffsetCommit": lambda: txn_offset_commit(ProducerIdAndEpoch(1, 0), {0: 1}),
        "WriteTxnMarkers": lambda: write_markers(ProducerIdAndEpoch(1, 0), 0, commit=True),
    }
    request = APIS[next(key for key in HANDLERS if HANDLERS[key].name == api)].request
    return made.get(api, request)()
