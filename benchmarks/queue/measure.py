"""Measure one client in one case: start its process, feed it if needed, and collect its figures."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from asyncgroup import Cluster
from benchmarks.common import ClientFailed
from benchmarks.queue.cases import CASES, CLIENTS, Client
from benchmarks.queue.load import Settings
from benchmarks.queue.process import START_LIMIT, MeasuredProcess, start_process
from benchmarks.queue.topics import produce_fresh
from benchmarks.topic import Topic

__all__ = ["Measurement", "command_of", "measure"]

FRESH_RATE: Final = 100.0
"""Fresh records per second."""
WAITING_LIMIT: Final = 15.0
"""Seconds for the first delivery of all poison records, before the fresh records are produced."""
PERCENT: Final = 100


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One client in one case in one round. `counted` records were handled in `seconds`, after the warm-up."""

    client: str
    case: str
    round: int
    records: int
    """Healthy records that were to be handled."""
    handled: int
    counted: int
    seconds: float
    cpu_seconds: float
    committed: int
    """Records below the group's committed offsets afterwards, with the poison records."""
    failed: int
    """Failed deliveries of poison records."""
    poison_seen: int
    p50: float | None
    """Seconds from the production of a fresh record to the start of its handler."""
    p99: float | None
    peak: int
    """Bytes of resident memory at its peak."""

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.counted / self.seconds if self.seconds > 0 else 0.0

    @property
    def cpu_per_record(self) -> float | None:
        """Microseconds of CPU time per record."""
        return self.cpu_seconds / self.counted * 1e6 if self.counted and self.cpu_seconds else None


def command_of(client: Client, program: Sequence[str], settings: Settings) -> list[str]:
    """Return the command of a client; `program` is its Python, or the complete command of the program in Java."""
    if not client.function:
        return [*program, *(f"{name}={value}" for name, value in asdict(settings).items())]
    python = list(program) or [sys.executable]
    return [
        *python,
        "-m",
        "benchmarks.worker",
        client.function,
        json.dumps(asdict(settings)),
        "precise-timers",
    ]


async def measure(
    cluster: Cluster,
    topic: Topic,
    name: str,
    case: str,
    index: int,
    settings: Settings,
    program: Sequence[str],
) -> Measurement:
    """Run a client in a separate process and return its figures. Raises ClientFailed."""
    async with start_process(name, command_of(CLIENTS[name], program, settings)) as process:
        if not await process.printed("ready", START_LIMIT):
            await process.result()  # raises with what it printed
            raise ClientFailed(f"{name} was not ready within {START_LIMIT:g} s")
        process.go_on()
        await _accompany(cluster, topic, CASES[case].kind, settings, process)
        peak = process.peak_memory()
        process.go_on()
        figures = await process.result()
    committed = max(0, await topic.committed(settings.group_id))
    return _measurement(name, case, index, settings, figures, peak=peak, committed=committed)


async def _accompany(
    cluster: Cluster, topic: Topic, kind: str, settings: Settings, process: MeasuredProcess
) -> None:
    """Return when the measurement has ended, or should end."""
    if kind == "block":
        if settings.records:
            await process.printed("blocked", START_LIMIT)
        await process.ended(settings.limit)
        return
    if kind == "fresh":
        await process.printed("waiting", WAITING_LIMIT)
        await produce_fresh(cluster, topic, settings.records, FRESH_RATE)
        await process.ended(settings.limit / 2)
        return
    await process.ended(START_LIMIT + settings.limit)


def _measurement(
    name: str, case: str, index: int, settings: Settings, figures: dict[str, Any], **others: Any
) -> Measurement:
    delays: list[float] = figures.pop("delays")
    p50 = p99 = None
    if len(delays) > 1:
        cuts = statistics.quantiles(delays, n=PERCENT, method="inclusive")
        p50, p99 = cuts[49], cuts[98]
    return Measurement(
        client=name, case=case, round=index, records=settings.records, p50=p50, p99=p99, **figures, **others
    )
