"""Sender: several Produce requests in flight to each leader; failed batches go back to their queue.

If a response is lost (the connection closed, the request timed out), the records may or may not be in the log. The batch is
sent again: an idempotent producer's with the same sequence numbers, so that the broker recognizes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.metadata import ClusterView
from asyncgroup.config import ProducerConfig
from asyncgroup.errors import AsyncGroupError, ClosedError, ConnectionLost, UnsupportedVersionError
from asyncgroup.lifecycle import copy_error
from asyncgroup.model import TopicPartition
from asyncgroup.producer.batches.accumulator import RecordAccumulator
from asyncgroup.producer.batches.batch import ProducerBatch
from asyncgroup.producer.batches.results import CallbackQueue
from asyncgroup.producer.sending.batch_results import BatchResults
from asyncgroup.producer.sending.compressor import BatchCompressor
from asyncgroup.producer.sending.deliveries import DeliveryTracker
from asyncgroup.producer.sending.producer_ids import ProducerIds
from asyncgroup.producer.sending.requests import (
    EncodedBatch,
    InFlightRequests,
    PendingRequest,
    RequestQueue,
    build_produce_request,
    node_endpoints,
    pending_request,
    responses_by_partition,
)
from asyncgroup.producer.sending.timing import MAX_DELAY, PlanTimer, SendingLoad
from asyncgroup.producer.transactions.state import TransactionManager
from asyncgroup.wire import messages as m

__all__ = ["Sender"]

_log = logging.getLogger("asyncgroup.producer")

MAX_TURN: Final = 0.002
"""Seconds after which a plan leaves the next requests to the next turn of the event loop."""


class Sender:
    """Sends the accumulator's batches to their leaders. `spawn` runs coroutine functions in tasks that the producer ends.

    A response is handled, its callers are woken, and the next requests are sent in the turn of the event loop that
    received it: what the callers write now is in them.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        config: ProducerConfig,
        accumulator: RecordAccumulator,
        spawn: Callable[..., None],
        callbacks: CallbackQueue,
        deliveries: DeliveryTracker,
        transaction: TransactionManager | None = None,
    ) -> None:
        self._cluster = cluster
        self._network = cluster.network
        self._config = config
        self._accumulator = accumulator
        self._spawn = spawn
        self._callbacks = callbacks
        self._transaction = transaction
        self._compressor = BatchCompressor(spawn, self._on_compressed)
        self._acks = -1 if config.acks == "all" else int(config.acks)
        self._queue = RequestQueue(cluster.network, self, self._build, spawn, is_oneway=self._acks == 0)
        self._in_flight = InFlightRequests(config.max_in_flight_requests)
        self._metadata_stale = asyncio.Event()  # set: refresh the metadata
        on_stale, is_unsent = self._metadata_stale.set, self._queue.is_unsent
        self._results = BatchResults(
            cluster, config, accumulator, deliveries, on_stale, is_unsent, transaction
        )
        self._load = SendingLoad(min(MAX_DELAY, config.delivery_timeout / 4))
        self.timer = PlanTimer(self._plan, self._load, accumulator.has_waiting_callers)
        """Calls the plans; at once while callers wait, as no batch lingers then."""
        accumulator.schedule.on_due = self.timer.wake_by
        self._ids = ProducerIds(cluster, accumulator, self._fail_without_id, self.wake)
        self._has_leaderless = False  # by the last plan
        self._view: ClusterView | None = None  # the metadata that topic ids were compared with

    def __repr__(self) -> str:
        return f"<Sender: {self._in_flight!r}>"

    def watch_retries(self, on_retry: Callable[[TopicPartition, Exception], object]) -> None:
        """Call `on_retry` with the error of each attempt that is repeated."""
        self._results.on_retry = on_retry

    def start(self) -> None:
        """Start the sender's tasks."""
        self._spawn(self._run, name="sender")
        self._spawn(self._refresh_leaders, name="leaders")
        if self._config.effective_enable_idempotence and self._transaction is None:
            self._spawn(self._ids.run, name="producer ids")

    def wake(self) -> None:
        """Plan again in the next turn of the event loop: there may be new batches to send."""
        self.timer.wake()

    def _on_compressed(self, batches: Sequence[ProducerBatch]) -> None:
        self._accumulator.on_compressed(batches)
        self.wake()

    async def wait_idle(self) -> None:
        """Wait until no request is in flight, for at most `request_timeout`: none is sent again for records that failed."""
        await self._in_flight.idle.wait()

    async def _run(self) -> None:
        try:
            await self.timer.run()
        finally:
            self._in_flight.idle.set()  # no response is handled any more

    def _plan(self, now: float) -> float:
        """Send the batches that are ready, fail the expired ones; return the loop time of the next plan.

        No batch lingers while a caller waits for buffer memory.
        """
        self._fail_orphans()
        skip_linger = self._accumulator.has_waiting_callers()
        leader = self._network.view.leader
        admit = None if self._transaction is None else self._transaction.admit
        owed = self._load.owed(now)
        while True:
            plan = self._accumulator.schedule.plan(
                now, leader, self._in_flight.busy_nodes, skip_linger=skip_linger, owed=owed, admit=admit
            )
            if plan.to_compress:
                self._compressor.add(plan.to_compress)
            for batch in plan.expired:
                self._results.expire(batch, self._ids.error)
            if not plan.requests:
                break
            for node, batches in plan.requests.items():
                self._begin_request(node, batches)
            if self.timer.loop is not None and self.timer.loop.time() - now > MAX_TURN:
                self.timer.wake()  # the other tasks come first
                break
        self._has_leaderless = plan.has_leaderless
        if plan.has_leaderless:
            self._metadata_stale.set()
        if plan.needs_id:
            self._ids.want()
        return plan.wake_at

    def _fail_orphans(self) -> None:
        """Fail the batches of topics that were deleted and created again, by the current metadata."""
        if self._view is not self._network.view:
            self._view = self._network.view
            self._accumulator.update_topic_ids(self._view)
        for batch in self._accumulator.take_orphans():
            self._results.fail_recreated(batch)

    def _fail_without_id(self, error: Exception) -> None:
        """Fail the batches that need a producer id, as the broker refuses one."""
        for batch in self._accumulator.take_without_id():
            self._results.fail(batch, lambda: copy_error(error))

    async def _refresh_leaders(self) -> None:
        """Refresh the metadata when a leader is unknown or wrong, with a backoff between refreshes."""
        retry = self._cluster.retry()
        while True:
            await self._metadata_stale.wait()
            self._metadata_stale.clear()
            try:
                await self._cluster.refresh()
            except ClosedError as error:
                self._results.fail_all(error)
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
            self._in_flight.add(node)
            topic_id, transaction = self._accumulator.topic_id, self._transaction
            self._queue.send(pending_request(node, encoded_batches, topic_id, transaction))

    def _encode(self, batch: ProducerBatch) -> EncodedBatch | None:
        try:
            return EncodedBatch(batch, batch.encoded())
        except AsyncGroupError as problem:
            error = problem
            self._results.complete(batch, lambda: copy_error(error))
            return None

    def _build(self, request: PendingRequest, version: int) -> m.ProduceRequest:
        if any(self._accumulator.is_orphan(encoded.batch) for encoded in request.batches):
            raise ConnectionLost("a topic of the request was recreated before it was sent")
        if any(encoded.batch.done for encoded in request.batches):
            # their callers know that they are not in the log, and may send them again; the others are sent without them
            raise ConnectionLost("records of the request expired before it was sent")
        return build_produce_request(request, version, self._acks, self._config)

    def on_response(
        self, request: PendingRequest, response: m.ProduceResponse | None, error: Exception | None
    ) -> None:
        """The response to a request was received, or the request has failed with `error`."""
        loop = self.timer.loop
        if loop is None:
            return
        self._callbacks.hold()
        began = loop.time()
        try:
            if response is not None:
                self._handle_responses(request, response)
            elif error is not None:
                self._fail_attempt(request, error, may_be_written=True)
        except Exception as bug:  # noqa: BLE001  raised by `_run`
            self.timer.report(bug)
        self._load.add(began, loop.time())  # what follows belongs to the callers
        self._callbacks.call_held()
        self.timer.plan()

    def on_failure(self, request: PendingRequest, error: Exception) -> None:
        """A request was not sent; with acks=0 it may have been, unless the broker has no version for it."""
        may_be_written = self._acks == 0 and not isinstance(error, UnsupportedVersionError)
        self._fail_attempt(request, error, may_be_written=may_be_written)

    def _fail_attempt(self, request: PendingRequest, error: Exception, *, may_be_written: bool) -> None:
        """There is no response to a request."""
        self._in_flight.remove(request.node)
        self.timer.wake()
        is_final = isinstance(error, (UnsupportedVersionError, ClosedError))
        if isinstance(error, AsyncGroupError) and not is_final:
            self._metadata_stale.set()
            for encoded in request.batches:
                self._cluster.doubt_leader(encoded.batch.tp, request.node)
                self._results.retry(encoded.batch, error, may_be_written=may_be_written)
            return
        if not is_final:
            _log.error("a Produce request to node %s failed unexpectedly", request.node, exc_info=error)
        for encoded in request.batches:
            encoded.batch.may_be_written |= may_be_written
            self._results.complete(encoded.batch, lambda: copy_error(error))

    def on_oneway_sent(self, request: PendingRequest) -> None:
        """A request with acks=0 was sent; there will be no response."""
        self._in_flight.remove(request.node)
        self.wake()
        for encoded in request.batches:
            unknown = m.ProduceResponse.PartitionProduceResponse(encoded.batch.tp.partition, base_offset=-1)
            self._results.on_response(request.node, encoded.batch, unknown)

    def _handle_responses(self, request: PendingRequest, response: m.ProduceResponse) -> None:
        self._in_flight.remove(request.node)
        responses = responses_by_partition(response, request.ids)
        for tp, partition_response in responses.items():
            leader = partition_response.current_leader
            if leader.leader_id >= 0:
                self._cluster.update_leader(
                    tp, leader.leader_id, leader.leader_epoch, node_endpoints(response)
                )
        for encoded in request.batches:
            self._results.on_response(request.node, encoded.batch, responses.get(encoded.batch.tp))

    def fail_all(self, error: Exception) -> None:
        """Fail every batch, in flight or waiting."""
        self._results.fail_all(error)
