"""Produce the flights to their topic, and compute the expected results."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from asyncgroup.cli.common import rate, size
from asyncgroup.cli.demo.expected import PipelineFigures
from asyncgroup.cli.demo.flights import Figures, Flight, in_order, read_flights
from asyncgroup.cli.demo.screen import Screen
from asyncgroup.cli.demo.target import DemoTarget
from asyncgroup.config import ProducerConfig
from asyncgroup.producer import Producer

__all__ = ["Expected", "load", "produce"]

STEP = 2_000
"""Flights between two updates of the progress bar."""


@dataclass(frozen=True)
class Expected:
    """The expected results, computed from the CSV."""

    figures: Figures
    """Of the group."""
    pipeline: PipelineFigures
    """Of Spark's queries."""
    last: int
    """The latest event time in minutes since 1970."""


def load(data: Path, rows: int | None) -> tuple[Sequence[Flight], Expected]:
    """Return the first `rows` of the CSV (None: all) in the order of producing, and the expected results.

    Blocks for seconds.
    """
    flights = in_order(islice(read_flights(data), rows))
    figures = Figures()
    for flight in flights:
        figures.add(flight.carrier, flight.dep_delay)
    last = max(flight.scheduled for flight in flights)
    return flights, Expected(figures, PipelineFigures.of(flights), last)


async def produce(target: DemoTarget, flights: Sequence[Flight], screen: Screen) -> None:
    """Produce the flights with the carrier as key, so that the flights of a carrier keep their order."""
    time = asyncio.get_running_loop().time
    begun = time()
    with screen.bar("producing flights", len(flights)) as bars:
        async with Producer(target.bootstrap_servers, target.config(ProducerConfig)) as producer:
            for number, flight in enumerate(flights, 1):
                await producer.enqueue(target.topic, flight.value, key=flight.carrier.encode())
                if number % STEP == 0:
                    bars.update(bars.task_ids[0], completed=number)
            await producer.flush()
    count, duration = len(flights), time() - begun
    total = size(sum(len(flight.value) for flight in flights))
    screen.say(f"produced {count:,} flights ({total}) in {duration:.1f} s: {rate(count, duration)}")
