"""`admin.transactions`: lists and describes transactions and producers, finds hanging transactions and aborts them (KIP-664)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from asyncgroup.admin.arguments import INT16_MAX, INT32_MAX, check_number, check_text, several
from asyncgroup.admin.denied import needs
from asyncgroup.admin.hanging import find_hanging, partitions_to_search
from asyncgroup.admin.results import AdminResults
from asyncgroup.admin.transaction_requests import (
    abort,
    describe_producers,
    describe_transactions,
    once_each,
)
from asyncgroup.admin.transaction_values import (
    HangingTransactionsFound,
    ProducerDescription,
    TransactionDescription,
    TransactionsListed,
    checked_transaction_states,
)
from asyncgroup.checks import (
    check_duration_or_zero,
    check_offset,
    check_partition,
    check_partitions,
    check_topic,
)
from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.requests.budget import RequestBudget
from asyncgroup.cluster.requests.producers import AbortMarker
from asyncgroup.cluster.requests.transactions import list_all_transactions
from asyncgroup.errors import ConfigError
from asyncgroup.topic_partition import Partitions, TopicPartition

__all__ = ["AdminTransactions"]

MAX_TRANSACTION_TIMEOUT: Final = 900.0
"""Seconds: the default of the brokers' `transaction.max.timeout.ms`, and of Kafka's `find-hanging`."""


_MAX_SECONDS: Final = (1 << 63) // 1000 - 1
"""The longest duration that ListTransactions can ask for, which has milliseconds in 64 bits."""


class AdminTransactions:
    """Transactions of producers, and those that hang: `admin.transactions`.

        for each in (await admin.transactions.find_hanging(topics=["orders"])).raise_first():
            await admin.transactions.abort_at(each.partition, each.start_offset)

    As Kafka's `kafka-transactions.sh`; needs Kafka 3.0 (KIP-664).
    """

    def __init__(self, client: ClusterClient, budget: Callable[[], RequestBudget]) -> None:
        self._client = client
        self._budget = budget

    def __repr__(self) -> str:
        return f"<AdminTransactions of {self._client!r}>"

    async def list(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: int | Iterable[int] = (),
        longer_than: float | None = None,
        pattern: str | None = None,
    ) -> TransactionsListed:
        """Return the transactional ids of all nodes that answer, and the errors of the others.

        Only those in one of these `states`, by Kafka's names; of one of these producers; whose transaction began more than
        `longer_than` seconds ago (Kafka 3.8); whose whole id matches `pattern`, a regular expression of RE2 (Kafka 4.1). A node
        that lacks a filter has UnsupportedVersionError. Each id is listed once: of two nodes, while its coordinator moves, the
        one where its transaction is open counts. Raises ConfigError for wrong values, NoBrokersError.
        """
        if longer_than is not None:
            check_duration_or_zero("longer_than", longer_than)
            if longer_than > _MAX_SECONDS:
                raise ConfigError("longer_than", longer_than, f"at most {_MAX_SECONDS} seconds")
        if pattern is not None:
            check_text("pattern", pattern, "a regular expression that is not empty")
        wanted_states = checked_transaction_states(states)
        wanted_producers = [
            check_number("producer_id", each) for each in several("producer_ids", producer_ids)
        ]
        budget = self._budget()
        await budget.limit(self._client.refresh())  # a new node coordinates transactions as well
        found = await list_all_transactions(
            self._client,
            states=wanted_states,
            producer_ids=wanted_producers,
            duration_ms=None if longer_than is None else round(longer_than * 1000),
            pattern=pattern,
            retry=budget.node_retry(),
        )
        return TransactionsListed(once_each(found), dict(found.errors))

    @needs("DESCRIBE on the transactional id")
    async def describe(self, transactional_ids: Iterable[str]) -> AdminResults[str, TransactionDescription]:
        """Return what the coordinator of each transactional id knows; TRANSACTIONAL_ID_NOT_FOUND if it does not exist.

        Raises ConfigError for an id that is not text or is empty, NoBrokersError.
        """
        wanted = [_checked_id(each) for each in several("transactional_ids", transactional_ids)]
        return AdminResults(await describe_transactions(self._client, wanted, self._budget()))

    @needs("READ on the topic")
    async def producers(
        self, partitions: Partitions, *, broker: int | None = None
    ) -> AdminResults[TopicPartition, tuple[ProducerDescription, ...]]:
        """Return the producers that each partition knows, with their open transactions, sorted by producer id.

        The leader is asked, or this `broker`, which needs a replica (else NOT_LEADER_OR_FOLLOWER). Raises ConfigError for an
        invalid partition or node id, NoBrokersError.
        """
        wanted = check_partitions(partitions)
        _check_broker(broker)
        return AdminResults(await describe_producers(self._client, wanted, broker, self._budget()))

    @needs("READ on the topics and DESCRIBE on the transactional ids")
    async def find_hanging(
        self,
        *,
        topics: Iterable[str] = (),
        partitions: Partitions = (),
        broker: int | None = None,
        max_transaction_timeout: float = MAX_TRANSACTION_TIMEOUT,
    ) -> HangingTransactionsFound:
        """Return the open transactions that no coordinator will end, and the errors of partitions that could not be searched.

        A transaction hangs if its last record in a partition is older than `max_transaction_timeout` seconds, and no coordinator
        knows the producer id, or the one that knows it will not write a marker to the partition. The partitions given and those of
        the topics are searched; without both, those of all topics, Kafka's own included. With `broker` only those with a replica
        there, and that replica is asked.

        Raises ConfigError for wrong values, BrokerError for a topic that does not exist, NoBrokersError, and the error of a
        coordinator that does not answer if there is a candidate, whose transaction could be alive there.
        """
        check_duration_or_zero("max_transaction_timeout", max_transaction_timeout)
        _check_broker(broker)
        places = check_partitions(partitions)
        names = [check_topic(each) for each in several("topics", topics)]
        budget = self._budget()
        wanted = await budget.limit(partitions_to_search(self._client, places, names, broker))
        return await find_hanging(self._client, wanted, broker, max_transaction_timeout, budget)

    @needs("READ on the topic and ALTER on the cluster")
    async def abort_at(self, partition: TopicPartition, start_offset: int) -> None:
        """Abort the open transaction that begins at this offset of the partition, there only, as Kafka's `abort --start-offset`.

        For hanging transactions: a coordinator that still has the transaction does not know of it. Raises ConfigError if no
        transaction is open from that offset, and as `abort`.
        """
        tp, offset = check_partition(partition), check_offset(start_offset)
        budget = self._budget()
        known = (await describe_producers(self._client, [tp], None, budget)).require()[tp]
        opened = {each.current_transaction_start_offset: each for each in known}
        if offset not in opened:
            offsets = sorted(each for each in opened if each is not None)
            open_now = f"open from {', '.join(map(str, offsets))}" if offsets else "none is open"
            raise ConfigError(
                "start_offset", offset, f"the first offset of an open transaction of {tp}; {open_now}"
            )
        producer = opened[offset]
        epoch = producer.coordinator_epoch or 0
        marker = AbortMarker(producer.producer_id, producer.producer_epoch, epoch)
        await abort(self._client, tp, marker, budget)

    @needs("ALTER on the cluster and DESCRIBE on the topic")
    async def abort(
        self,
        partition: TopicPartition,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int | None = None,
    ) -> None:
        """Abort the open transaction of a producer in this partition only (`AbortTransactionHandler` in Kafka).

        `coordinator_epoch` is that of `producers`; None, of a producer without a marker, is sent as 0, as Kafka's tool does. Raises
        ConfigError for wrong values, INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED if the partition knows a
        later epoch, CLUSTER_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION, NoBrokersError.
        """
        tp = check_partition(partition)
        marker = AbortMarker(
            check_number("producer_id", producer_id),
            check_number("producer_epoch", producer_epoch, INT16_MAX),
            # 0 is never later than the epoch of the coordinator that is to write the first marker
            0
            if coordinator_epoch is None
            else check_number("coordinator_epoch", coordinator_epoch, INT32_MAX),
        )
        await abort(self._client, tp, marker, self._budget())


def _checked_id(transactional_id: object) -> str:
    return check_text("transactional_id", transactional_id, "a string that is not empty")


def _check_broker(broker: int | None) -> None:
    if broker is not None:
        check_number("broker", broker, INT32_MAX)
