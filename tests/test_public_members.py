"""Public members of the classes outside group/, offsets/, broker/ and testing/: what a user may call or read, and nothing else.

A new member is added here on purpose, or its name begins with an underscore. A class without a list fails.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from enum import Enum
from typing import Final

import pytest

from asyncgroup.config import ClientConfig, ConsumerConfig, ProducerConfig
from asyncgroup.errors import AsyncGroupError
from tests.public_members import public_members

PACKAGES = [
    "asyncgroup",
    *(
        f"asyncgroup.{room}"
        for room in (
            "admin",
            "cluster",
            "config",
            "consumer",
            "errors",
            "producer",
            "spark",
            "telemetry",
            "workqueue",
        )
    ),
]
ELSEWHERE = {"asyncgroup.group", "asyncgroup.offsets"}
"""Packages with a list in tests/group. Those of `asyncgroup.broker` and `asyncgroup.testing` are in tests/broker, tests/testing."""

MEMBERS: Final = {
    # clients
    "Cluster": "aclose all_topics config coordinators hooks is_open leader partitions refresh request request_any topics"
    " track tracking untrack view wait_updated",
    "Consumer": "aclose beginning_offsets cluster committed config end_offsets high_watermarks offsets_for_times partition"
    " partitions pause pause_all resume resume_all topics",
    "PartitionConsumer": "aclose batches buffered_bytes ended errors high_watermark initial_offset lag last_stable_offset"
    " log_start_offset partition pause paused position resume seek stalled topic tp",
    "Producer": "aclose cluster config detach_transaction enqueue enqueue_all flush send send_nowait send_offsets transaction",
    "Transaction": "",
    "GroupSource": "bootstrap_servers group_id topics config producer_config hooks transactional_copies migrate_from max_waiting"
    " features plan subscription",
    "PulsarSource": "service_url subscription topics config hooks consumer_name priority_level key_ranges durable index_acks"
    " close_timeout dead_letter_subscription features pattern_auto_discovery_period plan"
    " transactional_copies",
    "MemoryBudget": "limit used waiting",
    # administration
    "AclBindingFilter": "exactly host name operation pattern_type permission_type principal resource_type",
    "AclsDeleted": "acls errors raise_first",
    "Admin": "aclose acls alter_configs alter_group_offsets brokers create_partitions create_topics"
    " delete_group_offsets delete_groups delete_records delete_topics describe_configs describe_groups"
    " describe_topics lag list_group_offsets list_groups list_offsets list_topics plan_reset quotas"
    " remove_members replicas reset_offsets transactions users",
    "AdminAcls": "create delete describe",
    "AdminBrokers": "describe features log_dirs quorum update_features",
    "AdminQuotas": "alter describe",
    "AdminReplicas": "alter_log_dirs alter_reassignments cancel_reassignments elect_leaders list_reassignments",
    "AdminResults": "errors get items keys raise_first values values_by_name",
    "AdminTransactions": "abort abort_at describe find_hanging list producers",
    "AdminUsers": "alter describe",
    "GroupLag": "errors group lag_max lag_sum lost_sum partitions without_commit",
    "GroupsListed": "errors groups raise_first",
    "HangingTransactionsFound": "errors raise_first transactions",
    "MemberToRemove": "group_instance_id member_id",
    "PartitionDescription": "elr is_under_replicated isr last_known_elr leader leader_epoch offline_replicas partition replicas",
    "PartitionReset": "acked_above adjusted clears_metadata clears_window log_end log_start new_offset old_offset"
    " wanted_offset",
    "ReassignmentDescription": "adding removing replicas target",
    "ResetPlan": "group_id offsets partitions target to_csv topic_ids warnings",
    "TransactionsListed": "errors raise_first transactions",
    # what a user writes
    "Partitioner": "for_topic",
    "TimedRoundRobin": "for_topic interval",
    "TopicPartitioner": "",
    "Hook": "on_batch_done on_chunks_dropped on_commit on_connect on_delivered on_disconnect on_fetch on_heartbeat on_join on_metadata on_open on_produce on_request"
    " on_response on_resumed on_session_end on_session_start on_member_stalled on_stalled on_throttle"
    " on_delivery_end on_delivery_start on_handler_end on_handler_start on_process_end on_process_start on_send_end on_send_start"
    " on_ack on_attached on_detached on_receive on_transaction_end on_transaction_start",
    "AsyncGroupInstrumentor": "instrument instrumentation_dependencies is_instrumented_by_opentelemetry uninstrument",
    "OpenTelemetryMetrics": "close listen loop on_ack on_attached on_batch_done on_commit on_connect on_detached on_disconnect on_receive on_fetch on_handler_end on_handler_start on_heartbeat"
    " on_join on_member_stalled on_open on_process_end on_process_start on_response on_session_end on_session_start on_throttle"
    " on_transaction_end on_transaction_start read wants_records",
    "OpenTelemetryTraces": "close is_recording on_acknowledgement on_delivery_end on_delivery_start on_process_end on_process_start on_send"
    " wants_records",
    "ClientMetrics": "loop on_ack on_attached on_batch_done on_commit on_connect on_detached on_disconnect on_receive on_fetch on_handler_end on_handler_start on_heartbeat on_join"
    " listen on_member_stalled on_open on_response on_session_end on_session_start on_throttle on_transaction_end on_transaction_start read",
    "HistogramReading": "copy count counts sum",
    "Metric": "bounds bucket combine full_name help kind labels name per_partition unit",
    "JsonLogFormatter": "converter default_msec_format default_time_format format formatException formatMessage formatStack formatTime usesTime",
    "ProbeAnswer": "as_dict passed reasons",
    "ProbeApp": "add",
    "ProbeServer": "aclose host port",
    "PrometheusCollector": "collect describe",
    "Readings": "add copy gauge histograms numbers observe on_observe",
    "Interceptor": "on_acknowledgement on_consume on_send",
    # values
    "Batch": "count first_offset index last_offset leader_epoch partition to_arrow topic",
    "OpenTransaction": "has_writes producer_epoch producer_id transactional_id version",
    "ProducerRecord": "headers key partition timestamp topic value",
    "OffsetAndTimestamp": "leader_epoch offset time timestamp",
    "Record": "first_offset headers key leader_epoch offset partition time timestamp timestamp_type topic value",
    "RecordMetadata": "first_offset offset partition sequence_id timestamp topic",
    "BatchResult": "attempts base_offset error latency partition records size topic wire_size",
    "TopicPartition": "partition topic",
    "OAuthBearer": "authzid extensions mechanism token_provider",
    "Plain": "authzid mechanism password username",
    "Security": "protocol sasl tls",
    "Tls": "ca_data ca_file cert_data cert_file check_hostname context key_data key_file key_password make_context",
    # work queues
    "Backoff": "delay factor fixed initial maximum",
    "BatchPolicy": "max_bytes max_records timeout",
    "Delivery": "ack ack_cumulative attempt deadline decoded group_id headers key nack ordering_key record reconsume_later"
    " redelivery_count reject renew state value",
    "DeliveryBatch": "count index",
    "KeyRange": "end intersect start",
    "QueueConsumer": "aclose batch_receive key_ranges name priority receive run",
    "QueueInterceptor": "became_active became_inactive before_consume on_ack_timeout on_acknowledge on_dead_letter on_negative_ack",
    "QueueStatistics": "acquired at_close as_dict counts handlers lag open_for partitions queued waiting",
    "WorkQueue": "aclose batch_receive config consumer dead_letter_topic errors group_id health mode pause paused receive resume retry_topic run"
    " seek statistics",
    # Spark
    "BatchId": "ranges",
    "BridgeStatistics": "as_dict batches bytes commit_seconds failures fn_seconds frame_seconds interrupted last_batch"
    " last_error last_error_age queued_bytes queued_rows rows running running_for",
    "DbApiMerge": "merge",
    "Dialect": "delete insert merge name paramstyle quote table upsert where",
    "ForeachBatch": "cleanup consume_claim on_assigned on_lost on_revoked setup statistics",
    "OffsetRange": "end partition rows start topic",
    "OffsetsInSink": "create_offsets_table start_offsets",
    "ParquetByRange": "compact read vacuum",
    "QueueForeachBatch": "run statistics",
    "Upsert": "",
}
"""The members by class, without those of the built-in class that it derives from."""

RECEIVED: Final = {
    "cluster.cluster.Coordinators": "find mark_unknown request",
    "cluster.metadata.BrokerInfo": "host node_id port rack",
    "cluster.metadata.ClusterView": "brokers cluster_id controller_id leader partition partition_counts topics updated_at",
    "cluster.metadata.PartitionInfo": "error_code isr leader leader_epoch offline_replicas partition replicas",
    "cluster.metadata.TopicInfo": "error_code is_internal name numbers partitions topic_id writable",
    "consumer.error_stream.ErrorReader": "aclose dropped",
    "consumer.merged_reader.MergedRecords": "",
    "consumer.partition_consumer.Batches": "",
    "hooks.Hooks": "emit has_listener joined wants_records with_listener",
    "properties.reader.FromProperties": "config rest",
}
"""The members of classes that no package exports, and that attributes and methods of those above return."""

ERROR_MEMBERS: Final = {
    "BrokerError": "code name what",
    "BatchRejectedError": "code name what",
    "CommitFailedError": "errors group_id",
    "ConfigError": "allowed key value",
    "InvalidRecordError": "allowed field value",
    "RecordRejectedError": "allowed code field name value what",
    "DeliveryFailedError": "count failed",
    "FailedRows": "delay reconsume_later reject rows",
    "LogTruncatedError": "divergent_offset partition position topic",
    "ClaimStuck": "group_id partition seconds topic",
    "EventLoopBlocked": "group_id seconds",
    "HookTimeout": "group_id method seconds still_runs",
    "RevokeTimeout": "group_id limit partition topic",
    "MarkDropped": "offset partition topic",
    "OffsetLookupError": "errors",
    "ProducerFencedError": "current epoch producer_id state transactional_id",
    "RecordTooLargeError": "limit offset size tp",
    "RetriesExhausted": "tp tries",
    "TransactionAbortedError": "transactional_id",
    "TransactionError": "transactional_id",
    "TransactionOutcomeUnknown": "commit transactional_id",
    "TopicRecreatedError": "partition position topic",
    "ConsumerBusy": "group_id holder",
    "CopyFailedError": "offset partition record_topic topic tries",
    "DeadLetterRateError": "dead ended group_id window",
    "ProducerLockHeld": "group_id topic",
    "ProducerLockLost": "group_id topic",
    "ResetRefused": "group_id reasons",
}
"""What errors have besides `retriable` and `may_be_written`; those without a line have nothing else."""

CONFIG_MEMBERS: Final = {"client", "from_properties", "of"}
"""What configurations have besides their fields."""

EFFECTIVE: Final = {"effective_assignors", "effective_heartbeat_interval", "effective_session_timeout"}
"""What a ConsumerConfig has besides those."""

PRODUCERS_EFFECTIVE: Final = {
    "effective_batch_records",
    "effective_batching",
    "effective_enable_idempotence",
    "effective_linger",
}
"""What a ProducerConfig has besides those."""

INTERNAL = {"ClusterClient"}
"""Classes that rooms export for other rooms only: no user receives one."""


def exported(*packages: str) -> dict[str, type]:
    found = {}
    for package in packages:
        module = importlib.import_module(package)
        found |= {name: getattr(module, name) for name in module.__all__}
    return {name: kind for name, kind in found.items() if inspect.isclass(kind)}


CLASSES = {
    name: kind
    for name, kind in exported(*PACKAGES).items()
    if name not in exported(*ELSEWHERE) and name not in INTERNAL
}


def wanted(name: str, kind: type) -> set[str]:
    if issubclass(kind, AsyncGroupError):
        return {"may_be_written", "retriable", *ERROR_MEMBERS.get(name, "").split()}
    if issubclass(kind, Enum):
        return set(kind.__members__)
    if dataclasses.is_dataclass(kind) and name not in MEMBERS:
        fields = {field.name for field in dataclasses.fields(kind)}
        fields |= EFFECTIVE if kind is ConsumerConfig else set()
        fields |= PRODUCERS_EFFECTIVE if kind is ProducerConfig else set()
        return fields | (CONFIG_MEMBERS if issubclass(kind, ClientConfig) else set())
    return set(MEMBERS[name].split())


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_public_members(name: str) -> None:
    kind = CLASSES[name]
    built_in = next((base for base in (BaseException, int, tuple) if issubclass(kind, base)), object)
    assert public_members(kind) - set(dir(built_in)) == wanted(name, kind)


@pytest.mark.parametrize("path", RECEIVED)
def test_members_of_what_is_received(path: str) -> None:
    module, name = path.rsplit(".", 1)
    kind = getattr(importlib.import_module(f"asyncgroup.{module}"), name)
    built_in = tuple if issubclass(kind, tuple) else object
    assert public_members(kind) - set(dir(built_in)) == set(RECEIVED[path].split())


def test_every_list_is_of_an_exported_class() -> None:
    assert not (MEMBERS.keys() | ERROR_MEMBERS.keys()) - CLASSES.keys()
    assert not INTERNAL & set(importlib.import_module("asyncgroup").__all__)
