"""`asyncgroup demo --only-produce`: create the topics on a running Kafka, produce the flights, and keep them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from asyncgroup.cli.admin import Admin
from asyncgroup.cli.demo.flights import find_data
from asyncgroup.cli.demo.produce import load, produce
from asyncgroup.cli.demo.screen import Screen
from asyncgroup.cli.demo.target import DemoTarget
from asyncgroup.cluster import Cluster
from asyncgroup.config import ClientConfig

__all__ = ["fill"]


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
        admin = Admin(cluster)
        for topic, partitions in target.topics.items():
            await admin.create_topic(topic, partitions)
    with screen.waiting("reading the flights"):
        flights, _ = await asyncio.to_thread(load, data, rows)
    await produce(target, flights, screen)
    screen.say(f"created the topics {' and '.join(map(repr, target.topics))}; they are not removed")
