"""The demonstration from start to end: produce, consume with a group, run Spark's queries, compare, report."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from asyncgroup.demo.expected import PipelineFigures
from asyncgroup.demo.flights import airlines, find_data
from asyncgroup.demo.group_run import GroupRun
from asyncgroup.demo.produce import Expected, load, produce
from asyncgroup.demo.queries import Queries, start_spark
from asyncgroup.demo.report import Phases, comparison, differences, longest_streaks, verdict
from asyncgroup.demo.screen import Screen
from asyncgroup.demo.sinks import FoundFlights, MemorySink, MemorySinkHandler, decoded, read_back
from asyncgroup.demo.target import PARTITIONS, DemoTarget, embedded, running
from asyncgroup.demo.views import GroupProgressView, QueryProgressView
from asyncgroup.group import Handler
from asyncgroup.lifecycle import cancel_and_wait

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Demo", "DemoOptions"]

BATCH_ROWS: Final = 30_000
"""The maximum of rows of one DataFrame: few large writes are faster than many small ones."""
BATCH_WAIT: Final = 0.3
"""Seconds to wait for the rows of one DataFrame."""

MIN_BATCHES: Final = 10
"""Fewer flights are read in smaller batches, so that the rebalances take place while records are consumed."""

MEMORY_BATCH_ROWS: Final = 1_000
"""The maximum of records of a batch without Spark."""
MIN_MEMORY_BATCHES: Final = 64
"""As MIN_BATCHES, without Spark; more, as each of five claims may get one more batch when the gate closes."""


@dataclass(frozen=True)
class DemoOptions:
    """The options of the command."""

    bootstrap_servers: str | None = None
    """None runs an embedded cluster."""
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The clients' connection properties (TLS, SASL), by Kafka's names."""
    with_spark: bool = True
    rows: int | None = None
    """The number of flights; None means all."""
    keep: Path | None = None
    """The directory for the results; None means a temporary one."""
    as_json: bool = False


@dataclass
class DemoResult:
    """The results, for the last lines and for the JSON object."""

    expected: Expected
    found: FoundFlights
    """The results of the group."""
    wrong: list[str] = field(default_factory=list)
    """Differences from the expected results, in words."""
    pipeline: PipelineFigures | None = None
    """The results of Spark's queries."""
    plot: Path | None = None


class Demo:
    """One run of the demonstration."""

    def __init__(self, options: DemoOptions) -> None:
        self._options = options
        self._screen = Screen(to_stderr=options.as_json)
        self._group_run: GroupRun
        self._phases = Phases(asyncio.get_running_loop().time)

    async def run(self) -> int:
        """Run the demonstration, and return its exit code."""
        data, servers = find_data(), self._options.bootstrap_servers
        names = airlines(data)
        async with AsyncExitStack() as stack:
            starting = await start_spark(stack) if self._options.with_spark else None
            target = await stack.enter_async_context(
                running(servers, self._options.properties) if servers else embedded()
            )
            self._screen.say(target.description)
            self._screen.say(
                f"topic {target.topic!r} with {PARTITIONS} partitions, group {target.group_id!r}"
            )
            expected = await self._timed("produce", self._fill(target, data))
            if starting is None:
                memory_sink, flights = MemorySink(), expected.figures.flights
                max_records = max(1, min(MEMORY_BATCH_ROWS, flights // MIN_MEMORY_BATCHES))
                outcome = await self._group(
                    target,
                    expected,
                    names,
                    lambda: MemorySinkHandler(memory_sink, max_records),
                    memory_sink.read,
                )
            else:
                outcome = await self._with_spark(target, expected, names, starting)
        self._conclude(target, outcome)
        return 1 if outcome.wrong else 0

    async def _timed(self, what: str, work: Awaitable[Any]) -> Any:
        with self._phases.phase(what):
            return await work

    async def _fill(self, target: DemoTarget, data: Path) -> Expected:
        with self._screen.waiting("reading the flights"):
            flights, expected = await asyncio.to_thread(load, data, self._options.rows)
        await produce(target, flights, self._screen)
        return expected

    # --- the group ----------------------------------------------------------------------------------------------

    async def _group(
        self,
        target: DemoTarget,
        expected: Expected,
        names: dict[str, str],
        make_handler: Callable[[], Handler],
        read: Callable[[int], FoundFlights],
    ) -> DemoResult:
        await self._timed("group", self._consume(target, expected.figures.flights, make_handler))
        with self._screen.waiting("reading everything back"):
            found = await self._timed("read", asyncio.to_thread(read, expected.figures.flights))
        source = "Spark reads them from Parquet" if self._options.with_spark else "the handlers counted them"
        self._screen.table(comparison(expected.figures, found, names, source))
        return DemoResult(expected, found, differences(expected.figures, found))

    async def _consume(self, target: DemoTarget, total: int, make_handler: Callable[[], Handler]) -> None:
        run = self._group_run = GroupRun(target, total, make_handler)
        try:
            async with self._screen.watch(GroupProgressView(run.members, run.progress, run.events)):
                await run.run()
        finally:
            await run.aclose()

    # --- Spark --------------------------------------------------------------------------------------------------

    async def _with_spark(
        self,
        target: DemoTarget,
        expected: Expected,
        names: dict[str, str],
        starting: asyncio.Task[SparkSession],
    ) -> DemoResult:
        from asyncgroup.spark import ForeachBatch, ParquetByRange

        with self._screen.waiting("Spark starts"):
            spark = await self._timed("Spark", starting)
        results = _ResultsDirectory(self._options.keep)
        well = False
        try:
            self._screen.say(f"Spark {spark.version} writes to {results.root}")
            sink = ParquetByRange(spark, results.flights, transform=decoded)
            flights = expected.figures.flights
            max_rows = max(1, min(BATCH_ROWS, flights // MIN_BATCHES))
            queries = Queries(spark, target, results.root, flights)
            # the queries run at the same time as the group: neither of them alone uses two cores
            catching_up = asyncio.create_task(queries.catch_up(), name="queries")
            try:
                outcome = await self._group(
                    target,
                    expected,
                    names,
                    lambda: ForeachBatch(spark, sink, max_rows=max_rows, max_wait=BATCH_WAIT),
                    lambda flights: read_back(spark, results.flights, flights),
                )
                outcome.pipeline = await self._pipeline(queries, catching_up, expected, names)
            finally:
                await cancel_and_wait(catching_up)
            outcome.wrong += expected.pipeline.differences(outcome.pipeline)
            outcome.plot = queries.plot
            well = True
        finally:
            await asyncio.to_thread(results.clean_up, well=well)
        return outcome

    async def _pipeline(
        self, queries: Queries, catching_up: asyncio.Task[None], expected: Expected, names: dict[str, str]
    ) -> PipelineFigures:
        self._screen.say("\nSpark's queries read the same topic concurrently, with format('asyncgroup')")
        async with self._screen.watch(QueryProgressView(queries)):
            await self._timed("queries", catching_up)
        self._screen.say("a heartbeat advances the watermark; the queries continue from their checkpoints")
        await queries.advance_watermark(expected.last)
        async with self._screen.watch(QueryProgressView(queries)):
            await self._timed("queries", queries.catch_up())
        with self._screen.waiting("reading the results back"):
            found: PipelineFigures = await self._timed("read", queries.read())
            await self._timed("read", queries.draw(names))
        self._screen.table(longest_streaks(found.streaks, names))
        return found

    # --- the report ---------------------------------------------------------------------------------------------

    def _conclude(self, target: DemoTarget, outcome: DemoResult) -> None:
        say, rebalances = self._screen.say, self._group_run.rebalances
        for difference in outcome.wrong:
            say(difference, "bold red")
        say(
            f"{len(rebalances)} rebalances under load, generations "
            + ", ".join(f"{each.generation_before} to {each.generation_after}" for each in rebalances)
        )
        say(self._phases.line())
        if outcome.pipeline is not None and outcome.plot is not None:
            hours, streaks = len(outcome.pipeline.hours), len(outcome.pipeline.streaks)
            say(f"{hours:,} hours of carriers and {streaks:,} streaks came out of the queries")
            say(f"plot     {outcome.plot}")
            say(f"Parquet  {outcome.plot.parent / 'delays'}")
        style = "bold red" if outcome.wrong else "bold green"
        say(verdict(outcome.expected.figures, outcome.found, outcome.wrong), style)
        if self._options.as_json:
            print(json.dumps(self._result(target, outcome), indent=2))

    def _result(self, target: DemoTarget, outcome: DemoResult) -> dict[str, Any]:
        found, pipeline = outcome.found, outcome.pipeline
        return {
            "exactly_once": not outcome.wrong,
            "flights": outcome.expected.figures.flights,
            "distinct": found.distinct,
            "counted": found.figures.flights,
            "differences": outcome.wrong,
            "carriers": {
                code: {"flights": each.flights, "mean_dep_delay": each.mean_delay}
                for code, each in sorted(found.figures.carriers.items())
            },
            "rebalances": [asdict(each) for each in self._group_run.rebalances],
            "hours": len(pipeline.hours) if pipeline is not None else None,
            "streaks": len(pipeline.streaks) if pipeline is not None else None,
            "plot": str(outcome.plot) if outcome.plot is not None else None,
            "bootstrap_servers": target.bootstrap_servers,
            "sink": "spark" if self._options.with_spark else "handlers",
            "seconds": self._phases.seconds(3),
        }


class _ResultsDirectory:
    """The directory that the user gave, or a new temporary one.

    In the user's directory all files are kept. Of a temporary one only the plot and the pipeline's Parquet files are kept
    after a success, and nothing after a failure.
    """

    def __init__(self, keep: Path | None) -> None:
        self._is_kept = keep is not None
        self.root = keep if keep is not None else Path(tempfile.mkdtemp(prefix="asyncgroup-demo-"))
        self.root.mkdir(parents=True, exist_ok=True)

    @property
    def flights(self) -> Path:
        """The directory to which the group writes through the bridge."""
        return self.root / "flights"

    def clean_up(self, *, well: bool) -> None:
        """Remove the files that are not kept; `well`: whether the demonstration was successful."""
        if self._is_kept:
            return
        for path in (self.flights, self.root / "checkpoints") if well else (self.root,):
            shutil.rmtree(path, ignore_errors=True)
