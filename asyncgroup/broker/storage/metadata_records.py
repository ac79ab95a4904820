"""Records of the metadata log: topics and partitions to and from their stored form."""

from __future__ import annotations

from uuid import UUID

from asyncgroup.broker.metadata.metadata_log import MetadataRecord
from asyncgroup.broker.metadata.topics import Partition, Topic

__all__ = ["partition_record", "read_topic", "topic_record"]


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
