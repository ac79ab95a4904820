"""`asyncgroup broker --set`: options and settings, errors that name the flag, and the warning for other machines."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from asyncgroup import Cluster
from asyncgroup.broker import ClusterOptions, EmbeddedCluster, ListenerSecurity
from asyncgroup.broker.metadata.config_repository import STATIC_SETTINGS
from asyncgroup.cli import main
from asyncgroup.cli.broker import exposure_warning
from asyncgroup.cli.broker_settings import cluster_options
from asyncgroup.cli.setting_values import Setting
from asyncgroup.config import ClientConfig
from asyncgroup.security import Scram, Security
from asyncgroup.wire import messages as m
from tests.cli.programs import broker


def options(*texts: str, nodes: int = 1) -> dict[str, Any]:
    return cluster_options([Setting(*text.split("=", 1)) for text in texts], nodes)


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("num.partitions=6", "default_partitions", 6),
        ("default_partitions=6", "default_partitions", 6),
        ("default.replication.factor=1", "default_replication_factor", 1),
        ("auto.create.topics.enable=false", "auto_create_topics", False),
        ("group.initial.rebalance.delay.ms=3000", "initial_rebalance_delay", 3.0),
        ("group.min.session.timeout.ms=6000", "group_min_session_timeout", 6.0),
        ("group.max.session.timeout.ms=6000", "group_max_session_timeout", 6.0),
        ("group.max.size=2", "group_max_size", 2),
        ("group.consumer.migration.policy=Upgrade", "group_consumer_migration_policy", "upgrade"),
        ("offsets.retention.minutes=2", "offsets_retention", 120.0),
        ("offsets.retention.check.interval.ms=500", "offsets_retention_check_interval", 0.5),
        ("log.retention.check.interval.ms=500", "retention_check_interval", 0.5),
        ("connections.max.idle.ms=60000", "connections_max_idle", 60.0),
        ("connections.max.idle.ms=-1", "connections_max_idle", None),
        ("connections_max_idle=5", "connections_max_idle", 5.0),
        ("queued.max.request.bytes=1000000", "queued_max_request_bytes", 1_000_000),
        ("history_bytes=1000000", "history_bytes", 1_000_000),
        ("broker.rack=a", "racks", ["a"]),
        ("seed=-7", "seed", -7),
        ("start_time=5", "start_time", 5),
        ("fsync=true", "fsync", True),
        ("offsets_append_delay=0.5", "offsets_append_delay", 0.5),
        ("history_limit=0", "history_limit", 0),
        ("log.retention.ms=5", "settings", {"log.retention.ms": "5"}),
        ("log.retention.hours=5", "settings", {"log.retention.hours": "5"}),
        ("users=alice:a=b", "security", ListenerSecurity(users={"alice": "a=b"})),
    ],
)
def test_settings_become_cluster_options(text: str, name: str, value: object) -> None:
    assert options(text) == {name: value}
    EmbeddedCluster(**options(text))


def test_every_option_and_topic_default_can_be_set() -> None:
    flags = {"nodes", "host", "advertised_host", "ports", "data_dir", "security", "settings", "topics"}
    others = [option for option in dataclasses.fields(ClusterOptions) if option.name not in flags]
    assert len(others) > 10
    assert len(STATIC_SETTINGS) > 10
    for option in others:
        name = option.name
        text = {bool: "true", int: "1", float: "1"}.get(type(option.default), "1")
        assert set(options(f"{name}={text}")) == {name}
    for name in STATIC_SETTINGS:
        text = {"log.cleanup.policy": "compact", "compression.type": "gzip"}.get(name, "")
        text = text or ("true" if "enable" in name or name == "log.preallocate" else "")
        text = text or ("CreateTime" if name == "log.message.timestamp.type" else "")
        text = text or ("2000000" if name == "log.segment.bytes" else "")
        text = text or ("0.5" if "ratio" in name else "9")
        assert options(f"{name}={text}") == {"settings": {name: text}}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "num.partitions=x"], "--set num.partitions=x is not allowed: a whole number, 1 or more"),
        (["--set", "num.partitions=0"], "--set num.partitions=0 is not allowed: a whole number, 1 or more"),
        (
            ["--set", "connections.max.idle.ms=0"],
            "--set connections.max.idle.ms=0 is not allowed: milliseconds, more than 0, or -1 for never",
        ),
        (
            ["--set", "num.partition=3"],
            "--set num.partition: there is no such setting; did you mean num.partitions",
        ),
        (
            ["--set", "log.retention.check.interval.ms=0"],
            "--set log.retention.check.interval.ms=0 is not allowed: a number of milliseconds, more than 0",
        ),
        (["--set", "nodes=3"], "--set nodes=3: use --nodes"),
        (["--set", "topics=a"], "--set topics=a: use --topic"),
        (["--set", "fsync=maybe"], "--set fsync=maybe is not allowed: true or false"),
        (["--set", "racks=a,b"], "--set racks=a,b is not allowed: one rack for each of 1 node (--nodes)"),
        (
            ["--set", "default.replication.factor=3", "--nodes", "2"],
            "--set default.replication.factor=3 is not allowed: at most 2, the number of nodes (--nodes)",
        ),
        (
            ["--set", "log.retention.ms=soon"],
            "--set log.retention.ms=soon is not allowed: Not a number of type LONG",
        ),
        (
            ["--set", "group.max.size=-1"],
            "--set group.max.size=-1 is not allowed: a whole number, 1 or more",
        ),
        (
            ["--set", "num.partitions=1", "--set", "default_partitions=2"],
            "--set default_partitions=2: sets the same option as --set num.partitions=1",
        ),
        (["--set", "users=alice"], "--set users=… is not allowed: NAME:PASSWORD"),
        (["--set", "mechanisms=PLAIN"], "--set: users={} is not allowed: at least one user"),
        (["--set", "cert_file=/nowhere.pem"], "--set cert_file=/nowhere.pem is not allowed: a readable PEM"),
        (["--host", "0.0.0.0"], "--host 0.0.0.0 is allowed only with --advertised-host"),
    ],
)
def test_errors_name_the_flag(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broker", "--port", "0", *arguments]) == 1
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert err.startswith("asyncgroup broker: ")
    assert words in err


@pytest.mark.parametrize(
    "given", ["user=alice:secret", "sasl.jaas.config=password=secret;", "users:alice:secret"]
)
def test_errors_show_no_passwords(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown name may be the misspelled name of a password."""
    try:
        code = main(["broker", "--port", "0", "--set", given])
    except SystemExit as error:
        code = int(error.code or 0)
    assert code
    assert "secret" not in capsys.readouterr().err


def test_too_few_nodes_for_a_data_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--data-dir", str(tmp_path))
    with broker(*arguments, "--nodes", "3", "--topic", "t:3"):
        pass
    assert main(["broker", "--port", "0", *arguments]) == 1
    assert "asyncgroup broker: --nodes 1 is not allowed: 3 or more" in capsys.readouterr().err


def test_a_missing_equals_sign_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["broker", "--set", "num.partitions"])
    assert "--set: expected NAME=VALUE, such as num.partitions=6" in capsys.readouterr().err


def test_a_broker_with_settings() -> None:
    async def read_topic(servers: str) -> tuple[list[int], str]:
        config = ClientConfig(security=Security(sasl=Scram("alice", "secret")))
        async with Cluster(servers, config) as cluster:
            cls = m.DescribeConfigsRequest
            asked = cls([cls.DescribeConfigsResource(2, "made", ["retention.ms"])])
            await cluster.request(1, m.MetadataRequest([m.MetadataRequest.MetadataRequestTopic(name="made")]))
            answer = await cluster.request(1, asked)
            return await cluster.partitions("made"), answer.results[0].configs[0].value

    sets = ("num.partitions=6", "log.retention.ms=60000", "users=alice:secret")
    with broker(*(part for text in sets for part in ("--set", text))) as servers:
        assert asyncio.run(read_topic(servers)) == (list(range(6)), "60000")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.9.10"])
def test_no_warning_for_loopback_addresses(host: str) -> None:
    assert exposure_warning(host, None) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_a_warning_if_other_machines_can_connect(host: str) -> None:
    assert exposure_warning(host, None) == (
        f"warning: other machines can connect to --host {host}: any client can read and write all topics"
    )
    assert "every user of --set users" in (exposure_warning(host, ListenerSecurity(users={"a": "b"})) or "")
