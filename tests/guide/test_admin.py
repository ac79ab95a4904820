"""The programs of the page "Admin", on an embedded broker."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import pytest

import asyncgroup.admin
from asyncgroup.admin import Admin
from asyncgroup.testing import KafkaServer
from tests.guide.pages import ROOT, snippet
from tests.guide.test_execution import define


@pytest.fixture
def server() -> Iterator[KafkaServer]:
    """A broker with three records of `orders`, of which the group "billing" has committed one."""
    with KafkaServer(topics={"orders": 1}) as kafka:
        kafka.produce("orders", b"0", b"1", b"2", partition=0)
        kafka.commit("billing", {("orders", 0): 1})
        yield kafka


def test_topics() -> None:
    printed: list[tuple[object, ...]] = []
    code = snippet("admin", "admin.create_topics").replace("print(name, error)", "print(name, error.name)")
    with KafkaServer() as server:
        define(code, server, main=True, print=lambda *values: printed.append(values))
    assert printed == [("orders", 3), ("refunds", "UNKNOWN_TOPIC_OR_PARTITION")]


def test_users_and_acls() -> None:
    printed: list[tuple[object, ...]] = []

    async def run(server: KafkaServer) -> dict[str, dict[str, int]]:
        async with Admin(server.bootstrap_servers) as admin:
            names = define(
                snippet("admin", "admin.acls.create"),
                server,
                Admin=Admin,
                print=lambda name, error: printed.append((name, error.name)),
            )
            await names["add_reader"](admin, "secret")
            return dict((await admin.users.describe()).raise_first())

    with KafkaServer() as server:
        assert asyncio.run(run(server)) == {"alice": {"SCRAM-SHA-512": 4096}}
    assert printed == [("orders", "SECURITY_DISABLED"), ("billing", "SECURITY_DISABLED")]


def test_the_table_names_every_call() -> None:
    page = (ROOT / "asyncgroup/guide/admin.md").read_text(encoding="utf-8")
    rows = [row.strip("|").split("|", 1) for row in page.splitlines() if row.startswith("| ")]
    table = {subject.strip().strip("`"): re.findall(r"`(\w+)`", calls) for subject, calls in rows}
    faces = {
        f"admin.{name}": getattr(asyncgroup.admin, f"Admin{name.title()}")
        for name in ("transactions", "brokers", "replicas", "acls", "users", "quotas")
    }
    for name, face in faces.items():
        assert sorted(table[name]) == sorted(call for call in vars(face) if not call.startswith("_")), name
    flat = [call for name, calls in table.items() if not name.startswith("admin.") for call in calls]
    assert sorted(flat) == sorted(
        call for call in vars(Admin) if not call.startswith("_") and call != "aclose"
    )


def test_lag_and_reset(server: KafkaServer) -> None:
    printed: list[tuple[object, ...]] = []

    async def run() -> None:
        async with Admin(server.bootstrap_servers) as admin:
            for text, name in (("admin.lag", "lag"), ("admin.plan_reset", "reset"), ("admin.lag", "lag")):
                names = define(
                    snippet("admin", text),
                    server,
                    Admin=Admin,
                    print=lambda *values, **_: printed.append(values),
                )
                await names[name](admin)

    asyncio.run(run())
    assert [each[0] if isinstance(each[0], int) else each[1:] for each in printed if each] == [
        2, (1, 3, 2, None), (1, 0), 3, (0, 3, 3, None),
    ]  # fmt: skip
