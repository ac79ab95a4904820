"""Administer a Kafka cluster: topics, configurations, groups and their offsets.

    async with Admin("localhost:9092") as admin:
        for name, topic in (await admin.describe_topics(["orders"])).raise_first().items():
            print(name, len(topic.partitions))

Further subjects are attributes: `admin.transactions`, `brokers`, `replicas`, `acls`, `users`, `quotas`.

`Admin` is the face; each subject has a file, over the requests of `asyncgroup.cluster.requests`. A call for several names returns
`AdminResults`: a value or an error for each of them.

The files:

- `admin`: the class. `arguments` and `results` are what all subjects share, `denied` says what a denied call needs.
- Topics and configurations: `topics`, `topic_changes`, `partitions`, `list_offsets`, `configs`.
- Groups: `groups`, `members`, `group_offsets`. Their lag: `lag`, with the pure `lag_values`. A reset: `reset_target` says where to,
  `reset_plan` what changes, `reset` looks that up and commits it, and `offsets_csv` reads and writes it as CSV.
- Transactions: `transactions`, with `transaction_requests` and `transaction_values`; `hanging` finds those that will not end.
- The cluster: `brokers` with `broker_values`, `replicas`, `acls` with `acl_values`, `users`, `quotas`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgroup.lazy_names import lazy_names as _lazy_names

if TYPE_CHECKING:
    from asyncgroup.admin.acl_values import (
        AccessControlEntry,
        AclBinding,
        AclBindingFilter,
        AclsDeleted,
        ResourcePattern,
    )
    from asyncgroup.admin.acls import AdminAcls
    from asyncgroup.admin.admin import Admin
    from asyncgroup.admin.broker_values import (
        BrokerDescription,
        ClusterDescription,
        FeaturesDescription,
        FeatureUpdate,
        LogDirDescription,
        LogDirReplica,
        QuorumDescription,
        QuorumEndpoint,
        QuorumReplica,
    )
    from asyncgroup.admin.brokers import AdminBrokers
    from asyncgroup.admin.configs import ConfigChanges, ConfigDescription, SynonymDescription
    from asyncgroup.admin.group_offsets import GroupOffset
    from asyncgroup.admin.groups import GroupDescription, GroupListing, GroupsListed, MemberDescription
    from asyncgroup.admin.lag_values import AckWindowLag, GroupLag, PartitionLag
    from asyncgroup.admin.list_offsets import ListOffsetsResultInfo, OffsetSpec
    from asyncgroup.admin.members import MemberToRemove
    from asyncgroup.admin.offsets_csv import offsets_to_csv, parse_offsets_csv
    from asyncgroup.admin.quotas import AdminQuotas, ClientQuotaEntity, QuotaName
    from asyncgroup.admin.replicas import AdminReplicas, ReassignmentDescription
    from asyncgroup.admin.reset_plan import PartitionReset, ResetPlan, ResetRefused
    from asyncgroup.admin.reset_target import ShiftBy
    from asyncgroup.admin.results import AdminResults
    from asyncgroup.admin.topic_changes import NewPartitions, NewTopic
    from asyncgroup.admin.topics import PartitionDescription, TopicDescription, TopicListing
    from asyncgroup.admin.transaction_values import (
        HangingTransaction,
        HangingTransactionsFound,
        ProducerDescription,
        TransactionDescription,
        TransactionListing,
        TransactionsListed,
    )
    from asyncgroup.admin.transactions import AdminTransactions
    from asyncgroup.admin.users import AdminUsers, UserScramCredentialDeletion, UserScramCredentialUpsertion

__all__ = [
    "AccessControlEntry",
    "AckWindowLag",
    "AclBinding",
    "AclBindingFilter",
    "AclsDeleted",
    "Admin",
    "AdminAcls",
    "AdminBrokers",
    "AdminQuotas",
    "AdminReplicas",
    "AdminResults",
    "AdminTransactions",
    "AdminUsers",
    "BrokerDescription",
    "ClientQuotaEntity",
    "ClusterDescription",
    "ConfigChanges",
    "ConfigDescription",
    "FeatureUpdate",
    "FeaturesDescription",
    "GroupDescription",
    "GroupLag",
    "GroupListing",
    "GroupOffset",
    "GroupsListed",
    "HangingTransaction",
    "HangingTransactionsFound",
    "ListOffsetsResultInfo",
    "LogDirDescription",
    "LogDirReplica",
    "MemberDescription",
    "MemberToRemove",
    "NewPartitions",
    "NewTopic",
    "OffsetSpec",
    "PartitionDescription",
    "PartitionLag",
    "PartitionReset",
    "ProducerDescription",
    "QuorumDescription",
    "QuorumEndpoint",
    "QuorumReplica",
    "QuotaName",
    "ReassignmentDescription",
    "ResetPlan",
    "ResetRefused",
    "ResourcePattern",
    "ShiftBy",
    "SynonymDescription",
    "TopicDescription",
    "TopicListing",
    "TransactionDescription",
    "TransactionListing",
    "TransactionsListed",
    "UserScramCredentialDeletion",
    "UserScramCredentialUpsertion",
    "offsets_to_csv",
    "parse_offsets_csv",
]

__getattr__, __dir__ = _lazy_names(
    __name__,
    {
        "admin": ["Admin"],
        "configs": ["ConfigChanges", "ConfigDescription", "SynonymDescription"],
        "group_offsets": ["GroupOffset"],
        "groups": ["GroupDescription", "GroupListing", "MemberDescription", "GroupsListed"],
        "members": ["MemberToRemove"],
        "offsets_csv": ["offsets_to_csv", "parse_offsets_csv"],
        "reset_plan": ["PartitionReset", "ResetPlan", "ResetRefused"],
        "reset_target": ["ShiftBy"],
        "lag_values": ["AckWindowLag", "GroupLag", "PartitionLag"],
        "list_offsets": ["ListOffsetsResultInfo", "OffsetSpec"],
        "results": ["AdminResults"],
        "topic_changes": ["NewPartitions", "NewTopic"],
        "topics": ["PartitionDescription", "TopicDescription", "TopicListing"],
        "broker_values": [
            "BrokerDescription",
            "ClusterDescription",
            "FeatureUpdate",
            "FeaturesDescription",
            "LogDirDescription",
            "LogDirReplica",
            "QuorumDescription",
            "QuorumEndpoint",
            "QuorumReplica",
        ],
        "brokers": ["AdminBrokers"],
        "replicas": ["AdminReplicas", "ReassignmentDescription"],
        "acl_values": [
            "AccessControlEntry",
            "AclBinding",
            "AclBindingFilter",
            "AclsDeleted",
            "ResourcePattern",
        ],
        "acls": ["AdminAcls"],
        "quotas": ["AdminQuotas", "ClientQuotaEntity", "QuotaName"],
        "users": ["AdminUsers", "UserScramCredentialDeletion", "UserScramCredentialUpsertion"],
        "transaction_values": [
            "HangingTransaction",
            "HangingTransactionsFound",
            "ProducerDescription",
            "TransactionDescription",
            "TransactionListing",
            "TransactionsListed",
        ],
        "transactions": ["AdminTransactions"],
    },
)
