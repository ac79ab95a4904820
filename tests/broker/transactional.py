"""Batches and requests of transactional producers, and a writer of transactions to a log."""

from __future__ import annotations

from asyncgroup.broker.log.partition_log import PartitionLog
from asyncgroup.broker.transactions.metadata import ProducerIdAndEpoch
from asyncgroup.wire import messages as m
from asyncgroup.wire.records import ControlType
from tests.broker.batches import append, batch
from tests.broker.client import Client

__all__ = [
    "Writer",
    "add_partitions",
    "end_transaction",
    "init_producer",
    "partition_errors",
    "transactional",
    "txn_offset_commit",
    "write_markers",
]


def transactional(*values: bytes, producer_id: int, epoch: int = 0, sequence: int = 0) -> bytes:
    """Return a transactional batch."""
    return batch(
        *values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True
    )


class Writer:
    """Acts as a producer and its coordinator on one log."""

    def __init__(self, log: PartitionLog, producer_id: int) -> None:
        self.log = log
        self.id = producer_id
        self.epoch = 0
        self.sequence = 0

    def write(self, *values: bytes) -> int:
        """Append a transactional batch; return its first offset."""
        return self._append(*values, inside=True)

    def write_plain(self, *values: bytes) -> int:
        """Append an idempotent batch without a transaction; return its first offset."""
        return self._append(*values, inside=False)

    def _append(self, *values: bytes, inside: bool) -> int:
        data = batch(
            *values,
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
            transactional=inside,
        )
        self.sequence += len(values)
        return append(self.log, data, 0).base_offset

    def end(self, control_type: ControlType) -> int:
        """Append the marker; return its offset."""
        return self.log.append_marker(control_type, self.id, self.epoch, 0).base_offset

    def commit(self) -> int:
        return self.end(ControlType.COMMIT)

    def abort(self) -> int:
        return self.end(ControlType.ABORT)


# -- requests ---------------------------------------------------------------------------------------------------


def add_partitions(
    producer: ProducerIdAndEpoch,
    *partitions: int,
    topic: str = "t",
    version: int = 3,
    name: str = "tx",
    verify=False,
) -> m.AddPartitionsToTxnRequest:
    """Return AddPartitionsToTxn in the form of clients (up to version 3) or brokers."""
    topics = [m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(topic, list(partitions))]
    if version >= 4:
        one = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(name, *producer, verify, topics)
        return m.AddPartitionsToTxnRequest(transactions=[one])
    return m.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer.id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=topics,
    )


def txn_offset_commit(
    producer: ProducerIdAndEpoch,
    offsets: dict[int, int],
    *,
    topic: str = "t",
    name: str = "tx",
    group="g",
    **member,
) -> m.TxnOffsetCommitRequest:
    """Return TxnOffsetCommit for one topic."""
    partition = m.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition
    topics = [
        m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
            topic, [partition(index, offset, -1, f"m{offset}") for index, offset in offsets.items()]
        )
    ]
    return m.TxnOffsetCommitRequest(name, group, *producer, topics=topics, **member)


def write_markers(producer: ProducerIdAndEpoch, *partitions: int, commit: bool, topic: str = "t"):
    """Return WriteTxnMarkers for one producer."""
    marker = m.WriteTxnMarkersRequest.WritableTxnMarker
    places = [m.WriteTxnMarkersRequest.WritableTxnMarkerTopic(topic, list(partitions))]
    return m.WriteTxnMarkersRequest([marker(*producer, commit, places)])


def partition_errors(answer) -> list[int]:
    """Return the errors in a response to AddPartitionsToTxn or TxnOffsetCommit, ordered by partition."""
    if isinstance(answer, m.TxnOffsetCommitResponse):
        found = [(p.partition_index, p.error_code) for topic in answer.topics for p in topic.partitions]
    else:
        batched = [topic for one in answer.results_by_transaction for topic in one.topic_results]
        topics = batched or answer.results_by_topic_v3_and_below
        found = [(p.partition_index, p.partition_error_code) for t in topics for p in t.results_by_partition]
    return [code for _, code in sorted(found)]


async def init_producer(
    client: Client, version: int = 5, timeout: int = 60_000, **expected
) -> ProducerIdAndEpoch:
    """Send InitProducerId for `tx`; return its producer id and epoch."""
    request = m.InitProducerIdRequest("tx", timeout, **expected)
    answer = await client.ask(request, version)
    assert answer.error_code == 0
    return ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)


async def end_transaction(
    client: Client, producer: ProducerIdAndEpoch, version: int = 4, *, commit: bool = True
):
    """Send EndTxn for `tx`; return the response."""
    return await client.ask(m.EndTxnRequest("tx", *producer, commit), version)
