"""`acls`, `users` and `quotas`: forms of the arguments, plans, and passwords that are neither arguments nor printed."""

from __future__ import annotations

import argparse
import io
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from asyncgroup.admin import AclBinding, AclBindingFilter, AclsDeleted, AdminResults
from asyncgroup.cli import acls
from asyncgroup.cluster.requests.results import Results
from asyncgroup.errors import BrokerError, ErrorCode
from tests.cli.admin_commands import Commands
from tests.stories.virtual import VirtualEnvironment

# --- ACLs: the embedded broker has no authorizer ------------------------------------------------------------------------


class StoredAcls:
    """The calls of `admin.acls` over a list; a filter matches by the fields that it names."""

    def __init__(self) -> None:
        self.acls: list[AclBinding] = []
        self.undeletable: list[AclBinding] = []

    async def describe(self, wanted: AclBindingFilter) -> tuple[AclBinding, ...]:
        return tuple(acl for acl in self.acls if self._matches(wanted, acl))

    def _matches(self, wanted: AclBindingFilter, acl: AclBinding) -> bool:
        exact = AclBindingFilter.exactly(acl)
        fields = (
            "resource_type",
            "name",
            "pattern_type",
            "principal",
            "host",
            "operation",
            "permission_type",
        )
        pairs = [(getattr(wanted, field), getattr(exact, field)) for field in fields]
        return all(given in (None, "ANY", found) for given, found in pairs)

    async def create(self, wanted: Iterable[AclBinding]) -> AdminResults[AclBinding, None]:
        found = list(wanted)
        self.acls += [acl for acl in found if acl not in self.acls]
        return AdminResults(Results(dict.fromkeys(found)))

    async def delete(self, wanted: Iterable[AclBindingFilter]) -> AdminResults[AclBindingFilter, AclsDeleted]:
        values: dict[AclBindingFilter, AclsDeleted] = {}
        error = BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, "deleting an ACL")
        for each in wanted:
            matching = [acl for acl in self.acls if self._matches(each, acl)]
            deleted = [acl for acl in matching if acl not in self.undeletable]
            self.acls = [acl for acl in self.acls if acl not in deleted]
            failed = {acl: error for acl in matching if acl in self.undeletable}
            values[each] = AclsDeleted(tuple(deleted), failed)
        return AdminResults(Results(values))


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> StoredAcls:
    stored = StoredAcls()

    @asynccontextmanager
    async def opened(_: argparse.Namespace) -> AsyncIterator[Any]:
        yield SimpleNamespace(acls=stored)

    monkeypatch.setattr(acls, "opened_admin", opened)
    return stored


@pytest.fixture
def offline(capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands("127.0.0.1:1", capsys)


ACCESS = ("--principal", "User:alice", "--operation", "read,describe")


async def test_acls_are_created_for_each_resource_and_operation(
    stored: StoredAcls, offline: Commands
) -> None:
    resources = ("--topic", "orders", "--group", "g", "--cluster", "--pattern", "prefixed")
    printed = await offline.ok("acls", "create", *resources, *ACCESS)
    assert printed.table()[1:] == [
        ["TOPIC", "orders", "PREFIXED", "User:alice", "READ", "ALLOW", "*", "created", "-"],
        ["TOPIC", "orders", "PREFIXED", "User:alice", "DESCRIBE", "ALLOW", "*", "created", "-"],
        ["GROUP", "g", "PREFIXED", "User:alice", "READ", "ALLOW", "*", "created", "-"],
        ["GROUP", "g", "PREFIXED", "User:alice", "DESCRIBE", "ALLOW", "*", "created", "-"],
        ["CLUSTER", "kafka-cluster", "LITERAL", "User:alice", "READ", "ALLOW", "*", "created", "-"],
        ["CLUSTER", "kafka-cluster", "LITERAL", "User:alice", "DESCRIBE", "ALLOW", "*", "created", "-"],
    ]
    more = ("--transactional-id", "*", "--deny", "--host", "10.0.0.1")
    await offline.ok("acls", "create", "--principal", "User:bob", "--operation", "write", *more)
    (row,) = await offline.json("acls", "list", "--permission", "deny")
    assert row == {
        "resource_type": "TRANSACTIONAL_ID",
        "name": "*",
        "pattern_type": "LITERAL",
        "principal": "User:bob",
        "operation": "WRITE",
        "permission": "DENY",
        "host": "10.0.0.1",
    }
    assert len(await offline.json("acls", "list")) == len(stored.acls) == 7
    assert (
        len(await offline.json("acls", "list", "--topic", "orders", "--group", "g", "--operation", "read"))
        == 2
    )


async def test_operations_in_the_words_of_kafkas_tool(stored: StoredAcls, offline: Commands) -> None:
    words = ("--operation", "IdempotentWrite,describe_configs,All")
    created = await offline.json("acls", "create", "--cluster", "--principal", "User:alice", *words)
    assert [row["operation"] for row in created] == ["IDEMPOTENT_WRITE", "DESCRIBE_CONFIGS", "ALL"]
    (row,) = await offline.json("acls", "list", "--operation", "DescribeConfigs")
    assert row["operation"] == "DESCRIBE_CONFIGS"


async def test_acls_are_deleted_when_the_plan_is_executed(stored: StoredAcls, offline: Commands) -> None:
    await offline.ok("acls", "create", "--topic", "a", "--topic", "b", *ACCESS)
    printed = await offline("acls", "delete", "--topic", "a")
    assert (printed.code, [row[7] for row in printed.table()[1:]]) == (0, ["planned", "planned"])
    assert printed.err == "asyncgroup acls delete: nothing is changed; --execute deletes them\n"
    assert len(stored.acls) == 4
    stored.undeletable = stored.acls[:1]
    printed = await offline("acls", "delete", "--topic", "a", "--execute", "--json")
    assert printed.code == 1
    assert [row["status"] for row in printed.rows] == ["failed", "deleted"]
    assert [acl.pattern.name for acl in stored.acls] == ["a", "b", "b"]
    printed = await offline("acls", "delete", "--group", "g", "--execute")
    assert (printed.code, printed.out, printed.err) == (0, "", "asyncgroup acls delete: no ACL matches\n")


async def test_without_an_authorizer(asyncgroup: Commands) -> None:
    printed = await asyncgroup("acls", "list")
    assert (printed.code, printed.out) == (1, "")
    assert printed.err.endswith(
        "SECURITY_DISABLED (54): No Authorizer is configured on the broker; "
        "the brokers have no authorizer: set authorizer.class.name\n"
    )
    printed = await asyncgroup("acls", "create", "--topic", "a", *ACCESS)
    assert (printed.code, printed.table()[1][8]) == (1, "SECURITY_DISABLED")


# --- users --------------------------------------------------------------------------------------------------------------


async def test_passwords_of_users(
    asyncgroup: Commands, env: VirtualEnvironment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hunter2\nmore\n"))
    printed = await asyncgroup.ok("users", "set", "alice")
    assert printed.table()[1] == ["alice", "SCRAM-SHA-512", "set", "-"]
    file = tmp_path / "password"
    file.write_text("hunter3\n", encoding="utf-8")
    arguments = ("--mechanism", "SCRAM-SHA-256", "--iterations", "8192", "--password-file", str(file))
    await asyncgroup.ok("users", "set", "alice", *arguments)
    assert await asyncgroup.json("users", "list") == [
        {"user": "alice", "mechanism": "SCRAM-SHA-256", "iterations": 8192},
        {"user": "alice", "mechanism": "SCRAM-SHA-512", "iterations": 4096},
    ]
    requests = env.cluster.history.of("AlterUserScramCredentials")
    assert len(requests) == 2
    assert not any("hunter" in repr(each.request) for each in requests)
    printed = await asyncgroup("users", "list", "alice", "bob", "-q")
    assert (printed.code, printed.lines) == (1, ["alice\tSCRAM-SHA-256", "alice\tSCRAM-SHA-512"])
    printed = await asyncgroup("users", "delete", "alice", "bob")
    assert (printed.code, [row[2:] for row in printed.table()[1:]]) == (
        1,
        [["deleted", "-"], ["failed", "RESOURCE_NOT_FOUND"]],
    )


async def test_a_password_that_is_typed(
    asyncgroup: Commands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = iter(["hunter2", "hunter2", "hunter2", "other"])
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("getpass.getpass", lambda _: next(typed))
    await asyncgroup.ok("users", "set", "alice")
    with pytest.raises(SystemExit) as caught:
        await asyncgroup("users", "set", "alice")
    assert caught.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith("the two passwords differ")


async def test_wrong_iterations_do_not_show_the_password(
    asyncgroup: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hunter2\n"))
    printed = await asyncgroup("users", "set", "alice", "--iterations", "5")
    assert printed.code == 2
    assert "4096 to 16384" in printed.err
    assert "hunter2" not in printed.err


# --- quotas -------------------------------------------------------------------------------------------------------------


async def test_quotas(asyncgroup: Commands) -> None:
    alice = ("--user", "alice", "--client-id", "<default>")
    checked = await asyncgroup.json("quotas", "alter", *alice, "--set", "producer_byte_rate=1", "--dry-run")
    assert checked == [
        {"user": "alice", "client_id": "<default>", "ip": None, "status": "valid", "error": None}
    ]
    assert await asyncgroup.json("quotas", "list") == []
    await asyncgroup.ok("quotas", "alter", *alice, "--set", "producer_byte_rate=1e6,request_percentage=12.5")
    await asyncgroup.ok("quotas", "alter", "--ip", "10.0.0.1", "--set", "connection_creation_rate=3")
    assert (await asyncgroup.ok("quotas", "list")).table() == [
        ["USER", "CLIENT-ID", "IP", "QUOTA", "VALUE"],
        ["alice", "<default>", "-", "producer_byte_rate", "1000000.0"],
        ["alice", "<default>", "-", "request_percentage", "12.5"],
        ["-", "-", "10.0.0.1", "connection_creation_rate", "3.0"],
    ]
    assert len(await asyncgroup.json("quotas", "list", "--user", "alice")) == 2
    assert await asyncgroup.json("quotas", "list", "--user", "alice", "--strict") == []
    await asyncgroup.ok("quotas", "alter", *alice, "--delete", "producer_byte_rate,request_percentage")
    assert await asyncgroup.json("quotas", "list", "--user", "alice") == []
    printed = await asyncgroup("quotas", "alter", "--user", "alice", "--set", "nope=1")
    assert (printed.code, printed.table()[1][4]) == (1, "INVALID_REQUEST")


async def test_values_that_admin_refuses_are_usage_errors(asyncgroup: Commands) -> None:
    for arguments, text in (
        (("quotas", "alter", "--user", "x", "--set", "producer_byte_rate=0"), "producer_byte_rate"),
        (("cluster", "reassign", "orders:0=3,3"), "each once"),
    ):
        printed = await asyncgroup(*arguments)
        assert (printed.code, printed.out) == (2, ""), printed
        assert text in printed.err


# --- replicas -----------------------------------------------------------------------------------------------------------


async def test_leaders_and_replicas(asyncgroup: Commands, env: VirtualEnvironment) -> None:
    assert [row["status"] for row in await asyncgroup.json("cluster", "elect-leaders", "orders:0,1")] == [
        "unchanged",
        "unchanged",
    ]
    printed = await asyncgroup("cluster", "elect-leaders", "orders:0,9", "--json")
    assert (printed.code, [row["status"] for row in printed.rows]) == (1, ["unchanged", "failed"])
    preferred = (await asyncgroup.json("topics", "describe", "orders"))[0]["replicas"]
    await asyncgroup.ok("topics", "create", "moving", "--replica-assignment", "1")
    printed = await asyncgroup("cluster", "reassign", "moving:0=2", "moving:1=3", "orders:0=99", "--json")
    assert printed.code == 1
    assert [(row["replicas"], row["status"]) for row in printed.rows] == [
        ([2], "begun"),
        ([3], "failed"),
        ([99], "failed"),
    ]
    assert preferred == (await asyncgroup.json("topics", "describe", "orders"))[0]["replicas"]
    (row,) = await asyncgroup.json("cluster", "log-dirs", "--broker", "1")
    places = (f"orders:0={row['path']}", "orders:1=/elsewhere")
    printed = await asyncgroup("cluster", "alter-log-dirs", "1", *places, "--json")
    assert printed.code == 1
    assert [(each["partition"], each["path"], each["status"], each["error"]) for each in printed.rows] == [
        (0, row["path"], "begun", None),
        (1, "/elsewhere", "failed", "LOG_DIR_NOT_FOUND"),
    ]
    moving = await asyncgroup.json("cluster", "reassignments", "moving")
    assert [(row["topic"], row["partition"]) for row in moving] in ([], [("moving", 0)])
    printed = await asyncgroup("cluster", "cancel-reassignments", "orders")
    assert (printed.code, printed.err) == (
        1,
        "asyncgroup cluster cancel-reassignments: topic 'orders' has no reassignment in progress\n",
    )
