"""`acls` and `users` of the command line on an Apache Kafka with StandardAuthorizer, beside Kafka's own tools; a denied command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from asyncgroup.testing.apache_kafka import ApacheKafka
from tests.cli.admin_commands import Commands
from tests.interop.java_tools import JavaTools
from tests.real.beside_kafka import Beside
from tests.real.support import until_shown
from tests.real.test_admin_access import PASSWORD, secured
from tests.real.test_admin_brokers import unique

__all__ = ["secured"]

pytestmark = pytest.mark.full


@pytest.fixture
def beside_secured(secured: ApacheKafka, java_tools: JavaTools, capsys: pytest.CaptureFixture[str]) -> Beside:
    """Both are a superuser."""
    return Beside(secured.bootstrap_servers, java_tools, capsys)


# --- ACLs -------------------------------------------------------------------------------------------------------------


async def acls_of_both(
    beside: Beside, ours: tuple[str, ...], theirs: tuple[str, ...]
) -> set[tuple[str, ...]]:
    """Return the ACLs that both commands list; one that never exists if the two differ."""
    found, resource = set(), ()
    for line in await beside.lines("kafka-acls", "--list", *theirs):
        if match := re.search(r"resourceType=(\w+), name=(\S+), patternType=(\w+)", line):
            resource = match.groups()
        pattern = r"principal=(\S+), host=(\S+), operation=(\S+), permissionType=(\w+)"
        if match := re.search(pattern, line):
            found.add((*resource, *match.groups()))
    keys = ("resource_type", "name", "pattern_type", "principal", "host", "operation", "permission")
    rows = await beside.ours.json("acls", "list", *ours)
    return found if {tuple(row[key] for key in keys) for row in rows} == found else {("different",)}


async def test_acls_beside_kafkas_tool(beside_secured: Beside) -> None:
    beside, topic, other = beside_secured, unique(), unique()
    literal = ("TOPIC", topic, "LITERAL", "User:bob", "10.0.0.1")
    prefixed = ("TOPIC", topic[:-2], "PREFIXED", "User:carol", "*")
    all_groups = ("GROUP", "*", "LITERAL", "User:bob", "10.0.0.1", "ALL", "DENY")

    async def until_there_are(*expected: tuple[str, ...]) -> None:
        await until_shown(lambda: acls_of_both(beside, (), ()), set(expected))

    created = await beside.ours.json(
        *("acls", "create", "--topic", topic, "--principal", "User:bob"),
        *("--operation", "read,DescribeConfigs", "--host", "10.0.0.1"),
    )
    assert [(row["operation"], row["status"]) for row in created] == [
        ("READ", "created"),
        ("DESCRIBE_CONFIGS", "created"),
    ]
    ours = [(*literal, each, "ALLOW") for each in ("READ", "DESCRIBE_CONFIGS")]
    await until_there_are(*ours)
    prefix = ("--topic", topic[:-2], "--resource-pattern-type", "prefixed")
    await beside.lines("kafka-acls", "--add", "--allow-principal", "User:carol", "--producer", *prefix)
    denied = ("--deny-principal", "User:bob", "--deny-host", "10.0.0.1", "--operation", "All")
    await beside.lines("kafka-acls", "--add", *denied, "--group", "*")
    theirs = [(*prefixed, each, "ALLOW") for each in ("WRITE", "CREATE", "DESCRIBE")]
    await until_there_are(*ours, *theirs, all_groups)
    for arguments, their_arguments, expected in (
        (("--topic", topic), ("--topic", topic), ours),
        (
            ("--topic", topic, "--pattern", "match"),
            ("--topic", topic, "--resource-pattern-type", "match"),
            [*ours, *theirs],
        ),
        (("--principal", "User:carol"), ("--principal", "User:carol"), theirs),
        (("--group", "*"), ("--group", "*"), [all_groups]),
        (("--topic", other), ("--topic", other), []),
    ):
        assert await acls_of_both(beside, arguments, their_arguments) == set(expected)

    planned = await beside.ours("acls", "delete", "--topic", topic[:-2], "--pattern", "prefixed", "--json")
    assert [row["status"] for row in planned.rows] == ["planned"] * 3
    await until_there_are(*ours, *theirs, all_groups)
    deleted = await beside.ours.json(
        "acls", "delete", "--topic", topic[:-2], "--pattern", "prefixed", "--execute"
    )
    assert [row["status"] for row in deleted] == ["deleted"] * 3
    await until_there_are(*ours, all_groups)
    await beside.lines("kafka-acls", "--remove", "--force", "--topic", topic)
    await beside.lines("kafka-acls", "--remove", "--force", "--group", "*")
    await until_there_are()


# --- users ------------------------------------------------------------------------------------------------------------


async def users_of_both(beside: Beside) -> set[tuple[str, str, str]] | None:
    """Return the credentials if both commands list the same ones."""
    found = set()
    for line in await beside.lines("kafka-configs", "--describe", "--entity-type", "users"):
        if match := re.fullmatch(r"SCRAM credential configs for user-principal '(\S+)' are (.*)", line):
            credentials = re.findall(r"(SCRAM-SHA-\d+)=iterations=(\d+)", match[2])
            found |= {(match[1], *each) for each in credentials}
    rows = await beside.ours.json("users", "list")
    ours = {(row["user"], row["mechanism"], str(row["iterations"])) for row in rows}
    return found if found == ours else None


async def test_users_beside_kafkas_tool(beside_secured: Beside, tmp_path: Path) -> None:
    beside, user = beside_secured, unique()
    before = await users_of_both(beside)
    assert before is not None
    assert {("alice", "SCRAM-SHA-512", "4096")} <= before
    password = tmp_path / "password.txt"
    password.write_text(f"{PASSWORD}\n", encoding="utf-8")
    small, large = (user, "SCRAM-SHA-256"), (user, "SCRAM-SHA-512")
    tool = ("kafka-configs", "--alter", "--user", user)

    async def until_there_are(*expected: tuple[str, str, str]) -> None:
        await until_shown(lambda: users_of_both(beside), before | set(expected))

    setting = (
        "users",
        "set",
        user,
        "--mechanism",
        small[1],
        "--password-file",
        str(password),
        "--iterations",
    )
    row = {"user": user, "mechanism": small[1], "error": None}
    assert await beside.ours.json(*setting, "8192") == [{**row, "status": "set"}]
    await until_there_are((*small, "8192"))
    await beside.lines(*tool, "--add-config", f"{large[1]}=[iterations=5000,password={PASSWORD}]")
    await until_there_are((*small, "8192"), (*large, "5000"))
    await beside.lines(*tool, "--delete-config", small[1])
    await until_there_are((*large, "5000"))
    deletion = ("users", "delete", user, "--mechanism", large[1])
    deleted = await beside.ours.json(*deletion)
    assert deleted == [{**row, "mechanism": large[1], "status": "deleted"}]
    await until_there_are()
    await beside.both_refuse(
        deletion,
        (*tool, "--delete-config", large[1]),
        error="RESOURCE_NOT_FOUND",
        words="Attempt to delete a user credential that does not exist",
    )
    await beside.both_refuse(
        (*setting, "1"),
        (*tool, "--add-config", f"{small[1]}=[iterations=1,password={PASSWORD}]"),
        error="iterations=1 is not allowed",
        words="4096",
        their_words="Iterations 1 is less than the minimum 4096",
    )


# --- a denied command -------------------------------------------------------------------------------------------------


async def test_a_denied_command(
    secured: ApacheKafka, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
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
