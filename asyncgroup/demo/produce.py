"""Produce the flights to their topic, and compute the expected results; `fill` does only that, on a running Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from asyncgroup.cluster import Cluster
from asyncgroup.config import ClientConfig, ProducerConfig
from asyncgroup.counting import counted, rate, size
from asyncgroup.demo.expected import PipelineFigures
from asyncgroup.demo.flights import Figures, Flight, find_data, in_order, read_flights
from asyncgroup.demo.screen import Screen
from asyncgroup.demo.target import DemoTarget, TargetAdmin
from asyncgroup.producer import Producer

__all__ = ["Expected", "fill", "load", "produce"]

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
    screen.say(f"produced {counted(count, 'flight')} ({total}) in {duration:.1f} s: {rate(count, duration)}")


async def fill(
    bootstrap_servers: str, rows: int | None, screen: Screen, properties: Mapping[str, str]
) -> None:
    """Create the topics `flights` and `flights-streaks`, and produce the first `rows` flights (None: all) to `flights`.

    `properties` are the connection properties of the clients. Raises BrokerError if one of the topics exists: with the
    same flights twice the results would be wrong.
    """
    description = f"Kafka at {bootstrap_servers}"
    target = DemoTarget(bootstrap_servers, "flights", "flights-by-carrier", description, properties)
    data = find_data()
    async with Cluster(bootstrap_servers, target.config(ClientConfig)) as cluster:
        admin = TargetAdmin(cluster)
        for topic, partitions in target.topics.items():
            await admin.create_topic(topic, partitions)
    with screen.waiting("reading the flights"):
        flights, _ = await asyncio.to_thread(load, data, rows)
    await produce(target, flights, screen)
    screen.say(f"created the topics {' and '.join(map(repr, target.topics))}; they are not removed")
