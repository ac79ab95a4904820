from __future__ import annotations

from pathlib import Path

import pytest

from asyncgroup.errors import ConfigError
from asyncgroup.testing.apache_kafka import ApacheKafka
from asyncgroup.testing.apache_kafka.properties import server_properties
from asyncgroup.testing.java_server.properties_file import property_text

PORTS = {1: (101, 102), 2: (201, 202), 3: (301, 302)}


def test_each_node_knows_all_voters() -> None:
    properties = server_properties(2, PORTS, [Path("/data")], {})
    assert properties["node.id"] == 2
    assert properties["controller.quorum.voters"] == "1@127.0.0.1:102,2@127.0.0.1:202,3@127.0.0.1:302"
    assert properties["listeners"] == "PLAINTEXT://127.0.0.1:201,CONTROLLER://127.0.0.1:202"
    assert properties["log.dirs"] == "/data"
    properties = server_properties(2, PORTS, [Path("/data"), Path("/data-2")], {})
    assert properties["log.dirs"] == "/data,/data-2"


@pytest.mark.parametrize(("nodes", "factor", "in_sync"), [(1, 1, 1), (2, 2, 1), (3, 3, 2)])
def test_replication_follows_the_number_of_nodes(nodes: int, factor: int, in_sync: int) -> None:
    properties = server_properties(
        1, {node: PORTS[node] for node in range(1, nodes + 1)}, [Path("/data")], {}
    )
    assert properties["offsets.topic.replication.factor"] == factor
    assert properties["transaction.state.log.min.isr"] == in_sync


def test_overrides_replace_the_quick_settings_but_not_the_reserved_ones() -> None:
    properties = server_properties(
        1, PORTS, [Path("/data")], {"num.partitions": 9, "compression.type": "zstd"}
    )
    assert (properties["num.partitions"], properties["compression.type"]) == (9, "zstd")
    with pytest.raises(ConfigError, match=r"log\.dirs='/elsewhere' is not allowed"):
        ApacheKafka(properties={"log.dirs": "/elsewhere"})


def test_additional_listeners() -> None:
    properties = server_properties(1, PORTS, [Path("/data")], {}, {"SECURE": ("SASL_SSL", 103)})
    assert properties["listeners"] == (
        "PLAINTEXT://127.0.0.1:101,CONTROLLER://127.0.0.1:102,SECURE://127.0.0.1:103"
    )
    assert properties["advertised.listeners"] == "PLAINTEXT://127.0.0.1:101,SECURE://127.0.0.1:103"
    assert str(properties["listener.security.protocol.map"]).endswith(",PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL")


@pytest.mark.parametrize(
    ("listeners", "message"),
    [
        ({"secure": "SSL"}, "listeners='secure' .*names of A-Z"),
        ({"CONTROLLER": "SSL"}, "except PLAINTEXT and CONTROLLER"),
        ({"SECURE": "TLS"}, "listeners='TLS' .*SASL_SSL"),
    ],
)
def test_invalid_listeners(listeners: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ApacheKafka(listeners=listeners)


def test_a_cluster_needs_a_node() -> None:
    with pytest.raises(ConfigError, match="nodes=0 is not allowed: at least 1"):
        ApacheKafka(0)


def test_text_is_escaped_as_java_reads_it() -> None:
    text = property_text({"a": True, "b": 1, "c": "x\\y\nz", "d": " lead", "e": "Zoë 🐍", "f": "p=q:r#!"})
    assert (
        text
        == (
            "a=true\nb=1\nc=x\\u005cy\\u000az\nd=\\ lead\ne=Zo\\u00eb \\ud83d\\udc0d\nf=p=q:r#!\n"  # one line each
        )
    )
