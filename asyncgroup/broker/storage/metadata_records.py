"""Records of the metadata log: topics, partitions and transactions to and from their stored form."""

from __future__ import annotations

from uuid import UUID

from asyncgroup.broker.storage.metadata_log import MetadataRecord
from asyncgroup.broker.topics import Partition, Topic
from asyncgroup.broker.transactions.metadata import ProducerIdAndEpoch, TransactionMetadata
from asyncgroup.broker.transactions.state import TransactionState
from asyncgroup.model import TopicPartition

__all__ = ["partition_record", "read_topic", "read_transaction", "topic_record", "transaction_record"]


def topic_record(topic: Topic) -> MetadataRecord:
    """Return the record of a topic: its id, configs and number of partitions."""
    return {
        "key": ["topic", topic.name],
        "id": topic.id.hex,
        "configs": dict(topic.configs),
        "partitions": len(topic.partitions),
    }


def read_topic(record: MetadataRecord) -> Topic:
    """Return the topic of a record, without partitions."""
    return Topic(str(record["key"][1]), UUID(hex=record["id"]), record["configs"])


def partition_record(partition: Partition) -> MetadataRecord:
    """Return the record of a partition: its replicas, leader, leader epoch and start offsets of the leader epochs."""
    return {
        "key": ["partition", partition.topic, partition.index],
        "replicas": list(partition.replicas),
        "leader": partition.leader,
        "epoch": partition.leader_epoch,
        "epochs": [list(entry) for entry in partition.log.epochs],
    }


def transaction_record(transaction: TransactionMetadata) -> MetadataRecord:
    """Return the record of a transactional id: all fields of `TransactionMetadata`."""
    next_producer = transaction.next_producer
    return {
        "key": ["transaction", transaction.transactional_id],
        "producer": list(transaction.producer),
        "last_epoch": transaction.last_producer_epoch,
        "previous_id": transaction.previous_producer_id,
        "timeout": transaction.timeout,
        "started": transaction.start_timestamp,
        "updated": transaction.last_update_timestamp,
        "state": transaction.state.value,
        "successor": None if next_producer is None else list(next_producer),
        "partitions": [list(tp) for tp in transaction.partitions],
    }


def read_transaction(record: MetadataRecord) -> TransactionMetadata:
    """Return the transactional id of a record."""
    transaction = TransactionMetadata(str(record["key"][1]), record["producer"][0])
    transaction.producer = ProducerIdAndEpoch(*record["producer"])
    transaction.last_producer_epoch = record["last_epoch"]
    transaction.previous_producer_id = record["previous_id"]
    transaction.timeout = record["timeout"]
    transaction.start_timestamp = record["started"]
    transaction.last_update_timestamp = record["updated"]
    transaction.state = TransactionState(record["state"])
    transaction.next_producer = (
        None if record["successor"] is None else ProducerIdAndEpoch(*record["successor"])
    )
    transaction.partitions = {TopicPartition(*tp): None for tp in record["partitions"]}
    return transaction
