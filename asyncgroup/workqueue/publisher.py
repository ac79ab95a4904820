"""TopicPublisher: copies records to the retry and the dead letter topic; a record is acknowledged after its copy was.

Each copy has its own task, which tries until the broker acknowledges the copy, or the partition of the original is
given up. So a copy may be in its topic twice, after a timeout or a rebalance, but no record is acknowledged without one; with
CopyTransactions as the writer none is there twice.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

from asyncgroup.errors import (
    AsyncGroupError,
    ClosedError,
    ConfigError,
    CopyFailedError,
    DeadLetterRateError,
    UsageError,
)
from asyncgroup.hooks import DeliveryOutcome
from asyncgroup.lifecycle import cancel_and_wait, describe_error, start_task
from asyncgroup.log_events import log_fields
from asyncgroup.model import Header, RecordMetadata, TopicPartition
from asyncgroup.workqueue.dead_letters import DeadLetterBreaker
from asyncgroup.workqueue.delivery import AckOutcome, Delivery
from asyncgroup.workqueue.delivery_result import DeliveryResult, Outstanding
from asyncgroup.workqueue.engine import CopyFormat, CopyWriter, OutgoingCopy
from asyncgroup.workqueue.handled_exception import handled_exception
from asyncgroup.workqueue.policies import Backoff, Breaker

__all__ = ["RETRIES", "TopicPublisher"]

_log = logging.getLogger("asyncgroup.workqueue")

RETRIES: Final = Backoff(initial=0.1, factor=2.0, maximum=30.0)
"""The delay before a copy is tried again."""

LOG_INTERVAL: Final = 10.0
"""Seconds between two log lines of failed copies to the same topic."""


class _Copying:
    """One copy that is being written."""

    __slots__ = ("delivery", "has_failed", "is_dead", "is_ended", "outcome", "reason", "record", "task", "tp")

    def __init__(self, delivery: Delivery, record: OutgoingCopy, reason: str | None) -> None:
        self.delivery = delivery
        self.tp = TopicPartition(delivery.record.topic, delivery.record.partition)
        self.record = record
        self.reason = "" if reason is None else reason
        self.is_dead = reason is not None
        self.has_failed = False
        """Whether an attempt to write it has failed."""
        self.is_ended = False
        """Whether the delivery was finished or given back."""
        self.outcome = AckOutcome.LOST
        self.task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<copy of {self.delivery!r} to {self.record.topic!r}>"


class TopicPublisher:
    """Writes copies with a CopyWriter that is open; a delivery knows the queue that it is finished or given back in.

    - `on_error(error)` is called with a CopyFailedError for each failed attempt, and with unexpected errors.
    - `on_dead_letter(delivery, metadata, reason)` is called after a dead letter was acknowledged by the broker.
    - `on_trip(error)` is called once, with a DeadLetterRateError, when the breaker trips: from then on no dead letter is written.
      Its records are given back unacknowledged, so the queue has to end.
    - `clock` returns the time in seconds by which the breaker counts; default is the loop's time.

    The ends of copied records are counted by the publisher itself; those of all others are reported by `note_ack`.
    """

    def __init__(
        self,
        writer: CopyWriter,
        copy_format: CopyFormat,
        name: str,
        *,
        retry_topic: str | None,
        dead_letter_topic: str | None,
        max_redeliveries: int | None,
        on_error: Callable[[AsyncGroupError], None],
        breaker: Breaker | None = None,
        clock: Callable[[], float] | None = None,
        on_dead_letter: Callable[[Delivery, RecordMetadata, str], None] | None = None,
        on_trip: Callable[[DeadLetterRateError], None] | None = None,
    ) -> None:
        if max_redeliveries is not None and dead_letter_topic is None:
            raise ConfigError("max_redeliveries", max_redeliveries, "None without a dead letter topic")
        self.name = name
        self.retry_topic = retry_topic
        self.dead_letter_topic = dead_letter_topic
        self.max_redeliveries = max_redeliveries
        self.breaker = None if breaker is None else DeadLetterBreaker(breaker, clock or _loop_time)
        self._writer = writer
        self._format = copy_format
        self._on_error = on_error
        self._on_dead_letter = on_dead_letter
        self._on_trip = on_trip
        self._copies: dict[TopicPartition, set[_Copying]] = {}
        """The copies that are not ended, by the partition of the original."""
        self._by_topic: dict[str, set[_Copying]] = {}
        """The same, by the topic that they are written to."""
        self._tasks: set[asyncio.Task[None]] = set()
        """All tasks that run; those of abandoned copies are no longer in `_copies`."""
        self._errors: dict[str, str] = {}
        """For each topic with copies that have failed and are not written yet, the last error of one of them."""
        self._retried: dict[str, str] = {}
        """The error with which the producer tries a copy again, for each topic to which none was written since then."""
        self._failed: Counter[str] = Counter()
        """The number of these copies by topic."""
        self._log_times: dict[str, tuple[float, int]] = {}
        """For each topic the loop time of its last log line, and the number of failures after it."""
        self._is_closed = False

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<TopicPublisher {self.name!r}: {state}, {self.publishing} copies are being written>"

    @property
    def publishing(self) -> int:
        """The number of copies that are being written."""
        return sum(map(len, self._copies.values()))

    @property
    def failing(self) -> dict[str, str]:
        """The errors of each topic with copies that have failed, or are tried again by the producer.

        Both are named: a retry may be that of another copy, which is written soon, and must not hide the error of one that the
        broker refuses each time.
        """
        topics = self._errors | self._retried
        both = {topic: (self._errors.get(topic), self._retried.get(topic)) for topic in topics}
        return {topic: "; ".join(dict.fromkeys(filter(None, errors))) for topic, errors in both.items()}

    # --- deliveries that end with a copy ---------------------------------------------------------------------------------

    def is_last(self, attempt: int) -> bool:
        """Whether a record whose delivery number `attempt` failed is not delivered again."""
        return self.max_redeliveries is not None and attempt > self.max_redeliveries

    def start_dead_letter(self, delivery: Delivery, reason: str) -> None:
        """Copy the record to the dead letter topic in the background, then call `finish` or `give_back`."""
        self._start(delivery, self._dead_letter(delivery, reason), reason)

    def reject(self, delivery: Delivery, reason: str) -> DeliveryResult[AckOutcome]:
        """Begin to copy the record to the dead letter topic; `await` returns when it is acknowledged, or LOST if it was given up.

        A cancelled wait does not stop the copy. Raises UsageError without a dead letter topic.
        """
        if self.dead_letter_topic is None:
            raise UsageError(f"reject() of {delivery!r}: the queue has no dead letter topic (dead_letter=…)")
        copy = self._dead_letter(delivery, reason)
        # after the copy was made, which may raise
        delivery._outcomes.begin_publishing(delivery)
        return Outstanding(partial(self._outcome, self._start(delivery, copy, reason)))

    def reconsume_later(
        self, delivery: Delivery, delay: float, headers: list[Header]
    ) -> DeliveryResult[AckOutcome]:
        """Begin to copy the record to the retry topic, or after its last delivery to the dead letter topic.

        Returns as `reject` does. Raises UsageError without a retry topic, InvalidRecordError for invalid headers.
        """
        if self.retry_topic is None:
            raise UsageError(f"reconsume_later() of {delivery!r}: the queue has no retry topic (retry=…)")
        copy = self._format.retry_copy(
            delivery.record, self.retry_topic, delivery.attempt, delay, headers
        )  # checks the headers
        if self.is_last(delivery.attempt):
            error = handled_exception(3)
            cause = "" if error is None else f": {describe_error(error)}"
            last = (
                f"the last of {delivery.attempt} deliveries" if delivery.attempt > 1 else "its only delivery"
            )
            reason = f"reconsumed after {last}{cause}"
            return self.reject(delivery, reason)
        delivery._outcomes.begin_publishing(delivery)
        return Outstanding(partial(self._outcome, self._start(delivery, copy, None)))

    def _dead_letter(self, delivery: Delivery, reason: str) -> OutgoingCopy:
        assert self.dead_letter_topic is not None
        return self._format.dead_letter_copy(
            delivery.record, self.dead_letter_topic, delivery.attempt, reason
        )

    async def _outcome(self, copying: _Copying) -> AckOutcome:
        if copying.task is not None:
            await asyncio.wait([copying.task])
        return copying.outcome

    # --- ends of partitions and of the queue -----------------------------------------------------------------------------

    async def wait_idle(self, tp: TopicPartition) -> None:
        """Wait until no copy of the partition's records is being written."""
        while tasks := [copying.task for copying in self._copies.get(tp, ()) if copying.task is not None]:
            await asyncio.wait(tasks)

    def abandon(self, tp: TopicPartition, offset: int = 0, *, is_over: bool = True) -> None:
        """Give back the records of a partition from `offset` on, as it is revoked or lost or its log was truncated there.

        `is_over`: its claim ends.
        """
        self._writer.abandon(tp, offset, is_over=is_over)
        for copying in list(self._copies.get(tp, ())):
            if copying.delivery.record.offset < offset:
                continue
            # a write that is cancelled may still reach the topic: then the copy is there twice
            if copying.task is not None:
                copying.task.cancel()
            self._give_back(copying)

    async def aclose(self) -> None:
        """Give all records back and stop writing copies; later ones are given back at once. Safe to call twice.

        Waits only until its own tasks have ended, which are cancelled. The writer stays open.
        """
        self._is_closed = True
        for tp in list(self._copies):
            self.abandon(tp)
        await cancel_and_wait(*self._tasks)

    def note_ack(self) -> None:
        """Count a record that was acknowledged without a copy, for the breaker."""
        if self.breaker is not None:
            self.breaker.note_end(dead=False)

    def note_retry(self, topic: str, error: Exception) -> None:
        """The producer has failed to write to a topic, and tries again; an empty topic: the transaction of all copies is not committed.

        A copy that waits for a broker for two minutes is reported at the first failure, and not at the end.
        """
        text = describe_error(error)
        for each in [topic] if topic else list(self._by_topic):
            waiting = self._by_topic.get(each)
            if waiting and self._retried.get(each) != text:
                self._retried[each] = text
                self._call(partial(self._on_error, _copy_error(next(iter(waiting)), 1, error)))

    # --- one copy --------------------------------------------------------------------------------------------------------

    def _start(self, delivery: Delivery, record: OutgoingCopy, reason: str | None) -> _Copying:
        """Begin to write a copy; `reason` is that of a dead letter, None for a retry."""
        copying = _Copying(delivery, record, reason)
        if self._is_closed:
            self._give_back(copying)
            return copying
        self._copies.setdefault(copying.tp, set()).add(copying)
        self._by_topic.setdefault(record.topic, set()).add(copying)
        copying.task = task = start_task(self._publish(copying), name=f"copy to {record.topic}")
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._on_task_end(copying, task))
        return copying

    def _is_stopped(self, copying: _Copying) -> bool:
        return copying.is_dead and self.breaker is not None and self.breaker.is_tripped

    async def _publish(self, copying: _Copying) -> None:
        """Write the copy, and try again until that succeeds or has become impossible."""
        tries, heals = 0, True
        while not self._is_stopped(copying):
            try:
                metadata = await self._writer.write(
                    copying.tp,
                    copying.delivery.record.offset,
                    copying.record,
                    partial(self._finish, copying),
                    alone=not heals,
                )
            except Exception as error:  # noqa: BLE001  a partitioner may raise any error
                tries += 1
                self._report(copying, tries, error)
                # a closed writer stays closed; the end of this task gives the record back
                if isinstance(error, ClosedError):
                    return
                heals = self._writer.passes(error)
                await asyncio.sleep(RETRIES.delay(tries) if heals else RETRIES.maximum)
            else:
                if not copying.is_ended:  # by the writer, or given back when it was too late to stop it
                    self._finish(copying, metadata)
                return

    def _on_task_end(self, copying: _Copying, task: asyncio.Task[None]) -> None:
        """A record whose copy was not acknowledged stays unacknowledged, for any reason that its task has ended."""
        self._tasks.discard(task)
        if not copying.is_ended:
            self._give_back(copying)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s: bug in a callback of the copy", copying, exc_info=error)
            self._call(lambda: self._on_error(_copy_error(copying, 0, error)))

    # --- state changes ---------------------------------------------------------------------------------------------------

    def _finish(self, copying: _Copying, metadata: RecordMetadata) -> None:
        """The broker has acknowledged the copy: acknowledge the record."""
        self._forget(copying)
        self._retried.pop(copying.record.topic, None)
        queue = copying.delivery._outcomes
        copying.outcome = queue.finish(copying.delivery)
        copied: DeliveryOutcome = "dead letter" if copying.is_dead else "retry"
        queue.report_end(copying.delivery, copied if copying.outcome else "lost")
        if copying.outcome is AckOutcome.ACKED and self._writer.is_transactional:
            copying.outcome = AckOutcome.COMMITTED
        if copying.is_dead:
            copying.delivery._outcomes.counts.dead_lettered += 1
            if (hook := self._on_dead_letter) is not None:
                self._call(lambda: hook(copying.delivery, metadata, copying.reason))
        else:
            copying.delivery._outcomes.counts.reconsumed += 1
        if self.breaker is not None and self.breaker.note_end(copying.is_dead):
            self._trip(self.breaker.error(self.name))

    def _trip(self, error: DeadLetterRateError) -> None:
        _log.error("%s", error)
        if (hook := self._on_trip) is not None:
            self._call(lambda: hook(error))

    def _give_back(self, copying: _Copying) -> None:
        self._forget(copying)
        copying.delivery._outcomes.give_back(copying.delivery)

    def _forget(self, copying: _Copying) -> None:
        copying.is_ended = True
        copies = self._copies.get(copying.tp, set())
        copies.discard(copying)
        if not copies:
            self._copies.pop(copying.tp, None)
        topic = copying.record.topic
        self._failed[topic] -= copying.has_failed
        if not self._failed[topic]:
            self._errors.pop(topic, None)
        if (waiting := self._by_topic.get(topic)) is not None:
            waiting.discard(copying)
            if not waiting:
                del self._by_topic[topic]
                self._retried.pop(topic, None)

    # --- errors ----------------------------------------------------------------------------------------------------------

    def _report(self, copying: _Copying, tries: int, cause: Exception) -> None:
        error = _copy_error(copying, tries, cause)
        if not copying.is_ended:
            self._failed[error.topic] += not copying.has_failed
            copying.has_failed = True
            self._errors[error.topic] = describe_error(cause)
        self._log_failure(error)
        self._call(lambda: self._on_error(error))

    def _log_failure(self, error: CopyFailedError) -> None:
        """Log the first failure for a topic, then at most one in each `LOG_INTERVAL`."""
        now = _loop_time()
        last, omitted = self._log_times.get(error.topic, (-math.inf, 0))
        if now < last + LOG_INTERVAL:
            self._log_times[error.topic] = (last, omitted + 1)
            return
        self._log_times[error.topic] = (now, 0)
        more = f" ({omitted} more failures since the last message)" if omitted else ""
        tp = TopicPartition(error.record_topic, error.partition)
        fields = log_fields("copy_failed", tp=tp, offset=error.offset, error=error.__cause__)
        _log.warning("%s%s", error, more, extra=fields)

    def _call(self, hook: Callable[[], None]) -> None:
        """Call a function of the queue or the program; its error must not end the copy."""
        try:
            hook()
        except Exception:  # noqa: BLE001  it may raise any error
            _log.exception("%r: a callback raised", self)


def _copy_error(copying: _Copying, tries: int, cause: BaseException) -> CopyFailedError:
    record = copying.delivery.record
    return CopyFailedError(record.topic, record.partition, record.offset, copying.record.topic, tries, cause)


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
