"""Testing tools: pytest fixtures with an embedded Kafka, an event loop in virtual time with an in-memory network, and
a real Apache Kafka at hand.

    @pytest.mark.kafka(topics={"orders": 6}, nodes=3)
    async def test_my_service(kafka_cluster):            # virtual_kafka: in virtual time; kafka_server: for code that blocks
        await my_service(kafka_cluster.bootstrap_servers)

The fixtures come with the package's pytest plugin (`asyncgroup.testing.pytest_plugin`). What they stand on:

    from asyncgroup.testing import current_network, run_virtual

    async def story():
        network = current_network()
        server = await asyncio.start_server(handle, "10.0.0.1", 9092)
        network.blackhole("10.0.0.1", 9092)      # nothing gets through ...
        await asyncio.sleep(600)                 # ... for ten minutes, which take no time
        network.heal()

    run_virtual(story())

Names are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncgroup.testing.errors import (
        VirtualDeadlock,
        VirtualLivelock,
        VirtualTimeError,
        VirtualTimeLimit,
    )
    from asyncgroup.testing.kafka_server import KafkaServer
    from asyncgroup.testing.link import Link
    from asyncgroup.testing.loop import VirtualTimeLoop, current_network, run_virtual
    from asyncgroup.testing.network import Network
    from asyncgroup.testing.pytest_support import VirtualKafka
    from asyncgroup.testing.server import VirtualServer
    from asyncgroup.testing.transport import VirtualTransport

__all__ = [
    "KafkaServer",
    "Link",
    "Network",
    "VirtualDeadlock",
    "VirtualKafka",
    "VirtualLivelock",
    "VirtualServer",
    "VirtualTimeError",
    "VirtualTimeLimit",
    "VirtualTimeLoop",
    "VirtualTransport",
    "current_network",
    "run_virtual",
]

_HOMES = {
    "KafkaServer": "kafka_server",
    "Link": "link",
    "Network": "network",
    "VirtualDeadlock": "errors",
    "VirtualKafka": "pytest_support",
    "VirtualLivelock": "errors",
    "VirtualServer": "server",
    "VirtualTimeError": "errors",
    "VirtualTimeLimit": "errors",
    "VirtualTimeLoop": "loop",
    "VirtualTransport": "transport",
    "current_network": "loop",
    "run_virtual": "loop",
}
"""The module of each public name."""


if not TYPE_CHECKING:  # so that type checkers refuse names that are not there

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value: object = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
