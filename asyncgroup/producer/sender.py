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
from asyncgroup.cluster.metadata import ClusterView
from asyncgroup.config import ProducerConfig
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    ClosedError,
    ConnectionLost,
    ErrorCode,
    ProtocolError,
    RequestTimedOut,
    UnsupportedVersionError,
)
from asyncgroup.lifecycle import add_note, copy_error
from asyncgroup.model import TopicPartition
from asyncgroup.producer.accumulator import RecordAccumulator
from asyncgroup.producer.batch import ErrorFactory, ProducerBatch
from asyncgroup.producer.batch_compressor import BatchCompressor
from asyncgroup.producer.named_errors import named_error
from asyncgroup.producer.produce_transaction import ProduceTransaction
from asyncgroup.producer.producer_ids import is_transient, request_producer_id
from asyncgroup.producer.request_queue import PRODUCE_LANE, PendingRequest, RequestQueue
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
        self._compressor = BatchCompressor(spawn, self.wake)
        self._acks = -1 if config.acks == "all" else int(config.acks)
        self._queue = RequestQueue(cluster.network, self, self._build, spawn, is_oneway=self._acks == 0)
        self._requests: Counter[int] = Counter()  # requests in flight by node
        self._idle = asyncio.Event()  # set: no request is in flight
        self._idle.set()
        self._busy_nodes: set[int] = set()  # nodes with as many requests in flight as one connection may have
        self._backoffs: dict[TopicPartition, Backoff] = {}  # of partitions whose last attempt failed
        self._wakeup = asyncio.Event()  # set: plan again
        self._timer: asyncio.TimerHandle | None = None  # sets it
        self._is_running = False
        self._bug: Exception | None = None  # an unexpected error in a callback
        self._metadata_stale = asyncio.Event()  # set: refresh the metadata
        self._id_wanted = asyncio.Event()  # set: a partition needs a producer id
        self._id_error: Exception | None = None  # why there is none
        self._has_leaderless = False  # by the last plan
        self._view: ClusterView | None = None  # the metadata that topic ids were compared with

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
        self._is_running = True
        try:
            while self._bug is None:
                # cleared before planning, so that no wake-up during the plan is lost
                self._wakeup.clear()
                self._wake_at(self._step(loop.time()), loop)
                await self._wakeup.wait()
            raise self._bug
        finally:
            self._is_running = False
            if self._timer is not None:
                self._timer.cancel()

    def _wake_at(self, when: float, loop: asyncio.AbstractEventLoop) -> None:
        """Plan again at loop time `when` at the latest. A timer that is due earlier stays: one more plan is cheap."""
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
            self._timer = None
        if when != float("inf"):
            self._timer = loop.call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.wake()

    def _step(self, now: float) -> float:
        """Send the batches that are ready, fail the expired ones; return the loop time of the next plan.

        No batch lingers while a caller waits for buffer memory.
        """
        self._fail_orphans()
        skip_linger = self._accumulator.has_waiting_callers
        leader = self._cluster.view.leader
        admit = None if self.transaction is None else self.transaction.admit
        while True:
            plan = self._accumulator.plan(now, leader, self._busy_nodes, skip_linger=skip_linger, admit=admit)
            self._compressor.add(plan.to_compress)
            for batch in plan.expired:
                self._fail(batch, self._expiry_error(batch))
            if not plan.requests:
                break
            for node, batches in plan.requests.items():
                self._begin_request(node, batches)
            if not self._accumulator.has_waiting:
                break
        self._has_leaderless = bool(plan.unknown_leader_topics)
        if plan.unknown_leader_topics:
            self._metadata_stale.set()
        if plan.needs_id:
            self._id_wanted.set()
        return plan.wake_at

    def _fail_orphans(self) -> None:
        """Fail the batches of topics that were deleted and created again, by the current metadata."""
        if self._view is not self._cluster.view:
            self._view = self._cluster.view
            self._accumulator.update_topic_ids(self._view)
        for batch in self._accumulator.take_orphans():
            self._fail(batch, _recreated_error(batch))

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

    def _begin_request(self, node: int, batches: list[ProducerBatch]) -> None:
        encoded_batches = [encoded for batch in batches if (encoded := self._encode(batch)) is not None]
        if encoded_batches:
            self._count_request(node, 1)
            self._queue.send(self._request(node, encoded_batches))

    def _encode(self, batch: ProducerBatch) -> EncodedBatch | None:
        try:
            return EncodedBatch(batch, batch.encoded())
        except AsyncGroupError as problem:
            error = problem
            self._complete(batch, lambda: copy_error(error))
            return None

    def _request(self, node: int, encoded_batches: list[EncodedBatch]) -> PendingRequest:
        ids = topic_ids(encoded_batches, self._accumulator.topic_id)
        highest, transaction = max_version(ids), self.transaction
        if transaction is None:
            return PendingRequest(node, encoded_batches, ids, highest)
        is_v2 = transaction.is_v2
        highest = highest if is_v2 else ADDS_PARTITIONS - 1
        return PendingRequest(node, encoded_batches, ids, highest, transaction.transactional_id, is_v2)

    def _build(self, request: PendingRequest, version: int) -> m.ProduceRequest:
        if any(self._accumulator.is_orphan(encoded.batch) for encoded in request.batches):
            raise ConnectionLost("a topic of the request was recreated before it was sent")
        if request.adds_partitions and version < ADDS_PARTITIONS:
            raise UnsupportedVersionError(
                f"transaction.version=2 is finalized, but node {request.node} has Produce up to version {version} only"
            )
        return build_produce_request(
            request.batches, request.ids, self._acks, self._config.request_timeout, request.transactional_id
        )

    def on_response(self, request: PendingRequest, response: asyncio.Future[m.ProduceResponse]) -> None:
        """The response to a request is there, or the reason why there is none."""
        error = response.exception()
        if not self._is_running:
            return
        try:
            if error is None:
                self._handle_responses(request, response.result())
            elif isinstance(error, Exception):
                self.on_failure(request, error)
        except Exception as bug:  # noqa: BLE001  raised by the task that plans
            self._bug = bug
        self.wake()

    def on_failure(self, request: PendingRequest, error: Exception) -> None:
        """There is no response to a request."""
        self._count_request(request.node, -1)
        self.wake()
        is_final = isinstance(error, (UnsupportedVersionError, ClosedError))
        if isinstance(error, AsyncGroupError) and not is_final:
            self._metadata_stale.set()
            for encoded in request.batches:
                self._retry(encoded.batch, error)  # it may be in the log
            return
        if not is_final:
            _log.error("a Produce request to node %s failed unexpectedly", request.node, exc_info=error)
        for encoded in request.batches:
            self._complete(encoded.batch, lambda: copy_error(error))

    def on_oneway_sent(self, request: PendingRequest) -> None:
        """A request with acks=0 was sent; there will be no response."""
        self._count_request(request.node, -1)
        self.wake()
        for encoded in request.batches:
            unknown = m.ProduceResponse.PartitionProduceResponse(encoded.batch.tp.partition, base_offset=-1)
            self._handle_response(request.node, encoded.batch, unknown)

    def _handle_responses(self, request: PendingRequest, response: m.ProduceResponse) -> None:
        self._count_request(request.node, -1)
        responses = responses_by_partition(response, request.ids)
        for tp, partition_response in responses.items():
            leader = partition_response.current_leader
            if leader.leader_id >= 0:
                self._cluster.update_leader(
                    tp, leader.leader_id, leader.leader_epoch, node_endpoints(response)
                )
        for encoded in request.batches:
            self._handle_response(request.node, encoded.batch, responses.get(encoded.batch.tp))

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
        if action is not ProduceAction.DONE and self._accumulator.is_orphan(batch):
            self._complete(batch, _recreated_error(batch))
            return
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
        if self._accumulator.is_orphan(batch):
            self._complete(batch, _recreated_error(batch))
            return
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
            error = make_error()
            if batch.may_be_written:
                add_note(error, "an earlier attempt had no result: the records may be in the log")
            batch.fail(lambda: named_error(error, batch.tp))
            self._on_batch_done(batch, error)
            if self.transaction is not None:
                self.transaction.on_record_failed(error)

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


def _recreated_error(batch: ProducerBatch) -> ErrorFactory:
    text = "the topic was deleted and created again before they were acknowledged"
    return lambda: BrokerError(ErrorCode.UNKNOWN_TOPIC_ID, f"{batch.count} records for {batch.tp}", text)


def _detail(partition_response: PartitionProduceResponse) -> str | None:
    """Return the broker's message about rejected records (KIP-467), or None."""
    messages = [partition_response.error_message] if partition_response.error_message else []
    messages += [
        f"record {bad.batch_index}: {bad.batch_index_error_message}"
        for bad in partition_response.record_errors
    ]
    return "; ".join(messages) or None
