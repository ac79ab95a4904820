"""Describe transactions at their coordinators, and list them at all nodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.connection_pool import CONTROL
from asyncgroup.cluster.coordinators import TRANSACTION
from asyncgroup.cluster.network_client import RequestBuilder
from asyncgroup.cluster.requests.fan_out import Ask, request_apart, request_each
from asyncgroup.cluster.requests.results import Results
from asyncgroup.cluster.requests.routes import ByCoordinator, ByNode, Target, ToCoordinator
from asyncgroup.errors import BrokerError, ErrorCode, UnsupportedVersionError
from asyncgroup.net.backoff import RetryLoop
from asyncgroup.wire import messages as m

__all__ = [
    "ONGOING",
    "CoordinatedTransaction",
    "DescribedTransaction",
    "ListedTransaction",
    "describe_all_of_transactions",
    "describe_transactions",
    "list_all_transactions",
    "list_transactions",
]

ONGOING: Final = "Ongoing"
"""The state of an open transaction (`TransactionState` in Kafka)."""

DURATION_VERSION: Final = 1
"""The first ListTransactions version that filters by duration (KIP-994, Kafka 3.8)."""
PATTERN_VERSION: Final = 2
"""The first ListTransactions version with a pattern for transactional ids (KIP-1152, Kafka 4.1)."""

ListedTransaction: TypeAlias = "m.ListTransactionsResponse.TransactionState"


class DescribedTransaction(NamedTuple):
    """What the coordinator knows of a transactional id; empty and -1 if it does not exist."""

    state: str
    """As `TransactionState` in Kafka."""
    producer_id: int
    producer_epoch: int


class CoordinatedTransaction(NamedTuple):
    """All that the coordinator says of a transactional id."""

    coordinator: int
    """The node id of the coordinator."""
    found: m.DescribeTransactionsResponse.TransactionState
    """With TRANSACTIONAL_ID_NOT_FOUND if the coordinator does not know the id."""


async def describe_transactions(
    cluster: ClusterClient,
    transactional_ids: Iterable[str],
    *,
    lane: str = CONTROL,
    retry: RetryLoop | None = None,
    is_cut: bool = False,
    fails_fast: bool = False,
) -> Results[str, DescribedTransaction]:
    """Describe transactions (KIP-664, Kafka 3.0). Raises ClosedError.

    `lane` is the purpose of the connections; the other arguments are those of `request_each`.
    """
    described = await describe_all_of_transactions(
        cluster, transactional_ids, lane=lane, retry=retry, is_cut=is_cut, fails_fast=fails_fast
    )
    values = {
        name: DescribedTransaction(
            each.found.transaction_state, each.found.producer_id, each.found.producer_epoch
        )
        for name, each in described.values.items()
    }
    return Results(values, described.errors)


async def describe_all_of_transactions(
    cluster: ClusterClient,
    transactional_ids: Iterable[str],
    *,
    lane: str = CONTROL,
    retry: RetryLoop | None = None,
    is_cut: bool = False,
    fails_fast: bool = False,
) -> Results[str, CoordinatedTransaction]:
    """As `describe_transactions`, with all that the coordinator says of each transaction."""

    async def ask(target: Target, asked: list[str]) -> Results[str, CoordinatedTransaction]:
        request = m.DescribeTransactionsRequest(asked)
        response = await target.request(m.DescribeTransactionsRequest, lambda _: request, lane=lane)
        coordinator = target.address.node_id if isinstance(target, ToCoordinator) else -1
        results: Results[str, CoordinatedTransaction] = Results()
        for found in response.transaction_states:
            name = found.transactional_id
            if found.error_code not in (ErrorCode.NONE, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND):
                results.errors[name] = BrokerError(found.error_code, f"transactional id {name!r}")
            else:
                results.values[name] = CoordinatedTransaction(coordinator, found)
        return results

    return await request_each(
        transactional_ids,
        ByCoordinator(cluster, TRANSACTION),
        ask,
        api="DescribeTransactions",
        retry=retry,
        is_cut=is_cut,
        fails_fast=fails_fast,
    )


async def list_transactions(
    cluster: ClusterClient,
    *,
    states: Iterable[str] = (),
    pattern: str | None = None,
    retry: RetryLoop | None = None,
    is_cut: bool = False,
) -> Results[int, list[str]]:
    """Return the transactional ids that each known broker coordinates (KIP-664, Kafka 3.0), by node id. Raises ClosedError.

    Only those in one of these `states`, if any are given. With brokers before Kafka 4.1 ids that do not match `pattern`, a
    regular expression, are also returned.
    """
    wanted = list(states)

    def build(version: int) -> m.ListTransactionsRequest:
        return m.ListTransactionsRequest(
            state_filters=wanted, transactional_id_pattern=pattern if version >= PATTERN_VERSION else None
        )

    nodes, route = list(cluster.view.brokers), ByNode(cluster)
    listed = await request_each(
        nodes, route, _listed_by(build), api="ListTransactions", retry=retry, is_cut=is_cut
    )
    values = {node: [each.transactional_id for each in found] for node, found in listed.values.items()}
    return Results(values, listed.errors)


async def list_all_transactions(
    cluster: ClusterClient,
    *,
    states: Iterable[str] = (),
    producer_ids: Iterable[int] = (),
    duration_ms: int | None = None,
    pattern: str | None = None,
    retry: RetryLoop | None = None,
) -> Results[int, list[ListedTransaction]]:
    """Return the transactions that each known broker coordinates and that pass all filters, or the broker's error.

    A broker that lacks a filter has UnsupportedVersionError: for `duration_ms`, the least time in milliseconds that a
    transaction has been open, before Kafka 3.8; for `pattern`, a regular expression for the whole id, before Kafka 4.1. A
    transaction whose coordinator moves during the call may be listed by two nodes, or by none. Raises ClosedError.
    """
    wanted_states, wanted_producers = list(states), list(producer_ids)

    def build(version: int) -> m.ListTransactionsRequest:
        if duration_ms is not None and version < DURATION_VERSION:
            raise UnsupportedVersionError(
                "this broker does not list transactions by duration (Kafka 3.8 does)"
            )
        if pattern is not None and version < PATTERN_VERSION:
            raise UnsupportedVersionError(
                "this broker does not list transactions by pattern (Kafka 4.1 does)"
            )
        return m.ListTransactionsRequest(
            wanted_states, wanted_producers, -1 if duration_ms is None else duration_ms, pattern
        )

    nodes, route = list(cluster.view.brokers), ByNode(cluster)
    return await request_apart(nodes, route, _listed_by(build), api="ListTransactions", retry=retry)


def _listed_by(
    build: RequestBuilder[m.ListTransactionsResponse],
) -> Ask[int, list[ListedTransaction]]:
    async def ask(target: Target, nodes: list[int]) -> Results[int, list[ListedTransaction]]:
        response = await target.request(m.ListTransactionsRequest, build)
        if response.error_code:
            raise BrokerError(response.error_code, f"open transactions of {target}")
        return Results(dict.fromkeys(nodes, response.transaction_states))

    return ask
