"""The demonstration from beginning to end."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from asyncgroup.cli.common import rate, size
from asyncgroup.cli.demo.flights import Figures, airlines, find_data, read_flights
from asyncgroup.cli.demo.group_run import GroupRun
from asyncgroup.cli.demo.place import PARTITIONS, Place, embedded, running
from asyncgroup.cli.demo.progress import DemoFailed
from asyncgroup.cli.demo.screen import Screen
from asyncgroup.cli.demo.sinks import Found, Ledger, LedgerHandler, ParquetSink
from asyncgroup.cli.demo.verify import differences, verdict
from asyncgroup.errors import AsyncGroupError
from asyncgroup.group import Handler
from asyncgroup.lifecycle import finish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Story"]

FLIGHTS: Final = 336_776

BATCH_ROWS: Final = 20_000
BATCH_WAIT: Final = 0.3
"""Rows of one DataFrame, and the seconds it waits for them: few large writes are faster than many small ones."""


class Story:
    """Tells it once."""

    def __init__(
        self, *, bootstrap_servers: str | None, with_spark: bool, keep: Path | None, as_json: bool
    ) -> None:
        self._servers, self._with_spark, self._keep, self._as_json = (
            bootstrap_servers,
            with_spark,
            keep,
            as_json,
        )
        self._screen = Screen(to_stderr=as_json)
        self._time = asyncio.get_running_loop().time
        self._expected = Figures()
        self._group_run: GroupRun
        self._seconds: dict[str, float] = {}

    async def run(self) -> int:
        """The whole story; the exit code."""
        data, begun = find_data(), self._time()
        async with AsyncExitStack() as stack:
            spark = await self._start_spark(stack) if self._with_spark else None
            place = await stack.enter_async_context(running(self._servers) if self._servers else embedded())
            self._screen.say(place.description)
            self._screen.say(f"topic {place.topic!r} with {PARTITIONS} partitions, group {place.group_id!r}")
            await self._timed("produce", self._produce(place, data))
            make_handler, read = await self._sink(stack, spark)
            await self._timed("consume", self._consume(place, make_handler))
            with self._screen.waiting("reading everything back"):
                found = await self._timed("read", asyncio.to_thread(read, self._expected.flights))
            wrong = differences(self._expected, found)
            source = "Spark reads them from Parquet" if self._with_spark else "the handlers counted them"
            self._screen.result(self._expected, found, airlines(data), source)
        self._seconds["all"] = self._time() - begun
        self._conclude(place, found, wrong)
        return 1 if wrong else 0

    async def _timed(self, what: str, work: Awaitable[Any]) -> Any:
        begun = self._time()
        result = await work
        self._seconds[what] = self._time() - begun
        return result

    # --- Spark and the sink -------------------------------------------------------------------------------------

    async def _start_spark(self, stack: AsyncExitStack) -> asyncio.Task[SparkSession]:
        """Start Spark beside the producing; it is stopped at the end."""
        from asyncgroup.spark import local_session, require_spark

        try:
            await asyncio.to_thread(require_spark)
        except AsyncGroupError as error:
            raise DemoFailed(
                f"{str(error).rstrip('.')}. Or leave Spark out: asyncgroup demo --no-spark"
            ) from error
        # a short run gains more from a quick compiler than from a thorough one: 24 s of CPU instead of 40
        config = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
        cores = min(4, os.cpu_count() or 1)
        starting = asyncio.create_task(
            asyncio.to_thread(local_session, "asyncgroup demo", cores=cores, config=config),
            name="start Spark",
        )

        async def stop() -> None:
            await asyncio.wait([starting])
            if not starting.cancelled() and starting.exception() is None:
                await asyncio.to_thread(starting.result().stop)

        stack.push_async_callback(lambda: finish(asyncio.create_task(stop(), name="stop Spark")))
        return starting

    async def _sink(
        self, stack: AsyncExitStack, starting: asyncio.Task[SparkSession] | None
    ) -> tuple[Callable[[], Handler], Callable[[int], Found]]:
        """What makes a member's handler, and what reads everything back."""
        if starting is None:
            ledger = Ledger()
            return lambda: LedgerHandler(ledger), ledger.read
        from asyncgroup.spark import ForeachBatch

        with self._screen.waiting("Spark starts"):
            spark = await starting
        where = f"{self._keep}" if self._keep is not None else "a temporary directory"
        self._screen.say(f"Spark {spark.version} writes Parquet to {where}")
        if self._keep is None:
            root = Path(tempfile.mkdtemp(prefix="asyncgroup-demo-"))
            stack.callback(shutil.rmtree, root, ignore_errors=True)
        else:
            root = self._keep
        sink = ParquetSink(spark, root)
        return lambda: ForeachBatch(spark, sink, max_rows=BATCH_ROWS, max_wait=BATCH_WAIT), sink.read

    # --- producing ----------------------------------------------------------------------------------------------

    async def _produce(self, place: Place, data: Path) -> None:
        from asyncgroup.producer import Producer

        begun, total = self._time(), 0
        with self._screen.bar("producing flights", FLIGHTS) as bars:
            async with Producer(place.bootstrap_servers) as producer:
                for flight in read_flights(data):
                    await producer.enqueue(place.topic, flight.value, key=flight.carrier.encode())
                    self._expected.add(flight.carrier, flight.dep_delay)
                    total += len(flight.value)
                    if flight.row % 2_000 == 0:
                        bars.update(bars.task_ids[0], completed=flight.row)
                await producer.flush()
        count, duration = self._expected.flights, self._time() - begun
        self._screen.say(
            f"produced {count:,} flights ({size(total)}) in {duration:.1f} s: {rate(count, duration)}"
        )

    # --- consuming ----------------------------------------------------------------------------------------------

    async def _consume(self, place: Place, make_handler: Callable[[], Handler]) -> None:
        run = self._group_run = GroupRun(place, self._expected.flights, make_handler)
        try:
            async with self._screen.watch(run.members, run.progress, run.events):
                await run.run()
        finally:
            await run.aclose()

    # --- the end ------------------------------------------------------------------------------------------------

    def _conclude(self, place: Place, found: Found, wrong: list[str]) -> None:
        for difference in wrong:
            self._screen.say(difference, "bold red")
        rebalances = self._group_run.rebalances
        self._screen.say(
            f"{len(rebalances)} rebalances under load, generations "
            + ", ".join(f"{each.generation_before} to {each.generation_after}" for each in rebalances)
            + "; "
            + ", ".join(f"{what} {seconds:.1f} s" for what, seconds in self._seconds.items())
        )
        if self._keep is not None:
            self._screen.say(f"the Parquet files are in {self._keep}")
        self._screen.say(verdict(self._expected, found, wrong), "bold red" if wrong else "bold green")
        if self._as_json:
            print(json.dumps(self._result(place, found, wrong), indent=2))

    def _result(self, place: Place, found: Found, wrong: list[str]) -> dict[str, Any]:
        return {
            "exactly_once": not wrong,
            "flights": self._expected.flights,
            "distinct": found.distinct,
            "counted": found.figures.flights,
            "differences": wrong,
            "carriers": {
                code: {"flights": each.flights, "mean_dep_delay": each.mean_delay}
                for code, each in sorted(found.figures.carriers.items())
            },
            "rebalances": [asdict(each) for each in self._group_run.rebalances],
            "bootstrap_servers": place.bootstrap_servers,
            "sink": "spark" if self._with_spark else "handlers",
            "seconds": {what: round(seconds, 3) for what, seconds in self._seconds.items()},
        }
