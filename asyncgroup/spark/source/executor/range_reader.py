"""`RangeReader`: read ranges of offsets, every record from start (inclusive) to end (exclusive), as Arrow batches.

The caller alternates two steps: `advance` waits until records have come, and leaves the next Fetch in flight; `read`
decodes them without waiting. So brokers and kernel work while records are decoded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from asyncgroup.cluster import ClusterClient
from asyncgroup.columns import MalformedTimestamp
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.list_offsets import is_retriable_error
from asyncgroup.errors import AsyncGroupError, BrokerError, CorruptRecordsError, RequestTimedOut
from asyncgroup.lifecycle import cancel_and_wait
from asyncgroup.model import TopicPartition
from asyncgroup.spark.arrow import ArrowBatches
from asyncgroup.spark.source.errors import malformed_timestamp
from asyncgroup.spark.source.executor.range_answers import RangeAnswers
from asyncgroup.spark.source.executor.range_fetch import RangeFetch, plan_fetches
from asyncgroup.spark.source.executor.range_progress import RangeProgress
from asyncgroup.wire import messages as m

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RangeReader"]

_log = logging.getLogger("asyncgroup.spark")

LANE: Final = "ranges"
"""The purpose of the connections for fetching ranges; a waiting Fetch must not delay lookups."""

NODES: Final = 4
"""Maximum number of brokers with a Fetch in flight: each response may have `fetch_bytes` bytes."""

LOST_PATIENCE: Final = 300.0
"""Timeout in seconds of the request itself. Spark may suspend a task for minutes while a sink is slow; in that time the loop
does not run, and the response waits in the kernel. The effective timeout is `request_timeout` of actual waiting.
"""


class _Flight:
    """A Fetch in flight; `since` is the loop's time at which its timeout started."""

    __slots__ = ("fetch", "since", "task")

    def __init__(self, fetch: RangeFetch, task: asyncio.Task[None], since: float) -> None:
        self.fetch = fetch
        self.task = task
        self.since = since

    @property
    def progresses(self) -> list[RangeProgress]:
        """The requested ranges."""
        return [asked.progress for asked in self.fetch.asked.values()]


class RangeReader:
    """Reads the ranges of one task, in the order of `progresses` as far as their brokers respond.

    `config` is the result of `fetching_config`. Must be used on the loop on which `cluster` was opened. `poll_timeout` is
    the time in seconds for which a range may be without progress during waits; `servers` names the cluster in errors.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        config: ConsumerConfig,
        progresses: Iterable[RangeProgress],
        *,
        poll_timeout: float,
        fail_on_data_loss: bool = True,
        servers: str = "",
    ) -> None:
        self._cluster = cluster
        self._config = config
        self.progresses = list(progresses)
        self._waiting = [progress for progress in self.progresses if not progress.is_done]
        self._answers = RangeAnswers(
            cluster, poll_timeout=poll_timeout, fail_on_data_loss=fail_on_data_loss, servers=servers
        )
        self._flights: dict[int, _Flight] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._left_at: float | None = None

    def __repr__(self) -> str:
        return f"<RangeReader: {len(self._waiting)} ranges left, {len(self._flights)} fetches in flight>"

    @property
    def is_done(self) -> bool:
        """Whether all ranges were read completely."""
        return not self._waiting

    # --- decoding -----------------------------------------------------------------------------------------------

    def read(self, batches: ArrowBatches) -> Iterator[pa.RecordBatch]:
        """Decode buffered records; yield batches when they are full, the rest stays in `batches`.

        Raises CorruptRecordsError and UnsupportedVersionError for records that cannot be read even after they were fetched
        again, SourceError for a timestamp that is out of range.
        """
        for progress in self._waiting:
            while self._read_next(progress, batches):
                if batches.is_full:
                    yield from self.flush(batches)
        self._waiting = [progress for progress in self._waiting if not progress.is_done]

    def flush(self, batches: ArrowBatches) -> Iterator[pa.RecordBatch]:
        """Yield what `batches` has collected. Raises SourceError for a timestamp that is out of range."""
        try:
            yield from batches.flush()
        except MalformedTimestamp as error:
            tp = TopicPartition(error.topic, error.partition)
            raise malformed_timestamp(tp, error.offset, error.timestamp) from error

    def _read_next(self, progress: RangeProgress, batches: ArrowBatches) -> bool:
        try:
            return progress.read_into(batches.columns)
        except CorruptRecordsError as error:
            if not progress.fetch_anew():
                raise
            _log.warning(
                "%s: corrupt records are fetched again, as they may have been corrupted in transit: %s",
                progress.tp,
                error,
            )
            return False

    # --- fetching -----------------------------------------------------------------------------------------------

    async def advance(self) -> None:
        """Wait until there are records to read, or all were read; the next requests are in flight then.

        Raises SourceError (data loss, no progress), BrokerError and other errors that are not retriable.
        """
        loop = asyncio.get_running_loop()
        self._resume(loop.time())
        try:
            while True:
                self._answers.raise_failure()
                self._waiting = [progress for progress in self._waiting if not progress.is_done]
                self._send(loop.time())
                if not self._waiting or any(progress.has_data for progress in self._waiting):
                    break
                await self._wait(loop.time())
            await asyncio.sleep(0)  # start new tasks, which write their requests to the sockets
        finally:
            self._left_at = loop.time()

    def _resume(self, now: float) -> None:
        """Exclude the time since the last wait from all timeouts."""
        pause = now - self._left_at if self._left_at is not None else 0.0
        for flight in self._flights.values():
            flight.since += pause
        for progress in self._waiting:
            progress.paused(pause)

    def _send(self, now: float) -> None:
        view, most = self._cluster.view, self._config.fetch_max_bytes
        self._answers.check_topics(self._waiting)
        for fetch in plan_fetches(self._waiting, view, self._flights, most, now):
            if len(self._flights) >= NODES:
                break
            for asked in fetch.asked.values():
                asked.progress.is_asked = True
                asked.progress.take_turn(now)
                asked.progress.begin(now)
            task = asyncio.create_task(self._fetch(fetch), name=f"fetch ranges from node {fetch.node_id}")
            self._flights[fetch.node_id] = _Flight(fetch, task, now)
        for progress in self._waiting:
            if not progress.is_asked:
                self._answers.take_a_place(progress, now)
        if self._refreshing is None and self._answers.must_refresh(self._waiting, now):
            self._refreshing = asyncio.create_task(self._refresh(), name="refresh for ranges")

    async def _wait(self, now: float) -> None:
        """Wait until a task ends, or the time of the next check; then check timeouts."""
        tasks = {flight.task for flight in self._flights.values()}
        if self._refreshing is not None:
            tasks.add(self._refreshing)
        limit = self._config.request_timeout + self._config.fetch_max_wait
        due = [flight.since + limit for flight in self._flights.values()]
        due += self._answers.due_times(self._waiting, now)
        timeout = max(0.0, min(due, default=now + limit) - now)
        if tasks:
            await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(timeout)
        now = asyncio.get_running_loop().time()
        for node_id, flight in list(self._flights.items()):
            if now >= flight.since + limit:
                await self._abandon(node_id, flight)
        self._answers.check_patience(self._waiting, now)

    async def _fetch(self, fetch: RangeFetch) -> None:
        asked = [one.progress for one in fetch.asked.values()]
        try:
            response = await self._cluster.request_versioned(
                fetch.node_id,
                m.FetchRequest,
                lambda version: fetch.request(self._config, version),
                lane=LANE,
                timeout=max(LOST_PATIENCE, self._config.request_timeout),
                highest=fetch.highest,
            )
            if response.error_code:
                raise BrokerError(response.error_code, f"fetch from node {fetch.node_id}")
            await self._take(fetch, response)
        except AsyncGroupError as error:
            self._answers.failed(asked, error)
        except Exception as error:  # noqa: BLE001  raised by `advance`
            self._answers.fail(error)
        finally:
            for progress in asked:
                progress.is_asked = False
            flight = self._flights.get(fetch.node_id)
            if flight is not None and flight.task is asyncio.current_task():
                del self._flights[fetch.node_id]

    async def _take(self, fetch: RangeFetch, response: m.FetchResponse) -> None:
        unanswered = dict(fetch.asked)
        empty: set[TopicPartition] = set()
        for asked, outcome in fetch.outcomes(response):
            unanswered.pop(asked.progress.tp, None)
            if not await self._answers.take(asked, outcome):
                empty.add(asked.progress.tp)
        if 0 < len(empty) < len(fetch.asked):
            now = asyncio.get_running_loop().time()
            for tp in empty:
                fetch.asked[tp].progress.crowded_out(now)
        if unanswered:
            error = BrokerError(-1, f"fetch from node {fetch.node_id}", "the response lacks partitions")
            self._answers.failed([one.progress for one in unanswered.values()], error)
        # ranges that wait for their log to grow must not delay the ranges after them
        self._waiting = sorted(self._waiting, key=lambda progress: progress.tp in empty)

    async def _abandon(self, node_id: int, flight: _Flight) -> None:
        """Give up a Fetch that was not answered in time; the next one uses a new connection."""
        self._flights.pop(node_id, None)
        self._cluster.abandon_lane(node_id, LANE)
        await cancel_and_wait(flight.task)
        silent = f"node {node_id} has not answered a fetch for {self._config.request_timeout:g} s"
        self._answers.failed(flight.progresses, RequestTimedOut(silent))

    async def _refresh(self) -> None:
        try:
            await self._cluster.refresh()
        except AsyncGroupError as error:
            if not is_retriable_error(error):
                self._answers.fail(error)
            self._answers.refreshed(self._waiting, error)
        else:
            self._answers.refreshed(self._waiting, None)
        finally:
            self._refreshing = None

    async def aclose(self) -> None:
        """Cancel fetches in flight; abandon their connections, so that late responses do not delay the next reader."""
        flights, self._flights = self._flights, {}
        for node_id in flights:
            self._cluster.abandon_lane(node_id, LANE)
        tasks: list[asyncio.Task[Any]] = [flight.task for flight in flights.values()]
        if self._refreshing is not None:
            tasks.append(self._refreshing)
        await cancel_and_wait(*tasks)
