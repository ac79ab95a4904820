"""Restore a cluster's topics, logs, leaders and transactions from its data directory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from asyncgroup.broker.log.recovery import recover
from asyncgroup.broker.metadata.controller import Controller
from asyncgroup.broker.metadata.metadata_log import MetadataRecord
from asyncgroup.broker.metadata.scram_users import read_credential
from asyncgroup.broker.metadata.topics import NO_LEADER, OFFSETS_TOPIC, Topic
from asyncgroup.broker.storage.data_directory import DataDirectory, read_topic
from asyncgroup.broker.transactions.metadata import TransactionMetadata
from asyncgroup.broker.transactions.store import read_transaction
from asyncgroup.errors import ConfigError

__all__ = ["restore_controller", "restored_transactions"]


def restore_controller(data: DataDirectory, controller: Controller) -> None:
    """Restore a new controller from the directory, which becomes its journal.

    Partitions keep their leaders, with the next leader epoch. Raise ConfigError if replicas are on nodes that the
    cluster does not have.
    """
    controller.cluster_id = data.adopt_cluster(controller.cluster_id)
    starts = {tuple(record["key"][1:]): record["offset"] for record in data.records("start")}
    partitions: dict[str, dict[int, MetadataRecord]] = {}
    for record in data.records("partition"):
        partitions.setdefault(record["key"][1], {})[record["key"][2]] = record
    for record in data.records("settings"):
        controller.configs.put(record["key"][1], record["key"][2], record["configs"])
    for record in data.records("features"):
        controller.features.restore(record["levels"], record.get("epoch"))
    _restore_users_and_quotas(data, controller)
    topics = []
    for record in data.records("topic"):
        topic = read_topic(record)
        for index in range(record["partitions"]):
            kept = partitions[topic.name][index]
            _check_nodes(kept, controller.node_ids)
            _restore_partition(data, topic, kept, starts.get((topic.name, index), 0))
        topics.append(topic)
    _forget_unknown(data, topics)
    controller.restore(topics, data, data.next_producer_id, start_count=data.count_start())


def _restore_users_and_quotas(data: DataDirectory, controller: Controller) -> None:
    for record in data.records("scram"):
        _, mechanism, user = record["key"]
        if record["credential"] is None:
            controller.scram_users.remove(mechanism, user)
        else:
            controller.scram_users.put(mechanism, user, read_credential(record["credential"]))
    for record in data.records("quota"):
        entity = tuple((kind, name) for kind, name in json.loads(record["key"][1]))
        controller.quotas.put(entity, record["values"])


def _forget_unknown(data: DataDirectory, topics: Sequence[Topic]) -> None:
    """Delete the partitions left by a process that was killed while deleting or creating a topic."""
    known = {(topic.name, partition.index) for topic in topics for partition in topic.partitions}
    for kind in ("partition", "start"):
        for record in data.records(kind):
            if tuple(record["key"][1:]) not in known:
                data.metadata.delete(*record["key"])
    data.remove_unknown(topics)


def _restore_partition(data: DataDirectory, topic: Topic, kept: MetadataRecord, start_offset: int) -> None:
    index = len(topic.partitions)
    # the leaders of __consumer_offsets are set by the election of group coordinators
    leader = NO_LEADER if topic.name == OFFSETS_TOPIC or kept["leader"] == NO_LEADER else kept["leader"]
    partition = topic.add_partition(list(kept["replicas"]), leader)
    store = data.store(topic, index)
    found = recover(data.files, store.directory)
    partition.log.segments.store = store
    epochs = [(epoch, start) for epoch, start in kept["epochs"]]
    partition.log.restore(found.segments, found.batches, start_offset=start_offset, epochs=epochs)
    partition.leader_epoch = max([kept["epoch"], *(epoch for epoch, _ in partition.log.epochs)]) + 1
    partition.log.start_epoch(partition.leader_epoch)
    data.partition_changed(partition)


def _check_nodes(kept: MetadataRecord, node_ids: Iterable[int]) -> None:
    missing = set(kept["replicas"]) - set(node_ids)
    if missing:
        _, topic, index = kept["key"]
        raise ConfigError(
            "nodes",
            len(list(node_ids)),
            f"{max(missing)} or more, as {topic}-{index} has a replica on that node",
        )


def restored_transactions(data: DataDirectory) -> list[TransactionMetadata]:
    """Return the stored transactional ids."""
    return [read_transaction(record) for record in data.records("transaction")]
