"""Reads ranges of offsets exactly: every record from start to before end that is in the log, as Arrow.

The reader is driven from outside: `advance` waits until something has come, and leaves the next Fetch on the wire;
`read` decodes what has come, without any waiting. So the brokers and the kernel work while records are decoded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from asyncgroup.cluster import Cluster
from asyncgroup.columns import MalformedTimestamp
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.list_offsets import is_retriable_error
from asyncgroup.errors import AsyncGroupError, BrokerError, CorruptRecordsError, RequestTimedOut
from asyncgroup.lifecycle import cancel_and_wait
from asyncgroup.model import TopicPartition
from asyncgroup.spark.arrow import ArrowBatches
from asyncgroup.spark.source.errors import malformed_timestamp
from asyncgroup.spark.source.range_answers import RangeAnswers
from asyncgroup.spark.source.range_fetch import RangeFetch, plan_fetches
from asyncgroup.spark.source.range_progress import RangeProgress
from asyncgroup.wire import messages as m

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RangeReader"]

_log = logging.getLogger("asyncgroup.spark")

LANE: Final = "ranges"
"""The connections that ranges are fetched by; a parked Fetch must not hold up lookups."""

NODES: Final = 4
"""Brokers that are asked at the same time, at most: each answer may be as large as `fetch_bytes`."""

LOST_PATIENCE: Final = 300.0
"""Seconds after which the connection itself gives a Fetch up. Spark may leave a task standing for minutes while a sink
is slow; meanwhile no loop runs, and the answer waits in the kernel. What counts is `request_timeout` of real waiting.
"""


class _Flight:
    """A Fetch under way; `since` is the loop's time from which its patience counts."""

    __slots__ = ("fetch", "since", "task")

    def __init__(self, fetch: RangeFetch, task: asyncio.Task[None], since: float) -> None:
        self.fetch, self.task, self.since = fetch, task, since

    @property
    def progresses(self) -> list[RangeProgress]:
        """The ranges that it asks for."""
        return [asked.progress for asked in self.fetch.asked.values()]


class RangeReader:
    """Reads the ranges of one task; `progresses` are read in this order where brokers allow it.

    `config` is what `fetching_config` makes. Belongs to the loop that `cluster` was opened on; `aclose` ends what is
    under way. `poll_timeout` is how many seconds a range may go without progress while somebody waits for it; `servers`
    names the cluster in errors.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        progresses: Iterable[RangeProgress],
        *,
        poll_timeout: float,
        fail_on_data_loss: bool = True,
        servers: str = "",
    ) -> None:
        self._cluster, self._config = cluster, config
        self.progresses = list(progresses)
        self._waiting = [progress for progress in self.progresses if not progress.is_done]
        self._answers = RangeAnswers(
            cluster, poll_timeout=poll_timeout, fail_on_data_loss=fail_on_data_loss, servers=servers
        )
        self._flights: dict[int, _Flight] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._left_at: float | None = None

    def __repr__(self) -> str:
        return f"<RangeReader: {len(self._waiting)} ranges left, {len(self._flights)} fetches under way>"

    @property
    def is_done(self) -> bool:
        """Whether all ranges were read to their ends."""
        return not self._waiting

    # --- decoding -----------------------------------------------------------------------------------------------

    def read(self, batches: ArrowBatches) -> Iterator[pa.RecordBatch]:
        """Decode what has come; yields batches as they become full, the rest stays in `batches`.

        Raises CorruptRecordsError and UnsupportedVersionError for what cannot be read (once more fetched, in vain),
        SourceError for a timestamp beyond any time.
        """
        for progress in self._waiting:
            while self._read_next(progress, batches):
                if batches.is_full:
                    yield from self.flush(batches)
        self._waiting = [progress for progress in self._waiting if not progress.is_done]

    def flush(self, batches: ArrowBatches) -> Iterator[pa.RecordBatch]:
        """What `batches` has gathered. Raises SourceError for a timestamp beyond any time."""
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
                "%s: fetched once more, as it may have been damaged on the way: %s", progress.tp, error
            )
            return False

    # --- fetching -----------------------------------------------------------------------------------------------

    async def advance(self) -> None:
        """Wait until there is something to read, or all has been read; the next requests are sent by then.

        Raises SourceError (data loss, no progress), BrokerError and whatever else does not heal.
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
            await asyncio.sleep(0)  # new tasks begin: their requests go to the kernel now
        finally:
            self._left_at = loop.time()

    def _resume(self, now: float) -> None:
        """The time in which nobody waited is nobody's delay."""
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
        """Until something ends, or somebody's patience does."""
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
        except Exception as error:  # noqa: BLE001  whatever it was, the task that waits must hear of it
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
        for asked, data in fetch.parts(response):
            unanswered.pop(asked.progress.tp, None)
            if not await self._answers.take(asked, data, response, fetch.node_id):
                empty.add(asked.progress.tp)
        if 0 < len(empty) < len(fetch.asked):
            now = asyncio.get_running_loop().time()
            for tp in empty:
                fetch.asked[tp].progress.crowded_out(now)
        if unanswered:
            error = BrokerError(-1, f"fetch from node {fetch.node_id}", "the answer lacks partitions")
            self._answers.failed([one.progress for one in unanswered.values()], error)
        # those that wait for their log to grow must not keep those behind them from being asked for
        self._waiting = sorted(self._waiting, key=lambda progress: progress.tp in empty)

    async def _abandon(self, node_id: int, flight: _Flight) -> None:
        """A broker is silent for too long: the next request goes by another connection."""
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
        """End what is under way; an answer that nobody waits for any more must not hold up the next reader's."""
        flights, self._flights = self._flights, {}
        for node_id in flights:
            self._cluster.abandon_lane(node_id, LANE)
        tasks: list[asyncio.Task[Any]] = [flight.task for flight in flights.values()]
        if self._refreshing is not None:
            tasks.append(self._refreshing)
        await cancel_and_wait(*tasks)
