"""Describe transactions at their coordinators, and list them at all nodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.connection_pool import CONTROL
from asyncgroup.cluster.coordinators import TRANSACTION
from asyncgroup.cluster.requests.fan_out import request_each
from asyncgroup.cluster.requests.results import Results
from asyncgroup.cluster.requests.routes import ByCoordinator, ByNode, Target
from asyncgroup.errors import BrokerError, ErrorCode
from asyncgroup.net.backoff import RetryLoop
from asyncgroup.wire import messages as m

__all__ = ["ONGOING", "DescribedTransaction", "describe_transactions", "list_transactions"]

ONGOING: Final = "Ongoing"
"""The state of an open transaction (`TransactionState` in Kafka)."""

PATTERN_VERSION: Final = 2
"""The first ListTransactions version with a pattern for transactional ids (KIP-1152)."""


class DescribedTransaction(NamedTuple):
    """What the coordinator knows of a transactional id; empty and -1 if it does not exist."""

    state: str
    """As `TransactionState` in Kafka."""
    producer_id: int
    producer_epoch: int


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

    async def ask(target: Target, asked: list[str]) -> Results[str, DescribedTransaction]:
        request = m.DescribeTransactionsRequest(asked)
        response = await target.request(m.DescribeTransactionsRequest, lambda _: request, lane=lane)
        results: Results[str, DescribedTransaction] = Results()
        for found in response.transaction_states:
            name = found.transactional_id
            if found.error_code not in (ErrorCode.NONE, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND):
                results.errors[name] = BrokerError(found.error_code, f"transactional id {name!r}")
            else:
                results.values[name] = DescribedTransaction(
                    found.transaction_state, found.producer_id, found.producer_epoch
                )
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

    async def ask(target: Target, nodes: list[int]) -> Results[int, list[str]]:
        def build(version: int) -> m.ListTransactionsRequest:
            return m.ListTransactionsRequest(
                state_filters=wanted, transactional_id_pattern=pattern if version >= PATTERN_VERSION else None
            )

        response = await target.request(m.ListTransactionsRequest, build)
        if response.error_code:
            raise BrokerError(response.error_code, f"open transactions of {target}")
        return Results(
            {node: [each.transactional_id for each in response.transaction_states] for node in nodes}
        )

    nodes = list(cluster.view.brokers)
    return await request_each(nodes, ByNode(cluster), ask, api="ListTransactions", retry=retry, is_cut=is_cut)
