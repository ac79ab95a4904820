"""Testing tools: pytest fixtures with an embedded Kafka or Pulsar, and an event loop in virtual time with an in-memory network.

    @pytest.mark.kafka(topics={"orders": 6}, nodes=3)
    async def test_my_service(kafka_cluster):            # virtual_kafka: in virtual time; kafka_server: for blocking code
        await my_service(kafka_cluster.bootstrap_servers)

    @pytest.mark.pulsar(topics={"orders": 6})
    async def test_it_on_pulsar(pulsar_cluster):         # virtual_pulsar, pulsar_server
        await my_service(pulsar_cluster.service_url)

The fixtures come with the package's pytest plugin (`asyncgroup.testing.pytest_plugin`). The virtual-time loop and its
network can also be used on their own:

    from asyncgroup.testing import current_network, run_virtual

    async def story():
        network = current_network()
        server = await asyncio.start_server(handle, "10.0.0.1", 9092)
        network.blackhole("10.0.0.1", 9092)      # drops all traffic of this address ...
        await asyncio.sleep(600)                 # ... for ten minutes of virtual time, which pass at once
        network.heal()

    run_virtual(story())

`asyncgroup.testing.apache_kafka` starts a real Apache Kafka, `asyncgroup.testing.apache_pulsar` a real Apache Pulsar.
Each name is imported on first use.

Five rooms: `virtual` (the loop and its network), `kit` (what the fixtures do), `apache_kafka` and `apache_pulsar` (the
launchers), over `java_server` (child processes, downloads). The files beside them are what users import:

- `pytest_plugin`, with the faults of its marker in `fault_options`.
- `kafka_server`, with its thread in `server_thread` and its faults and history in `server_facades`; so is `pulsar_server`, with
  `pulsar_fault_options`. What both share is in `threaded_server`.
- `memory_source`, for a work queue without a broker; `memory_engine` is its engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgroup.lazy_names import lazy_names

if TYPE_CHECKING:
    from asyncgroup.testing.kafka_server import KafkaServer
    from asyncgroup.testing.kit.clusters import VirtualKafka
    from asyncgroup.testing.kit.pulsar_clusters import VirtualPulsar
    from asyncgroup.testing.memory_source import MemorySource
    from asyncgroup.testing.pulsar_server import PulsarServer
    from asyncgroup.testing.virtual.connection import Link
    from asyncgroup.testing.virtual.errors import (
        VirtualDeadlock,
        VirtualLivelock,
        VirtualTimeError,
        VirtualTimeLimit,
    )
    from asyncgroup.testing.virtual.loop import VirtualTimeLoop, current_network, run_virtual
    from asyncgroup.testing.virtual.network import Network
    from asyncgroup.testing.virtual.server import VirtualServer
    from asyncgroup.testing.virtual.transport import VirtualTransport

__all__ = [
    "KafkaServer",
    "Link",
    "MemorySource",
    "Network",
    "PulsarServer",
    "VirtualDeadlock",
    "VirtualKafka",
    "VirtualLivelock",
    "VirtualPulsar",
    "VirtualServer",
    "VirtualTimeError",
    "VirtualTimeLimit",
    "VirtualTimeLoop",
    "VirtualTransport",
    "current_network",
    "run_virtual",
]

_NAMES = {
    "kafka_server": ["KafkaServer"],
    "kit.clusters": ["VirtualKafka"],
    "kit.pulsar_clusters": ["VirtualPulsar"],
    "memory_source": ["MemorySource"],
    "pulsar_server": ["PulsarServer"],
    "virtual.connection": ["Link"],
    "virtual.errors": ["VirtualDeadlock", "VirtualLivelock", "VirtualTimeError", "VirtualTimeLimit"],
    "virtual.loop": ["VirtualTimeLoop", "current_network", "run_virtual"],
    "virtual.network": ["Network"],
    "virtual.server": ["VirtualServer"],
    "virtual.transport": ["VirtualTransport"],
}
"""The public names of each module."""


if not TYPE_CHECKING:  # type checkers would take any name for an existing one if they saw __getattr__
    __getattr__, __dir__ = lazy_names(__name__, _NAMES)
