"""`QueueBatch`: the deliveries of one batch of a work queue, from the call of the function to their outcomes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

from asyncgroup.columns import MalformedTimestamp
from asyncgroup.lifecycle import describe_error
from asyncgroup.model import TopicPartition
from asyncgroup.spark.bridge.batches import RetryState
from asyncgroup.spark.bridge.failed_rows import Outcome, RowKey
from asyncgroup.spark.bridge.queue_rows import OffsetRows, QueueRows
from asyncgroup.spark.bridge.record_queue import MAX_CHUNK_BYTES, MAX_CHUNK_ROWS
from asyncgroup.spark.ranges import BatchId, OffsetRange
from asyncgroup.workqueue.delivery import Delivery, DeliveryState, commit_partition, nack_with, release

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["QueueBatch"]

_log = logging.getLogger("asyncgroup.spark")

CHECK_INTERVAL: Final = 0.5
"""Seconds between two checks whether the deliveries are lost, while the function runs."""

RENEWALS: Final = 3
"""The number of renewals of a delivery in an ack timeout."""

OUTCOMES_IN_A_STEP: Final = 1_000
"""Deliveries that are renewed or ended in one step on the event loop: a few milliseconds."""

_OFFSET_ROWS: Final = OffsetRows()


class QueueBatch:
    """Deliveries in the order of their rows: by topic, partition and offset.

    `batch_id` has the ranges that cover their offsets, for descriptions: offsets in between may be missing.
    """

    def __init__(
        self,
        deliveries: Sequence[Delivery],
        number: int,
        retries: RetryState,
        now: float,
        rows: QueueRows = _OFFSET_ROWS,
    ) -> None:
        self.rows = rows
        self.deliveries = sorted(deliveries, key=_place)
        self.by_key: dict[RowKey, Delivery] = {
            rows.key(delivery.record): delivery for delivery in self.deliveries
        }
        """The deliveries whose records are rows."""
        self.batch_id = BatchId(number, _ranges(self.deliveries))
        self.bytes = 0
        """Size of the rows as Arrow data."""
        self.retries = retries
        self.started_at = now
        self.failed: Mapping[Delivery, Outcome] = {}
        """The failed deliveries by the result of the function, after it has ended without another exception."""
        self.no_retry = asyncio.Event()
        """Set when the batch is interrupted: ends a pause before a retry."""
        self.interrupted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the Spark jobs of the batch must be cancelled and its result discarded."""

    def __repr__(self) -> str:
        return f"<QueueBatch {self.batch_id!r}: {len(self.deliveries)} deliveries>"

    @property
    def is_held(self) -> bool:
        """Whether any delivery is open."""
        return any(_is_acquired(delivery) for delivery in self.deliveries)

    @property
    def is_interrupted(self) -> bool:
        """Whether the batch was interrupted: it counts as not processed, even if the function returns."""
        return self.interrupted.done()

    def interrupt(self) -> None:
        """Cancel the batch's Spark jobs, start no retry, discard the result."""
        if not self.interrupted.done():
            self.interrupted.set_result(None)
        self.no_retry.set()

    # --- while the function runs ------------------------------------------------------------------------------------------

    async def keep(self, interval: float) -> None:
        """Renew the deliveries until all have ended, then interrupt the batch, whose result has no effect any more.

        They are renewed every `interval` seconds, or several times in an ack timeout if that is shorter.
        """
        time = asyncio.get_running_loop().time
        renewal = time()
        while self.is_held:
            if (now := time()) >= renewal:
                timeouts = [left for each in self.deliveries if (left := await _renew(each)) is not None]
                renewal = now + min(interval, min(timeouts, default=interval) / RENEWALS)
            await asyncio.sleep(min(CHECK_INTERVAL, max(0.0, renewal - time())))
        self.interrupt()

    async def to_arrow(self, *, include_headers: bool) -> list[pa.RecordBatch]:
        """Return the rows. A record with a timestamp that Arrow cannot express has none, and is nacked."""
        found: list[pa.RecordBatch] = []
        for chunk in list(_chunks(self.deliveries)):
            while chunk:
                records = [delivery.record for delivery in chunk]
                try:
                    found.append(self.rows.to_arrow(records, include_headers=include_headers))
                    break
                except MalformedTimestamp as error:
                    place = error.topic, error.partition, error.offset
                    bad = next(delivery for delivery in chunk if _place(delivery) == place)
                    del self.by_key[self.rows.key(bad.record)]
                    chunk.remove(bad)
                    if _is_acquired(bad):
                        nack_with(bad, error)
                    _log.warning("%r cannot be a row and was nacked: %s", bad, error)
            await asyncio.sleep(0)
        self.bytes = sum(each.nbytes for each in found)
        return found

    # --- outcomes -----------------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Acknowledge the deliveries that the function has not named, and nack those named without a copy.

        The acknowledgements come first: with an order, a nack delivers again what is not acknowledged. Deliveries that are lost
        have no outcome.
        """
        failed = self.failed
        for number, delivery in enumerate(self.deliveries, 1):
            if _is_acquired(delivery) and delivery not in failed:
                try:
                    await delivery.ack()
                except Exception:  # noqa: BLE001  of an interceptor: the delivery is nacked
                    _log.exception(
                        "the acknowledgement of %r was refused: the record is delivered again", delivery
                    )
            await _pause_after(number)
        for number, (delivery, how) in enumerate(failed.items(), 1):
            if _is_acquired(delivery) and not how.is_copy:
                await delivery.nack(delay=how.delay)
            await _pause_after(number)

    async def copy(self) -> None:
        """Copy the records that the function has named for the dead letter or the retry topic; return when that is done."""
        await asyncio.gather(*(_copy(delivery, how) for delivery, how in self.failed.items() if how.is_copy))

    async def commit(self) -> None:
        """Commit the acknowledgements. A failure is logged: the queue commits them again with the next ones."""
        acked = {
            (each.record.topic, each.record.partition): each
            for each in self.deliveries
            if each.state is DeliveryState.ACKED
        }
        commits = await asyncio.gather(*map(commit_partition, acked.values()), return_exceptions=True)
        for error in {describe_error(each) for each in commits if isinstance(each, BaseException)}:
            _log.warning("%r: not committed yet: %s", self.batch_id, error)

    async def nack(self, error: BaseException) -> None:
        """The function has failed: nack all deliveries that are left; the last ones go to the dead letter topic with the error."""
        for number, delivery in enumerate(self.deliveries, 1):
            if _is_acquired(delivery):
                nack_with(delivery, error)
            await _pause_after(number)

    def release(self) -> int:
        """Release the deliveries that are left, so that their records are delivered again; return their number."""
        left = [delivery for delivery in self.deliveries if _is_acquired(delivery)]
        for delivery in reversed(left):
            release(delivery)
        return len(left)

    @property
    def lost(self) -> int:
        """The number of deliveries that ended without the function: lost with their partitions, or expired."""
        return sum(each.state in (DeliveryState.LOST, DeliveryState.EXPIRED) for each in self.deliveries)


# --- deliveries -------------------------------------------------------------------------------------------------------------


def _place(delivery: Delivery) -> tuple[str, int, int]:
    """Return topic, partition and offset: of a message of Pulsar the number that the queue gave to it."""
    record = delivery.record
    return record.topic, record.partition, record.offset


def _is_acquired(delivery: Delivery) -> bool:
    return delivery.state is DeliveryState.ACQUIRED


async def _renew(delivery: Delivery) -> float | None:
    """Renew a delivery that is open; return the seconds to its deadline, None without one."""
    if not _is_acquired(delivery):
        return None
    await delivery.renew()
    return None if delivery.deadline is None else delivery.deadline - asyncio.get_running_loop().time()


async def _copy(delivery: Delivery, how: Outcome) -> None:
    if not _is_acquired(delivery):
        return
    try:
        if how.reject is not None:
            await delivery.reject(how.reject)
        elif how.reconsume_later is not None:
            await delivery.reconsume_later(how.reconsume_later)
    except Exception as error:  # noqa: BLE001  the record must be delivered again after any error
        _log.exception("%r could not be copied, it was nacked", delivery)
        if _is_acquired(delivery):
            nack_with(delivery, error)


async def _pause_after(number: int) -> None:
    if number % OUTCOMES_IN_A_STEP == 0:
        await asyncio.sleep(0)


# --- rows -------------------------------------------------------------------------------------------------------------------


def _ranges(deliveries: Sequence[Delivery]) -> Iterator[OffsetRange]:
    """Return a range for each partition of sorted deliveries, from the first to the last one."""
    for tp, group in groupby(deliveries, lambda each: TopicPartition(*_place(each)[:2])):
        offsets = [each.record.offset for each in group]
        yield OffsetRange(*tp, offsets[0], offsets[-1] + 1)


def _chunks(deliveries: Sequence[Delivery]) -> Iterator[list[Delivery]]:
    """Divide deliveries into chunks that are converted in one step; each has one or more."""
    chunk: list[Delivery] = []
    size = 0
    for delivery in deliveries:
        record = delivery.record
        chunk.append(delivery)
        size += len(record.key or b"") + len(record.value or b"")
        if len(chunk) >= MAX_CHUNK_ROWS or size >= MAX_CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
