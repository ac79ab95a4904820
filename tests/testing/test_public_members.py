"""The public members of every public class of `asyncgroup.testing`: what a user may call, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import pytest

import asyncgroup.testing
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.errors import AsyncGroupError
from asyncgroup.pulsar_broker import EmbeddedPulsar
from asyncgroup.testing import (
    KafkaServer,
    MemorySource,
    Network,
    PulsarServer,
    VirtualKafka,
    VirtualPulsar,
    VirtualTimeLoop,
    VirtualTransport,
    current_network,
    run_virtual,
)
from asyncgroup.testing.apache_kafka import ApacheKafka
from asyncgroup.testing.apache_pulsar import ApachePulsar, PulsarAdmin

MEMBERS: Final = {
    "ApacheKafka": "address bootstrap_servers cluster_id data kill log_tail node_ids pid restart resume run_tool start"
    " start_node stop stop_node suspend version",
    "ApachePulsar": "admin admin_url close data kill log_tail pid restart resume secret_key service_url service_url_tls"
    " start stop suspend token version",
    "KafkaServer": "advance bootstrap_servers call commit coordinator create_partitions create_topic delete_topic faults"
    " group groups history ignore_unused_faults leader move_coordinator move_leader produce records slow_node start_node"
    " stop_node",
    "Link": "client cut open_ends server",
    "MemorySource": "acked add close_timeout dead_letters features is_done partitions plan retried subscription topic"
    " wait_done",
    "Network": "blackhole chunk_size connections cut describe_faults heal hosts latency listeners refuse set_latency"
    " source window",
    "PulsarServer": "accept_token admin_url advance brokers call create_subscription create_topic cut delete_topic expire_token"
    " faults history ignore_unused_faults messages migrate produce restart_broker service_url slow_broker start_broker stop_broker subscription"
    " terminate topic topics transactions unload update_partitions",
    "VirtualDeadlock": "",
    "VirtualKafka": "advance network",
    "VirtualLivelock": "",
    "VirtualPulsar": "advance network",
    "VirtualServer": "abort_clients close close_clients get_loop is_serving serve_forever sockets start_serving wait_closed",
    "VirtualTimeError": "",
    "VirtualTimeLimit": "",
    "VirtualTimeLoop": "network real_work run_computation wall_clock",
    "VirtualTransport": "",
    # what a KafkaServer returns
    "PulsarAdmin": "create_namespace create_partitioned_topic create_subscription create_topic delete_subscription"
    " delete_topic grant internal_stats partitioned_stats partitions request set_policy set_topic_policy stats"
    " subscriptions terminate topics unload unload_namespace update_partitions",
    "ServerFault": "cancel hits release wait_hit",
    "ServerFaults": "clear on unused",
    "ServerHistory": "clear of story wait_for",
}
"""The members by class, without those of the base class: asyncio's transport and loop, EmbeddedCluster, AsyncGroupError."""


def members(thing: object, base: object = object) -> str:
    return " ".join(sorted(name for name in dir(thing) if not name.startswith("_") and name not in dir(base)))


async def _with_connection(describe: Callable[[Any, Any], tuple[str, str]]) -> tuple[str, str]:
    """Describe a server and a client's transport while they are connected."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "10.0.0.1", 9092)
    _, writer = await asyncio.open_connection("10.0.0.1", 9092)
    found = describe(server, writer.transport)
    writer.close()
    server.close()
    await server.wait_closed()
    return found


def test_every_public_class_is_listed() -> None:
    classes = [
        name for name in asyncgroup.testing.__all__ if isinstance(getattr(asyncgroup.testing, name), type)
    ]
    others = {"ApacheKafka", "ApachePulsar", "PulsarAdmin", "ServerFault", "ServerFaults", "ServerHistory"}
    assert set(classes) == MEMBERS.keys() - others


def test_a_kafka_server_and_what_it_returns() -> None:
    server = KafkaServer()
    assert members(server) == MEMBERS["KafkaServer"]
    assert members(server.faults) == MEMBERS["ServerFaults"]
    assert members(server.history) == MEMBERS["ServerHistory"]
    with server:
        assert members(server.faults.on("Fetch", optional=True)) == MEMBERS["ServerFault"]


def test_a_pulsar_server_and_what_it_returns() -> None:
    server = PulsarServer()
    assert members(server) == MEMBERS["PulsarServer"]
    assert members(server.faults) == MEMBERS["ServerFaults"]
    assert members(server.history) == MEMBERS["ServerHistory"]
    with server:
        assert members(server.faults.on("Send", optional=True)) == MEMBERS["ServerFault"]


def test_an_apache_kafka() -> None:
    assert members(ApacheKafka()) == MEMBERS["ApacheKafka"]


def test_an_apache_pulsar() -> None:
    assert members(ApachePulsar()) == MEMBERS["ApachePulsar"]
    assert members(PulsarAdmin("http://localhost:8080")) == MEMBERS["PulsarAdmin"]


def test_records_in_memory() -> None:
    assert members(MemorySource([b"a"])) == MEMBERS["MemorySource"]


def test_a_virtual_cluster() -> None:
    assert members(VirtualKafka(), EmbeddedCluster()) == MEMBERS["VirtualKafka"]
    assert members(VirtualPulsar(), EmbeddedPulsar()) == MEMBERS["VirtualPulsar"]


def test_the_network_and_its_connections() -> None:
    assert members(Network()) == MEMBERS["Network"]

    def describe(server: asyncio.Server, transport: VirtualTransport) -> tuple[str, str]:
        (link,) = current_network().connections()
        assert members(link) == MEMBERS["Link"]
        return members(server), members(transport, asyncio.Transport)

    found = run_virtual(_with_connection(describe))
    assert found == (MEMBERS["VirtualServer"], MEMBERS["VirtualTransport"])


def test_the_loop() -> None:
    loop, base = VirtualTimeLoop(), asyncio.SelectorEventLoop()
    try:
        assert members(loop, base) == MEMBERS["VirtualTimeLoop"]
    finally:
        loop.close()
        base.close()


@pytest.mark.parametrize(
    "name", ["VirtualDeadlock", "VirtualLivelock", "VirtualTimeError", "VirtualTimeLimit"]
)
def test_the_errors(name: str) -> None:
    assert members(getattr(asyncgroup.testing, name)("reason"), AsyncGroupError("reason")) == MEMBERS[name]
