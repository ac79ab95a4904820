"""Hanging transactions: open in a partition, but no coordinator will end them.

The judgement is that of FindHangingTransactionsCommand in Kafka's TransactionsCommand. One more look at the end leaves out
those that ended between the looks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from asyncgroup.admin.transaction_requests import (
    describe_producers,
    describe_transactions,
)
from asyncgroup.admin.transaction_values import (
    HangingTransaction,
    HangingTransactionsFound,
    ProducerDescription,
)
from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.metadata import TopicInfo
from asyncgroup.cluster.requests.budget import RequestBudget
from asyncgroup.cluster.requests.transactions import list_all_transactions
from asyncgroup.errors import BrokerError, ErrorCode
from asyncgroup.model import now_ms
from asyncgroup.topic_partition import TopicPartition

__all__ = ["find_hanging", "hanging", "long_open", "partitions_to_search", "still_open"]

# --- judgement ----------------------------------------------------------------------------------------------------------


def long_open(
    producers: Mapping[TopicPartition, Iterable[ProducerDescription]], now: int, limit: float
) -> list[HangingTransaction]:
    """Return the open transactions whose last record is older than `limit` seconds at `now`, in ms since 1970."""
    return [
        HangingTransaction(
            partition=tp,
            producer_id=each.producer_id,
            producer_epoch=each.producer_epoch,
            coordinator_epoch=each.coordinator_epoch,
            start_offset=each.current_transaction_start_offset,
            last_timestamp=each.last_timestamp,
            duration=(now - each.last_timestamp) / 1000,
        )
        for tp, known in producers.items()
        for each in known
        if each.current_transaction_start_offset is not None and now - each.last_timestamp > limit * 1000
    ]


def hanging(
    candidates: Iterable[HangingTransaction],
    transactional_ids: Mapping[int, str],
    partitions: Mapping[str, Collection[TopicPartition]],
) -> list[HangingTransaction]:
    """Return those candidates that no coordinator will end.

    `transactional_ids` are the known ones by producer id, `partitions` those that the coordinator of an id still has to write a
    marker to. A coordinator that does not name the partition writes none.
    """
    found = []
    for each in candidates:
        name = transactional_ids.get(each.producer_id)
        if name is None or each.partition not in partitions.get(name, ()):
            found.append(replace(each, transactional_id=name))
    return found


def still_open(
    found: Iterable[HangingTransaction], producers: Mapping[TopicPartition, Iterable[ProducerDescription]]
) -> list[HangingTransaction]:
    """Return those that are still open by a later look: one that ended since the first look was not hanging."""
    opened = {
        (tp, each.producer_id, each.producer_epoch, each.current_transaction_start_offset)
        for tp, known in producers.items()
        for each in known
    }
    return [
        each
        for each in found
        if (each.partition, each.producer_id, each.producer_epoch, each.start_offset) in opened
    ]


# --- search -------------------------------------------------------------------------------------------------------------


async def find_hanging(
    cluster: ClusterClient,
    partitions: Iterable[TopicPartition],
    broker: int | None,
    limit: float,
    budget: RequestBudget,
) -> HangingTransactionsFound:
    """Return the hanging transactions of these partitions, by their leaders or by the replicas at this broker."""
    found = await describe_producers(cluster, partitions, broker, budget)
    candidates = long_open(found.values, now_ms(), limit)
    judged = await _judged(cluster, candidates, budget) if candidates else []
    again = await describe_producers(cluster, {each.partition for each in judged}, broker, budget)
    sure = still_open(judged, again.values)
    order = sorted(sure, key=lambda each: (each.partition, each.start_offset))
    return HangingTransactionsFound(tuple(order), found.errors | again.errors)


async def _judged(
    cluster: ClusterClient, candidates: Sequence[HangingTransaction], budget: RequestBudget
) -> list[HangingTransaction]:
    """Return the candidates that hang. Raises the error of a coordinator: it could have them."""
    producer_ids = {each.producer_id for each in candidates}
    await budget.limit(cluster.refresh())  # a coordinator at a new node must be asked as well
    listed = await list_all_transactions(cluster, producer_ids=producer_ids, retry=budget.node_retry())
    # of two coordinators, while one moves, both count: each may know another producer id
    rows = [each for found in listed.require().values() for each in found]
    names = {each.producer_id: each.transactional_id for each in rows}
    described = await describe_transactions(cluster, sorted(set(names.values())), budget)
    for error in described.errors.values():
        if not (isinstance(error, BrokerError) and error.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND):
            raise error
    return hanging(candidates, names, {name: each.partitions for name, each in described.values.items()})


async def partitions_to_search(
    cluster: ClusterClient, partitions: Sequence[TopicPartition], topics: Sequence[str], broker: int | None
) -> list[TopicPartition]:
    """Return these partitions and those of the topics; without both, those of all topics; with a broker, those that it has.

    Raises BrokerError for a topic that does not exist or may not be described.
    """
    if topics or partitions:
        found = await cluster.existing_topics({*topics, *(tp.topic for tp in partitions)})
    else:
        found = await cluster.all_topics()
        topics = [name for name, topic in sorted(found.items()) if not topic.error_code]
    wanted = dict.fromkeys(partitions)
    for name in topics:
        wanted |= dict.fromkeys(TopicPartition(name, number) for number in _existing(found, name).numbers)
    return [tp for tp in wanted if broker is None or _may_have(found, tp, broker)]


def _existing(found: Mapping[str, TopicInfo], name: str) -> TopicInfo:
    topic = found.get(name)
    if topic is None or topic.error_code:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic is None else topic.error_code
        raise BrokerError(code, f"producers of topic {name!r}")
    return topic


def _may_have(found: Mapping[str, TopicInfo], tp: TopicPartition, broker: int) -> bool:
    """Return whether the broker has a replica; a partition that does not exist is kept, for its error."""
    topic = found.get(tp.topic)
    partition = None if topic is None else topic.partitions.get(tp.partition)
    return partition is None or broker in partition.replicas
