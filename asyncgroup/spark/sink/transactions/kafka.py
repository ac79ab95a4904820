"""`KafkaTransactions`: the requests of the transactional sink, with retries."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from asyncgroup.cluster import Cluster
from asyncgroup.cluster.requests.repeat import retry_errors
from asyncgroup.cluster.requests.time_limit import within
from asyncgroup.cluster.requests.transactions import ONGOING, describe_transactions, list_transactions
from asyncgroup.config import ProducerConfig
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    CommitFailedError,
    ConfigError,
    ErrorCode,
    ProducerFencedError,
    RequestTimedOut,
    TransactionAbortedError,
    TransactionOutcomeUnknown,
    UnsupportedVersionError,
)
from asyncgroup.model import CommittedOffset, GroupOffsets, TopicPartition
from asyncgroup.net.backoff import RetryLoop
from asyncgroup.offsets import GROUP_LANE, Committer
from asyncgroup.offsets.fetch_offsets import fetch_offsets
from asyncgroup.producer import OpenTransaction, Producer, end_transaction
from asyncgroup.producer.open_transaction import END_TIMEOUT
from asyncgroup.spark.api_timeout import API_TIMEOUT
from asyncgroup.spark.sink.transactions.errors import TransactionalSinkError
from asyncgroup.spark.sink.transactions.records import (
    BatchRecord,
    QueryBatch,
    SlotTransaction,
    decode_batch,
    encode_batch,
    encode_record,
    newest_record,
)

__all__ = ["KafkaTransactions", "slot_offsets"]

T = TypeVar("T")

NOT_OPEN_CODES: Final = (
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.UNKNOWN_PRODUCER_ID,
)
"""Errors of EndTxn that mean, besides fencing, that the transaction is not open any more."""

_TOO_LARGE: Final = ErrorCode.OFFSET_METADATA_TOO_LARGE


def slot_offsets(prefix: str, slot: int, batch: QueryBatch, topic: str) -> GroupOffsets:
    """Return what a slot's transaction commits for its group besides the records; `topic` is one that it writes to."""
    committed = CommittedOffset(batch.batch_id + 1, encode_batch(batch))
    return GroupOffsets(_slot_name(prefix, slot), {TopicPartition(topic, 0): committed})


class KafkaTransactions:
    """The transactions of one prefix (`steps.SinkTransactions`), by the requests of an open cluster.

    `timeout` is the limit of each request with its retries, in seconds; by default that of Java, and of `end_transaction`.
    """

    def __init__(
        self, cluster: Cluster, config: ProducerConfig, prefix: str, timeout: float | None = None
    ) -> None:
        self.prefix = prefix
        self._cluster = cluster
        self._client = cluster._inner
        self._config = config
        self._timeout = API_TIMEOUT if timeout is None else timeout
        self._end_timeout = END_TIMEOUT if timeout is None else timeout
        self._open_timeout = timeout  # without one a producer has its own limit

    def __repr__(self) -> str:
        return f"<KafkaTransactions {self.prefix!r}>"

    # --- what is stored -------------------------------------------------------------------------------------------

    async def read_record(self) -> BatchRecord | None:
        """Return the last record that a driver has stored."""
        found = await self._commits(self._driver_group)
        return newest_record({tp.topic: (each.offset, each.metadata) for tp, each in found.items()})

    async def store_record(self, record: BatchRecord) -> None:
        """Store a record. Raises TransactionalSinkError if it is too large, CommitFailedError."""
        committer = Committer(self._client, self._driver_group, retry_max=0)
        # the number is the offset, which has to be beyond the mark
        marks = committer.manage(TopicPartition(record.topic, 0), record.number - 1)
        try:
            marks.mark_offset(record.number, encode_record(record))
            await within(self._deadline(self._timeout), committer.commit_last(self._timeout))
        except ConfigError as error:  # longer than a field of the request can be
            raise _too_many_slots(record) from error
        except CommitFailedError as error:
            codes = [each.code for each in error.errors.values() if isinstance(each, BrokerError)]
            if _TOO_LARGE in codes:
                raise _too_many_slots(record) from error
            raise
        finally:
            await committer.aclose()

    async def has_committed(self, slot: int, batch: QueryBatch) -> bool:
        """Return whether the slot has committed the batch; wait for the end of a transaction that may change it."""
        found = await self._commits(_slot_name(self.prefix, slot), require_stable=True)
        # there may be older batches beside it, committed for other topics
        return any(decode_batch(each.metadata) == batch for each in found.values())

    @property
    def _driver_group(self) -> str:
        return f"{self.prefix}-driver"

    async def _commits(
        self, group_id: str, *, require_stable: bool = False
    ) -> dict[TopicPartition, CommittedOffset]:
        async def attempt() -> dict[TopicPartition, CommittedOffset]:
            return await fetch_offsets(
                self._client, group_id, None, lane=GROUP_LANE, require_stable=require_stable
            )

        return await retry_errors(attempt, self._retry(), is_cut=True)

    # --- transactions -----------------------------------------------------------------------------------------------

    async def end(self, transaction: SlotTransaction, *, commit: bool) -> bool:
        """Commit or abort a transaction; return False if it is no longer open and may not have ended in this way."""
        name = _slot_name(self.prefix, transaction.slot)
        opened = OpenTransaction(name, *transaction[1:])
        try:
            ending = end_transaction(self._cluster, opened, commit=commit, timeout=self._end_timeout)
            await within(self._deadline(self._end_timeout), ending)
        except RequestTimedOut as error:
            raise TransactionOutcomeUnknown(name, str(error), commit=commit) from error
        except (TransactionAbortedError, ProducerFencedError):
            return False
        except BrokerError as error:
            if error.code in NOT_OPEN_CODES:
                return False
            raise
        return True

    async def slots_not_open(self, transactions: Sequence[SlotTransaction]) -> list[int]:
        """Return the slots whose transaction is not open any more; none with brokers before 3.0, which lack DescribeTransactions."""
        names = {_slot_name(self.prefix, each.slot): each for each in transactions}
        try:
            found = await describe_transactions(
                self._client, names, retry=self._retry(), is_cut=True, fails_fast=True
            )
            states = found.require()
        except UnsupportedVersionError:
            return []
        return [
            each.slot
            for name, each in names.items()
            # another epoch is of a later producer, which has ended this transaction
            if states[name] != (ONGOING, each.producer_id, each.producer_epoch)
        ]

    async def open_slots(self) -> Collection[int]:
        """Return the slots with an open transaction, if all brokers support ListTransactions (KIP-664)."""
        found = await list_transactions(
            self._client,
            states=[ONGOING],
            pattern=re.escape(self.prefix) + r"-[0-9]+",
            retry=self._client.retry(timeout=self._timeout, retries=0),
            is_cut=True,
        )
        try:
            listed = found.require().values()
        except UnsupportedVersionError:
            return []
        slots = re.compile(re.escape(self.prefix) + r"-(0|[1-9]\d*)")
        matches = (slots.fullmatch(name) for names in listed for name in names)
        return {int(match[1]) for match in matches if match is not None}

    async def abort_slot(self, slot: int) -> None:
        """Abort the slot's open transaction, and fence the producer that has opened it."""
        async with contextlib.AsyncExitStack() as stack:
            await self.enter(stack, self.producer(slot))

    async def enter(self, stack: contextlib.AsyncExitStack, producer: Producer) -> Producer:
        """Enter a producer of `producer`. Raises RequestTimedOut besides what it raises."""
        opening = stack.enter_async_context(producer)
        if self._open_timeout is None:
            return await opening
        return await within(self._deadline(self._open_timeout), opening)

    def producer(self, slot: int, hooks: Sequence[object] = ()) -> Producer:
        """Return a producer with the slot's transactional id; entering it fences the one before."""
        config = replace(self._config, transactional_id=_slot_name(self.prefix, slot))
        return Producer(self._cluster, config, hooks=hooks)

    @staticmethod
    def _deadline(timeout: float) -> float:
        return asyncio.get_running_loop().time() + timeout

    def _retry(self) -> RetryLoop:
        return self._client.retry(timeout=self._timeout, longest=1.0)


def _slot_name(prefix: str, slot: int) -> str:
    """Return the name of a slot's transactional id, and of its group."""
    return f"{prefix}-{slot}"


def _too_many_slots(record: BatchRecord) -> AsyncGroupError:
    return TransactionalSinkError(
        f"batch {record.batch.batch_id} has {len(record.rows)} tasks: the record of their transactions exceeds "
        "offset.metadata.max.bytes of the brokers. Use fewer tasks: coalesce(200), or spark.sql.shuffle.partitions. "
        "Nothing of the batch is committed"
    )
