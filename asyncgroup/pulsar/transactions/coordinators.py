"""PulsarCoordinators: the transaction coordinators of a cluster (Java's `TransactionCoordinatorClientImpl`)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, Final, Protocol

from asyncgroup.errors import ClosedError, ProtocolError
from asyncgroup.lifecycle import SingleFlight
from asyncgroup.pulsar.core import ClientCore
from asyncgroup.pulsar.errors import PulsarServerError
from asyncgroup.pulsar.transactions.coordinator import PulsarCoordinator, SentRequests
from asyncgroup.pulsar.transactions.errors import TransactionsNotEnabled
from asyncgroup.pulsar.transactions.txn_id import TxnId
from asyncgroup.pulsar.wire.commands import (
    Command,
    CommandAddPartitionToTxn,
    CommandAddSubscriptionToTxn,
    CommandEndTxn,
    CommandNewTxn,
    CommandNewTxnResponse,
    SubscriptionOfTxn,
)
from asyncgroup.pulsar.wire.enums import TxnAction
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar.wire.topic_name import TopicName

__all__ = ["ASSIGNMENT_TOPIC", "AbortsAtClose", "PulsarCoordinators"]

ASSIGNMENT_TOPIC: Final = TopicName.parse("persistent://pulsar/system/transaction_coordinator_assign")
"""Its partitions are the coordinators (Java's `SystemTopicNames.TRANSACTION_COORDINATOR_ASSIGN`)."""

_LONGEST: Final = 1 << 53
"""Milliseconds: the broker adds the time of day in 64 bits."""


class AbortsAtClose(Protocol):
    """A transaction that is open, or what may come late of one that has ended."""

    async def close(self) -> None:
        """Abort it, or wait no more for what may come."""


class PulsarCoordinators:
    """The coordinators as one client knows them; they are looked up with its first transaction."""

    def __init__(self, core: ClientCore) -> None:
        self.core = core
        self.open: set[AbortsAtClose] = set()
        """The transactions that have not ended, or of which something may come late."""
        self.is_closed = False
        """Whether its client closes."""
        self._coordinators: list[PulsarCoordinator] = []  # by their numbers
        self._next = 0
        self._lookup = SingleFlight("the lookup of the transaction coordinators", self._find)

    def __repr__(self) -> str:
        return f"<PulsarCoordinators {self._coordinators}>"

    async def aclose(self) -> None:
        """Abort the open transactions, and connect no more. Safe to call twice."""
        self.is_closed = True
        await asyncio.gather(*(transaction.close() for transaction in list(self.open)))
        await self._lookup.aclose()
        await asyncio.gather(*(each.aclose() for each in self._coordinators))

    async def _find(self) -> None:
        if self._coordinators:
            return
        try:
            count = await self.core.lookup.partitions_of(ASSIGNMENT_TOPIC, create=False)
        except PulsarServerError as error:
            if error.code == ServerError.TOPIC_NOT_FOUND:
                raise TransactionsNotEnabled(str(error)) from error
            raise
        topics = [ASSIGNMENT_TOPIC.of_partition(number) for number in range(count)] or [ASSIGNMENT_TOPIC]
        self._coordinators = [
            PulsarCoordinator(self.core, number, topic) for number, topic in enumerate(topics)
        ]
        self._next = self.core.rng.randrange(len(topics))

    def _choose(self) -> PulsarCoordinator:
        """Return the next one in turn; one that is looked for already, and is not found, only if all are."""
        coordinators = self._coordinators
        first = self._next
        self._next = (first + 1) % len(coordinators)
        in_turn = [*coordinators[first:], *coordinators[:first]]
        return next((each for each in in_turn if not each.is_failing), in_turn[0])

    # --- requests ---------------------------------------------------------------------------------------------------------

    async def begin(self, timeout: float) -> TxnId:
        """Return the id of a new transaction, which its coordinator aborts after `timeout` seconds.

        Raises TransactionsNotEnabled, PulsarServerError, TransportError, ProtocolError, ClosedError.
        """
        if self.is_closed:
            raise ClosedError("the client is closed")
        if not self._coordinators:
            await self._lookup()
        coordinator = self._choose()
        milliseconds = min(math.ceil(timeout * 1000), _LONGEST)
        try:
            answer: CommandNewTxnResponse = await coordinator.request(
                "NEW_TXN",
                lambda number: CommandNewTxn(
                    request_id=number, txn_ttl_seconds=milliseconds, tc_id=coordinator.number
                ),
            )
        except PulsarServerError as error:
            if error.code == ServerError.NOT_ALLOWED_ERROR:
                raise TransactionsNotEnabled(error.text) from error
            raise
        found = TxnId(answer.txnid_most_bits or 0, answer.txnid_least_bits or 0)
        if found.most_bits != coordinator.number:  # its requests would go to another coordinator, or to none
            raise ProtocolError(f"{coordinator.name}: NEW_TXN was answered with transaction {found}")
        return found

    async def add_partition(self, txn: TxnId, topic: str) -> None:
        """Add a topic without partitions, or a partition, before its first message. Raises as `begin`."""
        await self._request(
            txn,
            f"ADD_PARTITION_TO_TXN {txn} {topic}",
            lambda number: CommandAddPartitionToTxn(
                request_id=number,
                txnid_least_bits=txn.least_bits,
                txnid_most_bits=txn.most_bits,
                partitions=[topic],
            ),
        )

    async def add_subscription(self, txn: TxnId, topic: str, subscription: str) -> None:
        """Add a subscription to such a topic, before its first acknowledgement. Raises as `begin`."""
        await self._request(
            txn,
            f"ADD_SUBSCRIPTION_TO_TXN {txn} {topic} {subscription}",
            lambda number: CommandAddSubscriptionToTxn(
                request_id=number,
                txnid_least_bits=txn.least_bits,
                txnid_most_bits=txn.most_bits,
                subscription=[SubscriptionOfTxn(topic=topic, subscription=subscription)],
            ),
        )

    async def end(
        self, txn: TxnId, *, commit: bool, timeout: float | None = None, sent: SentRequests | None = None
    ) -> None:
        """Commit or abort a transaction; `sent` counts the attempts. Raises as `begin`."""
        action = TxnAction.COMMIT if commit else TxnAction.ABORT
        await self._request(
            txn,
            f"END_TXN {txn} {action.name}",
            lambda number: CommandEndTxn(
                request_id=number,
                txnid_least_bits=txn.least_bits,
                txnid_most_bits=txn.most_bits,
                txn_action=action,
            ),
            timeout=timeout,
            sent=sent,
        )

    async def _request(
        self,
        txn: TxnId,
        about: str,
        make: Callable[[int], Command],
        *,
        timeout: float | None = None,
        sent: SentRequests | None = None,
    ) -> Any:
        return await self._coordinators[txn.most_bits].request(about, make, timeout=timeout, sent=sent)
