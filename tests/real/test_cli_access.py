"""`acls` and `users` of the command line on an Apache Kafka with StandardAuthorizer, beside Kafka's own tools; a denied command."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from asyncgroup.testing.apache_kafka import ApacheKafka
from tests.cli.admin_commands import Commands
from tests.real.test_admin_access import PASSWORD, secured
from tests.real.test_admin_brokers import unique

__all__ = ["secured"]

pytestmark = [pytest.mark.asyncio, pytest.mark.full]


async def kafkas(kafka: ApacheKafka, tool: str, *arguments: str) -> str:
    """Return the output of one of Kafka's tools."""
    servers = ("--bootstrap-server", kafka.bootstrap_servers)
    return str(await asyncio.to_thread(kafka.run_tool, tool, *servers, *arguments))


async def test_acls_beside_kafkas_tool(secured: ApacheKafka, capsys: pytest.CaptureFixture[str]) -> None:
    topic = unique()
    ours = Commands(secured.bootstrap_servers, capsys)
    arguments = (
        "--topic",
        topic,
        "--principal",
        "User:bob",
        "--operation",
        "read,describe",
        "--host",
        "10.0.0.1",
    )
    created = await ours.json("acls", "create", *arguments)
    assert [row["status"] for row in created] == ["created", "created"]
    async with asyncio.timeout(30):
        while len(rows := await ours.json("acls", "list", "--topic", topic)) < 2:
            await asyncio.sleep(0.05)  # the broker learns of them a moment after the controller
    printed = await kafkas(secured, "org.apache.kafka.tools.AclCommand", "--list", "--topic", topic)
    pattern = r"principal=(\S+), host=(\S+), operation=(\S+), permissionType=(\w+)"
    assert {(row["principal"], row["host"], row["operation"], row["permission"]) for row in rows} == set(
        re.findall(pattern, printed)
    )
    await ours.ok("acls", "delete", "--topic", topic, "--execute")
    async with asyncio.timeout(30):
        while await ours.json("acls", "list", "--topic", topic):
            await asyncio.sleep(0.05)
    assert "principal=" not in await kafkas(
        secured, "org.apache.kafka.tools.AclCommand", "--list", "--topic", topic
    )


async def test_a_user_beside_kafkas_tool_and_a_denied_command(
    secured: ApacheKafka, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ours = Commands(secured.bootstrap_servers, capsys)
    assert {"user": "alice", "mechanism": "SCRAM-SHA-512"}.items() <= (
        await ours.json("users", "list", "alice")
    )[-1].items()
    printed = await kafkas(
        secured, "kafka.admin.ConfigCommand", "--describe", "--entity-type", "users", "--entity-name", "alice"
    )
    rows = await ours.json("users", "list", "alice")
    assert set(re.findall(r"(SCRAM-SHA-\d+)=iterations=(\d+)", printed)) == {
        (row["mechanism"], str(row["iterations"])) for row in rows
    }

    file = tmp_path / "client.properties"
    jaas = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="{PASSWORD}";'
    file.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config={jaas}\n",
        encoding="utf-8",
    )
    alice = Commands(secured.address(1, "SASL"), capsys)
    denied = await alice("topics", "create", unique(), "--config", str(file))
    assert denied.code == 1
    (line,) = denied.errors
    assert "TOPIC_AUTHORIZATION_FAILED (29): this user needs CREATE" in line
    assert line.endswith("with an ACL (`asyncgroup acls create`, admin.acls.create, kafka-acls.sh)")
    denied = await alice("acls", "list", "--config", str(file))
    (line,) = denied.errors
    assert "CLUSTER_AUTHORIZATION_FAILED (31): this user needs DESCRIBE on the cluster" in line
    assert PASSWORD not in line
