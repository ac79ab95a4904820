"""Sender: several Produce requests in flight to each leader; failed batches go back to their queue.

If a response is lost (the connection closed, the request timed out), the records may or may not be in the log. The batch is
sent again: an idempotent producer's with the same sequence numbers, so that the broker recognizes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Final

from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.backoff import Backoff
from asyncgroup.config import ProducerConfig
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    ClosedError,
    ErrorCode,
    ProtocolError,
    RequestTimedOut,
    UnsupportedVersionError,
)
from asyncgroup.lifecycle import copy_error
from asyncgroup.model import TopicPartition
from asyncgroup.producer.accumulator import RecordAccumulator
from asyncgroup.producer.batch import ErrorFactory, ProducerBatch
from asyncgroup.producer.produce_transaction import ProduceTransaction
from asyncgroup.producer.producer_ids import is_transient, request_producer_id
from asyncgroup.producer.requests import (
    EncodedBatch,
    PartitionProduceResponse,
    ProduceAction,
    build_produce_request,
    max_version,
    node_endpoints,
    produce_action,
    responses_by_partition,
    topic_ids,
)
from asyncgroup.wire import messages as m

__all__ = ["PRODUCE_LANE", "Sender"]

_log = logging.getLogger("asyncgroup.producer")

PRODUCE_LANE: Final = "produce"
"""The purpose of the connections that carry Produce requests."""

ADDS_PARTITIONS: Final = 12
"""The first Produce version that adds partitions to the transaction (KIP-890)."""

CONCURRENT_PAUSE: Final = 0.02
"""Seconds of the first pause after CONCURRENT_TRANSACTIONS: the markers of the last transaction are about to be written."""

NO_LIMIT: Final = float("inf")

OnBatchDone = Callable[[ProducerBatch, Exception | None], None]
OnBatchSplit = Callable[[ProducerBatch, list[ProducerBatch]], None]


class Sender:
    """Sends the accumulator's batches to their leaders. `spawn` runs coroutine functions in the owner's task group.

    `on_batch_done(batch, error)` is called for every batch that is done, after its futures were resolved, and
    `on_batch_split(batch, parts)` for one that is sent in parts.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        config: ProducerConfig,
        accumulator: RecordAccumulator,
        spawn: Callable[..., None],
        on_batch_done: OnBatchDone,
        on_batch_split: OnBatchSplit,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._accumulator = accumulator
        self._spawn = spawn
        self._on_batch_done = on_batch_done
        self._on_batch_split = on_batch_split
        self.transaction: ProduceTransaction | None = None
        """Set by a transactional producer before `start`."""
        self._acks = -1 if config.acks == "all" else int(config.acks)
        self._requests: Counter[int] = Counter()  # requests in flight by node
        self._idle = asyncio.Event()  # set: no request is in flight
        self._idle.set()
        self._busy_nodes: set[int] = set()  # nodes with as many requests in flight as one connection may have
        self._backoffs: dict[TopicPartition, Backoff] = {}  # of partitions whose last attempt failed
        self._wakeup = asyncio.Event()  # set: plan again
        self._metadata_stale = asyncio.Event()  # set: refresh the metadata
        self._id_wanted = asyncio.Event()  # set: a partition needs a producer id
        self._id_error: Exception | None = None  # why there is none
        self._has_leaderless = False  # by the last plan

    def __repr__(self) -> str:
        return f"<Sender: requests in flight by node {dict(+self._requests)}>"

    def start(self) -> None:
        """Start the sender's tasks."""
        self._spawn(self._run, name="sender")
        self._spawn(self._refresh_leaders, name="leaders")
        if self._config.effective_enable_idempotence and self.transaction is None:
            self._spawn(self._obtain_ids, name="producer ids")

    def wake(self) -> None:
        """Plan again: there may be new batches to send."""
        self._wakeup.set()

    async def wait_idle(self) -> None:
        """Wait until no request is in flight, for at most `request_timeout`: none is sent again for records that failed."""
        await self._idle.wait()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            # cleared before planning, so that no wake-up during the plan is lost
            self._wakeup.clear()
            wake_at = self._step(loop.time())
            timer = loop.call_at(wake_at, self.wake) if wake_at != float("inf") else None
            try:
                await self._wakeup.wait()
            finally:
                if timer is not None:
                    timer.cancel()

    def _step(self, now: float) -> float:
        """Send the batches that are ready, fail the expired ones; return the loop time of the next plan.

        No batch lingers while a caller waits for buffer memory.
        """
        skip_linger = self._accumulator.memory.waiting > 0
        leader = self._cluster.view.leader
        admit = None if self.transaction is None else self.transaction.admit
        while True:
            plan = self._accumulator.plan(now, leader, self._busy_nodes, skip_linger=skip_linger, admit=admit)
            for batch in plan.expired:
                self._fail(batch, self._expiry_error(batch))
            if not plan.requests:
                break
            for node, batches in plan.requests.items():
                self._count_request(node, 1)
                self._spawn(self._send, node, batches, name=f"produce to node {node}")
        self._has_leaderless = bool(plan.unknown_leader_topics)
        if plan.unknown_leader_topics:
            self._metadata_stale.set()
        if plan.needs_id:
            self._id_wanted.set()
        return plan.wake_at

    def _count_request(self, node: int, change: int) -> None:
        self._requests[node] += change
        if self._requests[node] >= self._config.max_in_flight_requests:
            self._busy_nodes.add(node)
        else:
            self._busy_nodes.discard(node)
        if change > 0:
            self._idle.clear()
        elif not any(self._requests.values()):
            self._idle.set()

    async def _obtain_ids(self) -> None:
        """Obtain a producer id whenever a partition needs one."""
        retry = self._cluster.retry()
        while True:
            await self._id_wanted.wait()
            try:
                self._accumulator.set_producer_id(await request_producer_id(self._cluster.network))
            except AsyncGroupError as error:
                self._id_error = error
                if not is_transient(error):
                    self._fail_without_id(error)
                _log.info("no producer id: %s", error)
                self._id_wanted.clear()
                await retry.wait()
            else:
                self._id_error = None
                self._id_wanted.clear()
                retry.reset()
            self.wake()

    def _fail_without_id(self, error: Exception) -> None:
        """Fail the batches that need a producer id, as the broker refuses one."""
        for batch in self._accumulator.take_without_id():
            self._fail(batch, lambda: copy_error(error))

    async def _refresh_leaders(self) -> None:
        """Refresh the metadata when a leader is unknown or wrong, with a backoff between refreshes."""
        retry = self._cluster.retry()
        while True:
            await self._metadata_stale.wait()
            self._metadata_stale.clear()
            try:
                await self._cluster.refresh()
            except ClosedError as error:
                self.fail_all(error)
            except AsyncGroupError as error:
                _log.info("metadata refresh failed: %s", error)
            self.wake()
            await retry.wait()
            if not self._has_leaderless:
                retry.reset()

    # --- one request --------------------------------------------------------------------------------------------

    async def _send(self, node: int, batches: list[ProducerBatch]) -> None:
        try:
            encoded_batches = [encoded for batch in batches if (encoded := self._encode(batch)) is not None]
            if encoded_batches:
                await self._send_request(node, encoded_batches)
        finally:
            self._count_request(node, -1)
            self.wake()

    def _encode(self, batch: ProducerBatch) -> EncodedBatch | None:
        try:
            return EncodedBatch(batch, batch.encoded())
        except AsyncGroupError as problem:
            error = problem
            self._complete(batch, lambda: copy_error(error))
            return None

    async def _send_request(self, node: int, encoded_batches: list[EncodedBatch]) -> None:
        try:
            responses = await self._request(node, encoded_batches)
        except (UnsupportedVersionError, ClosedError) as problem:
            final: Exception = problem
            for encoded in encoded_batches:
                self._complete(encoded.batch, lambda: copy_error(final))
        except AsyncGroupError as problem:
            self._metadata_stale.set()
            for encoded in encoded_batches:
                self._retry(encoded.batch, problem)  # it may be in the log
        except Exception as problem:  # noqa: BLE001  a bug must not leave the records waiting
            _log.exception("a Produce request to node %s failed unexpectedly", node)
            final = problem
            for encoded in encoded_batches:
                self._complete(encoded.batch, lambda: copy_error(final))
        else:
            for encoded in encoded_batches:
                self._handle_response(node, encoded.batch, responses.get(encoded.batch.tp))

    async def _request(
        self, node: int, encoded_batches: list[EncodedBatch]
    ) -> dict[TopicPartition, PartitionProduceResponse]:
        ids = topic_ids(encoded_batches, self._cluster.view)
        transaction, highest = self.transaction, max_version(ids)
        name, is_v2 = None, False
        if transaction is not None:
            name, is_v2 = transaction.transactional_id, transaction.is_v2
            highest = highest if is_v2 else ADDS_PARTITIONS - 1

        def build(version: int) -> m.ProduceRequest:
            if is_v2 and version < ADDS_PARTITIONS:
                raise UnsupportedVersionError(
                    f"transaction.version=2 is finalized, but node {node} has Produce up to version {version} only"
                )
            return build_produce_request(encoded_batches, ids, self._acks, self._config.request_timeout, name)

        if self._acks == 0:
            await self._cluster.network.send_oneway(
                node, m.ProduceRequest, build, lane=PRODUCE_LANE, highest=highest
            )
            return {
                encoded.batch.tp: m.ProduceResponse.PartitionProduceResponse(
                    encoded.batch.tp.partition, base_offset=-1
                )
                for encoded in encoded_batches
            }
        response = await self._cluster.network.request_versioned(
            node, m.ProduceRequest, build, lane=PRODUCE_LANE, highest=highest
        )
        responses = responses_by_partition(response, ids)
        for tp, partition_response in responses.items():
            leader = partition_response.current_leader
            if leader.leader_id >= 0:
                self._cluster.update_leader(
                    tp, leader.leader_id, leader.leader_epoch, node_endpoints(response)
                )
        return responses

    # --- results of a batch -------------------------------------------------------------------------------------

    def _handle_response(
        self, node: int, batch: ProducerBatch, partition_response: PartitionProduceResponse | None
    ) -> None:
        if partition_response is None:
            self._retry(
                batch, ProtocolError(f"the Produce response of node {node} has no entry for {batch.tp}")
            )
            return
        action = produce_action(partition_response.error_code)
        if action is ProduceAction.DONE:
            self._complete(batch, None, partition_response)
            return
        what, code, detail = (
            f"{batch.count} records for {batch.tp}",
            partition_response.error_code,
            _detail(partition_response),
        )
        if self.transaction is not None and self.transaction.is_fencing(code):
            self._accumulator.drop(batch)
            self.transaction.on_fenced()
        elif action is ProduceAction.SPLIT and batch.count > 1 and not (batch.done or batch.may_be_written):
            self._split(batch)
        elif action in (ProduceAction.FAIL, ProduceAction.SPLIT):
            self._complete(batch, lambda: BrokerError(code, what, detail))
        elif action is ProduceAction.RESTART and self.transaction is not None:
            # an earlier batch in flight failed: the broker accepts this one after it. Without one, the records are lost
            if self._accumulator.is_first(batch):
                self._complete(batch, lambda: BrokerError(code, what, detail))
            else:
                self._retry(batch, BrokerError(code, what, detail), at_once=True)
        elif action is ProduceAction.RESTART and self._config.effective_enable_idempotence:
            self._retry(batch, BrokerError(code, what, detail), is_out_of_order=True)
        else:
            at_once, longest = False, NO_LIMIT
            if code == ErrorCode.CONCURRENT_TRANSACTIONS:
                longest = CONCURRENT_PAUSE * 2.0 ** min(batch.attempts - 1, 30)
            if action is ProduceAction.REFRESH:
                # no backoff if the response named the new leader (KIP-951)
                at_once = self._cluster.view.leader(batch.tp) not in (node, -1)
                self._metadata_stale.set()
            self._retry(batch, BrokerError(code, what, detail), at_once=at_once, longest=longest)

    def _retry(
        self,
        batch: ProducerBatch,
        error: Exception,
        *,
        at_once: bool = False,
        is_out_of_order: bool = False,
        longest: float = NO_LIMIT,
    ) -> None:
        """Send a batch again after a pause of at most `longest` seconds."""
        batch.last_error = error
        batch.may_be_written |= not is_out_of_order
        now = asyncio.get_running_loop().time()
        if batch.tp not in self._backoffs:
            self._backoffs[batch.tp] = self._cluster.backoff()
        at_once = at_once or is_out_of_order
        pause = 0.0 if at_once else min(self._backoffs[batch.tp].next(), longest)
        _log.debug("%s: attempt %d failed: %s", batch.tp, batch.attempts, error)
        self._accumulator.retry(batch, now + pause, is_out_of_order=is_out_of_order)

    def _split(self, batch: ProducerBatch) -> None:
        _log.info(
            "%s: a batch of %d bytes is too large for the broker; it is sent in parts", batch.tp, batch.size
        )
        self._on_batch_split(batch, self._accumulator.split(batch))

    def _complete(
        self,
        batch: ProducerBatch,
        make_error: ErrorFactory | None,
        partition_response: PartitionProduceResponse | None = None,
    ) -> None:
        """A batch that was in flight is done: with an error, or with its partition's response."""
        self._backoffs.pop(batch.tp, None)
        if make_error is not None:
            self._accumulator.drop(batch)
            self._fail(batch, make_error)
            return
        self._accumulator.succeed(batch)
        if partition_response is not None and self._accumulator.deallocate(batch):
            batch.complete(partition_response.base_offset, partition_response.log_append_time_ms)
            self._on_batch_done(batch, None)

    def _fail(self, batch: ProducerBatch, make_error: ErrorFactory) -> None:
        if self._accumulator.deallocate(batch):
            batch.fail(make_error)
            self._on_batch_done(batch, make_error())
            if self.transaction is not None:
                self.transaction.on_record_failed(make_error())

    def fail_all(self, error: Exception) -> None:
        """Fail every batch, in flight or queued."""
        self._accumulator.close_open()
        for batch in list(self._accumulator.incomplete):
            self._fail(batch, lambda: copy_error(error))

    def _expiry_error(self, batch: ProducerBatch) -> ErrorFactory:
        reason = batch.last_error or "no response from its leader yet"
        if batch.last_error is None and self._cluster.view.leader(batch.tp) < 0:
            reason = "its leader is unknown"
        elif batch.last_error is None and self._id_error is not None:
            reason = f"no producer id: {self._id_error}"
        text = (
            f"{batch.count} records for {batch.tp}: not acknowledged within delivery_timeout="
            f"{self._config.delivery_timeout:g} s, {batch.attempts} attempts: {reason}"
        )

        def make_error() -> RequestTimedOut:
            error = RequestTimedOut(text)
            error.__cause__ = batch.last_error
            return error

        return make_error


def _detail(partition_response: PartitionProduceResponse) -> str | None:
    """Return the broker's message about rejected records (KIP-467), or None."""
    messages = [partition_response.error_message] if partition_response.error_message else []
    messages += [
        f"record {bad.batch_index}: {bad.batch_index_error_message}"
        for bad in partition_response.record_errors
    ]
    return "; ".join(messages) or None
