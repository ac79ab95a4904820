"""Transactions and producers: requests of Admin, and what it makes of their responses."""

from __future__ import annotations

from collections.abc import Iterable

from asyncgroup.admin.partitions import existing_partitions
from asyncgroup.admin.transaction_values import (
    ProducerDescription,
    TransactionDescription,
    TransactionListing,
)
from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.requests import producers, transactions
from asyncgroup.cluster.requests.budget import RequestBudget
from asyncgroup.cluster.requests.producers import AbortMarker, ActiveProducer
from asyncgroup.cluster.requests.results import Results
from asyncgroup.cluster.requests.transactions import CoordinatedTransaction, ListedTransaction
from asyncgroup.errors import BrokerError
from asyncgroup.topic_partition import TopicPartition

__all__ = ["abort", "describe_producers", "describe_transactions", "once_each"]


def once_each(listed: Results[int, list[ListedTransaction]]) -> tuple[TransactionListing, ...]:
    """Return each transactional id once, sorted: of two coordinators the one where it is alive."""
    unique: dict[str, TransactionListing] = {}
    for node, found in listed.values.items():
        for each in found:
            name = each.transactional_id
            listing = TransactionListing(name, node, each.producer_id, each.transaction_state)
            known = unique.get(name)
            if known is None or _liveness(listing.state) > _liveness(known.state):
                unique[name] = listing
    return tuple(unique[name] for name in sorted(unique))


def _liveness(state: str) -> int:
    """Return the rank of a state: a former coordinator may still list the id as it was."""
    return {"Dead": 0, "Empty": 1, "CompleteCommit": 1, "CompleteAbort": 1}.get(state, 2)


async def describe_transactions(
    cluster: ClusterClient, names: Iterable[str], budget: RequestBudget
) -> Results[str, TransactionDescription]:
    """Return each transactional id; one that does not exist has the error TRANSACTIONAL_ID_NOT_FOUND."""
    described = await transactions.describe_all_of_transactions(cluster, names, retry=budget.retry())
    results: Results[str, TransactionDescription] = Results(errors=dict(described.errors))
    for name, each in described.values.items():
        if each.found.error_code:
            results.errors[name] = BrokerError(each.found.error_code, f"transactional id {name!r}")
        else:
            results.values[name] = _transaction(each)
    return results


def _transaction(each: CoordinatedTransaction) -> TransactionDescription:
    found = each.found
    partitions = {TopicPartition(topic.topic, n) for topic in found.topics for n in topic.partitions}
    return TransactionDescription(
        transactional_id=found.transactional_id,
        coordinator=each.coordinator,
        state=found.transaction_state,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        timeout=found.transaction_timeout_ms / 1000,
        start_timestamp=_none_if_negative(found.transaction_start_time_ms),
        partitions=tuple(sorted(partitions)),
    )


async def describe_producers(
    cluster: ClusterClient, partitions: Iterable[TopicPartition], broker: int | None, budget: RequestBudget
) -> Results[TopicPartition, tuple[ProducerDescription, ...]]:
    """Return the producers that each partition knows, sorted by id."""
    existing = existing_partitions(cluster, partitions, "producers of", budget.deadline)
    async with existing as (found, errors):
        described = await producers.describe_producers(cluster, found, node=broker, retry=budget.node_retry())
    values = {tp: _producers(known) for tp, known in described.values.items()}
    return Results(values, errors | described.errors)


def _producers(known: Iterable[ActiveProducer]) -> tuple[ProducerDescription, ...]:
    described = (
        ProducerDescription(
            producer_id=each.producer_id,
            producer_epoch=each.producer_epoch,
            last_sequence=each.last_sequence,
            last_timestamp=each.last_timestamp,
            coordinator_epoch=_none_if_negative(each.coordinator_epoch),
            current_transaction_start_offset=_none_if_negative(each.current_txn_start_offset),
        )
        for each in known
    )
    return tuple(sorted(described, key=lambda each: each.producer_id))


def _none_if_negative(number: int) -> int | None:
    return number if number >= 0 else None


async def abort(
    cluster: ClusterClient, tp: TopicPartition, marker: AbortMarker, budget: RequestBudget
) -> None:
    """Write the marker that aborts a transaction in one partition."""
    existing = existing_partitions(cluster, [tp], "aborting a transaction in", budget.deadline)
    async with existing as (_, errors):
        for error in errors.values():
            raise error
        (await producers.write_abort_marker(cluster, tp, marker, retry=budget.retry())).require()
