"""`configs`: what was altered and where from, changes by Kafka's forms, secrets, and errors, in virtual time."""

from __future__ import annotations

from pathlib import Path

from asyncgroup.admin import ConfigDescription
from asyncgroup.cli.configs import COLUMNS, _row
from asyncgroup.cli.tables import json_line, table_lines
from tests.cli.admin_commands import Commands


async def test_configurations_are_altered_and_described(asyncgroup: Commands) -> None:
    assert await asyncgroup.json("configs", "describe", "topic") == []
    change = (
        "configs",
        "alter",
        "topic",
        "orders",
        "--set",
        "cleanup.policy=[compact,delete],retention.ms=1000",
    )
    assert (await asyncgroup.ok(*change, "--dry-run")).table()[1] == ["topic", "orders", "valid", "-"]
    assert await asyncgroup.json("configs", "describe", "topic") == []
    await asyncgroup.ok(*change)
    headings, *rows = (await asyncgroup.ok("configs", "describe", "topic", "orders")).table()
    assert headings == ["KIND", "NAME", "CONFIG", "VALUE", "SOURCE"]
    assert rows == [
        ["topic", "orders", "cleanup.policy", "compact,delete", "DYNAMIC_TOPIC_CONFIG"],
        ["topic", "orders", "retention.ms", "1000", "DYNAMIC_TOPIC_CONFIG"],
    ]
    more = ("--subtract", "cleanup.policy=delete", "--delete", "retention.ms", "--set", "retention.bytes=5")
    await asyncgroup.ok("configs", "alter", "topic", "orders", *more)
    rows = (await asyncgroup.ok("configs", "describe", "topic", "-q")).table()
    assert rows == [["orders", "cleanup.policy"], ["orders", "retention.bytes"]]


async def test_defaults_and_brokers(asyncgroup: Commands) -> None:
    rows = await asyncgroup.json("configs", "describe", "broker", "--keys", "num.partitions,log.retention.ms")
    assert {row["name"] for row in rows} == {"1", "2", "3"}
    assert len(rows) == 6
    assert list(rows[0]) == [column.key for column in COLUMNS["describe"]]
    some = (await asyncgroup.ok("configs", "describe", "topic", "orders", "--all", "--wide")).table()
    assert some[0][5:] == ["SENSITIVE", "READ-ONLY", "SYNONYMS"]
    assert len(some) > 20
    assert await asyncgroup.json("configs", "describe", "group") == []


async def test_values_from_a_file(asyncgroup: Commands, tmp_path: Path) -> None:
    file = tmp_path / "topic.properties"
    file.write_text("# why\nretention.ms = 5\n", encoding="utf-8")
    await asyncgroup.ok("configs", "alter", "topic", "orders", "--set-file", str(file))
    (row,) = await asyncgroup.json("configs", "describe", "topic", "orders")
    assert (row["config"], row["value"]) == ("retention.ms", "5")


async def test_a_secret_is_not_printed() -> None:
    secret = ConfigDescription("ssl.key.password", None, "DYNAMIC_BROKER_CONFIG", True, False)
    row = _row("broker", "1", secret)
    assert table_lines(COLUMNS["describe"], [row])[1].split()[3] == "-"
    assert '"value": null, "source": "DYNAMIC_BROKER_CONFIG", "sensitive": true' in json_line(
        COLUMNS["describe"], row
    )


async def test_errors_of_single_names(asyncgroup: Commands) -> None:
    printed = await asyncgroup("configs", "alter", "topic", "nope", "orders", "--set", "retention.ms=7")
    assert printed.code == 1
    assert {tuple(row) for row in printed.table()[1:]} == {
        ("topic", "nope", "failed", "UNKNOWN_TOPIC_OR_PARTITION"),
        ("topic", "orders", "altered", "-"),
    }
    printed = await asyncgroup("configs", "alter", "topic", "orders", "--set", "no.such=7")
    assert printed.code == 1
    assert printed.err.endswith("; `asyncgroup configs describe --all` shows the names and values\n")
    assert (await asyncgroup("configs", "describe", "topic", "nope", "orders")).code == 1
    printed = await asyncgroup("configs", "describe", "broker", "x")
    assert "a node id" in printed.err
