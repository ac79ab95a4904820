"""Apply the result of a request to each of its batches: done, sent again, sent in parts, or failed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from asyncgroup.cluster import ClusterClient
from asyncgroup.config import ProducerConfig
from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode, ProtocolError, RequestTimedOut
from asyncgroup.lifecycle import add_note, copy_error
from asyncgroup.model import TopicPartition
from asyncgroup.net.backoff import RetryBackoff
from asyncgroup.producer.batches.accumulator import RecordAccumulator
from asyncgroup.producer.batches.batch import ErrorFactory, ProducerBatch
from asyncgroup.producer.sending.deliveries import DeliveryTracker
from asyncgroup.producer.sending.errors import batch_error, describe_rejection, named_error, record_errors
from asyncgroup.producer.sending.requests import PartitionProduceResponse, ProduceAction, produce_action
from asyncgroup.producer.transactions.requests import CONCURRENT_PAUSE
from asyncgroup.producer.transactions.state import TransactionManager

__all__ = ["BatchResults"]

_log = logging.getLogger("asyncgroup.producer")

NO_LIMIT: Final = float("inf")

BEFORE_APPEND: Final = frozenset(
    {ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.UNKNOWN_TOPIC_ID}
)
"""Retriable codes that a broker sends only before it appends a batch; others may also come from a leader that waits for its
followers, such as NOT_LEADER_OR_FOLLOWER after an election (`DelayedProduce`, which looks for partitions by name)."""


class BatchResults:
    """Moves batches along after their requests. State changes only: nothing here waits.

    `deliveries` gets every batch that is done, after its futures were resolved, and one that is sent in parts.
    `on_stale_metadata()` is called if the leader may have moved; `is_unsent(batch)` returns whether the request with a batch in flight still waits for its connection.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        config: ProducerConfig,
        accumulator: RecordAccumulator,
        deliveries: DeliveryTracker,
        on_stale_metadata: Callable[[], None],
        is_unsent: Callable[[ProducerBatch], bool],
        transaction: TransactionManager | None,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._accumulator = accumulator
        self._deliveries = deliveries
        self._on_stale_metadata = on_stale_metadata
        self._is_unsent = is_unsent
        self._transaction = transaction
        self._backoffs: dict[TopicPartition, RetryBackoff] = {}  # of partitions whose last attempt failed
        self.on_retry: Callable[[TopicPartition, Exception], object] | None = None
        """Called with the error of an attempt that is repeated."""

    def __repr__(self) -> str:
        return f"<BatchResults: {len(self._backoffs)} partitions after a failure>"

    def on_response(
        self, node: int, batch: ProducerBatch, partition_response: PartitionProduceResponse | None
    ) -> None:
        """The response of a node to the request with a batch in flight; None if it has no entry for the partition."""
        if partition_response is None:
            error = ProtocolError(f"the Produce response of node {node} has no entry for {batch.tp}")
            self.retry(batch, error)
            return
        action = produce_action(partition_response.error_code)
        if action is ProduceAction.DONE:
            self.complete(batch, None, partition_response)
        elif self._accumulator.is_orphan(batch):
            self.complete(batch, _recreated_error(batch))
        elif self._transaction is not None and self._transaction.is_fencing(partition_response.error_code):
            self._accumulator.drop(batch)
            self._transaction.fenced.set()
        elif action in (ProduceAction.FAIL, ProduceAction.SPLIT):
            self._on_rejected(batch, action, partition_response)
        else:
            self._on_retriable(node, batch, action, partition_response)

    def _on_rejected(
        self, batch: ProducerBatch, action: ProduceAction, response: PartitionProduceResponse
    ) -> None:
        """Another attempt with the same records would get the same response."""
        code, detail, what = response.error_code, describe_rejection(response), _records(batch)
        if action is ProduceAction.SPLIT:
            # one that may be in the log is not split: the broker would not recognize the parts
            if batch.count > 1 and not (batch.done or batch.may_be_written):
                self._split(batch)
                return
            detail = detail or f"{batch.size} bytes; the limit is max.message.bytes of the topic"
        # a broker that fails unexpectedly may do so after it has appended the batch (`ReplicaManager.appendToLocalLog`)
        batch.may_be_written |= code == ErrorCode.UNKNOWN_SERVER_ERROR
        self.complete(batch, lambda: batch_error(code, batch.count, what, detail), response)

    def _on_retriable(
        self, node: int, batch: ProducerBatch, action: ProduceAction, response: PartitionProduceResponse
    ) -> None:
        """Another attempt may succeed."""
        code = response.error_code
        error = BrokerError(code, _records(batch), describe_rejection(response))
        if action is ProduceAction.RESTART and self._transaction is not None:
            # an earlier batch in flight failed: the broker accepts this one after it. Without one, the records are lost
            if self._accumulator.is_first(batch):
                self.complete(batch, lambda: copy_error(error))
            else:
                self.retry(batch, error, at_once=True, may_be_written=False)
            return
        if action is ProduceAction.RESTART and self._config.effective_enable_idempotence:
            self.retry(batch, error, is_out_of_order=True, may_be_written=False)
            return
        at_once, longest = False, NO_LIMIT
        if code == ErrorCode.CONCURRENT_TRANSACTIONS:
            longest = CONCURRENT_PAUSE * 2.0 ** min(batch.attempts - 1, 30)
        if action is ProduceAction.REFRESH:
            self._cluster.doubt_leader(batch.tp, node)
            # no backoff if the response named the new leader (KIP-951)
            at_once = self._cluster.view.leader(batch.tp) not in (node, -1)
            self._on_stale_metadata()
        may_be_written = code not in BEFORE_APPEND
        self.retry(batch, error, at_once=at_once, longest=longest, may_be_written=may_be_written)

    def retry(
        self,
        batch: ProducerBatch,
        error: Exception,
        *,
        at_once: bool = False,
        is_out_of_order: bool = False,
        longest: float = NO_LIMIT,
        may_be_written: bool = True,
    ) -> None:
        """Send a batch again after a pause of at most `longest` seconds; `may_be_written`: by the attempt that failed."""
        batch.may_be_written |= may_be_written
        if self._accumulator.is_orphan(batch):
            self.complete(batch, _recreated_error(batch))
            return
        batch.last_error = error
        now = asyncio.get_running_loop().time()
        if batch.tp not in self._backoffs:
            self._backoffs[batch.tp] = self._cluster.backoff()
        # a first sequence number under a new epoch is never out of order: a broker that says so is asked less often
        at_once = at_once or (is_out_of_order and batch.sequence > 0)
        pause = 0.0 if at_once else min(self._backoffs[batch.tp].next(), longest)
        _log.debug("%s: attempt %d failed: %s", batch.tp, batch.attempts, error)
        if self.on_retry is not None:
            self.on_retry(batch.tp, error)
        self._accumulator.retry(batch, now + pause, is_out_of_order=is_out_of_order)

    def _split(self, batch: ProducerBatch) -> None:
        _log.info(
            "%s: a batch of %d bytes is too large for the broker; it is sent in parts", batch.tp, batch.size
        )
        self._deliveries.on_batch_split(batch, self._accumulator.split(batch))

    def complete(
        self,
        batch: ProducerBatch,
        make_error: ErrorFactory | None,
        partition_response: PartitionProduceResponse | None = None,
    ) -> None:
        """A batch that was in flight is done: with an error, or with its partition's response; both if that rejects it."""
        self._backoffs.pop(batch.tp, None)
        if make_error is not None:
            self._accumulator.drop(batch)
            self.fail(batch, make_error, partition_response)
            return
        self._accumulator.succeed(batch)
        if partition_response is not None and self._accumulator.deallocate(batch):
            batch.complete(partition_response.base_offset, partition_response.log_append_time_ms)
            self._deliveries.on_batch_done(batch, None)

    def fail_recreated(self, batch: ProducerBatch) -> None:
        """Fail a batch whose topic was deleted and created again."""
        self.fail(batch, _recreated_error(batch))

    def fail(
        self,
        batch: ProducerBatch,
        make_error: ErrorFactory,
        rejection: PartitionProduceResponse | None = None,
    ) -> None:
        """Fail a batch, unless it is done; one that is in flight still gets its result. `rejection` may name bad records."""
        if not self._accumulator.deallocate(batch):
            return
        may_be_written = batch.may_be_written or (batch.in_flight and not self._is_unsent(batch))
        error = make_error()
        if isinstance(error, AsyncGroupError):
            error.may_be_written = may_be_written
        found = rejection and record_errors(batch.tp, batch.count, rejection, may_be_written=may_be_written)
        others = found.others if found else error
        by_index = found.by_index if found else {}
        if batch.may_be_written:
            for each in {error, others, *by_index.values()}:
                add_note(each, "the result of an attempt is unknown: the records may be in the log")
        batch.fail(
            partial(named_error, others, batch.tp),
            {index: partial(named_error, bad, batch.tp) for index, bad in by_index.items()},
        )
        self._deliveries.on_batch_done(batch, error)
        if self._transaction is not None:
            self._transaction.on_record_failed(error)

    def fail_all(self, error: Exception) -> None:
        """Fail every batch, in flight or waiting."""
        self._accumulator.close_open()
        for batch in list(self._accumulator.incomplete):
            self.fail(batch, lambda: copy_error(error))
        self._accumulator.remove_done()

    def expire(self, batch: ProducerBatch, id_error: Exception | None) -> None:
        """Fail a batch whose delivery timeout has passed; `id_error` is why there is no producer id, if there is none."""
        reason: object = batch.last_error or "no response from its leader yet"
        if batch.last_error is None and self._cluster.view.leader(batch.tp) < 0:
            reason = "its leader is unknown"
        elif batch.last_error is None and id_error is not None:
            reason = f"no producer id: {id_error}"
        text = (
            f"{_records(batch)}: not acknowledged within delivery_timeout="
            f"{self._config.delivery_timeout:g} s, {batch.attempts} attempts: {reason}"
        )

        def make_error() -> RequestTimedOut:
            error = RequestTimedOut(text)
            error.__cause__ = batch.last_error
            return error

        self.fail(batch, make_error)


def _records(batch: ProducerBatch) -> str:
    return f"{batch.count} record{'s' if batch.count != 1 else ''} for {batch.tp}"


def _recreated_error(batch: ProducerBatch) -> ErrorFactory:
    text = "the topic was deleted and created again before they were acknowledged"
    return lambda: BrokerError(ErrorCode.UNKNOWN_TOPIC_ID, _records(batch), text)
